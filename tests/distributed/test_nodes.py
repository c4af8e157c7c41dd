"""Two nodes on one machine: network namespaces that reach each other through a virtual cable, and a shared disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ptymesh.io.results import Result
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from warm import python

RECIPE = """
data: {path: scan.cxi}
precision: double
stages: [{engine: rpie, epochs: 4, batch: 7, positions: true}]
output: {figures: false, checkpoint_every: 1}
"""
#: Whatever happens, none of these stays behind.
_started: list[subprocess.Popen[str]] = []
ADDRESSES = ("10.213.7.1", "10.213.7.2")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[str]]:
    """Names of two network namespaces joined by a cable; skips where they may not be made."""
    names = [f"ptymesh{os.getpid()}{letter}" for letter in "ab"]
    cables = [f"pm{os.getpid() % 100000}{letter}" for letter in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", cables[0], "netns", names[0], "type", "veth", "peer", "name", cables[1], "netns", names[1])
        for name, cable, address in zip(names, cables, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        _remove(names)
        pytest.skip(f"network namespaces may not be made here: {getattr(error, 'stderr', None) or error}")
    yield names
    for process in _started:
        process.kill()
    _remove(names)


def _remove(names: list[str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True) if Path("/run/netns", name).exists() else None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scan, a recipe, and what it comes to on one rank: alone/result.h5."""
    folder = tmp_path_factory.mktemp("made")
    write(checked(kind="xray", views=20, window=32, seed=3), folder / "scan.cxi")
    (folder / "recipe.yaml").write_text(RECIPE)
    alone = python(["-m", "ptymesh", "run", "recipe.yaml", "--out", "alone"], folder)
    out, err = alone.communicate(timeout=200)
    assert alone.returncode == 0, (out, err)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    for name in ("scan.cxi", "recipe.yaml"):
        (tmp_path / name).symlink_to(made / name)
    return tmp_path


def start(folder: Path, node: str, command: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        ["ip", "netns", "exec", node, sys.executable, *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _started.append(process)
    return process


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    said = [process.communicate(timeout=200) for process in processes]
    return [(process.returncode, out, err) for process, (out, err) in zip(processes, said, strict=True)]


def torchrun(rank: int) -> tuple[list[str], dict[str, str]]:
    options = ["--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1", "--master-addr", ADDRESSES[0]]
    return ["-m", "torch.distributed.run", *options, "--master-port", "29511", "-m", "ptymesh", "run"], {}


def srun(rank: int) -> tuple[list[str], dict[str, str]]:
    environ = {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"}
    return ["-m", "ptymesh", "run"], {**environ, "MASTER_ADDR": ADDRESSES[0], "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}


@pytest.mark.parametrize("how", [srun, pytest.param(torchrun, marks=pytest.mark.long)])
def test_two_nodes_find_what_one_does(nodes: list[str], made: Path, folder: Path, how) -> None:  # type: ignore[no-untyped-def]
    processes = []
    for rank, node in enumerate(nodes):
        command, environ = how(rank)
        processes.append(start(folder, node, [*command, "recipe.yaml", "--device", "cpu"], environ))
    found = ended(processes)
    assert all(status == 0 for status, _, _ in found), found
    assert "2 ranks on cpu" in found[0][1] and "epoch" not in found[1][1], "one of them is heard"
    result, expected = Result.load(folder / "out" / "result.h5"), Result.load(made / "alone" / "result.h5")
    for name in ("object", "probe", "positions_px"):
        one, other = getattr(result, name), getattr(expected, name)
        assert np.linalg.norm(one - other) <= 1e-12 * np.linalg.norm(other), name


@pytest.mark.long
def test_a_node_that_is_lost_is_named(nodes: list[str], folder: Path) -> None:
    # seldom saved: a rank that stands still while it saves has ten minutes
    seldom = ["--set", "stages.0.epochs=100000", "--set", "output.checkpoint_every=100"]
    settings = ["--device", "cpu", *seldom, "--batch-timeout", "5"]
    processes = []
    for rank, node in enumerate(nodes):
        command, environ = srun(rank)
        processes.append(start(folder, node, [*command, "recipe.yaml", *settings], environ))
    manifest, end = folder / "out" / "checkpoint" / "manifest.json", time.monotonic() + 120
    while not manifest.exists():
        assert processes[0].poll() is None and time.monotonic() < end, processes[0].communicate()
        time.sleep(0.05)
    time.sleep(0.2)  # it saves no more, and not yet again
    processes[1].send_signal(signal.SIGSTOP)  # nothing comes from it any more, and nothing is closed
    ip("-n", nodes[1], "link", "set", f"pm{os.getpid() % 100000}b", "down")
    began = time.monotonic()
    status, _, err = ended(processes[:1])[0]
    processes[1].kill()
    processes[1].communicate()
    ip("-n", nodes[1], "link", "set", f"pm{os.getpid() % 100000}b", "up")
    assert status == 1 and time.monotonic() - began < 60
    last = err.strip().splitlines()[-1]
    assert last.startswith("ptymesh: Rank 1 (process ") and "answered nothing for" in last, err
    assert "`ptymesh resume out` goes on." in last
