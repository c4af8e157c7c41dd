"""Ranks of a reconstruction and their collectives. A single rank is a world too.

Every rank must enter every collective. Reductions return new tensors: they never write to a view of a caller's array.
Tensors of one real dtype travel in one flat bucket, complex ones as pairs of reals.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ptymesh.distributed import shared_memory
from ptymesh.distributed.devices import BACKEND
from ptymesh.distributed.heartbeat import Heartbeat
from ptymesh.distributed.program import reason
from ptymesh.distributed.rank_info import read
from ptymesh.distributed.shared_memory import Combine, SharedMemory
from ptymesh.distributed.shared_sums import SharedSums, SharedSumsCache, SumAreas, WorldFunctions, allocate_shared_array
from ptymesh.distributed.watchdog import CHECKPOINT, Watchdog
from ptymesh.errors import BadInput, PtymeshError

Made = TypeVar("Made")

#: Messages: the other rank, and the bytes (n,) uint8 to send to it or to receive from it.
Letters = list[tuple[int, Tensor]]


@dataclass
class PendingMessages:
    """Messages in transit; tensors that are being sent are kept alive until they have been sent.

    Attributes:
        waits: functions that each wait for one message.
        sends: tensor to each rank.
        receives: tensor from each rank, valid after the wait.
    """

    waits: list[Callable[[], object]]
    sends: dict[int, Tensor]
    receives: dict[int, Tensor]

    def wait_for_tensors(self) -> list[Tensor]:
        """Wait for all messages and return the received tensors."""
        for wait in self.waits:
            wait()
        self.waits, self.sends = [], {}
        return list(self.receives.values())


@dataclass
class CollectiveLog:
    """Replay log of a step: what it received from other ranks, to be returned again should the step restart.

    Messages that a step sent before it restarts are not sent again: the recorded answers are returned.

    Attributes:
        began: number of the world's collectives at the start of the step.
        keep: True if results are stored.
        noted: collectives that the log knows of.
        calls: results received so far.
        place: next result to be replayed.
        results: stored results, or messages in transit.
        opened: results of `World.run_or_replay` before anything was received, which still exist at a restart.
        passed: calls of `World.run_or_replay` before anything was received.
    """

    began: int
    keep: bool = True
    noted: int = 0
    calls: int = 0
    place: int = 0
    results: list[list[Tensor] | PendingMessages] = field(default_factory=list)
    opened: list[Tensor] = field(default_factory=list)
    passed: int = 0

    def rewind(self, collectives: int) -> bool:
        """Restart the replay at the first result.

        Args:
            collectives: the world's collectives so far.

        Returns:
            False if the step cannot be replayed, as collectives ran or results were received that are not stored.
        """
        self.place = self.passed = 0
        return collectives - self.began == self.noted and (self.keep or not self.calls)


class World:
    """A single rank: sums and maxima over ranks are the values themselves. Base class of `Ranks`.

    Args:
        device: device of this rank.
    """

    rank = 0
    size = 1
    transport = ""  #: transport of messages between ranks, for reports
    shares_memory = False  #: True if all ranks can map memory that one of them allocates

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.collectives = 0  #: collectives entered so far, for tests and reports
        self.bytes_reduced = 0  #: payload of these
        self.messages = 0  #: point-to-point messages sent so far
        self.bytes_sent = self.bytes_received = 0  #: payload of these, and of those that came
        self.heartbeat = Heartbeat()  #: progress of this rank
        self.record: CollectiveLog | None = None  #: replay log of the current step

    def sum(self, *tensors: Tensor) -> list[Tensor]:
        """Return the sum over ranks of each tensor. Collective.

        A result may be the argument itself (a single rank copies nothing): write to neither while both are in use.
        """
        return self._recorded(lambda: list(tensors))

    def max(self, *tensors: Tensor) -> list[Tensor]:
        """Return the elementwise maximum over ranks of each real tensor. Collective."""
        return self._recorded(lambda: self._clones(tensors))

    def broadcast(self, *tensors: Tensor) -> list[Tensor]:
        """Return the tensors of rank 0. Collective."""
        return self._recorded(lambda: self._clones(tensors))

    @staticmethod
    def _clones(tensors: tuple[Tensor, ...]) -> list[Tensor]:
        return [t.clone() for t in tensors]

    def start_messages(self, sends: dict[int, Tensor], receives: dict[int, Tensor]) -> Callable[[], None]:
        """Start sending a tensor to each of some ranks and receiving from others.

        Every message that one rank sends must be received by the other.

        Args:
            sends: tensor for each rank; contiguous, not empty, of any dtype (sent as bytes).
            receives: tensor for each rank, of the sender's shape and dtype, filled in place.

        Returns:
            Function that waits until all messages have been sent and received.
        """
        assert not sends and not receives, "a rank alone has nobody to write to"
        return lambda: None

    def shared_sums(self, areas: SumAreas, parts: int, dtype: torch.dtype) -> SharedSums | None:
        """Return accumulators in shared memory for sums of the object; None where ranks share no memory. Collective.

        Args:
            areas: rectangles of the object that the accumulators cover.
            parts: number of separate sums.
            dtype: complex dtype of the object.
        """
        return None

    def allocate_shared_array(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        """Return one array in memory shared by all ranks; None where they share none. Collective."""
        return None

    def shared_barrier(self, traffic_bytes: int = 0) -> None:
        """Wait at a barrier of the ranks that share memory, and count `traffic_bytes` bytes as traffic. Collective."""

    @property
    def shared_barriers(self) -> int:
        """Number of barriers in shared memory so far, sums included; the same on all ranks."""
        return 0

    def run_or_replay(self, act: Callable[[], Tensor]) -> Tensor:
        """Run a collective that makes a shared tensor, or return its former result should the step restart. Collective.

        If the log stores results, a copy is returned at a restart; else only tensors that were made before the step
        received anything can be returned, as they are still valid then.

        Args:
            act: makes the tensor; all ranks call it together.
        """
        record = self.record
        if record is None:
            return act()
        if record.keep:
            return self._recorded(lambda: [act()])[0]
        if record.calls:
            record.calls += 1
            return act()
        record.passed += 1
        if record.passed > len(record.opened):
            record.opened.append(act())
        return record.opened[record.passed - 1]

    def _recorded(self, act: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Return the results of `act`, or those stored when the step ran before."""
        record = self.record
        if record is None:
            return act()
        if record.place < len(record.results):
            record.place += 1
            recorded = record.results[record.place - 1]
            assert isinstance(recorded, list), "a step asks for the same things in the same order"
            return [t.clone() for t in recorded]
        before = self.collectives
        result = act()
        record.noted += self.collectives - before
        record.calls += 1
        if record.keep:
            record.results.append([t.clone() for t in result])
            record.place += 1
        return result

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Return Re sum conj(a) b over the elements of all ranks, 0-d float64. Collective."""
        products = torch.view_as_real(a) * torch.view_as_real(b) if a.is_complex() else a * b
        return self.sum(products.sum(dtype=torch.float64))[0]

    def agree(self, flag: bool) -> bool:
        """Return True if any rank passes True. Collective."""
        return flag

    def on_all_ranks(self, make: Callable[[], Made], doing: str) -> Made:
        """Return what `make` returns on this rank; where it fails on any rank, every rank raises. Collective.

        Args:
            make: called on every rank.
            doing: what ranks are doing, for the message.

        Raises:
            PtymeshError: another rank failed; BadInput if its error was one.
        """
        results: list[Made] = []
        failure = None
        try:
            results.append(make())
        except Exception as error:
            failure = error
        self.raise_if_any_failed(failure, doing)
        return results[0]

    def decide_on_first_rank(self, decide: Callable[[], object], doing: str) -> Any:
        """Return what the first rank decides, as JSON gives it back; where it fails, every rank raises. Collective.

        Args:
            decide: called on the first rank alone; returns what JSON can hold; dataclasses become dicts.
            doing: what ranks are doing, for the message.

        Raises:
            PtymeshError: the first rank failed; BadInput if its error was one.
        """
        text = self.on_all_ranks(lambda: "" if self.rank else json.dumps(decide(), default=asdict), doing)
        return json.loads(self.gather_strings(text)[0])

    def raise_if_any_failed(self, failure: Exception | None, doing: str) -> None:
        """Raise on every rank if any rank failed: its own error, or one that quotes the failed rank. Collective.

        Args:
            failure: this rank's error; None if it did not fail.
            doing: what ranks were doing, for the message.

        Raises:
            PtymeshError: another rank failed; BadInput if its error was one.
        """
        if not self.agree(failure is not None):
            return
        self.heartbeat.agreed = True
        sentences = self.gather_strings(
            "" if failure is None else f"{getattr(failure, 'exit_status', 1)} {reason(failure)}"
        )
        with suppress(RuntimeError):  # no rank may end while others still read the message
            self.barrier()
        if failure is not None:
            raise failure
        rank, text = next((rank, text) for rank, text in enumerate(sentences) if text)
        status, _, why = text.partition(" ")
        kind = BadInput if int(status) == BadInput.exit_status else PtymeshError
        raise kind(f"Rank {rank} failed while {doing}: {why}")

    def gather_strings(self, text: str) -> list[str]:
        """Return the text of each rank, in order of rank. Collective."""
        return [text]

    def tell_checkpoint(self, text: str) -> None:
        """Publish what the last checkpoint holds, for messages should this rank be lost. Not collective."""

    def barrier(self) -> None:
        """Wait until every rank has called this. Collective."""

    def close(self) -> None:
        """Leave the world, which may wait for the others to leave as well."""

    def abandon(self) -> None:
        """Leave the world without waiting for any rank, as the process is about to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave the world; after an error without waiting, since the others may be waiting for this rank.

        They learn of the error from `program.account_for`.
        """
        if kind is None:
            self.close()
        else:
            self.abandon()


Solo = World


class Ranks(World):
    """Several ranks joined by torch.distributed.

    Args:
        device: device of this rank.
        group: process group; for tests that use part of a pool.
        watchdog: watchdog of this rank.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        group: dist.ProcessGroup | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        super().__init__(device)
        self.group, self.watchdog = group, watchdog
        if watchdog:
            self.heartbeat = watchdog.heartbeat
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._shared: SharedMemory | None = None
        self._shared_sums_cache = SharedSumsCache()
        place = read(os.environ)
        one_machine = place.size in (1, place.local_size)  # according to the launcher's variables
        if self.device.type == "cpu" and one_machine and os.environ.get(BACKEND, "auto") == "auto":
            self._shared = self._open_shared_memory()
            self.collectives = self.bytes_reduced = 0  # setting up is no traffic of the run
        self.transport = "shared memory" if self._shared else dist.get_backend(group)

    def _open_shared_memory(self) -> SharedMemory | None:
        """Return memory that all ranks share; None where they are not on one machine, or it has none. Collective."""
        handle, place = -1, ""
        if self.rank == 0 and shared_memory.possible():
            with suppress(OSError):
                handle, place = shared_memory.create(self.size)
        place = self.gather_strings(place)[0]
        opened = None
        if place and shared_memory.possible():
            with suppress(OSError):  # a rank on another machine cannot open the file
                handle = shared_memory.find(place) if self.rank else handle
                opened = SharedMemory(self.rank, self.size, handle)
        all_found = not self.agree(opened is None)
        if opened and not all_found:
            opened.close()
        return opened if all_found else None

    def sum(self, *tensors: Tensor) -> list[Tensor]:
        """Return the sum over ranks of each tensor, in one message per real dtype. Collective."""
        act = self._reduction(dist.ReduceOp.SUM, torch.add)
        return self._recorded(lambda: self._bucketed(tensors, act))

    def max(self, *tensors: Tensor) -> list[Tensor]:
        """Return the elementwise maximum over ranks of each real tensor. Collective."""
        act = self._reduction(dist.ReduceOp.MAX, torch.maximum)
        return self._recorded(lambda: self._bucketed(tensors, act))

    @property
    def shares_memory(self) -> bool:  # type: ignore[override]
        """True if all ranks can map memory that one of them allocates."""
        return self._shared is not None

    def shared_sums(self, areas: SumAreas, parts: int, dtype: torch.dtype) -> SharedSums | None:
        """Return accumulators in shared memory for sums of the object; None where ranks share no memory. Collective.

        Args:
            areas: rectangles of the object that the accumulators cover.
            parts: number of separate sums.
            dtype: complex dtype of the object.
        """
        if self._shared is None:
            return None
        summed = partial(self._bucketed, reduce=self._reduction(dist.ReduceOp.SUM, torch.add))
        return self._shared_sums_cache.of(
            self, WorldFunctions(self._recorded, summed, self._shared_barrier), areas, parts, dtype
        )

    def allocate_shared_array(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        """Return one array in memory shared by all ranks; None where they share none. Collective."""
        return None if self._shared is None else allocate_shared_array(self, shape, dtype)

    def shared_barrier(self, traffic_bytes: int = 0) -> None:
        """Wait at a barrier of the ranks that share memory, and count `traffic_bytes` bytes as traffic. Collective."""
        self._shared_barrier(traffic_bytes)

    @property
    def shared_barriers(self) -> int:
        """Number of barriers in shared memory so far, sums included; the same on all ranks."""
        return 0 if self._shared is None else self._shared.barriers

    def _shared_barrier(self, traffic_bytes: int) -> None:
        """Wait at the barrier in shared memory, after counting `traffic_bytes` bytes as traffic."""
        assert self._shared is not None
        self.bytes_reduced += traffic_bytes
        with self.heartbeat.collective():
            self._shared.barrier()

    def _reduction(self, op: dist.ReduceOp.RedOpType, combine: Combine) -> Callable[[Tensor], object]:
        """Return the function that reduces a flat tensor in place over ranks."""
        if self._shared is None:
            return partial(dist.all_reduce, op=op, group=self.group)
        return partial(self._shared.reduce, combine=combine)

    def broadcast(self, *tensors: Tensor) -> list[Tensor]:
        """Return the tensors of rank 0. Collective."""
        act = partial(dist.broadcast, group=self.group, group_src=0)
        return self._recorded(lambda: self._bucketed(tensors, act))

    def start_messages(self, sends: dict[int, Tensor], receives: dict[int, Tensor]) -> Callable[[], None]:
        """Start sending a tensor to each of some ranks and receiving from others; a replay returns stored results.

        Args:
            sends: tensor for each rank; contiguous, not empty, of any dtype (sent as bytes).
            receives: tensor for each rank, of the sender's shape and dtype, filled in place.

        Returns:
            Function that waits until all messages have been sent and received.
        """
        record = self.record
        if record is not None and record.place < len(record.results):
            record.place += 1
            return partial(self._receive, list(receives.values()), record.results[record.place - 1], record.place - 1)
        self.messages += len(sends)
        self.bytes_sent += sum(t.numel() * t.element_size() for t in sends.values())
        self.bytes_received += sum(t.numel() * t.element_size() for t in receives.values())
        pending = PendingMessages(self._start(sends, receives), sends, receives)
        if record is not None:
            record.results.append(pending)
            record.place += 1
        return partial(self._receive, list(receives.values()), pending, 0 if record is None else record.place - 1)

    def _start(self, sends: dict[int, Tensor], receives: dict[int, Tensor]) -> list[Callable[[], object]]:
        """Start the messages and return functions that each wait for one."""
        out, back = (
            [(rank, tensor.view(-1).view(torch.uint8)) for rank, tensor in tensors.items()]
            for tensors in (sends, receives)
        )
        near = self._shared
        if near is None and self.device.type != "cpu" and dist.get_backend(self.group) == "gloo":
            return self._start_through_host(out, back)
        if near is None:
            return [work.wait for work in self._started(out, back)]
        isend, recv = partial(dist.isend, group=self.group), partial(dist.recv, group=self.group)
        self.heartbeat.waiting = True  # `send` waits where a rank has not taken the messages before these
        try:
            works = [near.send(letter, rank, partial(isend, letter, group_dst=rank)) for rank, letter in out]
        finally:
            self.heartbeat.waiting = False
        waits = [near.awaited(letter, rank, partial(recv, letter, group_src=rank)) for rank, letter in back]
        return waits + [work.wait for work in works if work is not None]

    def _started(self, out: Letters, back: Letters) -> list[dist.Work]:
        operations = [dist.P2POp(dist.isend, letter, group=self.group, group_peer=rank) for rank, letter in out]
        operations += [dist.P2POp(dist.irecv, letter, group=self.group, group_peer=rank) for rank, letter in back]
        return dist.batch_isend_irecv(operations) if operations else []

    def _start_through_host(self, out: Letters, back: Letters) -> list[Callable[[], object]]:
        """Start messages through the host's memory, since gloo sends point-to-point messages between CPUs only."""
        sent = [(rank, letter.to("cpu", copy=True)) for rank, letter in out]
        arrived = [(rank, torch.empty_like(letter, device="cpu")) for rank, letter in back]
        works = self._started(sent, arrived)

        def receive() -> None:
            for work in works:
                work.wait()
            sent.clear()  # the copies had to live until now
            for (_, letter), (_, host) in zip(back, arrived, strict=True):
                letter.copy_(host)

        return [receive]

    def _receive(self, receives: list[Tensor], came: list[Tensor] | PendingMessages, place: int) -> None:
        """Wait for messages, or take stored ones; copy them into `receives` and store them in the replay log."""
        record, landed = self.record, came if isinstance(came, list) else []
        if isinstance(came, PendingMessages):
            with self.heartbeat.collective():
                landed = came.wait_for_tensors()
            if record is not None:
                record.calls += 1
                record.results[place] = [t.clone() for t in landed] if record.keep else []
        for tensor, value in zip(receives, landed, strict=True):
            if tensor is not value:
                tensor.copy_(value)

    def agree(self, flag: bool) -> bool:
        """Return True if any rank passes True. Collective."""
        return bool(self.max(torch.tensor([float(flag)], device=self.device))[0].item() > 0)

    def barrier(self) -> None:
        """Wait until every rank has called this. Collective."""
        self.agree(False)

    def tell_checkpoint(self, text: str) -> None:
        """Publish what the last checkpoint holds, for messages should this rank be lost. Not collective."""
        if self.watchdog and self.rank == 0:
            with suppress(RuntimeError):  # the store ends with the launcher; the checkpoint exists all the same
                self.watchdog.set_key(CHECKPOINT, text)

    def gather_strings(self, text: str) -> list[str]:
        """Return the text of each rank, in order of rank. Collective."""
        codes = torch.tensor(list(text.encode()), dtype=torch.int64, device=self.device)
        longest = int(self.max(torch.tensor([len(codes)], device=self.device))[0])
        table = torch.zeros(self.size, longest, dtype=torch.int64, device=self.device)
        table[self.rank, : len(codes)] = codes
        (table,) = self.sum(table)
        return [bytes(row[row > 0].tolist()).decode() for row in table.cpu()]

    def close(self) -> None:
        """Leave the process group that `join` entered, and release shared memory."""
        self.abandon()
        if self.group is None and dist.is_initialized():
            if self.watchdog:
                self.watchdog.leave()
            dist.destroy_process_group()

    def abandon(self) -> None:
        """Release shared memory but not the process group: NCCL would wait for ranks that are inside a collective."""
        if self._shared:
            self._shared.close()
            self._shared, self._shared_sums_cache = None, SharedSumsCache()

    def _bucketed(self, tensors: tuple[Tensor, ...], reduce: Callable[[Tensor], object]) -> list[Tensor]:
        """Return the tensors reduced over ranks, in one flat bucket per real dtype."""
        reals = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
        results: list[Tensor | None] = [None] * len(tensors)
        for dtype in dict.fromkeys(r.dtype for r in reals):
            # complex tensors come first: their pairs must start at even offsets of the bucket
            places = [i for i, r in enumerate(reals) if r.dtype == dtype]
            places.sort(key=lambda i: not tensors[i].is_complex())
            flat = torch.cat([reals[i].reshape(-1) for i in places])
            with self.heartbeat.collective():
                reduce(flat)
            self.collectives += 1
            self.bytes_reduced += flat.numel() * flat.element_size()
            for i, part in zip(places, flat.split([reals[i].numel() for i in places]), strict=True):
                reshaped = part.reshape(reals[i].shape)
                results[i] = torch.view_as_complex(reshaped) if tensors[i].is_complex() else reshaped
        return [r for r in results if r is not None]
