"""Sweeps of chunks, and other repeated work, as CUDA graphs: launched as one, instead of kernel by kernel.

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
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ptymesh.kernels.fused import FusedBackend, FusedIntermediates
from ptymesh.physics.backend import Adjoints, Backend, BatchCache, Chunk, Task, reference_of
from ptymesh.physics.model import Model

Result = TypeVar("Result")
#: What a graph does: the task, whether no view of a chunk is shifted, whether the probe's sums are, their parts, and
#: whether waves are kept.
Work = tuple[Task, bool, bool, int, bool]
#: Key of a graph: its work, and its number of views.
Key = tuple[Work, int]

#: Devices whose launches can be captured (torch calls ROCm's cuda too).
CAPTURING = ("cuda",)
#: A chunk is captured when its size comes for this time.
TIMES = 2
#: Largest number of graphs of sweeps; they share the memory of their waves.
MOST = 8
#: Largest number of graphs of other work; each work has few, as batches have two sizes.
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
        self.free()

    def free(self) -> None:
        """Free all graphs, and their memory."""
        #: Tensors that all graphs use in place. They are held, so that their memory is not reused.
        self._standing: tuple[Model | Tensor, ...] = ()
        self._seen: Counter[Key] = Counter()
        self._graphs: dict[Key, _Graph] = {}
        #: torch's memory pool that they share, as no two of them run at the same time.
        self._pool: Any = None
        #: Other work, each with memory of its own: its result is read while other graphs run.
        self._works: dict[tuple[object, ...], _Work] = {}

    def captures(self, device: torch.device) -> bool:
        """Return True if launches of sweeps can be captured there, as far as is known."""
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
        """Replay or capture `Backend.sweep`; what is returned lasts until the next launch.

        Args:
            backend: whose passes are captured; not its `sweep`, which asks for graphs.
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            task: see `Backend.at_detector`.
            into: the sums of the batch.
            keep: True to return chi.

        Returns:
            Columns of `at_detector` (B, 6) and, with `keep`, chi and the views' own probes, the sums being added; None,
            with nothing done, without a graph.
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
        self,
        name: tuple[object, ...],
        work: Callable[..., Result],
        tensors: tuple[Tensor, ...],
        brought: tuple[Tensor, ...],
    ) -> Result:
        """Replay or capture other work; see `Backend.repeat`.

        Args:
            name: what the work depends on besides the tensors.
            work: the function.
            tensors: tensors that are used where they are.
            brought: tensors that are copied to where they were before.
        """
        if self._works_refused or (tensors + brought)[0].device.type not in CAPTURING:
            return work(*tensors, *brought)
        name = (*name, *((tensor.shape, tensor.dtype) for tensor in brought))
        same_work = self._works.get(name)
        if same_work is None or any(map(is_not, tensors, same_work.tensors)):
            if same_work is not None or len(self._works) < MOST_WORKS:
                self._works[name] = _Work(tensors)
            return work(*tensors, *brought)  # this run makes the plans that cannot be made during a capture
        if same_work.launch is None:
            same_work.brought = tuple(tensor.clone() for tensor in brought)
            try:
                captured_work = partial(work, *tensors, *same_work.brought)
                same_work.launch, same_work.result, _ = captured(captured_work, (tensors + brought)[0].device, None)
            except RuntimeError as error:
                self._works_refused = True
                self._works.clear()
                _say(f"{name[0]} cannot be", error)
                return work(*tensors, *brought)
        else:
            for tensor, into in zip(brought, same_work.brought, strict=True):
                into.copy_(tensor)
        same_work.launch()
        return cast("Result", same_work.result)

    def _keep(self, *standing: Model | Tensor) -> None:
        """Note what is used where it is from here on; graphs that use something else are dropped."""
        if len(standing) != len(self._standing) or any(map(is_not, standing, self._standing)):
            self.free()
        self._standing = standing

    def _fitting(self, key: Key) -> _Graph | None:
        """Return the smallest graph that the chunk fills well enough."""
        work, count = key
        sizes = [size for captured_work, size in self._graphs if captured_work == work and FULL * size <= count <= size]
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
        work()  # compiles and plans before the capture; without light it adds nothing
        try:
            graph.launch, graph.outputs, self._pool = captured(work, intermediates.whole_object.device, self._pool)
        except RuntimeError as error:
            self._refused = True
            self.free()
            _say("chunks cannot be", error)
            return None
        self._graphs[key] = graph
        return graph


