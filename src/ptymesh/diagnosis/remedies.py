"""Remedies as text that can be pasted: only settings that the result's own recipe takes and has not yet.

A result of a recipe gets a command; one made from Python gets arguments.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import yaml

from ptymesh.diagnosis.evidence import Remedy
from ptymesh.diagnosis.view import ResultView
from ptymesh.errors import PtymeshError
from ptymesh.recipe.schema import DEFAULT_STAGES, Recipe, put

#: Stands for the last stage at the start of a remedy's key, and for one more stage.
LAST_STAGE, ADDED_STAGE = "stage.", "stages.+"
#: Key of the list of stages, which has no counterpart in Python.
ALL_STAGES = "stages"
#: Groups of a recipe that `ptymesh.load` takes, and that `Reconstruction` takes.
LOADED, RECONSTRUCTED = ("data", "positions"), ("object", "probe")
#: Commands in which a recipe stands when its file is not known.
RECIPE = "RECIPE"


@dataclass(frozen=True)
class UsableRemedy:
    """A remedy that fits the result.

    Attributes:
        text: for a person, a command or advice.
        settings: `KEY=VALUE` of a recipe, empty for advice alone.
        recipe: the result's own (or what its run from Python amounts to) with these settings; None for advice alone.
    """

    text: str
    settings: tuple[str, ...] = ()
    recipe: Recipe | None = None


def usable_remedies(view: ResultView, remedies: tuple[Remedy, ...], cause: str) -> Iterator[UsableRemedy]:
    """Yield the remedies that can be used with this result, the best first: they parse, and are not set already.

    Args:
        view: the result.
        remedies: candidates, the best first.
        cause: name, for the folder into which a command writes.
    """
    recipe = view.recipe or assumed_recipe(view)
    for remedy in remedies:
        if not remedy.settings:
            if remedy.advice:
                yield UsableRemedy(remedy.advice)
            continue
        changed = changed_recipe(recipe, remedy)
        if changed is None or (view.recipe is None and ALL_STAGES in remedy.settings):
            continue
        settings = tuple(setting(key, value) for key, value in _absolute(recipe, remedy).items())
        text = _python(remedy) if view.recipe is None else command(view, settings, cause)
        yield UsableRemedy(f"{text}  # {remedy.advice}" if remedy.advice else text, settings, changed)


def assumed_recipe(view: ResultView) -> Recipe:
    """Return the recipe that would have made a result of Python, as far as the result tells."""
    result = view.result
    *_, engine = str(result.attrs.get("engine") or DEFAULT_STAGES[0]["engine"]).split("+")
    stage = {"engine": engine, "positions": result.nominal_px is not None}
    raw = {"data": {"path": "scan"}, "probe": {"modes": len(result.probe)}, "stages": [stage]}
    stack = {"slices": len(result.object), "slice_spacing_m": result.slice_spacing_m} if len(result.object) > 1 else {}
    raw["object"] = {"modes": 1 if result.object_modes is None else len(result.object_modes), **stack}
    return Recipe.parse(raw)


def changed_recipe(recipe: Recipe, remedy: Remedy) -> Recipe | None:
    """Return the recipe with a remedy's settings; None where it refuses them, or says the same already."""
    if remedy.unless and _is_set(recipe, remedy.unless):
        return None
    raw = recipe.as_values()
    try:
        for key, value in _absolute(recipe, remedy).items():
            put(raw, key, deepcopy(value), "the setting")
        changed = Recipe.parse(raw)
    except PtymeshError:
        return None
    return changed if changed.as_values() != recipe.as_values() else None


def _is_set(recipe: Recipe, key: str) -> bool:
    """Return True if a key has a value other than none or false; of `stage.X`, if it has in any stage."""
    raw = recipe.as_values()
    if key.startswith(LAST_STAGE):
        return any(_value(stage, key[len(LAST_STAGE) :]) for stage in raw["stages"] if isinstance(stage, dict))
    return bool(_value(raw, key))


def _value(group: object, key: str) -> object:
    for part in key.split("."):
        group = group.get(part) if isinstance(group, dict) else None
    return group


def _absolute(recipe: Recipe, remedy: Remedy) -> dict[str, object]:
    """Return a remedy's settings with the number of the stage that each is meant for."""
    last = len(recipe.stages) - 1
    settings = {}
    for key, value in remedy.settings.items():
        if key == ADDED_STAGE:
            key = f"stages.{last + 1}"
        elif key.startswith(LAST_STAGE):
            key = f"stages.{last}.{key[len(LAST_STAGE) :]}"
        settings[key] = value
    return settings


def setting(key: str, value: object) -> str:
    """Return `KEY=VALUE` as `--set` takes it."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).strip()
    return f"{key}={text.removesuffix('...').strip()}"


def command(view: ResultView, settings: tuple[str, ...], cause: str) -> str:
    """Return the command that runs the result's recipe with these settings, into a folder of its own.

    Args:
        view: the result.
        settings: `KEY=VALUE` of the recipe.
        cause: its name, for the folder.
    """
    recipe, out = RECIPE, None
    if view.path is not None:
        recipe_path = view.path.parent / "recipe.yaml"
        recipe = str(recipe_path) if recipe_path.exists() else RECIPE
        out = f"{view.path.parent}-{cause}"
    words = ["ptymesh", "run", recipe, *([] if out is None else ["--out", out])]
    return shlex.join([*words, *(word for one in settings for word in ("--set", one))])


def _python(remedy: Remedy) -> str:
    """Return a remedy as arguments of the functions of Python that take them."""
    loaded: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    stage: dict[str, Any] = {}
    for key, value in remedy.settings.items():
        group, _, rest = key.partition(".")
        if group in LOADED:
            target = loaded if group == "data" else loaded.setdefault("positions", {})
        elif group == "stage":
            target = stage
        elif key == ADDED_STAGE:
            target, rest = stage, ""
            stage |= value
        else:
            target = arguments.setdefault(group, {}) if rest else arguments
            rest = rest or group
        if rest:
            _put(target, rest, value)
    calls = []
    if loaded:
        calls.append(f"ptymesh.load(..., {_arguments(loaded)})")
    if arguments:
        calls.append(f"ptymesh.Reconstruction(..., {_arguments(arguments)})")
    if stage:
        calls.append(f".run({{..., {str(stage)[1:-1]}}})")
    return " and ".join(calls)


def _put(group: dict[str, Any], key: str, value: Any) -> None:
    *above, name = key.split(".")
    for part in above:
        group = group.setdefault(part, {})
    group[name] = value


def _arguments(values: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
