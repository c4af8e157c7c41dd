"""ptymesh run, resume and demo, on a small simulated scan."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ptymesh import stopping
from ptymesh.cli import main as module
from ptymesh.cli import running
from ptymesh.io import checkpoint
from ptymesh.io.results import Result
from ptymesh.parallel import child, program
from ptymesh.parallel import launch as launcher
from ptymesh.parallel.watchdog import Verdict
from ptymesh.run import session, started
from ptymesh.run.callbacks import MetricsFile
from ptymesh.run.recipe import Recipe
from ptymesh.run.reports import EpochReport
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from warm import python

Run = Callable[..., tuple[int, str, str]]

RECIPE = """
data: {path: scan.cxi}
precision: double
stages: [{engine: rpie, epochs: 4, batch: 7, positions: true}]
output: {figures: false, checkpoint_every: 3}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write(checked(kind="xray", views=20, window=32, seed=3), folder / "scan.cxi")
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], made: Path, tmp_path: Path
) -> Iterator[Run]:
    """The command line in this process, in an empty folder: status, standard output, standard error.

    On one thread: the arrays are too small for two, which wait for each other on a busy machine.
    """
    monkeypatch.chdir(tmp_path)
    for name in (module.DEBUG, "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ptymesh", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            module.main()
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    torch.set_num_threads(1)
    yield call
    signal.signal(signal.SIGTERM, handler)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole(made: Path) -> Result:
    """The run of the recipe, uninterrupted, on one rank."""
    done = python(["-m", "ptymesh", "run", "recipe.yaml", "--out", "whole"], made)
    _, err = done.communicate(timeout=120)
    assert (done.returncode, err) == (0, "")
    return Result.load(made / "whole" / "result.h5")


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def epochs(folder: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_equal(found: Result, expected: Result, tolerance: float) -> None:
    for name in ("object", "probe", "positions_px"):
        a, b = getattr(found, name), getattr(expected, name)
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b), name


def test_run_leaves_result_checkpoint_log_and_metrics(run: Run, made: Path, tmp_path: Path) -> None:
    status, out, err = run("run", made / "recipe.yaml", "--set", "stages.0.epochs=3")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("20 views of 32 x 32") and lines[1] == "rpie, 3 epochs of 3 batches"
    assert lines[2] == "Patterns: 81.9 kB per rank (uint32) in host memory"
    assert len(lines) == 7 and lines[-1].startswith("Final residual 0.0") and lines[-1].endswith(": out/result.h5")
    assert files(tmp_path / "out") == {"result.h5", "checkpoint", "log.txt", "metrics.jsonl"}
    assert epochs(tmp_path / "out") == [1, 2, 3]
    result = Result.load(tmp_path / "out" / "result.h5")
    assert result.attrs["final_residual"] == pytest.approx(float(lines[-1].split()[2].rstrip(",")), abs=1e-6)
    assert "epochs: 3" in result.recipe and checkpoint.exists(tmp_path / "out" / "checkpoint")


def test_the_recipe_in_the_result_reproduces_it(run: Run, made: Path, whole: Result, tmp_path: Path) -> None:
    (tmp_path / "again.yaml").write_text(whole.recipe)
    assert run("run", "again.yaml", "--out", "again")[0] == 0
    assert_equal(Result.load(tmp_path / "again" / "result.h5"), whole, 1e-13)


def test_figures_and_tiff(run: Run, made: Path, tmp_path: Path) -> None:
    settings = ["--set", "stages.0.epochs=1", "--set", "output={figures: true, tiff: true}"]
    status, out, err = run("run", made / "recipe.yaml", *settings, "--out", "drawn")
    assert (status, err) == (0, "")
    drawn = out.splitlines()[-1].removeprefix("Figures: ").split()
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
    assert files(out) == {"result.h5", "log.txt", "metrics.jsonl", "mine.txt"}, "the old checkpoint went"


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

        def explain(self) -> Verdict:
            return Verdict(0, "Rank 0 was killed.")

    monkeypatch.setattr(program, "_watchdog", Knows())
    monkeypatch.setattr(session, "run_recipe", lose)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    status, _, err = run("run", made / "recipe.yaml")
    assert (status, err) == (1, "ptymesh: Rank 0 was killed.\n")
    assert "rank 1 failed\nTraceback" in (tmp_path / "out" / "log.txt").read_text()


def stop_after(monkeypatch: pytest.MonkeyPatch, epoch: int) -> None:
    """The process gets SIGTERM in the middle of that epoch."""
    write_line = MetricsFile.epoch

    def signalled(self: MetricsFile, report: EpochReport) -> None:
        write_line(self, report)
        if report.done_epochs == epoch - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(MetricsFile, "epoch", signalled)


def test_interrupted_then_resumed_is_the_uninterrupted_run(
    run: Run, made: Path, whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        status, _, err = run("run", made / "recipe.yaml")
    assert (status, err) == (75, "ptymesh: Stopped after a checkpoint; `ptymesh resume out` goes on.\n")
    assert files(tmp_path / "out") == {"checkpoint", "log.txt", "metrics.jsonl"}
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
    assert run("run", "demo/recipe.yaml", "--out", "second", "--set", "output.figures=false")[0] == 0
    monkeypatch.setattr(demo, "RECIPE", demo.RECIPE + "  figures: false\n")
    assert run("demo")[0] == 0, "an earlier demo may be replaced"


def test_demo_leaves_other_folders_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.yaml").write_text("data: {path: mine.cxi}")
    status, _, err = run("demo", "--out", "mine")
    assert (
        status == 2 and "mine holds files that are not of a demo" in err and files(tmp_path / "mine") == {"recipe.yaml"}
    )


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("checkpoint", "file", "out holds a file named checkpoint; move it away"),
        ("ranks", "file", "out holds a file named ranks; move it away"),
        ("result.h5", "folder", "out/result.h5 is a folder; give the name of a file."),
        ("log.txt", "pipe", "out/log.txt is a FIFO, not a regular file, and is left alone"),
        ("metrics.jsonl", "link", "out/metrics.jsonl is a link that leads nowhere; remove it"),
        ("object.png", "pipe", "out/object.png is a FIFO, not a regular file, and is left alone"),
        ("result.h5", "device", "out/result.h5 is a device, not a regular file, and is left alone"),
    ],
)
def test_names_that_are_taken(run: Run, made: Path, tmp_path: Path, name: str, kind: str, sentence: str) -> None:
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / name
    make: dict[str, Callable[[], Any]] = {
        "file": lambda: path.write_text("mine"),
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to("nowhere"),
        "device": lambda: path.symlink_to("/dev/full"),
    }
    make[kind]()
    status, _, err = run("run", made / "recipe.yaml", "--force")
    assert status == 2 and sentence in err and len(err.splitlines()) == 1 and files(tmp_path / "out") == {name}


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl"])
def test_the_log_of_an_earlier_run_is_kept(
    run: Run, made: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("precious")
    status, _, err = run("run", made / "recipe.yaml")
    assert status == 2 and f"out/{name} is of an earlier run; choose another folder with --out" in err
    assert (tmp_path / "out" / name).read_text() == "precious" and files(tmp_path / "out") == {name}
    running.refuse_to_overwrite(tmp_path / "out", force=True)
    started.note(tmp_path / "out", "seed: 1\n")
    running.refuse_to_overwrite(tmp_path / "out", force=False, recipe="seed: 1\n")
    status, _, err = run("run", made / "recipe.yaml")
    assert status == 2 and "start it anew with `ptymesh resume out`, choose another folder" in err
    started.forget(tmp_path / "out")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    running.refuse_to_overwrite(tmp_path / "out", force=False)


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        ("/proc/ptymesh/out", "/proc/ptymesh/out cannot be written to"),
        ("x" * 256, "leads nowhere (File name too long); give another path."),
        ("~nosuch/x", "~nosuch/x names the home folder of a user who is not there; mend it."),
        ("a\0b", "has a NUL character in it"),
        ("", "--out is empty; give the name of a folder."),
    ],
)
def test_folders_that_cannot_be(run: Run, made: Path, tmp_path: Path, out: str, sentence: str) -> None:
    status, _, err = run("run", made / "recipe.yaml", "--out", out)
    assert status == 2 and sentence in " ".join(err.split()) and files(tmp_path) == set()


