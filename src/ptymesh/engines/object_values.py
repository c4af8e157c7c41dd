"""Objects that follow from values: what engines do to a transmission is carried over to the values of its model.

V, O, a     values, transmission, absorption (physics/object_models)

An engine that descends slopes moves V itself (gradients/autodiff.py). Of an engine that changes O, the loop takes the
change D of each step, moves V by the least-squares step towards it, and computes O anew: only on blocks that the batch
has touched.
"""

from __future__ import annotations

from ptymesh.engines.base import Engine
from ptymesh.engines.constraints.limits import Phase
from ptymesh.engines.gradients.autodiff import Autodiff
from ptymesh.engines.gradients.elementwise import Elementwise
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.physics.object_models import object_model_of
from ptymesh.problem import Batch, Problem
from ptymesh.registry import with_article


def check(engine: Engine, problem: Problem, estimate: Estimate) -> None:
    """Check that a stage can move an object of this model.

    Args:
        engine: of the stage.
        problem: the problem that is solved.
        estimate: the unknowns.

    Raises:
        BadInput: the engine, one of its options or of its constraints is for transmissions alone, or the absorption
            of an object moves that has none.
    """
    kind = estimate.object_kind
    one = with_article(kind)
    has_absorption = estimate.object_values is not None and object_model_of(kind).has_absorption
    if not has_absorption and isinstance(engine, Elementwise) and engine.unknowns.absorption:
        raise BadInput(
            f"unknowns.absorption is not of an object that is {one}; add object: {{kind: potential}}, or remove it."
        )
    if estimate.object_values is None:
        return
    photons = problem.model.energies is not None and problem.geometry.radiation == "photon"
    if photons and isinstance(engine, Elementwise) and engine.unknowns.absorption:
        raise BadInput(
            "unknowns.absorption is one number, and that of photons differs between energies of scans; remove it."
        )
    remedy = "or use object: {kind: transmission}"
    if not engine.moves_object_values:
        raise BadInput(f"{engine.name} cannot move {one}; use rpie, epie, lsqml, adam or lbfgs, {remedy}.")
    if "object" in problem.model.replaced:
        raise BadInput(f"A piece of the optics takes the part of the object; remove it, {remedy}.")
    if isinstance(engine, Autodiff) and engine.parametrisation != "complex":
        raise BadInput(
            f"parametrisation {engine.parametrisation} is of a transmission, and {one} has none; leave it out, "
            f"{remedy}."
        )
    for constraint in engine.all_constraints():
        if isinstance(constraint, Phase) and not object_model_of(kind).is_phase:
            raise BadInput(f"object.phase limits phases, which the values of {one} are not; remove it from the stage.")
        does, free = constraint.of_potential, object_model_of(kind).is_complex
        if free and does == "no":
            raise BadInput(
                f"{engine.key_of(constraint)} is of phases between -pi and pi, and those of {one} have no wraps; "
                f"remove it from the stage, {remedy}."
            )
        if not free and does in ("amplitudes", "no"):
            raise BadInput(
                f"{engine.key_of(constraint)} changes amplitudes or turns phases, which {one} does not leave free; "
                f"remove it from the stage, {remedy}."
            )


def after_batch(engine: Engine, problem: Problem, estimate: Estimate, batch: Batch) -> None:
    """Carry the change of the transmission by a batch over to the values.

    Args:
        engine: of the stage; one that moves the values themselves has done so.
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        batch: the views, with the sums of their step, which name the blocks that have changed.
    """
    sums = batch.view_updates.gradients
    if estimate.object_values is None or isinstance(engine, Autodiff) or sums is None or "object" in batch.frozen:
        return
    fields, like = problem.fields, sums.object
    model, absorption = object_model_of(estimate.object_kind), estimate.absorption
    before = fields.touched(estimate.object_values, like).values.contiguous()
    moved = model.followed(before, fields.touched(estimate.object, like).values.contiguous(), absorption)
    fields.put(estimate.object_values, like.of(moved))
    fields.put(estimate.object, like.of(model.transmission(moved, absorption)))


def after_epoch(engine: Engine, estimate: Estimate) -> None:
    """Carry a change of the transmission at the end of an epoch over to the values.

    Args:
        engine: of the stage; one that moves the values themselves changes nothing there.
        estimate: the unknowns, changed in place.
    """
    if estimate.object_values is None or isinstance(engine, Autodiff):
        return
    model, values = object_model_of(estimate.object_kind), estimate.object_values
    values.copy_(model.followed(values, estimate.object, estimate.absorption))
    estimate.object.copy_(model.transmission(values, estimate.absorption))
