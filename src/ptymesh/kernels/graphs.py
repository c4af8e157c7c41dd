"""The sweep of a chunk, and other work that comes again, as a CUDA graph: launched as one, instead of kernel by kernel.

A graph repeats what was launched while it was captured, on the same memory. What stays from batch to batch (object,
probe, patterns, the object's sums) it uses where it is; what a chunk or a batch brings is copied to where it was then,
and what is found is copied from there. A chunk that is smaller is filled up with views of no light, which add nothing.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import is_not
from typing import Any, TypeVar

import torch
from torch import Tensor

from ptymesh.kernels.fused import FusedBackend, FusedIntermediates
from ptymesh.physics.backend import Adjoints, Backend, Chunk, Task
from ptymesh.physics.model import Model

Result = TypeVar("Result")
#: What a graph does: the task, whether no view of a chunk is shifted, whether the probe's sums are, their parts, and
#: whether waves are kept.
Work = tuple[Task, bool, bool, int, bool]
#: What is to be known of a graph to see that it fits: its work, and how many views it has.
Key = tuple[Work, int]

#: Devices whose launches can be captured (torch calls ROCm's cuda too).
CAPTURING = ("cuda",)
#: A chunk of a size that comes for this time is captured.
TIMES = 2
#: So many graphs are kept; they share the memory of their waves.
MOST = 8
#: So many works besides: of each there are few, as batches have two sizes.
MOST_WORKS = 32
#: A chunk is filled up if it has at least this part of the views that the graph was captured with.
FULL = 0.75


class Graphs:
    """Graphs of the sweeps that come again and again, each captured when it is worth it.

    Args:
        bring: copies what a chunk's views have of their own to a chunk of as many, or more.
    """

    def __init__(self, bring: Callable[[Chunk, Chunk], None]) -> None:
        self._bring = bring
        self._refused = self._works_refused = False
        self.forget()

    def forget(self) -> None:
        """Lets go of all of them, and of their memory."""
        #: What all graphs use where it is: while it is held, nothing else comes to lie there.
        self._standing: tuple[Model | Tensor, ...] = ()
        self._seen: Counter[Key] = Counter()
        self._graphs: dict[Key, _Graph] = {}
        #: torch's memory pool that they share, as no two of them run at the same time.
        self._pool: Any = None
        #: Other work, each with memory of its own: what comes of it is read while other graphs run.
        self._works: dict[Any, _Work] = {}

    def captures(self, device: torch.device) -> bool:
        """Whether launches of sweeps can be captured there, for all that is known."""
        return device.type in CAPTURING and not self._refused

    def sweep(
        self,
        backend: FusedBackend,
        model: Model,
        chunk: Chunk,
        intermediates: FusedIntermediates,
        task: Task,
        into: Adjoints,
        keep: bool,
    ) -> tuple[Tensor | None, ...] | None:
        """What `Backend.sweep` finds of each view (B, 6), and with `keep` chi, and probes of the views' own; the sums
        are added. None, and nothing done, without graph. All lasts until the next launch.

        backend: whose passes are captured; not their `sweep`, which asks for graphs.
        """
        assert into.object is not None and into.object_weight is not None and into.probe is not None
        assert intermediates.probe is not None
        stays = [getattr(chunk, name) for name in ("counts", "mask", "background") if name not in _brought(chunk)]
        sums = into.object, into.object_weight, into.probe, into.probe_weight, into.shifts, into.reached
        self._keep(model, intermediates.whole_object, intermediates.probe, *stays, *sums)
        key = ((task, chunk.integer_positions, into.shifted, into.parts, keep), chunk.views.shape[0])
        graph = self._fitting(key) or self._new(key, backend, model, chunk, intermediates, into)
        return None if graph is None else graph.replay(self._bring, chunk)

    def repeat(
        self, name: tuple[Any, ...], work: Callable[..., Result], given: tuple[Tensor, ...], brought: tuple[Tensor, ...]
    ) -> Result:
        """What `work` makes of the tensors given, which it uses where they are, and of those that are brought, which go
        to where they were before; see `Backend.repeat`."""
        if self._works_refused or (given + brought)[0].device.type not in CAPTURING:
            return work(*given, *brought)
        name = (*name, *((tensor.shape, tensor.dtype) for tensor in brought))
        kept = self._works.get(name)
        if kept is None or any(map(is_not, given, kept.given)):
            if kept is not None or len(self._works) < MOST_WORKS:
                self._works[name] = _Work(given)
            return work(*given, *brought)  # which plans what cannot be planned later
        if kept.launch is None:
            kept.brought = tuple(tensor.clone() for tensor in brought)
            try:
                captured_work = partial(work, *given, *kept.brought)
                kept.launch, kept.result, _ = captured(captured_work, (given + brought)[0].device, None)
            except RuntimeError as error:
                self._works_refused = True
                self._works.clear()
                _say(f"{name[0]} cannot be", error)
                return work(*given, *brought)
        else:
            for tensor, into in zip(brought, kept.brought, strict=True):
                into.copy_(tensor)
        kept.launch()
        found: Result = kept.result
        return found

    def _keep(self, *standing: Model | Tensor) -> None:
        """These are used where they are from here on; graphs that use others are of the past."""
        if len(standing) != len(self._standing) or any(map(is_not, standing, self._standing)):
            self.forget()
        self._standing = standing

    def _fitting(self, key: Key) -> _Graph | None:
        """The smallest graph that the chunk fills well enough."""
        work, count = key
        sizes = [size for some, size in self._graphs if some == work and FULL * size <= count <= size]
        return self._graphs[work, min(sizes)] if sizes else None

    def _new(
        self,
        key: Key,
        backend: FusedBackend,
        model: Model,
        chunk: Chunk,
        intermediates: FusedIntermediates,
        into: Adjoints,
    ) -> _Graph | None:
        self._seen[key] += 1
        if self._seen[key] < TIMES or len(self._graphs) == MOST:
            return None
        graph = _Graph(chunk, intermediates, into, key[0][4])
        work = partial(graph.sweep, backend, model, key[0][0])
        work()  # compiles and plans what cannot be compiled or planned later; there is no light yet, so it adds nothing
        try:
            graph.launch, graph.found, self._pool = captured(work, intermediates.whole_object.device, self._pool)
        except RuntimeError as error:
            self._refused = True
            self.forget()
            _say("chunks cannot be", error)
            return None
        self._graphs[key] = graph
        return graph


@dataclass
class _Work:
    """Work on these tensors, and once it is captured where others are brought, what launches it and what it returns."""

    given: tuple[Tensor, ...]
    brought: tuple[Tensor, ...] = ()
    launch: Callable[[], None] | None = None
    result: Any = None


class _Graph:
    """The sweep of a chunk with so many views; at first of views without light."""

    launch: Callable[[], None]
    #: What is found of each view, and where waves are kept chi and the views' probes, if they have their own.
    found: tuple[Tensor, Tensor | None, Tensor | None]

    def __init__(self, chunk: Chunk, intermediates: FusedIntermediates, into: Adjoints, keep: bool) -> None:
        assert into.probe is not None and intermediates.probe is not None
        self.object, self.probe = intermediates.whole_object, intermediates.probe
        self.chunk = replace(chunk, **{name: getattr(chunk, name).clone() for name in _brought(chunk)})
        self.chunk.weights.zero_()
        self.into, self.keep = into, keep

    def sweep(self, backend: FusedBackend, model: Model, task: Task) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What is captured."""
        chunk = replace(self.chunk, sweep={})  # what a sweep keeps from chunk to chunk is to be launched again, too
        intermediates = backend.forward(model, chunk, self.object, self.probe)
        chi, found = Backend.sweep(backend, model, chunk, intermediates, task, self.into)
        if not self.keep:
            return found, None, None
        assert isinstance(intermediates, FusedIntermediates)
        return found, chi, None if intermediates.beams.shared else intermediates.beams.waves

    def replay(self, bring: Callable[[Chunk, Chunk], None], chunk: Chunk) -> tuple[Tensor | None, ...]:
        """The sweep of this chunk; what is found of its views, until the next launch."""
        bring(chunk, self.chunk)
        self.launch()
        count = chunk.views.shape[0]
        return tuple(None if found is None else found[:count] for found in self.found)


