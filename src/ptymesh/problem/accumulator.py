"""Adjoints of waves, collected chunk by chunk into global sums over a batch.

B, L, M     views of the chunk, slices, modes
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ptymesh.distributed.exact import Reduction
from ptymesh.distributed.layouts.layout import BlockSparseField
from ptymesh.errors import PtymeshError
from ptymesh.estimate import Estimate
from ptymesh.physics.backend import Adjoints, Chunk, Task
from ptymesh.physics.background import BackgroundSums
from ptymesh.physics.blocks import FieldView
from ptymesh.physics.fidelity import fidelity_of
from ptymesh.physics.model import Intermediates, Model
from ptymesh.physics.rounding import narrowed, shifts_for, wide
from ptymesh.problem.batch import Batch, Gradients
from ptymesh.problem.chunk_sizes import WaveUse
from ptymesh.problem.evaluator import Evaluator, loss_and_counts
from ptymesh.problem.tiled_sums import TiledSums

#: Powers of two by which terms may exceed the expected ones, try after try; and those of sums that cannot be repeated,
#: as their waves come from elsewhere.
HEADROOM_BITS, EVALUATION_HEADROOM_BITS = (6, 22, 38), 30


class Accumulator:
    """Global sums over a batch of the adjoints of waves (chi, exit waves ...), added chunk by chunk.

    Args:
        evaluator: takes chunks through the model.
        estimate: the unknowns.
        batch: the views; steps of their positions and weights go to `batch.view_updates`.
        only: "object" to leave the probe's sums at zero, "probe" to leave the object's without blocks; None for both.
        task: what `exit_wave_update` or `loss_gradient` does with all chunks; None if waves come from elsewhere, by
            `add`.
        keep: True if these methods are to return the waves.
        background: True to sum the background's slope and darkness, too.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        estimate: Estimate,
        batch: Batch,
        only: str | None = None,
        task: Task | None = None,
        keep: bool = False,
        background: bool = False,
    ) -> None:
        self.evaluator, self.estimate, self.batch, self.task, self.keep = evaluator, estimate, batch, task, keep
        self.setup, self.loader, self.fields = evaluator.setup, evaluator.loader, evaluator.fields
        self.with_object = only != "probe" and "object" not in batch.frozen
        self.with_background = background or "background" in batch.pieces
        at_detector = {one.name for placed in self.setup.model.detector for one in placed.operator.unknowns}
        #: Names of the detector's unknowns, and of those of pieces that act on waves, whose slopes are wanted.
        self._of_detector = batch.pieces & at_detector
        self._of_waves = batch.pieces - at_detector - {"background"}
        self.with_probe = only != "object" and "probe" not in batch.frozen
        blocks = self.loader.local_views.blocks(estimate, batch.views)
        #: Sums of slopes by tiled unknowns of the pieces.
        self.tiled = TiledSums(self.setup, self.fields, estimate, batch.pieces, blocks, len(batch.views))
        self.blocks = blocks if self.with_object else blocks.none()
        batch.view_updates.clear()
        self.fields.copy_out_of_buffers()
        self.parts = 1 if task and self.setup.real == torch.float32 else 2
        #: Memory for sums that all ranks share; None without any.
        self.shared_sums = self.setup.layout.shared_sums(estimate.object, self.parts) if self.with_object else None
        #: Fields for the object's sums and their weight.
        self.output_fields = (
            self.shared_sums.result
            if self.shared_sums and self.shared_sums.result
            else (
                self.fields.buffer("object sum", estimate.object, self.setup.dtype),
                self.fields.buffer("object weight", estimate.object, self.setup.real),
            )
        )
        self._border, self._tries = self.loader.local_views.border(estimate, batch.views), 0
        self._reset_sums()

    def _reset_sums(self) -> None:
        """Start with empty sums."""
        estimate, parts, numbered_probes = self.estimate, self.parts, enumerate(self.estimate.probes)
        by_probe = [self._buffer(f"probe {k}", probe) if self.with_probe else None for k, probe in numbered_probes]
        lights = [self._buffer(f"light {k}", probe[:1].real) for k, probe in enumerate(estimate.probes)]
        of_opr = self._buffer("opr", estimate.opr), self._buffer("opr light", estimate.opr.real)
        sums = [*by_probe, *lights, *of_opr]
        shifts, self._limits, reached = self._reset_steps([array for array in sums if array is not None])
        if self.shared_sums:
            obj, weight = self.shared_sums.own
        else:
            like = estimate.object
            shape = self.setup.layout.shape(like)
            obj = self.fields.buffer(f"object in {parts}", like, torch.complex128, parts, shape)
            weight = self.fields.buffer(f"weight in {parts}", like, torch.float64, parts, shape)
        if self.tiled.sums:
            self.tiled.reset(
                expected_magnitudes(estimate.probe, self.loader.brightest, self.setup.model.fidelity, None)
            )
        self.sums = Adjoints(
            obj if self.with_object else None,
            weight if self.with_object else None,
            by_probe[0],
            lights[0],
            *of_opr,
            shifts,
            reached,
            parts=parts,
            shifted=self._shifted,
            views=len(self.batch.views) if self.setup.world.size == 1 else None,
        )
        #: Sums of the background, of each scan's where each has its own.
        self.backgrounds = self._background_sums() if self.with_background else []
        #: The sums for each probe; those of the object are the same arrays.
        self.by_setting = [self.sums]
        for probe, light in zip(by_probe[1:], lights[1:], strict=True):
            self.by_setting.append(replace(self.sums, probe=probe, probe_weight=light, kept=()))
        if self.with_object:
            self.setup.backend.clear(obj, weight, *(self.blocks.added if self.shared_sums else self.blocks.covered))
        #: Number of views that have been added.
        self._added = 0
        self._finish: Callable[..., list[Any]] | None = None
        self.batch.view_updates.clear()
        self.loader.on_border_swept = self.start_if_border_added

    def _background_sums(self) -> list[BackgroundSums]:
        """Return empty sums for each background."""
        kind, (_, pixel) = self.setup.model.fidelity, self.loader.brightest
        backgrounds = self.estimate.background if self.estimate.has_own_backgrounds else self.estimate.background[None]
        return [BackgroundSums.zeros(one, kind, pixel, len(self.batch.views)) for one in backgrounds]

    def background_of(self, chunk: Chunk) -> BackgroundSums | None:
        """Return the sums of the background that a chunk's views have; None if it stays as it is."""
        return self.backgrounds[chunk.setting if len(self.backgrounds) > 1 else 0] if self.backgrounds else None

    def _sums_of(self, chunk: Chunk) -> Adjoints:
        """Return the sums to which a chunk's views are added."""
        sums = self.by_setting[chunk.setting if len(self.by_setting) > 1 else 0]
        sums.background = self.background_of(chunk)
        return sums

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        """Return a buffer for sums of arrays like this (C, h, w), in parts."""
        return self.fields.buffer(f"{name} in {self.parts}", like, wide(like.dtype), self.parts)

    @property
    def _shifted(self) -> bool:
        """True if the probe's sums are made in Fourier space."""
        are_integers = self.loader.integer_positions(self.estimate, self.batch.views) and not len(self.estimate.opr)
        return self.setup.model.subpixel == "fourier" and not are_integers

    def _reset_steps(self, sums: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return shifts by kind of sum and part, limits of terms by kind, and zeros for their largest magnitudes.

        The sums are set to zero.
        """
        room = HEADROOM_BITS[self._tries] if self.task else EVALUATION_HEADROOM_BITS
        # With interpolation, four terms of a view may fall on one pixel.
        how = self.loader.brightest, self.setup.model.fidelity, self.task, room, 4 * len(self.batch.views)
        if self.setup.device.type == "cpu":
            return reset_sums(*how, None, self.estimate.probe, *sums)
        name = "the start of a batch", *how, self.parts, len(sums)
        return self.setup.backend.repeat(name, partial(reset_sums, *how, self.setup.steps), self.estimate.probe, *sums)

    def chunks(self) -> Iterator[Chunk]:
        """Return the batch's views for one sweep, whose waves `exit_wave_update` or `loss_gradient` adds."""
        apart = not self._complete or self._of_waves
        waves: WaveUse = "used" if apart else "kept" if self.keep else "dropped"
        return self.loader.chunks(self.estimate, self.batch.views, waves=waves, steps=self._needs_steps)

    @property
    def _needs_steps(self) -> bool:
        """True if steps of the views' positions or weights are wanted."""
        return self.batch.refine or self.batch.vary

    @property
    def _complete(self) -> bool:
        """True if both the object's and the probe's sums are wanted."""
        return self.with_object and self.with_probe

    def add(self, chunk: Chunk, intermediates: Intermediates, waves: Tensor) -> None:
        """Add S_j^H conj(phi) waves, T_{-f} conj(S O) waves and their weights.

        Args:
            chunk: the views.
            intermediates: windows and waves of the chunk.
            waves: (B, M, h, w) complex, at the exit of the last slice.

        Raises:
            PtymeshError: the sums of these views have been sent to other ranks already.
        """
        self._count_views(chunk)
        self.setup.backend.adjoint(self.setup.model, chunk, intermediates, waves, self._sums_of(chunk))
        self._append_steps(chunk, intermediates, waves)

    def _append_steps(self, chunk: Chunk, intermediates: Intermediates, waves: Tensor) -> None:
        """Append the views' steps of positions and weights to those of the batch, if they are wanted."""
        if self.batch.refine:
            self.batch.view_updates.positions.append(
                (chunk.views, self.evaluator.position_step(self.estimate, chunk, intermediates, waves))
            )
        if self.batch.vary:
            self.batch.view_updates.weights.append(
                (chunk.views, self.evaluator.weight_step(self.estimate, chunk, intermediates, waves))
            )
        slopes = {}
        if self._of_detector:
            slopes = self.evaluator.detector_slopes(chunk, intermediates)
        if self._of_waves:
            pairs = self.evaluator.operator_pairs(chunk, intermediates, waves, self._of_waves)
            for name in self.tiled.sums:
                self.tiled.add(chunk, name, pairs.pop(name))
            slopes |= self.evaluator.stack_pairs(chunk, pairs)
        for name in self._of_detector | self._of_waves - self.tiled.sums.keys():
            self.batch.view_updates.pieces.setdefault(name, []).append((chunk.views, slopes[name]))

    def exit_wave_update(self, chunk: Chunk, intermediates: Intermediates) -> Tensor:
        """Add the adjoints of chi of a chunk, and record loss and residual of its views.

        Returns:
            chi (B, M, h, w); undefined without `keep`.
        """
        assert self.task == "exit_wave_update"
        chi, columns = self._sweep(chunk, intermediates, self.keep)
        self.evaluator.record_columns(chunk, columns)
        return chi

    def loss_gradient(self, chunk: Chunk, intermediates: Intermediates, record: bool = True) -> tuple[Tensor, Tensor]:
        """Add the adjoints of -D^H (dL/dI Psi) of a chunk.

        Args:
            chunk: the views.
            intermediates: windows and waves of the chunk.
            record: True to record loss and residual of the views.

        Returns:
            The waves (B, M, h, w), undefined without `keep`; and loss, sum y, sum y^2 of each view, (B, 3) float64.
        """
        assert self.task == "loss_gradient"
        waves, columns = self._sweep(chunk, intermediates, self.keep)
        if record:
            self.evaluator.record_columns(chunk, columns)
        return waves, loss_and_counts(columns)

    def _sweep(self, chunk: Chunk, intermediates: Intermediates, keep: bool) -> tuple[Tensor, Tensor]:
        """Run the task on a chunk and add its adjoints, in one pass if the backend can do so."""
        backend, model, task, asks = self.setup.backend, self.setup.model, self.task, self._needs_steps
        assert task
        if not self._complete or self._of_waves or (asks and not backend.supports(model, chunk, "steps")):
            waves, columns = backend.detector(model, chunk, intermediates, task, self.background_of(chunk))
            self.add(chunk, intermediates, waves)
            return waves, columns
        self._count_views(chunk)
        chunk.cache.is_swept = True
        waves, columns = backend.sweep(model, chunk, intermediates, task, self._sums_of(chunk), keep, steps=asks)
        self._append_steps(chunk, intermediates, waves)
        return waves, columns

    def _count_views(self, chunk: Chunk) -> None:
        """Count the views of a chunk, and refuse views whose sums have been sent."""
        if chunk.border and self._finish:
            raise PtymeshError("These views' sums have been sent already; add all views of a batch in one sweep.")
        self._added += chunk.views.shape[0]

    def start_if_border_added(self) -> None:
        """Start sending the object's sums, if all views whose sums other ranks wait for have been added."""
        if self._finish is None and self._added >= self._border:
            self._start_object_sums()

    def _start_object_sums(self) -> None:
        """Start adding up the object's sums over ranks."""
        fields = [f for f in (self.sums.object, self.sums.object_weight) if f is not None]
        if self.shared_sums:
            self._finish = self.setup.layout.add_up(
                self.shared_sums, self.blocks, self.output_fields, self.setup.backend.combine
            )
        else:
            self._finish = self.setup.layout.start_reduce(fields, self.blocks)

    def total(self, *others: Reduction | Tensor) -> Gradients:
        """Return the sums over all ranks. Collective.

        Args:
            others: sums of other quantities to add in the same message: reductions, or tensors of which each rank has
                its share.
        """
        self.loader.on_border_swept = None
        parts = [*(other.local if isinstance(other, Reduction) else other for other in others)]
        parts.append(self.setup.answers[int(self.batch.stop)])
        fields, adjoints, rest = self._reduced(parts)
        while self._needs_retry(rest[-1]):
            self._repeat_sweep()
            fields, adjoints, rest = self._reduced(parts)
        self.batch.view_updates.tiled = self.tiled.total()
        values = [other.read(t) if isinstance(other, Reduction) else t for other, t in zip(others, rest, strict=False)]
        *_, self.batch.view_updates.stop, beyond = rest
        obj, weight = self._to_fields(fields)
        adjoints, of_backgrounds = adjoints[: len(adjoints) - len(self.backgrounds)], adjoints[-len(self.backgrounds) :]
        background_total = None
        if self.backgrounds:
            totals = [BackgroundSums.total(sums).to(self.setup.real) for sums in of_backgrounds]
            background_total = torch.stack(totals, dim=1) if self.estimate.has_own_backgrounds else totals[0]
        if fields and not self.with_probe:  # else the probe is NaN if terms were beyond all limits
            obj = obj if beyond.device.type == "cpu" and not float(beyond) else obj.of(_unless(beyond, obj.values))
        self.fields.track_buffers(obj, weight)
        in_real = tuple(value.to(self.setup.real) for value in values)
        probe, light, opr, opr_light = self._narrowed(adjoints, beyond)
        gradients = self.batch.view_updates.gradients = Gradients(
            obj, weight, probe, light, opr, opr_light, in_real, background_total
        )
        return gradients

    def _reduced(self, parts: list[Tensor]) -> tuple[list[Any], list[Tensor], list[Tensor]]:
        """Return the sums over ranks.

        Returns:
            The object's fields (none if its sums are in shared memory); the other adjoints; and the parts, followed by
            the number of ranks that have met terms beyond the limits.
        """
        sums = self.sums
        if self._finish is None:
            self._start_object_sums()
        for one in self.by_setting:
            self.setup.backend.finish(one)
        for background in self.backgrounds:
            sums.background = background
            self.setup.backend.finish(sums)
        beyond = self.setup.backend.repeat(("a comparison of terms",), _exceeded, sums.reached, self._limits)
        by_probe = [one.probe for one in self.by_setting if one.probe is not None]
        background_sums = [background.sums for background in self.backgrounds]
        adjoints = [
            *by_probe,
            *(one.probe_weight for one in self.by_setting),
            sums.opr,
            sums.opr_weight,
            *background_sums,
        ]
        assert self._finish is not None
        reduced = self._finish(*adjoints, *parts, beyond)
        fields = 2 if self.with_object else 0
        after = fields + len(adjoints)
        return reduced[:fields], reduced[fields:after], reduced[after:]

    def _needs_retry(self, beyond: Tensor) -> bool:
        """Return True if the batch is to be repeated with larger steps.

        On a GPU it never is, as that would wait for the device.
        """
        if not self.task or self._tries + 1 == len(HEADROOM_BITS) or beyond.device.type != "cpu":
            return False
        return float(beyond) > 0

    def _repeat_sweep(self) -> None:
        """Sweep the batch again, with larger steps; the views' recorded values will be the same."""
        self._tries += 1
        self._reset_sums()
        self.batch.view_updates.clear()  # steps that the first sweep has appended would be taken twice
        for chunk in self.chunks():
            self._sweep(chunk, self.evaluator.forward(self.estimate, chunk), keep=False)
        self.loader.on_border_swept = None

    def _to_fields(self, fields: list[Any]) -> tuple[BlockSparseField, BlockSparseField]:
        """Return the object's sums and their weight in the precision of the object."""
        rows, columns, output_fields = self.blocks.rows, self.blocks.columns, self.output_fields
        if not fields or self.shared_sums:
            leaves = [FieldView(rows, columns, array=field) for field in fields or output_fields]
            obj, weight = (BlockSparseField(leaf, rows, columns, self.setup.layout.max) for leaf in leaves)
            return obj, weight
        gathered = [isinstance(f.expression, FieldView) and f.expression.array is None for f in fields]
        if all(gathered):
            pairs = zip(fields, output_fields, strict=True)
            obj, weight = (f.of(narrowed(f.values, field.dtype, len(field))) for f, field in pairs)
            return obj, weight
        assert self.sums.object is not None and self.sums.object_weight is not None
        self.setup.backend.narrow((self.sums.object, self.sums.object_weight), rows, columns, output_fields)
        leaves = [FieldView(rows, columns, array=field) for field in output_fields]
        return fields[0].of(leaves[0]), fields[1].of(leaves[1])

    def _narrowed(self, adjoints: list[Tensor], beyond: Tensor) -> list[Tensor]:
        """Return probe, its weight, OPR modes and their weights in the precision of the estimate.

        They are NaN if terms were beyond all limits, so that the run ends as diverged.
        """
        count = len(self.by_setting)
        if count == 1:
            return self._narrowed_of_probe(adjoints, beyond)
        by_probe, (lights, of_opr) = adjoints[: -count - 2], (adjoints[-count - 2 : -2], adjoints[-2:])
        of_each_probe = [
            self._narrowed_of_probe([*by_probe[k : k + 1], light, *of_opr], beyond) for k, light in enumerate(lights)
        ]
        probes, weights, (opr, *_), (opr_weight, *_) = zip(*of_each_probe, strict=True)
        return [torch.cat(probes), torch.stack(weights), opr, opr_weight]

    def _narrowed_of_probe(self, adjoints: list[Tensor], beyond: Tensor) -> list[Tensor]:
        """Return what `_narrowed` does, of one probe."""
        modes, opr_modes = len(self.estimate.probes[0]), len(self.estimate.opr)
        how = self.setup.model if self.sums.shifted else None, modes, opr_modes, self.setup.dtype
        name = "the end of a batch", self.sums.shifted, self.parts, len(adjoints)
        narrowed_sums = self.setup.backend.repeat(name, partial(narrow_adjoints, *how), beyond, *adjoints)
        # Buffers of a GPU are used again by the next batch, and callers may hold the result longer.
        return (
            narrowed_sums if self.setup.device.type == "cpu" else [x.clone() if x.numel() else x for x in narrowed_sums]
        )


def narrow_adjoints(
    model: Model | None, modes: int, opr_modes: int, dtype: torch.dtype, beyond: Tensor, *adjoints: Tensor
) -> list[Tensor]:
    """Return probe, its weight, OPR modes and their weights, as `Gradients` holds them.

    Args:
        model: model that shifts the sums back; None if they are not shifted.
        modes: M.
        opr_modes: K.
        dtype: complex dtype of the result.
        beyond: 0-d, number of ranks with terms beyond all limits, which makes probe and weight NaN.
        adjoints: sums in parts and double precision; the first, of the probe, may be left out, and is zero then.
    """
    *by_probe, weight, by_opr, opr_weight = adjoints
    light, shares = narrowed(weight, dtype.to_real(), 1)[0], narrowed(opr_weight, dtype.to_real(), opr_modes)
    probe = narrowed(by_probe[0], dtype, modes) if by_probe else weight.new_zeros((modes, *light.shape), dtype=dtype)
    opr = narrowed(by_opr, dtype, opr_modes)
    if model is not None:
        probe, opr = model.unshifted(probe) if by_probe else probe, model.unshifted(opr)
    return [_unless(beyond, probe), _unless(beyond, light), opr, shares]


def _exceeded(reached: Tensor, limits: Tensor) -> Tensor:
    """Return 1 if any terms were beyond their limits, else 0, 0-d float64."""
    return (reached > limits).any().to(torch.float64)


def _unless(beyond: Tensor, values: Tensor) -> Tensor:
    """Return the values, or NaN if there are ranks with terms beyond all limits."""
    if beyond.device.type == "cpu" and not float(beyond):
        return values
    return torch.where(beyond > 0, math.nan, values)


def reset_sums(
    brightest: tuple[float, float],
    fidelity: str,
    task: Task | None,
    headroom_bits: int,
    terms: int,
    steps: tuple[Tensor, Tensor, Tensor] | None,
    probe: Tensor,
    *sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Set a batch's sums to zero, and return the rounding steps for them.

    Args:
        brightest: root of the largest sum of a view's counts, and the largest count of a pixel.
        fidelity: of the model.
        task: "loss_gradient", or another.
        headroom_bits: powers of two by which terms may exceed the expected ones.
        terms: largest number of terms of each sum.
        steps: tensors for the result; None to make new ones.
        probe: (M, h, w) complex.
        sums: arrays that are set to zero.

    Returns:
        Shifts (6, 2), limits (6,) and zeros (6,) for the largest terms, float64.
    """
    for array in sums:
        array.zero_()
    shifts, limits = shifts_for(expected_magnitudes(probe, brightest, fidelity, task) * 2.0**headroom_bits, terms)
    if steps is None:
        return shifts, limits, torch.zeros_like(limits)
    for into, value in zip(steps, (shifts, limits, torch.zeros_like(limits)), strict=True):
        into.copy_(value)
    return steps


def expected_magnitudes(probe: Tensor, brightest: tuple[float, float], fidelity: str, task: Task | None) -> Tensor:
    """Return the expected magnitude of the terms of each kind of sum, (6,) float64; it does not depend on threads.

    Exit waves have norms of about A, the root of the largest sum of a view's counts, and the object is about A / |P|.
    With the largest light of a pixel, p^2 = max sum_m |P_m|^2, the object's sums have terms of about p^2 A / |P|, where
    chi is as large as the wave.

    Args:
        probe: (M, h, w) complex.
        brightest: A, and the largest count of a pixel.
        fidelity: of the model.
        task: "loss_gradient", or another.
    """
    wave, pixel = brightest
    squares = torch.view_as_real(probe.detach().resolve_conj()).to(torch.float64).square()
    # Row by row: torch splits one large sum between threads, and its last bit would depend on their number.
    light, obj = 2 * len(probe) * squares.amax(), wave / squares.flatten(2).sum(2).sum(1).sum().sqrt()
    slope = fidelity_of(fidelity).typical_slope(pixel) if task == "loss_gradient" else 1.0
    magnitudes = (slope * obj * light, light, slope * obj * wave, obj * obj)
    return torch.stack((*magnitudes, *magnitudes[2:]))
