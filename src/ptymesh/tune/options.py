"""The tune file: a recipe, a search space over its keys, what is to become small or large, and how it is searched.

    recipe: star.yaml               # or the recipe itself
    space:
      stages.0.gamma_object: {low: 0.1, high: 2.0, log: true}
      probe.modes: {low: 1, high: 4}
      stages.0.order: [random, compact]
    objective: held_out
    trials: 40
    output: {dir: tune}

Parameters are named by the recipe key that they set. Paths in the file are relative to it, `output.dir` to the
working folder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, field_validator, model_validator

from ptymesh.errors import BadInput
from ptymesh.io.options import FrozenOptions, Number
from ptymesh.options import FilePath, plain
from ptymesh.paths import usable
from ptymesh.recipe.schema import Recipe, anchor, apply_overrides, raw_recipe, read_mapping
from ptymesh.recipe.yaml_text import parsed
from ptymesh.sentences import quote, unknown_word
from ptymesh.tune.offered import PRUNERS, SAMPLERS

#: What a YAML file can say without a group: these are a sampler's values as they stand.
SCALARS = (bool, int, float, str, type(None))


class Parameter(FrozenOptions):
    """Values of one key of the recipe: a range (`low`, `high`), or a list of `choices`, which may stand alone.

    Fields:
        low, high: both included. type: int or float; if not said, int where all numbers are written without a point.
        step: distance of the values from low on. log: whether they are spread evenly over the logarithm.
        choices: any YAML values, groups too.
        when: {other key: value, or list of values}: the parameter exists only where all of these hold.
    """

    low: Number | None = None
    high: Number | None = None
    type: Literal["int", "float"] | None = None
    step: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    log: bool = False
    choices: tuple[Any, ...] | None = None
    when: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        """Return a list as choices, and a range of whole numbers as one of ints."""
        if isinstance(value, list | tuple):
            return {"choices": value}
        if isinstance(value, dict) and value.get("type") is None and "choices" not in value:
            numbers = [value[key] for key in ("low", "high", "step") if value.get(key) is not None]
            are_integers = numbers and all(
                isinstance(number, int) and not isinstance(number, bool) for number in numbers
            )
            return {**value, "type": "int" if are_integers else "float"}
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Parameter:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log or self.step is not None or self.type:
                raise ValueError("choices stand alone; low, high, step, log and type belong to a range")
            texts = [label(choice) for choice in self.choices]
            if not texts or len(set(texts)) < len(texts):
                raise ValueError(f"choices are {quote(list(self.choices))}; give different values, at least one")
            return self
        if self.low is None or self.high is None:
            raise ValueError("a parameter needs low and high, or choices")
        self._range(self.low, self.high)
        return self

    def _range(self, low: float, high: float) -> None:
        if low > high:
            raise ValueError(f"low is {low:g} and high {high:g}; exchange them")
        if self.log and (low <= 0 or self.step is not None):
            raise ValueError(f"a logarithmic range needs low > 0 and no step, not low {low:g} and step {self.step}")
        if self.type == "int" and not all(float(n).is_integer() for n in (low, high, self.step or 1)):
            raise ValueError(f"low {low:g}, high {high:g} and step {self.step} of an int must be whole numbers")
        if self.step is not None and abs((high - low) / self.step - round((high - low) / self.step)) > 1e-9:
            nearest = low + math.floor((high - low) / self.step) * self.step
            raise ValueError(f"step {self.step:g} does not lead from {low:g} to {high:g}; set high to {nearest:g}")


def label(choice: object) -> str:
    """Return a choice as YAML, on one line."""
    return yaml.safe_dump(choice, default_flow_style=True, width=10**6).removesuffix("...\n").strip()


class HeldOut(FrozenOptions):
    """Frozen residual of views that no update sees; minimised.

    `fraction` of the views is held out, where the recipe itself holds out none. What a trial refines for each view
    (positions, intensity, OPR modes) is fitted on half of a held-out view's pixels and judged on the other half.
    """

    kind: Literal["held_out"] = "held_out"
    fraction: float = Field(0.1, gt=0, lt=0.5)
    every: int = Field(1, gt=0, le=10**9)


class FourierRings(FrozenOptions):
    """Mean Fourier ring correlation of two reconstructions from half of the views each, up to the pixels; maximised."""

    kind: Literal["frc"] = "frc"
    every: int = Field(1, gt=0, le=10**9)


class Contrast(FrozenOptions):
    """Contrast of the object's wave where it is illuminated; maximised (see `objectives.contrast`)."""

    kind: Literal["contrast"] = "contrast"
    every: int = Field(1, gt=0, le=10**9)


