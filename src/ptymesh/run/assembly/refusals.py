"""Refusals and doubts, before a reconstruction begins, of what several scans cannot share or have for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import scipy

from ptymesh.distributed.world import World
from ptymesh.engines import Engine
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.measurement import Measurement
from ptymesh.physics.operators import Piece
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions
from ptymesh.registry import with_article
from ptymesh.verdict.signs import disc_diameter

#: Diameters of the beam between views of two scans, as it starts, beyond which these share nothing of an object.
APART = 2.0


def refuse_moves_of_all(stages: Sequence[Engine]) -> None:
    """Raise BadInput where a stage moves all views alike, and each scan has an object of its own.

    Args:
        stages: of the run.
    """
    for stage in stages:
        models = [f"models.{name}" for name, model in stage.models.items() if model.of == "positions"]
        if stage.positions and stage.positions.affine:
            models.append("positions.affine")
        if models:
            raise BadInput(
                f"{models[0]} moves the views of all scans about one middle, and each scan has an object of its own "
                f"beside the others; remove it from {stage.name}, or use object.scans: shared."
            )


def doubt_of_scans_apart(scan: Measurement, estimate: Estimate) -> str:
    """Return a sentence that names a scan whose beam never meets that of the others; empty where there is none.

    Args:
        scan: the joined scans, or a single one.
        estimate: with positions, and the probe as far as it is known.
    """
    if scan.scan_index is None or scan.displaced_px is not None:
        return ""
    power = estimate.probe.abs().square().sum(0).cpu().numpy().astype(np.float64)
    diameter = disc_diameter(power)
    positions, distances = estimate.positions.cpu().numpy(), np.zeros((scan.scans, scan.scans))
    trees = [scipy.spatial.cKDTree(positions[scan.scan_index == number]) for number in range(scan.scans)]
    for a, b in combinations(range(scan.scans), 2):
        distances[a, b] = distances[b, a] = trees[a].query(trees[b].data)[0].min()
    _, groups = scipy.sparse.csgraph.connected_components(distances <= min(APART * diameter, *power.shape))
    if not groups.any():
        return ""
    odd = int(np.flatnonzero(groups)[0])
    return (
        f"{scan.scan_names[odd]} shows nothing of what {scan.scan_names[0]} does: their views are at least "
        f"{distances[odd, groups == 0].min():.0f} pixels apart, and the beam is some {diameter:.0f} wide. Where one "
        f"lies to the other is as told, and nothing can check it; mend shift_px, or use object.scans: own."
    )


def refuse_shift_of_scans_apart(scan: Measurement, estimate: Estimate, stages: Sequence[Engine]) -> None:
    """Raise BadInput where a stage looks for the shift of a scan whose beam never meets that of the others.

    Args:
        scan: the joined scans, or a single one.
        estimate: with positions and probe.
        stages: of the run.
    """
    is_shift_asked = any("scan_shift" in stage.models for stage in stages)
    if is_shift_asked and (doubt := doubt_of_scans_apart(scan, estimate)):
        raise BadInput(f"models.scan_shift has nothing to go by: {doubt}")


def refuse_energies(scan: Measurement, obj: ObjectOptions, operators: Sequence[Piece]) -> None:
    """Raise BadInput where scans of several energies cannot share an object.

    Args:
        scan: the joined scans.
        obj: the object that they would share.
        operators: pieces of the model.
    """
    if obj.kind != "potential":
        raise BadInput(
            f"The energies of the scans differ, and {with_article(obj.kind)} is not the same in all; use object: "
            "{kind: potential}, or reconstruct each by itself."
        )
    if obj.slices > 1:
        raise BadInput(
            "Scans of several energies share a single slice, as waves between slices depend on the energy; use "
            "object.slices: 1, or reconstruct each by itself."
        )
    if obj.absorption and scan.geometry.radiation == "photon":
        raise BadInput(
            "The absorption of photons does not follow their phase from one energy to another; use object.absorption: "
            "0, or reconstruct each by itself."
        )
    if odd := next((one for one in operators if one.depends_on_wavelength), None):
        raise BadInput(
            f"{odd.label} is of one wavelength, and the energies of the scans differ; remove it, or reconstruct each "
            "by itself."
        )


def refuse_own_probes(
    scan: Measurement, obj: ObjectOptions, probe: ProbeOptions, operators: Sequence[Piece], world: World
) -> None:
    """Raise BadInput where scans cannot have probes of their own.

    Args:
        scan: the joined scans, or a single one.
        obj: where the object starts.
        probe: where the probes would start.
        operators: pieces of the model.
        world: the ranks.
    """
    remedy = "use probe.scans: shared"
    if scan.scan_index is None:
        raise BadInput(f"probe.scans is own, and there is a single scan; give several, or {remedy}.")
    if probe.opr_modes:
        raise BadInput(f"probe.opr_modes are of a single probe, and each scan has its own; remove them, or {remedy}.")
    if probe.start.kind == "result" or obj.from_result:
        raise BadInput(f"An earlier result is no start of a probe for each scan; use another start, or {remedy}.")
    if world.device.type != "cpu":
        raise BadInput(f"Probes of each scan's own are for CPUs (--device cpu); run there, or {remedy}.")
    for one in operators:
        if not one.for_own_probes:
            raise BadInput(
                f"optics.{one.name} is of a single probe, and each scan has its own; remove it, or {remedy}."
            )
