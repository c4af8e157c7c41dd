"""EMPAD: two rows of metadata dropped, non-square scans, steps and energies of several versions, lengths that lie."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.geometry import electron_wavelength_m
from ptymesh.io.formats import empad

ROWS, COLUMNS = 3, 5
LAMBDA = electron_wavelength_m(300e3)


def frames(count: int = ROWS * COLUMNS, stored_rows: int = 130) -> np.ndarray:
    """Numbers that tell frame, row and column; metadata of 1e6."""
    values = np.arange(count * 128 * 128, dtype="<f4").reshape(count, 128, 128) % 9973
    stored = np.full((count, stored_rows, 128), 1e6, "<f4")
    stored[:, :128] = values
    return stored


def modern(search: str = "1.0", **fields: Any) -> str:
    """A description as version 1.2.2 writes it, of a scan of 5 columns (x) and 3 rows (y)."""
    said = {"high_voltage": 300000.0, "nominal_camera_length": 0.369, "scale": 0.72, "x": 7.2e-9, "size": 0.5} | fields
    section = (
        "<scan_resolution_y>{}</scan_resolution_y><scan_resolution_x>{}</scan_resolution_x><scan_size>{}</scan_size>"
    )
    return (
        '<root name="scan"><software_version>1.2.2  (2021-08-20)</software_version>'
        f'<raw_file filename="{fields.get("raw", "scan_x5_y3.raw")}"/>'
        f'<scan_parameters mode="search">{section.format(ROWS, COLUMNS, search)}</scan_parameters>'
        f'<scan_parameters mode="acquire">{section.format(ROWS, COLUMNS, said["size"])}</scan_parameters>'
        f"<iom_measurements><high_voltage>{said['high_voltage']}</high_voltage>"
        f"<nominal_camera_length>{said['nominal_camera_length']}</nominal_camera_length>"
        f"<full_scan_field_of_view><scale_factor>{said['scale']}</scale_factor><x>{said['x']}</x><y>{said['x']}</y>"
        "</full_scan_field_of_view></iom_measurements></root>"
    )


OLD = (
    "<root><software_version>0.51</software_version><raw_file filename='scan.raw'/><pix_x>5</pix_x><pix_y>3</pix_y>"
    "<iom_measurements><source.get_voltage>300000</source.get_voltage>"
    "<calibrated_diffraction_angle>2e-4</calibrated_diffraction_angle>"
    "<optics.get_full_scan_field_of_view>[1e-8, 3e-9]</optics.get_full_scan_field_of_view></iom_measurements></root>"
)


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    frames().tofile(tmp_path / "scan_x5_y3.raw")
    path = tmp_path / "scan.xml"
    path.write_text(modern())
    return path


def test_modern_files(scan: Path, load: Any, upright: Any) -> None:
    for path in (scan, scan.with_name("scan_x5_y3.raw")):
        m = load(path)
        np.testing.assert_array_equal(upright(m), frames()[:, :128])
        assert m.geometry.energy_eV == pytest.approx(300e3) and m.geometry.radiation == "electron"
        assert m.geometry.object_pixel_m[0] == pytest.approx(LAMBDA * 0.369 / (128 * 150e-6))
        step = (m.positions[COLUMNS + 1] - m.positions[0]) * m.geometry.object_pixel_m
        np.testing.assert_allclose(step, 7.2e-9 / 0.72 * 0.5 / 5, rtol=1e-9)
        assert any("nominal" in note for note in m.notes) and any("0.5 in mode acquire" in note for note in m.notes)


def test_files_of_version_051(tmp_path: Path, load: Any, upright: Any) -> None:
    (tmp_path / "scan.xml").write_text(OLD)
    frames().tofile(tmp_path / "scan.raw")
    m = load(tmp_path / "scan.xml")
    np.testing.assert_array_equal(upright(m), frames()[:, :128])
    assert m.geometry.object_pixel_m[0] == pytest.approx(LAMBDA / (128 * 2e-4))
    step = (m.positions[COLUMNS + 1] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, (1e-9, 2e-9), rtol=1e-9)


def test_frames_without_metadata_rows(tmp_path: Path, load: Any, upright: Any) -> None:
    (tmp_path / "scan.xml").write_text(OLD)
    frames(stored_rows=128).tofile(tmp_path / "scan.raw")
    np.testing.assert_array_equal(upright(load(tmp_path / "scan.xml")), frames()[:, :128])


def test_raw_files_alone(tmp_path: Path, load: Any) -> None:
    frames(84).tofile(tmp_path / "flat.raw")
    raster = {"shape": [6, 14], "step_px": 3}
    with pytest.raises(BadInput, match="84 patterns and no positions"):  # never guessed
        load(tmp_path / "flat.raw")
    assert load(tmp_path / "flat.raw", {"raster": raster}).views == 84
    frames(16).tofile(tmp_path / "square.raw")
    m = load(tmp_path / "square.raw", {"raster": {"step_px": 3}})
    assert any("taken as 4 x 4" in note for note in m.notes)
    frames(84).tofile(tmp_path / "scan_x14_y6.raw")
    np.testing.assert_array_equal(load(tmp_path / "scan_x14_y6.raw", {"raster": raster}).positions[14], (-4.5, -19.5))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (modern()[:-20], "cannot be read as XML .* copy it again"),
        (modern(raw="other.raw"), r"describes 'other\.raw', which is not there: copy it to"),
        (modern(raw="../scan_x5_y3.raw", high_voltage=300), r"high voltage in .* is 300 V, .* set data\.energy_eV"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]>" + modern(), "defines entities"),
        (modern(raw="scan_x4_y3.raw"), r"scan_x4_y3\.raw', which is not there"),
        (modern(raw="scan_x0_y3.raw"), r"scan_x0_y3"),
    ],
)
def test_unsound_descriptions(scan: Path, load: Any, text: str, word: str) -> None:
    scan.write_text(text)
    with pytest.raises(BadInput, match=word) as error:
        load(scan)
    assert "\n" not in str(error.value)


def test_wrong_lengths(scan: Path, load: Any) -> None:
    raw = scan.with_name("scan_x5_y3.raw")
    content = raw.read_bytes()
    raw.write_bytes(content[:-1000])
    with pytest.raises(BadInput, match="997400 bytes, which are 14 frames of 130 x 128 float32 and 65560 bytes"):
        load(scan)
    frames(17).tofile(raw)
    with pytest.raises(BadInput, match=r"says 3 x 5 = 15 views, and .* holds 17 frames: if the first 2 .* skip: 2"):
        load(scan)
    assert load(scan, frames={"shape": [3, 5], "skip": 2}).views == 15
    frames(18).tofile(raw)
    with pytest.raises(BadInput, match=r"flyback\), set data\.frames to {shape: \[3, 5\], flyback: 1}"):
        load(scan)
    frames(12).tofile(raw)
    with pytest.raises(BadInput, match=r"holds 12 frames: if the scan was cut short, .* \[2, 5\]"):
        load(scan)
    m = load(scan, frames={"shape": [2, 5]})
    assert m.views == 10 and any("last 2 of 12" in note for note in m.notes)


def test_nan_is_refused_with_view_and_pixel(scan: Path, load: Any) -> None:
    stored = frames()
    stored[4, 10, 20] = np.nan
    stored.tofile(scan.with_name("scan_x5_y3.raw"))
    with pytest.raises(BadInput, match=r"View 4 .* nan .* \[10, 20\]"):
        load(scan).patterns.read(np.arange(15))


def test_the_xml_of_an_instrument(tmp_path: Path, samples: Path, load: Any) -> None:
    shutil.copy(samples / "EMPAD_v1.2.2_x32_y64_size0.8.xml", tmp_path / "a.xml")
    with (tmp_path / "scan_x32_y64.raw").open("wb") as file:
        file.truncate(32 * 64 * empad.FRAME_BYTES)
    m = load(tmp_path / "a.xml")
    assert m.views == 2048 and m.geometry.distance_m == 0.369
    step = (m.positions[33] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, 1.272412341559544e-06 / 0.72 * 0.6 / 64, rtol=1e-9)
