"""The command line. Commands are in one file each, and import heavy modules inside their functions."""

from __future__ import annotations

import logging
import os
import signal
import sys
from functools import cache
from importlib import import_module
from typing import Annotated, Any, cast

import typer
import typer.completion
import typer.main
from typer.core import TyperCommand, TyperGroup

from ptymesh import __version__, stopping
from ptymesh.cli import streams
from ptymesh.cli.checking import Command
from ptymesh.cli.completion import ASKED
from ptymesh.distributed.rank_info import share_cores
from ptymesh.errors import BadInput, Interrupted, PtymeshError, ran_out_of_memory
from ptymesh.paths import is_text
from ptymesh.printable import printable

#: Commands in the order of --help, with their short help; `ptymesh COMMAND --help` shows the rest.
COMMANDS = {
    "demo": "Simulate, reconstruct, show.",
    "inspect": "What is in a data set, and is it sound?",
    "run": "Reconstruct a data set, or what a recipe says.",
    "live": "Reconstruct while frames arrive.",
    "stream": "Play a data set as a detector would.",
    "batch": "One recipe over many scans.",
    "resume": "Go on with a run that was stopped.",
    "launch": "Run a Python program on several ranks.",
    "slurm": "Print a job script for a recipe.",
    "doctor": "Does this machine work?",
    "warm": "Compile the kernels for this machine now.",
    "scaling": "What do more ranks gain?",
    "watch": "Show runs in the browser.",
    "view": "Draw the figures of a result.",
    "diagnose": "Why is a result poor?",
    "compare": "How far do two results agree?",
    "resolution": "To which resolution do two halves of the views agree?",
    "simulate": "Make a data set with known truth.",
    "convert": "Exchange results with other programs; data sets as CXI.",
    "plan": "Memory and messages on many ranks, without running.",
    "tune": "Search for the recipe that suits best.",
    "calibrate": "Measure disc, orientation, defocus and dose of electrons.",
    "orient": "How does the detector lie to the scan?",
    "bench": "How fast are engines and ranks here?",
    "plugins": "What can be plugged in, and what is?",
    "completion": "Let the shell complete commands and options.",
}

#: Remedies when memory ran out unexpectedly.
MORE_MEMORY = "free some or take a larger machine; of a run, use more ranks, fewer pixels or precision: single"
#: Commands whose only result is their output: if it cannot be written, they fail.
SPOKEN = (
    "inspect",
    "slurm",
    "doctor",
    "diagnose",
    "compare",
    "calibrate",
    "plan",
    "orient",
    "bench",
    "plugins",
    "completion",
    "--version",
)

#: Variable that makes the ranks that a command starts show tracebacks too.
DEBUG = "PTYMESH_DEBUG"


class CommandGroup(TyperGroup):
    """All commands, by name and short help. The module of one is imported, and its options made, when it is called."""

    def __init__(self, **options: Any) -> None:
        commands = {name: TyperCommand(name, short_help=short) for name, short in COMMANDS.items()}
        super().__init__(**{**options, "commands": commands})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and remaining arguments; the command has its options."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load_command(command.name), rest


@cache
def load_command(name: str) -> TyperCommand:
    """Import a command's module, and return the command with all its options."""
    module = import_module(f"ptymesh.cli.{name}")
    one = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = getattr(module, "SETTINGS", None)
    one.command(name, cls=Command, short_help=COMMANDS[name], context_settings=settings)(module.command)
    return cast(TyperCommand, typer.main.get_command(one))


app = typer.Typer(
    name="ptymesh",
    cls=CommandGroup,
    help="Ptychography on any number of devices: X-ray and electron, one command, the same answer.",
    epilog="Exit status: 0 done, 2 bad input, 3 diverged, 4 poor (--strict), 75 interrupted (resume goes on), 1 other.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"ptymesh {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command line and exit with its status; errors are printed as one sentence on stderr."""
    streams.install()
    arguments = sys.argv[1:]
    # arguments after `launch` belong to the user's program
    own_count = arguments.index("launch") if "launch" in arguments[:2] else len(arguments)
    if "--debug" in arguments[:own_count]:  # accepted before and after the command
        arguments.remove("--debug")
        os.environ[DEBUG] = "1"
    if own_count == len(arguments):  # figures are only drawn into files, and an unknown backend would be an error
        os.environ.pop("MPLBACKEND", None)
    if not os.environ.get(DEBUG):  # matplotlib's messages about its list of fonts do not concern us (plot/fonts.py)
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        try:
            if ASKED in os.environ:
                typer.completion.completion_init()
            share_cores()
            _check_working_folder()
            typer.main.get_command(app)(arguments, prog_name="ptymesh")
        finally:
            stopping.over()
    except SystemExit as left:
        if not left.code and set(arguments[:1]) & set(SPOKEN) and (lost := streams.output_failure()):
            print(f"ptymesh: standard output cannot be written ({lost.strerror}).", file=sys.stderr, flush=True)
            sys.exit(1)
        raise
    except PtymeshError as error:
        if isinstance(error, Interrupted):  # another SIGTERM must not change the exit status
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if stopping.speaks() or not isinstance(error, Interrupted):  # all ranks know of it, and one prints it
            _report(error, str(error))
        sys.exit(error.exit_status)
    except PermissionError as error:
        _report(error, f"{error.filename or 'A file'} cannot be used ({error.strerror}); mend its permissions.")
        sys.exit(BadInput.exit_status)
    except Exception as error:
        advice = " ".join(getattr(error, "__notes__", ())) or "Run it again with --debug for the traceback."
        message = " ".join(str(error).split())[:300]
        if ran_out_of_memory(error):
            _report(error, f"memory ran out ({message}); {MORE_MEMORY}. {advice}")
        else:
            _report(error, f"unexpected {type(error).__name__}: {message}. {advice}")
        sys.exit(1)


def _check_working_folder() -> None:
    """Raise BadInput if the working folder is deleted or its name is no text, which libraries report obscurely."""
    try:
        folder = os.getcwd()
    except OSError as error:
        raise BadInput(f"The working folder is gone ({error.strerror}); change to another one.") from error
    if not is_text(folder):
        raise BadInput(f"The working folder {folder} has a name that is no UTF-8 text; rename it.")


def _report(error: Exception, sentence: str) -> None:
    """Print an error as one sentence on stderr, in debug mode after its traceback."""
    if os.environ.get(DEBUG):
        import traceback

        traceback.print_exception(error)
    # names of data sets in a file may contain any character, also line feeds
    line = " ".join(printable(sentence).split())
    print(f"ptymesh: {line}", file=sys.stderr, flush=True)
