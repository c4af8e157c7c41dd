"""One pass over a batch that yields the derivatives of a loss by every unknown, summed over ranks in one message.

L          loss of a batch over its divisor D;  c  its curvature (losses.py)
g_jm       slope_j . Psi_jm on the detector, D^H g at the exit; every dL/d conj(x) is an adjoint of it
slope      dL/dx of a real unknown; of a complex one dL/dRe x + i dL/dIm x = 2 dL/d conj(x), as pairs of reals
scale      1 / largest Gauss-Newton curvature of the unknown: a step of -scale x slope is ePIE's for object and probe.
           The slopes of positions and weights are divided by each view's own curvature from the start; an operator's
           unknown with a row per view has a scale for each
unit       size of the unknown: rms of the probe, mean count for the background, the tilt that moves the wave by a
           pixel from slice to slice, the size that an operator of the model gives, 1 otherwise
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.distributed.exact import Reduction
from ptymesh.engines.gradients.losses import Loss, LossSummary, OfFidelity
from ptymesh.estimate import Estimate
from ptymesh.physics import fidelity
from ptymesh.physics.backend import Task
from ptymesh.physics.background import darkness, raised_signals
from ptymesh.physics.elementwise import means
from ptymesh.physics.fidelity import DARK
from ptymesh.physics.model import Intermediates, power
from ptymesh.problem import Batch, Chunk, Gradients, Problem

#: Unknowns of the gaps between slices, in the order of their rates.
GAPS = ("slice_spacing", "tilt")


@dataclass(frozen=True)
class Part:
    """Derivative of one unknown.

    Attributes:
        slope: dL/dx, real.
        scale: 0-d or elementwise.
        unit: 0-d or elementwise.
    """

    slope: Tensor
    scale: Tensor
    unit: Tensor | float = 1.0


class Sweep:
    """One pass over a batch: adjoints of -g, and the sums for unknowns besides object and probe; then global sums.

    Args:
        problem: loader, evaluator and fields of the stage.
        estimate: the unknowns.
        batch: the views.
        wanted: names of the unknowns whose derivatives are wanted.
        loss: over pixels.
    """

    def __init__(self, problem: Problem, estimate: Estimate, batch: Batch, wanted: set[str], loss: Loss) -> None:
        self.problem, self.estimate, self.batch, self.wanted, self.loss = problem, estimate, batch, wanted, loss
        vary = batch.vary or "weights" in wanted
        self._others = {one.name: one for one in problem.model.unknowns if one.name in wanted}
        detector = {one.name for placed in problem.model.detector for one in placed.operator.unknowns}
        #: True if unknowns of the detector's pieces are wanted, which need the intensities.
        self._at_detector = bool(detector & wanted)
        #: True if unknowns of operators are wanted, which need the waves.
        self._of_waves = bool(self._others.keys() - detector)
        #: Unknowns of the gaps between slices, which need waves and their adjoints.
        self._gaps = [name for name in GAPS if name in wanted]
        #: True if the waves are those of the model's fidelity, and no operator's unknown needs them.
        self._plain = isinstance(loss, OfFidelity) and not self._others
        # True if passes over the detector add to the background's sums; slopes of other losses may have any size.
        tells = isinstance(loss, OfFidelity) and "background" in wanted
        task: Task | None = "loss_gradient" if self._plain else None
        batch, keep = replace(batch, vary=vary), bool(self._gaps)
        self.accumulator = problem.accumulator(estimate, batch, task=task, keep=keep, background=tells)
        self.terms = problem.fields.reduction(loss.terms)
        shapes: dict[str, tuple[int, ...]] = {"slice_spacing": (2,), "tilt": (2, 2)}
        shapes |= {} if tells else {"background": (2, *estimate.background.shape)}
        summed = [name for name, one in self._others.items() if one.scope == "shared"]
        shapes |= {name: (2, *real(estimate[name]).shape) for name in summed}
        #: For tiled unknowns of the operators.
        self._tiled = problem.tiled_sums(estimate, batch, self._others)
        #: For operators' unknowns with a row per view, chunk by chunk: slopes, and last the curvature, (B, n + 1).
        self._of_views: dict[str, list[Tensor]] = {}
        self.reductions = {name: problem.fields.reduction(*shape) for name, shape in shapes.items() if name in wanted}

    def run(self, note: bool = True) -> None:
        """Sweep the batch; with `record_signal`, record the views' losses for the running loss of the epoch."""
        if self._plain:
            for chunk in self.accumulator.chunks():
                intermediates = self.problem.evaluator.forward(self.estimate, chunk)
                waves, terms = self.accumulator.loss_gradient(chunk, intermediates, note)
                self.terms.add(terms)
                self._add_gaps(chunk, intermediates, waves)
            return
        for chunk in self.problem.loader.chunks(self.estimate, self.batch.views):
            self._add(chunk, note)

    def _add(self, chunk: Chunk, note: bool) -> None:
        """Add a chunk whose loss is not the model's fidelity, or whose waves are needed."""
        problem, estimate = self.problem, self.estimate
        intermediates = problem.evaluator.forward(estimate, chunk)
        slopes: dict[str, tuple[Tensor, Tensor]] = {}
        if isinstance(self.loss, OfFidelity) and not self._at_detector:
            background_sums = self.accumulator.background_of(chunk)
            waves, sums = problem.evaluator.loss_gradient(chunk, intermediates, note, background_sums)
            self.terms.add(sums)
        else:
            waves, slopes = self._loss_gradient(chunk, intermediates, note)
        self.accumulator.add(chunk, intermediates, waves)
        self._add_gaps(chunk, intermediates, waves)
        if self._of_waves:
            slopes |= problem.model.operator_slopes(intermediates, waves)
        self._add_others(chunk, slopes)

    def _add_gaps(self, chunk: Chunk, intermediates: Intermediates, waves: Tensor) -> None:
        """Add the sums for spacing and tilt of the slices, if they are wanted."""
        if not self._gaps:
            return
        model = self.problem.model
        rates = torch.cat([model.gap_rates(name) for name in self._gaps])
        products = self.problem.backend.gap_products(model, chunk, intermediates, rates, waves)
        if "tilt" in self._gaps:
            self.reductions["tilt"].add(products[:, -2:].transpose(1, 2).contiguous())
        if "slice_spacing" in self._gaps:
            self.reductions["slice_spacing"].add(products[:, 0])

    def _add_others(self, chunk: Chunk, slopes: dict[str, tuple[Tensor, Tensor]]) -> None:
        """Add slopes and curvatures of the operators' unknowns; with a row per view, a row's largest curvature.

        They are those of the chunk's views, (B, ...).
        """
        for name, one in self._others.items():
            if one.scope == "tiled":
                self._tiled.add(chunk, name, slopes[name])
                continue
            along, norm = (real(t).to(torch.float64) for t in slopes[name])
            if one.scope == "view":
                rows = (along.reshape(len(along), -1), norm.reshape(len(norm), -1).amax(1, keepdim=True))
                self._of_views.setdefault(name, []).append(torch.cat(rows, dim=1))
            else:
                spread = self.problem.loader.spread_over_scans
                along, norm = (spread(one, terms, chunk.views) for terms in (along, norm))
                norm = norm[..., None] if one.complex else norm
                self.reductions[name].add(torch.stack((along, norm.expand_as(along)), dim=1))

    def _loss_gradient(
        self, chunk: Chunk, intermediates: Intermediates, note: bool
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """Return -D^H (slope Psi) of any loss, (B, M, h, w), and the slopes of the detector's unknowns; add its sums.

        Curvatures of these unknowns are the amplitude's, as those of waves are, which c brings to the loss's.
        """
        problem = self.problem
        detected = problem.evaluator.detect(chunk, intermediates.exit)
        S, response = power(detected), problem.model.response(chunk.values)
        signal = S if response is None else response.signal(S)
        if note:
            problem.evaluator.record_signal(chunk, signal)
        slope = self.loss.slope(signal, chunk.data)
        self.terms.add(self.loss.sums(signal, chunk.data))
        background_sums = self.accumulator.background_of(chunk)
        if background_sums is not None:
            background_sums.add(signal, chunk.data)
        elif "background" in self.wanted:
            self.reductions["background"].add(self._find_background_slope(signal, chunk))
        slopes: dict[str, tuple[Tensor, Tensor]] = {}
        if self._at_detector:

            def loss_derivatives(signal: Tensor) -> tuple[Tensor, Tensor]:
                return self.loss.slope(signal, chunk.data), fidelity.norm("amplitude", signal, chunk.data) / 2

            slopes = problem.model.detector_slopes(S, chunk.data, chunk.values, loss_derivatives)
        if response is not None:
            slope = response.adjoint(slope)
        detected *= -slope[:, None]
        return problem.model.detect_adjoint(detected, chunk.fractions), slopes

    def _find_background_slope(self, S: Tensor, chunk: Chunk) -> Tensor:
        """Return slope by b and I^(-1/2) of each view, (B, 2, h, w); of scans with their own (B, 2, S, h, w).

        They are defined also where the model has no light, for b needs none.
        """
        S, data = raised_signals(S, chunk.data), chunk.data
        pair = torch.stack((self.loss.slope(S, data), darkness(S, data)), dim=1)
        return self.estimate.terms_of_background(pair, chunk.setting)

    def total(self) -> tuple[Gradients, LossSummary, dict[str, Part]]:
        """Return the global sums, the loss's summary, and the parts of all unknowns but the object. Collective.

        Steps of positions and beams are brought to the size of Gauss-Newton steps.
        """
        estimate = self.estimate
        sent: dict[str, Reduction | Tensor] = {"loss": self.terms, **self.reductions, **self._rows()}
        sums = self.accumulator.total(*sent.values())
        further_sums = dict(zip(sent, sums.others, strict=True))
        if sums.background is not None:
            further_sums["background"] = sums.background
        of_loss, loss = further_sums.pop("loss"), self.loss
        if isinstance(loss, OfFidelity):
            summary = LossSummary(*self.problem.evaluator.at_once("what a loss means", loss.summed_up, of_loss))
        else:  # not recorded, as the loss may hold numbers of this batch
            summary = loss.summary(of_loss)
        _, D, c, _ = summary
        self.batch.view_updates.positions = [(views, step / c) for views, step in self.batch.view_updates.positions]
        self.batch.view_updates.weights = [(views, step / c) for views, step in self.batch.view_updates.weights]
        opr = sums.opr / c if len(sums.opr) else sums.opr
        self.batch.view_updates.gradients = replace(sums, probe=sums.probe / c, opr=opr)
        parts = {}
        for name, field, weight in (("probe", sums.probe, sums.probe_weight), ("opr", sums.opr, sums.opr_weight)):
            if name in self.wanted and len(field):
                brought = field, weight, torch.stack((D, c))
                name_of_work = (f"the step of the {name}",)
                mode_steps = self.problem.backend.repeat(
                    name_of_work, _find_mode_steps, estimate.probe, brought=brought
                )
                parts[name] = Part(*mode_steps)
        return sums, summary, parts | self._more_parts(further_sums, summary)

    def _rows(self) -> dict[str, Tensor]:
        """Return slopes of the unknowns with a row per view, (B, n) each: this rank's views, 0 for others."""
        problem, rows = self.problem, {}
        of_views = {"positions": self.batch.view_updates.positions, "weights": self.batch.view_updates.weights}
        for name in [name for name in of_views if name in self.wanted]:  # the same order on all ranks, unlike a set's
            width = self.estimate[name][0].numel()
            rows[name] = problem.loader.rows(self.batch, [step for _, step in of_views[name]], width)
        for name in [name for name, one in self._others.items() if one.scope == "view"]:
            width = real(self.estimate[name])[0].numel() + 1
            rows[name] = problem.loader.rows(self.batch, self._of_views.get(name, []), width)
        return rows

    def _more_parts(self, others: dict[str, Tensor], summary: LossSummary) -> dict[str, Part]:
        """Return the parts of background, slices, positions, weights and the operators' unknowns."""
        _, D, c, counts = summary
        parts, tiled = {}, self._tiled.total()
        if "background" in others:
            views = len(self.batch.views)
            mean = counts / (views * math.prod(self.estimate.background.shape[-2:]))
            slope, dark = others["background"]
            # The squared mean of I^(-1/2), not the mean of 1 / I, in which a dark speckle would outweigh all others.
            views_by_background = self.problem.views_of_backgrounds(self.estimate, self.batch.views)
            curvature = c / 2 * (dark.square() / views_by_background).clamp(min=DARK)
            parts["background"] = Part(slope / D, D / curvature, mean)
        for gap in [name for name in GAPS if name in others]:
            along, norm = others[gap]
            unit = sent(self._pixel_tilt().to(along.dtype), along.device) if gap == "tilt" else 1.0
            parts[gap] = Part(along * (-2 / D), D / (2 * c * above_zero(norm)), unit)
        for moved in [name for name in ("positions", "weights") if name in others]:
            slope = self._scatter_views(others[moved] / -c, torch.zeros_like(self.estimate[moved]))
            parts[moved] = Part(slope, torch.ones_like(c))
        for name, one in self._others.items():
            like, unit = real(self.estimate[name]), self.problem.model.sizes[name]
            if one.scope == "tiled":
                slopes, norms = tiled[name]
                field = torch.zeros_like(self.estimate[name])
                self.problem.fields.add(field, slopes * (-2 / D))
                parts[name] = Part(real(field), D / (2 * c * above_zero(norms.max().max())), unit)
                continue
            if one.scope == "view":
                along, norm = others[name][:, :-1], others[name][:, -1:]
                if one.common_to in self.wanted and len(along) > 1:
                    along = along - norm * means(along / above_zero(norm))  # steps without their mean
                most = above_zero(norm.max())
                curvature = self._scatter_views(torch.where(norm > 0, norm, most), most.expand(len(like), 1))
                along = self._scatter_views(along, torch.zeros_like(like))
                scale = D / (2 * c * curvature.view(-1, *[1] * (like.ndim - 1)))
            else:
                along, norm = others[name]
                scale = D / (2 * c * above_zero(norm.max()))
            parts[name] = Part((along * (-2 / D)).to(like.dtype), scale, unit)
        return parts

    def _scatter_views(self, rows: Tensor, others: Tensor) -> Tensor:
        """Return an array of all views (N, ...): these rows (B, n) for the batch's, and `others` for all else."""
        scattered = others.clone()
        scattered[sent(self.batch.views, self.problem.device)] = rows.to(scattered.dtype).reshape(
            -1, *scattered.shape[1:]
        )
        return scattered

    def _pixel_tilt(self) -> Tensor:
        """Return the change of each tilt (2,) by which the wave moves by a pixel from slice to slice."""
        pixels, estimate = self.problem.geometry.object_pixel_m, self.estimate
        assert pixels is not None, "slices have a pixel size"
        pairs = zip(pixels, estimate.tilt_rad, strict=True)
        return torch.tensor([d * math.cos(t) ** 2 / estimate.slice_spacing_m for d, t in pairs], dtype=torch.float64)


def _find_mode_steps(probe: Tensor, field: Tensor, weight: Tensor, D_c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return slope, scale and unit of modes of the probe, from the sums and their weight."""
    D, c = D_c
    rms = (2 * means(real(probe).square().flatten())).sqrt()
    return real(field) * (-2 / D), D / (2 * c * above_zero(weight.max())), rms


def averages(problem: Problem, estimate: Estimate, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums of intensities and of counts over the batch's good views, and their numbers, (v, u) each.

    Collective.

    Args:
        problem: loader, evaluator and fields of the stage.
        estimate: the unknowns.
        batch: the views.
    """
    sums = problem.fields.reduction(3, *estimate.background.shape)
    for chunk in problem.loader.chunks(estimate, batch.views):
        data = chunk.data
        S = power(problem.evaluator.detect(chunk, problem.evaluator.forward(estimate, chunk).exit))
        I = data.intensity(problem.model.signal(S, chunk.values))
        sums.add(torch.stack((torch.where(data.good, I, 0.0), data.y, data.good.to(I.dtype)), dim=1))
    I, y, n = problem.fields.totals(sums)[0].to(problem.real)
    return I, y, n


def pixels_under_windows(estimate: Estimate) -> Tensor:
    """Return the pixels (H, W) bool of the estimate's object that lie under a window."""
    height, width = estimate.object.shape[-2:]
    corner_counts = torch.zeros(height + 1, width + 1, dtype=torch.int32, device=estimate.object.device)
    (h, w), (top, left) = estimate.window, estimate.relative_anchors(estimate.anchors).unbind(-1)
    bottom, right = (top + h).clamp(0, height), (left + w).clamp(0, width)
    top, left = top.clamp(0, height), left.clamp(0, width)
    for y, x, sign in ((top, left, 1), (bottom, right, 1), (top, right, -1), (bottom, left, -1)):
        corner_counts.index_put_((y, x), corner_counts.new_full((len(y),), sign), accumulate=True)
    return corner_counts.cumsum_(0).cumsum_(1)[:-1, :-1] > 0  # in place, as torch would otherwise sum in int64


def real(x: Tensor) -> Tensor:
    """Return a complex tensor as pairs of reals, a real one as it is; a view of the same memory."""
    return torch.view_as_real(x) if x.is_complex() else x


def above_zero(x: Tensor) -> Tensor:
    """Return x kept above zero, to divide by."""
    return x.clamp(min=torch.finfo(x.dtype).tiny)


def packed(tensor: Tensor, leaf: Tensor) -> Tensor:
    """Return memory of a leaf of pairs of reals as complex numbers, so that arrays of the object's shape grow with it.

    It is detached: torch remembers of a view its base, and of views of views the whole chain. Memory that is converted
    back and forth in every batch would have an ever longer chain, and take ever longer.
    """
    return torch.view_as_complex(tensor.detach()) if tensor.ndim == 4 and tensor.shape == leaf.shape else tensor


def unpacked(tensor: Tensor, leaf: Tensor) -> Tensor:
    """Return the tensor that `packed` was given; counters of a leaf are on the host."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.detach())
    return tensor.cpu() if tensor.ndim == 0 and leaf.ndim else tensor
