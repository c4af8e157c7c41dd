"""Checks of what Python gives to a reconstruction, each with one sentence about what to mend: scan, stages, options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ByteSize, TypeAdapter, ValidationError

from ptymesh.engines import Engine
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.io.joint_scans import join_measurements
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.measurement import Measurement
from ptymesh.models import OPTICS, Piece, named
from ptymesh.options import Options, plain
from ptymesh.paths import usable
from ptymesh.recipe.schema import engine_of
from ptymesh.sentences import quote
from ptymesh.storage.memory_budget import MemoryBudget

#: A stage as Python gives it: an engine, or the dict that a recipe would have.
Stage = Engine | dict[str, Any]


def operators_of(options: object) -> tuple[Piece, ...]:
    """Return the operators that these options ask for. Raises BadInput."""
    if options is None:
        return ()
    if not isinstance(options, dict):
        raise BadInput(f"optics is {quote(options)}; give a dict of operators, such as {{'view_defocus': True}}.")
    try:
        return tuple(named(options, OPTICS, "optics").values())
    except ValueError as error:
        raise BadInput(f"optics: {error}.") from error


def memory_of(budget: int | str | None, scratch: str | Path | None) -> MemoryBudget:
    """Return the memory budget of patterns. Raises BadInput.

    Args:
        budget: bytes, or a size such as "4GB"; None: no limit.
        scratch: folder in which patterns beyond it are staged; None: the system's for temporary files.
    """
    try:
        most_bytes = TypeAdapter(ByteSize | None).validate_python(plain(budget))
    except (ValidationError, OverflowError) as error:
        raise BadInput(f"memory_budget is {quote(budget)}; give a size, such as 500MB or 4GB.") from error
    if isinstance(budget, bool) or (most_bytes is not None and most_bytes <= 0):
        raise BadInput(f"memory_budget is {quote(budget)}; give a size above 0, such as 500MB or 4GB.")
    return MemoryBudget(most_bytes, None if scratch is None else usable(scratch, "scratch"))


Group = TypeVar("Group", bound=Options)


def options_of(model: type[Group], options: dict[str, object] | None, key: str) -> Group:
    """Return the model of these options.

    Args:
        model: class of the group of options.
        options: keys and values; None: the defaults.
        key: of the group in a recipe, for messages.

    Raises:
        BadInput: in one sentence, the first thing to mend.
    """
    if options is None:
        options = {}
    if not isinstance(options, dict):
        raise BadInput(f"{key} is of type {type(options).__name__}; give a dict with keys of a recipe's {key}.")
    return model.parse(options, key)


def join_scans(scans: Sequence[Measurement]) -> Measurement:
    """Return a scan, or several as one measurement."""
    return scans[0] if len(scans) == 1 else join_measurements(scans, [(0.0, 0.0)] * len(scans))


def scans_from(source: object) -> list[Measurement]:
    """Return the scans that are to be reconstructed: one or several Measurements, or those at paths."""
    if isinstance(source, Measurement):
        return [source]
    if isinstance(source, str | Path):
        return [load(source)]
    if isinstance(source, list | tuple) and source:
        for index, one in enumerate(source):
            if any(one is other or (isinstance(one, str | Path) and one == other) for other in source[:index]):
                raise BadInput(f"Scan {index + 1} of the list is one before it, which would count its views twice.")
        return [scan for one in source for scan in scans_from(one)]
    kind = "an empty list" if isinstance(source, list | tuple) else f"of type {type(source).__name__}"
    raise BadInput(f"The scan is {kind}; give what ptymesh.load returned, a path, or a list of several.")


def seed_of(seed: object) -> int:
    """Return a seed as an int. Raises BadInput where it is none."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise BadInput(f"seed is {quote(seed)}; give a whole number from 0 on, below 2**63.")
    return int(seed)


def stages_of(stages: object) -> list[Engine]:
    """Return engines, made of one, of a dict of a recipe's stage, or of a list of them.

    Raises:
        BadInput: a stage cannot be, or there is none.
    """
    several = stages if isinstance(stages, list | tuple) else [stages]
    if not several:
        raise BadInput("There is no stage; give at least one, such as ptymesh.RPIE(epochs=50).")
    return [one if isinstance(one, Engine) else engine_of(f"stages.{i}", one) for i, one in enumerate(several)]


def load(path: str | Path, positions: dict[str, Any] | None = None, **data: Any) -> Measurement:
    """Load a scan from a file whose format is found by content.

    Args:
        path: of the file.
        positions: keys of a recipe's `positions`.
        data: keys of a recipe's `data`.

    Raises:
        BadInput: the file is unsound.
    """
    if not isinstance(path, str | Path):
        raise BadInput(
            f"A scan is loaded from a file, not from a {type(path).__name__}; write arrays to one with "
            f"numpy.savez('scan.npz', patterns=..., positions=...), and name them: "
            f"load('scan.npz', keys={{'patterns': 'patterns', 'positions': 'positions'}})."
        )
    position_options = options_of(PositionOptions, positions, "positions")
    return load_measurement(options_of(DataOptions, {"path": path, **data}, "data"), position_options)
