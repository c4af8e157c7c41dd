"""Starts the ranks of a run on this machine.

Ranks get the environment that torchrun would give them, and are started and ended by the process layer of torch's
elastic launcher. Its agent (`elastic_launch`) is not used: when a signal comes it forgets how the ranks ended, so that
"interrupted after a checkpoint" could not be told from a crash, it kills the others as soon as one has ended, and a
second signal leaves ranks behind. Here signals are passed on, ranks get their time, and their statuses are kept.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, PContext, start_processes

from ptymesh import stopping
from ptymesh.errors import BadInput, Diverged, Interrupted
from ptymesh.parallel.child import CORES, LAUNCHER, OUTPUT
from ptymesh.parallel.devices import bindings, memory_nodes, visible_slice
from ptymesh.parallel.watchdog import AGREED, accuse, read_post, read_verdict

#: More processes than any machine runs well, which a slip of the finger would start.
MOST_RANKS = 4096
#: Seconds that ranks get to write a checkpoint once a signal came, and to end by themselves once one of them failed.
STOP_S, PEERS_S = 600.0, 10.0
POLL_S = 0.05
TAIL_LINES, TAILS = 20, 3

#: Statuses after which starting the ranks again would change nothing.
FINAL = (0, BadInput.exit_status, Diverged.exit_status, Interrupted.exit_status)

_FORWARDED = stopping.SIGNALS


def launch(
    arguments: Sequence[str],
    ranks: int,
    *,
    threads_per_rank: int | None = None,
    log_dir: Path | None = None,
    program: Sequence[str] = ("-m", "ptymesh"),
    max_restarts: int = 0,
    environment: Mapping[str, str] | None = None,
    bind: bool = True,
    terminal: bool = True,
) -> int:
    """Run `python -m ptymesh ARGUMENTS` on `ranks` ranks of this machine and return their exit status.

    Rank 0 has this process's terminal; what the others print goes to log_dir/rank<R>.txt and is shown when they fail.
    SIGINT, SIGTERM, SIGHUP (as SIGTERM) and SIGUSR1 are passed on; the ranks then have ten minutes to write a
    checkpoint and leave with status 75. A second Ctrl-C is passed on too, a third ends them at once.

    Args:
        arguments: of the command line.
        ranks: how many processes.
        threads_per_rank: default: OMP_NUM_THREADS where it is set, else this machine's cores shared out.
        log_dir: default: a temporary folder.
        program: what python runs instead of ptymesh.
        max_restarts: how often ranks that failed (not with 2, 3 or 75) are started again; they find the number in
            TORCHELASTIC_RESTART_COUNT.
        environment: variables that ranks get besides.
        bind: each rank to the cores of one NUMA node, on machines with several.
        terminal: whether rank 0 has this process's; else it has a file too.

    Returns the status that the ranks agree on; where they do not, that of the rank with bad input (2) or a divergence
    (3), else of the first that failed. A rank killed by a signal counts as 1. Raises BadInput for ranks < 1.
    """
    if not 1 <= ranks <= MOST_RANKS:
        raise BadInput(f"--ranks is {ranks}; give 1 to {MOST_RANKS} on one machine.")
    if max_restarts < 0:
        raise BadInput(f"--max-restarts is {max_restarts}; give 0 or more.")
    bound = bindings(ranks, _cpus() if bind else [], memory_nodes())
    saying = stopping.sentence()  # before signals are for the ranks
    with _quiet(), _Signals() as signals:
        logs = Path(tempfile.mkdtemp(prefix="ptymesh-ranks-")) if log_dir is None else log_dir
        logs.mkdir(parents=True, exist_ok=True)
        for attempt in range(max_restarts + 1):
            # The launcher hosts the store: no port is taken between choosing and using it, and none needs rank 0 alive.
            store = _store()
            given = {"TORCHELASTIC_RESTART_COUNT": str(attempt), stopping.SAYING: saying, **(environment or {})}
            environments = {
                rank: _environment(rank, ranks, store.port, threads_per_rank, logs, bound[rank], terminal) | given
                for rank in range(ranks)
            }
            watch = _attempt((*program, *arguments), environments, signals, store)
            status = _status(watch.ended, watch.forced)
            _tell(watch, status, logs)
            if status in FINAL or watch.asked or attempt == max_restarts:
                break
            print(f"ptymesh: starting the ranks again, {attempt + 1} of {max_restarts}.", file=sys.stderr, flush=True)
        tidy(logs, ranks, status)
    return status


def _store() -> TCPStore:
    """A store that listens on the loopback interface alone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _attempt(
    command: Sequence[str], environments: dict[int, dict[str, str]], signals: _Signals, store: TCPStore
) -> _Watch:
    """Start the ranks and return when all have ended."""
    with _held_back():
        context = start_processes(
            "rank", sys.executable, dict.fromkeys(environments, tuple(command)), environments, logs_specs=_Inherit()
        )
    watch = _Watch(context, signals, store)
    try:
        watch.run()
    finally:
        context.close(signal.SIGKILL, timeout=10)
    return watch


