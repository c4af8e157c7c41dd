"""ptymesh resume: go on from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.launching import Backend, BatchTimeout, Bind, Device, Interface, Launching, MaxRestarts, Ranks


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of the run that was stopped.")],
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
    max_restarts: MaxRestarts = 0,
    batch_timeout: BatchTimeout = None,
    backend: Backend = "auto",
    interface: Interface = None,
    bind: Bind = True,
) -> None:
    """Go on with a run that was stopped, on any number of ranks."""
    from ptymesh.cli.running import execute, room_settings
    from ptymesh.io import checkpoint
    from ptymesh.run.recipe import Recipe

    if folder.name == "checkpoint" and checkpoint.exists(folder):
        folder = folder.parent
    saved = checkpoint.read_meta(folder / "checkpoint")
    recipe = Recipe.from_yaml(saved["recipe"], room_settings(memory_budget, scratch, layout)).with_output(folder)
    arguments = ["resume", str(folder), "--device", device]
    for option, value in (("--layout", layout), ("--memory-budget", memory_budget), ("--scratch", scratch)):
        arguments += [] if value is None else [option, str(value)]
    how = Launching(ranks, device, backend, interface, max_restarts, batch_timeout, bind)
    execute(recipe, arguments, how, resume=True)
