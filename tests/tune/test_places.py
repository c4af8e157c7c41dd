"""Which trials count, which are tried again, how values are drawn, and the journal's lock; workers played by hand."""

from __future__ import annotations

import errno
import platform
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from ptymesh.tune import dead_workers, places
from ptymesh.tune.dead_workers import LEASES, DeadWorkers, WorkerLease
from ptymesh.tune.journal_lock import lock_of
from ptymesh.tune.offered import need_optuna
from ptymesh.tune.options import Parameter, Tuning
from ptymesh.tune.places import ERROR, RELEASED, RETRY_OF, UNUSED, WORKER
from ptymesh.tune.sampling import TrialSampler, is_drawn_twice, suggest
from ptymesh.tune.space import Space
from ptymesh.tune.storage import open_storage

pytestmark = pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed")  # trials are taken by hand
SPACE = Space({"x": Parameter(low=0.0, high=1.0)})


@pytest.fixture(params=["journal", "sqlite"])
def study(request: pytest.FixtureRequest, tmp_path: Path) -> optuna.Study:
    need_optuna()
    url = None if request.param == "journal" else f"sqlite:///{tmp_path / 'study.db'}"
    return optuna.create_study(storage=open_storage(url, tmp_path))


def take(study: optuna.Study, total: int, x: float | None = None) -> optuna.Trial | None:
    """A trial as a worker takes one; None where there is none to take."""
    places.enqueue_retries(study, SPACE)
    if not places.has_open_place(study.trials, total):
        return None
    trial = study.ask()
    if x is not None:
        trial.suggest_float("x", x, x)
    return trial


def fail(study: optuna.Study, trial: Any, **notes: Any) -> None:
    for name, value in notes.items():
        trial.set_user_attr(name, value)
    study._storage.set_trial_state_values(trial._trial_id, state=TrialState.FAIL)


def states(study: optuna.Study, total: int) -> tuple[int, bool]:
    """How many trials are finished, and whether there is one to take."""
    return len(places.finished_trials(study.trials, total)), places.has_open_place(study.trials, total)


def test_there_are_as_many_places_as_asked_for(study: optuna.Study) -> None:
    taken = [take(study, 3) for _ in range(4)]
    assert [trial and trial.number for trial in taken] == [0, 1, 2, None] and states(study, 3) == (0, False)
    for number in range(3):
        study.tell(number, float(number))
    assert states(study, 3) == (3, False) and states(study, 4) == (3, True)


def test_a_trial_too_many_counts_only_when_the_study_grows(study: optuna.Study) -> None:
    """Two workers looked at the same time, and each took the last place."""
    first, second = study.ask(), study.ask()
    assert [t.number for t in places.trials_that_count(study.trials, 1)] == [first.number]
    fail(study, second, **{UNUSED: "other workers have filled the study"})
    study.tell(first, 1.0)
    assert states(study, 1) == (1, False) and states(study, 2) == (1, True)
    third = take(study, 2)
    assert third is not None
    study.tell(third, 1.0)
    assert [t.number for t in places.trials_that_count(study.trials, 2)] == [0, 2] and states(study, 2) == (2, False)


def test_a_dead_workers_trial_is_tried_again_once(study: optuna.Study) -> None:
    lost = take(study, 2, x=0.25)
    assert lost is not None
    fail(study, lost)
    assert states(study, 2) == (0, True)

    again = take(study, 2)  # before any new one
    assert again is not None and again.user_attrs[RETRY_OF] == 0
    assert again.suggest_float("x", 0, 1) == 0.25, "with the same values"
    fail(study, again)
    assert [places.reason(trial) for trial in study.trials] == [
        "its worker died",
        "its worker died; the worker that tried it before has died, too",
    ]
    new = take(study, 2)
    assert new is not None and RETRY_OF not in new.user_attrs
    study.tell(new, 0.0)
    assert states(study, 2) == (2, False) and take(study, 2) is None


def test_a_trial_without_all_its_values_gets_new_ones(study: optuna.Study) -> None:
    lost = take(study, 1)
    assert lost is not None
    fail(study, lost)
    again = take(study, 1)
    assert again is not None and again.user_attrs[RETRY_OF] == 0
    assert study.trials[1].system_attrs["fixed_params"] == {}


def test_two_that_queue_a_retry_at_once_make_one(study: optuna.Study) -> None:
    lost = take(study, 1, x=0.5)
    assert lost is not None
    fail(study, lost)
    for _ in range(2):
        study.enqueue_trial({"x": 0.5}, user_attrs={RETRY_OF: 0, "deaths": 1})
    again = take(study, 1)
    assert again is not None and again.number == 1 and take(study, 1) is None
    study.tell(again, 1.0)
    assert states(study, 1) == (1, False)


def test_what_is_not_tried_again(study: optuna.Study) -> None:
    for number, notes in enumerate(({ERROR: "no light"}, {UNUSED: "drawn twice"})):
        trial = study.ask()
        assert trial.number == number
        fail(study, trial, **notes)
    places.enqueue_retries(study, SPACE)
    assert len(study.trials) == 2 and [places.reason(trial) for trial in study.trials] == ["no light", "drawn twice"]
    assert states(study, 2) == (1, True), "what was never run takes no place"


def test_told_to_stop_is_no_death(study: optuna.Study) -> None:
    for number in range(4):
        trial = take(study, 1, x=0.5)
        assert trial is not None and trial.number == number and trial.user_attrs.get("deaths", 0) == 0
        fail(study, trial, **{RELEASED: "told to stop"})
    assert take(study, 1) is not None


def sign(trial: optuna.Trial, lease: WorkerLease | None) -> None:
    trial.set_user_attr(WORKER, {"machine": "m", "pid": 1, **(lease.notes if lease else {})})


