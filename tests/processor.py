"""Processor seconds of a command: tests run beside each other, so that a clock says little."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Mapping


def run_until_quick(code: str, limit: float, environment: Mapping[str, str] | None = None) -> tuple[str, float]:
    """Run a program of Python until it takes less than a limit, 20 times at most.

    Args:
        code: the program.
        limit: processor seconds below which it is not run again.
        environment: what it finds in its environment; this process's by default.

    Returns:
        What it printed, and the fewest processor seconds that it took.
    """
    fewest, printed = float("inf"), ""
    for _ in range(20):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        printed = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
        ).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        fewest = min(fewest, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if fewest < limit:
            break
    return printed, fewest
