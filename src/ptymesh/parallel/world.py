"""The ranks of a reconstruction, and what they can do together. One rank is a world too.

Every method that takes part in a collective must be entered by all ranks. Reductions return new tensors: they never
act on a view of somebody's array. Tensors of one real dtype travel in one flat bucket, complex ones as pairs of reals.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ptymesh.errors import PtymeshError
from ptymesh.parallel.devices import backend_for, device_for, share_cores

#: Longest that a rank waits for the others in a collective; phases that take long (saving, reading) are shorter.
TIMEOUT = timedelta(minutes=10)


class World:
    """One rank alone: sums and maxima over ranks are the values themselves."""

    rank = 0
    size = 1

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.collectives = 0  #: how many were entered, for tests and reports
        self.bytes_reduced = 0  #: payload that they carried
        self.messages = 0  #: how many were sent to a single rank
        self.bytes_sent = 0  #: payload that they carried

    def sum(self, *tensors: Tensor) -> list[Tensor]:
        """Sum over ranks of each tensor."""
        return [t.clone() for t in tensors]

    def max(self, *tensors: Tensor) -> list[Tensor]:
        """Elementwise maximum over ranks of each real tensor."""
        return [t.clone() for t in tensors]

    def broadcast(self, *tensors: Tensor) -> list[Tensor]:
        """Each tensor as rank 0 has it."""
        return [t.clone() for t in tensors]

    def post(self, sends: dict[int, Tensor], receives: dict[int, Tensor]) -> Callable[[], None]:
        """Starts sending each tensor to its rank and receiving into the others; what is returned waits for the end.

        Tensors are contiguous and not empty, of any dtype (they travel as bytes); what one rank sends another awaits.
        """
        assert not sends and not receives, "a rank alone has nobody to write to"
        return lambda: None

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Re sum conj(a) b over the elements that each rank holds and over ranks, 0-d float64."""
        products = torch.view_as_real(a) * torch.view_as_real(b) if a.is_complex() else a * b
        return self.sum(products.sum(dtype=torch.float64))[0]

    def agree(self, flag: bool) -> bool:
        """True if any rank says True."""
        return flag

    def all_well(self, failure: Exception | None, doing: str) -> None:
        """At a safe point: if any rank failed, raises on every rank, its own failure or word of another's."""
        if self.agree(failure is not None):
            raise failure or PtymeshError(f"Another rank failed while {doing}; its own message says why.")

    def barrier(self) -> None:
        """Returns when every rank has come here."""

    def close(self) -> None:
        """Leaves the world."""


Solo = World


class Ranks(World):
    """Several ranks joined by torch.distributed; `group` is for tests that use part of a pool."""

    def __init__(self, device: torch.device | str = "cpu", group: dist.ProcessGroup | None = None) -> None:
        super().__init__(device)
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def sum(self, *tensors: Tensor) -> list[Tensor]:
        """Sum over ranks of each tensor, one message per real dtype."""
        return self._bucketed(tensors, lambda flat: dist.all_reduce(flat, dist.ReduceOp.SUM, self.group))

    def max(self, *tensors: Tensor) -> list[Tensor]:
        """Elementwise maximum over ranks of each real tensor."""
        return self._bucketed(tensors, lambda flat: dist.all_reduce(flat, dist.ReduceOp.MAX, self.group))

    def broadcast(self, *tensors: Tensor) -> list[Tensor]:
        """Each tensor as rank 0 has it."""
        return self._bucketed(tensors, lambda flat: dist.broadcast(flat, group=self.group, group_src=0))

    def post(self, sends: dict[int, Tensor], receives: dict[int, Tensor]) -> Callable[[], None]:
        """Starts sending each tensor to its rank and receiving into the others; what is returned waits for the end."""
        operations = [
            dist.P2POp(way, tensor.view(-1).view(torch.uint8), group=self.group, group_peer=rank)
            for way, tensors in ((dist.isend, sends), (dist.irecv, receives))
            for rank, tensor in tensors.items()
        ]
        self.messages += len(sends)
        self.bytes_sent += sum(t.numel() * t.element_size() for t in sends.values())
        works = dist.batch_isend_irecv(operations) if operations else []

        def wait(kept: Any = sends) -> None:  # what is being sent must live until it has gone
            for work in works:
                work.wait()

        return wait

    def agree(self, flag: bool) -> bool:
        """True if any rank says True."""
        return bool(self.max(torch.tensor([float(flag)], device=self.device))[0].item() > 0)

    def barrier(self) -> None:
        """Returns when every rank has come here."""
        self.agree(False)

    def close(self) -> None:
        """Leaves the process group that `join` entered."""
        if self.group is None and dist.is_initialized():
            dist.destroy_process_group()

    def _bucketed(self, tensors: tuple[Tensor, ...], reduce: Callable[[Tensor], Any]) -> list[Tensor]:
        reals = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
        results: list[Tensor | None] = [None] * len(tensors)
        for dtype in dict.fromkeys(r.dtype for r in reals):
            # complex ones first: their pairs must start at even places of the bucket
            places = [i for i, r in enumerate(reals) if r.dtype == dtype]
            places.sort(key=lambda i: not tensors[i].is_complex())
            flat = torch.cat([reals[i].reshape(-1) for i in places])
            reduce(flat)
            self.collectives += 1
            self.bytes_reduced += flat.numel() * flat.element_size()
            for i, part in zip(places, flat.split([reals[i].numel() for i in places]), strict=True):
                whole = part.reshape(reals[i].shape)
                results[i] = torch.view_as_complex(whole) if tensors[i].is_complex() else whole
        return [r for r in results if r is not None]


def join(device: str = "auto") -> World:
    """The world that this process was started in: Ranks under torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in
    the environment), else Solo. Raises BadInput where the device is not there.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))
    chosen = device_for(device, local_rank)
    if size == 1:
        return Solo(chosen)
    share_cores(int(os.environ.get("LOCAL_WORLD_SIZE", size)))
    if not dist.is_initialized():
        dist.init_process_group(
            backend_for(chosen), timeout=TIMEOUT, device_id=chosen if chosen.type == "cuda" else None
        )
    return Ranks(chosen)


def inside_ranks() -> bool:
    """Whether torchrun (or our own launcher) started this process as one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
