"""Complete a recipe that leaves its stages open (`stages: auto`) with stages found by trying."""

from __future__ import annotations

from pathlib import Path

from ptymesh.auto.candidates import SEARCHING, Budget, SearchContext, Stop
from ptymesh.auto.recipe_text import NAME, recipe_text
from ptymesh.auto.search import Say
from ptymesh.auto.stage_search import Decision, StageSearch
from ptymesh.auto.sweeps import default_sweeps, sweeps_in_time
from ptymesh.distributed.world import World
from ptymesh.errors import BadInput
from ptymesh.files import replacing
from ptymesh.io import load_measurement
from ptymesh.io.prepare.checks import refuse_featureless
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.run.assembly.data_checks import checked_recipe


def decide(
    recipe: Recipe,
    world: World,
    stop: Stop = lambda: False,
    *,
    time_s: float | None = None,
    reasons: dict[str, list[str]] | None = None,
    say: Say | None = None,
    write: bool = True,
) -> Decision:
    """Return the recipe with stages, for one that says `stages: auto`; what it says of other keys stays. Collective.

    Args:
        recipe: leaves its stages open.
        world: the ranks, all of which call this.
        stop: returns True once the search should stop.
        time_s: seconds that search and run should take together, turned into sweeps before anything runs; None: the
            recipe's sweeps, or automatic.
        reasons: why the recipe is as it is so far, sentences by key.
        say: is called with each finding, on rank 0.
        write: whether the recipe with all reasons is written into the output folder.

    Raises:
        BadInput: the data cannot be used, or no stages can be found from them.
        Undecided: the search was stopped.
        PtymeshError: every way to begin diverges.
    """
    notes = {key: list(sentences) for key, sentences in (reasons or {}).items()}
    speak: Say = (say or (lambda _: None)) if world.rank == 0 else (lambda _: None)
    recipe, findings = checked_recipe(recipe, world)
    if findings:
        notes.setdefault("data.checked", []).extend(findings)
    for sentence in findings:
        speak(sentence)
    scan = world.on_all_ranks(lambda: _load_scan(recipe), SEARCHING)
    assert recipe.auto is not None
    sweeps = recipe.auto.sweeps
    if time_s is not None:
        sweeps = sweeps_in_time(time_s, scan, world)
        notes.setdefault("stages", []).append(f"{time_s:g} seconds were taken for {sweeps} sweeps.")
    context = SearchContext(world, stop, Budget(sweeps or default_sweeps(scan)))
    decided = StageSearch(recipe, scan, context, notes, speak).run()
    if write:
        world.on_all_ranks(lambda: _write(decided) if world.rank == 0 else None, SEARCHING)
    return decided


def _load_scan(recipe: Recipe) -> Measurement:
    """Return the recipe's scan; raise BadInput if no stages can be found from it."""
    if recipe.optics:
        raise BadInput(
            f"stages: auto tries no operators of optics ({', '.join(recipe.optics)}); name the stages, such as stages: "
            "[{engine: adam, epochs: 50}] with the operator's unknowns, or remove optics."
        )
    scan = load_measurement(recipe.data, recipe.positions)
    refuse_featureless(scan)
    if scan.views == 1:
        raise BadInput(
            f"{scan.name} has one view, and stages are found by views that are held out; name them, such as "
            "stages: [{engine: rpie, epochs: 50}]."
        )
    return scan


def _write(decision: Decision) -> None:
    """Write the recipe with its reasons into its output folder."""
    path = Path(decision.recipe.output.dir) / NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path.parent} cannot be made ({error.strerror}); choose another folder with --out.") from error
    with replacing(path) as temporary:
        temporary.write_text(recipe_text(decision.recipe, decision.reasons), encoding="utf-8")
