"""A process group that behaves as NCCL's does, between ranks that have no GPU (pretended.py).

    register(); dist.init_process_group("queued", ...)

Collectives and messages are queued on the device, and return before anything has happened; only tensors of the device
are taken, none that is complex or has gaps. When the device comes to one, it is held against what the other ranks have
queued: where that is something else, it is named, where NCCL would hang or mix numbers up. `destroy` returns when all
ranks have called it. Beneath are gloo's groups of the ranks, one for numbers and one for comparisons.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from pretended import Far
from torch import Tensor

NAME = "queued"


class Done(dist._Work):
    """Of something queued: to wait for it makes later work of the device come after it, and the host go on."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """At once."""
        return True


class Queued(dist.ProcessGroup):
    """See above."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._numbers, self._compared = (
            dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, size, timeout)
            for name in ("numbers", "compared")
        )
        self._store, self.queued = store, 0
        #: Messages on their way: gloo drops one that nobody holds any more.
        self._sent: list[Any] = []

    def getBackendName(self) -> str:  # torch's
        """Its name."""
        return NAME

    def allreduce(self, tensors: list[Tensor], options: Any = None) -> Done:
        """Queued."""
        (tensor,) = tensors
        about = f"{options.reduceOp.op if options else 'SUM'} of {tensor.numel()} {tensor.dtype}"
        return self._queue(tensor, about, lambda memory: self._numbers.allreduce([memory], options).wait())

    def broadcast(self, tensors: list[Tensor], options: Any = None) -> Done:
        """Queued."""
        (tensor,) = tensors
        about = f"broadcast of {tensor.numel()} {tensor.dtype} from {options.rootRank}"
        return self._queue(tensor, about, lambda memory: self._numbers.broadcast([memory], options).wait())

    def send(self, tensors: list[Tensor], to: int, tag: int) -> Done:
        """Queued; what is sent is as it was when the device came to it."""

        def act(memory: Tensor) -> None:
            copy = memory.clone()
            self._sent = [one for one in self._sent if not one[0].is_completed()]
            self._sent.append((self._numbers.send([copy], to, tag), copy))

        return self._queue(tensors[0], "", act)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Done:
        """Queued."""
        return self._queue(tensors[0], "", lambda memory: self._numbers.recv([memory], source, tag).wait())

    def destroy(self) -> None:
        """Returns when all ranks have called it."""
        self._compared.barrier().wait()

    def _queue(self, tensor: Tensor, about: str, act: Callable[[Tensor], Any]) -> Done:
        if not isinstance(tensor, Far):
            raise RuntimeError(f"NCCL has no use for a tensor of the host {tuple(tensor.shape)}")
        if tensor.is_complex() or not tensor.is_contiguous():
            raise RuntimeError(f"NCCL takes contiguous real tensors, not {tuple(tensor.shape)} of {tensor.dtype}")
        memory, device = tensor.memory, tensor.device_used
        if about:
            self.queued += 1
            about = f"{self.queued}: {about}"

        def work() -> None:
            if about:
                self._compare(about)
            act(memory)

        device.queue(work)
        return Done()

    def _compare(self, about: str) -> None:
        """Raises RuntimeError where not all ranks have come to the same."""
        mine = torch.zeros(200, dtype=torch.uint8)
        mine[: len(about)] = torch.tensor(list(about.encode()), dtype=torch.uint8)
        all_of_them = [[torch.zeros_like(mine) for _ in range(self._size)]]
        self._compared.allgather(all_of_them, [mine]).wait()
        said = [bytes(row[row > 0].tolist()).decode() for row in all_of_them[0]]
        if len(set(said)) > 1:
            raise RuntimeError(
                "ranks have queued other things: " + "; ".join(f"rank {r}: {s}" for r, s in enumerate(said))
            )


def register() -> None:
    """Lets torch know it, and destroys it as NCCL does."""
    dist.Backend.register_backend(NAME, Queued, devices=["cpu", "pretended"])
    destroy = dist.destroy_process_group

    def destroyed(group: Any = None) -> None:
        dist.distributed_c10d._get_default_group().destroy()
        destroy(group)

    dist.destroy_process_group = destroyed
