"""Steps that are taken again when memory runs out, on this rank alone.

The chunk is halved, or waves of a batch are computed a second time instead of kept, and the step is repeated. The other
ranks wait in their next collective and notice nothing. The step is begun anew from what it began with; sums over ranks
that it had received by then are given to it again (distributed.world.CollectiveLog) instead of being asked for. What is
computed before an epoch is begun anew likewise; checkpoints and results need little, and are tried again with what
caches give back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Literal, TypeVar

import torch
from torch import Tensor

from ptymesh.distributed.devices import KINDS, free_bytes
from ptymesh.distributed.world import CollectiveLog, World
from ptymesh.engines import Engine
from ptymesh.errors import BadInput, PtymeshError, ran_out_of_memory
from ptymesh.estimate import REACH, Estimate
from ptymesh.files import size
from ptymesh.limits import free_memory
from ptymesh.measurement import Measurement
from ptymesh.problem import CHUNK_BYTES, Batch, Problem
from ptymesh.recipe.initial import frame

Found = TypeVar("Found")
#: Arrays of a chunk's waves that exist at a time.
_WAVES = 10
#: Arrays of the object's shape: itself, two sums, one bucket.
_FIELDS = 4
#: Real numbers that every run needs for each pixel of a slice: the object, and an update's sum and weight.
_LEAST_REALS = 5
#: Bytes of a pixel of a probe mode, which is made in double precision.
_PROBE_PIXEL = 16


def check_object(
    world: World,
    scan: Measurement,
    slices: int,
    dtype: torch.dtype,
    layout: Literal["auto", "replicated", "tiled"],
    margin_px: int,
    modes: int = 1,
) -> None:
    """Raise BadInput where the object or the probe cannot fit into this rank's share of the memory.

    This comes before anything of their size is allocated.

    Args:
        world: the ranks.
        scan: its positions, window and name are used.
        slices: L.
        dtype: of the object, complex.
        layout: of the object on the ranks; only with `replicated` does each of them hold all of it.
        margin_px: object pixels kept free around the outermost windows.
        modes: of the probe, OPR modes among them.
    """
    height, width = frame(scan.positions, scan.window, max(margin_px, REACH))[1]
    object_bytes = _LEAST_REALS * slices * height * width * dtype.itemsize // 2
    needed = object_bytes if layout == "replicated" else object_bytes // world.size
    if world.device.type in KINDS:
        free = int(torch.get_device_module(world.device).get_device_properties(world.device).total_memory)
    else:
        free = free_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    h, w = scan.window
    if _PROBE_PIXEL * modes * h * w > free:
        raise BadInput(
            f"{modes} modes of {h} x {w} pixels need {size(_PROBE_PIXEL * modes * h * w)} on each rank, which has "
            f"{size(free)}: give a smaller probe.modes or probe.opr_modes, or crop or bin the patterns."
        )
    if needed > free:
        y, x = (float(side) for side in scan.positions.max(axis=0) - scan.positions.min(axis=0))
        sliced = f" in {slices} slices" if slices > 1 else ""
        raise BadInput(
            f"The positions of {scan.name} span {y:.4g} x {x:.4g} object pixels, and an object of {height} x {width} "
            f"pixels{sliced} needs {size(needed)} on each of {world.size} ranks, which have {size(free)}: check "
            f"positions.unit and the object pixel, or use more memory, ranks or layout: tiled."
        )


class Snapshot:
    """Copy on the host of the state with which a stage's first step begins, in which all workspaces are made."""

    def __init__(self, engine: Engine, problem: Problem, estimate: Estimate) -> None:
        self.engine, self.problem, self.estimate = engine, problem, estimate
        self.slices, self.absorption = (estimate.slice_spacing_m, estimate.tilt_rad), estimate.absorption
        self.tensors = {name: _copy_to_host(estimate[name]) for name in estimate}
        self.values = None if estimate.object_values is None else _copy_to_host(estimate.object_values)
        self.memories = [{name: _copy_to_host(tensor) for name, tensor in m.items()} for m in self._memories()]
        self.view_metrics = _copy_to_host(problem.evaluator.view_metrics.values)

    def _memories(self) -> list[MutableMapping[str, Tensor]]:
        return [self.engine.state, self.engine.per_view]

    def restore(self) -> None:
        """Put everything back as it was."""
        for name, tensor in self.tensors.items():
            self.estimate[name].copy_(tensor)
        self.estimate.slice_spacing_m, self.estimate.tilt_rad = self.slices
        self.estimate.absorption = self.absorption
        if self.estimate.object_values is not None and self.values is not None:
            self.estimate.object_values.copy_(self.values)
        for memory, saved in zip(self._memories(), self.memories, strict=True):
            devices = {name: tensor.device for name, tensor in memory.items()}
            memory.clear()
            memory.update({n: t.to(devices.get(n, self.problem.device), copy=True) for n, t in saved.items()})
        self.problem.evaluator.view_metrics.values.copy_(self.view_metrics)


