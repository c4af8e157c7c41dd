"""Object, probe, memory and counts of a live reconstruction, and how they are taken up again from its folder.

N       frames so far
L, H, W slices, object pixels
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ptymesh.errors import PtymeshError
from ptymesh.io.results import Result
from ptymesh.live.choice import choose_views
from ptymesh.live.object_parts import join_part, paste
from ptymesh.physics.object_models import object_model_of

#: Files of a live run: the picture so far, a line for each segment, and in the end numbers on the whole run.
PICTURE, LOG, SUMMARY = "live.h5", "live.jsonl", "live.json"
#: Array among a result's unknowns: values of an object that its potential does not hold all of.
OBJECT_VALUES = "object_values"
#: What names of an engine's memory begin with among a result's unknowns.
MEMORY = "memory."
#: Attributes of a result that say how an object follows from its values.
ABOUT_OBJECT = ("object_kind", "absorption", "interaction_rad_per_V_nm")


@dataclass
class LiveState:
    """Object, probe and counts that go from one segment to the next.

    Attributes:
        object: (L, H, W) complex, as far as the scan has reached; None before the first segment.
        probe: (M, h, w) complex.
        zero: (2,) object pixel at which the scan's own coordinates have their zero.
        uses: (N,) int64, updates that have seen each view.
        segments: number of segments done.
        values: (L, H, W) real or complex, of an object that follows from them; None for others.
        about_object: attributes of a result that say how it follows.
        memory: what the engine remembers, by name; tensors of the object's shape reach as far as it.
    """

    object: torch.Tensor | None = None
    probe: torch.Tensor | None = None
    zero: np.ndarray = field(default_factory=lambda: np.zeros(2, np.int64))
    uses: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    segments: int = 0
    values: torch.Tensor | None = None
    about_object: dict[str, str | float] = field(default_factory=dict)
    memory: dict[str, torch.Tensor] = field(default_factory=dict)

    def admit_frames(self, count: int) -> None:
        """Count `count` frames as there; those that are new have not been used."""
        self.uses = np.concatenate((self.uses, np.zeros(count - len(self.uses), np.int64)))

    def part_of_memory(self, part: torch.Tensor, zero: np.ndarray) -> dict[str, torch.Tensor]:
        """Return what the engine remembers, of a part of the object that is going to be updated.

        Args:
            part: (L, H', W') complex.
            zero: (2,) its pixel at which the scan's own coordinates have their zero.
        """
        by_name = {}
        for name, memory in self.memory.items():
            by_name[name] = memory.clone()
            if self.object is not None and memory.shape == self.object.shape:
                by_name[name] = torch.zeros(part.shape, dtype=memory.dtype, device=memory.device)
                paste(memory, by_name[name], zero - self.zero)
        return by_name

    def keep_memory(self, memory: dict[str, torch.Tensor], part: torch.Tensor, zero: np.ndarray) -> None:
        """Keep what the engine remembers after an update, before the object itself is kept.

        Args:
            memory: by name, of the part.
            part: (L, H', W') complex, as in `part_of_memory`.
            zero: (2,) likewise.
        """
        for name, tensor in memory.items():
            if tensor.shape == part.shape:
                self.memory[name], _ = join_part(self.memory.get(name), self.zero, tensor, zero, outside=0.0)
            else:
                self.memory[name] = tensor.clone()


def kept_fields(state: LiveState, kind: str) -> dict[str, Any]:
    """Return the fields of a result that hold the object's values and the engine's memory to the last bit.

    Args:
        state: to be kept.
        kind: of the object.
    """
    unknowns = {MEMORY + name: tensor.cpu().numpy() for name, tensor in state.memory.items()}
    fields: dict[str, Any] = {"unknowns": unknowns}
    if (values := state.values) is None:
        return fields
    is_phase = object_model_of(kind).is_phase
    if is_phase:
        fields["potential"] = values.real.cpu().numpy()
    if not is_phase or values.is_complex():
        reals = torch.view_as_real(values) if values.is_complex() else values
        unknowns[OBJECT_VALUES] = reals.cpu().numpy()
    return fields


def _values_of(result: Result) -> torch.Tensor | None:
    """Return the values (L, H, W) of the object of a result that holds what `kept_fields` returns."""
    reals = result.unknowns.get(OBJECT_VALUES, result.potential)
    if reals is None:
        return None
    values = torch.from_numpy(reals)
    return torch.view_as_complex(values) if values.ndim == result.object.ndim + 1 else values


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of live.jsonl, none where there is no such file."""
    if not path.exists():
        return []
    complete_lines, _, _ = path.read_text().rpartition("\n")  # the last line may have been cut short
    return [json.loads(line) for line in complete_lines.splitlines()]


def restore_state(folder: Path, recipe: str, seed: int) -> tuple[LiveState, list[dict[str, Any]]]:
    """Return what a live run in this folder has come to, and its lines of live.jsonl so far.

    The log says which frames were there for each segment, from which follows how often each was used.

    Args:
        folder: of the run.
        recipe: as YAML; an object that came from another one is not gone on with.
        seed: of the choice of views.

    Returns:
        The state and its lines; an empty state without lines where there is nothing to go on from.
    """
    nothing: tuple[LiveState, list[dict[str, Any]]] = (LiveState(), [])
    if not (folder / PICTURE).exists():
        return nothing
    try:
        result, rows = Result.load(folder / PICTURE), read_log(folder / LOG)
    except (PtymeshError, OSError, ValueError):  # all frames are there, and lead to a new object
        return nothing
    segments, zero = result.attrs.get("segments"), [result.attrs.get(f"zero_{axis}") for axis in "yx"]
    if segments is None or None in zero or result.recipe != recipe or len(rows) < segments:
        return nothing
    state = LiveState(
        torch.from_numpy(result.object),
        torch.from_numpy(result.probe),
        np.array(zero, np.int64),
        segments=int(segments),
        values=_values_of(result),
        about_object={name: result.attrs[name] for name in ABOUT_OBJECT if name in result.attrs},
        memory={
            name.removeprefix(MEMORY): torch.from_numpy(values)
            for name, values in result.unknowns.items()
            if name.startswith(MEMORY)
        },
    )
    rows = rows[: state.segments]
    for number, row in enumerate(rows):
        state.admit_frames(row["frames"])
        views = choose_views(state.uses, row.get("wanted", 0), seed, number, ended=row.get("ended", False))
        if len(views) != row["views"]:  # of a program that chose otherwise
            return nothing
        state.uses[views] += 1
    return state, rows
