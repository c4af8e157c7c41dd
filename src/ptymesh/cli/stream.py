"""ptymesh stream: play a data set as a detector would, for `ptymesh live`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ptymesh.measurement import Measurement

#: Ways in which frames are sent.
PROTOCOLS = ("plain", "dectris")


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Data set, or a recipe that names one.")],
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Where to listen, such as tcp://127.0.0.1:5599 or ipc://PATH.")
    ],
    rate: Annotated[float, typer.Option(metavar="HZ", help="Frames per second.")] = 1000.0,
    protocol: Annotated[str, typer.Option(help="plain, or dectris (Stream V2; positions go to a file).")] = "plain",
    positions_to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With dectris: new text of the positions. [default: beside the data set]"),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="data.KEY=VALUE or positions.KEY=VALUE.")
    ] = None,
) -> None:
    """Play a data set as a detector would, to one `ptymesh live` that takes its frames; then end.

    All patterns are read first, and sent as `data` prepares them. Masks are not sent: name them in the live recipe.
    """
    from ptymesh.cli.dataset import load_dataset
    from ptymesh.cli.launching import refuse_ranks
    from ptymesh.errors import BadInput
    from ptymesh.paths import usable

    refuse_ranks("stream")
    check_stream(rate, protocol)
    if positions_to is not None and protocol == "plain":
        raise BadInput("--positions-to is for --protocol dectris, whose frames have no positions; leave it out.")
    positions_path = (
        file.with_suffix(".positions.txt") if positions_to is None else usable(positions_to, "--positions-to")
    )
    if positions_to is not None and positions_path.is_file():
        raise BadInput(f"--positions-to is {positions_path}, which exists; name another file, or remove it.")
    play(load_dataset(file, set_ or []), address, rate, protocol, positions_path)


def check_stream(rate: float, protocol: str) -> None:
    """Raise BadInput where frames cannot be sent so.

    Args:
        rate: frames per second.
        protocol: plain or dectris.
    """
    from ptymesh.errors import BadInput

    if not 0 < rate < float("inf"):
        raise BadInput(f"--rate is {rate:g}; give a number of frames per second above 0.")
    if protocol not in PROTOCOLS:
        raise BadInput(f"--protocol is {protocol}; it should be plain or dectris.")


def play(scan: Measurement, address: str, rate: float, protocol: str, positions: Path) -> None:
    """Play a scan to one `ptymesh live`, which asks for its frames.

    Args:
        scan: to be played.
        address: where to listen.
        rate: frames per second.
        protocol: plain or dectris.
        positions: text file for the positions, which dectris does not send.

    Raises:
        BadInput: the address cannot be used, the positions cannot be written, or the scan has no lengths.
    """
    from ptymesh.errors import BadInput
    from ptymesh.live.serving import serve_dectris, serve_scan

    print(f"{address}: {rate:g} frames a second once somebody takes them; Ctrl-C ends it", flush=True)
    if hidden := int((~scan.mask).sum()):
        print(f"{hidden} masked pixels are sent as 0; give the live recipe the mask (data.mask).", flush=True)
    if protocol == "plain":
        serve_scan(scan, address, rate)
        return
    print(f"{positions}: the positions, a line for each frame as it is sent", flush=True)
    try:
        serve_dectris(scan, address, rate, positions)
    except OSError as error:
        raise BadInput(
            f"{positions} cannot be written ({error.strerror}); name another file with --positions-to of `ptymesh "
            "stream`."
        ) from error
