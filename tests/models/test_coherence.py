"""Partial coherence in time and in space: sums over defocused states and over places, and widths that are found."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

import ptymesh as pm
from ptymesh.engines import ENGINES, Adam
from ptymesh.errors import BadInput
from ptymesh.geometry import electron_wavelength_m, far_field
from ptymesh.models import ShiftOperator, WaveOperator
from ptymesh.models.focal_spread import FocalSpread
from ptymesh.models.source_size import SourceSize
from ptymesh.models.view_defocus import propagated
from ptymesh.physics.operators import Placed, Tables, Values
from ptymesh.simulate import simulate
from toy import make, relative

#: 300 kV, pixels of 0.2 A.
WAVELENGTH_M = electron_wavelength_m(300e3)
GEOMETRY = far_field((64, 64), WAVELENGTH_M, 0.1, (1.5e-4, 1.5e-4), "electron")
#: Electron scans with one slice; the beam in the file is the true one, so that the width alone is wrong.
SCAN: dict[str, Any] = {"kind": "electron", "views": 36, "window": 32, "slices": 1, "probe_guess": "true"}
WIDTHS = {"focal_spread": "focal_spread", "source_size": "source_width"}


def beam(semiangle_rad: float) -> torch.Tensor:
    """A round aperture in focus, (1, 1, h, w)."""
    y, x = (
        torch.fft.fftfreq(n, p, dtype=torch.float64)
        for n, p in zip(GEOMETRY.shape, GEOMETRY.object_pixel_m or (), strict=True)
    )
    inside = torch.hypot(y[:, None], x) * WAVELENGTH_M <= semiangle_rad
    return torch.fft.ifft2(inside.to(torch.complex128), norm="ortho")[None, None]


def waves_of(piece: WaveOperator, psi: torch.Tensor, width: float) -> torch.Tensor:
    placed = Placed.of(piece, GEOMETRY, torch.complex128, "cpu")
    (name,) = (one.name for one in piece.unknowns)
    return piece.forward(psi, {name: torch.tensor(width, dtype=torch.float64)}, placed.tables)


@pytest.mark.parametrize(("s", "states"), [(2.0, 5), (2.5, 7), (4.0, 11)])
def test_few_states_are_the_mean_over_all_defoci(s: float, states: int) -> None:
    """The intensity behind a lens, against a sum over 401 defoci; the numbers of states are those of the docs."""
    angle = 0.02
    sigma = s * WAVELENGTH_M / (math.pi * angle**2)
    psi, piece = beam(angle), FocalSpread(states=states)
    rate = piece.tables(GEOMETRY)[0]
    at = torch.linspace(-6, 6, 401, dtype=torch.float64)
    weights = torch.exp(-(at**2) / 2)
    wanted = torch.zeros(GEOMETRY.shape, dtype=torch.float64)
    for some, share in zip(at.split(100), (weights / weights.sum()).split(100), strict=True):
        waves = propagated(psi.expand(len(some), -1, -1, -1), some * sigma, rate)[:, 0]
        wanted += (share[:, None, None] * waves.abs().square()).sum(0)
    found = waves_of(piece, psi, sigma).abs().square().sum((0, 1))
    assert relative(found, wanted) < 0.01
    fewer = waves_of(FocalSpread(states=states - 2), psi, sigma).abs().square().sum((0, 1))
    assert relative(fewer, wanted) > relative(found, wanted)


def test_a_source_is_the_beam_blurred() -> None:
    """The intensity in the sample's plane is that of a point source, convolved with the Gaussian."""
    width, psi = 0.8, beam(0.02)
    k = torch.fft.fftfreq(64, dtype=torch.float64)
    blur = torch.exp(-2 * (math.pi * width) ** 2 * (k[:, None] ** 2 + k**2))
    wanted = torch.fft.ifft2(torch.fft.fft2(psi[0, 0].abs().square()) * blur).real
    errors = []
    for points in (2, 3, 4, 5):
        found = waves_of(SourceSize(points=points), psi, width).abs().square().sum((0, 1))
        errors.append(float(relative(found, wanted)))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.01, errors


