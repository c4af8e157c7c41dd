"""ptymesh resume: go on from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of the run that was stopped.")],
    ranks: Annotated[int | None, typer.Option(metavar="N", help="Processes to start on this machine.")] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")] = "auto",
    memory_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What each rank's patterns may take, e.g. 4GB; else from disk.")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder on a local disk for patterns beyond the budget.")
    ] = None,
) -> None:
    """Go on with a run that was stopped, on any number of ranks."""
    from ptymesh.cli.running import execute, room_settings
    from ptymesh.io import checkpoint
    from ptymesh.run.recipe import Recipe

    if folder.name == "checkpoint" and checkpoint.exists(folder):
        folder = folder.parent
    saved = checkpoint.read_meta(folder / "checkpoint")
    recipe = Recipe.from_yaml(saved["recipe"], room_settings(memory_budget, scratch)).with_output(folder)
    arguments = ["resume", str(folder), "--device", device]
    for option, value in (("--memory-budget", memory_budget), ("--scratch", scratch)):
        arguments += [] if value is None else [option, str(value)]
    execute(recipe, arguments, device=device, ranks=ranks, resume=True)
