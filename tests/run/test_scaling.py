"""Timing a recipe on several numbers of ranks: the arithmetic, the runs, the figure, the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.cli.main import main
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.plot import scaling_figure
from ptymesh.run import scaling
from ptymesh.run.scaling import Trial, scale, summarise, table
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from warm import python

RECIPE = """
data: {path: scan.cxi}
precision: double
stages: [{engine: rpie, epochs: 4, batch: 7}]
"""


def trial(ranks: int, seconds: float, waited: float = 0.0, difference: float = 0.0) -> Trial:
    return Trial(ranks, [9.0, seconds, seconds], [waited] * ranks, [10 << 20] * ranks, [3.0, 2.0, 1.0], difference)


def test_arithmetic() -> None:
    rows = summarise([trial(2, 4.0), trial(4, 2.4, 6.9, 1e-5), trial(2, 6.0), trial(4, 2.6, 7.1)])
    two, four = rows
    assert (two.ranks, two.seconds, two.speed_up, two.efficiency) == (2, 5.0, 1.0, 1.0)
    assert two.deviation == pytest.approx(np.std([4, 6], ddof=1))
    assert (four.seconds, four.speed_up, four.efficiency) == (2.5, 2.0, 1.0), "twice as fast on twice as many"
    assert four.communication == pytest.approx((6.9 / 13.8 + 7.1 / 14.2) / 2)
    assert four.difference == 1e-5 and four.peak_bytes == 10 << 20
    assert summarise([trial(3, 1.0)])[0].deviation == 0.0
    assert Trial(1, [5.0], [0.0], [1], [1.0], 0.0).seconds == 5.0


def found(**changes: Any) -> dict[str, Any]:
    trials = [trial(1, 4.0), trial(2, 2.0, 1.0, 1e-14)]
    told = {"device": "cpu", "precision": "double", "threads_per_rank": 1, "cores": 4, "trials_per_count": 1}
    told |= {"rows": [row.__dict__ for row in summarise(trials)], "agree": True, "tolerance": 1e-9}
    return {**told, "trials": [{**t.__dict__, "seconds": t.seconds} for t in trials], **changes}


def test_table() -> None:
    lines = table(found())
    assert lines[2].split() == ["2", "2.0000", "0.0000", "2.00", "100%", "8%", "10", "MiB", "1.0e-14"]
    assert lines[-1].startswith("Final objects agree to 1e-09 (double precision); 1 thread per rank, 4 cores")
    assert table(found(cores=1))[-1].startswith("There are fewer cores than ranks")
    assert "DO NOT AGREE" in table(found(agree=False))[-1]


def test_figure(tmp_path: Path) -> None:
    what = found()
    figure = scaling_figure(what["rows"], what["trials"], "a title")
    figure.savefig(tmp_path / "scaling.png")
    speed, share, curves, memory = figure.axes
    assert speed.get_ylabel() == "speed-up" and curves.get_ylabel() == "loss" and memory.get_ylim()[0] == 0
    assert [line.get_label() for line in share.lines] == ["efficiency", "time in collectives"]
    assert {line.get_label() for line in curves.lines} == {"1 rank", "2 ranks"}
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def test_the_command(tmp_path: Path) -> None:
    write(checked(kind="xray", views=20, window=32, seed=3), tmp_path / "scan.cxi")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    arguments = ["scaling", "recipe.yaml", "--ranks", "1,2", "--trials", "1", "--threads", "1", "--device", "cpu"]
    arguments += ["--set", "stages.0.epochs=3", "--out", "scaled"]
    process = python(["-m", "ptymesh", *arguments], tmp_path, spares=3)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert err.splitlines() == ["trial 1 of 1, 1 rank", "trial 1 of 1, 2 ranks"]
    assert "Final objects agree to 1e-09" in out
    assert {path.name for path in (tmp_path / "scaled").iterdir()} == {"scaling.json", "scaling.png"}
    numbers = json.loads((tmp_path / "scaled" / "scaling.json").read_text())
    one, two = numbers["trials"]
    assert len(one["epoch_s"]) == 3 and len(two["waited_s"]) == 2 == len(two["peak_bytes"])
    assert one["waited_s"] == [0.0] and 0 < two["waited_s"][1] < sum(two["epoch_s"]) + 5
    assert min(two["peak_bytes"]) > 50 << 20 and two["difference"] < 1e-12
    assert [row["ranks"] for row in numbers["rows"]] == [1, 2]


def test_results_that_do_not_agree_have_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(checked(kind="xray", views=20, window=32, seed=3), tmp_path / "scan.cxi")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.setattr(scaling, "scale", lambda *_, **__: found(agree=False))
    monkeypatch.setattr(sys, "argv", ["ptymesh", "scaling", "recipe.yaml", "--device", "cpu"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1 and "DO NOT AGREE" in capfd.readouterr().out


def test_a_run_that_fails(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(PtymeshError, match=r"The run on 1 ranks failed with status 2 \(ptymesh: .*scan.cxi"):
        scale(tmp_path / "recipe.yaml", [1], 1, tmp_path / "out")


@pytest.mark.parametrize(
    ("counts", "trials", "threads", "sentence"),
    [
        ([], 1, None, "--ranks is ; give rising numbers"),
        ([2, 1], 1, None, "--ranks is 2,1; give rising"),
        ([0, 1], 1, None, "--ranks is 0,1; give rising"),
        ([1], 0, None, "--trials is 0; give 1 or more."),
        ([1], 1, 0, "--threads is 0; give 1 or more."),
    ],
)
def test_refused(counts: list[int], trials: int, threads: int | None, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=sentence):
        scale(tmp_path / "recipe.yaml", counts, trials, tmp_path, threads=threads)


def test_odd_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ptymesh", "scaling", "recipe.yaml", "--ranks", "1,two"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2 and "--ranks is '1,two'; give numbers of ranks such as 1,2,4." in capfd.readouterr().err
