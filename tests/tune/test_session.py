"""Studies from their tune file to their best reconstruction, in this process."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import ptymesh as pm
from ptymesh.errors import BadInput, Interrupted, PtymeshError
from ptymesh.io.results import Result
from ptymesh.recipe.schema import Recipe
from ptymesh.tune import session, storage
from ptymesh.tune.display import StudyDisplay
from ptymesh.tune.options import Tuning
from ptymesh.tune.records import Record, records
from ptymesh.tune.report import write_report
from ptymesh.tune.session import StudyOutcome, run_study
from ptymesh.tune.space import Space

Make = Callable[..., Tuning]
GAMMAS = {"stages.0.gamma_object": {"low": 0.05, "high": 2.0, "log": True}}


def run(tuning: Tuning, **options: Any) -> StudyOutcome:
    found = run_study(tuning, **{"device": "cpu", "quiet": True, **options})
    assert found is not None
    return found


def distinct(found: StudyOutcome) -> int:
    return len({json.dumps(one.settings, sort_keys=True) for one in found.trials})


def test_a_study(make: Make) -> None:
    tuning = make(GAMMAS | {"probe.modes": [1, 2]}, trials=5)
    found = run(tuning)
    folder = tuning.output.dir
    assert [one.state for one in found.trials] == ["done"] * 5 and distinct(found) == 5
    assert found.best.value == min(one.value or 9 for one in found.trials)

    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    assert len(lines) == 5
    for line in lines:
        assert line["seconds"] > 0 and line["device"].startswith("cpu (") and line["seed"] == 0
        assert line["recipe"]["probe"]["modes"] == line["settings"]["probe.modes"]
        assert Recipe.parse(line["recipe"]).stages[0].epochs == 2

    text = (folder / "best.yaml").read_text()
    assert text.startswith(f"# Trial {found.best.number}, held out ")
    again = Recipe.from_yaml(text)
    assert again.model_dump(exclude={"output"}) == Recipe.parse(found.best.recipe).model_dump(exclude={"output"})
    saved = Result.load(folder / "best" / "result.h5")
    assert saved.history["held_out"][-1] == found.best.value, "best.yaml reproduces the trial"
    assert found.path == folder / "best" / "result.h5"


def test_going_on(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in the middle of a trial, resumed, made longer: nothing twice, nothing lost."""
    epochs = 0
    whole = session.StopSignal

    class Stopped(whole):  # type: ignore[misc, valid-type] # the class of the moment
        @property
        def requested(self) -> bool:
            nonlocal epochs
            epochs += 1
            return epochs > 14

        @requested.setter
        def requested(self, value: bool) -> None:
            pass

    monkeypatch.setattr(session, "StopSignal", Stopped)
    with pytest.raises(Interrupted, match=r"Stopped after \d of 6 trials; the same command runs the others"):
        run(make(GAMMAS, trials=6))
    monkeypatch.setattr(session, "StopSignal", whole)
    study = storage.reopen_study(make().output.dir)
    before = {t.number: t.value for t in study.trials if t.state.name == "COMPLETE"}
    assert 0 < len(before) < 6 and any("released" in t.user_attrs for t in study.trials), "one was in the middle"

    found = run(make(GAMMAS, trials=6))
    done = [one for one in found.trials if one.state == "done"]
    assert len(done) == 6 and len({str(one.settings) for one in done}) == 6
    for number, value in before.items():
        assert next(one.value for one in done if one.number == number) == value
    (released,) = (one for one in found.trials if one.state == "released")
    (retry,) = (one for one in found.trials if one.retry_of == released.number)
    assert retry.state == "done" and (not released.settings or retry.settings == released.settings)

    grown = run(make(GAMMAS, trials=8))
    assert sum(one.state == "done" for one in grown.trials) == 8
    unbroken = run(make(GAMMAS, trials=8, output={"dir": str(make().output.dir) + "2"}))
    assert [one.settings for one in unbroken.trials][:3] == [one.settings for one in grown.trials][:3]
    assert len(storage.reopen_study(make().output.dir).trials) == 9, "8 tickets and a retry"


def test_nothing_is_done_again(make: Make) -> None:
    first = run(make(GAMMAS, trials=2))
    stamp = (first.folder / "best" / "result.h5").stat().st_mtime_ns
    again = run(make(GAMMAS, trials=2))
    assert [one.seconds for one in again.trials] == [one.seconds for one in first.trials]
    assert (first.folder / "best" / "result.h5").stat().st_mtime_ns == stamp
    fresh = run(make(GAMMAS, trials=2), force=True)
    assert [one.seconds for one in fresh.trials] != [one.seconds for one in first.trials]


