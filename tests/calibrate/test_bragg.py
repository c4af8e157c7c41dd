"""Size of a detector pixel by Bragg discs: drawn lattices, simulated crystals, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special

from ptymesh.calibrate import calibrate, twins
from ptymesh.calibrate.bragg import find_lattice
from ptymesh.calibrate.disc import fit_disc
from ptymesh.calibrate.recipe import recipe_of
from ptymesh.errors import BadInput
from ptymesh.run.simulate_file import write
from ptymesh.run.trials.twins import TwinTrial
from ptymesh.simulate import checked, simulate

SIDE, RADIUS = 128, 6.0
CRYSTAL: dict[str, Any] = {
    "structure": "silicon",
    "semiangle_rad": 2e-3,
    "configurations": 1,
    "thickness_m": 2e-9,
    "slice_m": 1e-9,
    "step_m": 1.5e-10,
    "rotation_deg": 17.0,
    "aberrations_m": {"C10": -5e-8},
}
SILICON: dict[str, Any] = {
    "kind": "crystal",
    "window": SIDE,
    "scan": "raster",
    "energy_eV": 300e3,
    "pixel_m": 0.45e-10,
    "photons_per_view": 2e4,
    "probe_guess": "none",
    "crystal": CRYSTAL,
}
#: Spacing (m) of its 220 planes, whose discs are the innermost along [001].
D220_M = 5.431e-10 / np.sqrt(8)


def drawn(a: tuple[float, float], b: tuple[float, float], seed: int = 0) -> np.ndarray:
    """Return counts (SIDE, SIDE) of discs of very different brightness on a lattice, over diffuse light."""
    rng = np.random.default_rng(seed)
    y, x = np.indices((SIDE, SIDE)) - np.array([63.3, 64.8])[:, None, None]
    counts = 0.3 * np.exp(-np.hypot(y, x) / 25)
    for h in range(-4, 5):
        for k in range(-4, 5):
            place = h * np.array(a) + k * np.array(b)
            bright = 100.0 if h == k == 0 else 5 * rng.uniform(0.1, 1) * np.exp(-np.hypot(*place) / 20)
            counts += bright * special.erfc((np.hypot(y - place[0], x - place[1]) - RADIUS) / 0.6) / 2
    return rng.poisson(100 * counts) / 100


GOOD = np.ones((SIDE, SIDE), bool)


@pytest.mark.parametrize(
    ("a", "b", "spacing"),
    [
        ((18.0, 4.0), (-4.0, 18.0), np.hypot(18, 4)),
        ((20.0, 3.0), (7.0, 29.0), np.hypot(20, 3)),
        ((22.0, 0.0), (11.0, 11 * np.sqrt(3)), 22.0),
    ],
    ids=["square", "oblique", "hexagonal"],
)
def test_a_drawn_lattice_is_found(a: tuple[float, float], b: tuple[float, float], spacing: float) -> None:
    mean = drawn(a, b)
    found = find_lattice(mean, GOOD, fit_disc(mean, GOOD))
    assert found.spacing == pytest.approx(spacing, rel=2e-3)
    assert 0 < found.error < 0.02 and len(found.places) > 8


def test_masked_discs_do_not_count() -> None:
    mean, mask = drawn((18.0, 4.0), (-4.0, 18.0)), GOOD.copy()
    mask[:, 80:86] = False  # through one of the innermost discs
    found = find_lattice(np.where(mask, mean, 0), mask, fit_disc(mean, GOOD))
    assert found.spacing == pytest.approx(np.hypot(18, 4), rel=2e-3)
    assert not ((found.places[:, 1] > 74) & (found.places[:, 1] < 92)).any()


def test_no_lattice_is_refused() -> None:
    mean = drawn((200.0, 0.0), (0.0, 200.0))
    with pytest.raises(BadInput, match=r"--lattice needs Bragg .* \(1 discs are found\); give --semiangle"):
        find_lattice(mean, GOOD, fit_disc(mean, GOOD))
    scattered = mean.copy()
    y, x = np.indices((SIDE, SIDE))
    for place in ((30, 30), (25, 71), (95, 51), (77, 100), (48, 92), (101, 88), (66, 24)):
        scattered += 2.0 * (np.hypot(y - place[0], x - place[1]) < RADIUS)
    with pytest.raises(BadInput, match="lie on a lattice"):
        find_lattice(scattered, GOOD, fit_disc(scattered, GOOD))


@pytest.mark.parametrize(
    ("structure", "zone", "spacing_m"),
    [
        ("silicon", (0, 0, 1), D220_M),
        ("gold", (0, 0, 1), 4.078e-10 / 2),
        ("silicon", (1, 1, 0), 5.431e-10 / np.sqrt(3)),
    ],
)
def test_simulated_crystals_give_the_pixel_to_one_percent(
    structure: str, zone: tuple[int, int, int], spacing_m: float
) -> None:
    made = simulate(**{**SILICON, "views": 16, "crystal": {**CRYSTAL, "structure": structure, "zone": zone}})
    mean = np.fft.fftshift(made.measurement.patterns.read(np.arange(16)).mean(axis=0, dtype=np.float64))
    found = find_lattice(mean, GOOD, fit_disc(mean, GOOD))
    assert spacing_m * found.spacing / SIDE == pytest.approx(0.45e-10, rel=0.01)


def test_calibrate_takes_pixel_and_angle_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file says a pixel that is off by a tenth, and is not believed."""
    monkeypatch.setattr(twins, "compare_twins", lambda _: TwinTrial(1.0, 1.0, 100))
    path, _ = write(checked(**{**SILICON, "views": 64}), tmp_path / "si.cxi")
    raw: dict[str, Any] = {"data": {"path": str(path), "object_pixel_m": 0.5e-10}}
    found = calibrate(raw, lattice_m=D220_M)
    assert found.pixel_m == pytest.approx((0.45e-10, 0.45e-10), rel=0.01)
    assert found.semiangle_rad == pytest.approx(2e-3, rel=0.03)
    recipe, reasons = recipe_of(found, tmp_path / "run")
    assert recipe.data.object_pixel_m == pytest.approx((0.45e-10, 0.45e-10), rel=0.01)
    assert "Bragg discs lie on a lattice" in reasons["data.object_pixel_m"][0]
    lens = {"kind": "electron", "semiangle_rad": 2e-3}
    with pytest.raises(BadInput, match=r"0\.002 is told; .* are then of planes of 1\.9\d*e-10 m: give that"):
        calibrate({**raw, "probe": {"start": lens}}, lattice_m=2 * D220_M)
    with pytest.raises(BadInput, match=r"--lattice is 3\.905 m; give the spacing of lattice planes, such as 3\.905 A"):
        calibrate(raw, lattice_m=3.905)
