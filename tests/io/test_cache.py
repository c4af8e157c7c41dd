"""What is unpacked is bounded, whole, and still what was written; whatever happens, nothing else is left behind."""

from __future__ import annotations

import bz2
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io import cache, load_measurement, source, staging
from ptymesh.io.cache import CacheEntry, Sink, cache_folder, get_or_make, safe_name
from ptymesh.io.options import DataOptions

COUNTS = np.random.default_rng(3).integers(0, 99, (6, 16, 20)).astype(np.uint16)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A compressed npz of COUNTS."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, data=COUNTS, scan=np.arange(12.0).reshape(6, 2))
    return path


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that a file was made."""
    counted: list[int] = []
    make = cache._make
    monkeypatch.setattr(cache, "_make", lambda *given: (counted.append(1), make(*given)))
    return counted


def read(path: Path) -> np.ndarray:
    return load_measurement(DataOptions(path=path)).patterns.read(np.arange(6))


def lying() -> tuple[Path, Path]:
    """The only staged file, and its record."""
    (staged,) = (file for file in cache_folder().iterdir() if file.suffix not in (".lock", ".json"))
    return staged, staged.with_name(f"{staged.name}.json")


def plan(make: Callable[[Sink], None], path: Path = Path("a.npz"), needed: int | None = None) -> CacheEntry:
    return CacheEntry(path, safe_name("0" * 32, "data"), make, 1 << 20, needed, "unpack it yourself")


# --- bombs ---


def test_a_bomb_is_stopped_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "HARMLESS_BYTES", 1 << 20)
    bomb = tmp_path / "bomb.bz2"
    bomb.write_bytes(bz2.compress(b"PK\3\4" + bytes(5 << 20)))
    assert bomb.stat().st_size < 100
    with pytest.raises(
        BadInput, match=r"unpacks to more than 1\.05 MB, .* unpack it yourself \(bunzip2 --keep bomb\.bz2"
    ):
        read(bomb)
    assert [file.suffix for file in cache_folder().iterdir()] == [".lock"]


def test_strongly_compressed_patterns_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.003 counts per pixel, sparser than low-dose electron data are, stay within what is allowed."""
    monkeypatch.setattr(staging, "HARMLESS_BYTES", 0)
    counts = np.random.default_rng(1).poisson(0.003, (6, 256, 256)).astype(np.uint32)
    np.savez(tmp_path / "a.npz", data=counts, scan=np.zeros((6, 2)))
    path = tmp_path / "a.npz.bz2"
    path.write_bytes(bz2.compress((tmp_path / "a.npz").read_bytes()))
    assert counts.nbytes > 500 * path.stat().st_size
    np.testing.assert_array_equal(read(path), counts)


def test_declared_sizes_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: list[int]
) -> None:
    monkeypatch.setattr(source, "CACHE_BYTES", 1000)
    path = tmp_path / "sparse.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("f", (1_000_000, 64, 64), np.uint16, chunks=(64, 64, 64), compression="gzip")
        data[0] = 1
    assert path.stat().st_size < 1 << 20
    keys = {"patterns": "f"}
    with pytest.raises(BadInput, match=r"sparse\.h5 unpacks to more than .*, write it again in chunks of one view"):
        load_measurement(DataOptions(path=path, keys=keys))
    assert not times


