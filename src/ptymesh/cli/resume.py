"""ptymesh resume: continue from a checkpoint, also for more epochs; restart what was stopped before the first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.launching import LaunchOptions, MemoryOptions, Settings, Strict, expand_groups
from ptymesh.cli.page import PageOptions


@expand_groups
def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of the run that was stopped.")],
    how: LaunchOptions,
    memory: MemoryOptions,
    page: PageOptions,
    set_: Settings = None,
    other_data: Annotated[
        bool, typer.Option("--other-data", help="Go on even if the data are not those that the run began with.")
    ] = False,
    strict: Strict = False,
) -> None:
    """Go on with a run that was stopped, or for longer (--set stages...), on any number of ranks."""
    from ptymesh.cli.running import check_folder, execute, holding_output_folder
    from ptymesh.distributed.child import launched
    from ptymesh.distributed.rank_info import world
    from ptymesh.errors import BadInput
    from ptymesh.io.checkpoint import store as checkpoint
    from ptymesh.paths import usable
    from ptymesh.recipe.schema import Recipe
    from ptymesh.run.checkpoint_counters import counters_of
    from ptymesh.run.resumed_recipe import refuse_folder, resumed_recipe
    from ptymesh.run_folder import start_record

    if folder.name == "checkpoint" and checkpoint.exists(folder):
        folder = folder.parent
    if not usable(folder, "The folder of the run").is_dir():
        raise BadInput(f"{folder} is no folder and holds no checkpoint; give the folder of a run that was stopped.")
    check_folder(folder, "mend its permissions, so that the run can go on there")
    with holding_output_folder(folder):
        text, meta = start_record.pending_recipe(folder), {}
        anew = text is not None
        if text is None:
            meta = checkpoint.read_meta(folder / "checkpoint")
            text = meta.get("recipe")
        if not isinstance(text, str):
            raise BadInput(f"The checkpoint in {folder} holds no recipe; go on with it from Python, as it was made.")
        settings = [*(set_ or ()), *memory.settings]
        if anew:
            recipe = Recipe.from_yaml(text, settings)
            refuse_folder(Recipe.from_yaml(text), recipe)
            recipe = recipe.with_output(folder)
        else:
            at = counters_of(meta)
            recipe = resumed_recipe(text, settings, at).with_output(folder)
            last, epochs = len(recipe.stages) - 1, recipe.stages[-1].epochs
            if (at.stage, at.epoch) >= (last, epochs) and world().rank == 0 and not launched():
                typer.echo(f"All epochs are done; for more, add --set stages.{last}.epochs={2 * epochs}.")
        arguments = ["resume", str(folder), "--device", how.device, *memory.arguments]
        arguments += [part for setting in set_ or () for part in ("--set", setting)]
        arguments += ["--other-data"] if other_data else []
        with page.beside(folder):
            execute(recipe, arguments, how, resume=not anew, other_data=other_data, strict=strict)
