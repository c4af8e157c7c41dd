"""Data are looked at before they are believed: the checks of ptymesh.io.prepare.checks, on the ranks of a run.

h, w    window pixels

The first rank decides and the others hear of it, so that all decide the same. Each rank looks at its own patterns, as
it reads them; what they gather is summed exactly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from ptymesh.distributed.exact import Reduction
from ptymesh.distributed.world import World
from ptymesh.io.prepare.checks import (
    check_marks,
    check_near_field,
    check_patterns,
    check_scan,
)
from ptymesh.io.prepare.findings import Findings, apply_findings, checked_options
from ptymesh.io.prepare.outliers import regions_of
from ptymesh.io.prepare.survey import Gathering, Survey
from ptymesh.io.source import slabs
from ptymesh.measurement import NO_CHECKS, Measurement, PatternSource
from ptymesh.recipe.scans import load_scan, load_scans
from ptymesh.recipe.schema import Recipe

#: What ranks do while they look at the data, for messages.
READING = "reading the data"


def to_stderr(sentence: str) -> None:
    """Print a sentence about what checks of the data have led to."""
    print(f"ptymesh: {sentence}", file=sys.stderr, flush=True)


def check_before_reading(
    scan: Measurement, world: World, *, related: bool = True, near_field: bool = True
) -> tuple[Measurement, list[str]]:
    """Check positions and units, and a few patterns. Collective.

    Args:
        scan: what is going to be reconstructed.
        world: the ranks.
        related: False where positions say nothing of what views share (single exposures).
        near_field: False where a near field that nobody says is looked for otherwise.

    Returns:
        The scan without views that lie far from all others, and without pixels that never hold data; and what was
        found, one sentence each.

    Raises:
        BadInput: positions or units cannot be.
    """
    sentences: list[str] = []
    looks = [check_scan, check_marks] if related else [check_marks]
    looks += [check_near_field] if related and near_field else []
    for look in looks:
        findings = _agreed(world, scan, partial(look, scan))
        scan = apply_findings(scan, findings)
        sentences += findings.sentences
    return scan, sentences


def check_after_reading(
    scan: Measurement, gathered: Gathering, mean: np.ndarray, world: World, *, related: bool = True
) -> Findings:
    """Decide about views and pixels by all patterns. Collective.

    Args:
        scan: what was read.
        gathered: of the views that this rank has read.
        mean: (h, w) mean pattern of all views, where values without data count as zero.
        world: the ranks.
        related: False where positions say nothing of what views share (single exposures).
    """
    pattern_survey = merged(gathered, world).survey(mean)
    return _agreed(world, scan, lambda: check_patterns(scan, pattern_survey, related=related))


def checked_scan(
    scan: Measurement, world: World, *, related: bool = True, near_field: bool = True
) -> tuple[Measurement, list[str]]:
    """Return a scan as checks leave it, and their sentences. Collective.

    Patterns are read once for this, each by one rank.

    Args:
        scan: as it was read.
        world: the ranks.
        related: False where positions say nothing of what views share (single exposures).
        near_field: False where a near field that nobody says is looked for otherwise.

    Raises:
        BadInput: the data cannot be.
    """
    if not is_to_be_checked(scan):
        return scan, []
    scan, sentences = check_before_reading(scan, world, related=related, near_field=near_field)
    pattern_survey = world.on_all_ranks(lambda: _read(scan, world), READING)
    findings = _agreed(world, scan, lambda: check_patterns(scan, pattern_survey, related=related))
    return apply_findings(scan, findings), [*sentences, *findings.sentences]


def checked_scans(
    scans: Sequence[Measurement], world: World, *, related: bool = True, near_field: bool = True
) -> tuple[list[Measurement], list[str]]:
    """Return each of several scans as checks of it alone leave it, and their sentences. Collective.

    Args:
        scans: before they are joined.
        world: the ranks.
        related: False where positions say nothing of what views share (single exposures).
        near_field: False where a near field that nobody says is looked for otherwise, or patterns may look like one.

    Raises:
        BadInput: the data cannot be.
    """
    checked = [checked_scan(scan, world, related=related, near_field=near_field) for scan in scans]
    named = [f"{scan.name}: {sentence}" for scan, sentences in checked for sentence in sentences]
    return [scan for scan, _ in checked], named


def checked_recipe(recipe: Recipe, world: World) -> tuple[Recipe, list[str]]:
    """Return the recipe whose `data.checked` says what checks have decided, and their sentences. Collective.

    Patterns are read once for this, each by one rank; those of several scans are looked at scan by scan.

    Raises:
        BadInput: the data cannot be.
    """
    related = "rpi" not in recipe.optics
    if not recipe.scans:
        before = world.on_all_ranks(lambda: load_scan(recipe), READING)
        # a near field is looked for by whoever asks for this
        scan, sentences = checked_scan(before, world, related=related, near_field=False)
        return (record_checks(recipe, scan, before) if is_to_be_checked(before) else recipe), sentences
    scans_read = world.on_all_ranks(lambda: load_scans(recipe), READING)
    scans, sentences = checked_scans(scans_read, world, related=related)
    checked = [
        one.model_copy(update={"data": checked_options(one.data, scan, before)}) if is_to_be_checked(before) else one
        for one, scan, before in zip(recipe.scans, scans, scans_read, strict=True)
    ]
    return recipe.model_copy(update={"scans": tuple(checked), "data": checked[0].data}), sentences


def record_checks(recipe: Recipe, scan: Measurement, before: Measurement) -> Recipe:
    """Return the recipe with the decisions of checks, so that whoever reads the data by it needs no checks.

    Args:
        recipe: whose `data.checked` is set.
        scan: the scan after the checks.
        before: the scan before them.
    """
    return recipe.model_copy(update={"data": checked_options(recipe.data, scan, before)})


def is_to_be_checked(scan: Measurement) -> bool:
    """Return True if any check is wanted."""
    return scan.checks != NO_CHECKS


def needs_patterns(scan: Measurement) -> bool:
    """Return True if a check is wanted that looks at patterns."""
    return not (scan.checks.views == scan.checks.pixels == "off")


class WatchedSource:
    """Patterns that are added to a survey as they are read."""

    def __init__(self, source: PatternSource, gathering: Gathering) -> None:
        self.source, self.gathering = source, gathering

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, h, w)."""
        return self.source.shape

    @property
    def dtype(self) -> np.dtype:
        """Type of the patterns."""
        return self.source.dtype

    def read(self, views: np.ndarray) -> np.ndarray:
        """Return patterns (len(views), h, w)."""
        counts = self.source.read(views)
        self.gathering.add(np.asarray(views), counts)
        return counts


