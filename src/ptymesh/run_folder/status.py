"""The file out/status.json: what a run does, how far it is, and that it lives; for those who look at its folder.

Rank 0 writes it beside and renames it, so that who reads it finds all of it, from what the loop tells its watchers: no
rank waits for it, and nothing is asked of a device. It is written at most once a second, and seldom enough that it
takes at most 1 % of the time where the disk is slow.
"""

from __future__ import annotations

import json
import math
import os
import platform
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ptymesh import stopping
from ptymesh.errors import Interrupted
from ptymesh.files import machine
from ptymesh.printable import printable
from ptymesh.run_folder.clock import Clock
from ptymesh.run_folder.reports import BatchReport, EpochReport, RunInfo, StreamReport, Watcher

NAME, RESULT = "status.json", "result.h5"
#: Seconds between two writings, and the largest share of the time that they take.
EVERY_S, SHARE = 1.0, 0.01


class Throttle:
    """Rule for what is done now and then: not more often than so many seconds, and for at most a share of the time.

    Args:
        every_s: least seconds from the end of one to the begin of the next.
        share: largest share of the time.
    """

    def __init__(self, every_s: float, share: float = SHARE) -> None:
        self.every_s, self.share = every_s, share
        self.gap_s, self._next = every_s, -math.inf

    def is_due(self) -> bool:
        """Return True if it may be done now."""
        return time.monotonic() >= self._next

    def count(self, took_s: float) -> None:
        """Note that it was done just now, and took so many seconds."""
        self.gap_s = max(self.every_s, took_s / self.share)
        self._next = time.monotonic() + self.gap_s


