"""Joining of a process with the ranks that were started with it.

Ranks first connect to a store, which rank 0 or the launcher serves; torch's process group is made afterwards. Through
the store, a rank that is missing can be named, and one that fails meanwhile can tell the others.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version

import torch
import torch.distributed as dist

from ptymesh import stopping
from ptymesh.distributed import program
from ptymesh.distributed.agreement import difference
from ptymesh.distributed.child import launched
from ptymesh.distributed.devices import BACKEND, DEVICE, KINDS, backend_for, check_sums, claimed, device_for
from ptymesh.distributed.heartbeat import Heartbeat, budgets
from ptymesh.distributed.program import reason
from ptymesh.distributed.rank_info import RankInfo, settle_environment, variables_of
from ptymesh.distributed.watchdog import Watchdog, kept_by_launcher, post_verdict, read_verdict
from ptymesh.distributed.world import Ranks, Solo, World
from ptymesh.errors import BadInput, PtymeshError

#: Torch's own time limit for a collective, in seconds: longer than all of heartbeat.budgets, as it knows no phases.
TIMEOUT_S = 7200.0
#: Seconds after which a rank reports which ranks it waits for; most ranks that it names.
NOTICE_S, MOST_LISTED = 5.0, 8
#: Environment variable that chooses kernels (ptymesh.kernels), which differ in rounding.
KERNELS = "PTYMESH_KERNELS"

_joins = 0
_watchdog: Watchdog | None = None
#: The store, never closed: where rank 0 serves it, it must outlive the process group for others to report failures.
_store: dist.Store | None = None


def join(device: str = "auto") -> World:
    """Return the world that this process was started in, joining the other ranks.

    `Ranks` under torchrun, `ptymesh launch`, srun or mpirun, else `Solo`. PTYMESH_DEVICE (where `device` is auto) and
    PTYMESH_BACKEND choose device and backend. Collective.

    Args:
        device: device by name (`devices.device_for`).

    Raises:
        BadInput: the device does not exist, or processes differ in rank, versions or backend.
        PtymeshError: a rank does not come, or the store cannot be reached.
    """
    global _watchdog, _joins, _store
    place = settle_environment()
    name, backend_name = os.environ.get(DEVICE, device) if device == "auto" else device, os.environ.get(BACKEND, "auto")
    chosen = check_sums(device_for(name, place.local_rank, place.local_size, backend_name))
    backend = backend_for(chosen, backend_name)
    if place.size == 1:
        return Solo(chosen)
    if chosen.type in KINDS:  # torch sends point-to-point messages from the current device
        torch.get_device_module(chosen).set_device(chosen)
    if not dist.is_initialized():
        heartbeat = Heartbeat(phase="join", budgets_s=budgets(), queued=backend in ("nccl", "xccl"))
        patience_s = heartbeat.budgets_s["join"]
        with _reaching_the_store(place), WaitingNotice(place, patience_s) as notice:
            store, rank, size = _open_store(place, timedelta(seconds=patience_s)), place.rank, place.size
            own_store = store.clone()  # type: ignore[attr-defined] # torch's stubs leave it out
            watchdog = Watchdog(own_store, heartbeat, rank, size)
            stopping.before_leaving(watchdog.stopped)  # `watchdog.leave` takes it back
            try:
                _wait_for_all(store, watchdog, patience_s, facts_of_process(place, backend), notice)
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


def _open_store(place: RankInfo, patience: timedelta) -> dist.Store:
    """Return the rendezvous store, which rank 0 serves unless a launcher does.

    Torch's own rendezvous would block rank 0 until all have come, so that it could not read what others post meanwhile.

    Raises:
        BadInput: MASTER_ADDR or MASTER_PORT is missing or no port.
    """
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not (host and port.isdecimal() and int(port) < 2**16):
        raise BadInput(
            f"MASTER_ADDR is {host!r} and MASTER_PORT is {port!r} for rank {place.rank} of {place.size}; "
            "set both to the address and a free port of the machine with rank 0."
        )
    store = _within(
        patience.total_seconds(),
        lambda: dist.TCPStore(
            host,
            int(port),
            place.size,
            place.rank == 0 and not kept_by_launcher(),
            2 * patience,  # longer than ours, else torch prints a stack trace when we give up
            wait_for_workers=False,
            multi_tenant=True,
            use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
        ),
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt != "0" and not launched():  # torchrun restarts ranks with the same store, which holds old keys
        return dist.PrefixStore(f"ptymesh/attempt/{attempt}", store)
    return store


def _within(patience_s: float, make: Callable[[], dist.TCPStore]) -> dist.TCPStore:
    """Return the result of `make`, run on its own thread, since torch waits forever for a server that is no store.

    Raises:
        TimeoutError: it has not returned within `patience_s` seconds. Errors of `make` are raised too.
    """
    outcome: list[dist.TCPStore | BaseException] = []

    def act() -> None:
        try:
            outcome.append(make())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=act, name="ptymesh-store", daemon=True)
    thread.start()
    thread.join(patience_s)
    if not outcome:
        raise TimeoutError(f"nothing there has answered within {patience_s:.0f} s")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


@contextmanager
def _reaching_the_store(place: RankInfo) -> Iterator[None]:
    """Turn connection errors within this context into a PtymeshError that names the store's address and a remedy."""
    try:
        yield
    except (dist.DistError, RuntimeError, OSError) as error:
        keeper = "the launcher" if kept_by_launcher() else "rank 0"
        message = str(error) if isinstance(error, TimeoutError) else reason(error)
        if place.rank == 0 and not kept_by_launcher() and "EADDRINUSE" in message:
            raise BadInput(
                f"Rank 0 cannot listen at {_address()}: another process does, perhaps a second rank 0; give each "
                "process a RANK of its own, or take another MASTER_PORT."
            ) from error
        remedy = f"{_unresolved() or 'see whether it runs, and whether another program listens there'}"
        raise PtymeshError(f"Rank {place.rank} cannot reach {keeper} at {_address()} ({message}); {remedy}.") from error


