"""Hostile npz, npy and TIFF files: one sentence each, before anything is read or allocated that is not there."""

from __future__ import annotations

import io
import os
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile

from ptymesh.errors import BadInput
from ptymesh.io import load_measurement, staging
from ptymesh.io.arrays import ANY, detector_array, load_array
from ptymesh.io.cache import cache_folder
from ptymesh.io.hdf5.reading import native
from ptymesh.io.options import DataOptions, PositionOptions

COUNTS = np.random.default_rng(3).integers(0, 99, (6, 16, 20)).astype(np.uint16)
SCAN = np.random.default_rng(4).random((6, 2)) * 9
SHAPE = (16, 20)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def npy(array: Any) -> bytes:
    """As numpy.save writes it."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), allow_pickle=True)
    return file.getvalue()


def headed(
    shape: str = "(6, 16, 20)", descr: str = "'<u2'", version: tuple[int, int] = (1, 0), whole: str | None = None
) -> bytes:
    """An .npy that says something, followed by COUNTS."""
    said = whole if whole is not None else f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"
    length = struct.pack("<H" if version == (1, 0) else "<I", len(said))
    return b"\x93NUMPY" + bytes(version) + length + said.encode() + COUNTS.tobytes()


def tike(data: bytes, scan: bytes = b"", method: int = zipfile.ZIP_STORED, **others: bytes) -> Path:
    path = Path("t.npz")
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in {"data": data, "scan": scan or npy(SCAN), **others}.items():
            archive.writestr(f"{name}.npy", content)
    return path


def read(path: Path, **options: Any) -> np.ndarray:
    return load_measurement(DataOptions(path=path, **options), PositionOptions(unit="px")).patterns.read(np.arange(6))


def refused(path: Path, words: str, **options: Any) -> None:
    with pytest.raises(BadInput, match=words) as error:
        read(path, **options)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (headed("(1000000000000, 16, 20)"), "truncated"),
        (headed("(4294967296, 4294967296, 20)"), "truncated"),
        (headed("(-6, 16, 20)"), r"shape is \(-6, 16, 20\), which cannot be"),
        (headed("(-6, -16, 20)"), "which cannot be"),
        (headed(f"({'9' * 3000},)"), "which cannot be"),
        (headed("(6.0, 16, 20)"), "not a readable array"),
        (headed(version=(9, 0)), "version 9.0 of the format is unknown"),
        (headed(whole="{'descr': "), "not a readable array"),
        (headed(whole="(" * 3900 + ")"), "not a readable array"),
        (headed(whole="-" * 3900 + "1"), "not a readable array"),
        (headed(whole="  {'a\n   b"), "not a readable array"),
        (b"\x93NUMPY\2\0\xff\xff\xff\xff" + b" " * 5000, "header says that it has 4294967295 bytes"),
        (b"\x93NUMPY", "ends within its header"),
        (b"no array at all", "does not start as numpy's arrays do"),
        (headed(descr="'<U2147483647'"), "not a readable array"),
        (headed(descr="('<u2', (99999, 99999, 99))"), "not a readable array"),
        (headed()[:900], "truncated"),
        (npy(np.full((6, 16, 20), None)), "object values"),
        (npy(np.zeros((6, 16, 20), [("a", "f4")])), "patterns are counts"),
        (npy(np.full((6, 16, 20), "x")), "patterns are counts"),
        (npy(np.zeros((6, 16, 20), "m8[s]")), "patterns are counts"),
        (npy(np.full((6, 16, 20), np.longdouble("1e4000"))), "View 0 of .* holds inf counts"),
    ],
)
def test_unsound_patterns(data: bytes, words: str, method: int) -> None:
    refused(tike(data, method=method), words)
    if "inf" not in words:  # sound as a file
        assert not [file for file in cache_folder().iterdir() if file.suffix != ".lock"]


@pytest.mark.parametrize(("kind", "held"), [(np.float16, np.float32), (np.longdouble, np.float64), (">u2", np.uint16)])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_patterns_of_any_number(kind: Any, held: Any, method: int) -> None:
    patterns = read(tike(npy(COUNTS.astype(kind)), method=method))
    assert patterns.dtype == held
    np.testing.assert_array_equal(patterns, COUNTS)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header(version: tuple[int, int]) -> None:
    np.testing.assert_array_equal(read(tike(headed(version=version))), COUNTS)


@pytest.mark.parametrize(
    ("scan", "words"),
    [
        (np.full((6, 2), None), r"\(6, 2\) object; it must be \(N, 2\) pixels"),
        (np.zeros((6, 2), [("a", "f4"), ("b", "i2")]), "it must be"),
        (np.full((6, 2), "a"), "it must be"),
        (np.zeros((6, 2), "M8[s]"), "it must be"),
        (np.full((6, 2), 1j), "it must be"),
        (np.zeros(12), "it must be"),
        (np.array(1.0), "it must be"),
        (np.full((6, 2), np.longdouble("1e4000")), "Position 0"),
        (np.zeros((1 << 20, 2), np.int8), r"shape \(1048576, 2\), more than can be used"),
    ],
)
def test_unsound_scan(scan: np.ndarray, words: str) -> None:
    refused(tike(headed(), npy(scan)), words)


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize != 16 or sys.byteorder != "little", reason="of x86")
def test_bits_that_are_no_long_double() -> None:
    """They are NaN without a warning."""
    odd = np.frombuffer(bytes(8) + b"\xff\x3f" + bytes(6), np.longdouble)
    assert np.isnan(native(odd)).all() and native(odd).dtype == np.float64


@pytest.mark.parametrize("kind", [np.float16, np.longdouble, ">f8", "int8"])
def test_scan_of_any_number(kind: Any) -> None:
    whole = np.arange(12).reshape(6, 2)
    positions = load_measurement(DataOptions(path=tike(headed(), npy(whole.astype(kind))))).positions
    assert positions.dtype == np.float64
    np.testing.assert_array_equal(positions, whole)


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        (np.full(SHAPE, None), "must be complex"),
        (np.ones(SHAPE), "must be complex"),
        (np.ones((0, *SHAPE), complex), "must be complex"),
        (np.array(1j), "must be complex"),
    ],
)
def test_unsound_probe(probe: np.ndarray, words: str) -> None:
    refused(tike(headed(), probe=npy(probe)), words)


def test_a_probe_of_another_size_is_not_read() -> None:
    header = npy(np.zeros((4, 4), complex)).replace(b"(4, 4), }" + b" " * 10, b"(40000, 40000), }  ")
    m = load_measurement(DataOptions(path=tike(headed(), probe=header)))
    assert m.probe is None and "probe is (40000, 40000) pixels, its patterns (16, 20): it is left out" in m.notes[1]


DIRECTORY = {  # where in the directory's first entry, what is put there, what is said
    "checksum": (16, b"abcd", "Bad CRC-32"),
    "encrypted": (8, b"\1\0", "is encrypted"),
    "well encrypted": (8, b"\x41\0", "is encrypted"),
    "unknown method": (10, b"\x63\0", "zip's method 99, which numpy does not use"),
    "bzip2": (10, b"\x0c\0", "zip's method 12, which numpy does not use"),
    "future": (6, b"\xff\0", "packed in a way that is unknown"),
    "sizes": (20, b"\xff\xff\xff\x7f\xff\xff\xff\x7f", "truncated or damaged"),
    "zip64": (20, b"\xff" * 8, "truncated or damaged"),
    "offset": (42, b"\xff\xff\xff\x7f", "truncated or damaged"),
    "extra field": (30, b"\xff\xff", "truncated or damaged"),
}


@pytest.mark.parametrize("what", DIRECTORY)
def test_lies_of_an_archive(what: str) -> None:
    place, content, words = DIRECTORY[what]
    whole = bytearray(tike(headed()).read_bytes())
    start = whole.index(b"PK\1\2") + place
    whole[start : start + len(content)] = content
    Path("t.npz").write_bytes(whole)
    refused(Path("t.npz"), words)


def test_a_changed_byte_of_stored_patterns_is_noticed() -> None:
    whole = bytearray(tike(headed()).read_bytes())
    whole[1000] ^= 1
    Path("t.npz").write_bytes(whole)
    refused(Path("t.npz"), "Bad CRC-32")


def test_archives_on_several_disks() -> None:
    whole = tike(headed()).read_bytes()
    end = whole.index(b"PK\5\6")
    Path("t.npz").write_bytes(whole[:end] + b"PK\6\7" + struct.pack("<LQL", 1, 0, 2) + whole[end:])
    for options in ({}, {"keys": {"patterns": "data"}}):
        refused(Path("t.npz"), "multiple disks", **options)
    with pytest.raises(BadInput, match="multiple disks"):
        detector_array("t.npz", "data.dark", SHAPE)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("name", ["a/b", "../../a", "/a", "a:b", "a.npy", "é", "x" * 300, "a\\b", " "])
def test_any_name_of_an_array(name: str, method: int) -> None:
    tike(npy(SCAN), method=method, **{name: headed(), "dark/a:b": npy(np.ones(SHAPE))})
    keys = {"patterns": name, "positions": "scan"}
    np.testing.assert_array_equal(read(Path("t.npz"), keys=keys, dc="corner"), COUNTS)
    with pytest.raises(BadInput, match=r"say which, as t\.npz:data\."):
        load_array("t.npz", "data.dark")
    assert load_array("t.npz:dark/a:b", "data.dark").sum() == load_array("t.npz:dark/a:b.npy", "data.dark").sum() == 320
    assert os.listdir() == ["t.npz"]


def test_names_that_cannot_be_told_apart_or_said() -> None:
    tike(headed(), **{"a\nb": npy(SCAN)})
    refused(Path("t.npz"), r"an array named 'a\\nb'")
    tike(headed())
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile("t.npz", "a") as archive:
        archive.writestr("data.npy", headed())
    refused(Path("t.npz"), "holds data twice")
    with zipfile.ZipFile("t.npz", "w") as archive:
        archive.writestr("data", headed())
    with pytest.raises(BadInput, match=r"a zip file without arrays \(\.npy\)"):
        load_array("t.npz", "data.dark")


# --- what options name ---


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (npy(np.full(SHAPE, None)), "Python objects; it must be real numbers"),
        (npy(np.zeros(SHAPE, [("a", "f4")])), "must be real numbers"),
        (npy(np.full(SHAPE, "x")), "must be real numbers"),
        (npy(np.zeros(SHAPE, "M8[s]")), "must be real numbers"),
        (npy(np.full(SHAPE, np.longdouble("1e4000"))), "infinite"),
        (npy(np.ones((16, 20)))[:900], "truncated"),
        (npy(np.ones((0,))), r"shape \(0,\)"),
        (headed("(16, 1000000000000)"), "truncated"),
        (headed("(-16, 20)"), "which cannot be"),
        (headed(version=(9, 0)), "version 9.0"),
        (headed(whole="{{{"), "not a readable array"),
        (b"\x93NUMPY\2\0\xff\xff\xff\x7f" + b" " * 5000, "header says that it has 2147483647 bytes"),
        (b"", "is empty"),
    ],
)
def test_unsound_npy(content: bytes, words: str) -> None:
    Path("a.npy").write_bytes(content)
    with pytest.raises(BadInput, match=words) as error:
        detector_array("a.npy", "data.dark", SHAPE)
    assert "data.dark" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "array", [np.asfortranarray(np.arange(320.0).reshape(SHAPE)), np.full((1, 1, *SHAPE), 2, ">f8")]
)
def test_orders_of_npy(array: np.ndarray) -> None:
    np.save("a.npy", array)
    np.testing.assert_array_equal(detector_array("a.npy", "data.dark", SHAPE), array.reshape(SHAPE))


@pytest.mark.parametrize(("kind", "read"), [(np.float16, np.float32), (np.longdouble, np.float64), (">u2", np.uint16)])
def test_formats_that_nothing_computes_with(kind: Any, read: Any) -> None:
    np.save("a.npy", np.ones(SHAPE, kind))
    assert detector_array("a.npy", "data.dark", SHAPE).dtype == read
    np.save("c.npy", np.ones(SHAPE, np.clongdouble))
    assert load_array("c.npy", "probe.start", ANY).dtype == np.complex128


def test_more_than_can_be_used_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("a.npy", "wb") as file:  # 16 GB of holes
        file.write(headed("(2000000000,)", "'<f8'")[:128])
        file.truncate(128 + 16_000_000_000)
    with pytest.raises(BadInput, match=r"shape \(2000000000,\), more than data\.intensity can use"):
        load_array("a.npy", "data.intensity")
    with zipfile.ZipFile("a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", headed("(40000, 40000)"))
    with pytest.raises(BadInput, match="more than can be used"):
        detector_array("a.npz", "data.dark", (40000, 40000))


def test_nothing_but_regular_files_is_opened() -> None:
    os.mkfifo("pipe")
    for name, target in (("to-pipe", "pipe"), ("zero", "/dev/zero"), ("circle", "circle"), ("gone", "nowhere")):
        os.symlink(target, name)
    for name in (
        "pipe",
        "to-pipe",
        "zero",
        "circle",
        "gone",
        ".",
        "pipe:/a",
        "/proc/self/maps",
        "x" * 300,
        "a\0b",
        ":",
    ):
        with pytest.raises(BadInput, match=r"no file|not a file|is empty"):
            load_array(name, "data.mask")


def tiff(**tags: int) -> None:
    """A sound TIFF, but for some entries."""
    tifffile.imwrite("a.tif", np.ones(SHAPE, np.float32))
    whole = bytearray(Path("a.tif").read_bytes())
    start = struct.unpack_from("<I", whole, 4)[0]
    numbers = {"width": 256, "length": 257, "bits": 258, "compression": 259, "offset": 273, "count": 279, "format": 339}
    for name, value in tags.items():
        for place in range(start + 2, start + 2 + 12 * struct.unpack_from("<H", whole, start)[0], 12):
            if struct.unpack_from("<H", whole, place)[0] == numbers[name]:
                struct.pack_into("<HII", whole, place + 2, 4, 1, value)
    Path("a.tif").write_bytes(whole)


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ({"width": 2**31}, "cannot hold"),
        ({"length": 2**32 - 1}, "cannot hold"),
        ({"bits": 7}, "cannot be read as TIFF"),
        ({"compression": 5}, "save it without compression"),
        ({"compression": 9999}, "save it without compression"),
        ({"offset": 2**31}, "parts of the image are missing"),
        ({"count": 0}, "parts of the image are missing"),
        ({"count": 2**31}, "parts of the image are missing"),
        ({"format": 99}, "cannot be read as TIFF"),
    ],
)
def test_unsound_tiff(tags: dict[str, int], words: str) -> None:
    tiff()
    assert detector_array("a.tif", "data.dark", SHAPE).sum() == 320
    tiff(**tags)
    with pytest.raises(BadInput, match=rf"data\.dark: a\.tif .*{words}"):
        detector_array("a.tif", "data.dark", SHAPE)


def test_truncated_tiff(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    tiff()
    whole = Path("a.tif").read_bytes()
    for kept in (*range(4, 300, 13), len(whole) - 5):
        Path("a.tif").write_bytes(whole[:kept])
        with pytest.raises(BadInput, match="cannot be read as TIFF"):
            detector_array("a.tif", "data.dark", SHAPE)
    assert capfd.readouterr() == ("", "") and not caplog.records


@pytest.mark.parametrize(
    ("array", "how", "words"),
    [
        (np.ones((16, 20, 3), np.uint8), {"photometric": "rgb"}, r"shape \(16, 20, 3\)"),
        (np.ones((5, 16, 20), np.float32), {}, r"shape \(5, 16, 20\)"),
        (np.ones((16, 20), np.complex64), {}, "real numbers"),
    ],
)
def test_tiff_of_other_things(array: np.ndarray, how: dict[str, Any], words: str) -> None:
    tifffile.imwrite("a.tif", array, **how)
    with pytest.raises(BadInput, match=words):
        detector_array("a.tif", "data.dark", SHAPE)


def test_tiff_that_names_other_files() -> None:
    """OME's description may spread an image over files; none of them is opened."""
    os.mkfifo("pipe")
    tifffile.imwrite("a.ome.tif", np.ones(SHAPE, np.float32), ome=True)
    with tifffile.TiffFile("a.ome.tif") as file:
        said = file.ome_metadata
    assert said is not None
    elsewhere = said.replace("<TiffData IFD", '<TiffData FirstZ="0" IFD').replace(
        "</TiffData>", '<UUID FileName="pipe">urn:uuid:00000000-0000-0000-0000-000000000001</UUID></TiffData>'
    )
    tifffile.imwrite("b.ome.tif", np.ones(SHAPE, np.float32), description=elsewhere.encode(), metadata=None)
    assert detector_array("b.ome.tif", "data.dark", SHAPE).sum() == 320


