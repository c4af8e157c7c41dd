"""ptymesh resume: go on from a checkpoint, or start anew what was stopped before the first one."""

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
    from ptymesh.cli.running import execute
    from ptymesh.io import checkpoint
    from ptymesh.run import started
    from ptymesh.run.recipe import Recipe

    if folder.name == "checkpoint" and checkpoint.exists(folder):
        folder = folder.parent
    anew = started.pending(folder)
    text = checkpoint.read_meta(folder / "checkpoint")["recipe"] if anew is None else anew
    recipe = Recipe.from_yaml(text, room.settings).with_output(folder)
    arguments = ["resume", str(folder), "--device", how.device, *room.arguments]
    execute(recipe, arguments, how, resume=anew is None)
