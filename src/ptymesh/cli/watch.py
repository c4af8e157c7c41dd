"""ptymesh watch: a page in the browser that shows runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: Variable that says with how many threads numpy's linear algebra works, read when it is loaded.
BLAS_THREADS = "OPENBLAS_NUM_THREADS"
#: Addresses that this machine alone reaches.
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def command(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[DIR...]", help="Folders of runs, or that hold some. [default: .]")
    ] = None,
    port: Annotated[int, typer.Option(help="Port; 0: any that is free.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on; any but 127.0.0.1 lets others in.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Word that the address holds. [default: random]")
    ] = None,
    control: Annotated[
        bool, typer.Option("--control", help="Let the page stop runs, and ask them for checkpoints.")
    ] = False,
    data: Annotated[
        bool,
        typer.Option("--data", help="Read the data that recipes name, wherever they lie, to show patterns of views."),
    ] = False,
) -> None:
    """Show runs in the browser, while they go on and afterwards: pictures, curves, positions, log, recipe.

    The page reads the folders and, without --control, changes nothing. It is served on this machine alone, to whoever
    has the address that is printed.
    """
    from ptymesh.cli.page import require_server
    from ptymesh.errors import BadInput
    from ptymesh.paths import usable

    roots = [usable(folder, "The folder").absolute() for folder in folders or [Path()]]
    for root in roots:
        if not root.is_dir():
            raise BadInput(f"{root} is no folder; give folders of runs, or that hold some.")
    if not 0 <= port < 65536:
        raise BadInput(f"--port is {port}; give 0 to 65535.")
    if token is not None and (len(token) < 8 or not token.isalnum()):
        raise BadInput("--token is too short or holds other signs than letters and digits; give 8 or more, or none.")
    require_server()
    _serve(roots, host, port, token, control=control, data=data)


def _serve(roots: list[Path], host: str, port: int, token: str | None, *, control: bool, data: bool) -> None:
    """Serve the page until the command is stopped.

    Args:
        roots: folders of runs, or that hold some.
        host: address to listen on.
        port: 0 for any.
        token: that the address holds; None for a random one.
        control: True if runs may be asked to stop.
        data: True if data that recipes name may be read.
    """
    import logging
    import os
    import secrets
    import socket

    import uvicorn

    from ptymesh.cli.page import SOCKET, TOKEN
    from ptymesh.errors import BadInput

    # threads of linear algebra that wait for each other in a loop would take the cores of runs beside the page
    is_open = BLAS_THREADS not in os.environ
    os.environ.setdefault(BLAS_THREADS, "1")
    from ptymesh.watch.server import make_app

    if is_open:
        del os.environ[BLAS_THREADS]  # it has been read, and is not for runs that the page starts
    number = os.environ.pop(SOCKET, "")
    if number.isdecimal():  # of a run that shows the page beside it
        listening = socket.socket(fileno=int(number))
    else:
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listening.bind((host, port))
        except OSError as error:
            raise BadInput(f"{host} port {port} cannot be used ({error.strerror}); choose another --port.") from error
    port = listening.getsockname()[1]
    word = token or os.environ.pop(TOKEN, None) or secrets.token_urlsafe(24)
    names = {host, *(LOOPBACK if host in LOOPBACK else ())}
    served = [f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in sorted(names)]
    if host not in LOOPBACK:
        can = "see and stop" if control else "see"
        typer.echo(
            f"Anybody who reaches {host} and has the token can {can} these runs; it goes over the network in clear."
        )
    shown_host = f"[{host}]" if ":" in host else host
    typer.echo(f"Open http://{shown_host}:{port}/?token={word}   (Ctrl-C ends it)")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        make_app(roots, word, served, control=control, data=data),
        log_level="warning",
        access_log=False,
        server_header=False,
    )
    uvicorn.Server(config).run([listening])
