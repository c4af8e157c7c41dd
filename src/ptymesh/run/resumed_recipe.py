"""Changes that a recipe may take where its run goes on from a checkpoint: how long its stages are, and which follow.

Stages that are done stay what they were. The one in which the checkpoint lies stays so but for its number of epochs;
to go on in another way, end it where it is, and add a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptymesh.engines import Engine
from ptymesh.errors import BadInput
from ptymesh.recipe.schema import Recipe
from ptymesh.run.checkpoint_counters import Counters

#: Keys of a recipe besides stages that say nothing about the estimate: `data.path`, too, for files move.
FREE = ("output", "layout", "memory_budget", "scratch")


def resumed_recipe(text: str, settings: Sequence[str], at: Counters) -> Recipe:
    """Return the recipe of a checkpoint with key=VALUE settings, where the checkpoint still fits it.

    Args:
        text: the recipe that the checkpoint holds, YAML.
        settings: `key.path=VALUE`, in order.
        at: where the checkpoint stands.

    Raises:
        BadInput: a setting changes what cannot be changed any more.
    """
    before = Recipe.from_yaml(text)
    _check_settings(before, settings, at)
    after = Recipe.from_yaml(text, settings)
    refuse_folder(before, after)
    if after.auto is not None:
        raise BadInput("stages is auto, and the run that goes on has found its stages; name those that are to follow.")
    for name, old, new in _differences(before, after):
        raise BadInput(
            f"{name} was {old} when the run began and cannot become {new}; resume takes stages that follow, and more "
            "epochs: begin a new run for other changes."
        )
    if len(after.stages) <= at.stage:
        raise BadInput(
            f"The checkpoint is in stage {at.stage + 1} (stages.{at.stage}), and there would be {len(after.stages)}; "
            "keep the stages up to there."
        )
    for index, (was, now) in enumerate(zip(before.stages[: at.stage + 1], after.stages, strict=False)):
        epochs_done = None if index < at.stage else at.epoch + (at.batch > 0)
        _check_stage(index, was, now, epochs_done)
    return after


def refuse_folder(before: Recipe, after: Recipe) -> None:
    """Raise BadInput where settings name another output folder: a run goes on in its own."""
    if after.output.dir != before.output.dir:
        raise BadInput(
            f"output.dir cannot become {_shortened(after.output.dir)}: a run goes on in its folder; move that, or "
            "begin a new run in another one."
        )


def _check_settings(before: Recipe, settings: Sequence[str], at: Counters) -> None:
    """Raise BadInput where another engine is set alone: the stage's other keys, which nobody wrote, are not of it."""
    for index, stage in enumerate(before.stages):
        key = f"stages.{index}.engine"
        named = [value.strip() for name, _, value in (one.partition("=") for one in settings) if name.strip() == key]
        if not named or named[-1] == stage.name:
            continue
        if index < at.stage:
            raise BadInput(
                f"stages.{index} is done, and its engine cannot become {named[-1]}; add a stage instead, as stages.N "
                "behind the last one."
            )
        if index == at.stage:
            raise BadInput(
                f"{key} was {stage.name} when the run began and cannot become {named[-1]}; end the stage where it is "
                f"(stages.{index}.epochs), and add one behind the last."
            )
        setting = f"--set 'stages.{index}={{engine: {named[-1]}, epochs: {stage.epochs}}}'"
        raise BadInput(f"{key} is {stage.name}, with options of its own; give the whole stage instead: {setting}.")


def _differences(before: Recipe, after: Recipe) -> list[tuple[str, Any, Any]]:
    """Return the keys that differ and must not, by name, with both values."""
    differences = []
    for group in Recipe.model_fields:
        if group in FREE or group == "stages":
            continue
        old, new = getattr(before, group), getattr(after, group)
        for key in getattr(type(old), "model_fields", ()):
            if (group, key) != ("data", "path") and getattr(old, key) != getattr(new, key):
                differences.append((f"{group}.{key}", _shortened(getattr(old, key)), _shortened(getattr(new, key))))
        if not hasattr(type(old), "model_fields") and old != new:
            differences.append((group, _shortened(old), _shortened(new)))
    return differences


def _check_stage(index: int, was: Engine, now: Engine, epochs_begun: int | None) -> None:
    """Raise BadInput where a stage that the run has begun would change.

    Args:
        index: number of the stage.
        was: the stage in the checkpoint's recipe.
        now: the stage that is asked for.
        epochs_begun: epoch in which the run is; None: the stage is done.
    """
    name = f"stages.{index}"
    old, new = ({"engine": stage.name, **stage.model_dump(mode="json")} for stage in (was, now))
    changed = [key for key in old | new if old.get(key) != new.get(key)]
    if epochs_begun is None and changed:
        raise BadInput(
            f"{name} is done, and its {changed[0]} cannot become {_shortened(new.get(changed[0]))}; add a stage "
            f"instead, as stages.N behind the last one."
        )
    if epochs_begun is None:
        return
    other_keys = [key for key in changed if key != "epochs"]
    if other_keys:
        raise BadInput(
            f"The checkpoint lies within {name}, whose {other_keys[0]} cannot become "
            f"{_shortened(new.get(other_keys[0]))}; set {name}.epochs={max(epochs_begun, 1)} to end it there, "
            f"and stages.{index + 1} to what follows."
        )
    if now.epochs < epochs_begun:
        raise BadInput(
            f"{name}.epochs would be {now.epochs}, and the checkpoint lies in epoch {epochs_begun}; "
            f"give {epochs_begun} or more."
        )


def _shortened(value: object) -> str:
    """Return a value as text of at most 60 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
