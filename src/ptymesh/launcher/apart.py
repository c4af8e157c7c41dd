"""`python -m ptymesh.launcher.apart RANKS PROGRAM`: the launcher, as a process that can be given up."""

from __future__ import annotations

import sys

from ptymesh.launcher.launch import launch


def main(ranks: str, *program: str) -> int:
    """Return the exit status of so many ranks of `python PROGRAM`."""
    return launch((), int(ranks), program=program)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
