"""What is left out, masked or refused before a reconstruction, and what healthy scans must keep."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy import ndimage

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.io.prepare.checks import check_marks, check_patterns, check_scan
from ptymesh.io.prepare.findings import apply_findings, checked_options, stored_regions
from ptymesh.io.prepare.outliers import dark_regions, odd_views, regions_of
from ptymesh.io.prepare.survey import survey
from ptymesh.measurement import ArraySource, Checks, Measurement

SIDE, STEP, WINDOW = 12, 5.0, 32
VIEWS = SIDE**2


def raster(side: int = SIDE, step: float = STEP) -> np.ndarray:
    grid = np.arange(side) * step
    return np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)


def patterns_of(transmission: np.ndarray, positions: np.ndarray, counts: float, seed: int = 0) -> np.ndarray:
    """(N, w, w) Poisson counts with DC in the middle, of a disc of 12 pixels with defocus on (H, W), numpy alone."""
    r = np.arange(WINDOW) - WINDOW // 2
    square = r[:, None] ** 2 + r**2
    probe = (square <= 36) * np.exp(0.05j * square)
    probe *= np.sqrt(counts / (np.abs(probe) ** 2).sum())
    waves = np.stack([probe * transmission[y : y + WINDOW, x : x + WINDOW] for y, x in positions.astype(int)])
    intensity = np.abs(np.fft.fftshift(np.fft.fft2(waves, norm="ortho"), axes=(1, 2))) ** 2
    return np.random.default_rng(seed).poisson(intensity).astype(np.uint16)


@pytest.fixture(scope="module")
def phase_object() -> np.ndarray:
    rough = ndimage.gaussian_filter(np.random.default_rng(1).normal(size=(96, 96)), 1.5)
    return np.exp(1j * rough / np.abs(rough).max())


@pytest.fixture(scope="module")
def counts(phase_object: np.ndarray) -> np.ndarray:
    return patterns_of(phase_object, raster(), 2e4)


def measured(patterns: np.ndarray, positions: np.ndarray | None = None, **changes: object) -> Measurement:
    made = Measurement(
        patterns=ArraySource(np.fft.ifftshift(patterns, axes=(1, 2))),
        positions=raster() if positions is None else positions,
        geometry=Geometry((WINDOW, WINDOW), "far_field", "photon", 2e-10, object_pixel_m=(1e-8, 1e-8)),
        mask=np.ones((WINDOW, WINDOW), bool),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def left_out(m: Measurement) -> list[int]:
    return check_patterns(m, survey(m)).left_out.tolist()


# --- views ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [[0], [5, 17, 18, 19, 100, 143], [24, 25, 26, 27, 28, 29, 30], [*range(36, 84)]])
@pytest.mark.parametrize("share", [0.0, 0.02])
def test_views_without_the_beam_are_left_out(counts: np.ndarray, views: list[int], share: float) -> None:
    wrong = counts.copy()
    wrong[views] = np.random.default_rng(2).binomial(wrong[views], share)
    found = check_patterns(measured(wrong), survey(measured(wrong)))
    assert found.left_out.tolist() == views
    what = "without counts" if share == 0 else "with less than 3 %"
    assert what in found.done[0] and f"of {VIEWS}" in found.done[0] and "data.checks.views=warn" in found.done[0]


def test_views_far_too_bright_are_left_out(counts: np.ndarray) -> None:
    wrong = counts.astype(np.uint32)
    wrong[[3, 77]] *= 100
    assert left_out(measured(wrong)) == [3, 77]


def test_empty_and_mad_views_together(counts: np.ndarray) -> None:
    wrong = counts.astype(np.uint32)
    wrong[[10, 40, 41, 42, 130]] = 0
    wrong[[11, 60, 99]] *= 100
    assert left_out(measured(wrong)) == [10, 11, 40, 41, 42, 60, 99, 130]


def scaled(counts: np.ndarray, factors: np.ndarray) -> np.ndarray:
    return np.random.default_rng(3).poisson(counts * factors[:, None, None]).astype(np.uint32)


@pytest.mark.parametrize(
    "factors",
    [
        lambda rng: rng.normal(1, 0.2, VIEWS).clip(0.2),
        lambda rng: np.linspace(2, 0.2, VIEWS),
        lambda rng: np.where(np.arange(VIEWS) % 20 == 0, 2.5, 1.0),
        lambda rng: np.where(np.arange(VIEWS) == 70, 0.1, 1.0),
    ],
    ids=["flicker", "decay", "top-up", "one weak"],
)
def test_light_that_varies_keeps_all_views(counts: np.ndarray, factors: Callable) -> None:
    assert left_out(measured(scaled(counts, factors(np.random.default_rng(4))))) == []


@pytest.mark.parametrize("behind", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_opaque_parts_and_vacuum_keep_all_views(phase_object: np.ndarray, behind: float, share: float) -> None:
    """A sample that lets nothing through, over a part of the scan or most of it: the edge is as wide as the probe."""
    sample = phase_object.copy()
    sample[:, : int(16 + share * 60)] *= np.sqrt(behind)
    assert left_out(measured(patterns_of(sample, raster(), 2e4))) == []


def test_grid_bars_keep_all_views(phase_object: np.ndarray) -> None:
    sample = phase_object.copy()
    sample[30:55] = 0
    assert left_out(measured(patterns_of(sample, raster(), 2e4))) == []


def test_few_counts_tell_nothing(phase_object: np.ndarray) -> None:
    assert left_out(measured(patterns_of(phase_object, raster(), 6))) == []


def test_known_intensity_is_no_fault(counts: np.ndarray) -> None:
    factors = np.where(np.arange(VIEWS) == 70, 0.01, 1.0)
    weak = measured(scaled(counts, factors), intensity=factors / factors.mean())
    assert left_out(weak) == [] and left_out(replace(weak, intensity=None)) == [70]


def test_single_exposures_are_odd_without_counts_alone(counts: np.ndarray) -> None:
    totals = counts.sum((1, 2)).astype(float)
    totals[3], totals[5] = 0, totals[5] / 100
    assert odd_views(totals, np.zeros((VIEWS, 2)), related=False).all.tolist() == [3]


# --- pixels ---------------------------------------------------------------------------------------------------------


def masked(patterns: np.ndarray, **changes: object) -> np.ndarray:
    """(w, w) bool with DC in the middle, of all looks."""
    m = measured(patterns, **changes)
    first = check_marks(m)
    m = apply_findings(m, first)
    found = check_patterns(m, survey(m)).masked | (first.masked if first.masked.size else False)
    return np.fft.fftshift(found)


def test_module_gaps_are_masked(counts: np.ndarray) -> None:
    gap = np.zeros((WINDOW, WINDOW), bool)
    gap[20:23] = gap[:, 12:14] = True
    np.testing.assert_array_equal(masked(np.where(gap, 0, counts)), gap)


def test_beam_stop_is_masked(counts: np.ndarray) -> None:
    r = np.arange(WINDOW) - 16
    stop = r[:, None] ** 2 + r**2 <= 9
    stop[16:19, 16:] = True  # its holder
    found = masked(np.where(stop, 0, counts))
    assert found[:, :28][stop[:, :28]].all() and not found[~stop].any()


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_semi_transparent_stop_is_asked_about(share: float) -> None:
    """Behind it are the bright disc of a beam and its surroundings, with speckles that differ from view to view."""
    rng = np.random.default_rng(3)
    r = np.arange(WINDOW) - 16
    light = 200 * np.exp(-(r[:, None] ** 2 + r**2) / 100) * rng.exponential(1.0, (VIEWS, WINDOW, WINDOW))
    light[:, 15:20, 12:17] *= share
    m = measured(rng.poisson(light).astype(np.uint16))
    found = check_patterns(m, survey(m))
    (doubt,) = found.doubts
    assert not found.masked.any() and "semi-transparent" in doubt and "25 pixels" in doubt
    assert float(re.search(r"count ([0-9.]+) times", doubt)[1]) == pytest.approx(share, rel=0.1)  # type: ignore[index]
    quiet = replace(m, checks=Checks(pixels="off"))
    assert not check_patterns(quiet, survey(quiet)).doubts


@pytest.mark.parametrize("counts, views", [(200, VIEWS), (200, 24), (15, VIEWS)])
def test_the_hole_of_a_zone_plate_is_not_asked_about(counts: float, views: int) -> None:
    """Its light is what the sample scatters, with edges as sharp, and as dark as behind a stop of 0.14."""
    rng = np.random.default_rng(4)
    r = np.arange(WINDOW) - 16
    light = counts * np.exp(-(r[:, None] ** 2 + r**2) / 100) * np.ones((views, 1, 1))
    light[:, 14:19, 14:19] *= 0.14 * rng.exponential(1.0, (views, 5, 5))
    m = measured(rng.poisson(light).astype(np.uint16), raster()[:views])
    assert not check_patterns(m, survey(m)).doubts


@pytest.mark.parametrize("total", [3, 100, 2e4])
def test_healthy_patterns_are_not_asked_about(phase_object: np.ndarray, total: float) -> None:
    m = measured(patterns_of(phase_object, raster(), total))
    assert not check_patterns(m, survey(m)).doubts


def test_dead_quadrant_is_masked_where_others_are_bright(counts: np.ndarray) -> None:
    quadrant = np.zeros((WINDOW, WINDOW), bool)
    quadrant[:14, 18:] = True
    found = masked(np.where(quadrant, 0, counts))
    sums = counts.sum(0)
    mirrored = np.roll(sums[::-1, ::-1], (1, 1), axis=(0, 1))
    bright = np.minimum(np.minimum(sums, mirrored), np.minimum(np.roll(sums[::-1], 1, 0), np.roll(sums[:, ::-1], 1, 1)))
    assert found[quadrant & (bright >= 1000)].sum() > 20 and found[quadrant & (bright >= 1000)].all()
    assert not found[~quadrant].any()


def test_what_lies_outside_all_light_is_not_masked() -> None:
    """Electrons in a sharp disc, behind a weak object: nothing falls beside it."""
    rng = np.random.default_rng(5)
    r = np.arange(WINDOW) - 16
    disc = r[:, None] ** 2 + (r - 1.5) ** 2 <= 64
    square = (np.abs(r)[:, None] <= 7) & (np.abs(r - 2) <= 7)
    for shape in (disc, square):
        assert not masked(rng.poisson(100.0, (VIEWS, WINDOW, WINDOW)) * shape).any()


@pytest.mark.parametrize("total", [3, 100, 2e4])
def test_healthy_patterns_keep_all_pixels(phase_object: np.ndarray, total: float) -> None:
    assert not masked(patterns_of(phase_object, raster(), total)).any()


@pytest.mark.parametrize(
    "mark, dtype", [(65535, np.uint16), (2**32 - 1, np.uint32), (65535, np.uint32), (2**31 - 1, np.int32)]
)
def test_markers_are_masked_beside_a_hot_pixel(counts: np.ndarray, mark: int, dtype: type) -> None:
    """Gaps of a third of the detector, and the hot pixel is no saturation; blank views are seen in spite of them."""
    gap = np.zeros((WINDOW, WINDOW), bool)
    gap[5:12] = gap[:, 26:] = True
    wrong = np.where(gap, mark, counts.astype(np.int64)).astype(dtype)
    wrong[[7, 8]] = np.where(gap, mark, 0)
    wrong[:, 20, 20] = 60000
    gap[20, 20] = True
    np.testing.assert_array_equal(masked(wrong), gap)
    m = measured(wrong)
    assert left_out(apply_findings(m, check_marks(m))) == [7, 8]


def test_identical_patterns_are_not_all_stuck(counts: np.ndarray) -> None:
    assert not masked(np.repeat(counts[:1], VIEWS, axis=0)).any()


def file_of(path: Path, patterns: np.ndarray, positions: np.ndarray | None = None) -> Path:
    with h5py.File(path, "w") as file:
        file["patterns"], file["positions"] = patterns, raster() if positions is None else positions
    return path


def load(path: Path, **options: object) -> Measurement:
    keys = {"patterns": "patterns", "positions": "positions"}
    data = DataOptions.parse({"path": path, "keys": keys, "object_pixel_m": 1e-8, **options}, "data")
    return load_measurement(data, PositionOptions(unit="px"))


def test_negative_gaps_are_masked_and_single_ones_refused(counts: np.ndarray, tmp_path: Path) -> None:
    wrong = counts.astype(np.int32)
    wrong[:, :, 8:10] = -1
    m = load(file_of(tmp_path / "gap.h5", wrong))
    found = check_marks(m)
    assert stored_regions(m, found.masked) == [(0, 32, 8, 10)]
    assert left_out(apply_findings(m, found)) == []
    wrong[31, 4, 5] = -3
    m = load(file_of(tmp_path / "single.h5", wrong))
    with pytest.raises(BadInput, match=r"View 31 of .* holds -3 counts at pixel \[4, 5\]; mask such"):
        survey(apply_findings(m, check_marks(m)))


def test_nan_is_refused_with_view_and_pixel(counts: np.ndarray, tmp_path: Path) -> None:
    wrong = counts.astype(np.float32)
    wrong[50, 3, 9] = np.nan
    m = load(file_of(tmp_path / "nan.h5", wrong), flip_y=True, transpose=True, crop=30)
    with pytest.raises(BadInput, match=r"View 50 of .* holds nan counts at pixel \[3, 9\]"):
        survey(apply_findings(m, check_marks(m)))


def test_regions_cover_exactly_what_is_bad() -> None:
    bad = np.random.default_rng(6).uniform(size=(20, 30)) < 0.3
    again = np.zeros_like(bad)
    for top, bottom, left, right in regions_of(bad):
        assert not again[top:bottom, left:right].any()
        again[top:bottom, left:right] = True
    np.testing.assert_array_equal(again, bad)


def test_dark_corners_between_streaks_are_healthy() -> None:
    """A square aperture: bright streaks along the axes, nothing between them."""
    sums = np.zeros((WINDOW, WINDOW))
    sums[14:19], sums[:, 14:19] = 900, 900
    assert not dark_regions(sums, sums, np.ones_like(sums, bool), far=True).any()


# --- positions and units ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda p: p * 0, f"All {VIEWS} positions of scan are the same"),
        (lambda p: p * 1e-3, r"are 0\.005 object pixels apart, which have 1e-08 m: check .*positions\.unit"),
        (lambda p: p * 1e3, r"5e\+03 object pixels apart, more than the window"),
    ],
)
def test_scans_that_cannot_be_are_refused(counts: np.ndarray, change: Callable, said: str) -> None:
    m = measured(counts, change(raster()))
    with pytest.raises(BadInput, match=said):
        check_scan(m)
    assert re.search(said, check_scan(replace(m, checks=Checks(scan="warn"))).doubts[0])
    assert not check_scan(replace(m, checks=Checks(scan="off"))).sentences


def test_unusual_energy_is_named_first(counts: np.ndarray) -> None:
    """6.2 keV taken for 6.2 eV."""
    geometry = Geometry(
        (WINDOW, WINDOW), "far_field", "photon", 2e-7, 2.0, detector_pixel_m=(5e-5, 5e-5), object_pixel_m=(2.5e-4,) * 2
    )
    with pytest.raises(BadInput, match=r"check data\.energy_eV \(6\.199\) first, then data\.detector_pixel_m"):
        check_scan(measured(counts, raster() * 0.0012, geometry=geometry))


def test_dense_and_repeated_scans_are_healthy(counts: np.ndarray) -> None:
    """Ten frames at each of a few points, read twice with an encoder's noise; and steps of half a pixel."""
    rng = np.random.default_rng(7)
    bursts = np.repeat(raster(4, 10.0), 9, axis=0) + rng.normal(0, 0.003, (VIEWS, 2))
    assert not check_scan(measured(counts, bursts)).sentences
    assert not check_scan(measured(counts, raster(12, 0.5))).sentences


