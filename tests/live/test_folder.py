"""Files of frames that arrive in a folder: none is lost, none is read half written, and each has its position."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from tifffile import imwrite

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io.formats.cxi import write_measurement
from ptymesh.live import LiveOptions, SpooledStream, open_positions, open_source, reconstruct_live
from ptymesh.live import folder as folder_module
from ptymesh.live.folder import FramesFolder
from ptymesh.live.frames import ApartStream, Frames
from ptymesh.live.serving import Played, read_scan
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.run_folder.status import Throttle
from ptymesh.simulate import simulate

VIEWS = 48
BEAM = {"energy_eV": 8800, "radiation": "photon"}


@pytest.fixture(scope="module")
def scan() -> Measurement:
    return simulate(views=VIEWS, window=32, seed=3).measurement


@pytest.fixture(scope="module")
def played(scan: Measurement) -> Played:
    return read_scan(scan)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Throttle, "is_due", lambda self: True)
    monkeypatch.setattr(folder_module, "SETTLE_S", 0.0)


def write_file(path: Path, frames: np.ndarray, positions_m: np.ndarray) -> None:
    """Write frames (n, H, W) as the name of the file says; HDF5 has their positions, too."""
    if path.suffix == ".npy":
        np.save(path, frames[0] if len(frames) == 1 else frames)
    elif path.suffix == ".tif":
        imwrite(path, frames[0] if len(frames) == 1 else frames, photometric="minisblack")
    else:
        with h5py.File(path, "w") as file:
            file["/patterns"], file["/positions"] = frames, positions_m


def taken(source: FramesFolder, first: int = 0) -> list[Frames]:
    """Return what a source gives until nothing more is there."""
    found = []
    while (got := source.take(first)) is not None and len(got.frames):
        found.append(got)
        first += len(got.frames)
    return found


def write_table(path: Path, positions_m: np.ndarray) -> None:
    half = path.with_suffix(".part")
    half.write_text("y,x\n" + "".join(f"{y!r},{x!r}\n" for y, x in positions_m.tolist()))
    half.replace(path)


@pytest.mark.parametrize(("suffix", "each"), [(".npy", 1), (".npy", 5), (".tif", 1), (".tif", 5), (".h5", 5)])
def test_files_one_after_the_other(suffix: str, each: int, played: Played, tmp_path: Path) -> None:
    """By number, not by letter, with the positions of a table or their own; a restart goes on within a file."""
    source = open_source(str(tmp_path))
    assert isinstance(source, FramesFolder) and source.describe() is None and source.take(0) is None
    for at in range(0, VIEWS, each):
        part = slice(at, at + each)
        write_file(tmp_path / f"frame_{at + 1}{suffix}", played.frames[part], played.positions_m[part])
    (tmp_path / "notes.log").write_text("no frames")
    if suffix != ".h5":
        write_table(tmp_path / "positions.csv", played.positions_m)
    source = open_source(str(tmp_path))
    said = source.describe()
    assert said is not None and (said.shape, said.dtype) == (played.description.shape, played.description.dtype)
    for first in (0, 7):
        got = taken(FramesFolder(tmp_path, "/patterns", "/positions"), first)
        assert np.array_equal(np.concatenate([one.frames for one in got]), played.frames[first:])
        assert np.array_equal(np.concatenate([one.positions_m for one in got]), played.positions_m[first:])
    assert source.take(VIEWS) is None, "as it may go on"
    (tmp_path / "ended").touch()
    got = source.take(VIEWS)
    assert got is not None and got.ended and len(got.frames) == 0


def test_a_thread_writes_files_while_the_run_goes_on(played: Played, tmp_path: Path) -> None:
    """Renamed once they are complete; a replay has the same bits as the run of all frames."""
    keys = {"data": {"path": "none.cxi", "distance_m": played.description.distance_m, **BEAM}}
    keys["data"]["detector_pixel_m"] = played.description.detector_pixel_m
    recipe = Recipe.parse({**keys, "stages": [{"engine": "rpie", "epochs": 2, "batch": 16}]})
    files, out = tmp_path / "files", tmp_path / "out"
    files.mkdir()

    def acquire() -> None:
        for k in range(VIEWS):
            half = files / f"frame_{k}.npy.part"
            with half.open("wb") as file:
                np.save(file, played.frames[k])
            os.replace(half, files / f"frame_{k}.npy")
            write_table(files / f"frame_{k}.txt", played.positions_m[k : k + 1])
        (files / "ended").touch()

    detector = threading.Thread(target=acquire)
    detector.start()
    outcome, measured = reconstruct_live(recipe, open_source(str(files)), out, LiveOptions(uses=1))
    detector.join()
    assert outcome.views == measured.views == VIEWS
    kept = SpooledStream(out).take(0)
    assert kept is not None and np.array_equal(kept.frames, played.frames)
    assert np.array_equal(kept.positions_m, played.positions_m)
    assert isinstance(open_source(str(out)), SpooledStream), "the folder of a live run is replayed"


def test_a_data_set_says_what_it_knows(scan: Measurement, played: Played, tmp_path: Path) -> None:
    write_measurement(scan, tmp_path / "scan_0001.cxi")
    source = FramesFolder(tmp_path, "/patterns", "/positions")
    said = source.describe()
    assert said is not None and said.radiation == "photon" and said.distance_m == played.description.distance_m
    assert said.energy_eV == pytest.approx(played.description.energy_eV) and said.views is None
    assert said.detector_pixel_m == pytest.approx(played.description.detector_pixel_m)
    (got,) = taken(source)
    assert np.array_equal(got.frames, played.frames)
    assert got.positions_m is not None and np.abs(got.positions_m - played.positions_m).max() < 1e-12


def test_only_files_that_are_complete(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that grows is left, and those after it wait; one that can never be read is named."""
    monkeypatch.setattr(folder_module, "SETTLE_S", 0.2)
    write_table(tmp_path / "positions.txt", played.positions_m)
    source = FramesFolder(tmp_path, "/patterns", "/positions")
    np.save(tmp_path / "frame_1.npy", played.frames[0])
    np.save(tmp_path / "frame_2.npy", played.frames[1])
    whole = (tmp_path / "frame_1.npy").read_bytes()
    began, grown = time.monotonic(), 0
    while time.monotonic() - began < 0.5:
        grown += 40
        (tmp_path / "frame_1.npy").write_bytes(whole[:grown])
        assert source.take(0) is None
        time.sleep(0.01)
    assert source.take(0) is None
    time.sleep(0.25)
    assert source.take(0) is None, "it keeps its size, and is no whole array"
    (tmp_path / "frame_1.npy").write_bytes(whole)
    assert source.take(0) is None
    time.sleep(0.25)
    (got,) = taken(source)
    assert np.array_equal(got.frames, played.frames[:2])
    (tmp_path / "frame_3.npy").write_bytes(whole[:200])
    assert source.take(2) is None
    monkeypatch.setattr(folder_module, "UNREADABLE_S", 0.2)
    time.sleep(0.25)
    assert source.take(2) is None, "who writes it may hold it open, as no other follows"
    (tmp_path / "frame_4.npy").write_bytes(whole)
    with pytest.raises(BadInput, match=r"frame_3\.npy"):
        source.take(2)


