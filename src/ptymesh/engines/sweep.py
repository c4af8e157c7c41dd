"""One pass over a batch that yields the derivatives of a loss by every unknown, summed over ranks in one message.

L          loss of a batch over its divisor D;  c  its curvature (losses.py)
g_jm       slope_j . Psi_jm on the detector, D^H g at the exit;  dL/d conj(x) of everything is an adjoint of it
slope      dL/dx of a real unknown; of a complex one dL/dRe x + i dL/dIm x = 2 dL/d conj(x), as pairs of reals
scale      1 / largest Gauss-Newton curvature of the unknown (each view's own for positions and weights): a step of
           -scale x slope is ePIE's for object and probe
unit       size of the unknown: rms of the probe, mean count for the background, 1 otherwise
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ptymesh.engines.losses import Loss, Summary
from ptymesh.estimate import Estimate
from ptymesh.physics.model import Scene, power
from ptymesh.problem import Batch, Chunk, Problem, Sums


@dataclass(frozen=True)
class Part:
    """Slope dL/dx of one unknown, real; scale, 0-d or elementwise; unit, 0-d or 1."""

    slope: Tensor
    scale: Tensor
    unit: Tensor | float = 1.0


class Sweep:
    """One pass over a batch: adjoints of -g, and what the unknowns besides object and probe need; then global sums."""

    def __init__(self, problem: Problem, estimate: Estimate, batch: Batch, wanted: set[str], loss: Loss) -> None:
        self.problem, self.estimate, self.batch, self.wanted, self.loss = problem, estimate, batch, wanted, loss
        self.accumulator = problem.accumulator(estimate, Batch(batch.views))
        self.terms = torch.zeros(loss.terms, dtype=torch.float64, device=problem.device)
        self.background = torch.zeros_like(estimate.background)
        self.spacing = torch.zeros(2, dtype=torch.float64, device=problem.device)
        self.views: list[Tensor] = []
        self.positions: list[Tensor] = []
        self.weights: list[Tensor] = []

    def add(self, chunk: Chunk) -> None:
        """Sweeps a chunk."""
        problem, model, estimate = self.problem, self.problem.model, self.estimate
        scene = problem.scene(estimate, chunk)
        detected = problem.detect(chunk, scene.exit)
        S = power(detected)
        problem.note(chunk, S)
        slope = self.loss.slope(S, chunk.data)
        waves = model.detect_adjoint(detected * -slope[:, None], chunk.fractions)
        self.accumulator.add(chunk, scene, waves)
        self.terms += self.loss.sums(S, chunk.data)
        if "background" in self.wanted:
            self.background += slope.sum(0)
        if "slice_spacing" in self.wanted:
            stretched = model.spacing_derivative(scene) * estimate.slice_spacing_m
            self.spacing += products([stretched], waves).sum(0)
        if "weights" in self.wanted:
            self.weights.append(products(self._by_weights(chunk, scene), waves))
        if self.batch.refine:
            where = (estimate.object, chunk.anchors, chunk.fractions, scene)
            self.views.append(chunk.views)
            self.positions.append(products([model.position_derivative(*where, axis) for axis in (0, 1)], waves))

    def _by_weights(self, chunk: Chunk, scene: Scene) -> list[Tensor]:
        """d psi / d w_jk, (B, M, h, w) for each k: of all modes for w_j0, of the first for OPR modes."""
        model, estimate = self.problem.model, self.estimate
        ones = torch.ones_like(chunk.weights[:, :1])
        changes = [model.exit_change(scene, model.probes(estimate.probe, chunk.fractions, ones), None)]
        for mode in estimate.opr:
            probes = torch.zeros_like(scene.incoming[0])
            probes[:, :1] = model.probes(mode[None], chunk.fractions, ones)
            changes.append(model.exit_change(scene, probes, None))
        return changes

    def total(self) -> tuple[Sums, Summary, dict[str, Part]]:
        """Global sums, what those of the loss mean, and the parts of all unknowns but the object."""
        problem, estimate, wanted = self.problem, self.estimate, self.wanted
        others = {"loss": self.terms}
        if "background" in wanted:
            others["background"] = self.background
        if "slice_spacing" in wanted:
            others["slice_spacing"] = self.spacing
        if "weights" in wanted:
            others["weights"] = problem.rows(self.batch, self.weights, 2 * estimate.weights.shape[1])
        if "positions" in wanted:
            others["positions"] = problem.rows(self.batch, self.positions, 4)
        sums = self.accumulator.total(*(other.to(problem.real) for other in others.values()))
        others = dict(zip(others, sums.others, strict=True))
        summary = self.loss.summary(others.pop("loss"))
        _, D, c, counts = summary
        parts = {}
        if "probe" in wanted:
            rms = estimate.probe.abs().square().mean().sqrt()
            scale = D / (2 * c * above_zero(sums.probe_weight.max()))
            for name, field in (("probe", sums.probe), ("opr", sums.opr)):
                if len(field):
                    parts[name] = Part(real(field) * (-2 / D), scale, rms)
        if "background" in others:
            mean = counts / (len(self.batch.views) * estimate.background.numel())
            parts["background"] = Part(others["background"] / D, 2 * mean * D / (c * len(self.batch.views)), mean)
        if "slice_spacing" in others:
            parts["slice_spacing"] = _part(*others["slice_spacing"], summary)
        for name in others.keys() & {"weights", "positions"}:
            whole = getattr(estimate, name).new_zeros(2, *getattr(estimate, name).shape)
            rows = others[name].to(whole.dtype)
            whole[:, self.batch.views] = rows.view(len(rows), 2, -1).transpose(0, 1)
            parts[name] = _part(*whole, summary)
        return sums, summary, parts

    def position_steps(self, summary: Summary) -> list[tuple[Tensor, Tensor]]:
        """<d psi/d p_a, -g> / (c ||d psi/d p_a||^2) of this rank's views, chunk by chunk: (B,) views, (B, 2) steps."""
        steps = []
        for views, rows in zip(self.views, self.positions, strict=True):
            along, norm = rows.chunk(2, dim=1)
            steps.append((views, along / (summary.curvature * above_zero(norm))))
        return steps


