"""Figures drawn by a process of their own: when a run waits for them, and what becomes of the run where they fail."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest

from ptymesh.cli import running
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io.results import Result
from ptymesh.run import drawing, figures
from ptymesh.run.drawing import Job, hand_over, standing_by
from ptymesh.run.pairs import Patterns
from ptymesh.run.recipe import Recipe
from ptymesh.run.session import Outcome
from ptymesh.run.writers import WRITERS

FOLLOW_S = 120.0


@pytest.fixture
def truth() -> Result:
    """Of nine views, without a recipe: no patterns are shown."""
    y, x = np.mgrid[-8:8, -8:8]
    scan = np.stack(np.meshgrid([2.0, 6.0, 10.0], [2.0, 6.0, 10.0], indexing="ij"), axis=-1).reshape(-1, 2)
    return Result(
        object=np.exp(1j * np.add.outer(np.linspace(0, 1, 32), np.linspace(0, 0.5, 32)))[None].astype(np.complex64),
        probe=np.exp(-(y**2 + x**2) / 20 + 0j)[None].astype(np.complex64),
        positions_px=scan,
        history={name: np.array([1.0]) for name in ("epoch", "stage", "loss", "residual", "seconds")},
        attrs={"final_residual": 0.01, "engine": "rpie"},
    )


@pytest.fixture
def result(truth: Result, tmp_path: Path) -> Path:
    truth.save(tmp_path / "result.h5")
    return tmp_path / "result.h5"


@pytest.mark.parametrize(
    ("terminal", "environment", "expected"),
    [
        (True, {}, False),
        (False, {}, True),
        (True, {"SLURM_JOB_ID": "7"}, True),
        (True, {"SLURM_JOB_ID": ""}, False),
        (True, {"PTYMESH_FIGURES": "wait"}, True),
        (False, {"PTYMESH_FIGURES": "follow"}, False),
        (False, {"PTYMESH_FIGURES": "auto"}, True),
    ],
)
def test_who_waits(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, environment: dict[str, str], expected: bool
) -> None:
    for name in (drawing.VARIABLE, *drawing.JOBS):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(os, "getppid", lambda: 1000)
    assert drawing.waits() is expected


def test_the_first_process_of_a_container_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (drawing.VARIABLE, *drawing.JOBS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert drawing.waits()


def test_an_unknown_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTYMESH_FIGURES", "later")
    with pytest.raises(BadInput, match="PTYMESH_FIGURES is 'later'; set it to auto, wait or follow, or remove it"):
        drawing.waits()


def test_figures_follow(result: Path) -> None:
    with standing_by(waited_for=False) as process:
        assert process.stdout is None, "nobody would read it"
        hand_over(process, Job(str(result), writers=("tiff",)))
    assert process.wait(FOLLOW_S) == 0
    made = {path.name for path in result.parent.iterdir()} - {"result.h5"}
    assert {"overview.png", "object.png", "probe.png", "object_phase.tiff"} <= made


def test_what_waits_is_told_the_names(result: Path) -> None:
    pair = np.ones((16, 16)), np.full((16, 16), 2.0)
    patterns = Patterns({"typical": pair, "worst": pair}, np.ones((16, 16), bool), True)
    with standing_by(waited_for=True) as process:
        hand_over(process, Job(str(result)), patterns)
        drawn = drawing.wait(process, result)
    assert "patterns.png" in [Path(name).name for name in drawn] and all(Path(name).is_file() for name in drawn)


def test_patterns_are_handed_over_as_they_are() -> None:
    pair = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    given = Patterns({"typical: view 1": pair, "worst, résidu 3": pair}, np.array([[True, False, True]] * 2), False)
    found = Patterns.unpacked(given.packed())
    assert list(found.pairs) == list(given.pairs) and not found.far_field and (found.mask == given.mask).all()
    assert all((np.array(found.pairs[name]) == given.pairs[name]).all() for name in given.pairs)


def test_who_stands_by_leaves_with_a_run_that_has_nothing_to_draw(result: Path) -> None:
    with standing_by(waited_for=True) as process:
        assert process.returncode is None
    assert process.returncode is not None and list(result.parent.iterdir()) == [result]


def test_one_that_has_ended_is_told(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with standing_by(waited_for=True) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        hand_over(process, Job(str(result)))
        assert drawing.wait(process, result) == []
    assert "their process was ended by SIGKILL" in capsys.readouterr().err


def test_why_none_could_be_started_is_told(
    result: Path, truth: Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(waited_for: bool) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(drawing, "_started", refused)
    recipe = Recipe.parse({"data": {"path": "scan.cxi"}})
    with ExitStack() as held:
        running._draw(Outcome(truth, result, recipe), Job(str(result)), running._drawer(recipe, held))
    said = "No figures were drawn: no process could be started for them (Resource temporarily unavailable). "
    assert capsys.readouterr().err == f"ptymesh: {said}The result is complete; `ptymesh view {result}` draws them.\n"


def test_drawing_needs_no_torch() -> None:
    """It takes seconds to import."""
    program = "import sys; from ptymesh.run import drawing, figures, writers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_processes_share_the_figures(result: Path, tmp_path: Path) -> None:
    found = Result.load(result)
    alone = figures.write_figures(found, tmp_path / "alone")
    shared = figures.write_figures(found, tmp_path / "shared", processes=2)
    assert [path.name for path in alone] == [path.name for path in shared]
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(alone, shared, strict=True))


def test_what_fails_in_one_of_several_processes_is_raised(result: Path, tmp_path: Path) -> None:
    def replaced() -> None:
        raise PtymeshError("The result has been replaced.")

    with pytest.raises(PtymeshError, match="has been replaced"):
        figures.write_figures(Result.load(result), tmp_path / "shared", before_each=replaced, processes=2)


def test_a_figure_that_fails_is_told_and_logged(
    result: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> list[Path]:
        raise PtymeshError("The disk is full.")

    monkeypatch.setattr(figures, "write_figures", fails)
    (result.parent / "log.txt").write_text("before\n")
    assert drawing.attempt(Job(str(result))) == 1
    sentence = f"No figures were drawn: The disk is full. The result is complete; `ptymesh view {result}` draws them.\n"
    assert capsys.readouterr().err.endswith(f"ptymesh: {sentence}")
    before, line = (result.parent / "log.txt").read_text().splitlines(keepends=True)
    assert before == "before\n" and line.endswith(sentence)


def test_a_writer_that_fails_is_told_and_the_others_write(
    result: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(found: Result, folder: Path) -> None:
        found.object[:] = 0
        raise RuntimeError("no\nlicence")

    def writes(found: Result, folder: Path) -> list[Path]:
        (folder / "sum.txt").write_text(str(abs(found.object).sum()))
        return [folder / "sum.txt"]

    before = result.read_bytes()
    monkeypatch.setattr(WRITERS, "_own", WRITERS._own | {"fails": fails, "writes": writes})
    assert drawing.attempt(Job(str(result), False, ("fails", "writes"))) == 1
    said, err = capsys.readouterr()
    sentence = "The writer fails failed: RuntimeError: no licence."
    again = f"The result is complete; `ptymesh view {result} --write fails` tries again."
    assert err == f"ptymesh: {sentence} {again}\n" and (result.parent / "log.txt").read_text().endswith(f"{again}\n")
    assert said == f"{result.parent / 'sum.txt'}\n" and float((result.parent / "sum.txt").read_text()) > 0
    assert result.read_bytes() == before and not list(result.parent.glob("*.png"))


def test_figures_of_a_result_that_is_replaced_are_left(
    result: Path, truth: Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = figures.plot.save_figure
    monkeypatch.setattr(figures, "processes_here", lambda: 1)

    def then_replaced(figure: object, path: Path) -> Path:
        saved = save(figure, path)
        truth.save(result)
        return saved

    monkeypatch.setattr(figures.plot, "save_figure", then_replaced)
    assert drawing.attempt(Job(str(result))) == 0
    assert [path.name for path in result.parent.glob("*.png")] == ["overview.png"]
    assert "No figures" not in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a process that its parent has ended")
def test_a_killed_run_leaves_nobody_drawing(result: Path, tmp_path: Path) -> None:
    """Whoever waits for figures and is killed takes them along."""
    program = (
        "from ptymesh.run.drawing import Job, hand_over, standing_by\n"
        "with standing_by(waited_for=True) as process:\n"
        f"    hand_over(process, Job({str(result)!r}))\n"
        "    print(process.pid, flush=True)\n"
        "    process.communicate()\n"
    )
    waiting = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert waiting.stdout is not None
    drawer = psutil.Process(int(waiting.stdout.readline()))
    waiting.kill()
    waiting.wait()
    waiting.stdout.close()
    gone, _ = psutil.wait_procs([drawer], timeout=FOLLOW_S)
    assert gone and not (result.parent / "positions.png").exists(), "it did not draw to the end"