def test_another_study_is_not_mixed_in(make: Make) -> None:
    run(make(GAMMAS, trials=1), reconstruct=False)
    with pytest.raises(BadInput, match="holds a study with another space, objective; choose another folder"):
        run(make({"probe.modes": [1, 2]}, objective="contrast"))
    with pytest.raises(BadInput, match="holds no study to join"):
        run(make(output={"dir": str(make().output.dir / "other")}), join=True)


def test_a_finite_space_ends_by_itself(make: Make) -> None:
    found = run(make({"probe.modes": [1, 2], "seed": [0, 1]}, trials=30), reconstruct=False)
    assert len(found.trials) == distinct(found) == 4
    assert found.notes == ("The space has 4 different points: so many trials are run instead of 30.",)
    assert not (found.folder / "best").exists() and found.path is None


def test_pruning(make: Make) -> None:
    """A step of 1e-4 moves nothing: such trials end early, and no other."""
    space = {"stages.0.gamma_object": [1.0, 0.9, 0.8, 1e-4, 2e-4]}
    pruner = {"name": "median", "n_startup_trials": 2, "n_warmup_steps": 1}
    found = run(make(space, epochs=6, trials=5, pruner=pruner, sampler={"name": "grid"}, seed=3), reconstruct=False)
    hopeless = [one for one in found.trials if one.state == "pruned"]
    assert hopeless and all(one.why.startswith("hopeless after ") for one in hopeless)
    assert all(len(one.values_by_epoch) < 6 for one in hopeless) and found.best.settings["stages.0.gamma_object"] > 0.1
    every = run(make(space, epochs=6, trials=5, output={"dir": str(found.folder) + "2"}), reconstruct=False)
    assert all(len(one.values_by_epoch) == 6 for one in every.trials), "without a pruner none does"


def test_a_diverging_trial_is_no_failure(make: Make) -> None:
    space = {"stages.0": [{"engine": "sgd", "lr": lr, "epochs": 8, "batch": 20} for lr in (1e-4, 1e6)]}
    found = run(make(space, trials=2), reconstruct=False)
    states = {one.settings["stages.0"]["lr"]: (one.state, one.why) for one in found.trials}
    assert states[1e-4][0] == "done" and states[1e6][0] == "pruned", states
    assert any(one.why.startswith("diverged: Stage 1 (sgd) diverged") for one in found.trials)


def test_trials_that_cannot_be_run(make: Make) -> None:
    space = {"data.crop": [32, 31, 999]}
    found = run(make(space, trials=3), reconstruct=False)
    (failed,) = (one for one in found.trials if one.state == "failed")
    assert failed.settings == {"data.crop": 999} and "data.crop asks for 999 pixels" in failed.why
    with pytest.raises(PtymeshError, match=r"data.crop asks for 999 pixels of a detector that has 32"):
        run(make({"data.crop": [999]}, output={"dir": str(found.folder) + "2"}))


def test_mistakes_are_found_before_anything_is_written(make: Make) -> None:
    for space, said in (
        ({"positions.rotation_dg": {"low": 0.0, "high": 1.0}}, "did you mean positions.rotation_deg?"),
        ({"stages.0.gamma_objet": [1.0]}, "did you mean stages.0.gamma_object?"),
        ({"probe.modes": {"low": -3, "high": 0}}, "it should be greater than or equal to 1"),
    ):
        with pytest.raises(BadInput, match=said):
            run(make(space))
    with pytest.raises(BadInput, match="cannot be imported"):
        run(make(objective={"kind": "function", "call": "nothing.like.this:f"}))
    with pytest.raises(BadInput, match="give a step, or use another sampler than grid"):
        run(make(GAMMAS, sampler="grid"))
    assert not make().output.dir.exists()
    notes = session.checked(
        make({"probe.modes": {"low": -1, "high": 1}}), Space(make({"probe.modes": {"low": -1, "high": 1}}).space)
    )
    assert "random points of the space make no sound recipe" in notes[0]


