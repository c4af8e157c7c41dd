"""ptymesh warm: compilation of the kernels now rather than in the first run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class WarmPrecision(StrEnum):
    """Precisions of the waves for which kernels are compiled."""

    SINGLE = "single"
    DOUBLE = "double"
    BOTH = "both"


def command(
    precision: Annotated[WarmPrecision, typer.Option(help="Of the runs to come.")] = WarmPrecision.BOTH,
) -> None:
    """Compile the kernels for this machine's processor, which otherwise takes the first run a minute or two.

    Do it once, after each installation, on a machine of the kind that runs are for. Kernels of GPUs are compiled by
    their first run, in seconds.
    """
    import time

    import torch

    from ptymesh.errors import BadInput
    from ptymesh.kernels import can_compile

    if not can_compile():
        raise BadInput("There is nothing to compile kernels with; install a numba that goes with this numpy.")
    from ptymesh.kernels.cpu import compiling, ready

    if not compiling.places():
        raise BadInput(
            "There is no folder where compiled kernels can be kept; set NUMBA_CACHE_DIR to one that can be written to."
        )
    for name, dtype in (("single", torch.complex64), ("double", torch.complex128)):
        if precision.value not in (name, "both"):
            continue
        began = time.monotonic()
        compiled = ready.make_ready(dtype)
        how = f"compiled in {time.monotonic() - began:.0f} s" if compiled else "there already"
        typer.echo(f"Kernels for {name} precision: {how}")
