"""ptymesh run, resume and demo, on a small simulated scan."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.distributed import program
from ptymesh.distributed.watchdog import FailureVerdict
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.results import Result
from ptymesh.launcher import rank_processes as launcher
from ptymesh.run import session
from short_runs import Run, assert_equal, epochs, files, stop_after
from warm import python


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def test_run_leaves_result_checkpoint_log_and_metrics(run: Run, made: Path, tmp_path: Path) -> None:
    status, out, err = run("run", made / "recipe.yaml", "--set", "stages.0.epochs=3")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("20 views of 32 x 32") and lines[1] == "rpie, 3 epochs of 3 batches"
    assert lines[2] == "Patterns: 81.9 kB per rank (uint32) in host memory"
    (final,) = [line for line in lines if line.startswith("Final residual 0.0")]
    assert final.endswith(": out/result.h5") and 8 <= len(lines) <= 12, "up to three lines of diagnosis at the end"
    assert "Convergence of the iteration: too early to tell: the last stage has 3 epochs." in lines
    assert files(tmp_path / "out") == {"result.h5", "checkpoint", "log.txt", "metrics.jsonl", "status.json"}
    assert epochs(tmp_path / "out") == [1, 2, 3]
    result = Result.load(tmp_path / "out" / "result.h5")
    assert result.attrs["final_residual"] == pytest.approx(float(final.split()[2]), abs=1e-6)
    assert "epochs: 3" in result.recipe and checkpoint.exists(tmp_path / "out" / "checkpoint")


def test_the_recipe_in_the_result_reproduces_it(run: Run, made: Path, whole: Result, tmp_path: Path) -> None:
    (tmp_path / "again.yaml").write_text(whole.recipe)
    assert run("run", "again.yaml", "--out", "again")[0] == 0
    assert_equal(Result.load(tmp_path / "again" / "result.h5"), whole, 1e-13)


@pytest.mark.usefixtures("coarse_figures")
def test_figures_and_tiff(run: Run, made: Path, tmp_path: Path) -> None:
    settings = ["--set", "stages.0.epochs=1", "--set", "output={figures: true, tiff: true, writers: [tiff]}"]
    status, out, err = run("run", made / "recipe.yaml", *settings, "--out", "drawn")
    assert (status, err) == (0, "")
    (drawn,) = [line.removeprefix("Figures: ").split() for line in out.splitlines() if line.startswith("Figures: ")]
    assert {Path(p).suffix for p in drawn} == {".png", ".tiff"} and all((tmp_path / p).exists() for p in drawn)
    assert {"drawn/object.png", "drawn/patterns.png"} <= set(drawn)


def test_an_earlier_run_is_not_overwritten(run: Run, made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "result.h5").write_text("precious")
    status, _, err = run("run", made / "recipe.yaml")
    assert status == 2 and files(out) == {"result.h5"} and (out / "result.h5").read_text() == "precious"
    assert err.startswith("ptymesh: out/result.h5 exists; choose another folder") and "--force" in err
    (out / "result.h5").rename(out / "mine.txt")
    (out / "checkpoint").mkdir()
    (out / "checkpoint" / "manifest.json").write_text("{}")
    status, _, err = run("run", made / "recipe.yaml")
    assert status == 2 and "`ptymesh resume out`" in err and len(err.splitlines()) == 1
    status, _, err = run("run", made / "recipe.yaml", "--force", "--set", "stages.0.epochs=1")
    assert (status, err) == (0, "")
    assert files(out) == {"result.h5", "log.txt", "metrics.jsonl", "status.json", "mine.txt", "checkpoint"}
    assert (out / "checkpoint" / "manifest.json").read_text() != "{}", "the old checkpoint went"


@pytest.mark.parametrize("ranks", [[], ["--ranks", "2"]])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "stages.0.epoch=1"], "ptymesh: stages.0.epoch is unknown; did you mean stages.0.epochs?"),
        (["--set", "data.path=gone.cxi"], "gone.cxi"),
        (["--set", "data.path=recipe.yaml"], "recipe.yaml"),
        (["--device", "gpu"], "ptymesh: Device 'gpu' is unknown;"),
        (["--out", "recipe.yaml"], "recipe.yaml is not a folder that can be written to;"),
    ],
)
def test_unsound_input_writes_nothing(
    run: Run,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    sentence: str,
    ranks: Any,
) -> None:
    shutil.copy(made / "recipe.yaml", tmp_path)
    shutil.copy(made / "scan.cxi", tmp_path)
    before = files(tmp_path)
    monkeypatch.setattr(launcher, "launch", lambda *_, **__: pytest.fail("ranks were started"))
    status, out, err = run("run", "recipe.yaml", *arguments, *ranks)
    assert (status, out) == (2, "") and sentence in err and len(err.splitlines()) == 1
    assert files(tmp_path) == before


def test_forced_runs_that_are_refused_keep_the_earlier_one(run: Run, made: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "result.h5").write_text("precious")
    assert run("run", made / "recipe.yaml", "--force", "--set", "data.path=gone.cxi")[0] == 2
    assert files(tmp_path / "out") == {"result.h5"}


def test_ranks_get_the_same_arguments(run: Run, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def launch(arguments: list[str], ranks: int, *, log_dir: Path, **options: Any) -> int:
        wanted = {"PTYMESH_TIMEOUT": "9.0", "PTYMESH_BACKEND": "gloo", "PTYMESH_INTERFACE": "lo"}
        assert (
            Path("out/.lock").exists() and options["environment"].pop("PTYMESH_LOCK") in Path("out/.lock").read_text()
        )
        assert options == {"max_restarts": 2, "environment": wanted, "bind": False}
        calls.append((arguments, ranks, log_dir))
        return 3

    monkeypatch.setattr(launcher, "launch", launch)
    settings = ["--set", "seed=4", "--set", "stages.0.epochs=1"]
    path, limits = str(made / "recipe.yaml"), ["--max-restarts", 2, "--batch-timeout", 9, "--no-bind"]
    limits += ["--backend", "gloo", "--interface", "lo"]
    assert run("run", path, *settings, "--ranks", 3, "--device", "cpu", "--force", *limits)[0] == 3
    assert calls == [(["run", path, "--device", "cpu", "--out", "out", *settings, "--force"], 3, Path("out/ranks"))]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ranks", "0"], "--ranks is 0; give 1 to 4096 on one machine."),
        (["--ranks", "2", "--device", "cuda:0"], "names one GPU"),
        (["--ranks", "2", "--batch-timeout", "0"], "--timeout is 0.0; give a number of seconds above 0."),
        (["--ranks", "2", "--max-restarts", "-1"], "--max-restarts is -1; give 0 or more."),
    ],
)
def test_impossible_ranks(run: Run, made: Path, arguments: list[str], sentence: str) -> None:
    status, _, err = run("run", made / "recipe.yaml", *arguments)
    assert status == 2 and sentence in err


def test_ranks_inside_a_world_must_agree(run: Run, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    status, _, err = run("run", made / "recipe.yaml", "--ranks", 2)
    assert status == 2 and "--ranks is 2 inside a world of 4 ranks; leave --ranks out." in err
    status, _, err = run("run", made / "recipe.yaml", "--max-restarts", 2)
    assert status == 2 and "--max-restarts is for who starts the ranks; give it to torchrun" in err


def test_a_crash_leaves_its_traceback_in_the_log(
    run: Run, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(session, "run_recipe", crash)
    status, _, err = run("run", made / "recipe.yaml")
    assert status == 1
    assert err == "ptymesh: unexpected ZeroDivisionError: by nought. The traceback is in out/log.txt.\n"
    log = (tmp_path / "out" / "log.txt").read_text()
    assert "rank 0 failed\nTraceback" in log and log.endswith("ZeroDivisionError: by nought\n")


def test_a_rank_that_lost_another_says_so(
    run: Run, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: Any, **__: Any) -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer.")

    class Knows:
        rank = 1

        def explain(self) -> FailureVerdict:
            return FailureVerdict(0, "Rank 0 was killed.")

    monkeypatch.setattr(program, "_watchdog", Knows())
    monkeypatch.setattr(session, "run_recipe", lose)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    status, _, err = run("run", made / "recipe.yaml")
    assert (status, err) == (1, "ptymesh: Rank 0 was killed.\n")
    assert "rank 1 failed\nTraceback" in (tmp_path / "out" / "log.txt").read_text()


def test_interrupted_then_resumed_is_the_uninterrupted_run(
    run: Run, made: Path, whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        status, _, err = run("run", made / "recipe.yaml")
    assert (status, err) == (75, "ptymesh: Stopped after a checkpoint; `ptymesh resume out` goes on.\n")
    assert files(tmp_path / "out") == {"checkpoint", "log.txt", "metrics.jsonl", "status.json"}
    moved = tmp_path / "moved"
    (tmp_path / "out").rename(moved)
    shutil.copytree(moved, tmp_path / "copy")

    status, out, err = run("resume", moved / "checkpoint")
    assert (status, err) == (0, "") and "resumed after 2 epochs" in out
    assert not (tmp_path / "out").exists() and epochs(moved) == [1, 2, 3, 4]
    assert_equal(Result.load(moved / "result.h5"), whole, 1e-13)

    done = python(["-m", "ptymesh", "resume", str(tmp_path / "copy"), "--ranks", "2"], tmp_path, spares=2)
    out, err = done.communicate(timeout=120)
    assert (done.returncode, err) == (0, "") and "2 ranks on cpu" in out
    assert epochs(tmp_path / "copy") == [1, 2, 3, 4]
    assert_equal(Result.load(tmp_path / "copy" / "result.h5"), whole, 1e-12)


@pytest.mark.long
def test_ranks_are_interrupted_together(made: Path, tmp_path: Path) -> None:
    """Started as a user does."""
    command = [sys.executable, "-m", "ptymesh", "run", str(made / "recipe.yaml"), "--ranks", "2"]
    settings = ["--set", "stages.0.epochs=100000", "--set", "output.checkpoint_every=100000"]
    process = subprocess.Popen(
        [*command, *settings], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=one_thread()
    )
    end = time.monotonic() + 60
    while not (tmp_path / "out" / "metrics.jsonl").exists() or len(epochs(tmp_path / "out")) < 2:
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert err == "ptymesh: Stopped after a checkpoint; `ptymesh resume out` goes on.\n"
    assert "2 ranks on cpu" in out and "Traceback" not in (tmp_path / "out" / "log.txt").read_text()
    saved = checkpoint.load(tmp_path / "out" / "checkpoint")
    assert len(saved.shared["history/epoch"]) in (len(epochs(tmp_path / "out")), len(epochs(tmp_path / "out")) - 1)


@pytest.mark.parametrize("folder", ["nowhere", ".", "file"])
def test_resume_needs_a_checkpoint(run: Run, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    status, _, err = run("resume", folder)
    assert status == 2 and "holds no checkpoint" in err and len(err.splitlines()) == 1


@pytest.mark.usefixtures("coarse_figures")
def test_demo(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptymesh.cli import demo

    monkeypatch.setattr(demo, "VIEWS", 60)
    monkeypatch.setattr(demo, "RECIPE", demo.RECIPE.replace("epochs: 40", "epochs: 10"))
    status, out, err = run("demo")
    assert (status, err) == (0, "")
    made, look, following = out.splitlines()[-3:]
    assert "60 views" in made and "on 1 rank:" in made and float(made.split("by ")[1].split("%")[0]) < 20
    assert "demo/overview.png" in look and "ptymesh run demo/recipe.yaml --out second" in following
    pictures = {"overview.png", "object.png", "probe.png", "comparison.png", "patterns.png"}
    assert pictures | {"scan.cxi", "scan.truth.h5", "recipe.yaml", "result.h5"} <= files(tmp_path / "demo")
    few = ["--set", "output.figures=false", "--set", "stages.0.epochs=1"]
    assert run("run", "demo/recipe.yaml", "--out", "second", *few)[0] == 0
    monkeypatch.setattr(demo, "VIEWS", 20)
    monkeypatch.setattr(demo, "RECIPE", demo.RECIPE.replace("epochs: 10", "epochs: 1") + "  figures: false\n")
    assert run("demo")[0] == 0, "an earlier demo may be replaced"


def test_demo_leaves_other_folders_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.yaml").write_text("data: {path: mine.cxi}")
    status, _, err = run("demo", "--out", "mine")
    assert (
        status == 2 and "mine holds files that are not of a demo" in err and files(tmp_path / "mine") == {"recipe.yaml"}
    )


def test_causes_that_data_show_are_found_on_any_number_of_ranks(run: Run, tmp_path: Path) -> None:
    """Two ranks share memory, of which each holds a panel of the object: the cause is looked for in the whole one."""
    assert run("simulate", "scan.cxi", "--views", "60", "--window", "32")[0] == 0
    with h5py.File(tmp_path / "scan.cxi", "r+") as file:
        counts = file["entry_1/data_1/data"]
        counts[...] = np.minimum(counts[:], counts[:].max() // 4)
    settings = "data: {path: scan.cxi}\nstages: [{engine: rpie, epochs: 8, batch: 12}]\noutput: {figures: false}\n"
    (tmp_path / "recipe.yaml").write_text(settings)
    assert "Likely cause: The detector saturates" in run("run", "recipe.yaml", "--out", "one")[1]
    done = python(["-m", "ptymesh", "run", "recipe.yaml", "--out", "two", "--ranks", "2"], tmp_path, spares=2)
    assert "Likely cause: The detector saturates" in done.communicate(timeout=120)[0]
    for out in ("one", "two"):
        assert Result.load(tmp_path / out / "result.h5").attrs["first_cause"] == "saturation"


def test_a_poor_result_has_a_status_where_that_is_asked_for(
    run: Run, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one rank and on two; without --strict it is a warning."""
    words = ["-m", "ptymesh", "run", "recipe.yaml", "--set", "stages.0.epochs=1", "--out", str(tmp_path / "out")]
    done = python(words, made)
    out, err = done.communicate(timeout=120, verdict=True)
    state = Result.load(tmp_path / "out" / "result.h5").verdict
    assert state in ("poor", "failed"), "after a single epoch"
    assert (done.returncode, err) == (0, f"ptymesh: do not believe this picture: the verdict is {state}.\n")
    assert out.splitlines()[-1].startswith(f"Verdict: {state}: ")
    row = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["verdict"] == state and f"Verdict: {state}: {row['verdict_sentence']}." == out.splitlines()[-1]
    done = python([*words, "--force", "--strict", "--ranks", "2", "--device", "cpu"], made, spares=2)
    _, err = done.communicate(timeout=120)
    one = run("run", made / "recipe.yaml", *words[4:], "--force", "--strict")
    for status, said in ((one[0], one[2]), (done.returncode, err)):
        assert status == 4, said
        last = said.splitlines()[-1]
        assert last.startswith(f"ptymesh: The result {tmp_path}/out/result.h5 is {state}, and --strict")
