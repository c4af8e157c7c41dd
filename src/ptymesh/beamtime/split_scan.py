"""Two independent reconstructions of one scan, from every second of its views each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ptymesh.beamtime.batch import POLL_S, end_processes
from ptymesh.beamtime.scan_run import ScanRun
from ptymesh.errors import BadInput, Diverged, Interrupted, PtymeshError
from ptymesh.files import replacing
from ptymesh.io.options import ViewRange
from ptymesh.io.samples import located
from ptymesh.io.series import files_of
from ptymesh.recipe.scans import load_scan
from ptymesh.recipe.schema import Recipe

#: Names of the folders of the two halves.
HALVES = ("half-1", "half-2")
#: Fewest views that are halved.
FEWEST_VIEWS = 8


class HalfRun(ScanRun):
    """The run of one half of a scan, whose recipe names the data."""

    def _data_settings(self) -> list[str]:
        return []


class SplitScan:
    """Two reconstructions that have no view, and no random number, in common.

    The first has the views 1, 3, 5 ... of those that the recipe uses, the second one the views 2, 4, 6 ... and the next
    seed. All else is the recipe's. The same call goes on where an earlier one was stopped, and runs again what has
    another recipe or other data.

    Args:
        recipe: of the whole scan, with its stages.
        out: folder in which each half gets a folder of its own.
        launching: options of `ptymesh run` that do not change what comes out, such as `--ranks 2`.

    Raises:
        BadInput: the recipe leaves its stages open, or counts its first view from the end.
    """

    def __init__(self, recipe: Recipe, out: Path, launching: Sequence[str] = ()) -> None:
        if recipe.auto is not None:
            raise BadInput(
                "stages is auto, and each half would find stages of its own; run the recipe first, and give its result."
            )
        self.recipe, self.out, self.launching = recipe, out, list(launching)
        self.settings = half_settings(recipe)

    def run(self, stop: Callable[[], bool] = lambda: False, say: Callable[[str], None] = lambda line: None) -> None:
        """Run both halves, one after the other.

        Args:
            stop: asked whether to end; the run that is going on then writes a checkpoint.
            say: told of each half that has ended.

        Raises:
            Interrupted: stopped; the same call goes on.
            BadInput: there are too few views.
            BadInput, Diverged, PtymeshError: a half has failed, with its message.
        """
        views = load_scan(self.recipe).views
        if views < FEWEST_VIEWS:
            raise BadInput(f"There are {views} views; {FEWEST_VIEWS} are needed for two halves that overlap.")
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / "recipe.yaml"
        with replacing(path) as temporary:
            temporary.write_text(self.recipe.to_yaml(), encoding="utf-8")
        data = files_of(located(self.recipe.data.path), self.recipe.data.further)[0]
        for name, settings in zip(HALVES, self.settings, strict=True):
            self._run_half(name, HalfRun(data, self.out / name, path, settings, self.launching), stop, say)

    def results(self) -> list[Path]:
        """Return the paths of both results."""
        return [self.out / name / "result.h5" for name in HALVES]

    def _run_half(self, name: str, half: HalfRun, stop: Callable[[], bool], say: Callable[[str], None]) -> None:
        """Run one half, unless that was done."""
        before = half.finished()
        if before is not None:
            say(f"{name}  {before.verdict}, as before")
            return
        began, process = time.monotonic(), half.start(os.getpid())
        try:
            while (status := process.poll()) is None:
                if stop():
                    raise Interrupted(f"Stopped in {name}; the same command goes on.")
                time.sleep(POLL_S)
        finally:
            end_processes([process])
        if status == Interrupted.exit_status:
            raise Interrupted(f"{name} was stopped; the same command goes on.")
        outcome = half.finish(status, time.monotonic() - began)
        if not outcome.verdict:
            kinds = {kind.exit_status: kind for kind in (BadInput, Diverged)}
            raise kinds.get(status, PtymeshError)(f"{name} has no result (status {status}): {outcome.message}")
        say(f"{name}  {outcome.verdict} in {outcome.seconds:.1f} s")


def half_settings(recipe: Recipe) -> list[list[str]]:
    """Return the settings `key=value` by which the recipe of each half differs from the recipe.

    Raises:
        BadInput: the first view is counted from the end.
    """
    scans = {f"scans.{i}.data": one.data for i, one in enumerate(recipe.scans)} or {"data": recipe.data}
    by_half = []
    for half in range(2):
        settings = [f"seed={recipe.seed + half}", "output.figures=false", "output.tiff=false", "output.writers=[]"]
        for key, data in scans.items():
            settings += _half_views(key, data.views, half)
        by_half.append(settings)
    return by_half


def _half_views(key: str, views: ViewRange, half: int) -> list[str]:
    """Return the settings by which the views of one scan are halved.

    Args:
        key: of the scan's data in the recipe.
        views: of the whole scan.
        half: 0 or 1.

    Raises:
        BadInput: the first view is counted from the end.
    """
    start = views.start or 0
    if start < 0:
        raise BadInput(f"{key}.views.start is {start}; count it from the first view, so that the views can be halved.")
    settings = [f"{key}.views.start={start + half * views.step}", f"{key}.views.step={2 * views.step}"]
    if views.central is not None:
        settings.append(f"{key}.views.central={max(1, (views.central + 1 - half) // 2)}")
    return settings
