"""The page of commands: every option, from the program itself, where the page says `<!-- commands -->`."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

PLACE = "<!-- commands -->"


def sections() -> Iterator[str]:
    """One section a command, in the order of --help."""
    import typer

    from ptymesh.cli.main import COMMANDS, load_command

    for name in COMMANDS:
        command: Any = load_command(name)
        context = typer.Context(command, info_name=f"ptymesh {name}")
        usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
        yield f"## ptymesh {name}\n\n{inspect.cleandoc(command.help or '')}\n\n```text\n{usage}\n```\n"
        records = [parameter.get_help_record(context) for parameter in command.params]
        yield "| | |\n|---|---|\n" + "\n".join(row(*record) for record in records if record) + "\n"


def row(spelt: str, said: str) -> str:
    """How an argument or option is written, and what it means."""
    said = re.sub(r"\s*\[default: (.*)\]$", r" Default: `\1`.", " ".join(said.split()))
    return f"| `{spelt}` | {said} |".replace("[required]", "").replace("  ", " ")


def insert(app: Any, name: str, source: list[str]) -> None:
    """Called with the text of every page."""
    if PLACE in source[0]:
        source[0] = source[0].replace(PLACE, "\n".join(sections()))


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", insert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
