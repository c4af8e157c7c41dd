"""Runs of many scans, a few at a time, that go on where an earlier call of the same command has ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ptymesh.beamtime.orientation import orientation_settings
from ptymesh.beamtime.scan_run import ScanOutcome, ScanRun
from ptymesh.beamtime.table import write_table
from ptymesh.errors import BadInput, Interrupted
from ptymesh.launcher.device_shares import share_devices

#: Seconds between two looks at the runs.
POLL_S = 0.05
#: File with a row for each scan.
TABLE = "batch.csv"

Say = Callable[[str], None]


@dataclass(frozen=True)
class BatchOptions:
    """Options of a batch.

    Attributes:
        jobs: number of scans that run at the same time.
        hand_on: True to start scans from the probe of the first one whose result is good.
        hand_on_orientation: True to take how scan and detector lie to each other from that result, too.
        ranks: processes that work on each scan together.
        device: that they compute on, by name.
    """

    jobs: int = 1
    hand_on: bool = True
    hand_on_orientation: bool = False
    ranks: int = 1
    device: str = "auto"


class ScanBatch:
    """One recipe over many scans.

    The probe that is handed on is that of the first good scan in the order of the names, for all that follow it, so
    that neither the number of jobs nor an interruption changes what comes out: scans run one by one until one is good.
    Scans that run at the same time share the machine's cores, and each has GPUs of its own as long as there are enough.

    Args:
        scans: paths of the data sets, in the order in which they are run.
        out: folder in which each gets a folder of its own.
        recipe: path of the recipe; None: one is found for each scan.
        settings: `key=value`, as after --set.
        options: how scans are run.

    Raises:
        BadInput: two scans would share a folder, or a device is not there.
    """

    def __init__(
        self, scans: Sequence[Path], out: Path, recipe: Path | None, settings: Sequence[str], options: BatchOptions
    ) -> None:
        self.out, self.recipe, self.settings, self.options = out, recipe, list(settings), options
        names = ("--jobs", "--ranks")
        #: Shares of the machine: of a scan that runs alone, and of those that run at the same time.
        self._whole, *_ = share_devices(options.device, 1, options.ranks, names)
        self._shares = share_devices(options.device, options.jobs, options.ranks, names)
        self.scans = dict(zip(folder_names(scans), scans, strict=True))
        #: Outcomes so far, by the name of the folder.
        self.outcomes: dict[str, ScanOutcome] = {}

    def run(self, stop: Callable[[], bool] = lambda: False, say: Say = lambda line: None) -> list[ScanOutcome]:
        """Run all scans that have not been run, and return the outcomes of all, in their order.

        Args:
            stop: asked whether to end; the runs that are going on then write a checkpoint.
            say: told of each scan that has ended.

        Raises:
            Interrupted: stopped; the same command goes on.
        """
        waiting, running, handed = list(self.scans), dict[str, tuple[ScanRun, subprocess.Popen[bytes], float]](), None
        searching = self.options.hand_on or self.options.hand_on_orientation
        free = list(range(self.options.jobs))
        places: dict[str, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < (1 if searching else self.options.jobs):
                    name = waiting.pop(0)
                    one = self._run_of(name, handed)
                    if (before := one.finished()) is not None:
                        self._record_outcome(name, before, say, is_repeated=True)
                        if searching and before.is_good:
                            searching, handed = False, self.out / name / "result.h5"
                        continue
                    places[name] = free.pop(0)
                    share = self._whole if searching else self._shares[places[name]]
                    running[name] = one, one.start(os.getpid(), share.environment), time.monotonic()
                    if searching:
                        break
                for name, (one, process, began) in list(running.items()):
                    status = process.poll()
                    if status is None:
                        continue
                    del running[name]
                    free.append(places.pop(name))
                    if status == Interrupted.exit_status:
                        raise Interrupted(f"{self.scans[name]} was stopped; the same command goes on with it.")
                    self._record_outcome(name, one.finish(status, time.monotonic() - began), say)
                    if searching and self.outcomes[name].is_good:
                        searching, handed = False, self.out / name / "result.h5"
                if stop():
                    raise Interrupted(
                        f"Stopped after {len(self.outcomes)} of {len(self.scans)} scans; the same command goes on."
                    )
                time.sleep(POLL_S if running else 0)
        finally:
            end_processes([process for _, process, _ in running.values()])
        return [self.outcomes[name] for name in self.scans]

    def _run_of(self, name: str, handed: Path | None) -> ScanRun:
        """Return the run of a scan.

        Args:
            name: of its folder.
            handed: result whose probe and orientation it takes, as far as they are handed on; None: the recipe's own.
        """
        settings = list(self.settings)
        if handed is not None and self.options.hand_on:
            settings.append(f"probe.start={{kind: result, path: {str(handed.absolute())!r}}}")
        if handed is not None and self.options.hand_on_orientation:
            settings += orientation_settings(handed)
        launching = ["--device", self.options.device.partition(":")[0]]
        launching += ["--ranks", str(self.options.ranks)] if self.options.ranks > 1 else []
        return ScanRun(self.scans[name], self.out / name, self.recipe, settings, launching)

    def _record_outcome(self, name: str, outcome: ScanOutcome, say: Say, *, is_repeated: bool = False) -> None:
        """Keep an outcome, write the table and say what came out; again: it was there before."""
        self.outcomes[name] = outcome
        write_table([self.outcomes[one] for one in self.scans if one in self.outcomes], self.out / TABLE)
        times = "" if outcome.times_noise is None else f", {outcome.times_noise:.2f} times what counting leaves"
        sentence = (
            f"{outcome.verdict}{times}"
            if outcome.verdict
            else f"status {outcome.status}: {outcome.message.rstrip('.')},"
        )
        before = ", as before" if is_repeated else f" in {outcome.seconds:.1f} s"
        say(f"{len(self.outcomes)}/{len(self.scans)}  {name}  {sentence}{before}")


def end_processes(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask processes to stop, and wait until they have written a checkpoint."""
    for process in processes:
        with suppress(OSError):
            process.send_signal(signal.SIGTERM)
    for process in processes:
        process.wait()


def natural_order(path: Path) -> tuple[object, ...]:
    """Return a key by which scan2 comes before scan10."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", str(path)) if part
    )


def folder_names(scans: Sequence[Path]) -> list[str]:
    """Return the name of the folder of each scan: that of its file without the ending.

    Raises:
        BadInput: there are none, or two have the same name.
    """
    if not scans:
        raise BadInput("There are no scans; give data sets, or a pattern such as 'scans/*.cxi'.")
    names = [scan.stem for scan in scans]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise BadInput(
                f"{scans[names.index(name)]} and {scans[index]} would both get the folder {name}; run them by two "
                f"commands with another --out each."
            )
    return names
