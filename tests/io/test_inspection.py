"""What inspection says about a sound scan with known truth, and about each thing that can be wrong with one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.geometry import Geometry, near_field
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.io.prepare import survey
from ptymesh.io.prepare.inspection import InspectionReport, summarise
from ptymesh.measurement import ArraySource, Measurement

SIDE, STEP, WINDOW, DIAMETER = 12, 5.0, 64, 24
PIXEL = 1e-8


@pytest.fixture(scope="module")
def sound() -> Measurement:
    """A defocused disc of 24 pixels over a random object, raster of 12 x 12 with some jitter, 2e5 counts a view."""
    rng = np.random.default_rng(0)
    r = np.arange(WINDOW) - WINDOW // 2
    radius2 = r[:, None] ** 2 + r**2
    probe = (radius2 <= (DIAMETER / 2) ** 2) * np.exp(0.02j * radius2)
    probe = probe * np.sqrt(2e5 / (np.abs(probe) ** 2).sum())
    obj = np.exp(0.4j * rng.normal(size=(160, 160)))
    grid = np.stack(np.meshgrid(*[np.arange(SIDE) * STEP] * 2, indexing="ij"), -1).reshape(-1, 2)
    positions = grid + rng.uniform(-1, 1, grid.shape)
    corners = np.rint(positions).astype(int)
    waves = np.stack([probe * obj[y + 9 : y + 9 + WINDOW, x + 9 : x + 9 + WINDOW] for y, x in corners])
    intensity = np.abs(np.fft.fft2(np.fft.ifftshift(waves, axes=(1, 2)), norm="ortho")) ** 2
    counts = rng.poisson(intensity).astype(np.uint16)
    return Measurement(
        patterns=ArraySource(counts),
        positions=positions,
        geometry=Geometry((WINDOW, WINDOW), "far_field", "photon", 1e-10, object_pixel_m=(PIXEL, PIXEL)),
        mask=np.ones((WINDOW, WINDOW), bool),
        probe=probe[None],
    )


def counts_of(m: Measurement) -> np.ndarray:
    return m.patterns.read(np.arange(m.views)).copy()


def with_counts(m: Measurement, counts: np.ndarray) -> Measurement:
    return replace(m, patterns=ArraySource(counts))


def test_sound_scan(sound: Measurement) -> None:
    s = summarise(sound)
    assert s.suspicious == ()
    assert (s.views, s.window, s.dtype, s.masked) == (144, (64, 64), "uint16", 0)
    assert s.counts_per_view == pytest.approx(counts_of(sound).sum() / 144)
    assert s.counts_per_pixel == pytest.approx(s.counts_per_view / 64**2)
    assert s.probe_diameter_px == pytest.approx(DIAMETER, rel=0.05) and s.probe_diameter_from == "file"
    assert s.oversampling == pytest.approx(WINDOW / DIAMETER, rel=0.05)
    assert s.step_px == pytest.approx(STEP, rel=0.2)
    assert s.overlap == pytest.approx(1 - s.step_px / s.probe_diameter_px)
    area = (11 * STEP + 1) ** 2 + 4 * 11 * STEP * DIAMETER / 2 + np.pi * DIAMETER**2 / 4
    hull = (11 * STEP + 1) ** 2
    assert s.counts_per_m2 == pytest.approx(counts_of(sound).sum() / hull / PIXEL**2, rel=0.05)
    assert s.views_per_point == pytest.approx(144 * np.pi * DIAMETER**2 / 4 / area, rel=0.15)
    assert s.peak_counts == counts_of(sound).max() and s.whole_counts
    assert s.beam_offset_px is not None and max(map(abs, s.beam_offset_px)) <= 1
    assert s.intensity_rms < 0.02 and abs(s.intensity_drift) < 0.02
    np.testing.assert_array_equal(s.totals, counts_of(sound).sum((1, 2)))
    np.testing.assert_allclose(s.mean_pattern, np.fft.fftshift(counts_of(sound).mean(0)))


def test_probe_size_without_a_probe(sound: Measurement) -> None:
    """From the speckles, to a fifth."""
    s = summarise(replace(sound, probe=None))
    assert s.probe_diameter_from == "speckle" and s.probe_modes == 0
    assert s.probe_diameter_px == pytest.approx(DIAMETER, rel=0.2)
    assert s.suspicious == ()


def test_electron_dose(sound: Measurement) -> None:
    s = summarise(replace(sound, geometry=replace(sound.geometry, radiation="electron", wavelength_m=1.97e-12)))
    assert s.counts_per_m2 is not None and s.e_per_A2 == pytest.approx(s.counts_per_m2 * 1e-20)


def test_near_field(sound: Measurement) -> None:
    geometry = near_field((WINDOW, WINDOW), 1e-10, 0.1, (1e-6, 1e-6))
    s = summarise(replace(sound, geometry=geometry, probe=None))
    assert (s.probe_diameter_px, s.probe_diameter_from, s.beam_offset_px) == (64, "window", None)


def test_slabs_make_no_difference(sound: Measurement, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = summarise(replace(sound, probe=None)).as_json()
    monkeypatch.setattr("ptymesh.io.source.SLAB_BYTES", 64 * 64 * 64 * 5)
    parts = summarise(replace(sound, probe=None)).as_json()
    assert whole.keys() == parts.keys()
    for key, value in whole.items():
        assert parts[key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value)


def test_json(sound: Measurement) -> None:
    s = summarise(sound)
    again = json.loads(json.dumps(s.as_json(), allow_nan=False))
    assert again["views"] == 144 and "totals" not in again and "mean_pattern" not in again


Change = Callable[[Measurement], Measurement]


def edited(change: Callable[[np.ndarray], Any]) -> Change:
    def apply(m: Measurement) -> Measurement:
        counts = counts_of(m)
        result = change(counts)
        return with_counts(m, counts if result is None else result)

    return apply


def moved(change: Callable[[np.ndarray], Any]) -> Change:
    def apply(m: Measurement) -> Measurement:
        positions = m.positions.copy()
        result = change(positions)
        return replace(m, positions=positions if result is None else result)

    return apply


def geometry(**changes: Any) -> Change:
    return lambda m: replace(m, geometry=replace(m.geometry, **changes))


def assign(index: Any, value: Any) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array[index] = value

    return change


def ramp(counts: np.ndarray) -> np.ndarray:
    return np.rint(counts * np.linspace(1.3, 0.7, len(counts))[:, None, None])


def half_a_frame_late(counts: np.ndarray) -> np.ndarray:
    """Return patterns of which each ends with the first half of the next one's rows."""
    upright = np.fft.fftshift(counts, axes=(1, 2))
    stream = np.roll(upright.reshape(-1), upright[0].size // 2)
    return np.fft.ifftshift(stream.reshape(counts.shape), axes=(1, 2))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (moved(assign(3, [500, 0])), r"1 view further from all others than the window is wide \(3\)"),
        (lambda m: replace(m, positions=np.repeat(m.positions[::2], 2, axis=0)), "72 of 144 positions repeat"),
        (moved(lambda p: p * 1e3), "check the unit"),
        (moved(lambda p: p * 1e-3), r"0\.0052 object pixels apart, which have 1e-08 m: check .*positions\.unit"),
        (moved(lambda p: p * 4), "overlap by only"),
        (
            edited(assign((slice(None), 30, 30), 900)),
            r"1 pixel with the same number in all views \(\[30, 30\]\) would be",
        ),
        (edited(assign((slice(None), 2, 3), 0)), r"1 pixel without counts between bright ones \(\[2, 3\]\) would be"),
        (edited(assign((slice(None), 20, 3), 7)), r"1 pixel with the same number in all views \(\[20, 3\]\) would be"),
        (edited(lambda c: np.minimum(c, 300)), "saturated; set data.saturation"),
        (edited(lambda c: c * 1e-3), "data.gain"),
        (edited(lambda c: c // 4000), "counts per view: expect"),
        (edited(lambda c: np.where(c > 20, -1, c.astype(int))), "hold no data"),
        (edited(assign(7, 0)), r"1 view without counts \(7\) of 144 would be left out"),
        (edited(lambda c: c * (1 + 4 * (np.arange(144) == 9))[:, None, None]), "over 3 times"),
        (edited(lambda c: c // (1 + 4 * (np.arange(144) == 9))[:, None, None]), "less than 30 %"),
        (edited(ramp), "drift by -60%"),
        (edited(lambda c: np.fft.fftshift(c, axes=(1, 2))), "set data.dc"),
        (edited(half_a_frame_late), r"beam is double, at the upper and at the lower border: .*data\.raw\.offset"),
        (edited(lambda c: np.roll(c, 8, axis=1)), r"\+\d+, [+-]\d+ pixels \(y, x\) off the centre"),
        (edited(lambda c: c + 3000), "bright up to the detector's border"),
        (lambda m: replace(m, probe=np.ones((1, WINDOW, WINDOW), complex)), "undersampled"),
        (geometry(radiation="electron"), "Electrons of .* eV are unusual"),
        (geometry(wavelength_m=1e-13), "Photons of .* eV are unusual"),
        (lambda m: replace(m, mask=np.arange(64 * 64).reshape(64, 64) % 3 == 0), "mask excludes 67%"),
    ],
)
def test_what_is_suspicious(sound: Measurement, change: Change, word: str) -> None:
    found = summarise(change(sound)).suspicious
    assert any(re.search(word, sentence) for sentence in found), found
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in found)


def test_positions_on_a_line_and_all_alike(sound: Measurement) -> None:
    line = np.stack([np.arange(144) * 3.0, np.arange(144) * 4.0], axis=1)
    s = summarise(replace(sound, positions=line))
    assert s.step_px == pytest.approx(5) and s.counts_per_m2 is not None
    assert survey.scan_statistics(line, 10).hull_length == pytest.approx(2 * 143 * 5)
    s = summarise(replace(sound, positions=np.zeros((144, 2))))
    assert s.step_px == 0 and s.duplicates == 143


def test_one_view(sound: Measurement) -> None:
    one = replace(sound, patterns=ArraySource(counts_of(sound)[:1]), positions=np.zeros((1, 2)))
    assert summarise(one).views == 1


def test_dark_scan(sound: Measurement) -> None:
    s = summarise(replace(with_counts(sound, counts_of(sound) * 0), probe=None))
    assert [sentence for sentence in s.suspicious if "counts" in sentence] == [
        "None of the 144 views has counts: check which dataset is read (data.keys.patterns), and the mask."
    ]
    json.dumps(s.as_json(), allow_nan=False)


def test_masked_pixels_are_not_complained_about(sound: Measurement) -> None:
    counts = counts_of(sound)
    counts[:, 30, 30] = 60000
    mask = np.ones((WINDOW, WINDOW), bool)
    mask[30, 30] = False
    s = summarise(replace(with_counts(sound, counts), mask=mask))
    assert s.suspicious == () and s.masked == 1


def real(data_dir: Path, name: str) -> InspectionReport:
    if name == "star":
        return summarise(load_measurement(DataOptions(path=data_dir / "siemens-star-small.npz.bz2")))
    data = {
        "path": data_dir / "cryo-4dstem-40x40.h5",
        "keys": {"patterns": "/data"},
        "transpose": True,
        "object_pixel_m": 4.65e-10,
        "radiation": "electron",
        "energy_eV": 300e3,
    }
    place = {"raster": {"shape": [40, 40], "step_m": 31.25e-10}, "rotation_deg": -126}
    return summarise(load_measurement(DataOptions.model_validate(data), PositionOptions.model_validate(place)))


def test_siemens_star(data_dir: Path) -> None:
    s = real(data_dir, "star")
    assert s.suspicious == () and s.object_pixel_m is None
    assert s.counts_per_view == pytest.approx(461213, rel=1e-5)
    assert s.probe_diameter_px == pytest.approx(57, rel=0.05) and s.overlap > 0.8


def test_cryo(data_dir: Path) -> None:
    """1.03 mrad and 13.5 um of defocus make a disc of 27.8 nm; 92,000 electrons a view; step 31.25 Angstrom."""
    s = real(data_dir, "cryo")
    assert s.suspicious == ()
    assert s.probe_diameter_px * 4.65e-10 == pytest.approx(27.8e-9, rel=0.15)
    assert s.counts_per_view == pytest.approx(92066, rel=1e-4)
    assert s.step_px * 4.65e-10 == pytest.approx(31.25e-10, rel=1e-6)
    assert s.e_per_A2 == pytest.approx(92066 / 31.25**2, rel=0.01)


@pytest.mark.parametrize("turn_deg", [0.0, 17.0])
def test_area_for_each_view_of_a_raster_is_its_cell(turn_deg: float) -> None:
    """Step times step, as papers have it, whichever way the axes lie and with motor errors; not the hull over N."""
    turn = np.deg2rad(turn_deg)
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    grid = np.stack(np.meshgrid(np.arange(8) * 5.0, np.arange(12) * 3.0, indexing="ij"), -1).reshape(-1, 2)
    shaken = grid + np.random.default_rng(0).normal(size=grid.shape) * 0.05
    for positions in (grid @ matrix.T, shaken @ matrix.T):
        assert survey.scan_statistics(positions, 20.0).area_per_view == pytest.approx(15.0, rel=0.01)
    twice = survey.scan_statistics(np.concatenate((grid, grid)), 20.0)
    assert twice.area_per_view == pytest.approx(7.5, rel=0.01)


def test_area_for_each_view_of_other_scans_is_the_hull_over_their_number() -> None:
    """Random positions; an even spiral is a lattice, whose hull is smaller; a line has none."""
    n = np.arange(300)
    scan = survey.scan_statistics(np.random.default_rng(1).uniform(0, 100, (300, 2)), 20.0)
    assert scan.area_per_view == pytest.approx(scan.hull_area / 300)
    turn = np.pi * (3 - np.sqrt(5))
    spiral = 3 * np.sqrt(n)[:, None] * np.stack((np.cos(turn * n), np.sin(turn * n)), axis=1)
    assert survey.scan_statistics(spiral, 20.0).area_per_view == pytest.approx(9 * np.pi, rel=0.01)
    assert survey.scan_statistics(np.stack((n, 2 * n), axis=1).astype(float), 20.0).area_per_view == 0