class StatusFile(Watcher):
    """Writer of out/status.json.

    Keys: phase (searching, reading, preparing, stage, saving, done; of a live run receiving, finishing once no frame
    follows, saving, done); frames of expected_frames, of a live run; stage of stages, engine, epoch of epochs, batch of
    batches (each from 1); done_epochs of total_epochs; residual of the last epoch; seconds_left; outcome (good, poor,
    failed, interrupted, diverged; null while the run goes on) with its sentence; pid, host, machine; ranks, and of
    each rank rank_peak_bytes, rank_computed_s and rank_waited_s (seconds outside and inside of collectives),
    rank_sent_bytes_per_epoch and rank_received_bytes_per_epoch as of the last checkpoint; started and beat (seconds
    since 1970), and beat_every_s, the longest time between two beats within batches; of a live run the command that
    goes on with it. What is not known is null. A run that is refused leaves the file as it was.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._before: bytes | None = None
        self._throttle = Throttle(EVERY_S)
        self._clock: Clock | None = None
        # a process that is told to stop writes its last words on another thread (stopping.tidying)
        self._lock = threading.Lock()
        self._last_batch = math.inf
        self._engines: list[str] = []
        self._has_begun = False
        now = time.time()
        self._said: dict[str, Any] = dict.fromkeys(
            ("stage", "stages", "engine", "epoch", "epochs", "batch", "batches", "done_epochs", "total_epochs"),
        )
        self._said |= {"frames": None, "expected_frames": None}
        self._said |= {"phase": "reading", "residual": None, "seconds_left": None, "outcome": None, "sentence": None}
        self._said |= {"pid": os.getpid(), "host": platform.node(), "machine": machine(), "ranks": None}
        self._said |= {"rank_peak_bytes": None, "rank_computed_s": None, "rank_waited_s": None}
        self._said |= {"rank_sent_bytes_per_epoch": None, "rank_received_bytes_per_epoch": None}
        self._said |= {"started": now, "beat": now, "beat_every_s": None}

    def entering(self, phase: str, out: Path) -> None:
        """Write that the run searches, or reads."""
        self._open(out)
        self._write(phase=phase)

    def _open(self, out: Path) -> None:
        """Keep what an earlier run in this folder has left, in case this one is refused."""
        if self._path is None:
            self._path = out / NAME
            with suppress(OSError):
                self._before = self._path.read_bytes()

    def start(self, run: RunInfo) -> None:
        """Write what is going to be done; the first batch is still prepared."""
        if run.out is None:
            return
        self._open(run.out)
        self._clock, self._has_begun = Clock(run), True
        self._engines = [engine for engine, _, _ in run.stages]
        self._write(
            phase="preparing",
            stages=len(run.stages),
            done_epochs=run.done_epochs,
            total_epochs=run.total_epochs,
            ranks=run.ranks,
        )

    def batch(self, report: BatchReport) -> None:
        """Write how far the run is, if it is time."""
        if self._clock is None:
            return
        now = time.monotonic()
        between = now - self._last_batch
        self._last_batch = now
        longest = max(self._said["beat_every_s"] or 0.0, between if math.isfinite(between) else 0.0)
        self._said["beat_every_s"] = round(max(longest, self._throttle.gap_s), 3)
        self._clock.at(report.stage, report.epoch, report.batch)
        self._said["batches"] = report.batches
        if self._throttle.is_due():
            self._write(
                phase="stage",
                stage=report.stage + 1,
                engine=self._engines[report.stage],
                epoch=report.epoch,
                epochs=self._clock.per_stage[report.stage][0],
                batch=report.batch,
                seconds_left=self._left(),
            )

    def epoch(self, report: EpochReport) -> None:
        """Take the residual; write if it is time."""
        if self._clock is None:
            return
        changes = {"stage": report.stage + 1, "engine": report.engine, "epoch": report.epoch, "epochs": report.epochs}
        changes |= {"done_epochs": report.done_epochs, "batch": self._said["batches"]}
        changes |= {"residual": report.residual if math.isfinite(report.residual) else None}
        self._said |= {"phase": "stage", "seconds_left": self._left(), **changes}
        if self._throttle.is_due():
            self._write()

    def say_command(self, command: str) -> None:
        """Take the command that goes on with the run once it was stopped, which the next writing says."""
        self._said["command"] = command

    def follow_stream(self, report: StreamReport) -> None:
        """Write how far a live run is, if it is time."""
        self._has_begun |= report.frames > 0
        residual = report.residual
        self._said |= {
            "phase": "finishing" if report.ended else "receiving",
            "engine": report.engine,
            "ranks": report.ranks,
            "frames": report.frames,
            "expected_frames": report.expected,
            "residual": residual if residual is not None and math.isfinite(residual) else None,
        }
        if self._throttle.is_due():
            self._write()

    def end_stream(self, *, followed: bool) -> None:
        """Write that a live run is done, or that its frames are saved; followed: True where another run polishes it."""
        self._end(phase="saving" if followed else "done")

    def _left(self) -> float | None:
        left_s = None if self._clock is None else self._clock.left_s()
        return None if left_s is None else round(left_s, 1)

    def saving(self, path: Path) -> None:
        """Write that the result is being written; of a checkpoint only if it is time."""
        if self._clock is None:
            return
        self._said["phase"] = "saving"
        if path.name == RESULT or self._throttle.is_due():
            self._write()

    def saved(self, path: Path) -> None:
        """Return to the stage: what is written next says so."""
        if self._clock is not None:
            self._said["phase"] = "stage"
            self._last_batch = math.inf  # what came in between says nothing about batches

    def measured(self, ranks: Mapping[str, Sequence[float]]) -> None:
        """Take what each rank has held, computed and waited; it is written with the next beat."""
        self._said |= {name: [round(value, 3) for value in values] for name, values in ranks.items()}

    def judged(self, verdict: Mapping[str, object]) -> None:
        """Take outcome and sentence."""
        self._said |= {"outcome": verdict.get("verdict"), "sentence": verdict.get("verdict_sentence")}

    def finish(self, outcome: str) -> None:
        """Write how the run has ended."""
        if outcome == "done":
            self._end(phase="done")
        elif outcome == "diverged":
            self._end(outcome=outcome)
        else:
            self._end(outcome=outcome, sentence=stopping.sentence())

    def fail(self, error: BaseException) -> None:
        """Write the error with which the run ends, or leave all as it was where a run is refused."""
        if self._said["outcome"] is not None or self._path is None:
            return
        refused = getattr(error, "exit_status", 1) == 2 and not self._has_begun
        if isinstance(error, Interrupted):
            self._end(outcome="interrupted", sentence=printable(str(error)))
            return
        if isinstance(error, KeyboardInterrupt):
            self._end(outcome="interrupted", sentence=stopping.sentence())
            return
        if not refused:
            self._end(outcome="failed", sentence=printable(str(error) or type(error).__name__))
            return
        with self._lock, suppress(OSError):
            if self._before is None:
                self._path.unlink(missing_ok=True)
            else:
                _replace(self._path, self._before)
            self._path = None

    def _end(self, **changes: object) -> None:
        self._write(seconds_left=None, **changes)
        with self._lock:
            self._path = None

    def _write(self, **changes: object) -> None:
        """Write all that is known; a disk that refuses is no reason to fail a run."""
        with self._lock:
            self._said |= {**changes, "beat": time.time()}
            if self._path is None:
                return
            began = time.perf_counter()
            with suppress(OSError):
                _replace(self._path, json.dumps(self._said, indent=1).encode() + b"\n")
            self._throttle.count(time.perf_counter() - began)


def end_silent(out: Path, sentence: str) -> None:
    """Write that a run has failed whose first rank has ended without a last word.

    Args:
        out: output folder of the run.
        sentence: what is known of it.
    """
    path = out / NAME
    with suppress(OSError, ValueError):
        status = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(status, dict) and status.get("outcome") is None and status.get("phase") != "done":
            _replace(path, json.dumps({**status, "outcome": "failed", "sentence": sentence}, indent=1).encode() + b"\n")


def _replace(path: Path, content: bytes) -> None:
    """Write a file beside and rename it; the folder is this run's alone, so that the name beside is free."""
    beside = path.with_name(f"{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    file = os.open(beside, flags, 0o666)
    try:
        try:
            os.write(file, content)
        finally:
            os.close(file)
        os.replace(beside, path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
