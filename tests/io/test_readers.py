"""tike and generic files, sources, staging: recognised by content, read by slab, unpacked once."""

from __future__ import annotations

import bz2
import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io import cache, load_measurement, source, staging
from ptymesh.io.cache import cache_folder
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.io.source import Hdf5Source, MappedSource

Load = Callable[..., Any]
EVERYWHERE = slice(0, 16), slice(0, 20)


@pytest.fixture
def tike(patterns: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    probe = rng.normal(size=(1, 1, 1, 2, 16, 20, 2)).astype(np.float32).view(np.complex64)[..., 0]
    return {"data": patterns[None], "scan": rng.normal(size=(1, 6, 2)).astype(np.float32), "probe": probe}


def load(path: Path, **options: Any) -> Any:
    return load_measurement(DataOptions(path=path, **options))


@pytest.mark.parametrize("packing", ["stored", "deflated", "bz2"])
@pytest.mark.parametrize("name", ["scan.npz", "misnamed.h5"])
def test_tike(tmp_path: Path, tike: Any, patterns: np.ndarray, packing: str, name: str) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        (np.savez_compressed if packing == "deflated" else np.savez)(file, **tike)
    if packing == "bz2":
        path.write_bytes(bz2.compress(path.read_bytes()))
    m = load(path)
    assert m.patterns.dtype == np.uint16
    np.testing.assert_array_equal(m.patterns.read(np.array([3, 0, 3])), patterns[[3, 0, 3]])
    np.testing.assert_array_equal(m.positions, tike["scan"][0].astype(float))
    np.testing.assert_allclose(m.probe, tike["probe"].reshape(2, 16, 20), atol=1e-6)
    assert m.geometry.object_pixel_m is None and "pixels" in m.notes[0]
    assert m.path == str(path)


def test_tike_without_the_leading_axis(tmp_path: Path, tike: Any, patterns: np.ndarray) -> None:
    np.savez(tmp_path / "a.npz", data=patterns, scan=tike["scan"][0])
    m = load(tmp_path / "a.npz")
    assert m.views == 6 and m.probe is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"scan": np.zeros((1, 5, 2))}, "6 patterns, but there are 5"),
        ({"scan": np.zeros((1, 6, 3))}, r"scan .* \(6, 3\)"),
        ({"scan": np.full((1, 6, 2), np.inf)}, "Position 0"),
        ({"data": np.zeros((1, 0, 4, 4))}, "nothing in it"),
        ({"data": np.zeros((6, 4))}, "three axes"),
        ({"data": np.zeros((6, 4, 4), complex)}, "counts"),
        ({"probe": np.zeros((4, 4))}, "probe"),
    ],
)
def test_unsound_tike(tmp_path: Path, tike: Any, change: Any, word: str) -> None:
    np.savez(tmp_path / "a.npz", **(tike | change))
    with pytest.raises(BadInput, match=word):
        load(tmp_path / "a.npz")


def test_truncated_files(tmp_path: Path, tike: Any, hdf5: Load, patterns: np.ndarray) -> None:
    np.savez_compressed(tmp_path / "whole.npz", **tike)
    whole = (tmp_path / "whole.npz").read_bytes()
    packed = bz2.compress(whole)
    plain = hdf5({"frames": patterns}).read_bytes()
    for name, content in (("a.npz", whole), ("b.npz.bz2", packed), ("c.h5", plain)):
        path = tmp_path / name
        path.write_bytes(content[: int(len(content) * 0.7)])
        cut = rf"c\.h5 is truncated \(it has {path.stat().st_size} of its {len(plain)} bytes\): copy it again\.$"
        with pytest.raises(BadInput, match=cut if name == "c.h5" else "truncated or damaged"):
            load(path)
    (tmp_path / "d.h5").write_bytes(plain[:5])
    with pytest.raises(BadInput, match=r"damaged HDF5|no known format"):
        load(tmp_path / "d.h5")
    assert {file.suffix for file in cache_folder().iterdir()} == {".lock"}


