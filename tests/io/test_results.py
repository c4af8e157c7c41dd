"""Result files: round trip, plain HDF5, atomic, and one sentence for every bad one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh import limits
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io.hdf5 import digests, own_datasets
from ptymesh.io.results import ObjectTiles, Result


def example(dtype: type = np.complex64) -> Result:
    """A small result with every field in use."""
    rng = np.random.default_rng(0)

    def waves(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)

    return Result(
        object=waves(2, 40, 48),
        probe=waves(3, 16, 12),
        positions_px=rng.uniform(0, 20, (7, 2)),
        positions_m=rng.uniform(0, 1e-6, (7, 2)),
        pixel_size_m=(1e-8, 2e-8),
        slice_spacing_m=3e-6,
        tilt_rad=(1e-3, -2e-3),
        history={
            "epoch": np.arange(4),
            "stage": np.array(["rpie", "rpie", "lsqml", "lsqml"]),
            "loss": np.geomspace(1, 0.1, 4),
            "residual": np.geomspace(0.5, 0.05, 4),
            "seconds": np.linspace(0.1, 0.4, 4),
        },
        recipe="data: {path: µ-scan.cxi}\n",
        attrs={"final_residual": 0.0131, "engine": "rpie", "ranks": 3, "seed": 0, "device": None, "odd": True},
        nominal_px=rng.uniform(0, 20, (7, 2)),
        background=np.ones((16, 12)),
        residuals=np.linspace(0.01, 0.02, 7),
        weights=np.ones((7, 1)),
    )


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_round_trip(tmp_path: Path, dtype: type) -> None:
    written = example(dtype)
    written.save(tmp_path / "deep" / "result.h5")
    read = Result.load(tmp_path / "deep" / "result.h5")
    for name in ("object", "probe", "positions_px", "positions_m", "nominal_px", "background", "residuals", "weights"):
        there, back = getattr(written, name), getattr(read, name)
        assert back.dtype == there.dtype
        np.testing.assert_array_equal(back, there)
    assert read.pixel_size_m == written.pixel_size_m
    assert read.slice_spacing_m == written.slice_spacing_m and read.tilt_rad == written.tilt_rad
    assert read.recipe == written.recipe
    assert read.history.keys() == written.history.keys()
    for key, column in written.history.items():
        np.testing.assert_array_equal(read.history[key], column)
    assert read.attrs.pop("ptymesh_version")
    assert read.attrs == {key: value for key, value in written.attrs.items() if value is not None}
    assert os.listdir(tmp_path / "deep") == ["result.h5"]


def test_an_array_in_half_precision(tmp_path: Path) -> None:
    """It has no number for the largest value that a background may have."""
    written = Result(**{**vars(example()), "background": np.full((16, 12), 2.5, np.float16)})
    written.save(tmp_path / "result.h5")
    found = Result.load(tmp_path / "result.h5").background
    assert found is not None and float(found.max()) == 2.5


def test_pixel_units_have_no_pixel_size(tmp_path: Path) -> None:
    written = example()
    bare = Result(written.object, written.probe, written.positions_px)
    bare.save(tmp_path / "bare.h5")
    with h5py.File(tmp_path / "bare.h5") as file:
        assert "pixel_size_m" not in file["object"].attrs
        assert set(file) == {"object", "probe", "positions_px", "history", "recipe", "entry"}
    read = Result.load(tmp_path / "bare.h5")
    assert read.pixel_size_m is None and read.positions_m is None and read.weights is None and read.history == {}


def test_file_is_plain_hdf5(tmp_path: Path) -> None:
    """Names, shapes and attributes as the design has them, seen by h5py alone."""
    example().save(tmp_path / "result.h5")
    with h5py.File(tmp_path / "result.h5") as file:
        assert file["object"].shape == (2, 40, 48) and file["object"].dtype == np.complex64
        np.testing.assert_array_equal(file["object"].attrs["pixel_size_m"], [1e-8, 2e-8])
        assert file["object"].attrs["slice_spacing_m"] == 3e-6
        np.testing.assert_array_equal(file["object"].attrs["tilt_rad"], [1e-3, -2e-3])
        assert file["positions_px"].dtype == np.float64
        assert file["history/stage"].asstr()[0] == "rpie"
        assert file["recipe"].asstr()[()].startswith("data:")
        assert file["opr/weights"].shape == (7, 1)
        assert file.attrs["engine"] == "rpie" and file.attrs["ranks"] == 3


@pytest.mark.parametrize("metric", [True, False])
def test_viewers_find_object_and_probe(tmp_path: Path, metric: bool) -> None:
    """The default leads to a complex image with one coordinate per pixel, as the NeXus manual says of NXdata."""
    result = example()
    if metric:
        result.positions_m = (result.positions_px - (3.25, 4.5)) * np.array(result.pixel_size_m)
    else:
        result.positions_m = result.pixel_size_m = None
    result.save(tmp_path / "result.h5")
    with h5py.File(tmp_path / "result.h5") as file:
        entry = file[file.attrs["default"]]
        shown = entry[entry.attrs["default"]]
        assert [node.attrs["NX_class"] for node in (file, entry, shown)] == ["NXroot", "NXentry", "NXdata"]
        assert list(shown.attrs["axes"]) == ["z", "y", "x"]
        np.testing.assert_array_equal(shown[shown.attrs["signal"]], result.object)
        assert tuple(len(shown[axis]) for axis in shown.attrs["axes"]) == result.object.shape
        assert [int(shown.attrs[f"{axis}_indices"]) for axis in "zyx"] == [0, 1, 2]
        size = result.pixel_size_m or (1.0, 1.0)
        zero = (3.25, 4.5) if metric else (0.0, 0.0)
        np.testing.assert_allclose(shown["y"], (np.arange(40) - zero[0]) * size[0], atol=1e-16)
        np.testing.assert_allclose(shown["x"], (np.arange(48) - zero[1]) * size[1], atol=1e-16)
        assert shown["y"].attrs.get("units") == ("m" if metric else None)
        assert shown["z"].attrs["units"] == "m"
        probe = entry["probe"]
        np.testing.assert_array_equal(probe["data"], result.probe)
        assert probe["y"][8] == 0 and probe["x"][6] == 0 and len(probe["mode"]) == 3
    assert "default" not in Result.load(tmp_path / "result.h5").attrs


def test_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.h5"
    example().save(path)
    before = path.read_bytes()
    bad = example()
    bad.attrs["what"] = object()
    with pytest.raises(TypeError):
        bad.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["result.h5"]


def test_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PtymeshError, match="leads nowhere"):
        example().save(tmp_path / "file" / "result.h5")
    with pytest.raises(BadInput, match="is a folder"):
        example().save(tmp_path)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no file"):
        Result.load(tmp_path / "absent.h5")
    with pytest.raises(BadInput, match=r"is a folder without result\.h5 \(it is empty\); give the result of a run"):
        Result.load(tmp_path)
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"its run has not ended; `ptymesh resume .*run` continues it"):
        Result.load(tmp_path / "run")
    (tmp_path / "run" / "result.h5").write_text("hello")
    with pytest.raises(BadInput, match=r"is a folder; give the result in it, .*run/result\.h5"):
        Result.load(tmp_path / "run")
    with pytest.raises(BadInput, match=r"without result\.h5 \(it has run\)"):
        Result.load(tmp_path)
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(BadInput, match="not an HDF5 file"):
        Result.load(tmp_path / "text.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["data"] = np.zeros(3)
    with pytest.raises(BadInput, match="has no /object"):
        Result.load(tmp_path / "other.h5")
    with h5py.File(tmp_path / "groups.h5", "w") as file:
        file.create_group("object")
    with pytest.raises(BadInput, match="has no /object"):
        Result.load(tmp_path / "groups.h5")


def test_truncated_files(tmp_path: Path) -> None:
    """Cut at any length, the file is refused in one sentence."""
    example().save(tmp_path / "whole.h5")
    whole = (tmp_path / "whole.h5").read_bytes()
    for share in (0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 0.999):
        (tmp_path / "cut.h5").write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(BadInput, match=r"not an HDF5 file|is truncated") as caught:
            Result.load(tmp_path / "cut.h5")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"object": np.ones((8, 8), complex)}, r"object is complex128 \(8, 8\)"),
        ({"probe": np.ones((1, 8, 8))}, "probe is float64"),
        ({"positions_px": np.ones((7, 3))}, r"positions_px has shape \(7, 3\)"),
        ({"positions_m": np.ones((6, 2))}, r"positions_m has shape \(6, 2\)"),
    ],
)
def test_wrong_shapes(change: dict[str, np.ndarray], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Result(**{**vars(example()), **change})


def flipped(path: Path, bit: int, content: bytes) -> None:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(damaged))


def fields(result: Result) -> dict[str, bytes]:
    """All that a result says, as bytes."""
    said: dict[str, Any] = {**vars(result), **{f"history/{name}": column for name, column in result.history.items()}}
    said |= {f"attribute {name}": value for name, value in result.attrs.items()}
    return {
        name: value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
        for name, value in said.items()
        if name not in ("history", "attrs")
    }


@pytest.mark.parametrize("tiled", [False, True])
def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path, tiled: bool) -> None:
    """At random places of the file, and at some of every dataset; HDF5 has bytes that nothing depends on."""
    path, written = tmp_path / "result.h5", example()
    pieces = (((top, 0), written.object[:, top : top + 10]) for top in range(0, 40, 10))
    written.save(path, {"object": ObjectTiles((40, 48), pieces)} if tiled else None)
    content, expected = path.read_bytes(), fields(Result.load(path))
    with h5py.File(path) as file:
        names = ("object", "probe", "positions_px", "positions_m", "background", "opr/weights", "history/loss")
        starts = [file[name].id.get_offset() for name in names]
    rng, noticed = np.random.default_rng(7), 0
    bits = [*rng.integers(0, 8 * len(content), 30), *(8 * (start + 5) + rng.integers(0, 8) for start in starts)]
    for bit in bits:
        flipped(path, int(bit), content)
        try:
            found = fields(Result.load(path))
        except BadInput as error:
            assert "\n" not in str(error)
            noticed += 1
        else:
            assert found == expected
    assert noticed >= 20 + len(starts)


def test_a_changed_attribute_is_noticed(tmp_path: Path) -> None:
    example().save(tmp_path / "result.h5")
    with h5py.File(tmp_path / "result.h5", "r+") as file:
        file.attrs["final_residual"] = 0.0001
    with pytest.raises(BadInput, match="is damaged: what it says of its datasets is not what was written"):
        Result.load(tmp_path / "result.h5")


def test_a_dataset_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that this process may take counts, not what the machine has."""
    monkeypatch.setattr(own_datasets, "FREELY", 0)
    monkeypatch.setattr(limits, "NEGLIGIBLE", 0)
    monkeypatch.setattr(limits, "free_memory", lambda: 1000)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.ones(1000)
        with pytest.raises(BadInput, match=r"^/a of .* needs .* of memory, and .* are free: free some"):
            own_datasets.dataset(file, "a", "f")


