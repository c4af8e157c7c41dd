"""The queue's rules, with workers that are played by hand."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from ptymesh.files import machine
from ptymesh.tune import lock as locks
from ptymesh.tune import queue as module
from ptymesh.tune.lock import lock_of
from ptymesh.tune.offered import need_optuna
from ptymesh.tune.options import Tuning
from ptymesh.tune.queue import BEAT, DRAWN, RELEASED, RETRY_OF, WORKER, Queue, lives, myself
from ptymesh.tune.sampling import Drawing, suggest
from ptymesh.tune.space import Space
from ptymesh.tune.storage import open_storage


@pytest.fixture(params=["journal", "sqlite"])
def study(request: pytest.FixtureRequest, tmp_path: Path) -> optuna.Study:
    need_optuna()
    url = None if request.param == "journal" else f"sqlite:///{tmp_path / 'study.db'}"
    return optuna.create_study(storage=open_storage(url, tmp_path))


def drawn(queue: Queue, trial: Any, **values: float) -> None:
    """Gives a claimed trial its values."""
    running = optuna.Trial(queue.study, trial._trial_id)
    for name, value in values.items():
        running.suggest_float(name, value, value)
    running.set_user_attr(DRAWN, True)


def kill(queue: Queue, trial: Any) -> None:
    """As if the trial's worker had been a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    worker = {"machine": machine(), "pid": process.pid, "started": 1.0}
    process.wait()
    queue.study._storage.set_trial_user_attr(trial._trial_id, WORKER, worker)


def test_tickets_are_claimed_once_and_never_more_than_asked_for(study: optuna.Study) -> None:
    first, second = Queue(study, 3, 10.0), Queue(study, 3, 10.0)
    claimed = [first.claim(), second.claim(), first.claim(), second.claim()]
    assert [trial and trial.number for trial in claimed] == [0, 1, 2, None]
    assert not first.finished()
    for number in range(3):
        study.tell(number, float(number))
    assert first.finished() and second.claim() is None and len(first.done()) == 3


def test_a_ticket_too_many_is_not_claimed_until_the_study_grows(study: optuna.Study) -> None:
    """Two workers looked at the same time, and each added the last ticket."""
    queue = Queue(study, 1, 10.0)
    queue._add({}, {})
    queue._add({}, {})
    assert queue.claim() is not None and queue.claim() is None
    study.tell(0, 1.0)
    assert queue.finished() and len(study.trials) == 2
    grown = Queue(study, 2, 10.0)
    assert not grown.finished()
    taken = grown.claim()
    assert taken is not None and taken.number == 1 and len(study.trials) == 2


def test_a_race_for_many_tickets(tmp_path: Path) -> None:
    claimed: list[int] = []

    def work() -> None:
        own = optuna.load_study(storage=open_storage(None, tmp_path), study_name="race")
        queue = Queue(own, 12, 10.0)
        while (trial := queue.claim()) is not None:
            claimed.append(trial.number)
            own.tell(trial.number, 0.0)

    need_optuna()
    optuna.create_study(storage=open_storage(None, tmp_path), study_name="race")
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == len(set(claimed)) == 12


def test_a_dead_workers_trial_is_tried_again_once(study: optuna.Study) -> None:
    queue, other = Queue(study, 2, 10.0), Queue(study, 2, 10.0)
    lost = queue.claim()
    assert lost is not None
    drawn(queue, lost, x=0.25)
    kill(queue, lost)
    assert [trial.number for trial in queue.release_dead()] == [0] and other.release_dead() == []
    assert study.trials[0].state == TrialState.FAIL and RELEASED in study.trials[0].user_attrs

    again = other.claim()  # before any new ticket
    assert again is not None and again.user_attrs[RETRY_OF] == 0 and queue.index(again) == 0
    assert optuna.Trial(study, again._trial_id).suggest_float("x", 0, 1) == 0.25, "with the same values"
    kill(other, again)
    queue.release_dead()
    last = study.trials[again.number]
    assert last.state == TrialState.FAIL and RELEASED not in last.user_attrs
    assert "has died, too" in last.user_attrs["error"]
    assert queue.claim().number == 2, "the second ticket"  # type: ignore[union-attr]
    study.tell(2, 0.0)
    assert queue.finished() and len(queue.done()) == 2


def test_two_observers_at_once_make_one_retry(study: optuna.Study) -> None:
    queue = Queue(study, 1, 10.0)
    lost = queue.claim()
    assert lost is not None
    queue._add({RETRY_OF: 0, "deaths": 1, "index": 0}, {})  # another observer is a step ahead
    queue._add({RETRY_OF: 0, "deaths": 1, "index": 0}, {})  # and a third one
    assert queue.claim() is None, "not while the first may still be running"
    kill(queue, lost)
    queue.release_dead()
    again = queue.claim()
    assert again is not None and again.number == 1 and queue.claim() is None
    study.tell(1, 0.0)
    assert queue.finished()


def test_a_trial_that_ended_by_itself_is_not_given_up(study: optuna.Study) -> None:
    queue = Queue(study, 1, 10.0)
    trial = queue.claim()
    assert trial is not None
    as_seen = study.trials[0]
    study.tell(0, 3.0)
    queue.release(as_seen, "seen too late", death=True)
    assert study.trials[0].state == TrialState.COMPLETE and queue.claim() is None and queue.finished()


def test_told_to_stop_is_no_death(study: optuna.Study) -> None:
    queue = Queue(study, 1, 10.0)
    for number in range(4):
        trial = queue.claim()
        assert trial is not None and trial.number == number
        queue.release(study.trials[number], "told to stop", death=False)
    assert queue.claim() is not None


