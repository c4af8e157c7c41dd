"""`ptymesh` and `python -m ptymesh`: the command line; also what the launcher starts on every rank.

A run answers signals from its first moment, so that this comes before the command line's own imports.
"""

import gc
import os
import sys

from ptymesh import stopping
from ptymesh.distributed.child import settle


def main() -> None:
    """Entry point."""
    if stopping.wanted(sys.argv[1:]):
        stopping.watch(speaks=first_rank())
        gc.disable()  # what is imported stays: to look through it time and again takes a fifth of the start
    settle()
    if "--debug" not in sys.argv:  # torch says at length what is lost with a rank; we say it in a sentence
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from ptymesh.cli.main import main as command_line

    try:
        command_line()
    finally:
        gc.freeze()  # else Python looks through all that torch and numba have made, again and again, before it ends


def first_rank() -> bool:
    """Whether this process speaks for all ranks; what is odd in the environment is told later."""
    from ptymesh.distributed.rank_info import world
    from ptymesh.errors import BadInput

    try:
        return world().rank == 0
    except BadInput:
        return True


if __name__ == "__main__":
    main()
