"""ptymesh run: reconstruct what a recipe says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.launching import Backend, BatchTimeout, Bind, Device, Interface, Launching, MaxRestarts, Ranks


def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="What to do with which data.")],
    ranks: Ranks = None,
    device: Device = "auto",
    layout: Annotated[
        str | None, typer.Option(metavar="NAME", help="Object on several ranks: auto, replicated or tiled.")
    ] = None,
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
    max_restarts: MaxRestarts = 0,
    batch_timeout: BatchTimeout = None,
    backend: Backend = "auto",
    interface: Interface = None,
    bind: Bind = True,
) -> None:
    """Reconstruct what a recipe says, on any number of ranks."""
    from ptymesh.cli.running import execute, refuse_to_overwrite, restarted, room_settings
    from ptymesh.io import checkpoint
    from ptymesh.run.recipe import load_recipe

    settings = [*(set_ or ()), *room_settings(memory_budget, scratch, layout)]
    loaded = load_recipe(recipe, settings, out)
    again = restarted()
    refuse_to_overwrite(loaded.output.dir, force=force or again)
    arguments = ["run", str(recipe), "--device", device, "--out", str(loaded.output.dir)]
    arguments += [part for setting in settings for part in ("--set", setting)]
    resume = again and checkpoint.exists(loaded.output.dir / "checkpoint")
    how = Launching(ranks, device, backend, interface, max_restarts, batch_timeout, bind)
    execute(loaded, [*arguments, *(["--force"] if force else [])], how, resume=resume)
