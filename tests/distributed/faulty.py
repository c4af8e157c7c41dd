"""A rank of ptymesh with a fault in it: `python faulty.py FAULT RANK EPOCH MARKER ptymesh-arguments...`

`trial` instead of a command of ptymesh makes it a rank of a study's trial (ptymesh.tune.trial). The fault happens once,
in the first batch of that epoch on that rank, and leaves the file MARKER.
"""

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ptymesh.distributed.child import prepare_process

prepare_process()

from torch import distributed  # noqa: E402

from ptymesh.cli import main as module  # noqa: E402
from ptymesh.distributed import watchdog  # noqa: E402
from ptymesh.engines import RPIE  # noqa: E402
from ptymesh.errors import PtymeshError  # noqa: E402
from ptymesh.run.state import RunState  # noqa: E402

# half as long, or less; but not the grace in which a rank that fails says why
watchdog.TICK_S, watchdog.SILENT_S, watchdog.LOOK_S = 0.2, 2.0, 2.0

fault, at_rank, at_epoch, marker, *arguments = sys.argv[1:]
sys.argv = ["ptymesh", *arguments]
step = RPIE.step


def full_disk() -> None:
    """No file of this process may grow beyond this, as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


def memory() -> None:
    raise MemoryError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")


def pause() -> None:
    """Until the signal has come."""
    stop: Any = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    while not stop.requested:
        time.sleep(0.01)


def stop_when_saving() -> None:
    """The next checkpoint finds this process stopped."""

    def save(self: RunState, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    RunState.save = save  # type: ignore[method-assign]


def refuse() -> None:
    raise PtymeshError("There is no light.")


FAULTS = {
    "raise": lambda: 1 / 0,
    "refuse": refuse,
    "kill": lambda: (time.sleep(0.5), os.kill(os.getpid(), signal.SIGKILL)),  # two heartbeats more
    "hang": lambda: time.sleep(600),
    "pause": pause,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "stop-save": stop_when_saving,
    "full": full_disk,
    "memory": memory,
}


if os.environ.get("FAULTY_DESTROY") == "waits":  # as NCCL does for ranks that sit in a collective
    distributed.destroy_process_group = lambda: time.sleep(60)


def faulty(self: RPIE, problem: Any, estimate: Any, batch: Any) -> None:
    if problem.world.rank == int(at_rank) and batch.epoch == int(at_epoch) and not Path(marker).exists():
        Path(marker).touch()
        FAULTS[fault]()
    step(self, problem, estimate, batch)


RPIE.step = faulty  # type: ignore[method-assign]
if arguments[0] == "trial":
    from ptymesh.tune import trial

    sys.exit(trial.main(arguments[1:]))
module.main()
