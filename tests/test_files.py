"""Files that ptymesh writes: whole or not there, only in place of regular files, and what is said where that fails.

A full disk is made by limiting how large a file may grow: the system then refuses the same calls as on a full disk.
"""

from __future__ import annotations

import os
import resource
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from ptymesh import files
from ptymesh.distributed.world import Solo
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.geometry import Geometry
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.formats.cxi_writer import write_cxi
from ptymesh.io.results import ObjectTiles, Result
from ptymesh.plot import save_figure, save_tiff
from ptymesh.run.speed.bench import save as save_speeds
from ptymesh.tune.records import Record, write_trials

NOISE = np.random.default_rng(0).integers(0, 60000, (40, 32, 32)).astype(np.uint16)


def result(side: int = 128) -> Result:
    return Result(np.ones((1, side, side), complex), np.ones((1, 4, 4), complex), np.zeros((3, 2)))


def tiled(path: Path) -> None:
    tiles = (((top, 0), np.ones((1, 32, 128), complex)) for top in range(0, 128, 32))
    result(1).save(path, {"object": ObjectTiles((128, 128), tiles)})


def cxi(path: Path) -> None:
    places = np.zeros((len(NOISE), 2))
    write_cxi(path, patterns=[NOISE], count=40, dtype="u2", geometry=Geometry((32, 32)), positions_px=places)


def figure() -> Figure:
    drawn = Figure()
    drawn.subplots().imshow(NOISE[0])
    return drawn


TRIAL = Record(0, "done", 1.0, {}, {}, 0, "cpu", 1.0, "", None, {}, "")
#: Everything that is written under a temporary name, each more than 8 kB.
WRITERS: dict[str, Callable[[Path], object]] = {
    "result.h5": lambda path: result().save(path),
    "tiled.h5": tiled,
    "scan.cxi": cxi,
    "figure.png": lambda path: save_figure(figure(), path, dpi=300),
    "image.tiff": lambda path: save_tiff(path, NOISE[0]),
    "trials.jsonl": lambda path: write_trials(path.parent, [TRIAL] * 99),
    "speeds.json": lambda path: save_speeds(path, {"about": "x" * 10000}, []),
}
written = pytest.mark.parametrize("name", WRITERS)