def test_sinks_count_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up meanwhile is noticed while something is left."""
    free = iter([1 << 40] * 3 + [1000] * 9)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(cache, "CHECK_BYTES", 1000)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: usage._replace(free=next(free)))
    written = []

    def make(out: Sink) -> None:
        for _ in range(100):
            out.write(bytes(500))
            written.append(500)

    with pytest.raises(BadInput, match=r"a\.npz cannot be unpacked \(No .*: 1 kB free in .*\); set PTYMESH_CACHE"):
        get_or_make(plan(make))
    assert sum(written) < 5000
    assert [file.suffix for file in cache_folder().iterdir()] == [".lock"]


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file may grow beyond a megabyte: the operating system refuses, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_the_disk_refuses_is_said_in_a_sentence(tmp_path: Path, small_disk: None) -> None:
    np.savez_compressed(tmp_path / "a.npz", data=np.zeros((6, 512, 512), np.uint16), scan=np.zeros((6, 2)))
    sentence = r"a\.npz cannot be unpacked \(File too large: 3\.15 MB needed, \S+ \w+ free in \S+\); set"
    with pytest.raises(BadInput, match=sentence):
        read(tmp_path / "a.npz")
    assert [file.suffix for file in cache_folder().iterdir()] == [".lock"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere files have names from the beginning")
def test_a_process_that_is_killed_leaves_nothing(number: int) -> None:
    def make(out: Sink) -> None:
        out.write(bytes(1000))
        os.kill(os.getpid(), number)

    child = multiprocessing.get_context("fork").Process(target=lambda: get_or_make(plan(make)))
    stderr = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    child.start()
    os.dup2(stderr, 2)
    child.join()
    assert child.exitcode
    assert [file.suffix for file in cache_folder().iterdir()] == [".lock"]


def test_where_files_have_names_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_open_nameless", lambda target: None)
    left = cache_folder() / f"{safe_name('0' * 32, 'data')}.999999.tmp"
    left.write_text("of a process that was killed")

    def broken(out: Sink) -> None:
        out.write(b"half")
        raise BadInput("damaged")

    with pytest.raises(BadInput, match="damaged"):
        get_or_make(plan(broken))
    assert [file.suffix for file in cache_folder().iterdir()] == [".lock"]
    assert get_or_make(plan(lambda out: out.write(b"whole"))).read_bytes() == b"whole"
    assert len(list(cache_folder().iterdir())) == 3


# --- what was staged before ---


def flipped(staged: Path, record: Path) -> None:
    content = bytearray(staged.read_bytes())
    content[1000] ^= 1
    staged.write_bytes(content)
    os.utime(staged, (1, 1))


def replaced(staged: Path, record: Path) -> None:
    other = staged.with_name("other")
    other.write_bytes(bytes(staged.stat().st_size))
    os.replace(other, staged)


@pytest.mark.parametrize(
    "change",
    [
        flipped,
        replaced,
        lambda staged, record: os.truncate(staged, 500),
        lambda staged, record: staged.unlink(),
        lambda staged, record: record.unlink(),
        lambda staged, record: record.write_text("{}"),
        lambda staged, record: record.write_text('{"size": []}'),
        lambda staged, record: record.write_bytes(b"\xff\0" * 3000),
        lambda staged, record: record.write_text("[" * 4000),
    ],
)
def test_what_is_no_longer_as_it_was_made_is_made_anew(packed: Path, times: list[int], change: Any) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(read(packed), COUNTS)
    assert len(times) == 1
    change(*lying())
    for _ in range(2):
        np.testing.assert_array_equal(read(packed), COUNTS)
    assert len(times) == 2


def test_a_copy_with_the_same_content_will_do(packed: Path, times: list[int]) -> None:
    read(packed)
    staged, _ = lying()
    shutil.copy(staged, staged.with_name("copy"))
    os.replace(staged.with_name("copy"), staged)
    np.testing.assert_array_equal(read(packed), COUNTS)
    assert len(times) == 1


def test_another_machine_sees_the_same_file(packed: Path) -> None:
    """It has another number for the file system."""
    read(packed)
    staged, record = lying()
    kind, (fields, more) = staged.stat().__reduce__()
    elsewhere = os.stat_result((*fields[:2], fields[2] + 1, *fields[3:]), more)
    assert elsewhere.st_dev != staged.stat().st_dev and kind is os.stat_result
    assert cache._stamp(elsewhere) == json.loads(record.read_text())["seen"]


@pytest.mark.parametrize("which", ["data", "json", "lock"])
@pytest.mark.parametrize("kind", ["folder", "link", "dangling", "pipe"])
def test_what_is_no_regular_file_is_neither_opened_nor_removed(
    packed: Path, tmp_path: Path, which: str, kind: str
) -> None:
    read(packed)
    staged, record = lying()
    there = {"data": staged, "json": record, "lock": record.with_suffix(".lock")}[which]
    there.unlink()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    {
        "folder": there.mkdir,
        "link": lambda: there.symlink_to(victim),
        "dangling": lambda: there.symlink_to(tmp_path / "nowhere"),
        "pipe": lambda: os.mkfifo(there),
    }[kind]()
    with pytest.raises(BadInput, match="is no regular file; remove it"):
        read(packed)
    assert there.lstat() and victim.read_text() == "precious" and not (tmp_path / "nowhere").exists()


def test_a_process_that_is_stuck_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    lock = cache_folder() / f"{safe_name('0' * 32, 'data')}.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr(cache, "STALLED_S", 0.05)
        with pytest.raises(BadInput, match=r"Another process holds .*\.lock and has written nothing for"):
            get_or_make(plan(lambda out: out.write(b"x")))


@pytest.mark.parametrize("age", [400, -400])
def test_a_lock_that_was_last_used_long_ago_is_waited_for(age: int) -> None:
    """Or one that a server with another clock has dated."""
    import fcntl

    staged = get_or_make(plan(lambda out: out.write(b"x")))
    lock = staged.with_name(f"{staged.name}.lock")
    with lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        os.utime(lock, (time.time() - age, time.time() - age))
        release = threading.Timer(0.1, lambda: fcntl.flock(held, fcntl.LOCK_UN))
        release.start()
        assert get_or_make(plan(lambda out: out.write(b"x"))) == staged
        release.join()


def test_a_process_that_goes_on_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes; who takes a lock says so at once."""
    monkeypatch.setattr(cache, "STALLED_S", 1.0)
    path = cache_folder() / "x.lock"
    path.touch()
    os.utime(path, (1, 1))
    taken = threading.Event()

    def hold() -> None:
        with cache._hold_lock(path) as note_life:
            assert time.time() - path.stat().st_mtime < 60
            taken.set()
            for _ in range(20):
                time.sleep(0.06)
                note_life()

    with ThreadPoolExecutor() as pool:
        holder = pool.submit(hold)
        taken.wait(5)
        with cache._hold_lock(path):
            assert holder.result() is None


