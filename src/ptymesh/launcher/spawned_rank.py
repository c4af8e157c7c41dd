"""Rank of `ptymesh.spawn`, as `python -m ptymesh.launcher.spawned_rank`: it runs a function and returns its result."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Client
from types import ModuleType

from ptymesh.distributed.child import prepare_process
from ptymesh.errors import PtymeshError

#: Variables set by `spawn`: the address at which it listens, and the key that authenticates its ranks.
ADDRESS, KEY = "PTYMESH_SPAWN_ADDRESS", "PTYMESH_SPAWN_KEY"


def import_cloudpickle() -> ModuleType:
    """Return the module cloudpickle: numba's copy, or the package of that name where numba cannot be imported.

    Raises:
        PtymeshError: neither can be imported.
    """
    with suppress(ImportError):
        from numba import cloudpickle

        return cloudpickle
    try:
        return import_module("cloudpickle")
    except ImportError as error:
        raise PtymeshError(
            "ptymesh.spawn sends functions by cloudpickle, and neither it nor numba, which brings it, can be imported: "
            "pip install cloudpickle."
        ) from error


def main() -> int:
    """Run the function that `spawn` sends, send back its result, and return the exit status 0."""
    prepare_process()
    cloudpickle = import_cloudpickle()

    host, port = os.environ.pop(ADDRESS).rsplit(":", 1)
    with Client((host, int(port)), authkey=bytes.fromhex(os.environ.pop(KEY))) as pipe:
        pipe.send(int(os.environ["RANK"]))
        function, arguments, folders = cloudpickle.loads(pipe.recv_bytes())
        sys.path[:] = folders
        answer = function(*arguments)  # its errors go through sys.excepthook, as in a program
        pipe.send_bytes(cloudpickle.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
