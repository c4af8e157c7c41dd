"""ptymesh run: reconstruct what a recipe says."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.launching import LaunchOptions, MemoryOptions, Settings, Strict, expand_groups, folder
from ptymesh.cli.page import PageOptions


@expand_groups
def command(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE|DATA", help="A recipe (YAML), or a data set, for which one is found.")
    ],
    how: LaunchOptions,
    memory: MemoryOptions,
    page: PageOptions,
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
    from ptymesh.auto.data import described_recipe
    from ptymesh.cli.running import (
        StageFinder,
        check_folder,
        execute,
        holding_output_folder,
        refuse_to_overwrite,
        restarted,
    )
    from ptymesh.distributed.child import launched
    from ptymesh.errors import BadInput
    from ptymesh.io.checkpoint import store as checkpoint
    from ptymesh.run_folder import start_record

    settings = [*(set_ or ()), *memory.settings]
    loaded, reasons = described_recipe(recipe, settings, out)
    finder = StageFinder(time, reasons)
    if time is not None and not 0 < time < float("inf"):
        raise BadInput(f"--time is {time:g}; give a number of seconds above 0.")
    if time is not None and (loaded.auto is None or loaded.auto.sweeps is not None):
        raise BadInput(
            "--time is for a run whose stages are to be found; set stages to auto and leave auto.sweeps out."
        )
    if loaded.auto is not None and recipe.absolute() == (loaded.output.dir / "recipe.yaml").absolute():
        raise BadInput(f"The recipe that is found would replace {recipe}; choose another folder with --out.")
    is_restarted = restarted()
    folder = loaded.output.dir
    check_folder(folder)
    with holding_output_folder(folder), ExitStack() as stack:
        if not launched():  # else the launcher has checked, and a rank that failed may have written a log since
            refuse_to_overwrite(folder, force=force or is_restarted, recipe=loaded.to_yaml())
        stack.enter_context(page.beside(folder))
        arguments = ["run", str(recipe), "--device", how.device, "--out", str(folder)]
        arguments += [part for setting in settings for part in ("--set", setting)]
        arguments += [] if time is None else ["--time", str(time)]
        resume = (
            is_restarted and checkpoint.exists(folder / "checkpoint") and start_record.pending_recipe(folder) is None
        )
        execute(loaded, [*arguments, *(["--force"] if force else [])], how, resume=resume, finder=finder, strict=strict)
