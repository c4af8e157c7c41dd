"""The ranks of a reconstruction, and what they can do together. One rank is a world too.

Every method that takes part in a collective must be entered by all ranks. Reductions return new tensors: they never
act on a view of somebody's array. Tensors of one real dtype travel in one flat bucket, complex ones as pairs of reals.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from ptymesh.distributed import shared_memory
from ptymesh.distributed.common import Areas, Common, Commons, Means, one_for_all
from ptymesh.distributed.devices import BACKEND
from ptymesh.distributed.heartbeat import Heartbeat
from ptymesh.distributed.program import reason
from ptymesh.distributed.rank_info import read
from ptymesh.distributed.shared_memory import Combine, SharedMemory
from ptymesh.distributed.watchdog import CHECKPOINT, Watchdog
from ptymesh.errors import BadInput, PtymeshError

#: Bytes for, or from, a rank.
Letters = list[tuple[int, Tensor]]


@dataclass
class PendingMessages:
    """Messages under way; what is being sent must live until it has gone."""

    waits: list[Callable[[], Any]]
    sends: dict[int, Tensor]
    receives: dict[int, Tensor]

    def land(self) -> list[Tensor]:
        """What has arrived, once all has."""
        for wait in self.waits:
            wait()
        self.waits, self.sends = [], {}
        return list(self.receives.values())


@dataclass
class CollectiveLog:
    """What a step received from other ranks, to be given to it again should it have to start anew.

    began: collectives of the world when it began; keep: whether results are kept; noted: collectives that it knows of;
    calls: how often something was received. Messages that a step had sent before it starts anew are not sent again: it
    gets what they bring. opened: what was seen of others before anything was received, which is there as it was.
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
        """Back to the beginning; False where that is not possible, as the world has done what is not on record."""
        self.place = self.passed = 0
        return collectives - self.began == self.noted and (self.keep or not self.calls)


