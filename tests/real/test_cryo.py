"""The cryo-electron example: four gold beads and a ring-shaped particle in the phase.

Everything is looked for blindly; where it was found is written down here, in object pixels (0.465 nm) from the middle
of the scan, y x:

    beads   (-100, -104)  (17, -61)  (-80, 90)  (-38, 13)
    ring    centre (-94, -20), radius 57 px: a particle of about 53 nm

The twin of this object (turned by 180 degrees and conjugated) would fit the data as well: that the beads are *bright*
says that the recipe's signs of rotation and defocus are right.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage, signal

from ptymesh.recipe.schema import load_recipe
from ptymesh.run.session import run_recipe

EXAMPLE = Path(__file__).parents[2] / "examples" / "cryo-4dstem.yaml"
BEADS = [(-100, -104), (17, -61), (-80, 90), (-38, 13)]
RING, RING_RADIUS = (-94, -20), 57
#: How far (px) a second reconstruction may find them from there.
NEAR = 5


@dataclass
class Picture:
    """phase (H, W) rad, mean 0 where lit; amplitude; lit (H, W) bool; y, x: pixels from the middle of the scan."""

    phase: np.ndarray
    amplitude: np.ndarray
    lit: np.ndarray
    y: np.ndarray
    x: np.ndarray

    def distance(self, point: tuple[float, float]) -> np.ndarray:
        return np.hypot(self.y - point[0], self.x - point[1])


@pytest.fixture(scope="module")
def picture(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Picture:
    """Object of the example, without its mean phase and linear ramp (taken from neighbouring pixels)."""
    settings = [f"data.path={data_dir / 'cryo-4dstem-40x40.h5'}", "output.figures=false"]
    result = run_recipe(load_recipe(EXAMPLE, settings, tmp_path_factory.mktemp("cryo")), device="cpu").result
    obj, probe, (h, w) = result.object[0].astype(np.complex128), result.probe, result.probe.shape[1:]
    light = np.zeros(obj.shape)
    for top, left in np.floor(result.positions_px + 0.5).astype(int):
        light[top : top + h, left : left + w] += (np.abs(probe) ** 2).sum(0)
    lit = light > 0.2 * np.median(light[light > 0.1 * light.max()])
    middle = result.positions_px.mean(0) + np.array([h // 2, w // 2])
    y, x = (np.arange(n) - c for n, c in zip(obj.shape, middle, strict=True))
    y, x = np.meshgrid(y, x, indexing="ij")
    for axis, r in enumerate((y, x)):
        following = np.roll(obj, -1, axis) * obj.conj()
        obj = obj * np.exp(-1j * np.angle(following[lit & np.roll(lit, -1, axis)].sum()) * r)
    obj = obj * np.exp(-1j * np.angle(obj[lit].sum()))
    return Picture(np.where(lit, np.angle(obj), 0), np.abs(obj), lit, y, x)


def smooth(values: np.ndarray, where: np.ndarray, sigma_px: float) -> np.ndarray:
    """Gaussian mean of the values that count."""
    weight = ndimage.gaussian_filter(where.astype(float), sigma_px)
    return ndimage.gaussian_filter(np.where(where, values, 0), sigma_px) / np.maximum(weight, 1e-3)


def maxima(picture: Picture) -> list[tuple[float, tuple[float, float]]]:
    """Height in standard deviations of the surroundings (14 to 30 px away), and place, of the strongest maxima."""
    phase = smooth(picture.phase, picture.lit, 1.5)
    inside = ndimage.binary_erosion(picture.lit, iterations=3)
    peaks = np.argwhere(inside & (phase == ndimage.maximum_filter(phase, 25)))
    found = []
    for row, column in sorted(peaks, key=lambda p: -phase[tuple(p)])[:5]:
        place = (float(picture.y[row, column]), float(picture.x[row, column]))
        distance = picture.distance(place)
        around = phase[(distance >= 14) & (distance < 30) & picture.lit]
        found.append(((phase[row, column] - around.mean()) / around.std(), place))
    return found


@pytest.mark.long
def test_a_defocus_that_was_told_wrong(data_dir: Path, tmp_path: Path) -> None:
    """From C10 = -10 um to -13.5 um."""
    settings = [f"data.path={data_dir / 'cryo-4dstem-40x40.h5'}", "output.figures=false"]
    recipe = load_recipe(EXAMPLE.with_name("cryo-4dstem-aberrations.yaml"), settings, tmp_path)
    numbers = run_recipe(recipe, device="cpu").result.parameters["aberrations"]
    assert abs(numbers["C10"] / -13.5e-6 - 1) < 0.05, "measured: 0.004"


@pytest.mark.long
def test_four_gold_beads(picture: Picture) -> None:
    """Measured: 14.4, 8.3, 10.3 and 7.7 standard deviations; the next maximum, at the film's edge, 3.5."""
    *beads, (next_height, _) = maxima(picture)
    assert len(beads) == 4 and next_height < 5
    for height, place in beads:
        assert height >= 5, (height, place)
        assert min(np.hypot(place[0] - y, place[1] - x) for y, x in BEADS) < NEAR, place
    for place in BEADS:  # gold also scatters electrons out of the aperture
        distance = picture.distance(place)
        around = picture.amplitude[(distance >= 14) & (distance < 30) & picture.lit]
        assert picture.amplitude[distance < 4].mean() < around.mean() - around.std(), place