def _snapshot_bytes(engine: Engine, estimate: Estimate) -> int:
    tensors = [estimate[name] for name in estimate]
    tensors += [*engine.state.values(), *engine.per_view.values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _copy_to_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def step(engine: Engine, problem: Problem, estimate: Estimate, batch: Batch, *, first: bool) -> None:
    """Take a step of the engine; out of memory this rank makes room, says so on stderr, and tries again.

    Before the first step of a stage all that it changes is copied to the host, if a quarter of the free memory holds
    it, so that the step can be taken again. A later step, of which there is no copy, is taken again only if nothing had
    been received from other ranks, and if the engine has no memory for each view, which it might have changed already.

    Args:
        engine: of the stage.
        problem: that is solved.
        estimate: changed in place.
        batch: views of the step.
        first: True for the first step of a stage.

    Raises:
        PtymeshError: with an estimate of the memory, where there is nothing left to do without.
    """
    first = first and 4 * _snapshot_bytes(engine, estimate) < free_bytes(torch.device("cpu"))
    snapshot = Snapshot(engine, problem, estimate) if first else None

    def restore() -> bool:
        if snapshot:
            snapshot.restore()
        return first or not engine.per_view

    _retry_with_less_memory(lambda: engine.step(problem, estimate, batch), problem, estimate, restore, keep=first)


def before_epoch(engine: Engine, problem: Problem, estimate: Estimate) -> None:
    """Call the engine's `before_epoch`; out of memory it begins anew if it had received nothing from other ranks yet.

    Args:
        engine: of the stage.
        problem: that is solved.
        estimate: as it is at the start of the epoch.
    """
    _retry_with_less_memory(lambda: engine.before_epoch(problem, estimate), problem, estimate, lambda: True, keep=False)


def retry_out_of_memory(problem: Problem, act: Callable[[], Found]) -> Found:
    """Return what `act` returns; out of memory, give back all that is held to be faster, and call it once more.

    Args:
        problem: whose caches are given back.
        act: asks nothing of other ranks.
    """
    try:
        return act()
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
    problem.setup.give_back()
    return act()


def _retry_with_less_memory(
    act: Callable[[], None], problem: Problem, estimate: Estimate, restore: Callable[[], bool], *, keep: bool
) -> None:
    """Call `act`, and call it again with less memory each time that it runs out of it.

    Args:
        act: the step.
        problem: makes room on this rank.
        estimate: for the message where no room is left.
        restore: puts back what was there before, and returns True if that was possible.
        keep: True to keep what ranks send, so that it can be given to `act` again.
    """
    world = problem.world
    world.record = record = CollectiveLog(world.collectives, keep=keep)
    try:
        while True:
            failure = ""
            try:
                act()
                return
            except (MemoryError, RuntimeError) as error:
                if not ran_out_of_memory(error):
                    raise
                failure = " ".join(str(error).split())[:200]
            # outside the handler, the frames of the failure and the tensors that they held have been freed
            problem.setup.give_back()
            sentence = problem.make_room() if record.rewind(world.collectives) and restore() else ""
            if not sentence:
                raise PtymeshError(
                    f"Rank {world.rank} ran out of memory ({failure}). {memory_sentence(problem, estimate)}"
                )
            print(f"ptymesh: rank {world.rank} ran out of memory; {sentence}.", file=sys.stderr, flush=True)
    finally:
        world.record = None


def memory_sentence(problem: Problem, estimate: Estimate) -> str:
    """Return a sentence with the memory that this rank needs, roughly, and has."""
    wave, views = estimate.probe.numel() * estimate.probe.element_size(), len(problem.layout.own)
    frame = problem.window[0] * problem.window[1]
    patterns = views * frame * problem.loader.patterns.dtype.itemsize if problem.loader.patterns.kind == "device" else 0
    parts = {
        f"the patterns of its {views} views": patterns,
        "the object and its sums": _FIELDS * estimate.object.numel() * estimate.object.element_size(),
        "one chunk": _WAVES * max(wave, min(CHUNK_BYTES.get(problem.device.type, CHUNK_BYTES["cuda"]), wave * views)),
    }
    sizes = ", ".join(f"{size(bytes_)} for {part}" for part, bytes_ in parts.items())
    return (
        f"It needs about {size(sum(parts.values()))} ({sizes}) and has {size(free_bytes(problem.device))} free; "
        "use more ranks or fewer modes, crop or bin the patterns, or choose precision: single."
    )
