"""ptymesh slurm, with Slurm itself: one node, on this machine (`make slurm`). Skipped where Slurm is not installed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import cluster
from ptymesh.io.results import Result
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from short_runs import epochs
from warm import python

RECIPE = """
data: {path: scan.cxi}
precision: double
stages: [{engine: rpie, epochs: 45, batch: 7, positions: true}]
output: {figures: false, dir: out}
"""
#: ptymesh on a machine that is too slow for the time it is given: in the first turn, an epoch takes a second more.
SLOW = """
import os, time
from ptymesh.__main__ import main
from ptymesh.run_folder.callbacks import MetricsFile

write_line = MetricsFile.epoch

def slowly(self, report):
    write_line(self, report)
    if not int(os.environ.get("SLURM_RESTART_COUNT") or 0):
        time.sleep(1)

MetricsFile.epoch = slowly
main()
"""


@pytest.fixture
def slurm() -> Iterator[cluster.Cluster]:
    try:
        with cluster.running() as running:
            yield running
    except cluster.Unavailable as error:
        pytest.skip(str(error))


def until(what: Callable[[], bool], seconds: float, otherwise: Callable[[], str]) -> None:
    """Waits for something to become so; fails with the words of `otherwise`."""
    given_up = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < given_up, otherwise()
        time.sleep(0.1)


@pytest.mark.slurm
@pytest.mark.timeout(290)
def test_a_job_out_of_time_is_requeued_and_ends_with_the_same_bits(slurm: cluster.Cluster, tmp_path: Path) -> None:
    """Slurm warns the job because its time is nearly up; it goes back into the queue, and resumes on two ranks."""
    folder = tmp_path / "job"
    (folder / "bin").mkdir(parents=True)
    write(checked(kind="xray", views=20, window=32, seed=3), folder / "scan.cxi")
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "slow.py").write_text(SLOW)
    (folder / "bin" / "ptymesh").write_text(f'#!/bin/bash\nexec {sys.executable} {folder / "slow.py"} "$@"\n')
    (folder / "bin" / "ptymesh").chmod(0o755)

    ask = "slurm recipe.yaml --gpus-per-node 0 --ranks-per-node 2 --cpus-per-task 2 --time 00:11:00"
    said, err = python(["-m", "ptymesh", *ask.split()], folder).communicate(timeout=60)
    assert err == ""
    (folder / "job.sh").write_text(said)
    # torch's operations: nobody knows whether kernels are compiled on this machine yet, which would take a minute
    environ = {"OMP_NUM_THREADS": "1", "PTYMESH_KERNELS": "torch"}
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    job = slurm.call("sbatch", "--parsable", "job.sh", cwd=folder, PATH=path, **environ).strip()

    def state() -> str:
        output = folder / f"recipe-{job}.txt"
        return f"{slurm.job(job)}\n{output.read_text() if output.exists() else 'no output'}\n{slurm.said()}"

    until(lambda: (folder / "out" / "metrics.jsonl").exists(), 100, state)
    slurm.call("scontrol", "update", f"JobId={job}", "TimeLimit=5")  # minutes: no more than the script wants to be told
    alone = python(["-m", "ptymesh", "run", "recipe.yaml", "--out", "alone"], folder, {**os.environ, **environ})
    until(lambda: slurm.job(job)["Restarts"] == "1", 80, state)  # Slurm looks every 30 s
    first = epochs(folder / "out")
    assert 0 < len(first) < 45 and not (folder / "out" / "result.h5").exists(), "interrupted on its way"
    slurm.call("scontrol", "update", f"JobId={job}", "TimeLimit=11")

    until(lambda: slurm.job(job)["JobState"] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), 100, state)
    ended = slurm.job(job)
    assert [ended[name] for name in ("JobState", "ExitCode", "Restarts")] == ["COMPLETED", "0:0", "1"], state()
    output = (folder / f"recipe-{job}.txt").read_text()
    assert output.count("this job goes back into the queue") == 1, output
    assert epochs(folder / "out") == list(range(1, 46)), "every epoch once"
    out, err = alone.communicate(timeout=100)
    assert alone.returncode == 0, (out, err)
    one, other = (Result.load(folder / name / "result.h5") for name in ("out", "alone"))
    for name in ("object", "probe", "positions_px"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