class World:
    """One rank alone: sums and maxima over ranks are the values themselves."""

    rank = 0
    size = 1
    through = ""  #: what messages between ranks go through
    shares_memory = False  #: whether all ranks see memory that one of them makes

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.collectives = 0  #: how many were entered, for tests and reports
        self.bytes_reduced = 0  #: payload that they carried
        self.messages = 0  #: how many were sent to a single rank
        self.bytes_sent = 0  #: payload that they carried
        self.heartbeat = Heartbeat()  #: what this rank is doing
        self.record: CollectiveLog | None = None  #: of the step that is being taken

    def sum(self, *tensors: Tensor) -> list[Tensor]:
        """Sum over ranks of each tensor.

        What is returned may be what was given (a rank alone copies nothing): write to neither while both are in use.
        """
        return self._recorded(lambda: list(tensors))

    def max(self, *tensors: Tensor) -> list[Tensor]:
        """Elementwise maximum over ranks of each real tensor."""
        return self._recorded(lambda: self._alone(tensors))

    def broadcast(self, *tensors: Tensor) -> list[Tensor]:
        """Each tensor as rank 0 has it."""
        return self._recorded(lambda: self._alone(tensors))

    @staticmethod
    def _alone(tensors: tuple[Tensor, ...]) -> list[Tensor]:
        return [t.clone() for t in tensors]

    def post(self, sends: dict[int, Tensor], receives: dict[int, Tensor]) -> Callable[[], None]:
        """Starts sending each tensor to its rank and receiving into the others; what is returned waits for the end.

        Tensors are contiguous and not empty, of any dtype (they travel as bytes); what one rank sends another awaits.
        """
        assert not sends and not receives, "a rank alone has nobody to write to"
        return lambda: None

    def common(self, areas: Areas, parts: int, dtype: torch.dtype) -> Common | None:
        """Memory of all ranks for sums of objects of this dtype, where they share any. Collective."""
        return None

    def one_for_all(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        """An array that there is once, for all ranks to see, where they share memory. Collective."""
        return None

    def meet(self, handed_over: int = 0) -> None:
        """Returns when all ranks that share memory have come here; this one has handed over so many bytes there."""

    @property
    def meetings(self) -> int:
        """How often ranks that share memory have met, in sums or otherwise: the same on all of them."""
        return 0

    def opening(self, act: Callable[[], Tensor]) -> Tensor:
        """What `act`, which ranks call together, lets this one see of the others; should a step start anew, what it saw
        then. What is seen before anything else is received stays as it is until something is."""
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
        """What `act` returns, or what it returned when the step was taken before."""
        record = self.record
        if record is None:
            return act()
        if record.place < len(record.results):
            record.place += 1
            kept = record.results[record.place - 1]
            assert isinstance(kept, list), "a step asks for the same things in the same order"
            return [t.clone() for t in kept]
        before = self.collectives
        found = act()
        record.noted += self.collectives - before
        record.calls += 1
        if record.keep:
            record.results.append([t.clone() for t in found])
            record.place += 1
        return found

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Re sum conj(a) b over the elements that each rank holds and over ranks, 0-d float64."""
        products = torch.view_as_real(a) * torch.view_as_real(b) if a.is_complex() else a * b
        return self.sum(products.sum(dtype=torch.float64))[0]

    def agree(self, flag: bool) -> bool:
        """True if any rank says True."""
        return flag

    def all_well(self, failure: Exception | None, doing: str) -> None:
        """At a safe point: if any rank failed, raises on every rank: its own failure, or another's in its words."""
        if not self.agree(failure is not None):
            return
        self.heartbeat.agreed = True
        said = self.words("" if failure is None else f"{getattr(failure, 'exit_status', 1)} {reason(failure)}")
        with suppress(RuntimeError):  # nobody ends while others may still be reading what was said
            self.barrier()
        if failure is not None:
            raise failure
        rank, text = next((rank, text) for rank, text in enumerate(said) if text)
        status, _, why = text.partition(" ")
        kind = BadInput if int(status) == BadInput.exit_status else PtymeshError
        raise kind(f"Rank {rank} failed while {doing}: {why}")

    def words(self, text: str) -> list[str]:
        """What each rank says, in order of rank; collective."""
        return [text]

    def tell_checkpoint(self, text: str) -> None:
        """What the last checkpoint holds, for messages should this rank be lost; not collective."""

    def barrier(self) -> None:
        """Returns when every rank has come here."""

    def close(self) -> None:
        """Leaves the world, which may wait for the others to leave as well."""

    def abandon(self) -> None:
        """Leaves it for the process to end: nobody is waited for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """A rank that failed does not wait: others may be waiting for it, and are told why once it has gone on
        (program.account_for)."""
        if kind is None:
            self.close()
        else:
            self.abandon()


Solo = World


class Ranks(World):
    """Several ranks joined by torch.distributed; `group` is for tests that use part of a pool."""

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
        self._commons = Commons()
        place = read(os.environ)
        one_machine = place.size in (1, place.local_size)  # as far as a launcher says
        if self.device.type == "cpu" and one_machine and os.environ.get(BACKEND, "auto") == "auto":
            self._shared = self._meet_shared()
            self.collectives = self.bytes_reduced = 0  # this was not the run's
        self.through = "shared memory" if self._shared else dist.get_backend(group)

    def _meet_shared(self) -> SharedMemory | None:
        """Memory that all ranks share; None where they are not on one machine, or it has none."""
        handle, where = -1, ""
        if self.rank == 0 and shared_memory.possible():
            with suppress(OSError):
                handle, where = shared_memory.create(self.size)
        where = self.words(where)[0]
        found = None
        if where and shared_memory.possible():
            with suppress(OSError):  # a rank on another machine does not find the file
                handle = shared_memory.find(where) if self.rank else handle
                found = SharedMemory(self.rank, self.size, handle)
        all_found = not self.agree(found is None)
        if found and not all_found:
            found.close()
        return found if all_found else None

    def sum(self, *tensors: Tensor) -> list[Tensor]:
        """Sum over ranks of each tensor, one message per real dtype."""
        act = self._reduction(dist.ReduceOp.SUM, torch.add)
        return self._recorded(lambda: self._bucketed(tensors, act))

    def max(self, *tensors: Tensor) -> list[Tensor]:
        """Elementwise maximum over ranks of each real tensor."""
        act = self._reduction(dist.ReduceOp.MAX, torch.maximum)
        return self._recorded(lambda: self._bucketed(tensors, act))

    @property
    def shares_memory(self) -> bool:  # type: ignore[override]
        """See `World.shares_memory`."""
        return self._shared is not None

    def common(self, areas: Areas, parts: int, dtype: torch.dtype) -> Common | None:
        """See `World.common`."""
        if self._shared is None:
            return None
        summed = partial(self._bucketed, reduce=self._reduction(dist.ReduceOp.SUM, torch.add))
        return self._commons.of(self, Means(self._recorded, summed, self._met), areas, parts, dtype)

    def one_for_all(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        """See `World.one_for_all`."""
        return None if self._shared is None else one_for_all(self, shape, dtype)

    def meet(self, handed_over: int = 0) -> None:
        """See `World.meet`."""
        self._met(handed_over)

    @property
    def meetings(self) -> int:
        """See `World.meetings`."""
        return 0 if self._shared is None else self._shared.meetings

    def _met(self, handed_over: int) -> None:
        """Returns when all ranks have come here, where this one has handed over so many bytes."""
        assert self._shared is not None
        self.bytes_reduced += handed_over
        with self.heartbeat.collective():
            self._shared.meet()

    def _reduction(self, op: dist.ReduceOp.RedOpType, combine: Combine) -> Callable[[Tensor], Any]:
        if self._shared is None:
            return partial(dist.all_reduce, op=op, group=self.group)
        return partial(self._shared.reduce, combine=combine)

    def broadcast(self, *tensors: Tensor) -> list[Tensor]:
        """Each tensor as rank 0 has it."""
        act = partial(dist.broadcast, group=self.group, group_src=0)
        return self._recorded(lambda: self._bucketed(tensors, act))

    def post(self, sends: dict[int, Tensor], receives: dict[int, Tensor]) -> Callable[[], None]:
        """Starts sending each tensor to its rank and receiving into the others; what is returned waits for the end."""
        record = self.record
        if record is not None and record.place < len(record.results):
            record.place += 1
            return partial(self._arrive, list(receives.values()), record.results[record.place - 1], record.place - 1)
        self.messages += len(sends)
        self.bytes_sent += sum(t.numel() * t.element_size() for t in sends.values())
        pending = PendingMessages(self._posted(sends, receives), sends, receives)
        if record is not None:
            record.results.append(pending)
            record.place += 1
        return partial(self._arrive, list(receives.values()), pending, 0 if record is None else record.place - 1)

    def _posted(self, sends: dict[int, Tensor], receives: dict[int, Tensor]) -> list[Callable[[], Any]]:
        """What waits for the end of each message."""
        out, back = (
            [(rank, tensor.view(-1).view(torch.uint8)) for rank, tensor in tensors.items()]
            for tensors in (sends, receives)
        )
        near = self._shared
        if near is None and self.device.type != "cpu" and dist.get_backend(self.group) == "gloo":
            return self._posted_by_the_host(out, back)
        if near is None:
            return [work.wait for work in self._started(out, back)]
        isend, recv = partial(dist.isend, group=self.group), partial(dist.recv, group=self.group)
        self.heartbeat.waiting = True  # where a rank has not taken the letters before these
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

    def _posted_by_the_host(self, out: Letters, back: Letters) -> list[Callable[[], Any]]:
        """Gloo sends single messages between CPUs alone: a device's go through the host's memory."""
        sent = [(rank, letter.to("cpu", copy=True)) for rank, letter in out]
        arrived = [(rank, torch.empty_like(letter, device="cpu")) for rank, letter in back]
        works = self._started(sent, arrived)

        def land() -> None:
            for work in works:
                work.wait()
            sent.clear()  # which had to live until now
            for (_, letter), (_, host) in zip(back, arrived, strict=True):
                letter.copy_(host)

        return [land]

    def _arrive(self, receives: list[Tensor], came: list[Tensor] | PendingMessages, place: int) -> None:
        """What came is in `receives` then, and on record."""
        record, landed = self.record, came if isinstance(came, list) else []
        if isinstance(came, PendingMessages):
            with self.heartbeat.collective():
                landed = came.land()
            if record is not None:
                record.calls += 1
                record.results[place] = [t.clone() for t in landed] if record.keep else []
        for tensor, value in zip(receives, landed, strict=True):
            if tensor is not value:
                tensor.copy_(value)

    def agree(self, flag: bool) -> bool:
        """True if any rank says True."""
        return bool(self.max(torch.tensor([float(flag)], device=self.device))[0].item() > 0)

    def barrier(self) -> None:
        """Returns when every rank has come here."""
        self.agree(False)

    def tell_checkpoint(self, text: str) -> None:
        """What the last checkpoint holds, for messages should this rank be lost; not collective."""
        if self.watchdog and self.rank == 0:
            with suppress(RuntimeError):  # the store goes with the launcher, and the checkpoint is there all the same
                self.watchdog.tell(CHECKPOINT, text)

    def words(self, text: str) -> list[str]:
        """What each rank says, in order of rank; collective."""
        said = torch.tensor(list(text.encode()), dtype=torch.int64, device=self.device)
        longest = int(self.max(torch.tensor([len(said)], device=self.device))[0])
        table = torch.zeros(self.size, longest, dtype=torch.int64, device=self.device)
        table[self.rank, : len(said)] = said
        (table,) = self.sum(table)
        return [bytes(row[row > 0].tolist()).decode() for row in table.cpu()]

    def close(self) -> None:
        """Leaves the process group that `join` entered, and the memory of this machine's ranks."""
        self.abandon()
        if self.group is None and dist.is_initialized():
            if self.watchdog:
                self.watchdog.leave()
            dist.destroy_process_group()

    def abandon(self) -> None:
        """Leaves the memory of this machine's ranks; NCCL would wait for ranks that sit in a collective."""
        if self._shared:
            self._shared.close()
            self._shared, self._commons = None, Commons()

    def _bucketed(self, tensors: tuple[Tensor, ...], reduce: Callable[[Tensor], Any]) -> list[Tensor]:
        reals = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
        results: list[Tensor | None] = [None] * len(tensors)
        for dtype in dict.fromkeys(r.dtype for r in reals):
            # complex ones first: their pairs must start at even places of the bucket
            places = [i for i, r in enumerate(reals) if r.dtype == dtype]
            places.sort(key=lambda i: not tensors[i].is_complex())
            flat = torch.cat([reals[i].reshape(-1) for i in places])
            with self.heartbeat.collective():
                reduce(flat)
            self.collectives += 1
            self.bytes_reduced += flat.numel() * flat.element_size()
            for i, part in zip(places, flat.split([reals[i].numel() for i in places]), strict=True):
                whole = part.reshape(reals[i].shape)
                results[i] = torch.view_as_complex(whole) if tensors[i].is_complex() else whole
        return [r for r in results if r is not None]