# --- the folder ---


@pytest.mark.parametrize(
    "folder", ["file", "file/x", "x" * 300, "/" + "a/" * 3000, "/proc", "/proc/x", "/dev/null", "~nosuchuser/x", "loop"]
)
def test_a_folder_that_cannot_be_one(
    packed: Path, tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("a file")
    Path("loop").symlink_to("loop")
    monkeypatch.setenv("PTYMESH_CACHE", folder)
    with pytest.raises(BadInput, match="set PTYMESH_CACHE to a folder with room") as error:
        read(packed)
    assert len(str(error.value)) < 500 and Path("file").read_text() == "a file"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    for folder in ("locked", "locked/x"):
        monkeypatch.setenv("PTYMESH_CACHE", str(tmp_path / folder))
        with pytest.raises(BadInput, match=r"Permission denied.*set PTYMESH_CACHE"):
            read(packed)


def test_files_of_others_in_that_folder_stay(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTYMESH_CACHE", str(tmp_path))
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("precious")
    os.utime(thesis, (0, 0))
    read(packed)
    assert thesis.read_text() == "precious"


def test_two_processes_at_once() -> None:
    fork = multiprocessing.get_context("fork")
    answers: Any = fork.SimpleQueue()

    def make(out: Sink) -> None:
        answers.put("made")
        time.sleep(0.2)
        out.write(b"content")

    both = [fork.Process(target=lambda: answers.put(get_or_make(plan(make)).read_text())) for _ in range(2)]
    for process in both:
        process.start()
    assert sorted(answers.get() for _ in range(3)) == ["content", "content", "made"]
    for process in both:
        process.join()