def test_two_runs_in_one_folder(made: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is refused, forced or not, on one rank or two, and so is a resumption; once the first is killed, it
    is not."""
    settings = ["--set", "stages.0.epochs=100000", "--set", "output.checkpoint_every=1"]
    first = python(["-m", "ptymesh", "run", str(made / "recipe.yaml"), *settings], tmp_path)
    out, end = tmp_path / "out", time.monotonic() + 60
    while not checkpoint.exists(out / "checkpoint"):
        assert first.poll() is None and time.monotonic() < end, first.communicate()
        time.sleep(0.02)
    for others in (["run", made / "recipe.yaml"], ["run", made / "recipe.yaml", "--force"], ["resume", "out"]):
        for ranks in ([], ["--ranks", 2]):
            status, said, err = run(*others, *ranks)
            assert (status, said) == (2, "") and len(err.splitlines()) == 1
            assert f"out is in use: process {first.pid} on " in err and "has been writing there since 2" in err
    assert first.poll() is None
    first.kill()
    first.communicate(timeout=60)
    assert (out / ".lock").exists() and not (out / "result.h5").exists()
    with monkeypatch.context() as patch:
        stop_after(patch, len(epochs(out)) + 2)
        status, _, err = run("resume", "out")
    assert (status, err) == (75, "ptymesh: Stopped after a checkpoint; `ptymesh resume out` goes on.\n")
    assert files(out) == {"checkpoint", "log.txt", "metrics.jsonl"}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("gone", ["closed", "full", "pipe"])
def test_nobody_reads_what_it_says(made: Path, tmp_path: Path, gone: str, ranks: int) -> None:
    """Standard output and error go away in all the ways they can; the run ends with status 0, and its result."""
    where = {"closed": "os.close({n})", "full": "os.dup2(os.open('/dev/full', 1), {n})", "pipe": "os.dup2(w, {n})"}[
        gone
    ]
    command = ["ptymesh", "run", str(made / "recipe.yaml"), "--ranks", str(ranks), "--device", "cpu"]
    code = "\n".join(
        [
            f"import os, sys; r, w = os.pipe(); os.close(r); sys.argv = {command}",
            *(where.format(n=number) for number in (1, 2)),
            *(["sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None"] if gone == "closed" else []),
            "from ptymesh.cli.main import main; main()",
        ]
    )
    done = python(["-c", code], tmp_path, spares=ranks if ranks > 1 else 0)
    done.communicate(timeout=120)
    assert done.returncode == 0 and epochs(tmp_path / "out") == [1, 2, 3, 4]
    assert files(tmp_path / "out") == {"result.h5", "checkpoint", "log.txt", "metrics.jsonl"}
    Result.load(tmp_path / "out" / "result.h5")


def test_a_rank_promises_what_resume_can_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `tune` and `scaling` leave no recipe to start anew with."""
    recipe = Recipe.from_yaml("data: {path: scan.cxi}").with_output(tmp_path)
    monkeypatch.setattr(stopping, "_sentence", stopping.BEFORE)
    monkeypatch.setattr(child, "_launched", True)
    with running._begun(recipe, resume=False):
        assert stopping.sentence() == stopping.BEFORE
    started.note(tmp_path, recipe.to_yaml())
    with running._begun(recipe, resume=False):
        assert stopping.sentence().endswith(f"`ptymesh resume {tmp_path}` starts anew.")


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptymesh.errors import BadInput

    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BadInput, match="not a folder that can be written to; choose another one with --out"):
        running.check_folder(tmp_path / "a" / "b")
    with pytest.raises(BadInput, match="; mend it"):
        running.check_folder(tmp_path, "mend it")


