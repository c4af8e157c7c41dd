"""A tilt for every view: it adds to that of the whole sample, and one that varies over the scan is found from none."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ptymesh.engines import Adam
from ptymesh.errors import BadInput
from ptymesh.measurement import ArraySource
from ptymesh.models import OPTICS
from ptymesh.physics.model import Model, SliceStack
from ptymesh.problem import Batch
from toy import Toy, make, relative

STACK = SliceStack(3, 2e-5)


def test_it_is_the_tilt_of_the_whole_sample_view_by_view() -> None:
    toy = make(slices=3)
    e, geometry, some = toy.truth, toy.measurement.geometry, torch.arange(4)
    tilts = torch.tensor([[0.0, 0.0], [4e-3, 0.0], [0.0, -3e-3], [2e-3, 5e-3]], dtype=torch.float64)
    view, fractions = e.anchors[some], e.fractions(some)
    model = Model.for_geometry(geometry, slices=STACK, optics=(OPTICS["view_tilt"](),), dtype=torch.complex128)
    found = model.intensity(e.object, e.probe, view, fractions, values={"view_tilt": tilts})
    for j, (y, x) in enumerate(tilts.tolist()):
        one = Model.for_geometry(geometry, slices=replace(STACK, tilt_rad=(y, x)), dtype=torch.complex128)
        wanted = one.intensity(e.object, e.probe, view[j : j + 1], fractions[j : j + 1])
        assert relative(found[j], wanted[0]) < 1e-10


def bent(counts: float) -> tuple[Toy, torch.Tensor]:
    """A toy over a foil that is bent, and its tilts (N, 2)."""
    toy = make(slices=3, views=60, counts=counts)
    e, operator = toy.truth, OPTICS["view_tilt"]()
    toy.model = Model.for_geometry(toy.measurement.geometry, slices=STACK, optics=(operator,), dtype=torch.complex128)
    e.slice_spacing_m = STACK.spacing_m
    places = e.positions - e.positions.mean(dim=0)
    true = 0.5 * toy.model.sizes["view_tilt"] * places / places.abs().max()
    every = torch.arange(len(true))
    found = toy.model.intensity(e.object, e.probe, e.anchors, e.fractions(every), e.weights, values={"view_tilt": true})
    drawn = np.random.default_rng(0).poisson(found.numpy()).astype(np.uint32)
    toy.measurement = replace(toy.measurement, patterns=ArraySource(drawn))
    return toy, true


def error_of(counts: float, **constraints: Any) -> float:
    """Error of the tilts that are found from none on slices that are known, over their size."""
    toy, true = bent(counts)
    problem, e = toy.problem(), replace(toy.truth, others={"view_tilt": torch.zeros_like(true)})
    unknowns: dict[str, Any] = {"object": False, "probe": False, "view_tilt": {"lr": 0.05}}
    engine = Adam(epochs=20, batch=20, unknowns=unknowns, constraints=constraints)
    engine.check(problem)
    problem.begin_epoch(e)
    engine.before_epoch(problem, e)
    for epoch in range(1, 21):
        for number in range(3):
            engine.step(problem, e, Batch(np.arange(60)[number::3], False, epoch, pieces=frozenset({"view_tilt"})))
        engine.apply_constraints(problem, e, epoch)
    return float((e.others["view_tilt"] - true).norm() / true.norm())


def test_a_bent_foil_is_found_and_smoothed_over_the_scan() -> None:
    assert error_of(1e6) < 0.05
    noisy = error_of(1e4)
    smooth = {"unknown_smoothness": {"sigma": {"view_tilt": 1}, "over": "scan", "start": 20}}
    assert error_of(1e4, **smooth) < 0.8 * noisy


def test_one_slice_has_nothing_to_lean() -> None:
    with pytest.raises(BadInput, match=r"optics\.view_tilt acts between slices, and there is one; ask for object"):
        Model.for_geometry(make().measurement.geometry, optics=(OPTICS["view_tilt"](),))


def test_it_needs_pixels() -> None:
    geometry = replace(make().measurement.geometry, wavelength_m=None, object_pixel_m=None)
    with pytest.raises(BadInput, match=r"optics\.view_tilt needs the wavelength and the object pixel"):
        OPTICS["view_tilt"]().check(geometry)