def test_damaged_compressed_member(tmp_path: Path, tike: Any) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **tike)
    content = bytearray(path.read_bytes())
    content[2000:2100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(BadInput, match="truncated or damaged"):
        load(path)


def test_damaged_chunk(generic: Load, hdf5: Load, tmp_path: Path, patterns: np.ndarray) -> None:
    path = hdf5({"frames": patterns, "places": np.zeros((6, 2))}, "g.h5", compression="gzip", chunks=(1, 16, 20))
    with h5py.File(path) as file:
        info = file["frames"].id.get_chunk_info(2)
    content = bytearray(path.read_bytes())
    content[info.byte_offset : info.byte_offset + info.size] = bytes(info.size)
    path.write_bytes(content)
    m = generic(path=path)
    m.patterns.read(np.array([0, 1]))
    with pytest.raises(BadInput, match=r"/frames in .* \(views 2 to 2\) is truncated or damaged"):
        m.patterns.read(np.array([2]))


def test_a_file_that_is_not_there_for_a_while(
    generic: Load, hdf5: Load, everything: Load, patterns: np.ndarray
) -> None:
    """What failed to be opened is opened anew at the next reading, not taken for open."""
    path = hdf5({"frames": patterns, "places": np.zeros((6, 2))}, "g.h5")
    m = generic(path=path)
    away = path.rename(path.with_name("away.h5"))
    hdf5({"other": patterns}, "g.h5")
    for _ in range(2):
        with pytest.raises(BadInput, match="has no dataset /frames"):
            m.patterns.read(np.arange(6))
    away.replace(path)
    np.testing.assert_array_equal(everything(m), patterns)


def test_unknown_files(tmp_path: Path, hdf5: Load) -> None:
    np.savez(tmp_path / "other.npz", a=np.zeros((3, 4)))
    (tmp_path / "text.txt").write_text("hello, world")
    (tmp_path / "empty").touch()
    np.save(tmp_path / "frames.npy", np.zeros((3, 4)))
    (tmp_path / "frames.tif").write_bytes(b"II*\0" + bytes(20))
    for path, word in (
        (
            hdf5({"/a/b": np.zeros((6, 4, 4))}, "other.h5"),
            r"data\.keys, such as {patterns: NAME, positions: NAME}: it has /a/b \(6, 4, 4\)",
        ),
        (tmp_path / "other.npz", r"data\.keys, such as {patterns: NAME, positions: NAME}: it has a \(3, 4\)"),
        (tmp_path / "text.txt", "no known format"),
        (tmp_path / "empty", "is empty"),
        (tmp_path / "absent.cxi", "There is no file"),
        (tmp_path, r"is a folder; give the data in it, .*frames\.npy"),
        (tmp_path / "frames.npy", r"has shape \(3, 4\); patterns have three axes"),
        (tmp_path / "frames.tif", "cannot be read as TIFF"),
    ):
        with pytest.raises(BadInput, match=word) as error:
            load(path)
        assert "\n" not in str(error.value)
    with pytest.raises(BadInput, match="neither HDF5 nor npz"):
        load(tmp_path / "text.txt", keys={"patterns": "a"})


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every file")
def test_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    with pytest.raises(BadInput, match="permissions"):
        load(tmp_path / "secret")


@pytest.mark.parametrize("axes", ["nyx", "nxy", "yxn", "xny", None])
@pytest.mark.parametrize("kind", ["hdf5", "npz"])
def test_axis_order(tmp_path: Path, hdf5: Load, everything: Load, patterns: np.ndarray, axes: Any, kind: str) -> None:
    stored = patterns.transpose(["nyx".index(a) for a in axes or "nyx"])
    path = tmp_path / "a.npz"
    if kind == "hdf5":
        path = hdf5({"f": stored})
    else:
        np.savez(path, f=np.asfortranarray(stored))
    keys = {"patterns": "f", "pattern_axes": axes}
    place = PositionOptions.model_validate({"raster": {"shape": [2, 3], "step_px": 3}})
    m = load_measurement(DataOptions.model_validate({"path": path, "keys": keys}), place)
    np.testing.assert_array_equal(everything(m), patterns)
    np.testing.assert_array_equal(m.patterns.read(np.array([5, 1])), np.fft.ifftshift(patterns[[5, 1]], axes=(1, 2)))


@pytest.mark.parametrize("kind", ["hdf5", "npz"])
def test_four_dimensional_patterns(
    tmp_path: Path, hdf5: Load, everything: Load, patterns: np.ndarray, kind: str
) -> None:
    stored, path = patterns.reshape(2, 3, 16, 20), tmp_path / "a.npz"
    if kind == "hdf5":
        path = hdf5({"f": stored}, chunks=(1, 2, 8, 20), compression="gzip")
    else:
        np.savez(path, f=stored)
    data = DataOptions.model_validate({"path": path, "keys": {"patterns": "f"}})
    m = load_measurement(data, PositionOptions.model_validate({"raster": {"step_px": 3}}))
    np.testing.assert_array_equal(everything(m), patterns)
    np.testing.assert_array_equal(m.positions[4], (1.5, 0))
    with pytest.raises(BadInput, match=r"raster of \(2, 3\) views without a step"):
        load_measurement(data)
    with pytest.raises(BadInput, match=r"the patterns are a raster of \(2, 3\)"):
        load_measurement(data, PositionOptions.model_validate({"raster": {"shape": [3, 2], "step_px": 3}}))


def test_positions_of_generic_files(generic: Load, hdf5: Load, patterns: np.ndarray, positions: np.ndarray) -> None:
    path = hdf5({"frames": patterns, "yx": positions, "T": positions.T, "y": positions[:, 0], "x": positions[:, [1]]})
    for keys in (
        {"positions": "yx"},
        {"positions": "T"},
        {"positions": None, "positions_y": "y", "positions_x": "x"},
    ):
        np.testing.assert_allclose(generic(path=path, keys=keys).positions, positions / 1e-8)
    turned = generic(path=path, keys={"positions": "yx", "position_order": "xy"}).positions
    np.testing.assert_allclose(turned, positions[:, ::-1] / 1e-8)
    for keys, word in (
        ({"positions": None}, "no positions"),
        ({"positions": "y"}, r"y has shape \(6,\) float64, and there are 6 patterns; .* \(6, 2\) or \(2, 6\) numbers"),
        ({"positions": "nowhere"}, "no dataset nowhere; it has /frames"),
        ({"patterns": "nowhere"}, "no dataset nowhere"),
        ({"probe": "yx"}, "a probe is complex"),
        ({"positions": None, "positions_y": "y", "positions_x": "yx"}, "12 x positions"),
        ({"positions": None, "positions_y": "y", "positions_x": "frames"}, "more values than"),
    ):
        with pytest.raises(BadInput, match=word):
            generic(path=path, keys=keys)


def test_missing_array_of_an_npz(tmp_path: Path, patterns: np.ndarray) -> None:
    np.savez(tmp_path / "a.npz", f=patterns)
    with pytest.raises(BadInput, match=r"no array g; data\.keys\.patterns can be one of f"):
        load(tmp_path / "a.npz", keys={"patterns": "g"})
    with pytest.raises(BadInput, match="no array p; it has f"):
        load(tmp_path / "a.npz", keys={"patterns": "f", "positions": "p"})


@pytest.mark.parametrize(
    ("reference", "word"),
    [
        ("absent.npy", "no file"),
        ("plain.h5", "say which dataset"),
        ("plain.h5:/nowhere", "no dataset /nowhere"),
        ("two.npz", "say which"),
        ("text.txt", "neither .npy"),
        ("small.npy", r"shape \(3, 3\); the detector is \(16, 20\)"),
        ("nan.npy", "NaN"),
        ("complex.npy", "real numbers"),
        ("cut.npy", "cannot be read"),
    ],
)
def test_unsuitable_arrays(
    tmp_path: Path, generic: Load, hdf5: Load, reference: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hdf5({"a": np.zeros((16, 20))}, "plain.h5")
    np.savez("two.npz", a=np.zeros(2), b=np.zeros(2))
    Path("text.txt").write_text("no array at all")
    np.save("small.npy", np.zeros((3, 3)))
    np.save("nan.npy", np.full((16, 20), np.nan))
    np.save("complex.npy", np.zeros((16, 20), complex))
    np.save("cut.npy", np.zeros((16, 20)))
    Path("cut.npy").write_bytes(Path("cut.npy").read_bytes()[:300])
    with pytest.raises(BadInput, match=word) as error:
        generic(dark=reference)
    assert "data.dark" in str(error.value) or reference.startswith("plain.h5:")


@pytest.mark.parametrize("chunks", [None, (1, 16, 20), (2, 16, 20), (4, 8, 10), (6, 16, 20)])
def test_hdf5_slabs(hdf5: Load, patterns: np.ndarray, chunks: Any) -> None:
    path = hdf5({"f": patterns}, chunks=chunks)
    slabs = Hdf5Source(path, "f")
    for views in ([], [0], [5, 0, 2], [3, 3, 1], [0, 1, 2, 3, 4, 5], [4, 2]):
        wanted = patterns[np.array(views, int)]
        np.testing.assert_array_equal(slabs.read(np.array(views, int), *EVERYWHERE), wanted)
        np.testing.assert_array_equal(slabs.read(np.array(views, int), slice(3, 9), slice(2, 4)), wanted[:, 3:9, 2:4])


def test_registered_compression_is_understood(hdf5: Load, patterns: np.ndarray) -> None:
    import hdf5plugin

    path = hdf5({"f": patterns}, chunks=(1, 16, 20), **hdf5plugin.Bitshuffle())
    np.testing.assert_array_equal(Hdf5Source(path, "f").read(np.arange(6), *EVERYWHERE), patterns)


def test_huge_chunks_are_staged(
    generic: Load, hdf5: Load, everything: Load, patterns: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "CACHE_BYTES", 1000)
    arrays = {"frames": patterns, "places": np.zeros((6, 2))}
    plain = generic(path=hdf5(arrays, "fine.h5", chunks=(1, 16, 20), compression="gzip"))
    staged = generic(path=hdf5(arrays, "huge.h5", chunks=(6, 16, 20), compression="gzip"))
    assert isinstance(plain.patterns.raw, Hdf5Source)
    assert isinstance(staged.patterns.raw, MappedSource)
    np.testing.assert_array_equal(everything(staged), patterns)


def test_staged_copies_are_of_the_file_that_holds_the_data(
    generic: Load, hdf5: Load, everything: Load, patterns: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of the one that links to it: neither what they are of nor how large they may be is known from that."""
    monkeypatch.setattr(source, "CACHE_BYTES", 1000)
    monkeypatch.setattr(staging, "HARMLESS_BYTES", 0)
    monkeypatch.setattr(staging, "RATIO", 2)
    master = hdf5({"places": np.zeros((6, 2))}, "master.h5")
    noise = np.random.default_rng(1).integers(0, 60000, (6, 16, 20)).astype(np.uint16)
    for name, stored in (("a", patterns), ("b", noise)):
        with h5py.File(master.with_name("data.h5"), "w") as file:
            for dataset, counts in (("a", stored), ("b", stored[::-1])):
                file.create_dataset(dataset, data=counts, chunks=(6, 16, 20), compression="gzip")
        for place in ("a", "b"):  # the same name in the master, of other data
            with h5py.File(master, "r+") as file:
                file.pop("frames", None)
                file["frames"] = h5py.ExternalLink("data.h5", f"/{place}")
            m = generic(path=master)
            assert isinstance(m.patterns.raw, MappedSource)
            np.testing.assert_array_equal(everything(m), stored if place == "a" else stored[::-1], err_msg=name)


def test_staged_copies_are_of_the_axes_that_the_recipe_names(
    hdf5: Load, patterns: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "CACHE_BYTES", 1000)
    path = hdf5({"f": patterns}, chunks=(6, 16, 20), compression="gzip")
    for axes, wanted in (("nyx", patterns), ("nxy", patterns.transpose(0, 2, 1))):
        found = staging.sliceable(Hdf5Source(path, "f", axes))
        everywhere = slice(0, wanted.shape[1]), slice(0, wanted.shape[2])
        np.testing.assert_array_equal(found.read(np.arange(6), *everywhere), wanted)


def test_sources_can_be_sent_to_other_processes(generic: Load, tmp_path: Path, patterns: np.ndarray) -> None:
    np.savez(tmp_path / "a.npz", data=patterns, scan=np.zeros((6, 2)))
    for m in (generic(), load(tmp_path / "a.npz")):
        before = m.patterns.read(np.arange(6))
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(m.patterns)).read(np.arange(6)), before)  # noqa: S301


def test_staged_once_and_found_again(tmp_path: Path, tike: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", **tike)
    load(tmp_path / "a.npz")
    staged = [file for file in cache_folder().iterdir() if file.suffix not in (".lock", ".json")]
    assert len(staged) == 1
    monkeypatch.setattr(cache, "_make", None)  # must not be needed again, wherever the file lies
    (tmp_path / "a.npz").rename(tmp_path / "b.npz")
    load(tmp_path / "b.npz")


def test_forgotten_after_a_week(tmp_path: Path, tike: Any) -> None:
    old, young = cache_folder() / f"{'0' * 32}-old", cache_folder() / f"{'0' * 32}-young"
    others, used = cache_folder() / "not ours", cache_folder() / f"{'1' * 32}-used"
    for file in (old, young, others, used):
        file.touch()
        os.utime(file, None if file == young else (0, 0))
    used.with_name(f"{used.name}.lock").touch()
    np.savez_compressed(tmp_path / "a.npz", **tike)
    load(tmp_path / "a.npz")
    assert young.exists() and others.exists() and used.exists() and not old.exists()


def test_several_processes_stage_the_same_file(tmp_path: Path, tike: Any) -> None:
    np.savez_compressed(tmp_path / "a.npz", **tike)
    fork = multiprocessing.get_context("fork")
    answers: Any = fork.SimpleQueue()

    def program() -> None:
        answers.put(int(load(tmp_path / "a.npz").patterns.read(np.arange(6)).sum()))

    started = [fork.Process(target=program) for _ in range(3)]
    for process in started:
        process.start()
    assert [answers.get() for _ in started] == [int(tike["data"].sum())] * 3
    for process in started:
        process.join()
    assert sorted(file.suffix for file in cache_folder().iterdir()) == ["", ".json", ".lock"]


def test_full_cache_folder(tmp_path: Path, tike: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", **tike)
    monkeypatch.setattr(cache, "LEFT_SHARE", 1.0)
    monkeypatch.setattr(cache, "LEFT_BYTES", 1 << 60)
    sentence = (
        r"a\.npz cannot be unpacked \(No space left on device: [\d.]+ \w+ needed, [\d.]+ \w+ free "
        r"in \S+\); set PTYMESH_CACHE to a folder with room, or save it with numpy\.savez"
    )
    with pytest.raises(BadInput, match=sentence):
        load(tmp_path / "a.npz")
    assert [file.suffix for file in cache_folder().iterdir()] == [".lock"]


def test_fingerprint_depends_on_content_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    a.write_bytes(b"x" * 5000)
    b.write_bytes(b"x" * 5000)
    c.write_bytes(b"x" * 4999 + b"y")
    assert staging.fingerprint(a) == staging.fingerprint(b) != staging.fingerprint(c)


def test_siemens_star(data_dir: Path) -> None:
    m = load(data_dir / "siemens-star-small.npz.bz2")
    assert m.patterns.shape == (516, 128, 128) and m.probe.shape == (1, 128, 128)
    mean = m.patterns.read(np.arange(0, 516, 40)).mean(axis=0)
    assert np.fft.fftshift(mean)[40:90, 40:90].sum() > 0.8 * mean.sum()
    assert m.geometry.object_pixel_m is None and np.ptp(m.positions[:, 0]) == pytest.approx(331.9, abs=0.1)


def test_cryo(data_dir: Path) -> None:
    options = {
        "path": data_dir / "cryo-4dstem-40x40.h5",
        "keys": {"patterns": "/data"},
        "transpose": True,
        "object_pixel_m": 4.65e-10,
        "radiation": "electron",
        "energy_eV": 300e3,
    }
    place = {"raster": {"shape": [40, 40], "step_m": 31.25e-10}, "rotation_deg": -126}
    m = load_measurement(DataOptions.model_validate(options), PositionOptions.model_validate(place))
    assert m.patterns.shape == (1600, 128, 128) and m.patterns.dtype == np.uint8
    assert m.geometry.wavelength_m == pytest.approx(1.9687e-12, rel=1e-4)
    with h5py.File(options["path"]) as file:
        stored = file["data"][3, 7]
    np.testing.assert_array_equal(m.patterns.read(np.array([127]))[0], np.fft.ifftshift(stored.T))
    along_x = m.positions[1] - m.positions[0]  # y' = -x sin, x' = x cos
    angle = np.deg2rad(-126)
    np.testing.assert_allclose(along_x, 31.25 / 4.65 * np.array([-np.sin(angle), np.cos(angle)]))
