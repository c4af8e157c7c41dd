"""ptymesh run: reconstruct what a recipe says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="What to do with which data.")],
    ranks: Annotated[int | None, typer.Option(metavar="N", help="Processes to start on this machine.")] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")] = "auto",
    memory_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What each rank's patterns may take, e.g. 4GB; else from disk.")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder on a local disk for patterns beyond the budget.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe, e.g. stages.0.epochs=5."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Output folder, instead of the recipe's.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier run in the output folder.")] = False,
) -> None:
    """Reconstruct what a recipe says, on any number of ranks."""
    from ptymesh.cli.running import execute, refuse_to_overwrite, room_settings
    from ptymesh.run.recipe import load_recipe

    settings = [*(set_ or ()), *room_settings(memory_budget, scratch)]
    loaded = load_recipe(recipe, settings, out)
    refuse_to_overwrite(loaded.output.dir, force=force)
    arguments = ["run", str(recipe), "--device", device, "--out", str(loaded.output.dir)]
    arguments += [part for setting in settings for part in ("--set", setting)]
    execute(loaded, [*arguments, *(["--force"] if force else [])], device=device, ranks=ranks, resume=False)
