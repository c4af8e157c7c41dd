"""Options of a live reconstruction, and numbers on how it went.

N       frames
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LiveOptions:
    """Options of a live reconstruction.

    Attributes:
        uses: least number of updates that see each view.
        timeout_s: seconds without an answer of the source after which the command ends; None: it waits.
        admissions: of a run that is replayed, for each segment the number of frames, and True if none followed.
        followed: True where another run goes on in the folder, so that its status does not say that all is done.
        command: that goes on with the run once it was stopped, for its status; empty where a program runs it.
    """

    uses: int = 3
    timeout_s: float | None = None
    admissions: tuple[tuple[int, bool], ...] = ()
    followed: bool = False
    command: str = ""


@dataclass
class LiveOutcome:
    """Outcome of a live reconstruction.

    Attributes:
        views: number of frames.
        uses: (N,) int64, updates that have seen each view.
        uses_at_end: (N,) int64, the same when the last frame had come.
        latencies_s: seconds from the arrival of each frame to the end of the segment that used it first.
        seconds: from the first frames to the end.
        after_s: seconds from the last frame to the end.
        all_seen_after_s: seconds from the last frame until each had been used once.
        updates_per_s: views per second that updates have seen.
        cpu_s_per_update: seconds of this process's time on the processor for each, receiving and writing included.
    """

    views: int
    uses: np.ndarray
    uses_at_end: np.ndarray
    latencies_s: np.ndarray
    seconds: float
    after_s: float
    all_seen_after_s: float
    updates_per_s: float
    cpu_s_per_update: float

    def summary(self) -> dict[str, object]:
        """Return what live.json holds: numbers alone; latencies are None where no frame has come to this process."""
        latencies_s = self.latencies_s
        return {
            "views": self.views,
            "uses": {"least": int(self.uses.min()), "mean": float(self.uses.mean())},
            "uses_at_end_of_stream": {"least": int(self.uses_at_end.min()), "mean": float(self.uses_at_end.mean())},
            "latency_median_s": float(np.median(latencies_s)) if len(latencies_s) else None,
            "latency_95_s": float(np.quantile(latencies_s, 0.95)) if len(latencies_s) else None,
            "seconds": self.seconds,
            "after_s": self.after_s,
            "all_seen_after_s": self.all_seen_after_s,
            "views_per_s": self.updates_per_s,
            "cpu_s_per_view": self.cpu_s_per_update,
        }
