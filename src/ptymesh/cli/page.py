"""The page of `ptymesh watch` beside a run, in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import subprocess

#: Variables by which the page knows the socket that it answers at, and the word that its address holds.
SOCKET, TOKEN = "PTYMESH_WATCH_SOCKET", "PTYMESH_WATCH_TOKEN"


@dataclass(frozen=True)
class PageOptions:
    """Options for the page beside a run.

    Attributes:
        watch: True to show one.
        control: True if it may stop the run.
        keep_page: True if it stays after the run.
    """

    watch: Annotated[
        bool, typer.Option("--watch", help="Show the run in the browser, at the address that is printed.")
    ] = False
    control: Annotated[
        bool, typer.Option("--control", help="Let the page of --watch stop the run, and ask for checkpoints.")
    ] = False
    keep_page: Annotated[bool, typer.Option("--keep-page", help="Leave the page of --watch there after the run.")] = (
        False
    )

    @contextmanager
    def beside(self, out: Path) -> Iterator[None]:
        """Show the page of a folder within this context, if it was asked for; the run does not wait for it.

        Args:
            out: output folder of the run, which is made.

        Raises:
            BadInput: options contradict each other, or the page cannot be shown.
        """
        from ptymesh.distributed.child import launched
        from ptymesh.distributed.rank_info import world
        from ptymesh.errors import BadInput

        if not self.watch and (self.control or self.keep_page):
            raise BadInput(f"{'--control' if self.control else '--keep-page'} is of the page; give --watch too.")
        if not self.watch or launched() or world().rank:
            yield
            return
        require_server()
        page = self._start(out)
        try:
            yield
        finally:
            if not self.keep_page:
                page.terminate()

    def _start(self, out: Path) -> subprocess.Popen[bytes]:
        """Start the page, which can be opened at once, as its socket listens already."""
        import secrets
        import socket
        import subprocess

        from ptymesh.distributed.child import PARENT
        from ptymesh.distributed.processes import start_python
        from ptymesh.errors import BadInput

        if sys.platform == "win32":
            raise BadInput("--watch is not there on Windows; start `ptymesh watch` beside the run.")
        out.mkdir(parents=True, exist_ok=True)
        token, words = (
            secrets.token_urlsafe(24),
            ["watch", str(out), "--data", *(["--control"] if self.control else [])],
        )
        with socket.create_server(("127.0.0.1", 0)) as listening:
            number, port = listening.fileno(), listening.getsockname()[1]
            # not in the command line, which everybody on this machine can read
            environment = {SOCKET: str(number), TOKEN: token}
            if not self.keep_page:
                environment[PARENT] = str(os.getpid())  # it ends also if this process is killed
            page = start_python(
                "-m",
                "ptymesh",
                *words,
                environment=environment,
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the run
            )
        stays = f"   (it stays; end it with `kill {page.pid}`)" if self.keep_page else ""
        typer.echo(f"Watch at http://127.0.0.1:{port}/?token={token}{stays}")
        sys.stdout.flush()  # also into a file, before the run has ended
        return page


def require_server() -> None:
    """Raise BadInput where what serves the page is not installed."""
    from importlib.util import find_spec

    from ptymesh.errors import BadInput

    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise BadInput(f"The page needs {name}; install ptymesh[watch].")