@contextmanager
def _held_back() -> Iterator[None]:
    """Processes that are started within it get no signal before they can answer it (`child.settle`)."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment(
    rank: int, ranks: int, port: int, threads: int | None, logs: Path, cpus: list[int], terminal: bool
) -> dict[str, str]:
    """What torchrun gives to a rank, and what our own ranks do first (`child.settle`)."""
    environment = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_RUN_ID": f"ptymesh-{os.getpid()}",
        "OMP_NUM_THREADS": threads or os.environ.get("OMP_NUM_THREADS") or max(1, cores() // ranks),
        LAUNCHER: os.getpid(),
        OUTPUT: logs / f"rank{rank}.txt" if rank or not terminal else "",
        CORES: ",".join(map(str, cpus)),
    }
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback and "GLOO_SOCKET_IFNAME" not in os.environ:
        environment["GLOO_SOCKET_IFNAME"] = loopback[0]
    if own := visible_slice(rank):
        environment["CUDA_VISIBLE_DEVICES"] = own
    return {name: str(value) for name, value in environment.items()}


def cores() -> int:
    """Cores that this process may use."""
    return len(_cpus()) or os.cpu_count() or 1


def _cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class _Inherit(LogsSpecs):
    """Ranks keep our streams; `child.settle` redirects those of the others into one file each, in order."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """No redirection by torch."""
        nowhere = dict.fromkeys(envs, "")
        return LogsDest(stdouts=nowhere, stderrs=nowhere, error_files=nowhere)

    @property
    def root_log_dir(self) -> str:
        """None."""
        return ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch's launcher from logging about signals that we send, and from handling those that we get."""
    logger = logging.getLogger("torch.distributed.elastic.multiprocessing.api")
    level, name = logger.level, "TORCHELASTIC_SIGNALS_TO_HANDLE"
    before = os.environ.get(name)
    logger.setLevel(logging.CRITICAL)
    os.environ[name] = "NONE"  # an unknown name is logged, and that is all
    try:
        yield
    finally:
        logger.setLevel(level)
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


class _Signals:
    """Collects the signals that come, until they are taken."""

    def __init__(self) -> None:
        self._came: list[int] = []

    def __enter__(self) -> _Signals:
        main = threading.current_thread() is threading.main_thread()  # elsewhere Python lets nobody handle signals
        numbers = _FORWARDED if main else ()
        self._previous = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
        for number in self._previous:
            signal.signal(number, self._note)
        stopping.held()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)

    def take(self) -> list[int]:
        """Those that came since the last call."""
        taken, self._came = self._came, []
        return taken


