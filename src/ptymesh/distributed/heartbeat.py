"""State of a rank for the watchdog: its phase, its progress, and whether it waits in a collective.

The main thread writes plain attributes, which costs nothing; the watchdog's thread reads them (watchdog.py). A move is
any sign of progress: a chunk swept, a collective left, a phase entered. A rank without a move for longer than the
budget of its phase hangs, unless it waits in a collective for another one. A rank whose process is stopped or gone is
at fault in any phase once it has posted nothing for the budget of a batch.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ptymesh.errors import BadInput

#: Longest time in seconds without a move, by phase. `script` is the time between runs in a user's own program.
BUDGETS_S = {
    "join": 300.0,
    "read": 1800.0,
    "compile": 600.0,
    "batch": 60.0,
    "save": 600.0,
    "report": 600.0,
    "script": 3600.0,
}

#: Environment variable with the budget of a batch in seconds, and its former name.
TIMEOUT, FORMER_TIMEOUT = "PTYMESH_TIMEOUT", "PTYMESH_BATCH_TIMEOUT"

#: Least budget for joining: processes that are started together need seconds to import, some longer than others.
LEAST_JOIN_S = 10.0
#: Least budget of the other phases (except of a batch), as compiling, reading and saving may take long.
LEAST_S = 300.0


def budgets() -> dict[str, float]:
    """Return BUDGETS_S, with the budget of a batch taken from the environment.

    Joining gets the same budget, at least LEAST_JOIN_S. Other phases scale with it down to LEAST_S, and are never
    shorter than it; `script` is never shortened.

    Raises:
        BadInput: the variable is no positive number of seconds.
    """
    name = FORMER_TIMEOUT if TIMEOUT not in os.environ else TIMEOUT
    text = os.environ.get(name)
    if text is None:
        return dict(BUDGETS_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise BadInput(f"{name} is {text!r}; give a number of seconds above 0.")
    share = min(1.0, seconds / BUDGETS_S["batch"])
    by_phase = {phase: max(seconds, LEAST_S, default * share) for phase, default in BUDGETS_S.items()}
    return {
        **by_phase,
        "script": max(seconds, BUDGETS_S["script"]),
        "join": max(seconds, LEAST_JOIN_S),
        "batch": seconds,
    }


@dataclass
class Heartbeat:
    """Progress of a rank, written by its main thread and read by its watchdog.

    Attributes:
        phase: one of BUDGETS_S.
        where: place in the run, for messages.
        moves: signs of progress so far.
        entered: collectives entered so far.
        waiting: True inside a collective.
        waited_s: seconds spent in collectives.
        agreed: True if all ranks fail together, so that none needs to tell the others.
        queued: True if collectives return before they are done, as on GPUs, so that `waiting` means nothing.
        budgets_s: longest time in seconds without a move, by phase.
    """

    phase: str = "script"
    where: str = ""
    moves: int = 0
    entered: int = 0
    waiting: bool = False
    waited_s: float = 0.0
    agreed: bool = False
    queued: bool = False
    budgets_s: dict[str, float] = field(default_factory=lambda: dict(BUDGETS_S))

    @contextmanager
    def doing(self, phase: str) -> Iterator[None]:
        """Set the phase within this context; afterwards the former one is restored."""
        before, self.phase = self.phase, phase
        self.moves += 1
        try:
            yield
        finally:
            self.phase = before
            self.moves += 1

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Count and time the collective within this context."""
        self.entered += 1
        self.waiting = True
        began = time.perf_counter()
        try:
            yield
        finally:
            self.waited_s += time.perf_counter() - began
            self.waiting = False
            self.moves += 1