def test_one_wrong_reading_is_left_out(counts: np.ndarray) -> None:
    positions = raster()
    positions[17] += [1e5, 0]  # 1 mm
    found = check_scan(measured(counts, positions))
    assert found.left_out.tolist() == [17] and "1 view further from all others" in found.done[0]


def test_two_areas_are_kept(counts: np.ndarray) -> None:
    positions = raster()
    positions[VIEWS // 2 :] += [500, 0]
    assert not check_scan(measured(counts, positions)).changes


def test_one_row_is_said(counts: np.ndarray) -> None:
    row = np.stack([np.zeros(VIEWS), np.arange(VIEWS) * 3.0], axis=1)
    assert "lie on a line" in check_scan(measured(counts, row)).doubts[0]


# --- what becomes of it -----------------------------------------------------------------------------------------------


def test_findings_are_read_back_from_the_recipe(counts: np.ndarray, tmp_path: Path) -> None:
    wrong = counts.copy()
    wrong[[4, 90]] = 0
    wrong[:, 20:23] = 0
    path = file_of(tmp_path / "scan.h5", wrong)
    turned = {"flip_x": True, "transpose": True, "bin": 2, "views": {"start": 2}}
    before = load(path, **turned)
    after = apply_findings(before, check_patterns(before, survey(before)))
    assert after.left_out == (4, 90) and after.views == VIEWS - 4
    data = DataOptions.parse({"path": path, "keys": {"patterns": "patterns", "positions": "positions"}, **turned})
    data = checked_options(data.model_copy(update={"object_pixel_m": (1e-8, 1e-8)}), after, before)
    assert data.checked is not None and data.checked.without == (4, 90)
    again = load_measurement(data, PositionOptions(unit="px"))
    assert again.checks == Checks("off", "off", "off")
    np.testing.assert_array_equal(again.mask, after.mask)
    np.testing.assert_array_equal(again.positions, after.positions)
    every = np.arange(after.views)
    np.testing.assert_array_equal(again.patterns.read(every), after.patterns.read(every))
    other = file_of(tmp_path / "other.h5", counts)
    assert load_measurement(data.model_copy(update={"path": other}), PositionOptions(unit="px")).views == VIEWS - 2


def test_views_are_left_out_by_hand(counts: np.ndarray, tmp_path: Path) -> None:
    path = file_of(tmp_path / "scan.h5", counts)
    m = load(path, views={"without": [0, 3, 143], "step": 3})
    np.testing.assert_array_equal(m.patterns.selected, np.setdiff1d(np.arange(0, VIEWS, 3), [0, 3]))  # type: ignore[attr-defined]
    with pytest.raises(BadInput, match=r"without names view 144, and .* has 144"):
        load(path, views={"without": [144]})


def test_views_are_left_out_by_mask_row_and_column(counts: np.ndarray, tmp_path: Path) -> None:
    path = file_of(tmp_path / "scan.h5", counts)
    raster = {"shape": [12, 12], "step_px": 2}
    keep = np.random.default_rng(0).random(VIEWS) > 0.2
    np.save(tmp_path / "keep.npy", keep)
    mask = str(tmp_path / "keep.npy")

    def selected(**views: object) -> list[int]:
        data = {"path": path, "keys": {"patterns": "patterns"}, "object_pixel_m": 1e-8, "views": views}
        m = load_measurement(DataOptions.parse(data), PositionOptions.parse({"raster": raster}))
        assert m.views == len(m.positions)
        found: list[int] = m.patterns.selected.tolist()  # type: ignore[attr-defined]
        return found

    every = np.arange(VIEWS)
    assert selected(mask=mask) == every[keep].tolist()
    assert selected(without_columns=[11], without_rows=[0, 5]) == [
        k for k in range(VIEWS) if k % 12 != 11 and k // 12 not in (0, 5)
    ]
    both = selected(mask=mask, without_columns=[0], start=2, without=[7])
    assert both == [k for k in range(2, VIEWS) if keep[k] and k % 12 and k != 7]
    for views, said in (
        ({"without_columns": [12]}, "names column 12, and there are 12"),
        ({"without_rows": list(range(12))}, "leaves none of the 144 views"),
    ):
        with pytest.raises(BadInput, match=said):
            selected(**views)
    np.save(tmp_path / "keep.npy", keep[1:])
    with pytest.raises(BadInput, match=r"has 143 values, and .* has 144 views"):
        selected(mask=mask)
    with pytest.raises(BadInput, match=r"counts rows of a raster, .* lie in none; set data\.frames\.shape"):
        load(path, views={"without_rows": [1]})


def test_each_check_can_be_turned_off(counts: np.ndarray) -> None:
    wrong = counts.copy()
    wrong[4], wrong[:, 20:23] = 0, 0
    for checks, views, pixels in (
        (Checks(), [4], 96),
        (Checks(views="warn"), [], 96),
        (Checks(pixels="off"), [4], 0),
        (Checks("off", "warn", "off"), [], 0),
    ):
        m = measured(wrong, checks=checks)
        found = check_patterns(m, survey(m))
        assert (found.left_out.tolist(), int(found.masked.sum())) == (views, pixels)
        assert any("There is" in one or "There are" in one for one in found.doubts) == ("warn" in vars(checks).values())


# --- what is stored, and how many ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "unit, remedy", [(1.0, r"amplitudes=true\."), (0.04, r"amplitudes=true and data\.gain=0\.04\.")]
)
def test_roots_of_counts_are_named_and_squared(counts: np.ndarray, tmp_path: Path, unit: float, remedy: str) -> None:
    path = file_of(tmp_path / "roots.h5", np.sqrt(counts * unit).astype(np.float32))
    assert any(
        re.search(f"square roots of counts .*set data\\.{remedy}", one) for one in check_marks(load(path)).doubts
    )
    squared = load(path, amplitudes=True, **({} if unit == 1 else {"gain": unit}))
    expected = load(file_of(tmp_path / "counts.h5", counts))
    every = np.arange(VIEWS)
    np.testing.assert_allclose(squared.patterns.read(every), expected.patterns.read(every), rtol=1e-6, atol=1e-5)
    assert not check_marks(squared).doubts and (unit != 1 or survey(squared).whole)


