"""`ptymesh` and `python -m ptymesh`: the command line; the launcher starts it on every rank.

A run must handle signals from its first moment, so that handlers are installed before the command line is imported.
"""

import contextlib
import gc
import os
import sys

from ptymesh import stopping
from ptymesh.cli.streams import open_closed_streams
from ptymesh.distributed.child import prepare_process


def main() -> None:
    """Run the command line."""
    open_closed_streams()  # before anything opens a file
    ignore_working_folder()
    if stopping.wanted(sys.argv[1:]):
        stopping.watch(speaks=first_rank())
        gc.disable()  # imported objects stay: collecting repeatedly would take a fifth of the start-up time
    prepare_process()
    if "--debug" not in sys.argv:  # torch logs a lost rank at length; we report it in one sentence
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from ptymesh.cli.main import main as command_line

    try:
        command_line()
    finally:
        gc.freeze()  # else Python's last collections go through all objects of torch and numba


def ignore_working_folder() -> None:
    """Remove the working folder, where data lie, from the places that code is loaded from.

    `python -m` puts it first in sys.path, and numba reads from its `.numba_config.yaml` where to load compiled
    functions from, which are pickles; the environment variable takes precedence over that file.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with contextlib.suppress(OSError):  # the working folder has been deleted
        if sys.path and not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()) and os.getcwd() != home:
            del sys.path[0]
    os.environ.setdefault("NUMBA_CACHE_DIR", "")


def first_rank() -> bool:
    """Return True if this process reports for all ranks; a faulty environment is reported later."""
    from ptymesh.distributed.rank_info import world
    from ptymesh.errors import BadInput

    try:
        return world().rank == 0
    except BadInput:
        return True


if __name__ == "__main__":
    main()
