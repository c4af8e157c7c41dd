"""Who is at fault, judged by the heartbeats of all ranks, and how a rank leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch

from ptymesh import stopping
from ptymesh.distributed import heartbeat, watchdog
from ptymesh.distributed.heartbeat import Heartbeat
from ptymesh.distributed.watchdog import HeartbeatReport, Watchdog, find_rank_at_fault, stilled
from ptymesh.errors import BadInput
from ptymesh.files import pid_space


def test_a_rank_that_has_left_is_forgotten() -> None:
    dog = Watchdog(torch.distributed.HashStore(), Heartbeat(), 0, 1)
    before = list(stopping._tidying)
    stopping.before_leaving(dog.stopped)
    dog.leave()
    assert stopping._tidying == before


def test_no_call_of_the_store_is_under_way_when_a_rank_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would end the thread within such a call as the process ends, and C++ aborts it then."""
    dog, awake, ticks = Watchdog(torch.distributed.HashStore(), Heartbeat(), 0, 1), threading.Event(), []

    def forgive() -> None:  # just before it looks at the store again
        awake.set()
        time.sleep(0.2)

    monkeypatch.setattr(dog, "_restart_timers", forgive)
    monkeypatch.setattr(dog, "_tick", lambda: ticks.append(1))
    dog.start()
    assert awake.wait(10)
    dog.leave()
    assert not dog.is_alive() and not ticks


def post(
    entered: int = 5, waiting: bool = False, idle_s: float = 0.0, phase: str = "batch", budget_s: float = 60.0
) -> HeartbeatReport:
    return HeartbeatReport(phase, "epoch 1", entered, waiting, False, idle_s, budget_s, 1, "here", 1)


def judged(*posts: HeartbeatReport | None, silent: tuple[float, ...] = (0, 0, 0)) -> tuple[int | None, str] | None:
    return find_rank_at_fault(dict(enumerate(posts)), dict(enumerate(silent)), 60)


def test_the_rank_behind_is_at_fault_not_those_who_wait_for_it() -> None:
    waits = post(6, True, 61)
    found = judged(waits, post(5, False, 61), waits)
    assert found and found[0] == 1 and "no progress for 61 s in epoch 1 (batch) after 5 collectives" in found[1]
    found = judged(waits, waits, post(6, False, 61))
    assert found and found[0] == 2, "within the same collective, who has not entered it again"
    found = judged(waits, post(4, True, 61), post(5, False, 61))
    assert found and found[0] == 1, "the one furthest behind"


def test_a_phase_has_its_own_budget() -> None:
    waits = post(6, True, 61)
    assert judged(waits, post(5, False, 61, "save", 600)) is None
    found = judged(post(6, True, 700), post(5, False, 601, "save", 600))
    assert found and found[0] == 1 and "(save)" in found[1]


def test_silence_counts_as_standing_still() -> None:
    found = judged(post(6, True, 61), post(5, False, 1, "read", 1800), silent=(0, 61))
    assert found and found[0] == 1 and "answered nothing for 61 s, last heard of in" in found[1]


def test_when_all_wait_it_is_the_network() -> None:
    found = judged(post(6, True, 61), post(6, True, 62))
    assert found and found[0] is None and "ptymesh doctor" in found[1] and "for 61 s at collective 6" in found[1]
    assert judged(post(6, True, 61), post(6, True, 5)) is None


def test_when_none_waits_all_are_at_work() -> None:
    works = post(6, False, 100)
    assert judged(works, works, works) is None
    found = judged(*[replace(works, queued=True)] * 2)
    assert found and found[0] is None, "on GPUs nobody waits inside a collective"
    found = judged(replace(works, queued=True), replace(works, entered=5, queued=True))
    assert found and found[0] == 1


def test_ranks_that_left_or_never_came() -> None:
    found = judged(post(6, True, 61), post(5, False, 0, "left", 0))
    assert found and found[0] == 1 and "has ended while others wait" in found[1]
    found = judged(post(6, True, 61), None)
    assert found and found[0] == 1 and "never been heard of" in found[1]


def test_a_stopped_process_is_told_from_one_that_is_busy() -> None:
    """In any phase; by what this machine says of the process, or where it cannot say, by a longer silence."""
    space = pid_space()
    if not space:
        pytest.skip("finds processes in /proc")
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        there = replace(post(5, False, 1, "save", 600), pid=process.pid, space=space)
        silent = {0: 0.0, 1: 7.0}
        assert stilled({0: post(), 1: there}, silent, 5, space) is None, "it lives, so it is busy"
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert stilled({0: post(), 1: there}, silent, 8, space) is None, "not for long enough"
        found = stilled({0: post(), 1: there}, silent, 5, space)
        assert found and found[0] == 1 and "has answered nothing for 7 s (stopped)" in found[1]
        assert stilled({0: post(), 1: replace(there, space="")}, silent, 5, space) is None
        found = stilled({0: post(), 1: replace(there, space="")}, {0: 0.0, 1: 121.0}, 5, space)
        assert found and "(on another machine)" in found[1]
        found = stilled({0: post(), 1: replace(there, space="")}, {0: 0.0, 1: 121.0}, 5, "")
        assert found and "another machine" not in found[1], "where no process can be looked for"
        assert stilled({0: post(), 1: replace(there, phase="left")}, silent, 5, space) is None
    finally:
        process.kill()
        process.communicate()
    found = stilled({0: post(), 1: there}, silent, 5, space)
    assert found and "(gone)" in found[1]


def test_a_job_that_was_suspended_as_a_whole_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()
    dogs = [
        watchdog.Watchdog(store, heartbeat.Heartbeat(phase="batch", waiting=rank == 0), rank, 2) for rank in range(2)
    ]
    now = time.monotonic()
    for dog in dogs:
        dog._restart_timers()
        assert dog._tick() is None
    monkeypatch.setattr(time, "monotonic", lambda: now + 1000)  # both stood still; the first to wake looks at the other
    dogs[0]._restart_timers()
    assert dogs[0]._tick() is None and dogs[0]._posts()[1] == {0: 0.0, 1: 0.0}


@pytest.mark.parametrize("name", ["PTYMESH_TIMEOUT", "PTYMESH_BATCH_TIMEOUT"])
def test_one_number_bounds_every_phase(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PTYMESH_TIMEOUT", raising=False)
    assert heartbeat.budgets() == heartbeat.BUDGETS_S
    expected = {
        "5": (5, 300, 300, 10, 3600),
        "40": (40, 1200, 400, 40, 3600),
        "60": (60, 1800, 600, 60, 3600),
        "700": (700, 1800, 700, 700, 3600),
        "5000": (5000, 5000, 5000, 5000, 5000),
    }
    for given, seconds in expected.items():
        monkeypatch.setenv(name, given)
        found = heartbeat.budgets()
        assert tuple(found[phase] for phase in ("batch", "read", "save", "join", "script")) == seconds
        assert found["save"] == found["compile"] == found["report"]
    for odd in ("0", "-1", "nan", "inf", "soon"):
        monkeypatch.setenv(name, odd)
        with pytest.raises(BadInput, match=name):
            heartbeat.budgets()