def test_python(make: Make, scan: Path, tmp_path: Path) -> None:
    recipe = {"data": {"path": str(scan)}, "stages": [{"engine": "rpie", "epochs": 1, "batch": 20}]}
    out = tmp_path / "python"
    found = pm.tune(recipe, GAMMAS, trials=2, out=out, objective=mean_amplitude, device="cpu", reconstruct=False)
    assert found.folder == out and len(found.trials) == 2 and found.best.value == min(one.value for one in found.trials)
    file = tmp_path / "tune.yaml"
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    file.write_text(yaml.safe_dump({"recipe": "recipe.yaml", "space": GAMMAS, "trials": 9}))
    for what, space in ((file, None), (tmp_path / "recipe.yaml", GAMMAS), (Recipe.parse(recipe), GAMMAS)):
        again = pm.tune(what, space, trials=1, out=out, force=True, device="cpu", reconstruct=False)
        assert len(again.trials) == 1 and again.recipe.stages[0].epochs == 1
    with pytest.raises(BadInput, match="cannot be imported; define it with def"):
        pm.tune(recipe, GAMMAS, objective=lambda result: 0.0)
    with pytest.raises(BadInput, match="A Tuning is complete"):
        pm.tune(make(), GAMMAS)


def mean_amplitude(result: Result) -> float:
    return float(np.abs(result.object).mean())


@pytest.mark.long
def test_a_database(make: Make, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    found = run(make(GAMMAS, trials=2, storage=url), reconstruct=False)
    assert len(found.trials) == 2 and not (found.folder / "journal.log").exists()
    assert len(run(make(GAMMAS, trials=3, storage=url), reconstruct=False).trials) == 3
    other = run(make(GAMMAS, trials=1, storage=url, output={"dir": str(tmp_path / "other")}), reconstruct=False)
    assert len(other.trials) == 1, "studies of one database are told apart by their folders"
    assert len(run(make(GAMMAS, trials=1, storage=url), force=True, reconstruct=False).trials) == 1
    with pytest.raises(BadInput, match=r"The storage nowhere:.* cannot be opened"):
        run(make(storage="nowhere://x"))


def test_reports(make: Make) -> None:
    tuning = make({"stages.0.gamma_object": {"low": 0.05, "high": 2.0, "log": True}, "seed": [0, 1]}, trials=6)
    run(tuning, reconstruct=False)
    for name in ("trials.jsonl", "best.yaml"):
        (tuning.output.dir / name).unlink()
    found = write_report(tuning.output.dir)
    names = {path.name for path in found.paths}
    assert names == {
        f"{kind}.{end}" for kind in ("history", "importance", "parallel_coordinate") for end in ("html", "png")
    }
    assert all(path.stat().st_size > 1000 for path in found.paths)
    assert found.importance["stages.0.gamma_object"] > found.importance["seed"]
    assert found.lines[0] == "6 trials by held out: 6 done" and found.lines[1].startswith("Best: trial ")
    assert (tuning.output.dir / "trials.jsonl").exists() and (tuning.output.dir / "best.yaml").exists()
    with pytest.raises(BadInput, match="holds no study"):
        write_report(tuning.output.dir / "elsewhere")


def test_a_report_of_too_little(make: Make) -> None:
    tuning = make(GAMMAS, trials=1)
    storage.open_study(tuning, "minimize", join=False)
    with pytest.raises(BadInput, match=r"No trial of .* is done yet"):
        write_report(tuning.output.dir)
    run(tuning, reconstruct=False)
    found = write_report(tuning.output.dir)
    assert found.importance == {} and "at least two trials" in found.lines[2]
    assert {path.stem for path in found.paths} == {"history", "parallel_coordinate"}
    for path in found.paths[:2]:
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(BadInput, match=rf"{path.name} is a FIFO"):
            write_report(tuning.output.dir)
        path.unlink()


def test_what_is_shown(make: Make) -> None:
    tuning = make({"stages.0.gamma_object": [1.0, 0.5], "stages.0": [{"engine": "rpie", "epochs": 1}]}, trials=2)
    run(tuning, reconstruct=False)
    study = storage.reopen_study(tuning.output.dir)
    found = records(study, 2, tuning, Space(tuning.space))
    stream = io.StringIO()
    display = StudyDisplay(2, "held out", minimize=True, stream=stream)
    display.start(found[:1])
    display.show(found)
    display.show(found)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "2 trials by held out, 1 of them done before"
    assert len(lines) == 2 and lines[1].startswith(f"trial {found[1].number}  done  ")
    assert "gamma_object " in lines[1] and "stages.0 {engine: rpie, epochs: 1}" in lines[1]
    running = Record(**{**vars(found[0]), "state": "running", "values_by_epoch": {1: 0.5, 2: 0.25}, "seconds": None})
    table = display.table([*found, running])
    assert table.row_count == 2 + 2 + 1 and "2 of 2 trials" in str(table.title)
    assert list(table.columns[2].cells)[-1] == "0.25", "what the running one has come to"
