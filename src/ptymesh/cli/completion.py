"""ptymesh completion: scripts for completing commands and options in a shell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

#: Variable set by the shell when it requests completions (typer's own protocol).
ASKED = "_PTYMESH_COMPLETE"


class Shell(StrEnum):
    """Shells for which there is a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def command(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print what the shell has to read so that it completes commands, options and file names of ptymesh.

    \b
    bash:  echo 'eval "$(ptymesh completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(ptymesh completion zsh)"' >> ~/.zshrc   (after compinit)
    fish:  ptymesh completion fish > ~/.config/fish/completions/ptymesh.fish
    """  # noqa: D301
    from typer.completion import get_completion_script

    typer.echo(get_completion_script(prog_name="ptymesh", complete_var=ASKED, shell=shell.value))
