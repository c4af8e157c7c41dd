"""The ptychographic iterative engines.

ePIE  Maiden & Rodenburg, Ultramicroscopy 109, 1256 (2009)
rPIE, mPIE  Maiden, Johnson & Li, Optica 4, 736 (2017)
3PIE  Maiden, Humphry & Rodenburg, J. Opt. Soc. Am. A 29, 1606 (2012), with L slices

chi_jm   revised minus present exit wave;  P_jm = T_{f_j} P_m;  O_j = S_j O
w        sum_j S_j^H sum_m |P_jm|^2 over the batch;  u = sum_j |O_j|^2
blend(w, a) = (1 - a) w + a max w

    O += gamma_O / L sum_j S_j^H sum_m conj(P_jm) chi_jm / blend(w, alpha)
    P += gamma_P     sum_j T_{-f_j}(conj(O_j) chi_jm)    / blend(u, beta)

Numerators and weights are summed over the same views: a batch of one is the paper's step, and larger ones stay stable.
3PIE moves slices one after the other, each by what is left of chi; here all move at once, each by an L-th of its step:
whole steps together go L times too far, and four slices diverge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field, PositiveInt

from ptymesh.engines.base import Engine
from ptymesh.engines.cost import StepNeeds
from ptymesh.engines.sweeping import Sweeping
from ptymesh.estimate import Estimate
from ptymesh.problem import Batch, Problem
from ptymesh.unknowns import DECLARED, Unknown


class RPIE(Sweeping, Engine):
    """Regularised PIE (rPIE): blends each pixel's weight with the largest one by alpha (object) and beta (probe).

    Attributes:
        alpha: share of the largest weight in the object's divisor.
        beta: share of the largest weight in the probe's divisor.
        gamma_object: factor of the object's step.
        gamma_probe: factor of the probe's step.
    """

    name: ClassVar[str] = "rpie"
    peer_names: ClassVar[Mapping[str, tuple[str, ...]]] = {"ptychi": ("alpha",)}
    moves_own_probes: ClassVar[bool] = True
    moves_object_values: ClassVar[bool] = True
    models_of: ClassVar[tuple[str, ...]] = ("probe", "positions")

    alpha: float = Field(0.5, gt=0, le=1)
    beta: float = Field(0.5, gt=0, le=1)
    gamma_object: float = Field(1.0, gt=0, le=2)
    gamma_probe: float = Field(1.0, gt=0, le=2)

    def step(self, problem: Problem, estimate: Estimate, batch: Batch) -> None:
        """Apply O += gamma_O / L s_O / blend(w, alpha);  P += gamma_P s_P / blend(u, beta). Collective.

        Args:
            problem: loader, evaluator and fields of the stage.
            estimate: the unknowns, changed in place.
            batch: the views.
        """
        s, gamma = problem.gradients(estimate, batch), self.gamma_object / estimate.slices  # before either moves
        for probe, change, weight in zip(estimate.probes, *s.by_probe(estimate.probe_count), strict=True):
            problem.fields.add_weighted(probe, change, weight, blend=self.beta, times=self.gamma_probe)
        problem.fields.add_weighted(estimate.object, s.object, s.object_weight, blend=self.alpha, times=gamma)


class EPIE(Sweeping, Engine):
    """Extended PIE (ePIE): rPIE with alpha = beta = 1, the largest weight everywhere.

    Attributes:
        gamma_object: factor of the object's step.
        gamma_probe: factor of the probe's step.
    """

    name: ClassVar[str] = "epie"
    moves_own_probes: ClassVar[bool] = True
    moves_object_values: ClassVar[bool] = True
    models_of: ClassVar[tuple[str, ...]] = ("probe", "positions")

    gamma_object: float = Field(1.0, gt=0, le=2)
    gamma_probe: float = Field(1.0, gt=0, le=2)

    def step(self, problem: Problem, estimate: Estimate, batch: Batch) -> None:
        """Apply O += gamma_O / L s_O / max w;  P += gamma_P s_P / max u. Collective.

        Args:
            problem: loader, evaluator and fields of the stage.
            estimate: the unknowns, changed in place.
            batch: the views.
        """
        s, gamma = problem.gradients(estimate, batch), self.gamma_object / estimate.slices  # before either moves
        for probe, change, weight in zip(estimate.probes, *s.by_probe(estimate.probe_count), strict=True):
            problem.fields.add_weighted(probe, change, weight, blend=1, times=self.gamma_probe)
        problem.fields.add_weighted(estimate.object, s.object, s.object_weight, blend=1, times=gamma)


class MPIE(RPIE):
    """rPIE with momentum (mPIE): every T batches a velocity carries object and probe on.

    v <- eta v + (O' - O_T), O <- O' + eta v, with O' after T batches and O_T before them (eqs. 19 and 20).

    Attributes:
        momentum_every: T.
        eta_object: eta of the object.
        eta_probe: eta of the probe.
    """

    name: ClassVar[str] = "mpie"
    moves_object_values: ClassVar[bool] = False
    remembers: ClassVar[tuple[Unknown, ...]] = (replace(DECLARED["object"], name="object_start"),)
    step_needs: ClassVar[StepNeeds] = StepNeeds(object_arrays=2)

    momentum_every: PositiveInt = 10
    eta_object: float = Field(0.7, ge=0, lt=1)
    eta_probe: float = Field(0.7, ge=0, lt=1)

    def step(self, problem: Problem, estimate: Estimate, batch: Batch) -> None:
        """Take rPIE's step, and after every T of them the momentum's. Collective.

        Args:
            problem: loader, evaluator and fields of the stage.
            estimate: the unknowns, changed in place.
            batch: the views.
        """
        if "batches" not in self.state:
            self._remember(estimate)
        super().step(problem, estimate, batch)
        self.state["batches"] = self.state["batches"].cpu() + 1  # counted on the host, also after loading a checkpoint
        if int(self.state["batches"]) % self.momentum_every == 0:
            for name, unknown, eta in (
                ("object", estimate.object, self.eta_object),
                ("probe", estimate.probe, self.eta_probe),
            ):
                velocity, start = self.state[f"{name}_velocity"], self.state[f"{name}_start"]
                velocity.mul_(eta).add_(unknown).sub_(start)
                unknown.add_(velocity, alpha=eta)
                start.copy_(unknown)

    def _remember(self, estimate: Estimate) -> None:
        """Store object and probe as the start of T batches, with velocity 0."""
        self.state["batches"] = torch.zeros((), dtype=torch.int64)
        for name, unknown in (("object", estimate.object), ("probe", estimate.probe)):
            self.state[f"{name}_velocity"] = torch.zeros_like(unknown)
            self.state[f"{name}_start"] = unknown.clone()
