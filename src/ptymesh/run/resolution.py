"""Coarse to fine: a stage with `coarsen: 2` or 4 works on the inner part of the detector, with fewer, larger pixels.

The scan, its owners and its batches stay; windows have h/c x w/c pixels and the object H/c x W/c. Afterwards object and
probe are interpolated back; what the probe had beyond the coarse band is kept aside and put back.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import torch

from ptymesh.engines import Engine
from ptymesh.errors import BadInput
from ptymesh.estimate import BLOCK, Estimate
from ptymesh.physics.model import Model
from ptymesh.physics.resample import coarser, corner_crop, finer, inner
from ptymesh.problem import Problem


def check(engine: Engine, problem: Problem) -> None:
    """Raises BadInput where this problem cannot be coarsened as the stage asks."""
    c = engine.coarsen
    if c == 1:
        return
    if problem.geometry.propagation != "far_field":
        raise BadInput(f"coarsen: {c} crops the far field; leave it out of the stages of a near-field scan.")
    for n in problem.window:
        if n % (2 * c):
            raise BadInput(f"coarsen: {c} needs windows that {2 * c} divides, not {n} pixels; crop or pad the data.")
    if not bool(corner_crop(problem.mask, c).any()):
        raise BadInput(f"coarsen: {c} leaves only masked pixels of the detector; coarsen less.")


def coarse_problem(problem: Problem, c: int, slices: int, slice_spacing_m: float) -> Problem:
    """The problem of the inner 1/c of the detector; it shares owners, world and running values with the fine one."""
    made = copy(problem)
    made.window = (problem.window[0] // c, problem.window[1] // c)
    made.geometry = problem.geometry.rewindowed(made.window)
    made.model = Model.for_geometry(
        made.geometry,
        subpixel=problem.model.subpixel,
        slices=slices,
        slice_spacing_m=slice_spacing_m,
        dtype=problem.dtype,
        device=problem.device,
    )
    made.patterns, made.mask = problem.patterns.cropped(c), corner_crop(problem.mask, c)
    made.forget_buffers()
    return made


def coarsened(estimate: Estimate, engine: Engine) -> Estimate:
    """The estimate on pixels c times larger; the object is first padded with ones to whole coarse blocks."""
    c = engine.coarsen
    pads = [-n % (c * BLOCK) for n in estimate.object.shape[-2:]]
    padded = torch.nn.functional.pad(estimate.object, (0, pads[1], 0, pads[0]), value=1.0)
    probe = coarser(estimate.probe, c)
    engine.state["beyond_probe"] = estimate.probe - finer(probe, c)
    engine.state["fine_background"] = estimate.background.clone()
    return _moved(
        replace(
            estimate,
            object=coarser(padded, c) / c,
            probe=probe,
            opr=coarser(estimate.opr, c) if len(estimate.opr) else probe[:0].clone(),
            background=corner_crop(estimate.background, c),
        ),
        1 / c,
    )


def refined(estimate: Estimate, engine: Engine) -> Estimate:
    """The estimate back on the fine pixels."""
    c = engine.coarsen
    background = engine.state.pop("fine_background")
    rows, columns = (inner(c, n, background.device) for n in background.shape)
    background[rows[:, None], columns] = estimate.background
    probe = finer(estimate.probe, c) + engine.state.pop("beyond_probe")
    return _moved(
        replace(
            estimate,
            object=finer(estimate.object, c) * c,
            probe=probe,
            opr=finer(estimate.opr, c) if len(estimate.opr) else probe[:0].clone(),
            background=background,
        ),
        float(c),
    )


def _moved(estimate: Estimate, factor: float) -> Estimate:
    positions = estimate.positions * factor
    return replace(
        estimate,
        positions=positions,
        nominal=estimate.nominal * factor,
        anchors=torch.floor(positions + 0.5).to(estimate.anchors.dtype),
        origin=(estimate.origin[0] * factor, estimate.origin[1] * factor),
    )
