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
    max_restarts: MaxRestarts = 0,
    batch_timeout: BatchTimeout = None,
    backend: Backend = "auto",
    interface: Interface = None,
    bind: Bind = True,
) -> None:
    """Go on with a run that was stopped, on any number of ranks."""
    from ptymesh.cli.running import execute
    from ptymesh.io import checkpoint
    from ptymesh.run.recipe import Recipe

    if folder.name == "checkpoint" and checkpoint.exists(folder):
        folder = folder.parent
    saved = checkpoint.read_meta(folder / "checkpoint")
    recipe = Recipe.from_yaml(saved["recipe"]).with_output(folder)
    how = Launching(ranks, device, backend, interface, max_restarts, batch_timeout, bind)
    execute(recipe, ["resume", str(folder), "--device", device], how, resume=True)
