"""Progress of a live run, for those who look at it while its frames arrive."""

from __future__ import annotations

from collections.abc import Sequence

from ptymesh.watch.growing import Row


def summarise_stream(rows: Sequence[Row]) -> Row | None:
    """Return the frames so far, those not used yet, and seconds from arrival to first use; None of other runs.

    Args:
        rows: lines of live.jsonl, or of metrics.jsonl.
    """
    if not rows or not isinstance(rows[-1].get("frames"), int):
        return None
    last = rows[-1]
    latency_s = next(
        (row["latency_s"] for row in reversed(rows) if isinstance(row.get("latency_s"), int | float)), None
    )
    return {"frames": last["frames"], "unseen": last.get("unseen"), "latency_s": latency_s}
