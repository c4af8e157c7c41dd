"""Remedies fit the result's own recipe: they parse, are not set already, and can be pasted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ptymesh.diagnosis import Remedy, ResultView
from ptymesh.diagnosis.remedies import UsableRemedy, usable_remedies
from ptymesh.diagnosis.trials import Trials
from ptymesh.io import load_measurement
from ptymesh.io.results import Result
from ptymesh.recipe.schema import Recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

TRANSPOSE = Remedy({"data.transpose": True})
POSITIONS = Remedy({"stage.positions.start": 5}, unless="stage.positions")


def view(recipe: dict[str, object] | None, path: Path | None = None) -> ResultView:
    text = "" if recipe is None else Recipe.parse({"data": {"path": "scan.cxi"}, **recipe}).to_yaml()
    result = Result(
        object=np.ones((1, 32, 32), complex),
        probe=np.ones((1, 8, 8), complex),
        positions_px=np.zeros((4, 2)),
        recipe=text,
        attrs={"engine": "rpie"},
    )
    return ResultView(result, path=path)


def settings(of: ResultView, *remedies: Remedy) -> list[tuple[str, ...]]:
    return [one.settings for one in usable_remedies(of, remedies, "cause")]


def test_what_is_set_already_is_not_advised() -> None:
    plain = view({"stages": [{"engine": "rpie"}, {"engine": "adam"}]})
    assert settings(plain, TRANSPOSE, POSITIONS) == [("data.transpose=true",), ("stages.1.positions.start=5",)]
    turned = view({"data": {"path": "scan.cxi", "transpose": True}})
    assert settings(turned, TRANSPOSE) == []
    refined = view({"stages": [{"engine": "rpie", "positions": True}, {"engine": "rpie"}]})
    assert settings(refined, POSITIONS) == [], "any stage that refines positions has done it"


@pytest.mark.parametrize("remedy", [Remedy({"data.no_such_key": 1}), Remedy({"probe.start.defocus_m": 1e-3})])
def test_what_the_recipe_refuses_is_not_advised(remedy: Remedy) -> None:
    assert settings(view({"probe": {"start": "auto"}}), remedy) == []


def test_command_runs_the_recipe_beside_the_result_into_another_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "recipe.yaml").write_text("data: {path: scan.cxi}\n")
    (found,) = usable_remedies(view({}, out / "result.h5"), (TRANSPOSE,), "orientation")
    assert found.text == f"ptymesh run {out}/recipe.yaml --out {out}-orientation --set data.transpose=true"


def test_a_run_from_python_gets_arguments() -> None:
    texts = [one.text for one in usable_remedies(view(None), (TRANSPOSE, POSITIONS, Remedy({"probe.modes": 3})), "x")]
    assert texts == [
        "ptymesh.load(..., transpose=True)",
        ".run({..., 'positions': {'start': 5}})",
        "ptymesh.Reconstruction(..., probe={'modes': 3})",
    ]


def test_a_remedy_that_reads_the_file_otherwise_is_tried(tmp_path: Path) -> None:
    """What changes the data or the positions is read from the scan's file anew."""
    write(checked(views=40, window=32, seed=1), tmp_path / "scan.cxi")
    recipe = Recipe.parse({"data": {"path": str(tmp_path / "scan.cxi")}, "stages": [{"engine": "rpie", "epochs": 2}]})
    scan = load_measurement(recipe.data, recipe.positions)
    truth = Result.load(tmp_path / "scan.truth.h5")
    view = ResultView(replace(truth, recipe=recipe.to_yaml()), scan)
    lagging = Recipe.from_yaml(recipe.to_yaml(), ["positions.lag=1"])
    trial = Trials(view, 60.0).run(UsableRemedy("a lag", ("positions.lag=1",), lagging))
    assert trial is not None and trial.with_remedy > 2 * trial.without
