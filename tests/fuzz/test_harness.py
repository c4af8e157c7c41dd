"""The harness sees what it is for: planted misdeeds of every kind are violations, and good conduct is none."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ptymesh.io.results  # noqa: F401 - so that forks need not
from fuzz import arrays, cases, judge, raw, sandbox, trees, tries
from fuzz.sandbox import FAULT, Limits

SHORT = Limits(seconds=2.0, memory=1 << 30, disk=1 << 20, farewell=2.0)


def refuse(words: str) -> None:
    print(f"ptymesh: {words}", file=sys.stderr)
    sys.exit(2)


def hang(arguments: list[str]) -> None:
    time.sleep(60)


def spin(arguments: list[str]) -> None:
    while True:
        pass


def outside(arguments: list[str]) -> None:
    Path("scan.cxi").write_bytes(b"something else")


def beside(arguments: list[str]) -> None:
    Path("unasked.txt").touch()


def removed(arguments: list[str]) -> None:
    Path("scan.cxi").unlink()


def permissions(arguments: list[str]) -> None:
    Path("scan.cxi").chmod(0o777)


def in_temporary(arguments: list[str]) -> None:
    Path(os.environ["TMPDIR"], "forgotten").touch()


def half_staged(arguments: list[str]) -> None:
    Path(os.environ["PTYMESH_CACHE"], "abc-data.123.tmp").touch()


def one(arguments: list[str]) -> None:
    print("ptymesh: unexpected OSError: no.", file=sys.stderr)
    sys.exit(1)


def raises(arguments: list[str]) -> None:
    raise KeyError("object")


def tells_traceback(arguments: list[str]) -> None:
    print("Traceback (most recent call last)\nKeyError: 3", file=sys.stderr)
    sys.exit(2)


def wordy(arguments: list[str]) -> None:
    print("a warning", file=sys.stderr)
    refuse("no.")


def silent(arguments: list[str]) -> None:
    sys.exit(2)


def crash(arguments: list[str]) -> None:
    ctypes.string_at(0)


def aborts(arguments: list[str]) -> None:
    os.abort()


def hoards(arguments: list[str]) -> None:
    bytearray(3 << 30)


def fills(arguments: list[str]) -> None:
    for n in range(4):
        Path("out", f"part{n}").write_bytes(bytes(1 << 19))


def daemon(arguments: list[str]) -> None:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)


def result_and_refusal(arguments: list[str]) -> None:
    Path("out", "result.h5").touch()
    refuse("no.")


def nothing(arguments: list[str]) -> None:
    pass


PLANTED: tuple[tuple[Callable[[list[str]], None], str], ...] = (
    (hang, "hang"),
    (spin, "hang"),
    (outside, "touched"),
    (beside, "touched"),
    (removed, "touched"),
    (permissions, "touched"),
    (in_temporary, "touched"),
    (half_staged, "left"),
    (one, "status"),
    (raises, "traceback"),
    (tells_traceback, "traceback"),
    (wordy, "words"),
    (silent, "words"),
    (crash, "crash"),
    (aborts, "crash"),
    (hoards, "traceback"),
    (fills, "disk"),
    (daemon, "left"),
    (result_and_refusal, "touched"),
    (nothing, "unsound"),
)


def case_in(folder: Path, command: str = "run") -> cases.Case:
    case = cases.new("cxi", command, folder)
    (case.place / "scan.cxi").write_bytes(b"a scan")
    (case.place / "out").mkdir()
    case.arguments = [command]
    return case


@pytest.mark.sample(11)
@pytest.mark.parametrize(("command", "kind"), PLANTED, ids=[command.__name__ for command, _ in PLANTED])
def test_misdeeds_are_seen(tmp_path: Path, command: Callable[[list[str]], None], kind: str) -> None:
    def speaks(arguments: list[str]) -> None:
        print("9 views")
        command(arguments)

    case = case_in(tmp_path / "case", "run" if command is nothing else "inspect")
    ended, found = tries.attempt(case, SHORT, speaks)
    assert [violation.kind for violation in found] == [kind], (ended, found)


def test_good_conduct_is_none(tmp_path: Path) -> None:
    def refuses(arguments: list[str]) -> None:
        (Path(os.environ["PTYMESH_CACHE"]) / "abc-data").touch()
        refuse("scan.cxi is damaged; copy it again.")

    def inspects(arguments: list[str]) -> None:
        print("9 views")

    for n, (command, name) in enumerate(((refuses, "run"), (inspects, "inspect"))):
        ended, found = tries.attempt(case_in(tmp_path / str(n), name), SHORT, command)
        assert found == [], ended


@pytest.mark.parametrize(("side", "kinds"), [(20_000, []), (64, ["status"])])
def test_memory_may_run_out_where_the_object_is_large(tmp_path: Path, side: int, kinds: list[str]) -> None:
    def runs(arguments: list[str]) -> None:
        print(f"9 views of 16 x 16, object {side} x {side}, 1 mode, 1 rank on cpu, single precision")
        print("ptymesh: Rank 0 ran out of memory (no). It needs more.", file=sys.stderr)
        sys.exit(1)

    ended, found = tries.attempt(case_in(tmp_path / "case", "inspect"), SHORT, runs)
    assert [violation.kind for violation in found] == kinds, ended


@pytest.mark.parametrize(("needed", "kinds"), [("395 MB", []), ("640 kB", ["status"])])
def test_a_file_may_be_larger_than_a_try_may_write(tmp_path: Path, needed: str, kinds: list[str]) -> None:
    def converts(arguments: list[str]) -> None:
        print(f"ptymesh: made.cxi cannot be written (File too large: {needed} needed, 9 GB free).", file=sys.stderr)
        sys.exit(1)

    ended, found = tries.attempt(case_in(tmp_path / "case", "inspect"), SHORT, converts)
    assert [violation.kind for violation in found] == kinds, ended


def test_who_gets_on_is_told_to_stop(tmp_path: Path) -> None:
    """A run that does one epoch after the other, as it was asked to, is no hang: it ends with 75, or it is one."""

    def works(arguments: list[str]) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        Path("out", "metrics.jsonl").write_text("{}\n")
        time.sleep(60)

    def deaf(arguments: list[str]) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path("out", "metrics.jsonl").write_text("{}\n")
        time.sleep(60)

    ended, found = tries.attempt(case_in(tmp_path / "a"), SHORT, works)
    assert (ended.status, ended.stopped, found) == (75, True, [])
    _, found = tries.attempt(case_in(tmp_path / "b"), SHORT, deaf)
    assert [violation.kind for violation in found] == ["hang"]


def test_a_fault_is_told_from_a_status(tmp_path: Path) -> None:
    ended = sandbox.attempt(lambda: "not finite", tmp_path, tmp_path / "said", SHORT)
    assert (ended.status, ended.note) == (FAULT, "not finite")


def test_signatures_forget_names_and_numbers() -> None:
    one, other = (
        judge.Violation("status", f"1: ptymesh: unexpected OSError: /tmp/{name} has {n} bytes. Run it again with X")
        for name, n in (("a/b.cxi", 5), ("c.h5", 700))
    )
    assert one.signature == other.signature
    assert one.signature != judge.Violation("status", "1: ptymesh: unexpected KeyError: 'a'").signature


def test_json_that_is_not_finite_is_unsound() -> None:
    assert tries._json('{"a": [1.5, {"b": NaN}]}') == "printed as JSON, not finite: a.1.b"
    assert tries._json("{}") == ""
    assert tries._json("{").startswith("what was printed is no JSON")


def test_cases_follow_from_the_seed() -> None:
    """The same dice, the same damage: a number is all that a violation needs to be played again."""
    content = bytes(range(256)) * 20

    def all_of(seed: int) -> list[object]:
        dice = random.Random(seed)
        tree, words = trees.change({"a": {"b": [1, 2]}, "c": "d"}, dice)
        return [raw.damage(content, dice), repr(tree), words, trees.text({"a": 1}, dice), trees.setting(["a.b"], dice)]

    assert all_of(5) == all_of(5)
    assert all_of(5) != all_of(6)


def test_changed_arrays_keep_their_original() -> None:
    import numpy as np

    original = np.arange(24.0).reshape(2, 3, 4)
    dice = random.Random(3)
    seen = {arrays.changed(original, dice)[1] for _ in range(200)}
    assert np.array_equal(original, np.arange(24.0).reshape(2, 3, 4))
    assert len(seen) > 40
