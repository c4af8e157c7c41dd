"""Raw frames that the recipe describes, and known formats whose positions and others lie in files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput

N, H, W = 35, 16, 20
OBJECT = {"object_pixel_m": 1e-8}


@pytest.fixture
def frames() -> np.ndarray:
    return np.random.default_rng(3).poisson(90, (N, H, W)).astype(np.uint16)


@pytest.fixture
def places() -> np.ndarray:
    rows, columns = np.divmod(np.arange(N), 7)
    return np.stack([rows, columns], 1) * 5e-8 + np.random.default_rng(5).normal(0, 2e-9, (N, 2))


@pytest.mark.parametrize(
    ("dtype", "big", "offset", "gap"),
    [("uint16", False, 0, 0), ("uint8", False, 13, 0), ("float32", True, 0, 1024), ("uint32", True, 256, 7)],
)
def test_frames_gaps_and_order_of_bytes(
    tmp_path: Path, frames: Any, places: Any, load: Any, upright: Any, dtype: str, big: bool, offset: int, gap: int
) -> None:
    path = tmp_path / "scan.bin"
    stored = frames.astype(np.dtype(dtype).newbyteorder(">" if big else "<"))
    np.save(tmp_path / "p.npy", places)
    layout = {"pixels": [H, W], "dtype": dtype, "big_endian": big, "offset": offset, "gap": gap}
    for last in (b"", bytes(gap)):  # some programs write the gap behind the last frame, too
        path.write_bytes(bytes(offset) + bytes(gap).join(one.tobytes() for one in stored) + last)
        m = load(path, raw=layout, keys={"positions": "p.npy"}, **OBJECT)
        np.testing.assert_array_equal(upright(m), frames.astype(dtype))
        np.testing.assert_allclose(m.positions, places / 1e-8)
    path.write_bytes(path.read_bytes() + b"123")
    with pytest.raises(
        BadInput, match=rf"{N} frames of {stored[0].nbytes} bytes .* and 3 bytes more|bytes more; check"
    ):
        load(path, raw=layout, keys={"positions": "p.npy"}, **OBJECT)


def test_a_raw_file_is_asked_about(tmp_path: Path, frames: Any, load: Any) -> None:
    path = tmp_path / "scan.bin"
    path.write_bytes(frames.tobytes())
    with pytest.raises(BadInput, match=r"data\.raw, such as \{pixels"):
        load(path)
    with pytest.raises(BadInput, match="35 patterns and no positions"):  # 35 is no square
        load(path, raw={"pixels": [H, W], "dtype": "uint16"}, **OBJECT)
    for wrong, word in (({"pixels": [H, W]}, "dtype"), ({"pixels": [H, W], "dtype": "uint12"}, "uint12")):
        with pytest.raises(BadInput, match=word):
            load(path, raw=wrong, **OBJECT)


@pytest.mark.parametrize("name", ["p.csv:y,x", "p.txt", "p.h5:/stage/yx", "p.dat:Target_y,Target_x"])
@pytest.mark.parametrize("ending", [".npy", ".tif"])
def test_positions_in_a_file_of_their_own(
    tmp_path: Path, frames: Any, places: Any, load: Any, upright: Any, name: str, ending: str
) -> None:
    import tifffile

    path = tmp_path / f"scan{ending}"
    np.save(path, frames) if ending == ".npy" else tifffile.imwrite(path, frames)
    rows = [[float(y), float(x)] for y, x in places * 1e6]
    (tmp_path / "p.csv").write_text("x,y\n" + "".join(f"{x!r},{y!r}\n" for y, x in rows))
    (tmp_path / "p.txt").write_text("".join(f"{y!r}   {x!r}\n" for y, x in rows))
    columns = "Scan 00123 of the line\nTarget_x Average_x Target_y\n"  # as cSAXS writes them
    (tmp_path / "p.dat").write_text(columns + "".join(f"{x!r} 0.0 {y!r}\n" for y, x in rows))
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["stage/yx"] = places * 1e6
        file["stage/yx"].attrs["units"] = "um"
    unit = {} if name.startswith("p.h5") else {"unit": "um"}
    m = load(path, unit, keys={"positions": name}, **OBJECT)
    np.testing.assert_allclose(m.positions, places / 1e-8, rtol=1e-9)
    np.testing.assert_array_equal(upright(m), frames)


def test_everything_else_in_files_of_their_own(tmp_path: Path, frames: Any, places: Any, load: Any) -> None:
    np.save(tmp_path / "scan.npy", frames)
    mask = np.random.default_rng(6).random((H, W)) > 0.1
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["yx"], file["mask"], file["dark"], file["i0"] = places, mask, np.full((H, W), 3.0), np.arange(1.0, N + 1)
        file["energy"], file["distance"], file["pixel"] = 6.2, 1920.0, 75.0
        for name, unit in (("yx", "m"), ("energy", "keV"), ("distance", "mm"), ("pixel", "um")):
            file[name].attrs["units"] = unit
    names = {"positions": "yx", "mask": "mask", "dark": "dark", "intensity": "i0", "energy_eV": "energy"}
    names |= {"distance_m": "distance", "detector_pixel_m": "pixel"}
    keys = {key: f"other.h5:/{name}" for key, name in names.items()}
    m = load(tmp_path / "scan.npy", keys=keys, radiation="photon")
    assert m.geometry.distance_m == pytest.approx(1.92) and m.geometry.wavelength_m == pytest.approx(2e-10, rel=1e-3)
    assert m.geometry.detector_pixel_m == pytest.approx((75e-6, 75e-6))
    np.testing.assert_array_equal(np.fft.fftshift(m.mask), mask)
    dark = np.fft.fftshift(m.patterns.read(np.arange(N)), axes=(1, 2))
    np.testing.assert_allclose(dark[:, mask], np.clip(frames - 3.0, 0, None)[:, mask])
    assert m.intensity is not None
    np.testing.assert_allclose(m.intensity / m.intensity[0], np.arange(1.0, N + 1))
    with h5py.File(tmp_path / "other.h5", "r+") as file:
        del file["energy"].attrs["units"]
    with pytest.raises(BadInput, match=r"6\.2 and says no unit.*data\.energy_eV"):
        load(tmp_path / "scan.npy", keys=keys, radiation="photon")


def test_a_name_that_is_nowhere(tmp_path: Path, frames: Any, load: Any) -> None:
    np.save(tmp_path / "scan.npy", frames)
    with pytest.raises(BadInput, match=r"data\.keys names nowhere\.csv"):
        load(tmp_path / "scan.npy", keys={"positions": "nowhere.csv"}, **OBJECT)