class Function(FrozenOptions):
    """A function of yours, `module:name` or `file.py:name`: result -> number (see `objectives.function`).

    `every`: also call it after so many epochs, so that trials can be pruned.
    """

    kind: Literal["function"] = "function"
    call: Annotated[str, Field(pattern=r"^[^:]+(\.py)?:[A-Za-z_][\w.]*$")]
    direction: Literal["minimize", "maximize"] = "minimize"
    every: int | None = Field(None, gt=0)


Goal = HeldOut | FourierRings | Contrast | Function
KINDS: dict[str, type[Goal]] = {"held_out": HeldOut, "frc": FourierRings, "contrast": Contrast, "function": Function}


def _goal(value: object) -> object:
    """Return `objective: frc` as `{kind: frc}`, for which it is short."""
    if isinstance(value, str):
        value = {"kind": value}
    if isinstance(value, dict) and value.get("kind") not in KINDS:
        raise BadInput(unknown_word("objective.kind", value.get("kind"), list(KINDS)))
    return value


class Named(FrozenOptions):
    """A sampler or pruner of Optuna's: its `name`, and its own `options`."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)


def _named(value: object) -> object:
    """Return `sampler: tpe` as `{name: tpe}`; other keys beside `name` are its options."""
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) and "options" not in value:
        return {"name": value.get("name"), "options": {k: v for k, v in value.items() if k != "name"}}
    return value


class StudyOutput(FrozenOptions):
    """Output folder of a study."""

    dir: FilePath = Path("tune")


class Tuning(FrozenOptions):
    """A tune file, checked.

    Fields:
        recipe: plain dicts with absolute paths. space: parameters by recipe key.
        objective: what a trial is worth. trials: how many there are to be, over all workers and all resumed runs.
        seed: of the samplers; the recipe has its own.
        sampler, pruner: Optuna's, by name. storage: URL of a database, instead of a journal file in output.dir.
        ranks_per_trial: devices (or processes) that work on one trial together.
        heartbeat_s: how often a worker says that it lives; one that has been silent six times as long is given up.
    """

    recipe: dict[str, Any]
    space: dict[str, Parameter]
    objective: Annotated[Goal, Field(discriminator="kind"), BeforeValidator(_goal)] = Field(default_factory=HeldOut)
    trials: int = Field(50, gt=0, le=10**6)
    seed: int = Field(0, ge=0, lt=2**31)
    sampler: Annotated[Named, BeforeValidator(_named)] = Named(name="tpe")
    pruner: Annotated[Named, BeforeValidator(_named)] = Named(name="median")
    storage: str | None = None
    ranks_per_trial: int = Field(1, gt=0, le=4096)
    heartbeat_s: float = Field(10.0, gt=0, le=3600)
    output: StudyOutput = StudyOutput()

    @field_validator("space")
    @classmethod
    def _refuse_empty(cls, space: dict[str, Parameter]) -> dict[str, Parameter]:
        if not space:
            raise ValueError("it is empty; name at least one key of the recipe, such as probe.modes")
        return space

    @model_validator(mode="after")
    def _offered(self) -> Tuning:
        for kind, chosen, offered in (("sampler", self.sampler, SAMPLERS), ("pruner", self.pruner, PRUNERS)):
            offered.check(kind, chosen.name, chosen.options)
        return self

    @property
    def definition(self) -> dict[str, object]:
        """Keys that may not change between the trials of one study, as plain JSON."""
        return {
            "recipe": self.recipe,
            "space": {key: parameter.model_dump(mode="json") for key, parameter in self.space.items()},
            "objective": self.objective.model_dump(mode="json", exclude={"every"}),
        }

    @property
    def settings(self) -> dict[str, object]:
        """All keys, as plain JSON, for the workers."""
        return self.model_dump(mode="json")


def load_tuning(path: Path, *, out: Path | None = None, overrides: Sequence[str] = (), **changes: object) -> Tuning:
    """Read a tune file.

    Args:
        path: of the file.
        out: study folder instead of the file's.
        overrides: `key=VALUE` settings of the recipe.
        changes: other keys of the file, by name; None leaves them.

    Raises:
        BadInput: one sentence that names key, value and remedy.
    """
    try:
        raw = read_mapping(path, "tune file", Tuning)
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not a tune file; give a YAML file with recipe and space.") from error
    if "recipe" not in raw and raw.keys() & {"data", "stages"}:
        raise BadInput(
            f"{path} is a recipe; write a tune file, which names it and what is searched: recipe: {path.name}, space: "
            "{stages.0.gamma_object: {low: 0.1, high: 2.0}}."
        )
    raw |= {key: value for key, value in changes.items() if value is not None}
    if out is not None:
        raw["output"] = {"dir": str(out)}
    return tuning(raw, path.parent, overrides)


def tuning(raw: dict[str, object], folder: Path, overrides: Sequence[str] = ()) -> Tuning:
    """Return the checked options of a tune file.

    Args:
        raw: keys of the file; its `recipe` is a path or a mapping.
        folder: of the file, to which its paths are relative.
        overrides: `key=VALUE` settings of the recipe.

    Raises:
        BadInput: one sentence that names key, value and remedy.
    """
    raw = dict(raw)
    recipe = raw.get("recipe")
    if isinstance(recipe, str | Path):
        raw["recipe"] = raw_recipe(folder / usable(recipe, "recipe"), overrides)
    elif isinstance(recipe, dict):
        raw["recipe"] = inline_recipe(recipe, folder, overrides)
    elif "recipe" in raw:
        raise BadInput(f"recipe is {quote(recipe)}; give the path of a recipe, or the recipe itself.")
    goal = raw.get("objective")
    if isinstance(goal, dict) and isinstance(goal.get("call"), str):
        raw["objective"] = {**goal, "call": _absolute_call(goal["call"], folder)}
    return Tuning.parse({key: value for key, value in raw.items() if value is not None})


def inline_recipe(recipe: dict[str, Any], folder: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return a recipe that is no file of its own, as plain dicts with absolute paths.

    Args:
        recipe: keys of the recipe.
        folder: to which its paths are relative.
        overrides: `key=VALUE` settings of the recipe.

    Raises:
        BadInput: it holds what no recipe can say.
    """
    try:
        text = yaml.safe_dump(plain(recipe))
    except (yaml.YAMLError, RecursionError) as error:
        raise BadInput(
            f"recipe holds what no recipe can say ({' '.join(str(error).split())[:120]}); mend it."
        ) from error
    raw: dict[str, Any] = parsed(text, "The recipe")
    unknown = [key for key in raw if key not in Recipe.model_fields]
    if unknown:
        Recipe.parse(raw)
    anchor(raw, folder)
    return apply_overrides(raw, overrides)


def _absolute_call(call: str, folder: Path) -> str:
    """Return `file.py:name` with the file's absolute path; `module:name` as it is."""
    module_name, _, name = call.rpartition(":")
    return f"{(folder / module_name).absolute()}:{name}" if module_name.endswith(".py") else call
