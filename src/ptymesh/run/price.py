"""Cost model: work of an epoch in pixels, declared, so that no clock has a say in what is asked.

A pixel is one of a view's window that rPIE sweeps, with one probe mode, one slice and a far detector. Of an epoch,

views     take their pixels, so many times each
batches   take so much whatever their size, and the engine's step on the object, pixel by pixel
epochs    take what is done between them

The numbers describe CPU times on one thread of an AMD EPYC (26 November 2026), which `benchmarks/prices.py` measures
beside those of rPIE (pace.py). Questions that are asked of a scan (auto) cost what is declared here, and what a plan
says of time (plan.py) is that at this machine's pace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ptymesh.engines import Engine
from ptymesh.engines.elementwise import Elementwise
from ptymesh.measurement import Measurement


@dataclass(frozen=True)
class Takes:
    """Work of an engine, in pixels of rPIE unless said otherwise.

    Attributes:
        view: of one pixel of a view with one wave.
        wave: share of `view` that each further wave (probe mode) adds.
        batch: of a batch whatever its size, in batches of rPIE.
        step: of one pixel of the object in the step of a batch.
        epoch: of one pixel of the object between epochs.
        whole: True if steps move all pixels of the object, False if those of the blocks that the batch touches.
    """

    view: float
    wave: float = 0.75
    batch: float = 1.0
    step: float = 0.3
    epoch: float = 0.5
    whole: bool = False


#: By name; another torch optimiser is taken for Adam, a user's own engine for rPIE.
ENGINES = {
    "rpie": Takes(1.05, batch=0.85, step=0.0, epoch=0.7),
    "lsqml": Takes(1.4, 0.95, batch=1.9, step=0.8, epoch=2.0),
    "adam": Takes(0.95, 0.8, batch=2.2, step=0.26, epoch=1.0, whole=True),
    "dm": Takes(3.6),
    "raar": Takes(4.1),
    "ap": Takes(3.0),
    "cg": Takes(19.0, step=2.0, whole=True),
    "bh": Takes(17.0, step=1.0, whole=True),
    "lbfgs": Takes(2.8, step=18.0, whole=True),
}
#: A batch of rPIE whatever its size, where no clock is asked; and an epoch, in batches.
BATCH, EPOCH = 120_000, 3.4
#: What comes on top for a detector in the near field, and for a further slice.
NEAR, SLICE = 0.3, 0.75
#: What each view has for itself, with the kernels: a position, by wave, in the far and in the near field, and an
#: intensity; and a background that moves. Each makes batches longer.
POSITIONS, NEAR_POSITIONS, INTENSITY, BACKGROUND, ASKED = 0.18, 1.9, 0.22, 0.2, 1.5
#: A beam that varies: for each OPR mode, and for each wave that comes to have a share of its own.
OPR, VARIED = 0.31, 0.15
#: What goes without the kernels: a position in the near field behind several slices, by wave.
PLAIN_POSITIONS = 6.3


@dataclass(frozen=True)
class Fits:
    """Work per pixel of one step of the fits of a held-out view's own unknowns (judging.py).

    Attributes:
        alone: whatever is fitted.
        wave: for each wave.
        positions: of positions, for each wave.
        intensity: of intensities, for each wave.
        varied: where beams vary, in the place of all but `positions`: whatever is fitted, for each wave, for each OPR
            mode.
    """

    alone: float
    wave: float
    positions: float
    intensity: float
    varied: tuple[float, float, float]


#: Of one slice, and for each of several, but for what OPR modes take; in the near field, where no beam varies, so many
#: times as much. A pass that fits nothing.
FITS, SLICE_FITS = Fits(0.0, 0.73, 1.05, 0.3, (1.5, 3.2, 1.6)), Fits(2.2, 1.3, 1.9, 0.05, (1.9, 2.7, 1.7))
NEAR_FITS = 1.42
#: Such a step, however few pixels there are.
FIT_STEP = 150_000
PASS, PASS_WAVE, PASS_SLICE = 0.4, 0.6, 0.3


@dataclass(frozen=True)
class Size:
    """Size of an epoch.

    Attributes:
        views: swept.
        window: pixels of a window, h w.
        batches: number of them.
        stepped: pixels of the object in a batch's step.
        object: pixels of all of the object.
    """

    views: float
    window: int
    batches: int
    stepped: float
    object: float


@dataclass(frozen=True)
class Price:
    """Cost of epochs of an engine with this model.

    Attributes:
        engine: name, as in ENGINES.
        near: True if the detector is in the near field.
        slices: of the object.
        waves: probe modes.
        opr: OPR modes.
        own: unknowns that each view has for itself, out of positions, intensity and opr.
        lit: True with a background that moves.
    """

    engine: str = "rpie"
    near: bool = False
    slices: int = 1
    waves: int = 1
    opr: int = 0
    own: frozenset[str] = frozenset()
    lit: bool = False

    @property
    def takes(self) -> Takes:
        """Work of the engine with this model."""
        plainly = ENGINES.get(self.engine, ENGINES["rpie"])
        of_waves = 1 + plainly.wave * (self.waves - 1)
        view = plainly.view * (1 + NEAR * self.near + SLICE * (self.slices - 1)) * of_waves
        if "positions" in self.own:
            near = PLAIN_POSITIONS if self.slices > 1 else NEAR_POSITIONS
            view += (near if self.near else POSITIONS) * self.waves
        if "intensity" in self.own:
            view += INTENSITY
        if self.lit:
            view += BACKGROUND
        if self.opr:
            view += OPR * self.opr + VARIED * self.waves
        batch = plainly.batch + ASKED * (len(self.own) + self.lit)
        step, epoch = plainly.step * self.slices, plainly.epoch * self.slices
        return replace(plainly, view=view, batch=batch, step=step, epoch=epoch)

    def judged(self, own: frozenset[str], steps: int) -> float:
        """Return the work per pixel of a view that is judged.

        Args:
            own: unknowns of the view that are fitted before; without any, it is that of a pass.
            steps: of these fits.
        """
        if not own:
            return (PASS + PASS_WAVE * (self.waves + self.opr)) * (1 + PASS_SLICE * (self.slices - 1))
        fits = SLICE_FITS if self.slices > 1 else FITS
        moved = fits.positions * ("positions" in own)
        if "opr" in own:
            alone, wave, mode = fits.varied
            return steps * ((alone + (wave + moved) * self.waves) * self.slices + mode * self.opr)
        wave = fits.wave + moved + fits.intensity * ("intensity" in own)
        return steps * (fits.alone + wave * self.waves) * self.slices * (NEAR_FITS if self.near else 1)

    def pixels(self, size: Size, threads: int = 1, batch: float = BATCH) -> float:
        """Return the work of an epoch.

        Args:
            size: of the epoch.
            threads: that share its views and steps.
            batch: work of a batch of rPIE, whatever its size.
        """
        takes = self.takes
        shared = size.views * size.window * takes.view + size.batches * size.stepped * takes.step
        alone = batch * (size.batches * takes.batch + EPOCH) + size.object * takes.epoch
        return shared / threads + alone


def price_of(engine: Engine, near: bool, slices: int, modes: int, opr_modes: int) -> Price:
    """Return the cost of a stage of a recipe.

    Args:
        engine: of the stage.
        near: True if the detector is in the near field.
        slices: of the object.
        modes: of the probe.
        opr_modes: variable-probe modes, which count only if the engine moves them.
    """
    own = {"positions"} if engine.positions else set()
    own |= {"intensity"} if engine.probe.intensity else set()
    own |= {"opr"} if engine.probe.opr and opr_modes else set()
    like_adam = isinstance(engine, Elementwise)
    lit = isinstance(engine, Elementwise) and engine.unknowns.background is not None
    name = "adam" if like_adam else engine.name
    return Price(name, near, slices, modes, opr_modes, frozenset(own), lit)


def batch_for(views: int) -> int:
    """Return the number of views of a batch of rPIE that suits a scan.

    It is the smallest power of two that is a sixteenth of the views or more, at least 8 and at most 64.
    """
    size = 8
    while size < 64 and 16 * size < views:
        size *= 2
    return size


def sweep(scan: Measurement) -> Size:
    """Return the size of an epoch over all views of the scan, in batches that suit it, without work on the object."""
    return Size(scan.views, math.prod(scan.window), math.ceil(scan.views / batch_for(scan.views)), 0.0, 0.0)


def work(scan: Measurement) -> float:
    """Return the work of a sweep of rPIE with one probe mode, one slice and a far detector, in pixels."""
    return Price().pixels(sweep(scan))
