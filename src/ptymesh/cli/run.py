"""ptymesh run: reconstruct what a recipe says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ptymesh.cli.launching import Holding, Launching, Settings, Strict, folder, spread

if TYPE_CHECKING:
    from ptymesh.cli.running import Open
    from ptymesh.run.recipe import Recipe


@spread
def command(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE|DATA", help="A recipe (YAML), or a data set, for which one is found.")
    ],
    how: Launching,
    room: Holding,
    set_: Settings = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", parser=folder, help="Output folder, instead of the recipe's.")
    ] = None,
    time: Annotated[
        float | None,
        typer.Option(metavar="S", help="Seconds for finding stages and for the run, where stages are to be found."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier run in the output folder.")] = False,
    strict: Strict = False,
) -> None:
    """Reconstruct a data set, or what a recipe says, on any number of ranks."""
    from ptymesh.auto.data_paths import is_data
    from ptymesh.cli.running import Open

    settings, data = [*(set_ or ()), *room.settings], is_data(recipe)
    found = Open(time_s=time)
    _run(recipe, _loaded(recipe, settings, out, found, data), settings, time, force, how, found, strict)


def _loaded(recipe: Path, settings: list[str], out: Path | None, found: Open, data: bool) -> Recipe:
    """Return the recipe, or the one found for a data set; the reasons for its values are stored in `found`."""
    from ptymesh.auto import described, described_recipe
    from ptymesh.run.recipe import Recipe

    if not data:
        made, found.reasons = described_recipe(recipe, settings, out)
        return made
    raw, found.reasons = described(recipe, settings, out)
    return Recipe.parse(raw)


def _run(
    recipe: Path,
    loaded: Recipe,
    settings: list[str],
    time: float | None,
    force: bool,
    how: Launching,
    found: Open,
    strict: bool,
) -> None:
    """Check the options and the output folder, then execute the recipe."""
    from ptymesh.cli.running import check_folder, execute, owned, refuse_to_overwrite, restarted
    from ptymesh.distributed.child import launched
    from ptymesh.errors import BadInput
    from ptymesh.io import checkpoint
    from ptymesh.run import started

    if time is not None and not 0 < time < float("inf"):
        raise BadInput(f"--time is {time:g}; give a number of seconds above 0.")
    if time is not None and (loaded.auto is None or loaded.auto.sweeps is not None):
        raise BadInput(
            "--time is for a run whose stages are to be found; set stages to auto and leave auto.sweeps out."
        )
    if loaded.auto is not None and recipe.absolute() == (loaded.output.dir / "recipe.yaml").absolute():
        raise BadInput(f"The recipe that is found would replace {recipe}; choose another folder with --out.")
    again = restarted()
    folder = loaded.output.dir
    check_folder(folder)
    with owned(folder):
        if not launched():  # else the launcher has checked, and a rank that failed may have written a log since
            refuse_to_overwrite(folder, force=force or again, recipe=loaded.to_yaml())
        arguments = ["run", str(recipe), "--device", how.device, "--out", str(folder)]
        arguments += [part for setting in settings for part in ("--set", setting)]
        arguments += [] if time is None else ["--time", str(time)]
        resume = again and checkpoint.exists(folder / "checkpoint") and started.pending(folder) is None
        execute(loaded, [*arguments, *(["--force"] if force else [])], how, resume=resume, found=found, strict=strict)
