"""One pass over a batch that yields the derivatives of a loss by every unknown, summed over ranks in one message.

L          loss of a batch over its divisor D;  c  its curvature (losses.py)
g_jm       slope_j . Psi_jm on the detector, D^H g at the exit;  dL/d conj(x) of everything is an adjoint of it
slope      dL/dx of a real unknown; of a complex one dL/dRe x + i dL/dIm x = 2 dL/d conj(x), as pairs of reals
scale      1 / largest Gauss-Newton curvature of the unknown: a step of -scale x slope is ePIE's for object and probe.
           The slopes of positions and weights are divided by each view's own curvature from the start; an operator's
           unknown with a row per view has a scale for each
unit       size of the unknown: rms of the probe, mean count for the background, the tilt that moves the wave by a
           pixel from slice to slice, what an operator of the model says of its own, 1 otherwise
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.distributed.exact import Reduction
from ptymesh.engines.losses import Loss, OfFidelity, Summary
from ptymesh.estimate import Estimate
from ptymesh.physics.backend import Task
from ptymesh.physics.background import darkness, told
from ptymesh.physics.elementwise import means
from ptymesh.physics.fidelity import DARK, Data
from ptymesh.physics.model import Intermediates, power
from ptymesh.problem import Batch, Chunk, Gradients, Problem

#: Unknowns between slices, in the order in which they are swept.
GAPS = ("slice_spacing", "tilt")


@dataclass(frozen=True)
class Part:
    """Slope dL/dx of one unknown, real; scale and unit, 0-d or elementwise."""

    slope: Tensor
    scale: Tensor
    unit: Tensor | float = 1.0


class Sweep:
    """One pass over a batch: adjoints of -g, and what the unknowns besides object and probe need; then global sums."""

    def __init__(self, problem: Problem, estimate: Estimate, batch: Batch, wanted: set[str], loss: Loss) -> None:
        self.problem, self.estimate, self.batch, self.wanted, self.loss = problem, estimate, batch, wanted, loss
        vary = batch.vary or "weights" in wanted
        self._others = {one.name: one for one in problem.model.unknowns if one.name in wanted}
        #: Unknowns between slices, which look at waves and what comes back to them.
        self._gaps = [name for name in GAPS if name in wanted]
        #: Whether waves are those of the model's fidelity, and nothing else looks at them.
        self._plain = isinstance(loss, OfFidelity) and not self._others
        #: Whether passes over the detector tell a background what they find; slopes of other losses may have any size.
        tells = isinstance(loss, OfFidelity) and "background" in wanted
        task: Task | None = "loss_gradient" if self._plain else None
        batch, keep = replace(batch, vary=vary), bool(self._gaps)
        self.accumulator = problem.accumulator(estimate, batch, task=task, keep=keep, background=tells)
        self.terms = problem.fields.reduction(loss.terms)
        shapes = {"slice_spacing": (2,), "tilt": (2, 2)} | ({} if tells else {"background": (2, *problem.window)})
        shapes |= {name: (2, *real(estimate[name]).shape) for name, one in self._others.items() if one.scope != "view"}
        #: Of operators' unknowns with a row per view, chunk by chunk: slopes (B, numbers of a row), last curvature.
        self._of_views: dict[str, list[Tensor]] = {}
        self.reductions = {name: problem.fields.reduction(*shape) for name, shape in shapes.items() if name in wanted}

    def run(self, note: bool = True) -> None:
        """Sweeps the batch; `note`: for the running loss of the epoch."""
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
        """A chunk whose waves are looked at, or whose loss is not the model's fidelity."""
        problem, estimate = self.problem, self.estimate
        intermediates = problem.evaluator.forward(estimate, chunk)
        if isinstance(self.loss, OfFidelity):
            lit = self.accumulator.sums.background
            waves, sums = problem.evaluator.loss_gradient(chunk, intermediates, note, lit)
            self.terms.add(sums)
        else:
            waves = self._loss_gradient(chunk, intermediates, note)
        self.accumulator.add(chunk, intermediates, waves)
        self._add_gaps(chunk, intermediates, waves)
        if self._others:
            self._add_others(problem.model.operator_slopes(intermediates, waves))

    def _add_gaps(self, chunk: Chunk, intermediates: Intermediates, waves: Tensor) -> None:
        """What spacing and tilt of the slices ask for, where they are wanted."""
        if not self._gaps:
            return
        model = self.problem.model
        rates = torch.cat([model.gap_rates(name) for name in self._gaps])
        found = self.problem.backend.gap_products(model, chunk, intermediates, rates, waves)
        if "tilt" in self._gaps:
            self.reductions["tilt"].add(found[:, -2:].transpose(1, 2).contiguous())
        if "slice_spacing" in self._gaps:
            self.reductions["slice_spacing"].add(found[:, 0])

    def _add_others(self, found: dict[str, tuple[Tensor, Tensor]]) -> None:
        """What the unknowns of the model's operators ask for; of those with a row per view, its largest curvature."""
        for name, one in self._others.items():
            along, norm = (real(t).to(torch.float64) for t in found[name])
            if one.scope == "view":
                rows = (along.reshape(len(along), -1), norm.reshape(len(norm), -1).amax(1, keepdim=True))
                self._of_views.setdefault(name, []).append(torch.cat(rows, dim=1))
            else:
                norm = norm[..., None] if one.complex else norm
                self.reductions[name].add(torch.stack((along, norm.expand_as(along)), dim=1))

    def _loss_gradient(self, chunk: Chunk, intermediates: Intermediates, note: bool) -> Tensor:
        """-D^H (slope Psi) of any loss, (B, M, h, w)."""
        problem = self.problem
        detected = problem.evaluator.detect(chunk, intermediates.exit)
        S = power(detected)
        if note:
            problem.evaluator.note(chunk, S)
        slope = self.loss.slope(S, chunk.data)
        self.terms.add(self.loss.sums(S, chunk.data))
        if "background" in self.wanted:
            self.reductions["background"].add(self._of_background(S, chunk.data))
        detected *= -slope[:, None]
        return problem.model.detect_adjoint(detected, chunk.fractions)

    def _of_background(self, S: Tensor, data: Data) -> Tensor:
        """Slope by b and I^(-1/2) of each view, (B, 2, h, w); also where the model has no light, for b needs none."""
        S = told(S, data)
        return torch.stack((self.loss.slope(S, data), darkness(S, data)), dim=1)

    def total(self) -> tuple[Gradients, Summary, dict[str, Part]]:
        """Global sums, what those of the loss mean, and the parts of all unknowns but the object.

        What will move positions and beams is brought to the size of Gauss-Newton steps.
        """
        estimate = self.estimate
        sent: dict[str, Reduction | Tensor] = {"loss": self.terms, **self.reductions, **self._rows()}
        sums = self.accumulator.total(*sent.values())
        others = dict(zip(sent, sums.others, strict=True))
        if sums.background is not None:
            others["background"] = sums.background
        of_loss, loss = others.pop("loss"), self.loss
        if isinstance(loss, OfFidelity):
            summary = Summary(*self.problem.evaluator.at_once("what a loss means", loss.summed_up, of_loss))
        else:  # which may hold numbers of this batch
            summary = loss.summary(of_loss)
        _, D, c, _ = summary
        self.batch.asked.positions = [(views, step / c) for views, step in self.batch.asked.positions]
        self.batch.asked.weights = [(views, step / c) for views, step in self.batch.asked.weights]
        self.batch.asked.gradients = replace(sums, opr=sums.opr / c)
        parts = {}
        for name, field, weight in (("probe", sums.probe, sums.probe_weight), ("opr", sums.opr, sums.opr_weight)):
            if name in self.wanted and len(field):
                brought = field, weight, torch.stack((D, c))
                name_of_work = (f"the step of the {name}",)
                found = self.problem.backend.repeat(name_of_work, _of_modes, estimate.probe, brought=brought)
                parts[name] = Part(*found)
        return sums, summary, parts | self._more_parts(others, summary)

    def _rows(self) -> dict[str, Tensor]:
        """What the unknowns of views ask for, this rank's own."""
        problem, rows = self.problem, {}
        of_views = {"positions": self.batch.asked.positions, "weights": self.batch.asked.weights}
        for name in [name for name in of_views if name in self.wanted]:  # in one order on all ranks, unlike a set's
            width = self.estimate[name][0].numel()
            rows[name] = problem.loader.rows(self.batch, [step for _, step in of_views[name]], width)
        for name in [name for name, one in self._others.items() if one.scope == "view"]:
            width = real(self.estimate[name])[0].numel() + 1
            rows[name] = problem.loader.rows(self.batch, self._of_views.get(name, []), width)
        return rows

    def _more_parts(self, others: dict[str, Tensor], summary: Summary) -> dict[str, Part]:
        _, D, c, counts = summary
        parts = {}
        if "background" in others:
            views = len(self.batch.views)
            mean = counts / (views * self.estimate.background.numel())
            slope, dark = others["background"]
            # c sum 1 / (2 I), in which a single dark speckle would outweigh all others
            curvature = c / 2 * (dark.square() / views).clamp(min=DARK)
            parts["background"] = Part(slope / D, D / curvature, mean)
        for gap in [name for name in GAPS if name in others]:
            along, norm = others[gap]
            unit = sent(self._pixel_tilt().to(along.dtype), along.device) if gap == "tilt" else 1.0
            parts[gap] = Part(along * (-2 / D), D / (2 * c * above_zero(norm)), unit)
        for moved in [name for name in ("positions", "weights") if name in others]:
            slope = self._of_all(others[moved] / -c, torch.zeros_like(self.estimate[moved]))
            parts[moved] = Part(slope, torch.ones_like(c))
        for name, one in self._others.items():
            like, unit = real(self.estimate[name]), self.problem.model.sizes[name]
            if one.scope == "view":
                along, norm = others[name][:, :-1], others[name][:, -1:]
                if one.common_to in self.wanted and len(along) > 1:
                    along = along - norm * means(along / above_zero(norm))  # steps without their mean
                most = above_zero(norm.max())
                curvature = self._of_all(torch.where(norm > 0, norm, most), most.expand(len(like), 1))
                along = self._of_all(along, torch.zeros_like(like))
                scale = D / (2 * c * curvature.view(-1, *[1] * (like.ndim - 1)))
            else:
                along, norm = others[name]
                scale = D / (2 * c * above_zero(norm.max()))
            parts[name] = Part((along * (-2 / D)).to(like.dtype), scale, unit)
        return parts

    def _of_all(self, rows: Tensor, others: Tensor) -> Tensor:
        """Of all views (N, ...): these rows (B, n) of the batch's, and of the others what is given."""
        found = others.clone()
        found[sent(self.batch.views, self.problem.device)] = rows.to(found.dtype).reshape(-1, *found.shape[1:])
        return found

    def _pixel_tilt(self) -> Tensor:
        """Change of each tilt (2,) by which the wave moves by a pixel from slice to slice."""
        pixels, estimate = self.problem.geometry.object_pixel_m, self.estimate
        assert pixels is not None, "slices have a pixel size"
        pairs = zip(pixels, estimate.tilt_rad, strict=True)
        return torch.tensor([d * math.cos(t) ** 2 / estimate.slice_spacing_m for d, t in pairs], dtype=torch.float64)


