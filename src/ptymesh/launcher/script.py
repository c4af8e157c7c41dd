"""`python -m ptymesh.launcher.script SCRIPT ARGUMENTS`: a user's own program, unchanged, as one of our ranks."""

from __future__ import annotations

import os
import runpy
import sys

from ptymesh.distributed.child import prepare_process


def main() -> None:
    """Run the program as `python SCRIPT ARGUMENTS` would."""
    prepare_process()
    del sys.argv[0]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
