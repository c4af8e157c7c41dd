"""ptymesh run and resume: where they write, and what memory and scratch folder they may take."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptymesh import stopping
from ptymesh.cli import running
from ptymesh.distributed import child
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.results import Result
from ptymesh.launcher import rank_processes as launcher
from ptymesh.recipe.schema import Recipe
from ptymesh.run_folder import start_record
from short_runs import Run, assert_equal, epochs, files, stop_after
from warm import python


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
    start_record.write_record(tmp_path / "out", "seed: 1\n")
    running.refuse_to_overwrite(tmp_path / "out", force=False, recipe="seed: 1\n")
    status, _, err = run("run", made / "recipe.yaml")
    assert status == 2 and "start it anew with `ptymesh resume out`, choose another folder" in err
    start_record.remove_record(tmp_path / "out")
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
            assert f"out is in use: process {first.pid} on " in err and " writes there; wait until it ends" in err
    assert first.poll() is None
    first.kill()
    first.communicate(timeout=60)
    assert (out / ".lock").exists() and not (out / "result.h5").exists()
    with monkeypatch.context() as patch:
        stop_after(patch, len(epochs(out)) + 2)
        status, _, err = run("resume", "out")
    assert (status, err) == (75, "ptymesh: Stopped after a checkpoint; `ptymesh resume out` goes on.\n")
    assert files(out) == {"checkpoint", "log.txt", "metrics.jsonl", "status.json"}


@pytest.mark.sample(2)
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
    assert files(tmp_path / "out") == {"result.h5", "checkpoint", "log.txt", "metrics.jsonl", "status.json"}
    Result.load(tmp_path / "out" / "result.h5")


def test_a_rank_promises_what_resume_can_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `tune` and `scaling` leave no recipe to start anew with."""
    recipe = Recipe.from_yaml("data: {path: scan.cxi}").with_output(tmp_path)
    monkeypatch.setattr(stopping, "_sentence", stopping.BEFORE)
    monkeypatch.setattr(child, "_launched", True)
    with running._set_stop_message(recipe, resume=False):
        assert stopping.sentence() == stopping.BEFORE
    start_record.write_record(tmp_path, recipe.to_yaml())
    with running._set_stop_message(recipe, resume=False):
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
