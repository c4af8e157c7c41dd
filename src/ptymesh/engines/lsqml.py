"""LSQML: iterative least-squares solver for generalised maximum-likelihood ptychography.

Odstrcil, Menzel & Guizar-Sicairos, Opt. Express 26, 3108 (2018).

chi_j    change of view j's exit wave towards its counts
dO, dP   common directions of object and probe;  dO_j = S_j dO, dP_j = T_{f_j} dP
kappa    sum_j S_j^H sum_m |P_jm|^2 over *all* views

    dO = sum_j S_j^H sum_m conj(P_jm) chi_jm / sqrt(kappa^2 + (delta max kappa)^2)
    dP = mean_j T_{-f_j}(conj(O_j) chi_jm)

Steps a_j (object) and b_j (probe) of each view minimise ||chi_j - a_j P_j dO_j - b_j dP_j O_j||^2:

    [A11 A12] [a]   [<P dO, chi>]     A11 = ||P dO||^2, A22 = ||dP O||^2, A12 = <P dO, dP O>
    [A12 A22] [b] = [<dP O, chi>]     diagonals += damping x their mean over the batch

The object moves by the trimmed mean of its steps over the batch, the probe by the mean of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.distributed.layouts.layout import BlockSparseField, product
from ptymesh.engines.base import Engine, OnOff, Schedule
from ptymesh.engines.cost import EngineCost, StepNeeds
from ptymesh.engines.sweeping import Sweeping
from ptymesh.estimate import Estimate
from ptymesh.options import Options
from ptymesh.physics.elementwise import means
from ptymesh.physics.rounding import total_of
from ptymesh.problem import Batch, CachedChunk, Gradients, Problem
from ptymesh.unknowns import DECLARED, Unknown


class Momentum(Schedule, Options):
    """Acceleration of object and probe by their updates of whole epochs, each while the Fourier error falls.

    Its own updates have to agree, too. In the paper (sec. 3.4) it is of the object in compact batches.

    Attributes:
        gain: of the velocity.
        memory: number of earlier epochs whose updates must all point along the present one.
    """

    gain: float = Field(0.5, gt=0, le=1)
    memory: int = Field(2, ge=1, le=5)


class LSQML(Sweeping, Engine):
    """Least-squares maximum likelihood: one step length per view and unknown, from a 2 x 2 system.

    With compact batches the object is applied once per epoch, and the probe's step divided by the number of batches.

    Attributes:
        delta: regularises kappa, as a fraction of the largest.
        damping: of the 2 x 2 systems, as a fraction of their mean diagonal.
        step_factor: factor on all step lengths.
        trim: fraction of object steps left out of their mean, half at either end.
        coupled: True to solve for object and probe together, False for each alone.
        step_modes: probe modes that the systems sum over.
        probe_direction: plain mean, or weighted by sum_j |O_j|^2.
        momentum: acceleration by updates of whole epochs; None without.
    """

    name: ClassVar[str] = "lsqml"
    peer_names: ClassVar[Mapping[str, tuple[str, ...]]] = {"ptychi": ("noise_model",)}
    moves_object_values: ClassVar[bool] = True
    remembers: ClassVar[tuple[Unknown, ...]] = (replace(DECLARED["object"], name="epoch_start"),)
    models_of: ClassVar[tuple[str, ...]] = ("probe", "positions")
    cost: ClassVar[EngineCost] = EngineCost(1.4, 0.95, per_batch=1.9, per_object_pixel=0.8, per_epoch=2.0)
    step_needs: ClassVar[StepNeeds] = StepNeeds(maxima=0, doubles_per_view=5, object_arrays=1.5, waves_per_batch_view=2)

    delta: float = Field(0.1, gt=0, le=1)
    damping: float = Field(0.1, ge=0, le=1)
    step_factor: float = Field(0.9, gt=0, le=1)
    trim: float = Field(0.1, ge=0, lt=1)
    coupled: bool = True
    step_modes: Literal["all", "first"] = "all"
    probe_direction: Literal["mean", "weighted"] = "mean"
    momentum: Annotated[Momentum | None, OnOff] = None

    def before_epoch(self, problem: Problem, estimate: Estimate) -> None:
        """Compute kappa of all views, and store the epoch's start for momentum. Collective."""
        self.state["kappa"] = problem.evaluator.illumination(estimate)[None].expand(estimate.object.shape).clone()
        self.state["kappa_max"] = problem.fields.max(self.state["kappa"])
        if self.order == "compact":
            self.state["pending"] = torch.zeros_like(estimate.object)
        if self.momentum:
            self.state["epoch_start"] = estimate.object.clone()
            self.state["probe_start"] = estimate.probe.clone()

    def step(self, problem: Problem, estimate: Estimate, batch: Batch) -> None:
        """Find directions in one sweep and step lengths in a second one over the same views, and move. Collective.

        Args:
            problem: loader, evaluator and fields of the stage.
            estimate: the unknowns, changed in place.
            batch: the views.
        """
        self.state["epoch"] = torch.tensor(batch.epoch)
        sums, swept = self._sweep(problem, estimate, batch)
        directions, d_probe = self._directions(problem, sums, len(batch.views))
        direction = problem.fields.window_array(directions, estimate)
        d_object = problem.fields.touched(direction, directions)
        systems = problem.loader.of_batch(batch, self._systems(problem, estimate, direction, d_probe, swept), 5)
        by_object, by_probe = problem.evaluator.at_once("step lengths", self._steps, systems).to(problem.real)
        if self.order == "compact":
            problem.fields.add(self.state["pending"], by_object * d_object)
            problem.fields.add(estimate.probe, by_probe * len(batch.views) / problem.views * d_probe)
            return
        problem.fields.add(estimate.object, by_object * d_object)
        problem.fields.add(estimate.probe, by_probe * d_probe)

    def _sweep(self, problem: Problem, estimate: Estimate, batch: Batch) -> tuple[Gradients, list[CachedChunk]]:
        """Return the sums of the batch's adjoints of chi, and its chunks for a second sweep."""
        accumulator, swept = problem.accumulator(estimate, batch, task="exit_wave_update", keep=True), []
        for chunk in accumulator.chunks():
            intermediates = problem.evaluator.forward(estimate, chunk)
            chi = accumulator.exit_wave_update(chunk, intermediates)
            swept.append(problem.evaluator.keep(chunk, intermediates, chi))
        return accumulator.total(), swept

    def _directions(self, problem: Problem, sums: Gradients, views: int) -> tuple[BlockSparseField, Tensor]:
        """Return dO on touched blocks, and dP (M, h, w)."""
        kappa = problem.fields.touched(self.state["kappa"], sums.object)
        floor = self.delta * self.state["kappa_max"]
        d_object = sums.object / (kappa * kappa + floor**2).sqrt()
        if self.probe_direction == "mean":
            return d_object, sums.probe / views
        weight = sums.probe_weight
        floored = weight + self.delta * weight.max() + torch.finfo(weight.dtype).tiny
        return d_object, sums.probe * floored.reciprocal()  # six times faster than dividing complex numbers

    def _systems(
        self, problem: Problem, estimate: Estimate, direction: Tensor, d_probe: Tensor, swept: list[CachedChunk]
    ) -> list[Tensor]:
        """Return A11, A22, A12, <P dO, chi>, <dP O, chi> of this rank's views, (B, 5) float64 for each chunk."""
        modes = None if self.step_modes == "all" else 1
        return [
            problem.evaluator.systems(estimate, chunk_of_sweep, direction, d_probe, modes) for chunk_of_sweep in swept
        ]

    def _steps(self, systems: Tensor) -> Tensor:
        """Return the steps of object and probe, (2,), from systems (B, 5)."""
        a, b = self._solve(systems)
        return torch.stack((trimmed_mean(a, self.trim), means(b)))

    def _solve(self, systems: Tensor) -> tuple[Tensor, Tensor]:
        """Return steps a, b (B,) from systems (B, 5): real, not negative, times `step_factor`."""
        a11, a22, a12, b1, b2 = systems.unbind(1)
        tiny = torch.finfo(systems.dtype).tiny
        a11 = a11 + self.damping * means(a11) + tiny
        a22 = a22 + self.damping * means(a22) + tiny
        if self.coupled:
            determinant = (a11 * a22 - a12**2).clamp(min=tiny)
            a, b = (a22 * b1 - a12 * b2) / determinant, (a11 * b2 - a12 * b1) / determinant
            # If one direction is zero (a frozen probe), the other one is solved alone.
            a = torch.where(a22 > 1e-30 * a11, a, b1 / a11)
            b = torch.where(a22 > 1e-30 * a11, b, torch.zeros_like(b))
        else:
            a, b = b1 / a11, b2 / a22
        return self.step_factor * a.clamp(min=0), self.step_factor * b.clamp(min=0)

    def after_epoch(self, problem: Problem, estimate: Estimate) -> None:
        """Apply pending object updates, and momentum. Collective.

        v <- (1 - friction) v + U with the epoch's update U of the object; O <- O + gain W v, W the illumination. The
        probe has a velocity of its own: P <- P + gain v.

        That is done only while the Fourier error has fallen over the remembered epochs, and for each only while its own
        updates all point along U; the friction is a tenth of the rate at which their correlation with U decays.
        Otherwise v is halved. With random batches it is the probe that is accelerated: its updates correlate at 0.8,
        those of the object, which each batch moves as far as its few views fit, at -0.4 (on the Siemens star).
        """
        if self.order == "compact":
            problem.fields.add(estimate.object, self.state["pending"])
        if self.momentum is None:
            return
        state, memory, gain = self.state, self.momentum.memory, self.momentum.gain
        residual = torch.tensor([problem.evaluator.running()[1]], dtype=torch.float64)
        state["errors"] = torch.cat((state.get("errors", residual[:0]).cpu(), residual))[-memory - 1 :]
        falling = len(state["errors"]) > memory and bool((state["errors"].diff() < 0).all())
        on = falling and self.momentum.active(int(state["epoch"]))
        update = estimate.object - state.pop("epoch_start")
        velocity = _velocity(state, "", update, memory, on, lambda a, b: problem.fields.dot(a, b, estimate))
        if velocity is not None:
            weight = state["kappa"] / (0.1 * state["kappa_max"] + state["kappa"])
            problem.fields.add(estimate.object, gain * weight * velocity)
        update = estimate.probe - state.pop("probe_start")
        velocity = _velocity(state, "probe_", update, memory, on, lambda a, b: total_of(product(a, b)))
        if velocity is not None:
            problem.fields.add(estimate.probe, gain * velocity)


