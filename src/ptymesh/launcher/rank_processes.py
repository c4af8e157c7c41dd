"""Launcher of the ranks of a run on this machine.

Ranks get the environment that torchrun would give them, and are started and ended by the process layer of torch's
elastic launcher. Its agent (`elastic_launch`) is not used: after a signal it discards the exit statuses of the ranks,
so that "interrupted after a checkpoint" and a crash would look the same; it kills the other ranks as soon as one has
ended; and a second signal leaves ranks behind. Here signals are passed on, ranks get time to end, and their statuses
are kept.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, start_processes

from ptymesh import stopping
from ptymesh.distributed.child import CORES, LAUNCHER, OUTPUT
from ptymesh.distributed.devices import bindings, memory_nodes, visible_slice
from ptymesh.distributed.processes import cores, python_command, python_environment
from ptymesh.distributed.watchdog import AGREED, read_verdict
from ptymesh.errors import BadInput, Diverged, Interrupted, PtymeshError
from ptymesh.launcher.waiting import FORWARDED, Signals, Watch, ask_store

#: Most ranks on one machine; larger numbers are typing errors.
MOST_RANKS = 4096
#: Most ranks on a core; only tests put several on one.
MOST_PER_CORE = 16
#: Seconds within which this process must reach the store that it serves itself.
STORE_S = 10.0
TAIL_LINES, TAILS = 20, 3

#: Exit statuses after which a restart of the ranks would give the same result.
FINAL = (0, BadInput.exit_status, Diverged.exit_status, Interrupted.exit_status)


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

    Rank 0 uses this process's terminal; the output of the others goes to log_dir/rank<R>.txt and is shown if they fail.
    SIGINT, SIGTERM, SIGHUP (as SIGTERM) and SIGUSR1 are passed on; the ranks then have ten minutes to write a
    checkpoint and leave with status 75. A second Ctrl-C is passed on too, a third kills them at once.

    Args:
        arguments: of the command line.
        ranks: number of processes.
        threads_per_rank: default: OMP_NUM_THREADS where it is set, else this machine's cores divided by the ranks.
        log_dir: default: a temporary folder.
        program: arguments of Python instead of ptymesh.
        max_restarts: how often ranks that failed (not with 2, 3 or 75) are restarted; they find the number in
            TORCHELASTIC_RESTART_COUNT.
        environment: additional environment variables of the ranks.
        bind: True to bind each rank to the cores of one NUMA node, on machines with several.
        terminal: True if rank 0 uses this process's terminal; else its output goes to a file too.

    Returns:
        The status that the ranks agree on; where they do not, that of the rank with bad input (2) or a divergence (3),
        else of the first that failed. A rank killed by a signal counts as 1.

    Raises:
        BadInput: a number of ranks or restarts that cannot be, or a folder that cannot be made.
        PtymeshError: the store cannot listen on the loopback interface.
    """
    if not 1 <= ranks <= MOST_RANKS:
        raise BadInput(f"--ranks is {ranks}; give 1 to {MOST_RANKS} on one machine.")
    if max_restarts < 0:
        raise BadInput(f"--max-restarts is {max_restarts}; give 0 or more.")
    bound = bindings(ranks, _cpus() if bind else [], memory_nodes())
    saying = stopping.sentence()  # read it before `Signals` changes it
    with _torch_silenced(), Signals() as signals:
        logs = Path(tempfile.mkdtemp(prefix="ptymesh-ranks-")) if log_dir is None else log_dir
        _make(logs)
        for attempt in range(max_restarts + 1):
            # The launcher serves the store: its port cannot be taken before it is used, and it outlives rank 0.
            store = _store()
            variables = {"TORCHELASTIC_RESTART_COUNT": str(attempt), stopping.SAYING: saying, **(environment or {})}
            environments = {
                rank: python_environment(
                    _environment(rank, ranks, store.port, threads_per_rank, logs, bound[rank], terminal)
                )
                | variables
                for rank in range(ranks)
            }
            watch = _attempt((*program, *arguments), environments, signals, store)
            status = _status(watch.ended, watch.forced)
            _report_failure(watch, status, logs)
            if status in FINAL or watch.stop_requested or attempt == max_restarts:
                break
            print(f"ptymesh: starting the ranks again, {attempt + 1} of {max_restarts}.", file=sys.stderr, flush=True)
        tidy(logs, ranks, status)
    return status


def _make(logs: Path) -> None:
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{logs} cannot be made ({error.strerror}); choose another folder.") from error


