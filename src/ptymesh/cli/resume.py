"""ptymesh resume: go on from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.launching import Holding, Launching, spread


@spread
def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of the run that was stopped.")],
    how: Launching,
    room: Holding,
) -> None:
    """Go on with a run that was stopped, on any number of ranks."""
    from ptymesh.cli.running import execute, owned
    from ptymesh.io import checkpoint
    from ptymesh.run.recipe import Recipe

    if folder.name == "checkpoint" and checkpoint.exists(folder):
        folder = folder.parent
    with owned(folder):
        saved = checkpoint.read_meta(folder / "checkpoint")
        recipe = Recipe.from_yaml(saved["recipe"], room.settings).with_output(folder)
        execute(recipe, ["resume", str(folder), "--device", how.device, *room.arguments], how, resume=True)
