"""What a rank is doing, told to the others while it does it.

The main thread writes plain attributes, which costs nothing; the watchdog's thread reads them (watchdog.py). A move is
any sign of progress: a chunk swept, a collective left, a phase entered. A rank that makes none for longer than the
budget of its phase hangs, unless it waits in a collective for another one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ptymesh.errors import BadInput

#: Longest time in seconds without a move, by phase. `script`: between runs, in somebody's own program.
BUDGETS_S = {
    "join": 300.0,
    "read": 1800.0,
    "compile": 600.0,
    "batch": 60.0,
    "save": 600.0,
    "report": 600.0,
    "script": 3600.0,
}

#: Environment variable with the budget of a batch, in seconds.
BATCH_TIMEOUT = "PTYMESH_BATCH_TIMEOUT"


def budgets() -> dict[str, float]:
    """BUDGETS_S, with the batch's from the environment. Raises BadInput where that is not a number of seconds."""
    given = os.environ.get(BATCH_TIMEOUT)
    if given is None:
        return dict(BUDGETS_S)
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise BadInput(f"{BATCH_TIMEOUT} is {given!r}; give a number of seconds above 0.")
    return {**BUDGETS_S, "batch": seconds}


@dataclass
class Pulse:
    """Where a rank is.

    phase: one of BUDGETS_S; where: place in the run, for messages; moves: signs of progress; entered: collectives;
    waiting: inside one of them; waited_s: time spent there; agreed: the ranks fail together, so that none needs to tell
    the others; queued: collectives return before they are done, as on GPUs, so that `waiting` says nothing.
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
        """Within it, the rank is in this phase; afterwards in the one before."""
        before, self.phase = self.phase, phase
        self.moves += 1
        try:
            yield
        finally:
            self.phase = before
            self.moves += 1

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Around a collective, which is counted and timed."""
        self.entered += 1
        self.waiting = True
        began = time.perf_counter()
        try:
            yield
        finally:
            self.waited_s += time.perf_counter() - began
            self.waiting = False
            self.moves += 1
