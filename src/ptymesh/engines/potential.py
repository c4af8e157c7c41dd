"""Objects that are potentials: what engines do to a transmission is carried over to the potential that it follows from.

V, O, a     potential, transmission, absorption (physics/potential.py)

An engine that descends slopes moves V itself (gradients/autodiff.py). Of an engine that changes O, the loop takes the
change D of each step, moves V by the least-squares step towards it, and computes O anew: only on blocks that the batch
has touched.
"""

from __future__ import annotations

from ptymesh.engines.base import Engine
from ptymesh.engines.gradients.autodiff import Autodiff
from ptymesh.engines.gradients.elementwise import Elementwise
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.physics.potential import followed, transmission
from ptymesh.problem import Batch, Problem


def check(engine: Engine, problem: Problem, estimate: Estimate) -> None:
    """Check that a stage can move an object that is a potential.

    Args:
        engine: of the stage.
        problem: the problem that is solved.
        estimate: the unknowns.

    Raises:
        BadInput: the engine, one of its options or of its constraints is for transmissions alone, or the absorption
            of an object moves that has none.
    """
    if estimate.potential is None:
        if isinstance(engine, Elementwise) and engine.unknowns.absorption:
            raise BadInput(
                "unknowns.absorption is of an object that is a potential; add object: {kind: potential}, or remove it."
            )
        return
    remedy = "or use object: {kind: transmission}"
    if not engine.moves_potential:
        raise BadInput(f"{engine.name} cannot move a potential; use rpie, epie, lsqml, adam or lbfgs, {remedy}.")
    if "object" in problem.model.replaced:
        raise BadInput(f"A piece of the optics takes the part of the object; remove it, {remedy}.")
    if isinstance(engine, Autodiff) and engine.parametrisation != "complex":
        raise BadInput(
            f"parametrisation {engine.parametrisation} is of a transmission, and a potential has none; leave it out, "
            f"{remedy}."
        )
    for constraint in engine.all_constraints():
        if constraint.of_potential == "no":
            raise BadInput(
                f"The constraint {type(constraint).__name__} changes amplitudes or turns phases, which a potential "
                f"does not leave free; remove it from the stage, {remedy}."
            )


def after_batch(engine: Engine, problem: Problem, estimate: Estimate, batch: Batch) -> None:
    """Carry the change of the transmission by a batch over to the potential.

    Args:
        engine: of the stage; one that moves the potential itself has done so.
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        batch: the views, with the sums of their step, which name the blocks that have changed.
    """
    sums = batch.view_updates.gradients
    if estimate.potential is None or isinstance(engine, Autodiff) or sums is None or "object" in batch.frozen:
        return
    fields, like = problem.fields, sums.object
    before = fields.touched(estimate.potential, like).values.contiguous()
    moved = followed(before, fields.touched(estimate.object, like).values.contiguous(), estimate.absorption)
    fields.put(estimate.potential, like.of(moved))
    fields.put(estimate.object, like.of(transmission(moved, estimate.absorption)))


def after_epoch(engine: Engine, estimate: Estimate) -> None:
    """Carry a change of the transmission at the end of an epoch over to the potential.

    Args:
        engine: of the stage; one that moves the potential itself changes nothing there.
        estimate: the unknowns, changed in place.
    """
    if estimate.potential is None or isinstance(engine, Autodiff):
        return
    estimate.potential.copy_(followed(estimate.potential, estimate.object, estimate.absorption))
    estimate.object.copy_(transmission(estimate.potential, estimate.absorption))