def test_beyond_the_memory_budget_from_disk(run: Run, made: Path, whole: Result, tmp_path: Path) -> None:
    """The command line, the recipe and the resumed run: staged, the same bits, and nothing left in the folder."""
    (tmp_path / "scratch").mkdir()
    status, out, err = run("run", made / "recipe.yaml", "--memory-budget", "70kB", "--scratch", "scratch")
    assert (status, err) == (0, "")
    opening = "Patterns: 81.9 kB per rank (uint32) staged on disk in scratch"
    assert out.splitlines()[2] == opening and opening in (tmp_path / "out" / "log.txt").read_text()
    result = Result.load(tmp_path / "out" / "result.h5")
    assert_equal(result, whole, 0.0)
    assert result.attrs["patterns"] == "disk" and whole.attrs["patterns"] == "host"
    assert "memory_budget: 70000\nscratch: scratch\n" in result.recipe
    assert list((tmp_path / "scratch").iterdir()) == []


def test_resumed_within_another_budget(
    run: Run, made: Path, whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert run("run", made / "recipe.yaml", "--set", "memory_budget=70kB")[0] == 75
    status, out, err = run("resume", "out", "--memory-budget", "1MB")
    assert (status, err) == (0, "") and "in host memory" in out
    assert_equal(Result.load(tmp_path / "out" / "result.h5"), whole, 1e-14)
    assert files(tmp_path) == {"out"}


def test_ranks_of_a_resumed_run_get_its_room(
    run: Run, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert run("run", made / "recipe.yaml")[0] == 75
    calls = []
    monkeypatch.setattr(launcher, "launch", lambda arguments, ranks, **how: calls.append(arguments) or 3)
    run("resume", "out", "--ranks", 2, "--memory-budget", "2GiB", "--scratch", "a: b", "--device", "cpu")
    assert calls == [["resume", "out", "--device", "cpu", "--memory-budget", "2GiB", "--scratch", "a: b"]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--memory-budget", "much"], "memory_budget is 'much'; it should be a size, such as 500MB or 4GB."),
        (["--memory-budget", "4 XB"], "memory_budget is '4 XB'; it should be a size, such as 500MB or 4GB."),
        (["--memory-budget", "0"], "memory_budget is '0'; it should be greater than 0."),
        (["--memory-budget", "1kB"], "memory_budget is 1 kB, and one pattern takes 4.1 kB; give 16 patterns of room"),
        (["--memory-budget", "70kB", "--scratch", "gone"], "scratch is gone, which is not a folder; make it"),
    ],
)
def test_rooms_that_do_not_do(run: Run, made: Path, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    status, out, err = run("run", made / "recipe.yaml", *arguments)
    assert (status, out) == (2, "") and sentence in err and len(err.splitlines()) == 1
    assert files(tmp_path) == set()
