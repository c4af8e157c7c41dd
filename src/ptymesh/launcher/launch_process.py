"""`python -m ptymesh.launcher.launch_process RANKS PROGRAM`: the launcher as its own process, which can be killed."""

from __future__ import annotations

import sys

from ptymesh.launcher.rank_processes import launch


def main(ranks: str, *program: str) -> int:
    """Run `python PROGRAM` on so many ranks and return their exit status."""
    return launch((), int(ranks), program=program)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
