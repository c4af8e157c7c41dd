"""How a process joins the ranks that were started with it.

Ranks meet at a store, which rank 0 or the launcher keeps, before torch's process group is made: there a rank that does
not come is named, and one that fails meanwhile tells the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from ptymesh import stopping
from ptymesh.distributed import program
from ptymesh.distributed.devices import BACKEND, DEVICE, KINDS, backend_for, check_sums, claimed, device_for
from ptymesh.distributed.heartbeat import Heartbeat, budgets
from ptymesh.distributed.program import reason
from ptymesh.distributed.rank_info import RankInfo, settle_environment
from ptymesh.distributed.watchdog import Watchdog, kept_by_launcher, read_verdict
from ptymesh.distributed.world import Ranks, Solo, World
from ptymesh.errors import BadInput, PtymeshError

#: Torch's own limit for a collective, in seconds. It knows no phases, so it is longer than all of heartbeat.budgets.
TIMEOUT_S = 7200.0

_joins = 0
_watchdog: Watchdog | None = None
#: Kept to the end: on rank 0, which may serve all others, it must outlive the group for them to say what happened.
_store: dist.Store | None = None


def join(device: str = "auto") -> World:
    """The world that this process was started in: Ranks under torchrun, `ptymesh launch`, srun or mpirun, else Solo.

    Device and backend are also taken from PTYMESH_DEVICE (instead of auto) and PTYMESH_BACKEND.
    Raises BadInput where the device is not there, PtymeshError where a rank does not come.
    """
    global _watchdog, _joins, _store
    place = settle_environment()
    name, wanted = os.environ.get(DEVICE, device) if device == "auto" else device, os.environ.get(BACKEND, "auto")
    chosen = check_sums(device_for(name, place.local_rank, place.local_size, wanted))
    backend = backend_for(chosen, wanted)
    if place.size == 1:
        return Solo(chosen)
    if chosen.type in KINDS:  # where torch's messages from one rank to another go
        torch.get_device_module(chosen).set_device(chosen)
    if not dist.is_initialized():
        heartbeat = Heartbeat(phase="join", budgets_s=budgets(), queued=backend in ("nccl", "xccl"))
        patience_s = heartbeat.budgets_s["join"]
        with _reaching_the_store(place.rank):
            store, rank, size = _meet(place, timedelta(seconds=patience_s)), place.rank, place.size
            own = store.clone()  # type: ignore[attr-defined] # torch's stubs leave it out
            watchdog = Watchdog(own, heartbeat, rank, size)
            stopping.before_leaving(watchdog.stopped)  # until it leaves
            try:
                _wait_for_all(store, watchdog, patience_s)
                if backend in ("nccl", "xccl"):
                    claimed(store, rank, chosen)
            except BaseException:
                watchdog.leave(failed=True)
                raise
        _joins, _store, _watchdog = _joins + 1, store, watchdog
        _watchdog.start()
        program.enter(place, _watchdog)
        with heartbeat.collective():
            dist.init_process_group(
                backend,
                store=dist.PrefixStore(f"ptymesh/{_joins}", store),
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=max(TIMEOUT_S, 2 * max(heartbeat.budgets_s.values()))),
                device_id=chosen if backend in ("nccl", "xccl") else None,
            )
        heartbeat.phase = "script"
    return Ranks(chosen, watchdog=_watchdog)


def _meet(place: RankInfo, patience: timedelta) -> dist.TCPStore:
    """The store through which ranks meet. Raises BadInput where nobody says where it is.

    As torch's own rendezvous, which would keep rank 0 until all have come, deaf to what they say meanwhile.
    """
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not (host and port.isdecimal() and int(port) < 2**16):
        raise BadInput(
            f"MASTER_ADDR is {host!r} and MASTER_PORT is {port!r} for rank {place.rank} of {place.size}; "
            "set both to the address and a free port of the machine with rank 0."
        )
    return dist.TCPStore(
        host,
        int(port),
        place.size,
        place.rank == 0 and not kept_by_launcher(),
        patience,
        wait_for_workers=False,
        multi_tenant=True,
        use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
    )


@contextmanager
def _reaching_the_store(rank: int) -> Iterator[None]:
    """Raises PtymeshError where it is not there, or goes."""
    try:
        yield
    except (dist.DistError, RuntimeError, OSError) as error:
        keeper = "the launcher" if kept_by_launcher() else "rank 0"
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise PtymeshError(f"Rank {rank} cannot reach {keeper} at {address} ({reason(error)}).") from error


def _wait_for_all(store: dist.Store, watchdog: Watchdog, patience_s: float) -> None:
    """Returns when every rank has reached the store; names those that have not come in time.

    Ends this process where there is a verdict meanwhile: a rank failed before it came, or was told to stop.
    """
    rank, size = watchdog.rank, watchdog.size
    store.set(f"ptymesh/here/{rank}", "")
    missing, end = set(range(size)), time.monotonic() + patience_s
    while missing := {other for other in missing if not store.check([f"ptymesh/here/{other}"])}:
        if time.monotonic() > end:
            names = ", ".join(map(str, sorted(missing)))
            raise PtymeshError(
                f"Rank {names} of {size} did not come within {patience_s:.0f} s; see whether every node was started "
                "with the same MASTER_ADDR, MASTER_PORT and number of ranks."
            )
        if verdict := read_verdict(store):
            watchdog.end(verdict)
        time.sleep(0.02)
