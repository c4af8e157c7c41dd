"""HDF5 files that are damaged, or made to do harm: one sentence, within the memory and the folder of the file."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest
import yaml

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.io import load_measurement
from ptymesh.io.formats.cxi import write_cxi
from ptymesh.io.hdf5.reading import dataset_of, open_hdf5, read_dataset, reading
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.io.prepare.inspection import summarise
from ptymesh.measurement import Measurement
from ptymesh.run.reconstruction import Reconstruction

DETECTOR = "/entry_1/instrument_1/detector_1"
SOURCE = "/entry_1/instrument_1/source_1"
TRANSLATION = "/entry_1/sample_1/geometry_1/translation"
OWN = "/entry_1/ptymesh"
PLACES = np.array([[y, x] for y in (0.0, 4.0) for x in (0.0, 4.0, 8.0)])
Change = Callable[[h5py.File], Any]


def load(path: Path, place: dict[str, Any] | None = None, **options: Any) -> Measurement:
    data = DataOptions.model_validate({"path": path} | options)
    return load_measurement(data, PositionOptions.model_validate(place or {}))


@pytest.fixture
def own(tmp_path: Path, patterns: np.ndarray) -> Path:
    """A file that ptymesh wrote, in pixel units."""
    path = tmp_path / "own.cxi"
    write_cxi(path, patterns=[patterns], count=6, dtype="u2", geometry=Geometry((16, 20)), positions_px=PLACES)
    return path


@pytest.fixture
def metres(tmp_path: Path, patterns: np.ndarray) -> Path:
    """A file of another program: 0.4 um steps of 3.1 and 3.9 object pixels."""
    path = tmp_path / "metres.cxi"
    with h5py.File(path, "w") as file:
        file[f"{DETECTOR}/data"] = patterns
        for name, value in (("distance", 2.0), ("x_pixel_size", 6e-5), ("y_pixel_size", 6e-5)):
            file[f"{DETECTOR}/{name}"] = value
        file[f"{SOURCE}/energy"] = 1.6e-15
        file[TRANSLATION] = np.c_[PLACES[:, 1], PLACES[:, 0], np.zeros(6)] * 1e-7
    return path


def changed(path: Path, change: Change) -> Path:
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def replace(name: str, value: Any) -> Change:
    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        if value is not None:
            file[name] = value

    return change


def declare(name: str, shape: tuple[int, ...], dtype: Any, first: Any = None) -> Change:
    """A dataset of this shape of which next to nothing is stored."""

    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        data = file.create_dataset(name, shape, dtype, chunks=tuple(min(side, 16) for side in shape))
        if first is not None:
            data[(0,) * len(shape)] = first

    return change


def refused(path: Path, word: str, **options: Any) -> None:
    with pytest.raises(BadInput, match=word) as error:
        summarise(load(path, **options))
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("propagation", "sideways", r"'sideways' as propagation; it must be far_field or"),
        ("propagation", None, "says nothing as propagation"),
        ("propagation", 3, "3.* as propagation"),
        ("radiation", "gamma", r"'gamma' as radiation; it must be photon or electron"),
        ("object_pixel_m", 1e-8, r"'1e-08' as object_pixel_m; it must be two positive numbers"),
        ("object_pixel_m", [np.nan, 1e-8], r"object_pixel_m; it must be two positive"),
        ("wavelength_m", "short", r"'short' as wavelength_m; it must be one positive number"),
        ("wavelength_m", -1e-10, "'-1e-10' as wavelength_m"),
        ("negative_is_missing", [1, 2], "negative_is_missing"),
    ],
)
def test_own_group_is_not_believed_blindly(own: Path, name: str, value: Any, word: str) -> None:
    def change(file: h5py.File) -> None:
        file[OWN].attrs.pop(name, None)
        if value is not None:
            file[OWN].attrs[name] = value

    refused(changed(own, change), word)
    if name != "negative_is_missing":
        instead = {"propagation": "far_field", "radiation": "photon", "object_pixel_m": 1e-8, "wavelength_m": 1e-10}
        assert load(own, **{name: instead[name]}).views == 6


@pytest.mark.parametrize("value", [np.arange(3), np.bytes_(b"caf\xff"), h5py.Empty("f8"), np.void(b"ab")])
def test_names_and_notes_of_any_type(own: Path, value: Any) -> None:
    def change(file: h5py.File) -> None:
        file[OWN].attrs["name"] = file[OWN].attrs["notes"] = value

    found = load(changed(own, change))
    assert found.name.encode("utf-8") and all(note.encode("utf-8") for note in found.notes)


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        (f"{DETECTOR}/mask", np.full((16, 20), b"no"), "mask .* they must be numbers"),
        (f"{DETECTOR}/mask", np.full((16, 20), np.nan), "mask .* NaN"),
        (f"{DETECTOR}/mask", np.full((6, 16, 20), np.nan), "mask .* NaN"),
        (f"{DETECTOR}/mask", np.zeros((16, 20), complex), "mask .* complex"),
        (f"{DETECTOR}/mask", h5py.Empty("u2"), "mask .* is empty"),
        (f"{DETECTOR}/data", h5py.Empty("u2"), "data .* is empty"),
        (f"{DETECTOR}/data", np.full((6, 16, 20), b"5"), "patterns are counts"),
        (f"{DETECTOR}/data", np.zeros((6, 16, 20), [("a", "u2"), ("b", "f4")]), "patterns are counts"),
        (f"{DETECTOR}/distance", h5py.Empty("f8"), "distance .* is empty"),
        (f"{DETECTOR}/distance", "far", "distance .* they must be numbers"),
        (f"{DETECTOR}/distance", np.nan, "nan m"),
        (f"{DETECTOR}/distance", np.inf, "inf m"),
        (f"{DETECTOR}/basis_vectors", np.full((3, 2), b"x"), "basis_vectors .* they must be numbers"),
        (f"{DETECTOR}/basis_vectors", np.array([[0, -1e-200], [-1e-200, 0], [0, 0]]), "two pixel vectors"),
        (f"{SOURCE}/wavelength", 0.12, "0.12 m, which cannot be"),
        (f"{SOURCE}/energy", np.nan, "cannot be"),
        (TRANSLATION, np.full((6, 3), b"x"), "translation .* they must be numbers"),
        (TRANSLATION, np.full((6, 3), np.inf), "Position 0"),
        (f"{DETECTOR}/dark", np.full((16, 20), np.nan), "dark .* nan at pixel"),
        (f"{DETECTOR}/dark", np.full((4, 16, 20), np.nan), "dark .* nan at pixel"),
    ],
)
def test_unsuitable_values(metres: Path, name: str, value: Any, word: str) -> None:
    refused(changed(metres, replace(name, value)), word)


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("background", np.ones((3, 3)), r"background .* \(3, 3\)"),
        ("background", np.full((16, 20), np.nan), "background .* nan at pixel"),
        ("background", np.full((16, 20), b"x"), "background .* they must be numbers"),
        ("intensity", 1.0, "1 incident intensities for 6 views"),
        ("intensity", np.full(6, b"x"), "intensity .* they must be numbers"),
        ("intensity", np.full(6, 1e308), "cannot be"),
        ("positions_px", np.ones((6, 3)), r"positions_px .* \(6, 3\)"),
    ],
)
def test_unsuitable_own_arrays(own: Path, name: str, value: Any, word: str) -> None:
    refused(changed(own, replace(f"{OWN}/{name}", value)), word)


def test_groups_and_types_in_place_of_datasets(metres: Path) -> None:
    refused(changed(metres, lambda file: file.create_group(f"{DETECTOR}/mask")), "no dataset .*mask")
    refused(changed(metres, replace(OWN, np.dtype("f8"))), "says nothing as propagation")


@pytest.mark.parametrize("dtype", ["f2", "g", ">f8", ">u2", "?", "i8", "u8", "enum"])
def test_every_format_of_numbers(metres: Path, patterns: np.ndarray, dtype: str) -> None:
    counts = np.minimum(patterns, 1 if dtype in ("?", "enum") else 500)
    kind = h5py.enum_dtype({"dark": 0, "light": 1}, basetype="u1") if dtype == "enum" else np.dtype(dtype)

    def change(file: h5py.File) -> None:
        del file[f"{DETECTOR}/data"]
        file.create_dataset(f"{DETECTOR}/data", data=counts.astype("u1" if dtype == "enum" else dtype), dtype=kind)

    found = load(changed(metres, change)).patterns
    read = found.read(np.arange(6))
    assert found.dtype.isnative and found.dtype.itemsize <= 8 and found.dtype != np.float16
    np.testing.assert_array_equal(np.fft.fftshift(read, axes=(1, 2)), counts)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (declare(TRANSLATION, (10**12, 3), "f8"), "more values than"),
        (declare(f"{DETECTOR}/data", (10**12, 16, 20), "u2"), "no value was ever written"),
        (declare(f"{DETECTOR}/data", (10**12, 16, 20), "u2", 1), "with its 1000000000000 views needs"),
        (declare(f"{DETECTOR}/data", (6, 10**7, 10**7), "u2", 1), "10000000 x 10000000 pixels needs"),
        (declare(f"{SOURCE}/probe", (10**8, 16, 20), "c16"), "more values than"),
        (declare(f"{DETECTOR}/distance", (10**12,), "f8"), "more values than"),
        (declare(f"{DETECTOR}/dark", (10**9, 16, 20), "u2", 1), "1000000000 dark frames"),
        (declare(f"{OWN}/background", (10**6, 10**6), "f8"), "more values than|propagation"),
    ],
)
def test_declared_sizes(metres: Path, change: Change, word: str) -> None:
    refused(changed(metres, change), word)


def test_a_probe_that_is_left_out_is_not_read(metres: Path) -> None:
    found = load(changed(metres, declare(f"{SOURCE}/probe", (1, 10**6, 10**6), "c16")))
    assert found.probe is None and "left out" in found.notes[0]


def test_sizes_that_options_ask_for(metres: Path) -> None:
    refused(metres, "choose a smaller data.pad", pad=1_000_000)
    refused(metres, "choose a smaller data.pad", pad=10**15)
    refused(metres, "is 685230, which is more than any detector has", **yaml.safe_load("pad: [256, 190:20:30]"))
    refused(metres, "1000000000000 positions", place={"raster": {"shape": [10**6, 10**6], "step_px": 1}})


@pytest.mark.parametrize("factor", [1e9, 1e300, 1e308])
def test_positions_in_another_unit(metres: Path, factor: float) -> None:
    def change(file: h5py.File) -> None:
        file[TRANSLATION][...] *= factor

    refused(changed(metres, change), r"span .* object pixels.*positions\.unit")


def test_an_object_beyond_the_memory(metres: Path) -> None:
    """Seen by `inspect`, refused where it would be allocated: 12 TB in one slice."""

    def change(file: h5py.File) -> None:
        file[TRANSLATION][...] *= 1e6

    found = load(changed(metres, change))
    assert any("positions.unit" in said and "object pixels" in said for said in summarise(found).suspicious)
    with pytest.raises(BadInput, match=r"object pixels.*positions\.unit"):
        Reconstruction(found)


# --- links, and files that a file names ---


def link(where: str) -> Change:
    return replace(f"{DETECTOR}/mask", h5py.ExternalLink(where, "/mask"))


def storage(where: str) -> Change:
    def change(file: h5py.File) -> None:
        del file[f"{DETECTOR}/data"]
        file.create_dataset(f"{DETECTOR}/data", (6, 16, 20), "u1", external=[(where, 0, 1920)])

    return change


def virtual(where: str) -> Change:
    def change(file: h5py.File) -> None:
        del file[f"{DETECTOR}/data"]
        layout = h5py.VirtualLayout((6, 16, 20), "u2")
        layout[:] = h5py.VirtualSource(where, "frames", (6, 16, 20))
        file.create_virtual_dataset(f"{DETECTOR}/data", layout)

    return change


@pytest.mark.parametrize("kind", [link, storage, virtual])
def test_files_elsewhere_are_not_opened(
    tmp_path: Path, metres: Path, patterns: np.ndarray, kind: Callable[[str], Change], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "beside", tmp_path.parent / f"{tmp_path.name}-outside"
    for folder in (inside, outside):
        folder.mkdir()
        with h5py.File(folder / "more.h5", "w") as file:
            file["mask"], file["frames"] = np.zeros((16, 20), "u4"), patterns
        (folder / "more.raw").write_bytes(patterns.astype("u1").tobytes())
    ending = "raw" if kind is storage else "h5"
    monkeypatch.chdir(inside)
    assert load(changed(metres, kind(f"beside/more.{ending}"))).patterns.read(np.arange(6)).any()
    secret = outside / f"more.{ending}"
    (inside / "alias").symlink_to(secret)
    os.mkfifo(inside / "pipe")
    for name in (str(secret), f"../{outside.name}/more.{ending}", "beside/alias"):
        refused(changed(metres, kind(name)), r"not in its own folder.*data\.follow")
        assert load(metres, follow=[outside]).patterns.read(np.arange(6)).any()
    refused(changed(metres, kind("beside/pipe")), "no regular file")
    refused(changed(metres, kind("beside/absent")), "is not there")


def test_folders_to_follow_hold_for_patterns_and_for_arrays(tmp_path: Path, metres: Path, patterns: np.ndarray) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    with h5py.File(outside / "more.h5", "w") as file:
        file["mask"], file["frames"] = np.eye(16, 20), patterns

    def change(file: h5py.File) -> None:
        del file[f"{DETECTOR}/data"]
        file[f"{DETECTOR}/data"] = h5py.ExternalLink(str(outside / "more.h5"), "/frames")
        file["mask"] = h5py.ExternalLink(str(outside / "more.h5"), "/mask")

    refused(changed(metres, change), r"not in its own folder.*data\.follow")
    found = load(metres, follow=[outside], mask=f"{metres}:/mask", background=f"{metres}:/mask")
    assert found.mask.sum() == 16 and found.patterns.read(np.arange(6)).any()


def test_links_in_circles(metres: Path) -> None:
    def change(file: h5py.File) -> None:
        file["a"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("/a")
        file[f"{DETECTOR}/mask"] = h5py.SoftLink("/a")

    refused(changed(metres, change), "leads in circles")


def test_a_dataset_made_of_itself(metres: Path) -> None:
    def change(file: h5py.File) -> None:
        del file[f"{DETECTOR}/data"]
        layout = h5py.VirtualLayout((6, 16, 20), "u2")
        layout[:] = h5py.VirtualSource(".", f"{DETECTOR}/data", (6, 16, 20))
        file.create_virtual_dataset(f"{DETECTOR}/data", layout)

    refused(changed(metres, change), "made of itself")


def test_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        refused(path, "is a folder without data" if path == tmp_path else "is not a file")
        with pytest.raises(BadInput, match="no regular file"):
            open_hdf5(path)


def of_many(folder: Path, count: int) -> Path:
    """A virtual dataset of (1, 4, 4) in each of so many files."""
    layout = h5py.VirtualLayout((count, 4, 4), "u2")
    for number in range(count):
        with h5py.File(folder / f"s{number}.h5", "w") as file:
            file["d"] = np.full((1, 4, 4), number + 1, "u2")
        layout[number] = h5py.VirtualSource(f"s{number}.h5", "d", (1, 4, 4))[0]
    with h5py.File(folder / "m.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
    return folder / "m.h5"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
def test_more_sources_than_files_may_be_open(tmp_path: Path) -> None:
    """HDF5 would give zeros for those that it cannot open."""
    import resource

    path, open_now = of_many(tmp_path, 60), psutil.Process().num_fds()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 20, hard))
    try:
        with open_hdf5(path) as file:
            np.testing.assert_array_equal(read_dataset(file, "v")[:, 0, 0], np.arange(1, 61))
            assert not file.others
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    fork = multiprocessing.get_context("fork")
    answers: Any = fork.SimpleQueue()

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 20, open_now + 20))
        try:
            with open_hdf5(path) as file:
                answers.put(str(read_dataset(file, "v")))
        except BadInput as error:
            answers.put(str(error))

    process = fork.Process(target=limited)
    process.start()
    assert "has its values in 60 files" in (said := answers.get()) and "ulimit -n" in said
    process.join()


def test_virtual_datasets_of_virtual_ones(tmp_path: Path) -> None:
    """Each is looked at once, however many ways lead to it, and how deep they are is known nevertheless."""
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["d0"] = np.arange(8)
        for level in range(1, 12):  # eight ways from each to the one below
            layout = h5py.VirtualLayout((8,), "i8")
            for at in range(8):
                file[f"link{level}_{at}"] = h5py.SoftLink(f"/d{level - 1}")
                layout[at : at + 1] = h5py.VirtualSource(".", f"link{level}_{at}", (8,))[at : at + 1]
            file.create_virtual_dataset(f"d{level}", layout)
    with open_hdf5(tmp_path / "m.h5") as file:
        for level in range(1, 8):
            np.testing.assert_array_equal(read_dataset(file, f"d{level}"), np.arange(8))
        for level in (9, 11):
            with pytest.raises(BadInput, match="of too many others"):
                dataset_of(file, f"d{level}")


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (OSError(errno.EMFILE, "x"), r"Too many open files\): raise the limit of open files"),
        (OSError(errno.EACCES, "x"), r"Permission denied\): check its permissions"),
        (OSError(errno.EIO, "x"), r"Input/output error\): the disk"),
        (OSError(errno.ENOMEM, "x"), r"Cannot allocate memory\): free some"),
        (MemoryError(), "needs more memory than there is"),
        (OSError("Unable to read"), r"truncated or damaged \(Unable to read\): copy the file again"),
    ],
)
def test_what_the_system_refuses_is_no_damage(error: Exception, word: str) -> None:
    with pytest.raises(BadInput, match=word), reading("a.h5"):
        raise error


# --- damage ---


def test_masters_of_a_real_detector(data_dir: Path) -> None:
    path = data_dir / "readers" / "test_00_master.h5"
    if not path.exists():
        pytest.skip("the data of test_00_master.h5 are not here")
    with open_hdf5(path) as file:
        assert read_dataset(file, "/entry/data/data_000001").ndim == 3


def test_random_damage(tmp_path: Path, metres: Path) -> None:
    """Whatever is made of a file, it is read or refused in one sentence."""
    whole, rng, refusals = metres.read_bytes(), random.Random(1), 0
    for attempt in range(60):
        damaged = bytearray(whole)
        for _ in range((1, 10, 200)[attempt % 3]):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path = tmp_path / f"{attempt}.cxi"
        path.write_bytes(damaged)
        try:
            summarise(load(path, invalid="zero"))
        except BadInput as error:
            refusals += 1
            assert "\n" not in str(error)
    assert refusals > 20


def test_a_heap_in_which_hdf5_would_hang(own: Path) -> None:
    content = bytearray(own.read_bytes())
    heap = content.index(b"GCOL\1\0\0\0")
    content[heap + 16 : heap + 32] = bytes(16)
    own.write_bytes(content)
    refused(own, "heap of strings")


def test_chunks_at_which_bitshuffle_would_die(metres: Path, patterns: np.ndarray) -> None:
    import hdf5plugin

    def change(file: h5py.File) -> None:
        del file[f"{DETECTOR}/data"]
        file.create_dataset(f"{DETECTOR}/data", data=patterns, chunks=(1, 16, 20), **hdf5plugin.Bitshuffle())

    assert load(changed(metres, change)).patterns.read(np.arange(6)).any()
    with h5py.File(metres) as file:
        offset = file[f"{DETECTOR}/data"].id.get_chunk_info(2).byte_offset
    for place, value in ((5, 0x7F), (12, 0x7F), (8, 0xFF)):
        content = bytearray(metres.read_bytes())
        content[offset + place] = value
        damaged = metres.with_name("damaged.cxi")
        damaged.write_bytes(content)
        refused(damaged, "a chunk of it")


@pytest.mark.parametrize(
    "filters",
    [
        {"fletcher32": True},
        {"compression": "gzip", "fletcher32": True},
        {"shuffle": True},
        {"compression": 32008, "compression_opts": (0, 0)},
        {"compression": 32008, "compression_opts": (0, 2), "fletcher32": True},
    ],
)
def test_chunks_shorter_than_what_they_hold(metres: Path, filters: dict[str, Any]) -> None:
    """HDF5 would read beyond their ends."""
    import hdf5plugin  # noqa: F401  (the filter bitshuffle)

    dark = np.arange(320, dtype="f4").reshape(16, 20)

    def sound(file: h5py.File) -> None:
        file.create_dataset(f"{DETECTOR}/dark", data=dark, chunks=(16, 20), **filters)

    def short(file: h5py.File) -> None:
        file[f"{DETECTOR}/dark"].id.write_direct_chunk((0, 0), b"\1")

    with open_hdf5(changed(metres, sound)) as file:
        np.testing.assert_array_equal(read_dataset(file, f"{DETECTOR}/dark"), dark)
    refused(changed(metres, short), "shorter than what it should hold")


@pytest.mark.parametrize("name", ["lz4", "none"])
def test_bitshuffle_with_elements_of_no_size(metres: Path, patterns: np.ndarray, name: Any) -> None:
    """The plugin would divide by zero, and the process die."""
    import hdf5plugin

    def change(file: h5py.File) -> None:
        del file[f"{DETECTOR}/data"]
        filters = hdf5plugin.Bitshuffle(cname=name)
        file.create_dataset(f"{DETECTOR}/data", data=patterns, chunks=(1, 16, 20), **filters)

    changed(metres, change)
    with h5py.File(metres) as file:
        options = file[f"{DETECTOR}/data"].id.get_create_plist().get_filter(0)[2]
    content = metres.read_bytes()
    stored = struct.pack(f"<{len(options)}I", *options)
    assert content.count(stored) == 1
    metres.write_bytes(content.replace(stored, stored[:8] + bytes(4) + stored[12:]))
    refused(metres, "elements of no size")


def test_chunks_are_gone_through_once(tmp_path: Path) -> None:
    """To ask HDF5 for each chunk takes time that grows with the square of their number: here most of a minute."""
    with h5py.File(tmp_path / "many.h5", "w") as file:
        file.create_dataset("places", data=np.arange(20_000.0), chunks=(1,))
    before = time.process_time()
    with open_hdf5(tmp_path / "many.h5") as file:
        np.testing.assert_array_equal(read_dataset(file, "places"), np.arange(20_000))
    assert time.process_time() - before < 2


def test_lengths_that_cannot_be(metres: Path) -> None:
    def change(file: h5py.File) -> None:
        for axis in "yx":
            file.require_dataset(f"{DETECTOR}/{axis}_pixel_size", (), "f8")[()] = 9.2e18

    refused(changed(metres, change), r"9\.2e\+18 m, which cannot be")