@pytest.mark.long
def test_the_ring_shaped_particle(picture: Picture) -> None:
    """Of all circles in the hole (off beads and film edge, both stronger), the brightest against its two flanks."""
    where = picture.lit & (picture.y + 0.654 * picture.x < -36)  # the film's edge, with its fringes, and what follows
    for bead in BEADS:
        where &= picture.distance(bead) > 12
    phase = smooth(picture.phase, where, 2).clip(-0.1, 0.1)
    score, radius, place = max(brightest_circle(phase, where, radius) for radius in range(28, 71, 6))
    row, column = place
    found = (float(picture.y[row, column]), float(picture.x[row, column]))
    assert np.hypot(found[0] - RING[0], found[1] - RING[1]) < 2 * NEAR and abs(radius - RING_RADIUS) <= 6
    assert score / np.sqrt(radius) > 0.015, "measured: 0.023 rad"

    # All around, not by one bright blob: by chance, a sector would be above both flanks in one case of three.
    distance = picture.distance(RING) - RING_RADIUS
    angle = np.arctan2(picture.y - RING[0], picture.x - RING[1])
    above = 0
    for sector in range(12):
        here = where & (np.floor((angle / (2 * np.pi) + 0.5) * 12) == sector)
        flanks = [here & (np.abs(distance - side * 17.5) <= 7.5) for side in (-1, 1)]
        on = picture.phase[here & (np.abs(distance) < 7)].mean()
        above += all(on > picture.phase[flank].mean() for flank in flanks if flank.sum() > 30)
    assert above >= 9, "measured: 10 of 12"


def brightest_circle(phase: np.ndarray, where: np.ndarray, radius: int) -> tuple[float, int, tuple[int, int]]:
    """(contrast times sqrt(radius), radius, (row, column) of the centre): the mean over a band of 15 px along the
    circle against bands within and outside, of circles that are seen almost whole."""
    side = np.arange(-radius - 25, radius + 26)
    r = np.hypot(side[:, None], side) - radius
    on, off = np.abs(r) <= 7, (np.abs(r) > 10) & (np.abs(r) <= 24)
    counts, means = [], []
    for band in (on, off):
        counts.append(signal.fftconvolve(where.astype(float), band.astype(float), mode="same"))
        means.append(signal.fftconvolve(phase * where, band.astype(float), mode="same") / np.maximum(counts[-1], 1))
    seen = (counts[0] > 0.8 * on.sum()) & (counts[1] > 0.6 * off.sum())
    contrast = np.where(seen, means[0] - means[1], -1) * np.sqrt(radius)
    row, column = np.unravel_index(contrast.argmax(), contrast.shape)
    return float(contrast.max()), radius, (int(row), int(column))
