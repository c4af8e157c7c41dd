"""Timing a recipe on several numbers of ranks: the arithmetic, the runs, the figure, the command."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptymesh as pm
from ptymesh.cli.main import main
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.plot import scaling_figure
from ptymesh.run.simulate_file import write
from ptymesh.run.speed import scaling
from ptymesh.run.speed.scaling import RepeatedRun, Trial, _smaller, same_bits, scale, summarise, table, ways
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


def test_where_the_time_goes() -> None:
    """Of 2 x 3 s, one rank needs 4 s; each waits, and the one that waits least waits for messages."""
    uneven = Trial(2, [3.0, 3.0], [0.6, 1.2], [1, 1], [1.0], 0.0, balance=0.9)
    two = summarise([trial(1, 4.0), uneven])[1]
    assert two.efficiency == pytest.approx(4 / 6)
    assert two.lost["messages"] == pytest.approx(0.1), "0.6 s of two epochs of 3 s"
    assert two.lost["imbalance"] == pytest.approx(0.05), "all other waiting, as shares would make it 0.074"
    assert two.lost["waiting"] == pytest.approx(0, abs=1e-12)
    assert two.efficiency + sum(two.lost.values()) == pytest.approx(1)
    even = summarise([trial(1, 4.0), replace(uneven, balance=1.0)])[1]
    assert even.lost["imbalance"] == 0 and even.lost["waiting"] == pytest.approx(0.05)
    assert even.lost["repeated"] == two.lost["repeated"] == pytest.approx(1 - 4 / 6 - 0.15)


def test_threads_and_weak_rows() -> None:
    made = ways([1, 2, 4], 1, ("threads", "weak"))
    assert [(w.kind, w.ranks, w.threads, w.share) for w in made] == [
        *(("ranks", n, 1, 1.0) for n in (1, 2, 4)),
        *(("threads", 1, n, 1.0) for n in (2, 4)),
        *(("weak", n, 1, n / 4) for n in (1, 2)),
    ]
    times = {("ranks", 1): 8.0, ("ranks", 2): 5.0, ("ranks", 4): 2.5, ("weak", 1): 2.0, ("weak", 2): 2.2}
    trials = [
        replace(
            trial(w.ranks, times.get((w.kind, w.ranks * w.threads), 4.4)),
            kind=w.kind,
            threads=w.threads,
            share=w.share,
        )
        for w in made
    ]
    rows = summarise(trials)
    assert [(row.kind, row.ranks, row.threads) for row in rows[3:]] == [
        ("threads", 1, 2),
        ("threads", 1, 4),
        ("weak", 1, 1),
        ("weak", 2, 1),
        ("weak", 4, 1),
    ]
    assert rows[3].speed_up == pytest.approx(8 / 4.4) and rows[3].efficiency == pytest.approx(4 / 4.4)
    assert [row.efficiency for row in rows[5:]] == pytest.approx([1, 2 / 2.2, 2 / 2.5]), "the last is the strong one"
    lines = table(found(rows=[row.__dict__ for row in rows]))
    assert "2 ranks have 0.88 of the speed of one with 2 threads." in lines
    assert any(line.startswith("4 ranks lose work that every rank does again 20%") for line in lines)
    assert _smaller(0.5, 101, (64, None, 1)) == [
        "data.views.central=50",
        "stages.0.batch=32",
        "stages.2.batch=1",
    ] and not _smaller(1.0, 101, (64,))


def found(**changes: Any) -> dict[str, Any]:
    trials = [trial(1, 4.0), trial(2, 2.0, 1.0, 1e-14)]
    told = {"device": "cpu", "precision": "double", "threads_per_rank": 1, "cores": 4, "trials_per_count": 1}
    told |= {"rows": [row.__dict__ for row in summarise(trials)], "same_bits": True}
    return {**told, "trials": [{**t.__dict__, "seconds": t.seconds} for t in trials], **changes}


def test_table() -> None:
    lines = table(found())
    assert lines[2].split() == ["2", "1", "2.0000", "0.0000", "2.00", "100%", "8%", "10", "MiB", "1.0e-14"]
    assert lines[-1].startswith("Final results have the same bits (double precision); 1 thread per rank, 4 cores")
    assert table(found(cores=1))[-1].startswith("There are fewer cores than ranks")
    assert table(found(same_bits=False))[-1].startswith("Final results DO NOT HAVE the same bits")


def test_one_bit_is_a_difference(tmp_path: Path) -> None:
    """Of any array; and what both lack is none."""
    write(checked(kind="xray", views=4, window=16, seed=3), tmp_path / "scan.cxi")
    scan = pm.load(tmp_path / "scan.cxi")
    one, other = (pm.reconstruct(scan, pm.RPIE(epochs=1, batch=2)) for _ in range(2))
    assert same_bits(one, other) and one.opr is None
    for name in ("object", "probe", "positions_px"):
        array = getattr(other, name).copy()
        array.view(np.uint8).reshape(-1)[-8] ^= 1
        assert not same_bits(one, replace(other, **{name: array})), name
    assert not same_bits(one, replace(other, weights=None if other.weights is not None else np.ones((4, 1))))


def test_figure(tmp_path: Path) -> None:
    what = found()
    figure = scaling_figure(what["rows"], what["trials"], "a title")
    figure.savefig(tmp_path / "scaling.png")
    speed, share, curves, memory = figure.axes
    assert speed.get_ylabel() == "speed-up" and curves.get_ylabel() == "loss" and memory.get_ylim()[0] == 0
    assert [bars.get_label() for bars in share.containers] == ["useful", "messages"]
    assert {line.get_label() for line in curves.lines} == {"1 rank", "2 ranks"}
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


@pytest.mark.long
def test_the_command(tmp_path: Path) -> None:
    write(checked(kind="xray", views=20, window=32, seed=3), tmp_path / "scan.cxi")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    arguments = ["scaling", "recipe.yaml", "--ranks", "1,2", "--trials", "1", "--threads", "1", "--device", "cpu"]
    arguments += ["--set", "stages.0.epochs=3", "--out", "scaled", "--also", "weak"]
    process = python(["-m", "ptymesh", *arguments], tmp_path, spares=4)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    trials = ("1 rank", "2 ranks", "1 rank, 50% of the views")
    assert err.splitlines() == [f"trial 1 of 1, {one}" for one in trials]
    assert "Final results have the same bits" in out
    assert {path.name for path in (tmp_path / "scaled").iterdir()} == {"scaling.json", "scaling.png"}
    numbers = json.loads((tmp_path / "scaled" / "scaling.json").read_text())
    one, two, half = numbers["trials"]
    assert half["kind"] == "weak" and half["share"] == 0.5 and half["difference"] == 0 and 0.8 < two["balance"] < 1
    assert len(one["epoch_s"]) == 3 and len(two["waited_s"]) == 2 == len(two["peak_bytes"])
    assert one["waited_s"] == [0.0] and 0 < two["waited_s"][1] < sum(two["epoch_s"]) + 5
    assert min(two["peak_bytes"]) > 50 << 20 and two["difference"] == 0 and two["same"] and numbers["same_bits"]
    kinds = [("ranks", 1), ("ranks", 2), ("weak", 1), ("weak", 2)]
    assert [(row["kind"], row["ranks"]) for row in numbers["rows"]] == kinds


def test_results_of_other_bits_have_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(checked(kind="xray", views=20, window=32, seed=3), tmp_path / "scan.cxi")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.setattr(scaling, "scale", lambda *_, **__: found(same_bits=False))
    monkeypatch.setattr(sys, "argv", ["ptymesh", "scaling", "recipe.yaml", "--device", "cpu"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1 and "DO NOT HAVE the same bits" in capfd.readouterr().out


@pytest.mark.long
def test_a_run_that_fails(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(PtymeshError, match=r"The run on 1 ranks failed with status 2 \(ptymesh: .*scan.cxi"):
        scale(RepeatedRun(tmp_path / "recipe.yaml"), [1], 1, tmp_path / "out")


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
        scale(RepeatedRun(tmp_path / "recipe.yaml"), counts, trials, tmp_path, threads=threads)


def test_odd_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ptymesh", "scaling", "recipe.yaml", "--ranks", "1,two"])
    with pytest.raises(SystemExit) as left:
        main()
    said = "--ranks is '1,two'; give whole numbers of 1 or more with commas between them, such as 1,2,4."
    assert left.value.code == 2 and said in capfd.readouterr().err


def test_odd_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ptymesh", "scaling", "recipe.yaml", "--also", "threads,fibres"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2 and "there is no 'fibres'; give threads, weak, both or none" in capfd.readouterr().err
