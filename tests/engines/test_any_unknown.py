"""Limits and smoothness of positions, the background and unknowns of the model's pieces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage

import ptymesh as pm
from ptymesh.compare import compare_results
from ptymesh.engines import RPIE
from ptymesh.engines.constraints import CONSTRAINTS
from ptymesh.engines.constraints.neighbours import smoothed_in_plane
from ptymesh.errors import BadInput
from ptymesh.models import OPTICS
from ptymesh.physics.operators import Placed
from ptymesh.problem import Problem
from ptymesh.simulate import simulate
from toy import Toy, make, share


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_pieces(*names: str, **options: Any) -> Toy:
    """A toy whose model has these pieces, with values of their unknowns that differ from each other."""
    toy = make(**options)
    geometry, model = toy.measurement.geometry, toy.model
    for name in names:
        piece: Any = OPTICS[name]()
        placed = Placed.of(piece, geometry, torch.complex128, "cpu")
        where = "detector" if name.startswith("detector") else "operators"
        model = replace(model, **{where: (*getattr(model, where), placed)})
        sizes = toy.truth.sizes() | model.axes(toy.truth.window)
        for one in piece.unknowns:
            seed, shape = len(toy.truth.others), one.shape(sizes)
            values = 1 + randn(*shape, seed=seed)
            toy.truth.others[one.name] = values + 1j * randn(*shape, seed=seed + 100) if one.complex else values
    toy.model = model
    return toy


def constrain(problem: Problem, toy: Toy, estimate: Any, **given: object) -> None:
    """Apply constraints to an estimate, as after an epoch."""
    engine = RPIE(constraints=given)
    for one in engine.constraints.values():
        one.check(problem)
    engine.apply_constraints(problem, estimate, 1)


def test_limits_hold_values_and_displacements() -> None:
    toy = with_pieces("view_defocus", "detector_blur")
    e = toy.truth
    e.positions += randn(*e.positions.shape)
    e.background += randn(*e.background.shape, seed=3)
    before = {name: e[name].clone() for name in e}
    limits = {"positions": (-0.5, 0.5), "background": (0.0, None), "defocus": (None, 1.5), "blur_width": (0.3, 0.3)}
    constrain(toy.problem(), toy, e, unknown_limits={"limits": limits})
    assert torch.equal(e.positions, e.nominal + (before["positions"] - e.nominal).clamp(-0.5, 0.5))
    assert torch.equal(e.background, before["background"].clamp(min=0)) and float(before["background"].min()) < 0
    assert torch.equal(e.others["defocus"], before["defocus"].clamp(max=1.5)) and float(before["defocus"].max()) > 1.5
    assert float(e.others["blur_width"]) == 0.3
    assert torch.equal(e.object, before["object"]) and torch.equal(e.probe, before["probe"])


def test_a_share_of_the_way() -> None:
    toy = with_pieces("view_defocus")
    before = toy.truth.others["defocus"].clone()
    limits = {"limits": {"defocus": (0.9, 1.1)}, "strength": 0.25}
    constrain(toy.problem(), toy, toy.truth, unknown_limits=limits)
    assert torch.allclose(toy.truth.others["defocus"], 0.75 * before + 0.25 * before.clamp(0.9, 1.1))


def test_smoothness_of_views_is_that_of_each_scan_and_of_views_that_are_seen() -> None:
    toy = with_pieces("view_defocus", views=40)
    problem, e, (defocus,) = toy.problem(), toy.truth, toy.truth.others.values()
    problem.scan_index = (np.arange(40) >= 20).astype(np.int64)
    problem.training = np.setdiff1d(np.arange(40), [5])
    step = torch.where(torch.arange(40) < 20, 1.0, 3.0).to(torch.float64)
    defocus.copy_(step.view_as(defocus) if defocus.ndim == 1 else step[:, None].expand_as(defocus))
    defocus[5] = 50.0
    e.positions[:] = e.nominal + 0.1 * step[:, None]
    constrain(problem, toy, e, unknown_smoothness={"sigma": {"defocus": 2, "positions": 3}})
    assert torch.allclose(defocus, step.view_as(defocus)), "a held-out view follows; no scan knows of the other"
    assert torch.allclose(e.positions - e.nominal, 0.1 * step[:, None].expand(40, 2))
    defocus[10] += 1
    constrain(problem, toy, e, unknown_smoothness={"sigma": {"defocus": 2}})
    assert 0.1 < float(defocus[10]) - 1 < 0.3


def test_smoothness_over_the_scan_is_a_gaussian_over_its_raster() -> None:
    """Of rows that are taken in any order; a view that is held out counts for none."""
    rows, columns = np.indices((6, 8))
    places = torch.from_numpy(np.stack([rows.ravel(), columns.ravel()], axis=1) * 3.7 + 100)
    values, seen = randn(48, 2), torch.ones(48, dtype=torch.float64)
    seen[[7, 20]] = 0
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1))
    found = torch.empty_like(values)
    found[order] = smoothed_in_plane(values[order], seen[order], places[order], 1.5)

    def filtered(x: np.ndarray) -> np.ndarray:
        return ndimage.gaussian_filter(x.reshape(6, 8), 1.5, mode="constant").ravel()

    for k in range(2):
        wanted = filtered((values[:, k] * seen).numpy()) / filtered(seen.numpy())
        assert np.allclose(found[:, k], wanted, rtol=1e-10)
    one = smoothed_in_plane(values[:1], seen[:1], places[:1], 1.5)
    assert torch.allclose(one, values[:1])


def test_smoothness_of_the_background_passes_over_masked_pixels_and_the_middle() -> None:
    toy = make()
    e, upright = toy.truth, torch.zeros(24, 28, dtype=torch.float64)
    upright[:12] = 4.0
    e.background.copy_(torch.fft.ifftshift(upright))
    toy.measurement.mask[3:5, 3:5] = False
    problem = toy.problem()
    e.background[~problem.loader.mask] = 1e6
    constrain(problem, toy, e, unknown_smoothness={"sigma": {"background": 1.5}})
    found = torch.fft.fftshift(e.background)
    assert float(found.max()) < 4 + 1e-12, "masked pixels count for nothing"
    assert torch.allclose(found[:5], upright[:5]) and 1.5 < float(found[11].mean()) < 3, "the edge is in the middle"


def constrained(world: Any, layout: str) -> list[np.ndarray]:
    """What is left of noise on all kinds of unknowns."""
    toy = with_pieces("changing_object", "view_defocus", views=41, uneven=True)
    problem = toy.problem(world, layout)
    e = share(toy.truth, problem)
    part = problem.layout.place(e.extent, e.origin, e.anchors.numpy())
    field = e.others["object_change"]
    e.others = {**e.others, "object_change": field[(slice(None), *part.inside((0, 0)))].clone()}
    sigma = {"object_change": 1.3, "defocus": 2.5, "positions": 4, "background": 2}
    given = {"unknown_smoothness": {"sigma": sigma, "strength": 0.7}}
    given["unknown_limits"] = {"limits": {"defocus": (0.5, 1.5)}}
    constrain(problem, toy, e, **given)
    whole = problem.layout.gather_whole(e.others["object_change"], e)
    return [x.numpy().copy() for x in (whole, e.others["defocus"], e.positions, e.background)]


def test_ranks_and_layouts_have_the_same_bits(ranks) -> None:  # type: ignore[no-untyped-def]
    wanted = ranks(1, constrained, "replicated")[0]
    # 0.7 of the way a pixel's noise of 1 is left as (0.09 + 0.42 g + 0.49 g / 2)^(1/2) = 0.39, g = 1 / (2 pi 1.3^2)
    for part in (wanted[0].real, wanted[0].imag):
        assert part.std() == pytest.approx(0.39, rel=0.05)
    assert wanted[1].std() < 0.5
    for layout in ("replicated", "tiled"):
        for found in ranks(3, constrained, layout):
            assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)), layout


def test_a_background_that_is_smooth_is_found_better() -> None:
    """Of few views, single pixels of the background fit their noise, and the object what they take from it."""
    made = simulate(views=25, window=32, photons_per_view=1e5, background_counts=5, seed=2)
    measurement, misses, errors = replace(made.measurement, background=None), [], []
    unknowns = {"object": True, "probe": True, "background": True}
    for constraints in ({}, {"unknown_smoothness": {"sigma": {"background": 3}}}):
        recon = pm.Reconstruction(measurement, probe_modes=1, seed=1)
        list(recon.run({"engine": "adam", "epochs": 20, "batch": 8, "unknowns": unknowns, "constraints": constraints}))
        misses.append(float((recon.state.estimate.background - 5).square().mean()) ** 0.5)
        errors.append(compare_results(recon.result(), made.truth).nrmse)
    assert misses[1] < 0.7 * misses[0] and errors[1] < 0.95 * errors[0], (misses, errors)


def test_what_cannot_be_is_refused() -> None:
    toy = with_pieces("detector_blur")
    problem = toy.problem()
    smooth, limits = CONSTRAINTS["unknown_smoothness"], CONSTRAINTS["unknown_limits"]
    with pytest.raises(BadInput, match="names defocus; there are positions, background, blur_width"):
        limits.parse({"limits": {"defocus": [0, 1]}}).check(problem)
    with pytest.raises(BadInput, match="blur_width is shared by all views and pixels"):
        smooth.parse({"sigma": {"blur_width": 1}}).check(problem)
    for wrong, word in (({"a": [None, None]}, "no limit"), ({"a": [2, 1]}, "is above the highest"), ({}, "at least 1")):
        with pytest.raises(BadInput, match=word):
            limits.parse({"limits": wrong})
    with pytest.raises(BadInput, match="greater than 0"):
        smooth.parse({"sigma": {"positions": 0}})