def _store() -> TCPStore:
    """Return a store that listens on the loopback interface only. Raises PtymeshError if it cannot be reached."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port, how = listener.getsockname()[1], {"is_master": True, "wait_for_workers": False}
            number = listener.detach()
            return TCPStore("127.0.0.1", port, timeout=timedelta(seconds=STORE_S), master_listen_fd=number, **how)
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        remedy = "look at this machine's network settings, or use --ranks 1"
        raise PtymeshError(f"Ranks cannot meet at 127.0.0.1 ({reason}); {remedy}.") from error


def _attempt(
    command: Sequence[str], environments: dict[int, dict[str, str]], signals: Signals, store: TCPStore
) -> Watch:
    """Start the ranks and wait until all have ended."""
    python, *arguments = python_command(*command)
    with _signals_blocked():
        context = start_processes(
            "rank", python, dict.fromkeys(environments, tuple(arguments)), environments, logs_specs=_Inherit()
        )
    watch = Watch(context, signals, store)
    try:
        watch.run()
    finally:
        context.close(signal.SIGKILL, timeout=10)
    return watch


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals for processes that are started here, until they can handle them (`child.prepare_process`)."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment(
    rank: int, ranks: int, port: int, threads: int | None, logs: Path, cpus: list[int], terminal: bool
) -> dict[str, str]:
    """Return the environment variables of a rank: those of torchrun, and those that `child.prepare_process` reads."""
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
    if slice_variables := visible_slice(rank):
        environment["CUDA_VISIBLE_DEVICES"] = slice_variables
    return {name: str(value) for name, value in environment.items()}


def _cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class _Inherit(LogsSpecs):
    """Log settings with which ranks inherit our streams; `child.prepare_process` redirects those of all but rank 0."""

    def redirect_nothing(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return destinations that redirect no stream."""
        no_files = dict.fromkeys(envs, "")
        return LogsDest(stdouts=no_files, stderrs=no_files, error_files=no_files)

    #: What torch calls it.
    reify = redirect_nothing

    @property
    def root_log_dir(self) -> str:
        """Empty: torch keeps no logs."""
        return ""


@contextmanager
def _torch_silenced() -> Iterator[None]:
    """Keep torch's launcher from logging the signals that we send, and from handling those that we receive."""
    logger = logging.getLogger("torch.distributed.elastic.multiprocessing.api")
    level, name = logger.level, "TORCHELASTIC_SIGNALS_TO_HANDLE"
    before = os.environ.get(name)
    logger.setLevel(logging.CRITICAL)
    os.environ[name] = "NONE"  # torch only logs an unknown name, and handles no signal
    try:
        yield
    finally:
        logger.setLevel(level)
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _status(statuses: dict[int, int], forced: set[int]) -> int:
    """Return the exit status of the run from those of the ranks (`launch`)."""
    own_failures = [status for rank, status in statuses.items() if status != 0 and rank not in forced]
    for expected_status in (BadInput.exit_status, Diverged.exit_status):
        if expected_status in own_failures:
            return expected_status
    stopped = {Interrupted.exit_status, *(-number for number in FORWARDED)}
    if Interrupted.exit_status in own_failures and stopped.issuperset(own_failures):
        return Interrupted.exit_status  # the checkpoint exists; a repeated signal killed a rank that was leaving
    failed = own_failures or [status for status in statuses.values() if status != 0]
    return max(failed[0], 1) if failed else 0


def _report_failure(watch: Watch, status: int, logs: Path) -> None:
    """Print the end of the failed rank's log and the verdict on it; without a verdict, the logs of all failed ranks."""
    ended, forced = watch.ended, watch.forced
    if status in FINAL and ended[0] == status:
        return
    verdict = ask_store(lambda: read_verdict(watch.store), None)
    if verdict and verdict.stopped and status != Interrupted.exit_status:
        verdict = None  # a rank was stopped because another one had failed
    if status != Interrupted.exit_status:
        for code in dict.fromkeys(code for code in ended.values() if code < 0):
            killed = [rank for rank in sorted(ended) if ended[rank] == code and rank in forced]
            if killed:
                name, names = signal.Signals(-code).name, ", ".join(map(str, killed))
                one = f"rank {names} was ended by {name} because it did not end by itself."
                several = f"ranks {names} were ended by {name} because they did not end by themselves."
                print(f"ptymesh: {one if len(killed) == 1 else several}", file=sys.stderr)
    if verdict is None and ask_store(lambda: watch.store.check([AGREED]), False):
        return
    reported = [rank for rank in ended if rank and ended[rank]] if verdict is None else [verdict.rank or 0]
    for rank in reported[:TAILS]:
        path = logs / f"rank{rank}.txt"
        if rank and path.is_file() and path.stat().st_size:
            tail = path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
            print(f"--- rank {rank} (all of it in {path})", *tail, sep="\n", file=sys.stderr)
    if verdict is not None:
        print(f"ptymesh: {verdict.sentence}", file=sys.stderr, flush=True)


def tidy(logs: Path, ranks: int, status: int = 0) -> None:
    """Remove empty log files, and after success those that an earlier run on more ranks left.

    Args:
        logs: folder with the log files.
        ranks: number of ranks.
        status: exit status of the run.
    """
    for path in logs.glob("rank*.txt") if logs.is_dir() else ():
        number = path.stem.removeprefix("rank")
        if number.isdecimal() and path.is_file() and (path.stat().st_size == 0 if int(number) < ranks else status == 0):
            path.unlink()
    with suppress(OSError):  # the folder holds other files, or does not exist
        logs.rmdir()