def _velocity(
    state: dict[str, Tensor],
    prefix: str,
    update: Tensor,
    memory: int,
    on: bool,
    dot: Callable[[Tensor, Tensor], Tensor],
) -> Tensor | None:
    """Add this epoch's update of an unknown to its velocity; return that if it is to be applied, else None."""
    earlier = [state[name] for age in range(1, memory + 1) if (name := f"{prefix}update{age}") in state]
    velocity = state.setdefault(f"{prefix}velocity", torch.zeros_like(update))
    friction = _friction(update, earlier, dot) if on and len(earlier) == memory else None
    if friction is None:
        velocity *= 0.5
    else:
        velocity.mul_(1 - friction).add_(update)
    for age, one in enumerate([update, *earlier][:memory], start=1):
        state[f"{prefix}update{age}"] = one
    return None if friction is None else velocity


def _friction(update: Tensor, earlier: list[Tensor], dot: Callable[[Tensor, Tensor], Tensor]) -> float | None:
    """Return a tenth of the decay rate of the correlation with earlier updates.

    None if one of them does not point along.
    """
    norm = dot(update, update)
    correlations = [float(dot(update, u) / (norm * dot(u, u)).sqrt()) for u in earlier]
    if not all(correlation > 0 for correlation in correlations):
        return None
    ages = torch.arange(len(earlier) + 1, dtype=torch.float64)
    logs = torch.log(torch.tensor([1.0, *correlations], dtype=torch.float64))
    slope = ((ages - ages.mean()) * (logs - logs.mean())).sum() / ((ages - ages.mean()) ** 2).sum()
    return min(1.0, 0.1 * max(-float(slope), 0.0))


def trimmed_mean(values: Tensor, trim: float) -> Tensor:
    """Return the mean of values (B,) without the trim/2 lowest and the trim/2 highest fractions."""
    cut = int(len(values) * trim / 2)
    return means(values.sort().values[cut : len(values) - cut])