@pytest.mark.parametrize("name", ["positions.txt", "positions.csv"])
def test_a_file_waits_for_its_position(played: Played, tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "frame_1.npy", played.frames[:4])
    source = FramesFolder(tmp_path, "/patterns", "/positions")
    assert source.describe() is not None and source.take(0).lacking == 4  # type: ignore[union-attr]
    write_table(tmp_path / name, played.positions_m[:3])
    (got,) = taken(source)
    assert len(got.frames) == 3 and not got.ended
    (tmp_path / "ended").touch()
    assert not source.take(3).ended, "it has not ended before the last position"  # type: ignore[union-attr]
    write_table(tmp_path / name, played.positions_m[:4])
    assert [len(one.frames) for one in taken(source, 3)] == [1]


def test_positions_that_never_come_end_the_stream(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "frame_1.npy", played.frames[:4])
    write_table(tmp_path / "positions.txt", played.positions_m[:3])
    (tmp_path / "ended").touch()
    source = FramesFolder(tmp_path, "/patterns", "/positions")
    assert [len(one.frames) for one in taken(source)] == [3]
    assert source.take(3).lacking == 1, "they may be written a little later"  # type: ignore[union-attr]
    monkeypatch.setattr(folder_module, "POSITIONS_S", 0.0)
    with pytest.raises(
        BadInput, match=r"has ended, and frame 3 \(frame_1.npy\) has no position; give each frame a line"
    ):
        source.take(3)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_positions_that_nobody_gives_are_asked_for(played: Played, tmp_path: Path, kind: str) -> None:
    """Frames of a folder without positions, and of a file whose positions stay empty."""
    if kind == "folder":
        (tmp_path / "frames").mkdir()
        np.save(tmp_path / "frames" / "frame_1.npy", played.frames)
    else:
        write_file(tmp_path / "frames.h5", played.frames, np.empty((0, 2)))
    source = open_source(str(tmp_path / ("frames" if kind == "folder" else "frames.h5")))
    keys = {"path": "none.cxi", "distance_m": 1, "detector_pixel_m": played.description.detector_pixel_m, **BEAM}
    recipe = Recipe.parse({"data": keys, "stages": [{"engine": "rpie", "epochs": 2, "batch": 16}]})
    said = r"Frames are there, and positions \(y and x in metres, in positions.txt .* names\) have not come"
    with pytest.raises(PtymeshError, match=said):
        reconstruct_live(recipe, source, tmp_path / "out", LiveOptions(uses=1, timeout_s=0.3))


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "frame_1.npy").mkdir()
    (tmp_path / "frame_2.npy").symlink_to("nowhere")
    os.mkfifo(tmp_path / "frame_3.npy")
    np.save(tmp_path / "frame_4.npy", np.ones((8, 8), "<u2"))
    (got,) = taken(FramesFolder(tmp_path, "/patterns", None))
    assert got.frames.shape == (1, 8, 8)