def test_a_file_that_was_changed_on_purpose(tmp_path: Path) -> None:
    """The message says which attributes to delete; a file without any is accepted."""
    path = tmp_path / "result.h5"
    example().save(path)
    with h5py.File(path, "r+") as file:
        file["object"][...] = 2
    with pytest.raises(BadInput, match="delete the attribute xxh3_128 of the file, and that of /object"):
        Result.load(path)
    with h5py.File(path, "r+") as file:
        del file.attrs["xxh3_128"], file["object"].attrs["xxh3_128"]
    assert (Result.load(path).object == 2).all() and "xxh3_128" not in Result.load(path).attrs
    with h5py.File(path, "r+") as file:
        file["probe"][...] = 2
    with pytest.raises(BadInput, match="delete the attribute xxh3_128 of the file, and that of /probe"):
        Result.load(path)


def test_digests_do_not_depend_on_slabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example().save(tmp_path / "whole.h5")
    for size in (1, 100, 1000):
        monkeypatch.setattr(digests, "SLAB_BYTES", size)
        assert fields(Result.load(tmp_path / "whole.h5")) == fields(Result.load(tmp_path / "whole.h5"))


def put(name: str, value: Any, **how: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        if isinstance(value, h5py.SoftLink | h5py.ExternalLink):
            file[name] = value
        elif isinstance(value, tuple):
            file.create_dataset(name, *value, **how)
        else:
            file.create_dataset(name, data=value, **how)

    return change


def attribute(name: str, value: Any) -> Callable[[h5py.File], None]:
    return lambda file: file["object"].attrs.__setitem__(name, value)


@pytest.mark.sample(13)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (put("object", np.full((1, 4, 4), np.nan + 0j)), "The object of .* not finite"),
        (put("probe", np.full((1, 16, 12), np.inf + 0j)), "The probe of .* not finite"),
        (put("positions_px", np.full((7, 2), np.nan)), "The positions_px of .* not finite"),
        (put("opr/weights", np.full((7, 1), np.nan)), "The weights of .* not finite"),
        (put("opr/weights", np.ones((7, 3))), r"weights of .* has shape \(7, 3\); it should be \(7, 1\)"),
        (put("background", np.ones((3, 3))), r"background of .* has shape \(3, 3\)"),
        (put("residuals", np.ones(3)), r"residuals of .* has shape \(3,\); it should be \(7,\)"),
        (put("object", np.ones((1, 4, 4), np.clongdouble)), "where complex numbers should be"),
        (put("object", "text"), "holds text, where complex numbers should be"),
        (put("positions_px", np.ones((7, 2), complex)), "where real numbers or integers should be"),
        (put("recipe", 3.0), "holds float64, where text should be"),
        (put("history/loss", np.ones(4, complex)), "holds complex128, where real numbers"),
        (put("history", 3), "/history of .* is a dataset"),
        (put("history", h5py.ExternalLink("other.h5", "/")), "history of .* is a link to elsewhere"),
        (put("probe", h5py.SoftLink("/object")), "probe of .* is a link to elsewhere"),
        (put("object", ((1, 1 << 20, 1 << 20), "c8")), "declares 8.8 TB and holds 0 bytes"),
        (put("object", ((1, 1 << 20, 1 << 20), "c8"), chunks=(1, 256, 256), compression="gzip"), "declares 8.8 TB"),
        (put("probe", ((1, 16, 12), "c8"), external=[("elsewhere", 0, 9999)]), "lie in other files"),
        (put("probe", h5py.Empty("c8")), "probe of .* is empty"),
        (attribute("pixel_size_m", (-1e-8, 1e-8)), "pixel_size_m of .* should be 2 positive numbers"),
        (attribute("pixel_size_m", 1e-8), "pixel_size_m of"),
        (attribute("pixel_size_m", "small"), "pixel_size_m of .* is small; it should be 2 positive numbers"),
        (attribute("slice_spacing_m", np.nan), "slice_spacing_m of .* is nan; it should be a number"),
        (attribute("tilt_rad", (1.0, np.inf)), "tilt_rad of .* should be 2 numbers"),
    ],
)
def test_contents_that_cannot_be(tmp_path: Path, change: Callable[[h5py.File], None], sentence: str) -> None:
    """In a file without digests, as another program may have written it."""
    path = tmp_path / "result.h5"
    example().save(path)
    with h5py.File(path, "r+") as file:
        change(file)
        del file.attrs["xxh3_128"]
    with pytest.raises(BadInput, match=sentence) as error:
        Result.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["fifo", "long", "zero"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    path = {"fifo": tmp_path / "fifo.h5", "long": tmp_path / ("x" * 300), "zero": tmp_path / "zero\0.h5"}[kind]
    if kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(BadInput, match=r"not a regular file|leads nowhere|no path can"):
        Result.load(path)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("object", None, "object of the result is of type NoneType; give a numpy array."),
        ("probe", [[1j]], "probe of the result is of type list; give a numpy array."),
        ("positions_px", np.array(["a"]), "positions_px is <U1 (1,); it must hold real numbers."),
        ("positions_px", np.array(3.0), "positions_px has shape (); it must have one (y, x) per view."),
        ("positions_m", np.zeros(3), "positions_m has shape (3,)"),
        ("weights", "x", "weights of the result is of type str"),
        ("opr", np.ones((1, 16, 12)), "opr is float64 (1, 16, 12); it must hold complex numbers."),
        ("pixel_size_m", "x", "pixel_size_m of the result is x; it should be 2 positive numbers."),
        ("pixel_size_m", [[1], [2, 3]], "pixel_size_m of the result is"),
        ("slice_spacing_m", None, "slice_spacing_m of the result is None; it should be a number."),
        ("tilt_rad", 5, "tilt_rad of the result is 5; it should be 2 numbers."),
        ("recipe", 5, "recipe of the result is of type int; give a str."),
        ("history", [], "history of the result is of type list; give a dict."),
        ("attrs", None, "attrs of the result is of type NoneType; give a dict."),
    ],
)
def test_what_is_no_result(field: str, value: Any, expected: str) -> None:
    with pytest.raises(BadInput) as refused:
        Result(**{**vars(example()), field: value})
    assert str(refused.value).startswith(expected) and "\n" not in str(refused.value)


@pytest.mark.parametrize("path", [5, None, "", "~nosuch/x", "zero\0.h5", "x" * 300])
def test_paths_that_no_result_can_have(path: Any) -> None:
    for call in (Result.load, example().save):
        with pytest.raises(BadInput, match=r"^The result ") as refused:
            call(path)
        assert "\n" not in str(refused.value)