@pytest.mark.parametrize("gain, number", [(0.01, "100"), (0.3, "3.33333"), (8.0, "0.125"), (0.5, "2")])
def test_a_gain_that_makes_multiples_of_counts_is_asked_about(
    counts: np.ndarray, tmp_path: Path, gain: float, number: str
) -> None:
    path = file_of(tmp_path / "a.h5", counts)
    (doubt,) = check_marks(load(path, gain=gain)).doubts  # which is in the log, before the verdict is unknown
    assert f"multiples of {number}," in doubt and "data.gain should be" in doubt
    assert not check_marks(load(path)).doubts and not check_marks(load(path, gain=gain, checks="off")).doubts


def test_a_dark_that_was_made_of_the_patterns_is_refused(counts: np.ndarray, tmp_path: Path) -> None:
    """The detector's own may be far larger than the light, as that of a CCD is."""
    path = file_of(tmp_path / "a.h5", counts)
    np.save(tmp_path / "mean.npy", counts.mean(axis=0))
    np.save(tmp_path / "half.npy", counts[: VIEWS // 2].mean(axis=0))
    np.save(tmp_path / "median.npy", np.median(counts, axis=0))
    np.save(tmp_path / "faint.npy", 0.2 * counts.mean(axis=0))
    for name in ("mean", "half", "median", "faint"):
        with pytest.raises(BadInput, match="has been made of the patterns"):
            check_marks(load(path, dark=str(tmp_path / f"{name}.npy")))
    warned = check_marks(load(path, dark=str(tmp_path / "mean.npy"), checks={"scan": "warn"}))
    assert any("has been made of the patterns" in doubt for doubt in warned.doubts)
    rng = np.random.default_rng(3)
    offset = rng.normal(500, 20, (WINDOW, WINDOW))
    read_out = np.rint(rng.binomial(counts, 0.01) + offset + rng.normal(0, 3, counts.shape)).astype(np.uint16)
    np.save(tmp_path / "dark.npy", offset)
    assert not check_marks(load(file_of(tmp_path / "b.h5", read_out), dark=str(tmp_path / "dark.npy"))).doubts


def test_other_fractions_are_no_roots(counts: np.ndarray) -> None:
    rng = np.random.default_rng(8)
    for values in (counts + rng.normal(0, 0.1, counts.shape), counts / rng.uniform(1, 2, (1, 32, 32))):
        assert not check_marks(measured(np.abs(values))).doubts


@pytest.mark.parametrize("patterns, positions", [(144, 140), (140, 144)])
def test_different_numbers_are_refused_with_the_remedy(
    counts: np.ndarray, tmp_path: Path, patterns: int, positions: int
) -> None:
    path = file_of(tmp_path / "scan.h5", counts[:patterns], raster()[:positions])
    with pytest.raises(
        BadInput, match=rf"{patterns} patterns, but .* {positions} positions: .*set data\.views\.stop=140\."
    ):
        load(path)
    m = load(path, views={"stop": 140})
    np.testing.assert_array_equal(m.positions, raster()[:140])


@pytest.mark.parametrize("axis, axes", [(1, "ynx"), (2, "yxn")])
def test_views_along_another_axis_lead_to_the_order_of_axes(
    counts: np.ndarray, tmp_path: Path, axis: int, axes: str
) -> None:
    path = file_of(tmp_path / "scan.h5", np.moveaxis(counts, 0, axis))
    with pytest.raises(BadInput, match=rf"32 patterns, but .* 144 positions, .*set data\.keys\.pattern_axes={axes}; "):
        load(path)
    keys = {"patterns": "patterns", "positions": "positions", "pattern_axes": axes}
    np.testing.assert_array_equal(load(path, keys=keys).patterns.read(np.arange(3)), load_plain(tmp_path, counts))


def load_plain(folder: Path, counts: np.ndarray) -> np.ndarray:
    """Return the first three patterns of a file with the views along its first axis."""
    return load(file_of(folder / "plain.h5", counts)).patterns.read(np.arange(3))


def test_a_mask_the_wrong_way_round_is_asked_about(counts: np.ndarray, tmp_path: Path) -> None:
    """Also beside markers and hot pixels; a mask of half the detector and none of its light is healthy."""
    bad = np.zeros((WINDOW, WINDOW), bool)
    bad[[0, -1]] = bad[:, [0, -1]] = True
    bad[10:22, 15:17] = True
    np.save(tmp_path / "bad.npy", bad)
    marked = counts.astype(np.uint32)
    marked[:, 3, 3], marked[:, 4, 4] = 2**32 - 1, marked[:, 4, 4] + 10**6
    for patterns in (counts, marked):
        path = file_of(tmp_path / "scan.h5", patterns)
        (asked,) = check_marks(load(path, mask=str(tmp_path / "bad.npy"))).doubts
        assert re.fullmatch(
            r"The mask excludes 86% of the window and \d\d% of the counts: check whether it is inverted "
            r"\(data\.mask_true\)\.",
            asked,
        )
        assert not check_marks(load(path, mask=str(tmp_path / "bad.npy"), mask_true="bad")).doubts
    mostly = np.hypot(*(np.mgrid[:WINDOW, :WINDOW] - WINDOW // 2)) < 12
    np.save(tmp_path / "good.npy", mostly)
    path = file_of(tmp_path / "scan.h5", marked)
    assert mostly.mean() < 0.5 and not check_marks(load(path, mask=str(tmp_path / "good.npy"))).doubts


def test_saturated_patterns_are_asked_about(counts: np.ndarray) -> None:
    """A run says what `inspect` says; at the largest count of healthy patterns are a few values."""
    m = measured(np.minimum(counts, 80))
    m = apply_findings(m, check_marks(m))
    (said,) = (text for text in check_patterns(m, survey(m)).doubts if "saturat" in text)
    assert re.fullmatch(r"\d+ pixel values equal the largest count, 80: .* set data\.saturation to it\.", said)
    healthy = measured(counts)
    assert not check_patterns(healthy, survey(healthy)).doubts


def test_several_positions_for_each_pattern(counts: np.ndarray, tmp_path: Path) -> None:
    path = file_of(tmp_path / "fly.h5", counts, np.repeat(raster(), 10, axis=0))
    with pytest.raises(
        BadInput, match=r"1440 positions, 10 for each: set positions\.per_view=10, which takes their means"
    ):
        load(path)


def test_a_window_of_one_pixel_is_refused(counts: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"A window of 1 x 1 pixels holds no diffraction pattern; choose a larger data\.crop"
    ):
        load(file_of(tmp_path / "scan.h5", counts), crop=1)


def test_data_without_marks_are_read_alike_at_any_place(counts: np.ndarray, tmp_path: Path) -> None:
    """Views, mask and intensities follow what is left out; binned counts do not wrap."""
    factors = np.linspace(0.5, 2.0, VIEWS)
    np.save(tmp_path / "intensity.npy", factors)
    path = file_of(tmp_path / "scan.h5", np.full_like(counts, 60000))
    m = load(path, views={"step": 3, "without": [3]}, intensity=str(tmp_path / "intensity.npy"), bin=2)
    kept = np.setdiff1d(np.arange(0, VIEWS, 3), [3])
    np.testing.assert_array_equal(m.positions, raster()[kept])
    np.testing.assert_allclose(m.intensity, factors[kept] / factors[kept].mean())  # type: ignore[arg-type]
    assert (m.patterns.read(np.arange(m.views)) == 240000).all()
