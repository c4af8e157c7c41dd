"""Elementwise torch optimisers as engines: Adam, AdamW, NAdam, RAdam, Adamax, Adagrad, Adadelta, RMSprop and SGD.

x          an unknown in its unit;  g = scale x slope, its gradient in that unit (sweep.py)
lr         learning rate, in units of the unknown: of the object's amplitude, of the probe's rms, in pixels ...

    x <- torch's update(x, g, memory)

Because g is a Gauss-Newton step, SGD with lr = 1 is ePIE, and `eps`, where an optimiser has one, is a fraction of the
gradient that a wholly wrong, fully lit pixel has: pixels that hardly any light reaches stay where they are.
The optimiser's memory is kept in `state` as `unknown.name`, an unknown's own from the batch in which it first moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor

from ptymesh.engines.autodiff import Autodiff
from ptymesh.engines.base import OnOff, Options, Schedule
from ptymesh.engines.schedulers import Pace, Scheduler
from ptymesh.engines.sweep import packed, unpacked
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.problem import Batch, Problem

#: torch optimisers that are no engines, and why.
REFUSED = {
    "sparseadam": "it works on sparse gradients alone; use adam",
    "adafactor": "its rows and columns of second moments mix pixels of a whole array; use adam",
    "muon": "it orthogonalises whole matrices, which an object is not; use adam",
    "rprop": "it follows signs alone, which are rounding errors where no light falls; use adam",
    "asgd": "torch keeps the average beside the unknowns and never uses it; use sgd",
}

Beta = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]
Eps = Annotated[float, Field(gt=0)]
Betas = tuple[Beta, Beta]
#: Gradients below this fraction of a fully lit pixel's do not move a pixel at the full rate.
EPS = 1e-3


class Unknown(Schedule):
    """One unknown: its own learning rate (default: the engine's), and the epochs in which it moves."""

    lr: float | None = Field(None, gt=0)


class Unknowns(Options):
    """What moves. Amplitude (of parametrisation amplitude_phase) moves with the object unless it has an entry of its
    own; positions need the stage's `positions`, whose steps then go through the optimiser; opr (modes) and weights (of
    beam and modes) are left to the upkeep of the probe unless they stand here."""

    object: Annotated[Unknown | None, OnOff] = Unknown()
    amplitude: Unknown | None = None
    probe: Annotated[Unknown | None, OnOff] = Unknown()
    opr: Annotated[Unknown | None, OnOff] = None
    positions: Annotated[Unknown | None, OnOff] = None
    weights: Annotated[Unknown | None, OnOff] = None
    background: Annotated[Unknown | None, OnOff] = None
    slice_spacing: Annotated[Unknown | None, OnOff] = None


class Elementwise(Autodiff):
    """An elementwise torch optimiser: learning rate, what moves, and how the learning rate changes by epoch."""

    torch_class: ClassVar[Callable[..., torch.optim.Optimizer]]

    lr: float = Field(0.03, gt=0)
    unknowns: Unknowns = Unknowns()
    scheduler: Scheduler | None = None

    _pace: Pace | None = PrivateAttr(None)

    def _hyperparameters(self) -> dict[str, Any]:
        """Options that are the torch optimiser's own, besides lr."""
        own = type(self).model_fields.keys() - Elementwise.model_fields.keys()
        return {name: getattr(self, name) for name in own}

    @model_validator(mode="after")
    def _consistent(self) -> Elementwise:
        unknowns = self.unknowns
        if unknowns.amplitude and self.parametrisation != "amplitude_phase":
            raise ValueError(
                f"unknowns.amplitude has no meaning with parametrisation {self.parametrisation}; remove it"
            )
        if unknowns.positions and not self.positions:
            raise ValueError("unknowns.positions needs positions: true, whose limits and drift removal it uses")
        if not any(getattr(unknowns, name) for name in Unknowns.model_fields):
            raise ValueError("unknowns leaves nothing to move; remove it")
        if (unknowns.opr or unknowns.weights) and (self.probe.opr or self.probe.intensity):
            raise ValueError(
                "unknowns.opr and unknowns.weights refine what probe.opr and probe.intensity do; "
                "set both of probe's to false"
            )
        self._new_pace()  # torch's own checks
        return self

    def check(self, problem: Problem) -> None:
        """Raises BadInput for a slice spacing where there is a single slice."""
        super().check(problem)
        if self.unknowns.slice_spacing and problem.model.slice_kernel is None:
            raise BadInput("unknowns.slice_spacing has no meaning for a single slice; remove it from the stage.")

    def step(self, problem: Problem, estimate: Estimate, batch: Batch) -> None:
        """One update of every unknown that moves in this epoch."""
        wanted = self._moving(problem, batch)
        found = self.gradient(problem, estimate, batch, wanted)
        leaves = self.leaves(estimate, found.parts)
        for name, part in found.parts.items():
            leaves[name].grad = (part.slope * (part.scale / part.unit)).to(leaves[name].dtype)
        if leaves:
            self._update(leaves, batch.epoch)
        self.write(problem, estimate, leaves, found.parts)
        if "positions" in leaves:
            own = torch.as_tensor(problem.layout.own, device=problem.device)
            problem.position_steps[:] = [(own, leaves["positions"][own])]

    def after_epoch(self, problem: Problem, estimate: Estimate) -> None:
        """Keeps the epoch's loss for a scheduler that looks at it."""
        if self.scheduler and self.scheduler.looks_at_losses:
            loss = torch.tensor([problem.running()[0]], dtype=torch.float64)
            self.state["losses"] = torch.cat((self.state.get("losses", loss[:0]).cpu(), loss))

    def _moving(self, problem: Problem, batch: Batch) -> set[str]:
        moving = set()
        for name in Unknowns.model_fields:
            unknown: Unknown | None = getattr(self.unknowns, name)
            if unknown and unknown.active(batch.epoch):
                moving.add(name)
        if "object" in moving and self.parametrisation == "amplitude_phase" and not self.unknowns.amplitude:
            moving.add("amplitude")
        if problem.probe_frozen:
            moving -= {"probe", "opr"}
        if not batch.refine:
            moving.discard("positions")
        return moving

    def _update(self, leaves: dict[str, Tensor], epoch: int) -> None:
        """torch's step on `leaves`, in place, with its memory from and to `state`."""
        if self._pace is None:
            self._pace = self._new_pace()
        if "losses" in self.state:  # an earlier call's are not this one's
            self.state["losses"] = self.state["losses"][: epoch - 1]
        groups = self._pace.at(epoch, self.state.get("losses"))
        parameters = [{**groups[name], "params": [leaf]} for name, leaf in leaves.items()]
        optimiser = self.torch_class(parameters, **self._hyperparameters())
        for name, leaf in leaves.items():
            memory = {key.partition(".")[2]: tensor for key, tensor in self.state.items() if key.startswith(f"{name}.")}
            if memory:
                optimiser.state[leaf] = {key: unpacked(tensor, leaf) for key, tensor in memory.items()}
        optimiser.step()
        for name, leaf in leaves.items():
            for key, tensor in optimiser.state[leaf].items():
                if tensor is not None:
                    self.state[f"{name}.{key}"] = packed(tensor, leaf)

    def _new_pace(self) -> Pace:
        rates = {name: getattr(unknown, "lr", None) or self.lr for name, unknown in self.unknowns}
        if not self.unknowns.amplitude:
            rates["amplitude"] = rates["object"]
        return Pace(self.torch_class, rates, self._hyperparameters(), self.scheduler, self.epochs)


class Adam(Elementwise):
    """Adaptive moments (Kingma & Ba, ICLR 2015)."""

    name: ClassVar[str] = "adam"
    torch_class = torch.optim.Adam

    betas: Betas = (0.9, 0.999)
    eps: Eps = EPS
    weight_decay: NotNegative = 0.0
    amsgrad: bool = False


class AdamW(Elementwise):
    """Adam whose decay is apart from the gradient (Loshchilov & Hutter, ICLR 2019)."""

    name: ClassVar[str] = "adamw"
    torch_class = torch.optim.AdamW

    betas: Betas = (0.9, 0.999)
    eps: Eps = EPS
    weight_decay: NotNegative = 0.01
    amsgrad: bool = False


class NAdam(Elementwise):
    """Adam with Nesterov's momentum (Dozat 2016)."""

    name: ClassVar[str] = "nadam"
    torch_class = torch.optim.NAdam

    betas: Betas = (0.9, 0.999)
    eps: Eps = EPS
    weight_decay: NotNegative = 0.0
    momentum_decay: NotNegative = 0.004
    decoupled_weight_decay: bool = False


class RAdam(Elementwise):
    """Rectified Adam (Liu et al., ICLR 2020)."""

    name: ClassVar[str] = "radam"
    torch_class = torch.optim.RAdam

    lr: float = Field(0.1, gt=0)
    betas: Betas = (0.9, 0.999)
    eps: Eps = EPS
    weight_decay: NotNegative = 0.0
    decoupled_weight_decay: bool = False


class Adamax(Elementwise):
    """Adam by the largest gradient (Kingma & Ba 2015, sec. 7.1)."""

    name: ClassVar[str] = "adamax"
    torch_class = torch.optim.Adamax

    lr: float = Field(0.1, gt=0)
    betas: Betas = (0.9, 0.999)
    eps: Eps = EPS
    weight_decay: NotNegative = 0.0


class Adagrad(Elementwise):
    """Steps by the root of all squared gradients so far (Duchi, Hazan & Singer, JMLR 12, 2121, 2011)."""

    name: ClassVar[str] = "adagrad"
    torch_class = torch.optim.Adagrad

    lr: float = Field(0.1, gt=0)
    lr_decay: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    initial_accumulator_value: NotNegative = 0.0
    eps: Eps = EPS


class Adadelta(Elementwise):
    """Steps in the ratio of past steps to past gradients (Zeiler, arXiv:1212.5701)."""

    name: ClassVar[str] = "adadelta"
    torch_class = torch.optim.Adadelta

    lr: float = Field(3.0, gt=0)
    rho: Beta = 0.9
    eps: Eps = EPS**2
    weight_decay: NotNegative = 0.0


class RMSprop(Elementwise):
    """Steps by the running root of squared gradients (Tieleman & Hinton 2012)."""

    name: ClassVar[str] = "rmsprop"
    torch_class = torch.optim.RMSprop

    lr: float = Field(0.01, gt=0)
    alpha: Beta = 0.99
    eps: Eps = EPS
    weight_decay: NotNegative = 0.0
    momentum: Beta = 0.0
    centered: bool = False


class SGD(Elementwise):
    """Gradient descent, with momentum where asked."""

    name: ClassVar[str] = "sgd"
    torch_class = torch.optim.SGD

    lr: float = Field(0.5, gt=0)
    momentum: Beta = 0.0
    dampening: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    nesterov: bool = False


ELEMENTWISE: tuple[type[Elementwise], ...] = (
    Adam,
    AdamW,
    NAdam,
    RAdam,
    Adamax,
    Adagrad,
    Adadelta,
    RMSprop,
    SGD,
)