def _address() -> str:
    return f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"


def _unresolved() -> str:
    """Return a remedy if MASTER_ADDR cannot be resolved; else an empty string."""
    name = os.environ.get("MASTER_ADDR", "")
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return f"no machine is known as {name!r}: correct MASTER_ADDR"
    return ""


class WaitingNotice:
    """Context that reports once, after a few seconds, which ranks this rank waits for while it joins the others.

    Args:
        place: this rank.
        patience_s: seconds after which it gives up.
    """

    def __init__(self, place: RankInfo, patience_s: float) -> None:
        self.place, self.patience_s = place, patience_s
        #: Ranks that are missing; None while the store has not been reached.
        self.missing: set[int] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="ptymesh-joins", daemon=True)

    def __enter__(self) -> WaitingNotice:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _wait(self) -> None:
        if self._over.wait(NOTICE_S):
            return
        place, missing = self.place, self.missing
        may_speak = place.local_rank == 0 or place.rank < MOST_LISTED
        if not (may_speak if missing is None else place.rank == _first_present(missing)):
            return  # another rank prints it
        whom = "the launcher" if kept_by_launcher() else "rank 0"
        if missing is not None:
            whom = f"rank{'s' * (len(missing) > 1)} {_listed(missing)}"
        names = variables_of(place)
        unresolved = f" ({unresolved_name})" if missing is None and (unresolved_name := _unresolved()) else ""
        print(
            f"ptymesh: rank {place.rank} of {place.size} (by {names} in the environment) waits for {whom} at "
            f"{_address()}{unresolved}, up to {self.patience_s:.0f} s (--timeout).",
            file=sys.stderr,
            flush=True,
        )


def _first_present(missing: set[int]) -> int:
    return next(rank for rank in range(len(missing) + 1) if rank not in missing)


def _listed(ranks: set[int]) -> str:
    first = sorted(ranks)[:MOST_LISTED]
    return ", ".join(map(str, first)) + (f" and {len(ranks) - len(first)} more" if len(ranks) > len(first) else "")


def facts_of_process(place: RankInfo, backend: str) -> dict[str, str]:
    """Return what a process must have in common with the others before it can exchange messages with them.

    Args:
        place: this rank.
        backend: torch's collective backend.

    Returns:
        Versions, number of ranks, backend and kernels by name, as text.
    """
    packages = {name: version(name) for name in ("ptymesh", "torch", "numba", "numpy")}
    facts = {"number of ranks": str(place.size), "backend": backend, KERNELS: os.environ.get(KERNELS, "auto")}
    return packages | facts


def _wait_for_all(
    store: dist.Store, watchdog: Watchdog, patience_s: float, facts: Mapping[str, str], notice: WaitingNotice
) -> None:
    """Wait until every rank has reached the store.

    Ends this process if a verdict is posted meanwhile, because a rank failed or was stopped before it came.

    Raises:
        BadInput: another process has this rank, or rank 0 has other facts.
        PtymeshError: some ranks, which the message names, did not come in time.
    """
    rank, size = watchdog.rank, watchdog.size
    if store.add(f"ptymesh/processes/{rank}/{_joins}", 1) > 1:
        other = store.get(f"ptymesh/here/{rank}").decode() if store.check([f"ptymesh/here/{rank}"]) else "{}"
        who = json.loads(other).get("process", "another process")
        raise BadInput(f"Rank {rank} of {size} is {who} already; give each process a RANK of its own.")
    process = f"process {os.getpid()} on {socket.gethostname()}"
    store.set(f"ptymesh/here/{rank}", json.dumps({"process": process, "facts": facts}))
    missing, end, compared = set(range(size)), time.monotonic() + patience_s, False
    while missing := {other for other in missing if not store.check([f"ptymesh/here/{other}"])}:
        notice.missing = missing
        if 0 not in missing and not compared:
            compared = True
            _compare_with_first(store, rank, facts)
        if time.monotonic() > end:
            raise PtymeshError(
                f"Rank {_listed(missing)} of {size} did not come within {patience_s:.0f} s; see whether every node was "
                "started with the same MASTER_ADDR, MASTER_PORT and number of ranks."
            )
        if verdict := read_verdict(store):
            watchdog.end(verdict)
        time.sleep(0.02)
    if not compared:
        _compare_with_first(store, rank, facts)


def _compare_with_first(store: dist.Store, rank: int, facts: Mapping[str, str]) -> None:
    """Raise BadInput, and post a verdict for the other ranks, if these facts differ from those of rank 0."""
    first = json.loads(store.get("ptymesh/here/0"))["facts"]
    if first != facts:
        sentence = difference({0: first, rank: facts}, "start all ranks with the same programs and options")
        post_verdict(store, rank, sentence, BadInput.exit_status)
        raise BadInput(sentence)
