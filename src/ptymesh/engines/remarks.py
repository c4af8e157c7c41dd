"""Sentences on a stage whose options cannot do all that they say, and the name of the stage in refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pydantic import BaseModel

from ptymesh.engines.base import Engine, ObjectConstraints, ProbeConstraints
from ptymesh.engines.constraints.base import RisingStrength
from ptymesh.errors import BadInput
from ptymesh.physics.fidelity import fidelity_of
from ptymesh.schedule import Schedule
from ptymesh.unknowns import Unknown

#: Keys that only a stage has, as messages of engines and constraints name them.
_OWN_KEYS = "|".join(
    [r"(?:constraints|models|unknowns)\.\w"]
    + [rf"probe\.{name}\b" for name in ProbeConstraints.model_fields]
    + [rf"object\.{name}\b" for name in ObjectConstraints.model_fields]
)


@contextmanager
def naming_stage(key: str) -> Iterator[None]:
    """Name the stage, as `stages.0`, in what is refused within: `constraints.X` becomes `stages.0.constraints.X`."""
    try:
        yield
    except BadInput as error:
        named = re.sub(rf"(?<![\w.])(?={_OWN_KEYS})", f"{key}.", str(error))
        raise BadInput(named) from error


def remarks_on_stage(engine: Engine, index: int, optics: Sequence[Unknown] = (), *, are_counts: bool) -> list[str]:
    """Return a sentence for each option of a stage that cannot do all that it says.

    Args:
        engine: with its options.
        index: of the stage, from 0.
        optics: unknowns of the model's operators.
        are_counts: the patterns are counts.
    """
    remarks = []
    for key, schedule in _find_schedules(engine, f"stages.{index}"):
        last = min(engine.epochs, schedule.stop or engine.epochs)
        if schedule.start > engine.epochs:
            remarks.append(
                f"{key} starts in epoch {schedule.start}, and the stage has {engine.epochs}: it does nothing; lower "
                f"start, or raise epochs."
            )
        elif isinstance(schedule, RisingStrength) and schedule.start + schedule.rise > last:
            remarks.append(
                f"{key} rises until epoch {schedule.start + schedule.rise} and ends in epoch {last}, at a strength of "
                f"{schedule.at_epoch(last).strength:.2g} in place of {schedule.strength:.2g}; lower rise."
            )
    for constraint in engine.all_constraints():
        for name in constraint.named_unknowns:
            if not engine.refines(name, optics):
                remarks.append(
                    f"stages.{index}.{engine.key_of(constraint)} is of {name}, which the stage does not refine: it "
                    "does nothing but to values that it begins with; refine them in the stage, or remove it."
                )
    if fidelity_of(engine.fidelity).needs_counts and not are_counts:
        remarks.append(
            f"stages.{index}.fidelity is {engine.fidelity}, which is for counts, and the patterns are none: what it "
            "adds to them is of another size; set data.gain, or use amplitude."
        )
    return remarks


def _find_schedules(options: BaseModel, key: str) -> Iterator[tuple[str, Schedule]]:
    """Yield the keys of options, and those within them, that have a schedule, with these."""
    for name in type(options).model_fields:
        value = getattr(options, name)
        groups = value if isinstance(value, dict) else {"": value}
        for inner, one in groups.items():
            if isinstance(one, BaseModel):
                path = f"{key}.{name}.{inner}" if inner else f"{key}.{name}"
                if isinstance(one, Schedule):
                    yield path, one
                yield from _find_schedules(one, path)