@contextmanager
def full(most: int = 2000) -> Iterator[None]:
    """No file grows beyond `most` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@written
def test_a_full_disk_names_the_file_what_was_needed_and_what_is_free(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("as it was")
    with full(), pytest.raises(PtymeshError) as error:
        WRITERS[name](path)
    said = str(error.value)
    assert error.value.exit_status == 1 and str(path) in said and "\n" not in said
    assert "(File too large: " in said and f" free in {tmp_path}); make room" in said
    assert " needed, " in said or name in ("figure.png", "speeds.json")
    assert path.read_text() == "as it was" and os.listdir(tmp_path) == [name]


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    def save(seed: int, count: int) -> None:
        shared = {"object": np.full(count, float(seed))}
        per_view = {"positions": np.zeros((3, 2))}
        arrays = checkpoint.RankArrays(shared, np.arange(3), per_view)
        checkpoint.save(tmp_path, Solo(), arrays, {"seed": seed})

    save(1, 10)
    with full(20000), pytest.raises(PtymeshError) as error:
        save(2, 10000)
    said = str(error.value)
    assert f"{tmp_path / '000002' / 'rank00000.h5'} cannot be written (File too large: 80 kB needed, " in said
    assert f" free in {tmp_path / '000002'}" in said and "the previous one, if any, is intact" in said
    assert checkpoint.load(tmp_path).meta == {"seed": 1}
    assert sorted(os.listdir(tmp_path)) == ["000001", "manifest.json"]


def device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))


def bound(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as made:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


#: What must not be replaced, how it is made, and how it is called.
IN_THE_WAY: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (os.mkfifo, "is a FIFO, not a regular file"),
    "socket": (bound, "is a socket, not a regular file"),
    "link to a device": (lambda path: path.symlink_to("/dev/full"), "is a device, not a regular file"),
    "link to nowhere": (lambda path: path.symlink_to("nowhere"), "is a link that leads nowhere"),
    "link to itself": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "folder": (Path.mkdir, "is a folder"),
} | ({"device": (device, "is a device, not a regular file")} if os.getuid() == 0 else {})


@written
@pytest.mark.parametrize("kind", IN_THE_WAY)
def test_what_is_no_regular_file_is_left_alone(name: str, kind: str, tmp_path: Path) -> None:
    make, sentence = IN_THE_WAY[kind]
    path = tmp_path / name
    make(path)
    before = path.lstat()
    with pytest.raises(BadInput, match=sentence) as error:
        WRITERS[name](path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert os.listdir(tmp_path) == [name]


@written
def test_a_link_to_a_file_stays_and_the_file_is_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / f"target{Path(name).suffix}"
    target.write_text("as it was")
    (tmp_path / name).symlink_to(target)
    WRITERS[name](tmp_path / name)
    assert (tmp_path / name).is_symlink() and target.stat().st_size > 4000
    assert sorted(os.listdir(tmp_path)) == sorted(["elsewhere", name]) and os.listdir(target.parent) == [target.name]


@pytest.mark.parametrize("name", ["figure.png", "image.tiff", "speeds.json"])
@pytest.mark.parametrize("folder", ["missing", "file", "x" * 300, "zero\0"])
def test_places_that_cannot_be(name: str, folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInput, match=r"cannot be written|leads nowhere|no path can") as error:
        WRITERS[name](tmp_path / folder / name)
    assert "\n" not in str(error.value) and os.listdir(tmp_path) == ["file"]


def test_endings_that_no_figure_has(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"unknown ending"):
        save_figure(figure(), tmp_path / "figure.h5")


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """But not what a living one is writing, nor one of another machine, of which no more is known than its number."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with files.replacing(tmp_path / "result.h5") as temporary:
        _, place, pid, _ = temporary.name.removeprefix(".result").removesuffix(".tmp").rsplit(".", 3)
        assert int(pid) == os.getpid()
        temporary.touch()

    def left(where: str, pid: int, age_s: float) -> str:
        path = tmp_path / f".result.h5.{where}.{pid}.0123abcd.tmp"
        path.write_text("half")
        os.utime(path, (time.time() - age_s,) * 2)
        return path.name

    elsewhere = f"{int(place, 16) ^ 1:08x}"
    for gone in ((place, child, 0), (place, child, 1e6), (elsewhere, child, 1e6)):
        left(*gone)
    kept = [left(place, os.getppid(), 0), left(elsewhere, child, 3600)]
    result().save(tmp_path / "result.h5")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "result.h5"])


def test_an_error_is_not_taken_for_what_was_handled_meanwhile(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a mistake in the program"), files.replacing(tmp_path / "a"):
        try:
            raise FileNotFoundError(2, "No such file or directory", "something else")
        except FileNotFoundError:
            raise RuntimeError("a mistake in the program")  # noqa: B904 - that it has no cause is the point
    said = pytest.raises(PtymeshError, match=r"cannot be written \(No space left on device: .* free in")
    with said, files.replacing(tmp_path / "a"):
        raise RuntimeError("a library's words") from OSError(28, "No space left on device")


def test_two_writers_of_one_file_do_not_share_a_temporary(tmp_path: Path) -> None:
    path = tmp_path / "result.h5"
    with files.replacing(path) as first:
        first.write_text("first")
        with files.replacing(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first" and os.listdir(tmp_path) == ["result.h5"]


def test_sizes_are_for_people() -> None:
    said = [files.size(count) for count in (0, 999, 1000, 1234567, 999.6e6, 5e12)]
    assert said == ["0 bytes", "999 bytes", "1 kB", "1.23 MB", "1 GB", "5 TB"]


STOPPED = """
import os, signal, time
from ptymesh import stopping
from ptymesh.files import replacing
stopping.watch()
with replacing("figure.png") as temporary:
    temporary.write_text("half of it")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
"""


LATE = """
stopping.before_leaving(lambda: time.sleep(0.6))
with replacing("figure.png") as temporary:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.3)
    temporary.write_text("the main thread goes on")
    time.sleep(30)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("program", [STOPPED, STOPPED.split("with")[0] + LATE], ids=["before", "while it leaves"])
def test_a_signal_while_a_file_is_written_leaves_nothing(program: str, tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, len(ended.stderr.splitlines()), list(tmp_path.iterdir())) == (75, 1, [])