class _Watch:
    """Waits for the ranks, passes signals on, and ends ranks that do not end by themselves.

    ended: exit status of each rank, in the order in which they ended; negative: killed by that signal.
    forced: ranks that had to be killed. asked: whether a signal asked the run to stop.
    """

    def __init__(self, context: PContext, signals: _Signals, store: TCPStore) -> None:
        self.context, self.signals, self.store = context, signals, store
        self.asked = False
        self.ended: dict[int, int] = {}
        self.forced: set[int] = set()
        self.interrupts, self.warned = 0, False
        self.failed_at = self.kill_at = math.inf
        self.pids: dict[int, int] = {}

    def run(self) -> None:
        """Returns when all have ended."""
        handlers = self.context.subprocess_handlers  # type: ignore[attr-defined] # PContext of a program has them
        self.running = {rank: handler.proc for rank, handler in handlers.items()}
        self.pids = {rank: process.pid for rank, process in self.running.items()}
        while self.running:
            self._pass_on()
            self._hurry()
            time.sleep(POLL_S)
            self._collect()

    def _pass_on(self) -> None:
        for number in self.signals.take():
            self.asked = True
            self.interrupts += number == signal.SIGINT
            if self.interrupts > 2:
                self._kill()
            else:
                self._send(signal.SIGTERM if number == getattr(signal, "SIGHUP", None) else number)
            patience = STOP_S if self.interrupts < 2 else PEERS_S
            self.kill_at = min(self.kill_at, time.monotonic() + patience)

    def _collect(self) -> None:
        for rank, process in list(self.running.items()):
            if process.poll() is not None:
                del self.running[rank]
                self.ended[rank] = process.returncode
                if process.returncode < 0 and rank not in self.forced and not self.asked:
                    self._accuse(rank, signal.Signals(-process.returncode).name)
        if any(self.ended.values()):
            self.failed_at = min(self.failed_at, time.monotonic())

    def _hurry(self) -> None:
        """Once one has failed, the others notice within a moment, or wait for it in vain and must be ended."""
        now = time.monotonic()
        if now > self.failed_at + PEERS_S / 2 and not self.asked:
            self._accuse_absent()
        if now > self.kill_at:
            self._kill()
        elif now > self.failed_at + PEERS_S and not self.warned:
            self.warned = True
            self._send(signal.SIGTERM)
            self.forced |= set(self.running)
            self.kill_at = min(self.kill_at, now + PEERS_S)

    def _accuse_absent(self) -> None:
        """A rank that failed before it had joined the others could not tell them, and they wait for it."""
        known = (0, Diverged.exit_status, Interrupted.exit_status)
        failed = [rank for rank, status in self.ended.items() if status > 0 and status not in known]
        if failed and self.running and not self.store.check([AGREED]) and read_post(self.store, failed[0]) is None:
            rank, status = failed[0], self.ended[failed[0]]
            did = f"ended with status {status} before it had joined the others"
            accuse(self.store, rank, f"Rank {rank} (process {self.pids[rank]}) {did}.")

    def _accuse(self, rank: int, name: str) -> None:
        """A rank that was killed cannot say so itself; the others then learn it, and need not wait for it."""
        post = read_post(self.store, rank)
        memory = " (often for want of memory: use fewer ranks, or crop or bin the data)" if name == "SIGKILL" else ""
        place = f", last heard of in {post.place}" if post else " before it had joined the others"
        accuse(self.store, rank, f"Rank {rank} (process {self.pids[rank]}) was ended by {name}{memory}{place}.")

    def _send(self, number: int) -> None:
        for process in self.running.values():
            process.send_signal(number)

    def _kill(self) -> None:
        self._send(signal.SIGKILL)
        self.forced |= set(self.running)


def _status(ended: dict[int, int], forced: set[int]) -> int:
    own = [status for rank, status in ended.items() if status != 0 and rank not in forced]
    for known in (BadInput.exit_status, Diverged.exit_status):
        if known in own:
            return known
    stopped = {Interrupted.exit_status, *(-number for number in _FORWARDED)}
    if Interrupted.exit_status in own and stopped.issuperset(own):
        return Interrupted.exit_status  # the checkpoint is there; a repeated signal met a rank on its way out
    failed = own or [status for status in ended.values() if status != 0]
    return max(failed[0], 1) if failed else 0


def _tell(watch: _Watch, status: int, logs: Path) -> None:
    """What went wrong: the end of the log of the rank at fault, and the verdict on it; else what failed ranks said."""
    ended, forced = watch.ended, watch.forced
    if status in FINAL and ended[0] == status:
        return
    verdict = read_verdict(watch.store)
    if verdict and verdict.stopped and status != Interrupted.exit_status:
        verdict = None  # a rank was told to stop because another one had failed
    if status != Interrupted.exit_status:
        for code in dict.fromkeys(code for code in ended.values() if code < 0):
            killed = [rank for rank in sorted(ended) if ended[rank] == code and rank in forced]
            if killed:
                name, names = signal.Signals(-code).name, ", ".join(map(str, killed))
                print(f"ptymesh: rank {names} was ended by {name} because it did not end by itself.", file=sys.stderr)
    if verdict is None and watch.store.check([AGREED]):
        return
    told = [rank for rank in ended if rank and ended[rank]] if verdict is None else [verdict.rank or 0]
    for rank in told[:TAILS]:
        path = logs / f"rank{rank}.txt"
        if rank and path.exists() and path.stat().st_size:
            tail = path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
            print(f"--- rank {rank} (all of it in {path})", *tail, sep="\n", file=sys.stderr)
    if verdict is not None:
        print(f"ptymesh: {verdict.sentence}", file=sys.stderr, flush=True)


def tidy(logs: Path, ranks: int, status: int = 0) -> None:
    """Remove the files of ranks that said nothing; once all went well, those that an earlier run on more ranks left."""
    for path in logs.glob("rank*.txt") if logs.is_dir() else ():
        number = path.stem.removeprefix("rank")
        if number.isdecimal() and (path.stat().st_size == 0 if int(number) < ranks else status == 0):
            path.unlink()
    with suppress(OSError):  # there are others, or it was never made
        logs.rmdir()
