"""Coarse to fine: a stage with `coarsen: 2` or 4 works on the inner part of the detector, with fewer, larger pixels.

The scan, its owners and its batches stay; windows have h/c x w/c pixels and the object H/c x W/c. Afterwards object and
probe are interpolated back; what the probe had beyond the coarse band is kept aside and put back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ptymesh.engines import Engine
from ptymesh.errors import BadInput
from ptymesh.estimate import BLOCK, Estimate
from ptymesh.physics.model import Model, SliceStack
from ptymesh.physics.object_models import object_model_of
from ptymesh.physics.resample import coarser, corner_crop, finer, inner
from ptymesh.problem import Problem


def check_coarsening(engine: Engine, problem: Problem) -> None:
    """Raise BadInput where this problem cannot be coarsened as the stage asks."""
    c = engine.coarsen
    if c == 1:
        return
    fine_only = [
        one.name
        for one in problem.model.unknowns
        if one.scope == "tiled" or {"h", "w", "v", "u", *problem.model.axes(problem.window)} & {*one.axes}
    ]
    if fine_only:
        raise BadInput(f"coarsen: {c} does not know how {fine_only[0]} of the optics looks there; leave it out.")
    if problem.geometry.propagation != "far_field":
        raise BadInput(f"coarsen: {c} crops the far field; leave it out of the stages of a near-field scan.")
    for n in problem.loader.mask.shape:
        if n % (2 * c):
            raise BadInput(f"coarsen: {c} needs windows that {2 * c} divides, not {n} pixels; crop or pad the data.")
    if not bool(corner_crop(problem.loader.mask, c).any()):
        raise BadInput(f"coarsen: {c} leaves only masked pixels of the detector; coarsen less.")


def coarse_problem(problem: Problem, c: int, estimate: Estimate) -> Problem:
    """Return the problem of the inner 1/c of the detector.

    It shares owners, world and running values with the fine one.

    Args:
        problem: the fine one.
        c: factor, which divides the window.
        estimate: for its slices, their distance and tilt.
    """
    geometry = problem.geometry.rewindowed((problem.window[0] // c, problem.window[1] // c))
    model = Model.for_geometry(
        geometry,
        subpixel=problem.model.subpixel,
        slices=SliceStack(estimate.slices, estimate.slice_spacing_m, estimate.tilt_rad),
        optics=[placed.operator for placed in problem.model.pieces],
        dtype=problem.dtype,
        device=problem.device,
    )
    return problem.coarse(c, model, geometry)


def coarsen_estimate(estimate: Estimate, engine: Engine, fine: Problem, coarse: Problem) -> Estimate:
    """Return the estimate on pixels c times larger; the object is first padded with vacuum to whole coarse blocks.

    The filter sees the whole object: ranks that hold parts of it gather it for this. Collective.

    Args:
        estimate: on fine pixels.
        engine: of the stage; keeps what is finer until `refine_estimate`.
        fine: the problem of the estimate.
        coarse: that of `coarse_problem`.
    """
    c = engine.coarsen
    pads = [-n % (c * BLOCK) for n in estimate.extent]

    def coarse_field(field: Tensor) -> Tensor:
        full_field = fine.layout.gather_whole(field, estimate)
        padded = torch.nn.functional.pad(full_field, (0, pads[1], 0, pads[0]), value=estimate.vacuum)
        return coarser(padded, c) / c

    obj, values = _resample_object(estimate, coarse_field)
    probe = coarser(estimate.probe, c)
    engine.state["beyond_probe"] = estimate.probe - finer(probe, c)
    engine.state["fine_background"] = estimate.background.clone()
    return _change_pixels(
        coarse,
        replace(
            estimate,
            object=obj,
            object_values=values,
            probe=probe,
            opr=coarser(estimate.opr, c) if len(estimate.opr) else probe[:0].clone(),
            background=corner_crop(estimate.background, c),
        ),
        1 / c,
    )


def refine_estimate(estimate: Estimate, engine: Engine, coarse: Problem, fine: Problem) -> Estimate:
    """Return the estimate on the fine pixels again, and remove what the engine remembers of coarse ones. Collective.

    Args:
        estimate: on coarse pixels.
        engine: of the stage.
        coarse: the problem of the estimate.
        fine: that of the data.
    """
    c = engine.coarsen
    shapes = (estimate.object.shape, estimate.probe.shape)
    coarse_ones = {name for name, tensor in engine.state.items() if tensor.shape in shapes}
    # an optimiser keeps several tensors for one unknown: all of them go
    groups = tuple(name.split(".")[0] + "." for name in coarse_ones if "." in name)
    for name in [name for name in engine.state if name in coarse_ones or name.startswith(groups)]:
        del engine.state[name]
    background = engine.state.pop("fine_background")
    rows, columns = (inner(c, n, background.device) for n in background.shape[-2:])
    background[..., rows[:, None], columns] = estimate.background
    obj, values = _resample_object(estimate, lambda x: finer(coarse.layout.gather_whole(x, estimate), c) * c)
    probe = finer(estimate.probe, c) + engine.state.pop("beyond_probe")
    return _change_pixels(
        fine,
        replace(
            estimate,
            object=obj,
            object_values=values,
            probe=probe,
            opr=finer(estimate.opr, c) if len(estimate.opr) else probe[:0].clone(),
            background=background,
        ),
        float(c),
    )


def restore_coarse_estimate(estimate: Estimate, engine: Engine, fine: Problem, coarse: Problem) -> Estimate:
    """Return an estimate on coarse pixels that was read from a checkpoint by the fine problem. Collective.

    Args:
        estimate: on coarse pixels, in the fine problem's parts of the object.
        engine: of the stage; what it remembers of the object is cut likewise.
        fine: the problem that has read the estimate.
        coarse: that of `coarse_problem`.
    """
    shape = estimate.object.shape
    for name, tensor in engine.state.items():
        if tensor.shape == shape:
            engine.state[name] = _cut_part(coarse, estimate, fine.layout.gather_whole(tensor, estimate))[0]
    obj, corner = _cut_part(coarse, estimate, fine.layout.gather_whole(estimate.object, estimate))
    values = estimate.object_values
    if values is not None:
        values = _cut_part(coarse, estimate, fine.layout.gather_whole(values, estimate))[0]
    return replace(estimate, object=obj, corner=corner, object_values=values)


def _resample_object(estimate: Estimate, resampled: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return the object on other pixels and its values, where it has some: then it follows from these.

    Args:
        estimate: on the pixels so far.
        resampled: returns the whole of a field (L, H, W), complex, on the other pixels.
    """
    if estimate.object_values is None:
        return resampled(estimate.object), None
    values = resampled(estimate.object_values.to(estimate.object.dtype))
    if not estimate.object_values.is_complex():
        values = values.real.contiguous()
    return object_model_of(estimate.object_kind).transmission(values, estimate.absorption), values


def _change_pixels(problem: Problem, estimate: Estimate, factor: float) -> Estimate:
    """Return the estimate on pixels 1/factor times as large; the whole object becomes this rank's part."""
    positions = estimate.positions * factor
    height, width = estimate.object.shape[-2:]
    scaled = replace(
        estimate,
        positions=positions,
        nominal=estimate.nominal * factor,
        anchors=torch.floor(positions + 0.5).to(estimate.anchors.dtype),
        origin=(estimate.origin[0] * factor, estimate.origin[1] * factor),
        extent=(height, width),
    )
    scaled.object, scaled.corner = _cut_part(problem, scaled, scaled.object)
    if scaled.object_values is not None:
        scaled.object_values = _cut_part(problem, scaled, scaled.object_values)[0]
    return scaled


def _cut_part(problem: Problem, estimate: Estimate, full_field: Tensor) -> tuple[Tensor, tuple[int, int]]:
    part = problem.layout.place(estimate.extent, estimate.origin, estimate.anchors.cpu().numpy())
    return full_field[(slice(None), *part.inside((0, 0)))].clone(), part.corner
