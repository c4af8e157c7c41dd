"""The short part of the campaign: cases that Hypothesis draws from one seed; and all that was once found.

Where one fails, PHASES with Phase.shrink makes Hypothesis look for a simpler one.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz import cases, judge, regressions
from warm import context

#: Cases of `make test` and of `make long`; `make fuzz` plays 20,000.
CASES = [8, pytest.param(60, marks=pytest.mark.long)]
PHASES = [Phase.generate]

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="forks and their handles are Linux's")


def _serve(pipe: Any, folder: Path) -> None:
    """A process that is warm and has one thread, and tries the cases that it is told of."""
    from fuzz import campaign, tries

    with tries._quiet():
        sources = campaign.Sources(folder)
    pipe.send(sources.originals)
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        ended, found = tries.attempt(case, campaign.PATIENT)  # others may keep the processor busy
        pipe.send((campaign.status_of(ended), judge.last_line(ended.err), found))


class Tries:
    """Tries cases in a process that is warm. folder: for cases; originals: sound inputs."""

    def __init__(self, folder: Path) -> None:
        made = context()
        self._pipe, theirs = made.Pipe()
        self._process = made.Process(target=_serve, args=(theirs, folder), daemon=True)
        self._process.start()
        theirs.close()
        self.folder, self._count = folder, 0
        self.originals: Path = self._told("its beginning")

    def _told(self, what: str) -> Any:
        assert self._pipe.poll(120), f"no answer about {what}"
        return self._pipe.recv()

    def place(self) -> Path:
        """The folder for the next case; that of the one before is removed."""
        shutil.rmtree(self.folder / f"case{self._count}", ignore_errors=True)
        self._count += 1
        return self.folder / f"case{self._count}"

    def __call__(self, case: cases.Case) -> tuple[str, str]:
        """Tries it, and raises AssertionError where it ends otherwise than it may: its status, and what it said."""
        self._pipe.send(case)
        status, said, found = self._told(str(case.words))
        text = [f"ptymesh {' '.join(case.arguments)}  ({case.format}: {'; '.join(case.words)})"]
        assert not found, "\n".join(text + [f"  {violation.kind}: {violation.what}" for violation in found])
        return status, said

    def close(self) -> None:
        self._pipe.close()
        self._process.join(10)
        self._process.terminate()


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tries]:
    made = Tries(tmp_path_factory.mktemp("fuzz"))
    yield made
    made.close()


@pytest.mark.parametrize("count", CASES)
def test_unsound_inputs_end_soundly(attempt: Tries, count: int) -> None:
    drawn = settings(
        max_examples=count, database=None, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck)
    )

    @seed(22)
    @drawn
    @given(dice=st.randoms(use_true_random=False))
    def ends_soundly(dice: random.Random) -> None:
        case = cases.draw(dice, attempt.place(), attempt.originals)
        case.compiled = False  # kernels that nobody has compiled yet would take a minute; `make fuzz` has them ready
        attempt(case)

    ends_soundly()


@pytest.mark.long
@pytest.mark.parametrize("name", regressions.NAMES)
def test_what_was_found_stays_mended(attempt: Tries, name: str) -> None:
    case = regressions.made(name, attempt.place(), attempt.originals)
    status, said = attempt(case)
    assert status in regressions.expected(name), said
