"""From a recipe that leaves its stages open to one that says them."""

from __future__ import annotations

from pathlib import Path

from ptymesh.auto.interview import Found, Interview, Say
from ptymesh.auto.race import Budget, Stop, Terms, together
from ptymesh.auto.sweeps import sweeps_in, sweeps_of
from ptymesh.auto.written import NAME, written
from ptymesh.distributed.world import World
from ptymesh.errors import BadInput
from ptymesh.files import replacing
from ptymesh.io import load_measurement
from ptymesh.io.featureless import refuse_featureless
from ptymesh.measurement import Measurement
from ptymesh.run.data_checks import checked_recipe
from ptymesh.run.recipe import Recipe


def decide(
    recipe: Recipe,
    world: World,
    stop: Stop = lambda: False,
    *,
    time_s: float | None = None,
    reasons: dict[str, list[str]] | None = None,
    say: Say | None = None,
    write: bool = True,
) -> Found:
    """The recipe with stages, for one that says `stages: auto`; what it says of other keys stays. Collective.

    Args:
        stop: whether to stop.
        time_s: seconds that questions and run should take together; made into sweeps before anything is asked.
        reasons: of what has been chosen before.
        say: told what is found, on rank 0.
        write: the recipe with all reasons, into the output folder.

    Raises BadInput, Undecided where it was asked to stop, and PtymeshError where every way to begin diverges.
    """
    said = {key: list(sentences) for key, sentences in (reasons or {}).items()}
    speak: Say = (say or (lambda _: None)) if world.rank == 0 else (lambda _: None)
    recipe, found = checked_recipe(recipe, world)
    if found:
        said.setdefault("data.checked", []).extend(found)
    for sentence in found:
        speak(sentence)
    scan = together(world, lambda: _load_scan(recipe))
    assert recipe.auto is not None
    sweeps = recipe.auto.sweeps
    if time_s is not None:
        sweeps = sweeps_in(time_s, scan, world)
        said.setdefault("stages", []).append(f"{time_s:g} seconds were taken for {sweeps} sweeps.")
    terms = Terms(world, stop, Budget(sweeps or sweeps_of(scan)))
    decided = Interview(recipe, scan, terms, said, speak).hold()
    if write:
        together(world, lambda: _write(decided) if world.rank == 0 else None)
    return decided


def _load_scan(recipe: Recipe) -> Measurement:
    """Return the recipe's scan. Raises BadInput where no stages can be found from it."""
    scan = load_measurement(recipe.data, recipe.positions)
    refuse_featureless(scan)
    if scan.views == 1:
        raise BadInput(
            f"{scan.name} has one view, and stages are found by views that are held out; name them, such as "
            "stages: [{engine: rpie, epochs: 50}]."
        )
    return scan


def _write(found: Found) -> None:
    path = Path(found.recipe.output.dir) / NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path.parent} cannot be made ({error.strerror}); choose another folder with --out.") from error
    with replacing(path) as temporary:
        temporary.write_text(written(found.recipe, found.reasons), encoding="utf-8")
