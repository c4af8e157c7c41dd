"""Cost model: work of an epoch in pixels, declared, so that no clock has a say in what is asked.

A pixel is one of a view's window that rPIE sweeps, with one probe mode, one slice and a far detector. Of an epoch,

views     take their pixels, so many times each
batches   take so much whatever their size, and the engine's step on the object, pixel by pixel
epochs    take what is done between them

Engines declare theirs (`Engine.cost`), and here is what models add. The numbers describe CPU times on one thread of an
AMD EPYC (26 November 2026), which `benchmarks/prices.py` measures beside those of rPIE (device_pace.py). Questions that
are asked of a scan (auto) cost what is declared, and the choice of a layout (layout_choice.py) takes it at this
machine's pace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ptymesh.engines import Engine
from ptymesh.engines.cost import EngineCost
from ptymesh.measurement import Measurement
from ptymesh.verdict.held_out import BUILT_IN, fit_steps

#: A batch of rPIE whatever its size, where no clock is asked; and an epoch, in batches.
BATCH, EPOCH = 120_000, 3.4
#: Share that a detector in the near field adds, and each further slice.
NEAR, SLICE = 0.3, 0.75
#: Work per pixel of a view for unknowns of its own, with the kernels: a position, for each wave, in the far and in the
#: near field; and an intensity.
POSITIONS, NEAR_POSITIONS, INTENSITY = 0.18, 1.9, 0.22
#: Work per pixel of a view for a background that moves.
BACKGROUND = 0.2
#: Batches of rPIE that each of these unknowns adds to a batch.
UNKNOWN_BATCH = 1.5
#: Work per pixel of a view for a beam that varies: for each OPR mode, and for each wave with a share of its own.
OPR, OPR_WAVE = 0.31, 0.15
#: Work without the kernels: a position in the near field behind several slices, for each wave.
PLAIN_POSITIONS = 6.3


@dataclass(frozen=True)
class FitCost:
    """Work per pixel of one step of the fits of a held-out view's own unknowns (verdict/held_out.py).

    Attributes:
        fixed: whatever is fitted.
        wave: for each wave.
        positions: of positions, for each wave.
        intensity: of intensities, for each wave.
        varied: where beams vary, in the place of all but `positions`: whatever is fitted, for each wave, for each OPR
            mode.
    """

    fixed: float
    wave: float
    positions: float
    intensity: float
    varied: tuple[float, float, float]


#: With one slice, and with several, for each of them (but for what OPR modes take).
FITS, SLICE_FITS = FitCost(0.0, 0.73, 1.05, 0.3, (1.5, 3.2, 1.6)), FitCost(2.2, 1.3, 1.9, 0.05, (1.9, 2.7, 1.7))
#: Work per pixel of such a step for the unknowns of an operator of the model, for each wave, without kernels.
OPERATOR_FIT = 8.0
#: Factor on these in the near field, where no beam varies.
NEAR_FITS = 1.42
#: Such a step, however few pixels there are.
FIT_STEP = 150_000
#: A pass that fits nothing, per pixel: whatever the model, for each wave; share that each further slice adds.
PASS, PASS_WAVE, PASS_SLICE = 0.4, 0.6, 0.3


@dataclass(frozen=True)
class EpochSize:
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
class EpochCost:
    """Cost of epochs of an engine with this model.

    Attributes:
        engine: what the engine declares.
        near: True if the detector is in the near field.
        slices: of the object.
        waves: probe modes.
        opr: OPR modes.
        per_view: unknowns that each view has for itself, out of positions, intensity and opr.
        has_background: True with a background that moves.
    """

    engine: EngineCost = Engine.cost
    near: bool = False
    slices: int = 1
    waves: int = 1
    opr: int = 0
    per_view: frozenset[str] = frozenset()
    has_background: bool = False

    @property
    def engine_cost(self) -> EngineCost:
        """Work of the engine with this model."""
        plain = self.engine
        of_waves = 1 + plain.per_further_wave * (self.waves - 1)
        pixel = plain.per_pixel * (1 + NEAR * self.near + SLICE * (self.slices - 1)) * of_waves
        if "positions" in self.per_view:
            near = PLAIN_POSITIONS if self.slices > 1 else NEAR_POSITIONS
            pixel += (near if self.near else POSITIONS) * self.waves
        if "intensity" in self.per_view:
            pixel += INTENSITY
        if self.has_background:
            pixel += BACKGROUND
        if self.opr:
            pixel += OPR * self.opr + OPR_WAVE * self.waves
        batch = plain.per_batch + UNKNOWN_BATCH * (len(self.per_view) + self.has_background)
        step, epoch = plain.per_object_pixel * self.slices, plain.per_epoch * self.slices
        return replace(plain, per_pixel=pixel, per_batch=batch, per_object_pixel=step, per_epoch=epoch)

    def judging_work(self, fitted: frozenset[str], steps: int) -> float:
        """Return the work per pixel of a view that is judged.

        Args:
            fitted: unknowns of the view that are fitted before ("positions", "intensity", "opr", and names of
                operators' unknowns); without any, it is that of a pass.
            steps: of these fits.
        """
        if not fitted:
            return (PASS + PASS_WAVE * (self.waves + self.opr)) * (1 + PASS_SLICE * (self.slices - 1))
        fits = SLICE_FITS if self.slices > 1 else FITS
        moved = fits.positions * ("positions" in fitted)
        moved += OPERATOR_FIT * bool(fitted - BUILT_IN)
        if "opr" in fitted:
            fixed, wave, mode = fits.varied
            return steps * ((fixed + (wave + moved) * self.waves) * self.slices + mode * self.opr)
        wave = fits.wave + moved + fits.intensity * ("intensity" in fitted)
        return steps * (fits.fixed + wave * self.waves) * self.slices * (NEAR_FITS if self.near else 1)

    def epoch_work(self, size: EpochSize, threads: int = 1, batch: float = BATCH) -> float:
        """Return the work of an epoch.

        Args:
            size: of the epoch.
            threads: that share its views and steps.
            batch: work of a batch of rPIE, whatever its size.
        """
        cost = self.engine_cost
        shared = size.views * size.window * cost.per_pixel + size.batches * size.stepped * cost.per_object_pixel
        serial = batch * (size.batches * cost.per_batch + EPOCH) + size.object * cost.per_epoch
        return shared / threads + serial


def cost_of_judging(price: EpochCost, unknowns: frozenset[str], pixels: float) -> float:
    """Return the cost of judging held-out views, in pixels.

    This is one pass, or the fits of the views' own unknowns on either half of their pixels (verdict/held_out.py).

    Args:
        price: what the model's parts cost.
        unknowns: what each view has for itself, as `EpochCost.judging_work` takes it.
        pixels: detector pixels of all judged views together.
    """
    steps = 2 * fit_steps(unknowns)
    return pixels * price.judging_work(unknowns, steps) + steps * FIT_STEP


def cost_of_stage(engine: Engine, near: bool, slices: int, modes: int, opr_modes: int) -> EpochCost:
    """Return the cost of epochs of a stage of a recipe.

    Args:
        engine: of the stage.
        near: True if the detector is in the near field.
        slices: of the object.
        modes: of the probe.
        opr_modes: variable-probe modes.
    """
    per_view = {"positions"} if engine.positions else set()
    per_view |= {"intensity"} if engine.probe.intensity else set()
    per_view |= {"opr"} if engine.probe.opr and opr_modes else set()
    return EpochCost(engine.cost, near, slices, modes, opr_modes, frozenset(per_view), engine.moves_background)


def batch_for(views: int) -> int:
    """Return the number of views of a batch of rPIE that suits a scan.

    It is the smallest power of two that is a sixteenth of the views or more, at least 8 and at most 64.
    """
    size = 8
    while size < 64 and 16 * size < views:
        size *= 2
    return size


def epoch_size(scan: Measurement) -> EpochSize:
    """Return the size of an epoch over all views of the scan, in batches that suit it, without work on the object."""
    return EpochSize(scan.views, math.prod(scan.window), math.ceil(scan.views / batch_for(scan.views)), 0.0, 0.0)


def sweep_work(scan: Measurement) -> float:
    """Return the work of a sweep of rPIE with one probe mode, one slice and a far detector, in pixels."""
    return EpochCost().epoch_work(epoch_size(scan))
