"""ptymesh launch: a user's own program on several ranks of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.launching import LaunchOptions, expand_groups, refuse_ranks

#: Arguments after the program's name are left to the program.
SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": False}


@expand_groups
def command(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="A Python program.")],
    how: LaunchOptions,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="Its own arguments.")] = None,
    logs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where ranks other than 0 print to, instead of a temporary one.")
    ] = None,
) -> None:
    """Run a Python program, unchanged, on N ranks of this machine. Options stand before the program's name."""
    from ptymesh.distributed.devices import DEVICE
    from ptymesh.errors import BadInput
    from ptymesh.launcher.rank_processes import launch

    refuse_ranks("launch")
    if not script.is_file():
        raise BadInput(f"There is no program {script}; check the path.")
    if script.suffix in (".yaml", ".yml"):
        raise BadInput(f"{script} is a recipe, not a Python program; give it to ptymesh run, with --ranks N.")
    how.check()
    status = launch(
        [str(script), *(arguments or ())],
        1 if how.ranks is None else how.ranks,
        log_dir=logs,
        program=("-m", "ptymesh.launcher.script"),
        max_restarts=how.max_restarts,
        environment={**how.environment, **({} if how.device == "auto" else {DEVICE: how.device})},
        bind=how.bind,
    )
    if status:
        raise typer.Exit(status)