def _of_modes(probe: Tensor, field: Tensor, weight: Tensor, D_c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Slope, scale and unit of modes of the probe, from the sums and their weight."""
    D, c = D_c
    rms = (2 * means(real(probe).square().flatten())).sqrt()
    return real(field) * (-2 / D), D / (2 * c * above_zero(weight.max())), rms


def averages(problem: Problem, estimate: Estimate, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of intensities and of counts over the batch's good views, and their numbers, (h, w) each; one message."""
    sums = problem.fields.reduction(3, *problem.window)
    for chunk in problem.loader.chunks(estimate, batch.views):
        data = chunk.data
        I = data.intensity(power(problem.evaluator.detect(chunk, problem.evaluator.forward(estimate, chunk).exit)))
        sums.add(torch.stack((torch.where(data.good, I, 0.0), data.y, data.good.to(I.dtype)), dim=1))
    I, y, n = problem.fields.totals(sums)[0].to(problem.real)
    return I, y, n


def covered(estimate: Estimate) -> Tensor:
    """Pixels (H, W) bool of the estimate's object that lie under a window."""
    height, width = estimate.object.shape[-2:]
    change = torch.zeros(height + 1, width + 1, dtype=torch.int32, device=estimate.object.device)
    (h, w), (top, left) = estimate.window, estimate.here(estimate.anchors).unbind(-1)
    bottom, right = (top + h).clamp(0, height), (left + w).clamp(0, width)
    top, left = top.clamp(0, height), left.clamp(0, width)
    for y, x, sign in ((top, left, 1), (bottom, right, 1), (top, right, -1), (bottom, left, -1)):
        change.index_put_((y, x), change.new_full((len(y),), sign), accumulate=True)
    return change.cumsum_(0).cumsum_(1)[:-1, :-1] > 0  # in place: torch would sum in twice as many bytes


def real(x: Tensor) -> Tensor:
    """A complex tensor as pairs of reals, a real one as it is; a view of the same memory."""
    return torch.view_as_real(x) if x.is_complex() else x


def above_zero(x: Tensor) -> Tensor:
    """Kept above zero, to divide by."""
    return x.clamp(min=torch.finfo(x.dtype).tiny)


def packed(tensor: Tensor, leaf: Tensor) -> Tensor:
    """Memory of a leaf of pairs of reals as complex numbers, so that what is of the object's shape grows with it.

    Detached: torch remembers of a view what it is a view of, and of views of views all that lies between. Memory that
    goes back and forth in every batch would carry an ever longer tale, and take ever longer.
    """
    return torch.view_as_complex(tensor.detach()) if tensor.ndim == 4 and tensor.shape == leaf.shape else tensor


def unpacked(tensor: Tensor, leaf: Tensor) -> Tensor:
    """What `packed` was given; counters of a leaf stay on the host."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.detach())
    return tensor.cpu() if tensor.ndim == 0 and leaf.ndim else tensor