def test_more_intensities_than_views_are_not_read() -> None:
    Path("a.npy").write_bytes(headed("(1000,)", "'<u1'"))
    with pytest.raises(BadInput, match=r"shape \(1000,\), more than data\.intensity can use"):
        read(tike(npy(COUNTS), npy(SCAN)), intensity="a.npy")


@pytest.mark.parametrize("virtual", [False, True])
def test_arrays_that_a_master_refers_to(virtual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they may hold is known from the file that they are in."""
    monkeypatch.setattr(staging, "HARMLESS_BYTES", 0)
    monkeypatch.setattr(staging, "RATIO", 1)
    values = np.random.default_rng(1).random((64, 64))
    with h5py.File("values.h5", "w") as file:
        file["o"] = values
    with h5py.File("master.h5", "w") as file:
        if virtual:
            layout = h5py.VirtualLayout(values.shape, values.dtype)
            layout[:] = h5py.VirtualSource("values.h5", "o", values.shape)
            file.create_virtual_dataset("o", layout)
        else:
            file["o"] = h5py.ExternalLink("values.h5", "/o")
        file.create_dataset("bomb", (64, 64), "f8", chunks=(64, 64), compression="gzip", fillvalue=1)
    np.testing.assert_array_equal(load_array("master.h5:/o", "object.initial"), values)
    with pytest.raises(BadInput, match="far more than its file holds"):
        load_array("master.h5:/bomb", "object.initial")
