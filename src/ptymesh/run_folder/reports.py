"""Reports of a run to those who watch it.

`loss` and `residual` are global, over all ranks; stages count from 0, epochs and batches from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class RunInfo:
    """Description of a run before its first batch.

    Attributes:
        stages: (engine, epochs, batches per epoch) of each.
        views, ranks: their numbers.
        window: (h, w) in pixels.
        object_shape: (L, H, W).
        modes: M.
        device, precision: of the run.
        out: output folder, None without one.
        resumed: True if a checkpoint is continued, from `done_epochs` on.
        patterns: how much they are and where they are kept.
        layout: how the object lies on several ranks, and why.
        note: what was found damaged in the checkpoint, for the log.
        balance: of each stage on several ranks, the share of the speed of equal shares that its batches leave.
        findings: what checks of the data have led to.
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
    """Report after a batch.

    Attributes:
        stage, epoch, batch: that are running.
        batches: of the epoch.
        views: seen in this epoch so far.
        seconds: the epoch's time so far.
    """

    stage: int
    epoch: int
    batch: int
    batches: int
    views: int
    seconds: float


@dataclass
class Traffic:
    """Counts of what this rank has exchanged within batches: all-reduces and messages, with their bytes.

    Attributes:
        batches, epochs: in which this was counted; a batch is its share of an epoch.
        reductions, bytes_reduced: all-reduces and their payload, which a rank sends and receives.
        messages, bytes_sent: messages to single ranks, and their payload.
        bytes_received: payload of the messages from single ranks.
    """

    batches: int = 0
    epochs: float = 0.0
    reductions: int = 0
    bytes_reduced: int = 0
    messages: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    def bytes_per_epoch(self) -> tuple[float, float]:
        """Return the bytes that this rank has sent and received per epoch; zeros before the first batch."""
        epochs = self.epochs or 1.0
        return (self.bytes_sent + self.bytes_reduced) / epochs, (self.bytes_received + self.bytes_reduced) / epochs


@dataclass(frozen=True)
class EpochReport:
    """Report after an epoch; loss and residual are running values, each view as it was seen in its batch.

    Attributes:
        stage, engine, epoch, epochs: that are running.
        loss, residual: as above.
        seconds, views_per_s: of the epoch.
        done_epochs, total_epochs: over all stages.
        held_out: frozen residual of the views that no update sees, None where there are none.
        changes: how far each unknown has moved, by column of the history.
        noise_floor: least residual that counting explains of a fit, None where that is not known.
        noise_level: that of the true intensities, None where that is not known.
        rate: learning rate where a scheduler changes it, else 0.
        note: what was decided after this epoch, a clause without a full stop; else empty.
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
    note: str = ""

    def __str__(self) -> str:
        return (
            f"stage {self.stage + 1} ({self.engine})  epoch {self.epoch}/{self.epochs}  "
            f"loss {self.loss:.6g}  residual {self.residual:.6f}  "
            + (f"held out {self.held_out:.6f}  " if self.held_out is not None else "")
            + f"{self.views_per_s:.0f} views/s"
        )


@dataclass(frozen=True)
class StreamReport:
    """Report on a live run, whose frames arrive while it goes on.

    Attributes:
        engine: makes the updates.
        ranks: number of ranks.
        frames: number of frames that have come.
        expected: number of frames that are to come; None where the source does not say.
        ended: True if none will follow, so that views are used again until each was used often enough.
        residual: of the last segment; None before the first.
    """

    engine: str
    ranks: int
    frames: int
    expected: int | None
    ended: bool
    residual: float | None


class Callback:
    """Watcher of a run, on rank 0. Every method does nothing unless overridden."""

    def entering(self, phase: str, out: Path) -> None:
        """Take note of what is done before the start, which this may fail at.

        Args:
            phase: `searching` (for stages) or `reading`.
            out: output folder of the run.
        """

    def start(self, run: RunInfo) -> None:
        """Look at a run before its first batch."""

    def batch(self, report: BatchReport) -> None:
        """Look at a run after each batch."""

    def epoch(self, report: EpochReport) -> None:
        """Look at a run after each epoch."""

    def saving(self, path: Path) -> None:
        """Prepare for a checkpoint or result that is about to be written."""

    def saved(self, path: Path) -> None:
        """Take note of a checkpoint or result that was written."""

    def measured(self, ranks: Mapping[str, Sequence[float]]) -> None:
        """Take what each rank has held, computed, waited and exchanged so far, which is measured with every checkpoint.

        Args:
            ranks: the attributes `rank_...` of results, a value for each rank.
        """

    def judged(self, verdict: Mapping[str, object]) -> None:
        """Take the verdict on the result after it was saved.

        Args:
            verdict: keys verdict, verdict_sentence, final_residual, ...; the first two alone if the run has diverged.
        """

    def finish(self, outcome: str) -> None:
        """Look at the end of a run, whose outcome is `done`, `interrupted` or `diverged`."""


class Watcher(Callback):
    """Callback that holds something open: `close` lets go of it, however the run ended."""

    def fail(self, error: BaseException) -> None:
        """Take note of the error with which the run ends, if it does not end by itself."""

    def close(self) -> None:
        """Let go of what is open; this may be called at any time, and more than once."""
