"""Options that several commands share: starting of ranks, layout and memory.

A command takes such a group of options as one parameter, whose class declares the options by its fields;
`expand_groups` replaces the parameter by its fields.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

Device = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:N or xpu.")]
Backend = Annotated[str, typer.Option(metavar="NAME", help="Collectives: auto, gloo, nccl or xccl.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe, e.g. stages.0.epochs=5."),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="End with status 4 where the verdict on the result is poor or failed.")
]


def folder(name: str | Path) -> Path:
    """Return the folder of an option.

    Raises:
        typer.BadParameter: the name is empty, which would be the working folder.
    """
    if not str(name):
        raise typer.BadParameter("--out is empty; give the name of a folder.")
    return Path(name)


def parse_numbers(option: str, text: str, most: int | None = None) -> list[int]:
    """Return whole numbers of 1 or more, with commas between them.

    Args:
        option: for messages.
        text: such as 1,2,4.
        most: largest number that is accepted.

    Raises:
        BadInput: they are other ones.
    """
    from ptymesh.errors import BadInput

    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or (most is not None and max(numbers) > most):
        bound = "of 1 or more" if most is None else f"from 1 to {most}"
        raise BadInput(f"{option} is {text!r}; give whole numbers {bound} with commas between them, such as 1,2,4.")
    return numbers


def refuse_ranks(command: str) -> None:
    """Raise BadInput if this process is one of several ranks: a command starts its own, or needs none."""
    from ptymesh.distributed.rank_info import world
    from ptymesh.errors import BadInput

    if (size := world().size) > 1:
        raise BadInput(
            f"`ptymesh {command}` is one process, and here are {size} ranks; start it without torchrun or srun."
        )


def result_file(name: str | Path) -> Path:
    """Return the result that an argument names: the file, or that of the run in a folder."""
    from ptymesh.io.results import file_in

    return file_in(Path(name))


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with one option for each field of the dataclasses among its parameters."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @functools.wraps(command)
    def spread_out(**given: Any) -> None:
        arguments = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)}) for name, kind in groups.items()
        }
        command(**given, **arguments)

    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        options = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=options[field.name],
            )
            for field in fields(groups[name])
        ]
    spread_out.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread_out.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread_out


@dataclass(frozen=True)
class LaunchOptions:
    """Options for starting ranks.

    Attributes:
        ranks: number of processes; None: this process alone.
        device, backend: device and collective backend by name.
        interface: network interface between nodes.
        max_restarts: how often failed ranks are restarted.
        timeout: seconds without progress after which a rank hangs.
        bind: True to bind each rank to the cores of one NUMA node.
    """

    ranks: Annotated[
        int | None, typer.Option("--ranks", "-n", metavar="N", help="Processes to start on this machine.")
    ] = None
    device: Device = "auto"
    backend: Backend = "auto"
    interface: Annotated[
        str | None, typer.Option(metavar="NAME", help="Network interface between nodes, such as eth0 or ib0.")
    ] = None
    max_restarts: Annotated[
        int, typer.Option(metavar="K", help="Start ranks that failed again, up to K times, from the last checkpoint.")
    ] = 0
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", "--batch-timeout", metavar="S", help="Seconds without progress after which a rank hangs (60)."
        ),
    ] = None
    bind: Annotated[bool, typer.Option("--bind/--no-bind", help="Keep each rank on the cores of one NUMA node.")] = True

    def check(self) -> None:
        """Raise BadInput for numbers out of range, and for a device or backend that does not exist."""
        from ptymesh.distributed.devices import backend_for, device_for, shared_by
        from ptymesh.errors import BadInput
        from ptymesh.launcher.rank_processes import MOST_PER_CORE, MOST_RANKS, cores

        ranks = 1 if self.ranks is None else self.ranks
        if not 1 <= ranks <= MOST_RANKS:
            raise BadInput(f"--ranks is {ranks}; give 1 to {MOST_RANKS} on one machine.")
        if self.max_restarts < 0:
            raise BadInput(f"--max-restarts is {self.max_restarts}; give 0 or more.")
        if self.timeout is not None and not 0 < self.timeout < float("inf"):
            raise BadInput(f"--timeout is {self.timeout}; give a number of seconds above 0.")
        if self.max_restarts and ranks == 1:
            raise BadInput("--max-restarts starts failed ranks again, and there are none; give --ranks N too.")
        device = device_for(self.device, ranks - 1, ranks, self.backend)
        backend_for(device, self.backend)
        if device.type == "cpu" and ranks > MOST_PER_CORE * cores():
            raise BadInput(
                f"--ranks is {ranks}, and there are {cores()} cores here: more ranks than cores are slower, and more "
                f"than {MOST_PER_CORE * cores()} are refused."
            )
        if sentence := shared_by(device, ranks):
            typer.echo(f"ptymesh: {sentence}.", err=True)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables from which ranks read these options."""
        from ptymesh.distributed.devices import BACKEND
        from ptymesh.distributed.heartbeat import TIMEOUT
        from ptymesh.distributed.rank_info import INTERFACE

        variables = {BACKEND: self.backend if self.backend != "auto" else None, INTERFACE: self.interface}
        variables[TIMEOUT] = None if self.timeout is None else str(self.timeout)
        return {name: value for name, value in variables.items() if value is not None}


@dataclass(frozen=True)
class MemoryOptions:
    """Options for the layout of the object and the memory of the patterns.

    Attributes:
        layout: of the object over ranks.
        memory_budget: size of each rank's patterns in memory.
        scratch: folder for patterns beyond the budget.
    """

    layout: Annotated[
        str | None, typer.Option(metavar="NAME", help="Object on several ranks: auto, replicated or tiled.")
    ] = None
    memory_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What each rank's patterns may take, e.g. 4GB; else from disk.")
    ] = None
    scratch: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder on a local disk for patterns beyond the budget.")
    ] = None

    @property
    def chosen_options(self) -> dict[str, str]:
        """Options that were given, by name."""
        return {field.name: str(value) for field in fields(self) if (value := getattr(self, field.name)) is not None}

    @property
    def settings(self) -> list[str]:
        """Options as settings of recipe keys, quoted, since a path may look like any YAML value."""
        import json

        return [f"{key}={json.dumps(value)}" for key, value in self.chosen_options.items()]

    @property
    def arguments(self) -> list[str]:
        """Options as arguments of a command line."""
        return [part for name, value in self.chosen_options.items() for part in (f"--{name.replace('_', '-')}", value)]


@contextmanager
def environment_of(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process within this context."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