def watched(scan: Measurement) -> tuple[Measurement, Gathering]:
    """Return the same scan, whose patterns are each to be read once, and the gathering that this fills."""
    gathering = Gathering(scan, with_sum=False)
    return replace(scan, patterns=WatchedSource(scan.patterns, gathering)), gathering


def merged(gathered: Gathering, world: World) -> Gathering:
    """Return what all ranks have gathered. Collective."""
    if world.size == 1:
        return gathered
    device = world.device

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.float64)).to(device)

    # sums in float64 are exact here: whole numbers below 2^53, or values of one view with zeros of other ranks
    sums = [tensor(gathered.totals), tensor(gathered.seen), tensor(np.array([float(gathered.zeros)]))]
    if gathered.total is not None:
        sums.append(tensor(gathered.total))
    least = np.where(np.isfinite(gathered.least), gathered.least, np.finfo(np.float64).max)
    most = [tensor(-least), tensor(gathered.most), tensor(np.array([gathered.peak, float(not gathered.whole)]))]
    totals, seen, zeros, *total = (summed.cpu().numpy() for summed in world.sum(*sums))
    negative, largest, (peak, broken) = (summed.cpu().numpy() for summed in world.max(*most))
    at_peak = tensor(np.array([float(gathered.at_peak) if gathered.peak == peak else 0.0]))
    gathering = Gathering(gathered.measurement, with_sum=bool(total))
    gathering.totals, gathering.seen, gathering.zeros = totals, seen.astype(np.int64), int(zeros[0])
    gathering.total = total[0] if total else None
    gathering.least = np.where(negative > -np.finfo(np.float64).max, -negative, np.inf)
    gathering.most, gathering.peak, gathering.whole = largest, float(peak), not broken
    gathering.at_peak = int(world.sum(at_peak)[0].item())
    return gathering


def _read(scan: Measurement, world: World) -> Survey:
    """Return the survey of one pass over all patterns, each read by one rank. Collective."""
    h, w = scan.window
    are_integers = scan.patterns.dtype.kind in "biu"
    gathering = Gathering(scan, with_sum=are_integers)
    exact = ExactMean(scan) if not are_integers else None
    local_views = np.array_split(np.arange(scan.views), world.size)[world.rank]
    for part in slabs(len(local_views), h * w * 16):
        counts = scan.patterns.read(local_views[part])
        gathering.add(local_views[part], counts)
        if exact is not None:
            exact.add(counts)
        world.heartbeat.moves += 1
    return merged(gathering, world).survey(None if exact is None else exact.mean(world))


class ExactMean:
    """Mean pattern of all views whose bits do not depend on who has read which."""

    def __init__(self, scan: Measurement) -> None:
        self.scan, self.sums = scan, Reduction(scan.window, torch.device("cpu"))

    def add(self, counts: np.ndarray) -> None:
        """Add patterns (n, h, w)."""
        self.sums.add(torch.from_numpy(np.where((counts >= 0) & self.scan.mask, counts, 0).astype(np.float64)))

    def mean(self, world: World) -> np.ndarray:
        """Return the mean pattern, (h, w). Collective."""
        total = self.sums.read(world.sum(self.sums.local.to(world.device))[0].cpu())
        return np.asarray((total / self.scan.views).numpy())


def _agreed(world: World, scan: Measurement, look: Callable[[], Findings]) -> Findings:
    """Return what the first rank finds. Collective; where it raises, all do."""

    def describe() -> list[object]:
        findings = look()
        return [findings.left_out.tolist(), regions_of(findings.masked), findings.done, findings.doubts]

    left_out, regions, sentences, doubts = world.decide_on_first_rank(describe, READING)
    masked = np.zeros(scan.window, bool)
    for top, bottom, left, right in regions:
        masked[top:bottom, left:right] = True
    return Findings(np.array(left_out, np.int64), masked, tuple(sentences), doubts=tuple(doubts))
