"""Near fields at several distances: it is free space, and scans of two distances share one object."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from joint import named
from ptymesh.compare import compare_results
from ptymesh.distributed.world import Solo, World
from ptymesh.errors import BadInput
from ptymesh.geometry import near_field
from ptymesh.measurement import Measurement
from ptymesh.models.exit_wave.view_distance import ViewDistance
from ptymesh.physics.operators import Placed
from ptymesh.physics.propagate import angular_spectrum_kernel, apply_kernel, fresnel_kernel
from ptymesh.simulate import Simulation, Truth, simulate, simulate_scans

PIECE = {"view_distance": True}


@pytest.mark.parametrize("propagation", ["angular_spectrum", "fresnel"])
def test_both_ways_together_are_one(propagation: Any) -> None:
    make = angular_spectrum_kernel if propagation == "angular_spectrum" else fresnel_kernel
    geometry = near_field((32, 32), 1e-10, 1e-3, (1e-7, 1e-7), propagation=propagation)
    pixel = geometry.object_pixel_m
    assert pixel is not None
    psi = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.complex128)
    one = Placed.of(ViewDistance(), geometry, torch.complex128, "cpu")
    z = torch.tensor([0.0, 5e-4], dtype=torch.float64)
    found = apply_kernel(
        one.operator.forward(psi, {"further_distance": z}, one.tables), make((32, 32), pixel, 1e-10, 1e-3)
    )
    for wave, wanted, further in zip(psi, found, z.tolist(), strict=True):
        whole = apply_kernel(wave, make((32, 32), pixel, 1e-10, 1e-3 + further))
        assert torch.allclose(wanted, whole, atol=1e-10)


def two_distances(factor: float = 1.5) -> tuple[list[Measurement], list[Truth]]:
    """Two near-field scans of one object with one beam, the second one at another distance and other places."""
    options = Simulation(kind="near", views=36, window=48, photons_per_view=1e6, seed=2)
    made = simulate_scans(options, further_scans=[{"overlap": 0.905, "distance_ratio": factor}])
    return named(made, ("near", "far")), [one.truth for one in made]


def test_scans_of_two_distances_share_the_object() -> None:
    """Both together explain the counts of both, and are better than either alone."""
    scans, truths = two_distances()
    first = truths[0]
    stages = [pm.RPIE(epochs=20, batch=12)]
    together = pm.reconstruct(scans, stages, optics=PIECE, seed=1)
    alone = [pm.reconstruct(scan, stages, seed=1) for scan in scans]
    errors = [compare_results(one, first).nrmse for one in (together, *alone)]
    assert errors[0] < 0.95 * min(errors[1:]), errors
    further = scans[1].geometry.effective_distance_m - scans[0].geometry.effective_distance_m
    np.testing.assert_allclose(together.unknowns["further_distance"][[0, -1]], [0, further], rtol=1e-6)
    wrong = pm.reconstruct([scans[0], replace(scans[1], geometry=scans[0].geometry)], stages, seed=1)
    assert together.attrs["final_residual"] < 0.5 * wrong.attrs["final_residual"]


def outcome(world: World, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """Object and probe after two epochs."""
    scans, _ = two_distances()
    recon = pm.Reconstruction(scans, optics=PIECE, device=world, layout=layout, seed=1)
    list(recon.run(pm.RPIE(epochs=2, batch=12)))
    estimate = recon.state.estimate
    return recon.problem.layout.gather_whole(estimate.object, estimate).numpy(), estimate.probe.numpy()


def test_ranks_and_layouts_end_with_the_same_bits(ranks: Any) -> None:
    wanted = outcome(Solo(), "replicated")
    for found in ranks(2, outcome, "tiled"):
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_what_cannot_be_is_refused() -> None:
    scans, _ = two_distances()
    with pytest.raises(BadInput, match=r"The distances of the scans differ.*add optics: \{view_distance: true\}"):
        pm.Reconstruction(scans)
    with pytest.raises(BadInput, match=r"further_distance of optics\.view_distance would stay as it starts; add"):
        pm.reconstruct(scans[0], pm.RPIE(epochs=1), optics=PIECE)
    far = Simulation(views=6, window=16)
    with pytest.raises(BadInput, match=r"optics\.view_distance is for near fields"):
        pm.Reconstruction(simulate(far).measurement, optics=PIECE)
    energy = replace(scans[1], geometry=replace(scans[1].geometry, wavelength_m=2e-10))
    with pytest.raises(BadInput, match=r"wavelengths .* reconstruct each by itself, or mend data.energy_eV"):
        pm.Reconstruction([scans[0], energy], optics=PIECE)
