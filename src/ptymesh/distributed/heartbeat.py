"""What a rank is doing, told to the others while it does it.

The main thread writes plain attributes, which costs nothing; the watchdog's thread reads them (watchdog.py). A move is
any sign of progress: a chunk swept, a collective left, a phase entered. A rank that makes none for longer than the
budget of its phase hangs, unless it waits in a collective for another one. One whose process is stopped or gone is at
fault in any phase once it has posted nothing for the budget of a batch.
"""

from __future__ import annotations

import math
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

#: Environment variable with the budget of a batch, in seconds, and what it was called before.
TIMEOUT, FORMER_TIMEOUT = "PTYMESH_TIMEOUT", "PTYMESH_BATCH_TIMEOUT"

#: Joining is given no less: processes that are started together import for seconds, and not all as fast.
LEAST_JOIN_S = 10.0
#: No other phase than joining and a batch is given less, if its default is not less: to compile, read or save may take
#: its time.
LEAST_S = 300.0


def budgets() -> dict[str, float]:
    """Return BUDGETS_S, with that of a batch from the environment.

    Joining has as long (LEAST_JOIN_S at least). The others shrink with it to LEAST_S, and are never shorter than it;
    programs between runs do what they like.

    Raises BadInput where that is not a number of seconds.
    """
    name = FORMER_TIMEOUT if TIMEOUT not in os.environ else TIMEOUT
    given = os.environ.get(name)
    if given is None:
        return dict(BUDGETS_S)
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise BadInput(f"{name} is {given!r}; give a number of seconds above 0.")
    share = min(1.0, seconds / BUDGETS_S["batch"])
    found = {phase: max(seconds, LEAST_S, default * share) for phase, default in BUDGETS_S.items()}
    return {**found, "script": max(seconds, BUDGETS_S["script"]), "join": max(seconds, LEAST_JOIN_S), "batch": seconds}


@dataclass
class Heartbeat:
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
