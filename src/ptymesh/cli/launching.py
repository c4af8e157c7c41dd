"""How ranks are started: the options that `run`, `resume` and `launch` share, and the environment that they become."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

Ranks = Annotated[int | None, typer.Option("--ranks", "-n", metavar="N", help="Processes to start on this machine.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:N, xpu or mps.")]
Backend = Annotated[str, typer.Option(metavar="NAME", help="Collectives: auto, gloo, nccl or xccl.")]
Interface = Annotated[
    str | None, typer.Option(metavar="NAME", help="Network interface between nodes, such as eth0 or ib0.")
]
MaxRestarts = Annotated[
    int, typer.Option(metavar="K", help="Start ranks that failed again, up to K times, from the last checkpoint.")
]
BatchTimeout = Annotated[
    float | None, typer.Option(metavar="S", help="Seconds without progress after which a rank hangs (60).")
]
Bind = Annotated[bool, typer.Option("--bind/--no-bind", help="Keep each rank on the cores of one NUMA node.")]


@dataclass(frozen=True)
class Launching:
    """The options, checked where that needs no device."""

    ranks: int | None = None
    device: str = "auto"
    backend: str = "auto"
    interface: str | None = None
    max_restarts: int = 0
    batch_timeout: float | None = None
    bind: bool = True

    def check(self) -> None:
        """Raises BadInput for numbers that cannot be, and for a device or backend that is not there."""
        from ptymesh.errors import BadInput
        from ptymesh.parallel.devices import backend_for, device_for, shared_by

        ranks = 1 if self.ranks is None else self.ranks
        if ranks < 1:
            raise BadInput(f"--ranks is {ranks}; give 1 or more.")
        if self.batch_timeout is not None and not self.batch_timeout > 0:
            raise BadInput(f"--batch-timeout is {self.batch_timeout}; give a number of seconds above 0.")
        if self.max_restarts and ranks == 1:
            raise BadInput("--max-restarts starts failed ranks again, and there are none; give --ranks N too.")
        device = device_for(self.device, ranks - 1, ranks, self.backend)
        backend_for(device, self.backend)
        if said := shared_by(device, ranks):
            typer.echo(f"ptymesh: {said}.", err=True)

    @property
    def environment(self) -> dict[str, str]:
        """What ranks read these options from."""
        from ptymesh.parallel.devices import BACKEND
        from ptymesh.parallel.place import INTERFACE
        from ptymesh.parallel.pulse import BATCH_TIMEOUT

        given = {BACKEND: self.backend if self.backend != "auto" else None, INTERFACE: self.interface}
        given[BATCH_TIMEOUT] = None if self.batch_timeout is None else str(self.batch_timeout)
        return {name: value for name, value in given.items() if value is not None}


@contextmanager
def environment_of(variables: Mapping[str, str]) -> Iterator[None]:
    """Within it, this process has these environment variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
