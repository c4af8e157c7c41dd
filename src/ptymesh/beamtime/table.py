"""Table of the scans of a batch, as CSV and for the terminal."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from ptymesh.beamtime.scan_run import ScanOutcome
from ptymesh.files import replacing


def write_table(outcomes: Sequence[ScanOutcome], path: Path) -> None:
    """Write a row for each scan, replacing an earlier table.

    Args:
        outcomes: of the scans, in their order.
        path: of the CSV file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=False) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(ScanOutcome)])
        writer.writeheader()
        writer.writerows(asdict(outcome) for outcome in outcomes)


def summary(outcomes: Sequence[ScanOutcome]) -> str:
    """Return how many scans came out how, in a line."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        word = outcome.verdict or "without a result"
        counts[word] = counts.get(word, 0) + 1
    counts_in_words = ", ".join(f"{count} {word}" for word, count in counts.items())
    return f"{len(outcomes)} scan{'s' * (len(outcomes) != 1)}: {counts_in_words}"