def products(derivatives: list[Tensor], waves: Tensor) -> Tensor:
    """<d psi, waves> of each derivative, then its ||d psi||^2; (B, M, h, w) each -> (B, 2 n) float64."""
    along = [(d.conj() * waves).real.sum((1, 2, 3), dtype=torch.float64) for d in derivatives]
    norms = [power(d).sum((1, 2), dtype=torch.float64) for d in derivatives]
    return torch.stack(along + norms, dim=1)


def _part(along: Tensor, norm: Tensor, summary: Summary) -> Part:
    D, c = summary.divisor.to(norm.dtype), summary.curvature.to(norm.dtype)
    return Part(along * (-2 / D), torch.where(norm > 0, D / (2 * c * above_zero(norm)), 0.0))


def covered(estimate: Estimate) -> Tensor:
    """Object pixels (H, W) bool that lie under a window."""
    height, width = estimate.object.shape[-2:]
    change = torch.zeros(height + 1, width + 1, dtype=torch.int32, device=estimate.object.device)
    first = estimate.anchors
    last = first + torch.tensor(estimate.window, device=first.device)
    for y, x, sign in ((first, first, 1), (last, last, 1), (first, last, -1), (last, first, -1)):
        signs = change.new_full((len(first),), sign)
        change.index_put_((y[:, 0], x[:, 1]), signs, accumulate=True)
    return change.cumsum(0).cumsum(1)[:-1, :-1] > 0


def real(x: Tensor) -> Tensor:
    """A complex tensor as pairs of reals, a real one as it is; a view of the same memory."""
    return torch.view_as_real(x) if x.is_complex() else x


def above_zero(x: Tensor) -> Tensor:
    """Kept above zero, to divide by."""
    return x.clamp(min=torch.finfo(x.dtype).tiny)
