"""What a run tells those who watch it.

`loss` and `residual` are global, over all ranks; stages count from 0, epochs and batches from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunInfo:
    """What is going to be done.

    stages: (engine, epochs, batches per epoch) of each; window (h, w); object_shape (L, H, W); modes: M;
    out: output folder, None without one; resumed: whether a checkpoint is continued, from `done_epochs` on;
    patterns: how much they are and where they are kept; layout: how the object lies on several ranks, and why;
    balance: of each stage on several ranks, how much of the speed of equal shares its batches leave, at most 1;
    note: what was found damaged in the checkpoint, for the log; findings: what checks of the data have led to.
    """

    stages: list[tuple[str, int, int]]
    views: int
    window: tuple[int, int]
    object_shape: tuple[int, int, int]
    modes: int
    ranks: int
    device: str
    precision: str
    out: Path | None
    resumed: bool
    done_epochs: int
    patterns: str = ""
    layout: str = ""
    note: str = ""
    balance: list[float] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def total_epochs(self) -> int:
        """Epochs of all stages."""
        return sum(epochs for _, epochs, _ in self.stages)


@dataclass(frozen=True)
class BatchReport:
    """A batch is done. `views` counts those seen in this epoch so far, `seconds` the epoch's time so far."""

    stage: int
    epoch: int
    batch: int
    batches: int
    views: int
    seconds: float


@dataclass
class Traffic:
    """What this rank has handed over within batches: all-reduces and messages to single ranks, with their bytes."""

    batches: int = 0
    reductions: int = 0
    bytes_reduced: int = 0
    messages: int = 0
    bytes_sent: int = 0


@dataclass(frozen=True)
class EpochReport:
    """An epoch is done; loss and residual are running values, each view as it was seen in its batch.

    done_epochs and total_epochs count over all stages; held_out is the frozen residual of the views that no update
    sees, None where there are none; changes: how far each unknown has moved (changes.py); noise_floor: the least
    residual that counting explains of a fit, None where that is not known; noise_level: that of the true intensities;
    rate: learning rate where a scheduler changes it, else 0.
    """

    stage: int
    engine: str
    epoch: int
    epochs: int
    loss: float
    residual: float
    seconds: float
    views_per_s: float
    done_epochs: int
    total_epochs: int
    held_out: float | None = None
    changes: Mapping[str, float] = field(default_factory=dict)
    noise_floor: float | None = None
    rate: float = 0.0
    noise_level: float | None = None

    def __str__(self) -> str:
        return (
            f"stage {self.stage + 1} ({self.engine})  epoch {self.epoch}/{self.epochs}  "
            f"loss {self.loss:.6g}  residual {self.residual:.6f}  "
            + (f"held out {self.held_out:.6f}  " if self.held_out is not None else "")
            + f"{self.views_per_s:.0f} views/s"
        )


class Callback:
    """Watches a run, on rank 0. Every method does nothing unless overridden."""

    def start(self, run: RunInfo) -> None:
        """Before the first batch."""

    def batch(self, report: BatchReport) -> None:
        """After each batch."""

    def epoch(self, report: EpochReport) -> None:
        """After each epoch."""

    def saving(self, path: Path) -> None:
        """A checkpoint or result is about to be written."""

    def saved(self, path: Path) -> None:
        """A checkpoint or result was written."""

    def judged(self, verdict: Mapping[str, Any]) -> None:
        """After the result was saved: what is said of it (keys verdict, verdict_sentence, final_residual, ...); of a
        run that has diverged, the verdict alone."""

    def finish(self, outcome: str) -> None:
        """At the end: `done`, `interrupted` or `diverged`."""