def _say(what: str, error: RuntimeError) -> None:
    why = " ".join(str(error.__context__ or error).split())[:200]  # torch ends the capture, and fails again
    said = f"ptymesh: {what} captured as CUDA graphs ({why}); kernels are launched one by one."
    print(said, file=sys.stderr, flush=True)


def _brought(chunk: Chunk) -> tuple[str, ...]:
    """What a chunk has of its own: its patterns, too, if they do not lie where all are."""
    return ("anchors", "fractions", "weights", "counts" if chunk.pattern_index is None else "pattern_index")


def captured(work: Callable[[], Result], device: torch.device, pool: Any) -> tuple[Callable[[], None], Result, Any]:
    """What launches all that `work` launches on a device, its result, and the pool of its memory.

    Raises RuntimeError where it cannot be captured.
    """
    graph, stream, collecting = torch.cuda.CUDAGraph(), _stream(device), gc.isenabled()
    gc.disable()  # a graph that is collected meanwhile would wait for the device, which must not be
    try:
        # the stream is entered first, so that it is left even where the capture ends badly; other threads may talk to
        # the device meanwhile: NCCL's, and those that fetch patterns
        capture = torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local")
        with torch.cuda.device(device), torch.cuda.stream(stream), capture:
            result = work()
    finally:
        if collecting:
            gc.enable()
    return graph.replay, result, graph.pool()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Of all captures on a device: memory of a pool is only shared by what was captured on the same stream."""
    return torch.cuda.Stream(device)
