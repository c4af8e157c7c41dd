"""`ptymesh` and `python -m ptymesh`: the command line; also what the launcher starts on every rank.

A run answers signals from its first moment, so that this comes before the command line's own imports.
"""

import contextlib
import gc
import os
import sys

from ptymesh import stopping
from ptymesh.cli.streams import open_closed_streams
from ptymesh.distributed.child import settle


def main() -> None:
    """Entry point."""
    open_closed_streams()  # before anything opens a file
    ignore_working_folder()
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


def ignore_working_folder() -> None:
    """Import nothing from the working folder, where data lie, and take no machine code from there.

    `python -m` puts it first in sys.path, and numba reads in its `.numba_config.yaml` where compiled functions are
    kept, which are pickles; the environment goes before that file.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with contextlib.suppress(OSError):  # there is no working folder any more
        if sys.path and not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()) and os.getcwd() != home:
            del sys.path[0]
    os.environ.setdefault("NUMBA_CACHE_DIR", "")


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
