"""Fields of the object that a result holds, and what it says of an object that follows from values."""

from __future__ import annotations

import numpy as np
import torch

from ptymesh.estimate import Estimate
from ptymesh.geometry import Geometry, electron_interaction
from ptymesh.physics.object_models import object_model_of
from ptymesh.physics.object_modes import mean_of_modes, phases_to_first
from ptymesh.problem import Problem
from ptymesh.unknowns import OTHERS


def fields_of_result(problem: Problem, estimate: Estimate) -> dict[str, torch.Tensor]:
    """Return this rank's parts of the fields of a result, (..., H, W), by name. Collective.

    Of several object modes, the object is the mean, after each plane's free phase is turned to that of the first
    mode; where it follows from values, it is the transmission of their mean.

    Args:
        problem: that the estimate solves.
        estimate: on this rank.
    """
    modes, values = estimate.object_modes, _phases(estimate)
    fields = {"object": estimate.object} if values is None else {"object": estimate.object, "potential": values}
    fields |= {OTHERS + one.name: estimate.others[one.name] for one in problem.model.tiled}
    if modes == 1:
        return fields
    if estimate.object_values is None:
        first = estimate.object[: estimate.slices].repeat(modes, 1, 1)
        pairs = [(a[None], b[None]) for a, b in zip(estimate.object, first, strict=True)]
        products = problem.layout.dots([pair for a, b in pairs for pair in ((a, b), (1j * a, b))], estimate)
        phases = phases_to_first(torch.view_as_complex(products.view(-1, 2).contiguous()))
        fields["object"] = mean_of_modes(estimate.object, modes, phases)
    else:
        mean = mean_of_modes(estimate.object_values, modes)
        fields["object"] = object_model_of(estimate.object_kind).transmission(mean, estimate.absorption)
        if values is not None:
            fields["potential"] = mean.real
    return fields | {"object_modes": estimate.object.unflatten(0, (modes, -1))}


def _phases(estimate: Estimate) -> torch.Tensor | None:
    """Return the phases of this rank's part of the object, where its values are phases that results keep."""
    if estimate.object_values is None or not object_model_of(estimate.object_kind).is_phase:
        return None
    return estimate.object_values.real.contiguous()


def describe_wraps(problem: Problem, estimate: Estimate) -> str:
    """Return a sentence on phases that are too long for scans of several energies; empty if none are. Collective.

    Args:
        problem: that the estimate solves.
        estimate: with an object that follows from values.
    """
    phases = estimate.object_values
    assert phases is not None
    owned = problem.layout.owned(estimate)
    reach = float(problem.fields.max(torch.where(owned, phases.real.abs(), 0.0)))
    if reach <= np.pi:
        return ""
    return (
        f"The phase of the object reaches more than half a turn in the first scan, {reach:.3g} rad, at which scans of "
        "several energies no longer share one potential; let the scan with the highest energy be the first, or "
        "reconstruct each by itself."
    )


def describe_object(estimate: Estimate, geometry: Geometry) -> dict[str, str | float]:
    """Return kind and absorption of an object that follows from values, and for electrons how volts turn phases."""
    if estimate.object_values is None:
        return {}
    model = object_model_of(estimate.object_kind)
    description: dict[str, str | float] = {"object_kind": model.name}
    if model.has_absorption:
        description["absorption"] = estimate.absorption
    if not model.is_phase:
        return description
    if geometry.radiation == "electron" and geometry.wavelength_m is not None:
        description["interaction_rad_per_V_nm"] = electron_interaction(geometry.wavelength_m) * 1e-9
    return description