@pytest.mark.parametrize("name", WIDTHS)
def test_no_light_is_lost(name: str) -> None:
    psi = beam(0.02)
    piece = FocalSpread() if name == "focal_spread" else SourceSize()
    found = waves_of(piece, psi, 2e-9 if name == "focal_spread" else 0.7)
    assert math.isclose(float(found.abs().square().sum()), float(psi.abs().square().sum()), rel_tol=1e-12)


def found_width(
    name: str, options: dict[str, Any], true: float, start: float, engine: str = "adam"
) -> tuple[float, float, float]:
    """The width that an engine comes to, the residual there, and that of a model that does not know of it."""
    made = simulate(**SCAN, photons_per_view=1e6, optics={name: {**options, "start": {WIDTHS[name]: true}}}, seed=3)
    optics = {name: {**options, "start": {WIDTHS[name]: start}}}
    if engine == "adam":
        stage, moved = Adam(epochs=20, batch=6, unknowns={"object": True}), {"object": True, WIDTHS[name]: {"lr": 0.2}}
    else:
        stage, moved = (
            ENGINES[engine].parse({"epochs": 10, "batch": 6, "probe": {"frozen": 10}}, ""),
            {WIDTHS[name]: True},
        )
    recon = pm.Reconstruction(made.measurement, optics=optics, seed=1)
    *_, last = recon.run(type(stage).parse({**stage.model_dump(exclude_unset=True), "unknowns": moved}, ""))
    without = pm.Reconstruction(made.measurement, seed=1)
    *_, other = without.run(stage)
    return float(recon.state.estimate.others[WIDTHS[name]]), last.residual, other.residual


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", ["adam", "rpie", "lsqml"])
@pytest.mark.parametrize("factor", [0.5, 1.6])
@pytest.mark.parametrize(
    ("name", "options", "true"), [("focal_spread", {"states": 5}, 5e-9), ("source_size", {"points": 3}, 1.0)]
)
def test_a_width_is_found_from_a_wrong_start(
    name: str, options: dict[str, Any], true: float, factor: float, engine: str
) -> None:
    width, residual, without = found_width(name, options, true, factor * true, engine)
    assert abs(width / true - 1) < 0.1 and residual < 0.8 * without, (width / true, residual, without)


def test_what_cannot_be_is_refused() -> None:
    near = make(propagation="fresnel").measurement
    with pytest.raises(
        BadInput, match=r"optics\.source_size is for far-field scans, and this one is in the near field"
    ):
        pm.Reconstruction(near, optics={"source_size": True})
    scan = simulate(**SCAN).measurement
    unknown = replace(scan, geometry=replace(scan.geometry, wavelength_m=None))
    with pytest.raises(
        BadInput, match=r"optics\.focal_spread needs the wavelength and the object pixel, which this da"
    ):
        pm.Reconstruction(unknown, optics={"focal_spread": True})
    with pytest.raises(BadInput, match="states is 1"):
        FocalSpread(states=1)
    with pytest.raises(BadInput, match="points is 10"):
        SourceSize(points=10)


class Pair(ShiftOperator):
    """Two copies of a wave, by whole pixels, as a plug-in declares them."""

    name: ClassVar[str] = "pair"

    @property
    def fan_out(self) -> int:
        return 2

    def copies(self, values: Values, tables: Tables) -> tuple[torch.Tensor, torch.Tensor]:
        places, factors = [[[0.0, 0.0], [1.0, -2.0]]], [0.6, 0.8]
        return torch.tensor(places, dtype=torch.float64), torch.tensor(factors, dtype=torch.float64)


def test_a_plug_in_that_shifts_has_one_base() -> None:
    psi = torch.randn(3, 2, 8, 10, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    waves = Pair().forward(psi, {}, ())
    wanted = torch.stack([0.6 * psi, 0.8 * psi.roll((1, -2), (-2, -1))], 2).flatten(1, 2)
    assert relative(waves, wanted) < 1e-12
    assert relative(Pair().adjoint(waves, {}, ()), psi) < 1e-12, "as 0.36 + 0.64 = 1"
    assert Pair.is_fast and issubclass(Pair, WaveOperator)