def test_positions_from_elsewhere(played: Played, tmp_path: Path) -> None:
    files, table = tmp_path / "files", tmp_path / "motors.txt"
    files.mkdir()
    for k in range(VIEWS):
        np.save(files / f"{k}.npy", played.frames[k])
    write_table(table, played.positions_m)
    (files / "ended").touch()
    keys = {"path": "none.cxi", "distance_m": played.description.distance_m, **BEAM}
    keys["detector_pixel_m"] = played.description.detector_pixel_m
    recipe = Recipe.parse({"data": keys, "stages": [{"engine": "rpie", "epochs": 2, "batch": 16}]})
    stream = ApartStream(open_source(str(files), "/patterns", None), open_positions(table, "/positions"))
    outcome, _ = reconstruct_live(recipe, stream, tmp_path / "out", LiveOptions(uses=1))
    assert outcome.views == VIEWS
    assert np.array_equal(SpooledStream(tmp_path / "out").take(0).positions_m, played.positions_m)  # type: ignore[union-attr]


def spoil_late(folder: Path, source: FramesFolder) -> None:
    source.take(0)
    np.save(folder / "frame_0.npy", np.ones((8, 8), "<u2"))


def spoil_rows(folder: Path, source: FramesFolder) -> None:
    (folder / "frame_1.txt").write_text("1e-6 2e-6 3e-6\n")


def spoil_axes(folder: Path, source: FramesFolder) -> None:
    np.save(folder / "frame_1.npy", np.ones((2, 2, 2, 8, 8), "<u2"))


def spoil_type(folder: Path, source: FramesFolder) -> None:
    np.save(folder / "frame_1.npy", np.ones((8, 8), bool))


def spoil_shape(folder: Path, source: FramesFolder) -> None:
    np.save(folder / "frame_2.npy", np.ones((8, 6), "<u2"))
    (folder / "positions.txt").write_text("0 0\n1e-6 0\n")


def spoil_place(folder: Path, source: FramesFolder) -> None:
    source.describe()
    (folder / "positions.txt").write_text("0 0\n1e-6 0\n")
    np.save(folder / "frame_2.npy", np.ones((8, 8), "<u2"))
    (folder / "frame_1.npy").unlink()


def spoil_end(folder: Path, source: FramesFolder) -> None:
    (folder / "frame_1.npy").unlink()
    (folder / "ended").touch()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_late, "frame_0.npy has come when frame_1.npy had been read"),
        (spoil_rows, "1 rows of 3 numbers"),
        (spoil_axes, "three axes"),
        (spoil_type, "real numbers"),
        (spoil_shape, r"frame_2.npy holds frames of \(8, 6\) uint16, and those before it are of \(8, 8\) uint16; take"),
        (spoil_place, "frame_1.npy cannot be read .*; leave files where they are"),
        (spoil_end, "ended without a file"),
    ],
)
def test_what_is_refused(
    spoil: Callable[[Path, FramesFolder], None], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "LAST_UNREADABLE_S", 0.0)
    np.save(tmp_path / "frame_1.npy", np.ones((8, 8), "<u2"))
    source = FramesFolder(tmp_path, "/patterns", "/positions")
    spoil(tmp_path, source)
    with pytest.raises(BadInput, match=words):
        source.describe()
        source.take(0)


def test_datasets_of_hdf5_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "LAST_UNREADABLE_S", 0.0)
    write_file(tmp_path / "frame_1.h5", np.ones((3, 8, 8), "<u2"), np.zeros((2, 2)))
    with pytest.raises(BadInput, match=r"/positions of shape \(2, 2\) for 3 frames"):
        FramesFolder(tmp_path, "/patterns", "/positions").describe()
    assert FramesFolder(tmp_path, "/patterns", None).describe() is not None
    write_file(tmp_path / "frame_1.h5", np.ones((2, 3, 8, 8), "<u2"), np.zeros((2, 2)))
    with pytest.raises(BadInput, match=r"frames are \(n, H, W\)"):
        FramesFolder(tmp_path, "/patterns", "/positions").describe()


@pytest.mark.parametrize(
    ("address", "said"),
    [("127.0.0.1:5599", "give tcp://127.0.0.1:5599"), ("nowhere/frames", "there is no folder nowhere; check the path")],
)
def test_what_can_never_bring_a_frame_is_refused(address: str, said: str) -> None:
    """A file that is not there yet is waited for."""
    with pytest.raises(BadInput, match=re.escape(said)):
        open_source(address)


def test_a_file_that_is_yet_to_be_written_is_waited_for(tmp_path: Path) -> None:
    assert open_source(str(tmp_path / "later.h5")).describe() is None