def test_a_lease_that_is_held_keeps_a_trial(tmp_path: Path) -> None:
    need_optuna()
    study = optuna.create_study(storage=open_storage(None, tmp_path))
    lease, dead = WorkerLease(tmp_path, 10.0), DeadWorkers(study, tmp_path, 10.0)
    lease.hold()
    lease.hold()
    trial = study.ask()
    sign(trial, lease)
    dead.fail_trials()
    assert study.trials[0].state == TrialState.RUNNING
    lease.release()
    dead.fail_trials()
    assert study.trials[0].state == TrialState.FAIL and places.is_given_up(study.trials[0])
    assert not list((tmp_path / LEASES).iterdir()), "it leaves nothing"
    with pytest.raises(UpdateFinishedTrialError):
        trial.report(1.0, 1)


GONE = """
import sys
from pathlib import Path
from ptymesh.tune.dead_workers import WorkerLease
lease = WorkerLease(Path(sys.argv[1]), 1000.0)
lease.hold()
print(lease.notes["lease"], flush=True)
sys.stdin.read()
"""


@pytest.mark.forked
def test_a_killed_process_loses_its_trial_at_once(tmp_path: Path) -> None:
    need_optuna()
    study = optuna.create_study(storage=open_storage(None, tmp_path))
    dead = DeadWorkers(study, tmp_path, 1000.0)
    command = [sys.executable, "-c", GONE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        notes = {"machine": "m", "pid": process.pid, "lease": process.stdout.readline().strip(), "silent_s": 6000.0}
        study.ask().set_user_attr(WORKER, notes)
        dead.fail_trials()
        assert study.trials[0].state == TrialState.RUNNING
        process.kill()
        process.wait()
        dead.fail_trials()
        assert study.trials[0].state == TrialState.FAIL


def test_elsewhere_silence_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease of another machine is taken once it was not touched for six intervals by the observer's clock."""
    need_optuna()
    study = optuna.create_study(storage=open_storage(None, tmp_path))
    lease, dead = WorkerLease(tmp_path, 0.25), DeadWorkers(study, tmp_path, 0.25)
    lease.hold()
    path = tmp_path / LEASES / lease.notes["lease"]
    sign(study.ask(), lease)
    text = path.read_text()
    lease.release()
    assert "host=" in text
    lines = [f"host={platform.node()}-elsewhere" if line.startswith("host=") else line for line in text.splitlines()]
    path.write_text("\n".join(lines) + "\n")
    began = time.monotonic()
    while study.trials[0].state == TrialState.RUNNING:
        assert time.monotonic() - began < 30
        dead.fail_trials()
        time.sleep(0.05)
        if time.monotonic() - began < 1.0:
            path.touch()  # a sign of life
    assert time.monotonic() - began > 1.0 + 6 * 0.25


def test_a_trial_that_nobody_signs_is_given_up(study: optuna.Study, tmp_path: Path, monkeypatch: Any) -> None:
    """Its worker died between taking it and saying so."""
    dead, now = DeadWorkers(study, tmp_path, 10.0), 100.0
    monkeypatch.setattr(dead_workers.time, "monotonic", lambda: now)
    study.ask()
    dead.fail_trials()
    now += 59.0
    dead.fail_trials()
    assert study.trials[0].state == TrialState.RUNNING
    now += 2.0
    dead.fail_trials()
    assert study.trials[0].state == TrialState.FAIL


@pytest.mark.long
def test_a_database_has_heartbeats(tmp_path: Path) -> None:
    need_optuna()
    study = optuna.create_study(storage=open_storage(f"sqlite:///{tmp_path / 'study.db'}", tmp_path, 1.0))
    dead, trial = DeadWorkers(study, tmp_path, 1.0), study.ask()
    sign(trial, None)
    study._storage.record_heartbeat(trial._trial_id)  # type: ignore[attr-defined] # of a database
    began = time.monotonic()
    while study.trials[0].state == TrialState.RUNNING:
        assert time.monotonic() - began < 30
        dead.fail_trials()
        time.sleep(0.2)
    assert time.monotonic() - began > 5.0


def test_values_drawn_at_the_same_moment(study: optuna.Study) -> None:
    first, second, third = study.ask(), study.ask(), study.ask()
    for trial, value in ((first, 0.5), (second, 0.5), (third, 0.25)):
        trial.suggest_float("x", value, value)
    assert [is_drawn_twice(study.trials, number) for number in range(3)] == [True, True, False]
    fail(study, second, **{UNUSED: "drawn twice"})
    assert not is_drawn_twice(study.trials, 0)


SPACES: dict[str, dict[str, Any]] = {
    "choices": {"a": [1, 2, 3], "b": ["x", "y"]},
    "conditional": {"a": ["x", "y"], "b": {"low": 1, "high": 3, "when": {"a": "x"}}},
    "mixed": {"a": ["x", "y"], "b": {"low": 0.0, "high": 1.0}},
}


def run_all(study: optuna.Study, tuning: Tuning, total: int) -> list[dict[str, Any]]:
    """Values of the trials of a study, one worker."""
    space = Space(tuning.space)
    study.sampler = TrialSampler(space, tuning.sampler, tuning.seed)
    while places.has_open_place(study.trials, total):
        trial = study.ask()
        study.tell(trial, zlib.crc32(str(suggest(trial, space)).encode()) % 97)
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
from ptymesh.tune.journal_lock import lock_of
lock = lock_of(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
time.sleep(100)
"""


@pytest.mark.forked
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
    assert study.ask().number == 0


def test_file_systems_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    journal = tmp_path / "journal.log"
    journal.touch()
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert type(lock_of(journal)).__name__ == "JournalFileSymlinkLock"
