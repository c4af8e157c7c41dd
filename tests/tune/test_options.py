"""The tune file: what it may say, and what is said about what it may not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptymesh.errors import BadInput
from ptymesh.tune.options import Contrast, Function, HeldOut, Parameter, Tuning, load_tuning, tuning
from ptymesh.tune.space import Space

Make = Callable[..., Tuning]
GAMMA = {"stages.0.gamma_object": {"low": 0.1, "high": 2.0}}


def test_short_forms(make: Make) -> None:
    made = make({"probe.modes": [1, 2], **GAMMA}, objective="contrast", sampler="random", pruner={"name": "median"})
    assert made.space["probe.modes"].choices == (1, 2)
    assert made.objective == Contrast() and made.sampler.name == "random"
    long = make(objective={"kind": "held_out", "fraction": 0.2}, sampler={"name": "tpe", "multivariate": True})
    assert long.objective == HeldOut(fraction=0.2) and long.sampler.options == {"multivariate": True}
    assert make().objective == HeldOut() and make().sampler.name == "tpe" and make(trials=None).trials == 50


@pytest.mark.parametrize(
    ("range_", "kind"),
    [
        ({"low": 1, "high": 4}, "int"),
        ({"low": 1, "high": 4, "step": 0.5}, "float"),
        ({"low": 1.0, "high": 4}, "float"),
        ({"low": 1, "high": 4, "type": "float"}, "float"),
    ],
)
def test_whole_numbers_mean_an_int(range_: dict[str, Any], kind: str) -> None:
    assert Parameter.model_validate(range_).type == kind


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spce": {}}, "spce is unknown; did you mean space?"),
        ({"space": {}}, "space: it is empty; name at least one key of the recipe, such as probe.modes."),
        ({"space": {"a": {"lwo": 1}}}, "space.a.lwo is unknown; did you mean space.a.low?"),
        ({"space": {"a": {"low": 1}}}, "space.a: a parameter needs low and high, or choices."),
        ({"space": {"a": {"low": 2, "high": 1}}}, "space.a: low is 2 and high 1; exchange them."),
        ({"space": {"a": {"low": 0.0, "high": 1, "log": True}}}, "space.a: a logarithmic range needs low > 0"),
        (
            {"space": {"a": {"low": 1, "high": 4, "step": 2}}},
            "space.a: step 2 does not lead from 1 to 4; set high to 3.",
        ),
        ({"space": {"a": {"low": 0.5, "high": 4, "type": "int"}}}, "space.a: low 0.5, high 4 and step None of an int"),
        ({"space": {"a": {"choices": [1], "low": 1}}}, "space.a: choices stand alone;"),
        ({"space": {"a": [1, 1]}}, "space.a: choices are [1, 1]; give different values, at least one."),
        (
            {"objective": "held-out"},
            "objective.kind is 'held-out'; it should be one of held_out, frc, contrast, function",
        ),
        (
            {"objective": {"kind": "held_out", "fraction": 0.7}},
            "objective.fraction is 0.7; it should be less than 0.5.",
        ),
        ({"objective": {"kind": "function", "call": "nothing"}}, "objective.call is 'nothing'; it should"),
        ({"sampler": "tpee"}, "sampler.name is 'tpee'; it should be "),
        (
            {"sampler": {"name": "tpe", "multivarate": 1}},
            "sampler.multivarate is unknown; did you mean sampler.multivariate?",
        ),
        (
            {"pruner": {"name": "patient", "wrapped_pruner": "mdian", "patience": 1}},
            "pruner.wrapped_pruner.name is 'mdian'",
        ),
        ({"trials": 0}, "trials is 0; it should be greater than 0."),
        ({"recipe": 3}, "recipe is 3; give the path of a recipe, or the recipe itself."),
        ({"recipe": {"daat": {}}}, "daat is unknown; did you mean data?"),
        ({"recipe": "nowhere.yaml"}, "The recipe "),
    ],
)
def test_mistakes_are_one_sentence(make: Make, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        make(**changes)
    assert str(caught.value).startswith(said), str(caught.value)


def test_a_file(scan: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"data": {"path": "scan.cxi"}}))
    (tmp_path / "tune.yaml").write_text(
        "recipe: recipe.yaml\nspace: {probe.modes: {low: 1, high: 3e0}}\n"
        "objective: {kind: function, call: 'mine.py:f'}\n"
    )
    made = load_tuning(tmp_path / "tune.yaml", out=tmp_path / "o", overrides=["seed=4"], trials=7)
    assert made.recipe == {"data": {"path": str(tmp_path / "scan.cxi")}, "seed": 4}
    assert (made.trials, made.output.dir) == (7, tmp_path / "o")
    assert isinstance(made.objective, Function) and made.objective.call == f"{tmp_path / 'mine.py'}:f"
    with pytest.raises(BadInput, match="is not there"):
        load_tuning(tmp_path / "nothing.yaml")
    with pytest.raises(BadInput, match="is not a tune file"):
        load_tuning(scan)


def test_what_may_change_between_two_runs_of_a_study(make: Make) -> None:
    first = make()
    assert make(trials=9, seed=2, sampler="random", heartbeat_s=1.0).definition == first.definition
    assert make(objective={"kind": "held_out", "every": 3}).definition == first.definition
    for other in (make(GAMMA | {"probe.modes": [1, 2]}), make(epochs=5), make(objective="frc")):
        assert other.definition != first.definition


def test_settings_are_plain_and_come_back(make: Make) -> None:
    made = make({**GAMMA, "stages.0": {"choices": [{"engine": "rpie"}, {"engine": "dm"}]}}, objective="frc")
    again = Tuning.parse(made.settings)
    assert again == made
    assert Space(again.space).distributions == Space(made.space).distributions


def test_paths_of_an_inline_recipe_are_relative_to_the_file(tmp_path: Path) -> None:
    made = tuning({"recipe": {"data": {"path": "a.cxi"}}, "space": GAMMA}, tmp_path)
    assert made.recipe["data"]["path"] == str(tmp_path / "a.cxi")
