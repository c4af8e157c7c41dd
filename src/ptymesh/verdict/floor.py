"""The noise floor: what counting leaves of the residual sum (sqrt I - sqrt y)^2 / sum y.

f, v    per pixel, E (sqrt y - sqrt I)^2 and Var sqrt y (physics/detector/counting.py)
p       real numbers that were fitted

The true intensities have the residual F = sum f / sum y. A fit of p numbers follows some of the noise, 1/4 of a count's
root for each: its training residual is (sum f - p / 4) / sum y. Below some 3 counts a pixel f is larger than v, as the
mean of sqrt y lies below sqrt I; a fit may lie lower, too, and (sum v - p / 4) / sum y bounds it.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ptymesh.estimate import Estimate
from ptymesh.physics.detector.counting import expected_misfit, expected_spread
from ptymesh.physics.elementwise import over_window
from ptymesh.physics.fidelity import Data
from ptymesh.problem import Problem

#: Counts on a pixel of object or probe, over the whole scan, from which on it is fitted.
LIT_COUNTS = 1.0
#: Share of the spread that fitted numbers may take: as many numbers as data leave no floor to compare with.
MOST_FITTED = 0.5
#: Numbers above which whole ones say nothing, as the dtype holds no others, by bytes of a floating-point number.
ALWAYS_WHOLE = {2: 2.0**9, 4: 2.0**22, 8: 2.0**51}


@dataclass(frozen=True)
class NoiseFloor:
    """Residual that counting leaves.

    Attributes:
        truth: F, residual of the true intensities.
        spread: the same with v in place of f: at most F.
        counts: sum y over all views (estimated from some of them).
    """

    truth: float
    spread: float
    counts: float

    def fitted(self, numbers: float) -> float:
        """Return the least training residual that counting explains once so many real numbers were fitted."""
        return self.spread - min(numbers / 4 / self.counts, MOST_FITTED * self.spread)


def measure_noise_floor(problem: Problem) -> NoiseFloor | None:
    """Return the noise floor, estimated from the counts of some 256 views. Collective.

    Returns:
        None where the patterns hold nothing at all, or no counts: fractions, or multiples of one number above 1.
    """
    is_count, total, views, divisor = True, problem.fields.reduction(3), 0, 0
    for counts in problem.loader.sampled():
        y = Data.of(counts, problem.loader.mask, None, torch.float64).y
        is_count = is_count and are_counts(y, counts.dtype)
        if is_count and divisor != 1:
            integers = y.clamp(max=2.0**62).cpu().numpy().astype(np.int64)
            divisor = int(np.gcd.reduce(integers.ravel(), initial=divisor))
        views += len(y)
        total.add(torch.stack([over_window(term) for term in (expected_misfit(y), expected_spread(y), y)], dim=1))
    (sampled,) = problem.world.sum(torch.tensor(float(views), dtype=torch.float64, device=problem.device))
    if problem.world.agree(not is_count):
        return None
    if math.gcd(*map(int, problem.world.gather_strings(str(divisor)))) > 1:
        return None
    misfit, spread, pixels = (float(number) for number in problem.fields.totals(total)[0])
    if pixels <= 0:
        return None
    return NoiseFloor(misfit / pixels, spread / pixels, pixels * problem.views / float(sampled))


def are_counts(y: Tensor, dtype: torch.dtype) -> bool:
    """Return True if numbers y >= 0 (float64), stored in this dtype, may be counts: whole, where they could be other.

    Numbers so large that the dtype holds no fractions are whole whatever they are.
    """
    if not bool((y == y.round()).all()):
        return False
    return not dtype.is_floating_point or float(y.max()) <= ALWAYS_WHOLE[dtype.itemsize]


def count_fitted(problem: Problem, estimate: Estimate, moved: Set[str], *, phase_only: bool = False) -> int:
    """Return how many real numbers a fit had, pixels without light and exact gauges left out. Collective.

    Args:
        problem: evaluator, fields and layout of the fit.
        estimate: the unknowns.
        moved: names of the unknowns that moved, as the history calls them: object, probe, opr, positions_px, weights,
            background and others.
        phase_only: amplitudes of the object were held.
    """
    (modes, _, _), views, count = estimate.probe.shape, problem.views, 0
    sizes = {name: values.numel() * (2 if values.is_complex() else 1) for name, values in estimate.others.items()}
    tiled = [one.name for one in problem.model.tiled]
    if moved & {"object", *tiled}:
        light = problem.evaluator.illumination(estimate)
        illuminated = (light >= LIT_COUNTS) & problem.layout.owned(estimate)
        pixels = round(float(problem.layout.totals(estimate, illuminated.to(torch.float64))[0]))
        if "object" in moved:
            count += pixels * len(estimate.object) * (1 if phase_only else 2)
        for name in tiled:
            planes = estimate.others[name]
            sizes[name] = pixels * len(planes) * (2 if planes.is_complex() else 1)
    if "probe" in moved:
        probes = estimate.probe_count
        # unitary mixtures of modes change nothing
        count += 2 * _lit_pixels(estimate.probe, views) - probes * (modes // probes) ** 2
    if "opr" in moved:
        count += 2 * _lit_pixels(estimate.opr, views)
    if "positions_px" in moved:
        count += 2 * views - 2
    if "weights" in moved:
        count += estimate.weights.numel() - 1
    if "background" in moved:
        count += int(problem.loader.mask.sum()) * (problem.scans if estimate.has_own_backgrounds else 1)
    return max(0, count + sum(size for name, size in sizes.items() if name in moved))


def _lit_pixels(modes: Tensor, views: int) -> int:
    """Return how many pixels of probe modes (M, h, w) send light to the detector in these views together."""
    power = modes.real.square() + modes.imag.square()
    return int((power * views >= LIT_COUNTS).sum())
