"""Distributions, conditions, and the recipes that values make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optuna
import pytest

from ptymesh.errors import BadInput
from ptymesh.tune.options import Parameter, Tuning
from ptymesh.tune.space import Space, composed, recipe_of

Make = Callable[..., Tuning]


def space(**parameters: Any) -> Space:
    return Space({key.replace("__", "."): Parameter.model_validate(value) for key, value in parameters.items()})


def test_distributions() -> None:
    made = space(
        a={"low": 1.0, "high": 8.0, "log": True},
        b={"low": 1, "high": 9, "step": 2},
        c={"low": 0.0, "high": 1.0, "step": 0.25},
        d=[True, "x", 3],
        e=[[1, 2], {"kind": "data"}],
    ).distributions
    assert made["a"] == optuna.distributions.FloatDistribution(1.0, 8.0, log=True)
    assert made["b"] == optuna.distributions.IntDistribution(1, 9, step=2)
    assert made["c"] == optuna.distributions.FloatDistribution(0.0, 1.0, step=0.25)
    assert made["d"] == optuna.distributions.CategoricalDistribution((True, "x", 3))
    assert made["e"] == optuna.distributions.CategoricalDistribution(("[1, 2]", "{kind: data}"))


def test_conditions() -> None:
    made = space(
        c={"low": 0.0, "high": 1.0, "step": 0.5, "when": {"b": 2}},
        b={"low": 1, "high": 2, "when": {"a": ["x", "y"]}},
        a=["x", "y", "z"],
    )
    assert list(made.parameters) == ["a", "b", "c"]
    assert made.active("b", {"a": "y"}) and not made.active("b", {"a": "z"})
    assert made.active("c", {"a": "x", "b": 2}) and not made.active("c", {"a": "z"})
    points = list(made.points())
    assert made.count() == len(points) == 2 * (1 + 3) + 1
    assert {"a": "z"} in points and {"a": "x", "b": 1} in points and {"a": "y", "b": 2, "c": 0.5} in points


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"a": {"low": 1, "high": 2, "when": {"bb": 1}}, "b": [1]}, "space.a.when is 'bb'; it should be b"),
        ({"a": [1], "b": {"choices": [1], "when": {"a": 2}}}, "space.b.when.a is '2'; it should be 1."),
        (
            {"a": {"low": 1, "high": 2}, "b": {"choices": [1], "when": {"a": 3}}},
            "space.b.when.a is 3; it should be a number",
        ),
        (
            {"a": {"choices": [1], "when": {"b": 1}}, "b": {"choices": [1], "when": {"a": 1}}},
            "The conditions of a, b in space depend on each other",
        ),
        ({"a..b": [1]}, "space.a..b is no key of a recipe"),
    ],
)
def test_impossible_spaces(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        Space({key: Parameter.model_validate(value) for key, value in parameters.items()})
    assert str(caught.value).startswith(said)


def test_counting_and_grids() -> None:
    assert space(a={"low": 0.0, "high": 1.0}).count() is None
    assert space(a={"low": 1, "high": 10**6}, b={"low": 1, "high": 10**6}).count() is None, "too many to look at"
    assert space(a={"low": 2.0, "high": 2.0}, b=[1, 2, 3]).count() == 3
    assert space(a={"low": 0.0, "high": 1.0, "step": 0.5}, b=["x"]).grid() == {"a": [0.0, 0.5, 1.0], "b": ["x"]}
    with pytest.raises(BadInput, match="give a step"):
        space(a={"low": 0.0, "high": 1.0}).grid()
    with pytest.raises(BadInput, match="brute_force"):
        space(a=[1, 2], b={"choices": [1, 2], "when": {"a": 1}}).grid()


#: Every kind of parameter that the issue names: a key, a value, and where it must arrive in the checked recipe.
REACHED: list[tuple[str, Any, Callable[[Any], Any]]] = [
    ("positions.rotation_deg", 3.5, lambda r: r.positions.rotation_deg),
    ("positions.affine.0.1", 0.02, lambda r: r.positions.affine[0][1]),
    ("positions.affine.1.1", 1.02, lambda r: r.positions.affine[1][1]),
    ("positions.transpose", True, lambda r: r.positions.transpose),
    ("data.flip_y", True, lambda r: r.data.flip_y),
    ("data.flip_x", True, lambda r: r.data.flip_x),
    ("data.transpose", True, lambda r: r.data.transpose),
    ("data.object_pixel_m", 4e-9, lambda r: r.data.object_pixel_m[0]),
    ("data.distance_m", 2.0, lambda r: r.data.distance_m),
    ("probe.modes", 3, lambda r: r.probe.modes),
    ("object.slices", 2, lambda r: r.object.slices),
    ("object.slice_spacing_m", 1e-6, lambda r: r.object.slice_spacing_m),
    ("probe.start.defocus_m", 1e-6, lambda r: r.probe.start.defocus_m),
    ("probe.start.aberrations_m.C10", -1e-6, lambda r: r.probe.start.aberrations_m["C10"]),
    ("probe.start.aberrations_m.C12.1", 0.3, lambda r: r.probe.start.aberrations_m["C12"][1]),
    ("stages.0.batch", 8, lambda r: r.stages[0].batch),
    ("stages.0.gamma_probe", 0.5, lambda r: r.stages[0].gamma_probe),
    ("stages.0.engine", "epie", lambda r: r.stages[0].name),
    ("stages.1", {"engine": "lsqml", "epochs": 2}, lambda r: (r.stages[1].name, r.stages[1].epochs)),
    ("hold_out", 0.3, lambda r: r.hold_out),
    ("seed", 5, lambda r: r.seed),
]


@pytest.mark.parametrize(("key", "value", "where"), REACHED, ids=[key for key, _, _ in REACHED])
def test_every_key_is_reached(make: Make, key: str, value: Any, where: Callable[[Any], Any]) -> None:
    fixed = {}
    if key.startswith("probe.start"):
        start = {"kind": "electron", "semiangle_rad": 1e-3, "aberrations_m": {"C12": [1e-8, 0.0]}}
        fixed["probe.start"] = {"choices": [start]}
    if key.startswith("object.sl"):
        fixed |= {"object.slices": [2], "object.slice_spacing_m": [1e-6]}
    tuning = make({**fixed, key: {"choices": [value]}})
    made = Space(tuning.space)
    (point,) = made.points()
    found = where(recipe_of(tuning, made, point))
    assert found == (("lsqml", 2) if key == "stages.1" else value)


def test_groups_before_what_stands_in_them(make: Make) -> None:
    tuning = make({"stages.0.epochs": [3], "stages.0": [{"engine": "dm"}]})
    (point,) = Space(tuning.space).points()
    assert composed(tuning, Space(tuning.space), point)["stages"] == [{"engine": "dm", "epochs": 3}]


def test_views_are_held_out_unless_the_recipe_does(make: Make) -> None:
    tuning = make({"probe.modes": [1]}, objective={"kind": "held_out", "fraction": 0.25})
    assert composed(tuning, Space(tuning.space), {})["hold_out"] == 0.25
    own = Tuning.parse({**tuning.settings, "recipe": {**tuning.recipe, "hold_out": 0.2}})
    assert composed(own, Space(own.space), {})["hold_out"] == 0.2
    assert "hold_out" not in composed(make(objective="contrast"), Space(tuning.space), {})


def test_keys_through_what_is_no_group(make: Make) -> None:
    tuning = make({"seed.x": [1]})
    tuning.recipe["seed"] = 3
    with pytest.raises(BadInput, match=r"^space seed\.x goes into seed, which is 3"):
        composed(tuning, Space(tuning.space), {"seed.x": 1})
