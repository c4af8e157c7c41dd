"""Views per second of engines, batches, modes and sub-pixel methods.

Every case is a reconstruction as users run it. Its first epoch, which compiles and fills caches, is timed apart; speeds
are those of the median of the others.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch

from ptymesh.distributed.devices import device_for
from ptymesh.distributed.world import Solo
from ptymesh.engines import ENGINES
from ptymesh.errors import BadInput
from ptymesh.estimate import BLOCK
from ptymesh.files import replacing
from ptymesh.measurement import NO_CHECKS, Measurement
from ptymesh.physics.model import Subpixel
from ptymesh.recipe.initial import MARGIN_PX
from ptymesh.run import machine
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run_folder.reports import EpochReport
from ptymesh.simulate import simulate

SUBPIXEL: tuple[Subpixel, ...] = ("none", "fourier", "bilinear")
Precision = Literal["single", "double"]


@dataclass(frozen=True)
class Case:
    """One combination that is measured; the scan is spread over an object of `side` pixels, None for its own."""

    engine: str
    window: int | None
    modes: int
    batch: int
    subpixel: Subpixel
    side: int | None


@dataclass(frozen=True)
class Speed:
    """Speed of a case, its memory and its residual.

    seconds: of each epoch after the first; views_per_s, view_modes_per_s: of the median one; peak_bytes:
    memory; residual: running one of the last epoch; object: pixels (y, x).
    """

    engine: str
    window: tuple[int, int]
    modes: int
    batch: int
    subpixel: str
    views: int
    object: tuple[int, int]
    first_epoch_s: float
    seconds: list[float]
    views_per_s: float
    view_modes_per_s: float
    peak_bytes: int
    residual: float


@dataclass(frozen=True)
class Plan:
    """Combinations to measure.

    Attributes:
        engines, modes, batches, subpixel: at least one each.
        windows: of the simulated scans (one each), or empty with a scan of one's own.
        sides: of the object, or empty to leave the scans as they are.
        epochs: that are timed, after one that is not.
        views: of simulated scans.  device: auto, cpu, cuda ...  precision: single or double.
        threads: of the CPU, None for torch's own choice.
        turns: whether cases take turns, epoch by epoch, so that their ratios hold on a machine whose speed changes.
            All are in memory together then, and each one's peak is that of all.
    """

    engines: tuple[str, ...]
    modes: tuple[int, ...] = (1, 4)
    batches: tuple[int, ...] = (64,)
    subpixel: tuple[Subpixel, ...] = ("none", "fourier")
    windows: tuple[int, ...] = (128,)
    sides: tuple[int, ...] = ()
    epochs: int = 5
    views: int = 512
    device: str = "auto"
    precision: Precision = "single"
    threads: int | None = None
    turns: bool = False

    def __post_init__(self) -> None:
        for name in self.engines:
            if name not in ENGINES:
                raise BadInput(f"There is no engine {name!r} to measure; there are {', '.join(ENGINES)}.")
        for name in self.subpixel:
            if name not in SUBPIXEL:
                raise BadInput(f"There is no sub-pixel method {name!r}; give {', '.join(SUBPIXEL)}.")
        if self.precision not in ("single", "double"):
            raise BadInput(f"The precision is {self.precision!r}; give single or double.")
        for name in ("modes", "batches", "windows", "sides"):
            if any(value < 1 for value in getattr(self, name)):
                raise BadInput(f"Among the {name} is {min(getattr(self, name))}; give numbers of 1 or more.")
        for name in ("epochs", "views", "threads"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BadInput(f"{name} is {value}; give 1 or more.")

    def cases(self, own_scan: bool) -> list[Case]:
        """Return all combinations, in the order of the table."""
        windows: Sequence[int | None] = (None,) if own_scan else self.windows
        sides: Sequence[int | None] = self.sides or (None,)
        return [
            Case(engine, window, modes, batch, subpixel, side)
            for window, side, engine, subpixel, modes, batch in itertools.product(
                windows, sides, self.engines, self.subpixel, self.modes, self.batches
            )
        ]


def bench(plan: Plan, scan: Measurement | None = None, *, busy_ok: bool = False) -> Iterator[Speed | dict[str, object]]:
    """Measure a plan; yield a description of the machine, then the speed of each case as it is done.

    Args:
        plan: the combinations.
        scan: a scan of one's own, None to simulate them.
        busy_ok: True to measure although other processes keep the machine busy.

    Raises:
        BadInput: The machine is busy, or the plan does not fit the scan.
    """
    device = device_for(plan.device, 0)
    load = machine.load_of_others()[0] if busy_ok else machine.refuse_if_busy()
    before = torch.get_num_threads()
    torch.set_num_threads(plan.threads or before)
    try:
        yield {
            "machine": machine.describe(device, torch.get_num_threads()) | {"cores_busy_with_others": round(load, 2)},
            "turns": plan.turns,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        scans = scans_of(plan, scan)
        cases = plan.cases(scan is not None)
        for group in [cases] if plan.turns else [[case] for case in cases]:
            beside = [Measured(case, plan, scans(case), device) for case in group]
            for _, measured in itertools.product(range(plan.epochs + 1), beside):
                measured.step()
            yield from (measured.speed() for measured in beside)
    finally:
        torch.set_num_threads(before)


class Measured:
    """One case: an epoch to warm up, then those that are timed.

    Args:
        case: what is measured.
        plan: how.
        scan: of the case.
        device: that computes.
    """

    def __init__(self, case: Case, plan: Plan, scan: Measurement, device: torch.device) -> None:
        self.case, self.scan, self.device = case, scan, device
        self.recon = Reconstruction(
            replace(scan, checks=NO_CHECKS),  # spread over a large object, its views need not overlap
            probe_modes=case.modes,
            subpixel=case.subpixel,
            precision=plan.precision,
            device=Solo(device),
        )
        self.epochs = self.recon.run(ENGINES[case.engine](epochs=plan.epochs + 1, batch=case.batch))
        self.reports: list[EpochReport] = []
        self.peaks: list[int] = []

    def step(self) -> None:
        """Run one epoch."""
        machine.forget_peak(self.device)  # what was allocated between the epochs does not count
        self.reports.append(next(self.epochs))
        self.peaks.append(machine.peak_bytes(self.device))

    def speed(self) -> Speed:
        """Return the speed of all epochs but the first."""
        case, scan = self.case, self.scan
        seconds = [report.seconds for report in self.reports[1:]]
        views_per_s = scan.views / statistics.median(seconds)
        shape = self.recon.state.estimate.object.shape
        return Speed(
            engine=case.engine,
            window=scan.window,
            modes=case.modes,
            batch=case.batch,
            subpixel=case.subpixel,
            views=scan.views,
            object=(shape[-2], shape[-1]),
            first_epoch_s=self.reports[0].seconds,
            seconds=seconds,
            views_per_s=views_per_s,
            view_modes_per_s=views_per_s * case.modes,
            peak_bytes=max(self.peaks),
            residual=self.reports[-1].residual,
        )


def save(path: Path, about: dict[str, object], speeds: list[Speed]) -> None:
    """Write all numbers as JSON.

    Args:
        path: of the file.
        about: the machine, as `bench` yields it first.
        speeds: of all cases.

    Raises:
        BadInput: The file cannot be written.
    """
    text = json.dumps({**about, "cases": [asdict(speed) for speed in speeds]}, indent=1)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def spread_views(scan: Measurement, side: int) -> Measurement:
    """Pull a scan apart until its object has `side` pixels; each view stays as it is, so neighbours share less.

    Raises:
        BadInput: The object is too small for the scan.
    """
    if side % BLOCK:
        raise BadInput(f"An object of {side} pixels is not a whole number of blocks; give a multiple of {BLOCK}.")
    extent = np.ptp(scan.positions, axis=0)
    border = np.array(scan.window) + 2 * (MARGIN_PX + 1)
    free = side - border
    if (free < extent).any():
        need = -(-int((extent + border).max()) // BLOCK) * BLOCK
        raise BadInput(f"The scan does not fit an object of {side} pixels; give {need} or more.")
    middle = scan.positions.min(axis=0) + extent / 2
    return replace(scan, positions=(scan.positions - middle) * (free / np.maximum(extent, 1e-12)))


def scans_of(plan: Plan, own_scan: Measurement | None) -> Callable[[Case], Measurement]:
    """Return a function that returns the scan of a case; each window is simulated once."""
    by_window: dict[int | None, Measurement] = {} if own_scan is None else {None: own_scan}

    def scan(case: Case) -> Measurement:
        if case.window not in by_window:
            by_window[case.window] = simulate(views=plan.views, window=cast(int, case.window)).measurement
        scan_of_window = by_window[case.window]
        return scan_of_window if case.side is None else spread_views(scan_of_window, case.side)

    return scan
