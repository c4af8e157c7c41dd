"""Haider's notation of aberrations against his expansion in powers of a complex angle."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.models.aberrations import Aberrations
from ptymesh.physics.beam.haider import KRIVANEK
from ptymesh.physics.beam.probes import aberration_phases
from ptymesh.recipe.starts import ElectronStart
from ptymesh.simulate.crystal import Crystal

SHAPE, PIXEL_M, WAVELENGTH_M = (16, 16), (1e-11, 1e-11), 2e-12
#: Powers of w and of w* in Haider's expansion, and the divisor of each term.
TERMS = {
    "C1": (1, 1, 2),
    "A1": (0, 2, 2),
    "B2": (2, 1, 1),
    "A2": (0, 3, 3),
    "C3": (2, 2, 4),
    "S3": (3, 1, 1),
    "A3": (0, 4, 4),
    "B4": (3, 2, 1),
    "D4": (4, 1, 1),
    "A4": (0, 5, 5),
    "C5": (3, 3, 6),
    "S5": (4, 2, 1),
    "R5": (5, 1, 1),
    "A5": (0, 6, 6),
}


def phase(name: str) -> np.ndarray:
    """Return Haider's phase per metre of a real coefficient, (h, w) rad."""
    y, x = (WAVELENGTH_M * np.fft.fftfreq(n, d) for n, d in zip(SHAPE, PIXEL_M, strict=True))
    w = x + 1j * y[:, None]
    plain, conjugated, divisor = TERMS[name]
    return np.asarray(2 * math.pi / WAVELENGTH_M * (w**plain * w.conj() ** conjugated).real / divisor)


@pytest.mark.parametrize("name", TERMS)
def test_a_coefficient_makes_the_phase_of_its_expansion(name: str) -> None:
    start = ElectronStart(kind="electron", semiangle_rad=0.02, aberrations_m={name: 3e-9})
    ((krivanek, size),) = start.aberrations_m.items()
    first = next(iter(aberration_phases(SHAPE, PIXEL_M, WAVELENGTH_M, [krivanek]).values()))
    assert isinstance(size, float)
    np.testing.assert_allclose(size * first.numpy(), 3e-9 * phase(name), rtol=1e-9, atol=1e-12)


def test_all_names_are_there() -> None:
    assert list(KRIVANEK) == list(TERMS)


def test_angles_are_azimuths_and_units_are_read() -> None:
    given = {"C1": "-10 nm", "B2": ["20 nm", "45 deg"], "C30": "1e-3"}
    start = ElectronStart.parse({"kind": "electron", "semiangle_rad": "20 mrad", "aberrations_m": given})
    assert start.aberrations_m == {"C10": -1e-8, "C21": (pytest.approx(6e-8), pytest.approx(math.pi / 4)), "C30": 1e-3}
    assert start.of_the_lens()["C10"] == -1e-8
    assert Crystal(aberrations_m={"S3": 1e-6}).aberrations_m == {"C32": 4e-6}


def test_terms_that_are_refined_may_be_named_so() -> None:
    assert Aberrations(terms=["C1", "A1", "B2"]).terms == ["C10", "C12", "C21"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"C1": 1e-9, "C10": 1e-9}, "aberrations_m: C1 and C10 are the same aberration; give one of them"),
        ({"C1": "3 mrad"}, "aberrations_m: C1 is '3 mrad'; give a length, such as 10 nm"),
        ({"A1": [1e-9, "3 nm"]}, "aberrations_m: A1 is '3 nm'; give an angle, such as 21.4 mrad"),
        ({"B2": "much"}, r"aberrations_m: B2 is 'much'; give metres, or \[metres, angle in rad\]"),
        ({"B2": True}, "aberrations_m is .'B2': True.; it should be a number"),
        ({"C1": math.nan}, "aberrations_m: C1 is nan; give metres"),
        ({"B2": 1e308}, "B2 is 1e[+]308; give metres"),
        ({"A1": [1e-9, 2, 3]}, r"A1 is \[1e-09, 2, 3\]; give metres"),
        ({"A1": []}, r"A1 is \[\]; give metres"),
        ({"C12": [10**400, 0]}, "C12 is .*; give metres"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        ElectronStart.parse({"kind": "electron", "semiangle_rad": 0.02, "aberrations_m": values})