def test_elsewhere_the_beat_tells(study: optuna.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(study, 1, heartbeat_s=0.5)
    trial = queue.claim()
    assert trial is not None
    storage = study._storage
    storage.set_trial_user_attr(trial._trial_id, WORKER, {"machine": "far away", "pid": 1, "started": 0.0})
    now = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    assert queue.release_dead() == []
    now += 2.9
    assert queue.release_dead() == [], "five beats missed"
    storage.set_trial_user_attr(trial._trial_id, BEAT, 1)
    now += 2.9
    assert queue.release_dead() == [], "it has moved"
    now += 3.1
    assert [dead.number for dead in queue.release_dead()] == [0]


def test_who_lives() -> None:
    assert lives(myself()) is True
    assert lives({**myself(), "started": 5.0}) is False, "another process has its number now"
    assert lives({**myself(), "machine": "elsewhere"}) is None
    assert lives({"machine": machine(), "pid": 2**22 + os.getpid(), "started": 0.0}) is False


def test_values_are_drawn_in_order(study: optuna.Study) -> None:
    queue = Queue(study, 3, 10.0)
    first, second = queue.claim(), queue.claim()
    assert first is not None and second is not None
    assert [trial.number for trial in queue.before(second.number)] == [0] and queue.before(0) == []
    drawn(queue, first, x=1.0)
    assert queue.before(second.number) == []


SPACES: dict[str, dict[str, Any]] = {
    "choices": {"a": [1, 2, 3], "b": ["x", "y"]},
    "conditional": {"a": ["x", "y"], "b": {"low": 1, "high": 3, "when": {"a": "x"}}},
    "mixed": {"a": ["x", "y"], "b": {"low": 0.0, "high": 1.0}},
}


def run_all(study: optuna.Study, tuning: Tuning, total: int) -> list[dict[str, Any]]:
    """Values of the trials of a study, one worker."""
    space, queue = Space(tuning.space), Queue(study, total, 10.0)
    while (claimed := queue.claim()) is not None:
        study.sampler = Drawing(space, tuning.sampler, tuning.seed, queue.index(claimed))
        trial = optuna.Trial(study, claimed._trial_id)
        values = suggest(trial, space)
        trial.set_user_attr(DRAWN, True)
        study.tell(claimed.number, zlib.crc32(str(values).encode()) % 97)
    return [trial.params for trial in study.trials]


DRAWERS = ["tpe", "random", "gp", "qmc", "nsgaii", "nsgaiii"]


@pytest.mark.parametrize(
    ("name", "space"),
    [
        *((name, space) for name in DRAWERS for space in SPACES),
        ("brute_force", "choices"),
        ("brute_force", "conditional"),
    ],
)
def test_every_sampler_draws_every_point_once(make: Any, name: str, space: str) -> None:
    tuning = make(SPACES[space], sampler=name)
    total = Space(tuning.space).count() or 6
    need_optuna()
    found = run_all(optuna.create_study(), tuning, total)
    assert len(found) == len({str(sorted(values.items())) for values in found}) == total, "no set of values twice"
    if space == "conditional":
        assert all(("b" in values) == (values["a"] == "x") for values in found)


def test_a_partly_fixed_sampler(make: Any) -> None:
    need_optuna()
    options = {"fixed_params": {"a": "x"}, "base_sampler": "random"}
    found = run_all(optuna.create_study(), make(SPACES["mixed"], sampler={"name": "partial_fixed", **options}), 5)
    assert {values["a"] for values in found} == {"x"} and len({values["b"] for values in found}) == 5


def test_a_grid_is_gone_through_once(make: Any) -> None:
    tuning = make(SPACES["choices"], sampler="grid")
    need_optuna()
    found = run_all(optuna.create_study(), tuning, 6)
    assert len({str(sorted(values.items())) for values in found}) == 6


def test_a_seed_is_a_study(make: Any) -> None:
    need_optuna()
    runs = [run_all(optuna.create_study(), make(SPACES["mixed"], seed=seed), 5) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_going_on_is_going_on(make: Any) -> None:
    """A study of 3 trials that is made one of 6 has what one of 6 has, and not its first three again."""
    need_optuna()
    whole = run_all(optuna.create_study(), make(SPACES["mixed"]), 6)
    parts = optuna.create_study()
    run_all(parts, make(SPACES["mixed"]), 3)
    assert run_all(parts, make(SPACES["mixed"]), 6) == whole


HOLDER = """
import sys, time
from pathlib import Path
from ptymesh.tune.lock import lock_of
lock_of(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(100)
"""


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    journal = tmp_path / "journal.log"
    storage = open_storage(None, tmp_path)
    optuna.create_study(storage=storage, study_name="s")
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(journal)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        taken = threading.Event()
        lock = lock_of_later(journal, taken)
        assert not taken.wait(0.2), "while it is held nobody else has it"
        holder.kill()
    assert taken.wait(60)
    lock.join()


def lock_of_later(journal: Path, taken: threading.Event) -> threading.Thread:
    def take() -> None:
        lock = lock_of(journal)
        lock.acquire()
        taken.set()
        lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    return thread


def test_half_a_line_is_mended(tmp_path: Path) -> None:
    journal = tmp_path / "journal.log"
    optuna.create_study(storage=open_storage(None, tmp_path), study_name="s")
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":4,"worker')
    study = optuna.load_study(storage=open_storage(None, tmp_path), study_name="s")
    assert journal.read_bytes() == whole
    assert Queue(study, 1, 10.0).claim() is not None


def test_file_systems_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    journal = tmp_path / "journal.log"
    journal.touch()
    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    assert type(lock_of(journal)).__name__ == "JournalFileSymlinkLock"
