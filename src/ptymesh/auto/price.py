"""What an epoch costs, in sweeps: declared, so that no clock has a say in what is asked.

A sweep is an epoch of rPIE over all views of the scan, with one probe mode, one slice and a far detector. The numbers
describe CPU times on one thread of an AMD EPYC (25 November 2026), which `benchmarks/prices.py` measures: 52 of 65 to
25 %; positions in the near field with Adam are cheaper, by 40 %.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptymesh.auto.judging import STEPS
from ptymesh.measurement import Measurement

#: Engines.
ENGINES = {"rpie": 1.0, "adam": 1.1, "lsqml": 1.3}
#: What comes on top of 1: each further wave as a share of the first; a detector in the near field; each further slice.
WAVE, NEAR, SLICE = 0.3, 0.2, 0.4
#: What goes without the kernels (OPR modes, a background), and what comes on top for each further slice.
PLAIN, PLAIN_SLICE = 5.5, 2.0
#: A position and an intensity of each view: with the kernels, and without them as a share of PLAIN.
POSITIONS, INTENSITY, WITHOUT_KERNEL = 0.5, 1.7, 0.65
#: A step of a fit to held-out views, over an epoch of these.
FIT = 0.55
#: What a view costs besides its pixels, in pixels.
BESIDES = 9000


@dataclass(frozen=True)
class Price:
    """Of epochs with this model.

    Fields: near: whether the detector is in the near field. slices: of the object.
    """

    near: bool
    slices: int = 1

    def epoch(self, engine: str, waves: int, own: frozenset[str], lit: bool) -> float:
        """Over all views.

        waves: probe modes and OPR modes. own: of positions, intensity and opr, what each view has for itself. lit: with
        a background.
        """
        model = 1 + NEAR * self.near + SLICE * (self.slices - 1)
        each = 1 + WAVE * (waves - 1)
        plain = PLAIN + PLAIN_SLICE * (self.slices - 1)
        cost = ENGINES[engine] * model * each
        if "positions" in own:
            cost += each * (WITHOUT_KERNEL * plain if self.near or self.slices > 1 else POSITIONS)
        if "intensity" in own:
            cost += WITHOUT_KERNEL * plain if self.slices > 1 else INTENSITY
        if "opr" in own or lit:
            cost += plain
        return cost

    def judging(self, epoch: float, own: frozenset[str], share: float) -> float:
        """Of held-out views, a share of all: a pass, or the fits of their own unknowns on either half of the pixels."""
        return share * epoch * FIT * (2 * STEPS if own else 1)


def work(scan: Measurement) -> float:
    """Of a sweep, in pixels."""
    h, w = scan.window
    return float(scan.views * (h * w + BESIDES))
