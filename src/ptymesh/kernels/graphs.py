"""The sweep of a chunk as a CUDA graph: launched as one, instead of kernel by kernel.

A graph repeats what was launched while it was captured, on the same memory. What stays from batch to batch (object,
probe, patterns, the object's sums) it uses where it is; what a chunk or a batch brings is copied to where it was then,
and what is found is copied from there. A chunk that is smaller is filled up with views of no light, which add nothing.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from operator import is_not
from typing import Any, TypeVar

import torch
from torch import Tensor

from ptymesh.kernels.fused import FusedBackend, FusedIntermediates
from ptymesh.physics.backend import Adjoints, Backend, Chunk, Task
from ptymesh.physics.model import Intermediates, Model

Result = TypeVar("Result")
#: What a graph does: the task, whether no view of a chunk is shifted, whether the probe's sums are, and their parts.
Work = tuple[Task, bool, bool, int]
#: What is to be known of a graph to see that it fits: its work, and how many views it has.
Key = tuple[Work, int]

#: Devices whose launches can be captured (torch calls ROCm's cuda too).
CAPTURING = ("cuda",)
#: A chunk of a size that comes for this time is captured.
TIMES = 2
#: So many graphs are kept; they share the memory of their waves.
MOST = 8
#: A chunk is filled up if it has at least this part of the views that the graph was captured with.
FULL = 0.75


class Graphs:
    """Graphs of the sweeps that come again and again, each captured when it is worth it."""

    def __init__(self) -> None:
        self._refused = False
        self.forget()

    def forget(self) -> None:
        """Lets go of all of them, and of their memory."""
        #: What all graphs use where it is: while it is held, nothing else comes to lie there.
        self._standing: tuple[Model | Tensor, ...] = ()
        self._seen: Counter[Key] = Counter()
        self._graphs: dict[Key, _Graph] = {}
        #: torch's memory pool that they share, as no two of them run at the same time.
        self._pool: Any = None

    def sweep(
        self,
        backend: FusedBackend,
        model: Model,
        chunk: Chunk,
        intermediates: Intermediates,
        task: Task,
        into: Adjoints,
    ) -> Tensor | None:
        """What `Backend.sweep` finds of each view (B, 6), added into the sums; None, and nothing done, without graph.

        passes: what is captured; not their `sweep`, which asks for graphs.
        """
        if self._refused or not isinstance(intermediates, FusedIntermediates) or intermediates.probe is None:
            return None
        if intermediates.probe.device.type not in CAPTURING or into.object is None or into.object_weight is None:
            return None
        if into.probe is None or into.opr.shape[0] or model.slice_kernel is not None:
            return None
        stays = [getattr(chunk, name) for name in ("counts", "mask", "background") if name not in _brought(chunk)]
        self._keep(model, intermediates.whole_object, intermediates.probe, *stays, into.object, into.object_weight)
        key = ((task, chunk.whole, into.shifted, into.parts), chunk.views.shape[0])
        graph = self._fitting(key) or self._new(key, backend, model, chunk, intermediates, into)
        return None if graph is None else graph.replay(chunk, into)

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
        graph = _Graph(chunk, intermediates, into)
        work = partial(graph.sweep, backend, model, key[0][0])
        work()  # compiles and plans what cannot be compiled or planned later; there is no light yet, so it adds nothing
        try:
            graph.launch, graph.found, self._pool = captured(work, intermediates.whole_object.device, self._pool)
        except RuntimeError as error:
            self._refused = True
            self.forget()
            why = " ".join(str(error.__context__ or error).split())[:200]  # torch ends the capture, and fails again
            said = f"ptymesh: chunks cannot be captured as CUDA graphs ({why}); kernels are launched one by one."
            print(said, file=sys.stderr, flush=True)
            return None
        self._graphs[key] = graph
        return graph


class _Graph:
    """The sweep of a chunk with so many views; at first of views without light."""

    launch: Callable[[], None]
    found: Tensor

    def __init__(self, chunk: Chunk, intermediates: FusedIntermediates, into: Adjoints) -> None:
        assert into.probe is not None and intermediates.probe is not None
        self.object, self.probe = intermediates.whole_object, intermediates.probe
        self.chunk = replace(chunk, **{name: getattr(chunk, name).clone() for name in _brought(chunk)})
        self.chunk.weights.zero_()
        self.into = replace(
            into,
            probe=torch.zeros_like(into.probe),
            probe_weight=torch.zeros_like(into.probe_weight),
            shifts=into.shifts.clone(),
            reached=torch.zeros_like(into.reached),
        )

    def sweep(self, backend: FusedBackend, model: Model, task: Task) -> Tensor:
        """What is captured."""
        assert self.into.probe is not None
        for found in (self.into.probe, self.into.probe_weight, self.into.reached):
            found.zero_()
        chunk = replace(self.chunk, sweep={})  # what a sweep keeps from chunk to chunk is to be launched again, too
        intermediates = backend.forward(model, chunk, self.object, self.probe)
        return Backend.sweep(backend, model, chunk, intermediates, task, self.into)[1]

    def replay(self, chunk: Chunk, into: Adjoints) -> Tensor:
        """The sweep of this chunk, into these sums; what is found of each view, (B, 6)."""
        count = chunk.views.shape[0]
        for name in _brought(chunk):
            getattr(self.chunk, name)[:count] = getattr(chunk, name)
        self.chunk.weights[count:] = 0  # they are where views of an earlier chunk were, without light
        self.into.shifts.copy_(into.shifts)
        self.launch()
        self._add(into)
        return self.found[:count].clone()

    def _add(self, into: Adjoints) -> None:
        """What the graph has summed of the probe; of the object it knows the sums themselves."""
        assert into.probe is not None and self.into.probe is not None
        into.probe += self.into.probe
        into.probe_weight += self.into.probe_weight
        torch.maximum(into.reached, self.into.reached, out=into.reached)


def _brought(chunk: Chunk) -> tuple[str, ...]:
    """What a chunk has of its own: its patterns, too, if they do not lie where all are."""
    return ("anchors", "fractions", "weights", "counts" if chunk.places is None else "places")


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
