"""ptymesh run: reconstruct what a recipe says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.launching import Holding, Launching, Settings, folder, spread


@spread
def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="What to do with which data.")],
    how: Launching,
    room: Holding,
    set_: Settings = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", parser=folder, help="Output folder, instead of the recipe's.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier run in the output folder.")] = False,
) -> None:
    """Reconstruct what a recipe says, on any number of ranks."""
    from ptymesh.cli.running import check_folder, execute, owned, refuse_to_overwrite, restarted
    from ptymesh.distributed.child import launched
    from ptymesh.io import checkpoint
    from ptymesh.run import started
    from ptymesh.run.recipe import load_recipe

    settings = [*(set_ or ()), *room.settings]
    loaded = load_recipe(recipe, settings, out)
    again = restarted()
    folder = loaded.output.dir
    check_folder(folder)
    with owned(folder):
        if not launched():  # else the launcher has looked; a rank that failed may have begun a log since
            refuse_to_overwrite(folder, force=force or again, recipe=loaded.to_yaml())
        arguments = ["run", str(recipe), "--device", how.device, "--out", str(folder)]
        arguments += [part for setting in settings for part in ("--set", setting)]
        resume = again and checkpoint.exists(folder / "checkpoint") and started.pending(folder) is None
        execute(loaded, [*arguments, *(["--force"] if force else [])], how, resume=resume)