@dataclass
class _Work:
    """Work on these tensors; once it is captured, where others are brought, what launches it, and its result."""

    tensors: tuple[Tensor, ...]
    brought: tuple[Tensor, ...] = ()
    launch: Callable[[], None] | None = None
    result: object = None


class _Graph:
    """The sweep of a chunk with so many views; at first of views without light."""

    launch: Callable[[], None]
    #: Columns of each view, and where waves are kept chi and the views' probes, if they have their own.
    outputs: tuple[Tensor, Tensor | None, Tensor | None]

    def __init__(self, chunk: Chunk, intermediates: FusedIntermediates, into: Adjoints, keep: bool) -> None:
        assert into.probe is not None and intermediates.probe is not None
        self.object, self.probe = intermediates.whole_object, intermediates.probe
        self.chunk = replace(chunk, **{name: getattr(chunk, name).clone() for name in _brought(chunk)})
        self.chunk.weights.zero_()
        self.into, self.keep = into, keep

    def sweep(self, backend: FusedBackend, model: Model, task: Task) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Compute what is captured.

        Args:
            backend: whose passes are captured.
            model: the forward model.
            task: see `Backend.at_detector`.
        """
        chunk = replace(self.chunk, cache=BatchCache())  # a graph launches what chunks share, too
        intermediates = backend.forward(model, chunk, self.object, self.probe)
        chi, columns = reference_of(Backend.sweep)(backend, model, chunk, intermediates, task, self.into)
        if not self.keep:
            return columns, None, None
        assert isinstance(intermediates, FusedIntermediates)
        return columns, chi, None if intermediates.beams.shared else intermediates.beams.waves

    def replay(self, bring: Callable[[Chunk, Chunk], None], chunk: Chunk) -> tuple[Tensor | None, ...]:
        """Sweep a chunk; return what is found of its views, which lasts until the next launch."""
        bring(chunk, self.chunk)
        self.launch()
        count = chunk.views.shape[0]
        return tuple(None if output is None else output[:count] for output in self.outputs)


def _say(what: str, error: RuntimeError) -> None:
    why = " ".join(str(error.__context__ or error).split())[:200]  # torch ends the capture, and fails again
    message = f"ptymesh: {what} captured as CUDA graphs ({why}); kernels are launched one by one."
    print(message, file=sys.stderr, flush=True)


def _brought(chunk: Chunk) -> tuple[str, ...]:
    """Return the names of a chunk's own tensors; patterns are among them if they do not lie where all are."""
    return ("anchors", "fractions", "weights", "counts" if chunk.pattern_index is None else "pattern_index")


def captured(work: Callable[[], Result], device: torch.device, pool: Any) -> tuple[Callable[[], None], Result, Any]:
    """Capture what a function launches on a device.

    Args:
        work: the function.
        device: where it launches.
        pool: torch's memory pool; None for a new one.

    Returns:
        A function that launches it all, the result, and the pool of its memory.

    Raises:
        RuntimeError: it cannot be captured.
    """
    graph, stream, collecting = torch.cuda.CUDAGraph(), _stream(device), gc.isenabled()
    gc.disable()  # to collect a graph waits for the device, which a capture forbids
    try:
        # the stream is entered first, so that it is left even if the capture fails; other threads may use the device
        # meanwhile: NCCL's, and those that fetch patterns
        capture = torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local")
        with torch.cuda.device(device), torch.cuda.stream(stream), capture:
            result = work()
    finally:
        if collecting:
            gc.enable()
    return graph.replay, result, graph.pool()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all captures on a device: only what was captured on one stream shares a pool's memory."""
    return torch.cuda.Stream(device)
