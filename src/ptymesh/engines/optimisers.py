"""Elementwise torch optimisers as engines: Adam, AdamW, NAdam, RAdam, Adamax, Adagrad, Adadelta, RMSprop and SGD.

x          an unknown in its unit;  g = scale x slope, its gradient in that unit (sweep.py)
lr         learning rate, in units of the unknown: of the object's amplitude, of the probe's rms, in pixels ...

    x <- torch's update(x, g, memory)

Because g is a Gauss-Newton step, SGD with lr = 1 is ePIE, and `eps`, where an optimiser has one, is a fraction of the
gradient that a wholly wrong, fully lit pixel has: pixels that hardly any light reaches stay where they are.
The optimiser's memory is kept in `state` as `unknown.name`, an unknown's own from the batch in which it first moves.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor

from ptymesh.engines.autodiff import Autodiff
from ptymesh.engines.base import OnOff, Options, Schedule
from ptymesh.engines.schedulers import Pace, Scheduler
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
Positive = Annotated[float, Field(gt=0)]


class Unknown(Schedule):
    """One unknown: its own learning rate (default: the engine's), and the epochs in which it moves."""

    lr: float | None = Field(None, gt=0)


class Unknowns(Options):
    """What moves. OPR modes move with the probe; amplitude (of parametrisation amplitude_phase) with the object unless
    it has an entry of its own; positions need the stage's `positions`, whose steps then go through the optimiser."""

    object: Annotated[Unknown | None, OnOff] = Unknown()
    amplitude: Unknown | None = None
    probe: Annotated[Unknown | None, OnOff] = Unknown()
    positions: Annotated[Unknown | None, OnOff] = None
    weights: Annotated[Unknown | None, OnOff] = None
    background: Annotated[Unknown | None, OnOff] = None
    slice_spacing: Annotated[Unknown | None, OnOff] = None


class Elementwise(Autodiff):
    """An elementwise torch optimiser: learning rate, what moves, and how the learning rate changes by epoch."""

    torch_class: ClassVar[type[torch.optim.Optimizer]]
    hyperparameters: ClassVar[tuple[str, ...]]

    lr: float = Field(0.01, gt=0)
    unknowns: Unknowns = Unknowns()
    scheduler: Scheduler | None = None

    _pace: Pace | None = PrivateAttr(None)

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
        if self.scheduler:
            self._new_pace()
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
        self._update(leaves, batch.epoch)
        self.write(problem, estimate, leaves, found.parts)
        problem.position_steps.extend(found.position_steps)
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
        if problem.probe_frozen:
            moving.discard("probe")
        if not batch.refine:
            moving.discard("positions")
        return moving

    def _update(self, leaves: dict[str, Tensor], epoch: int) -> None:
        """torch's step on `leaves`, in place, with its memory from and to `state`."""
        if self._pace is None:
            self._pace = self._new_pace()
        groups = self._pace.at(epoch, self.state.get("losses"))
        optimiser = self.torch_class(
            [{**groups[name], "params": [leaf]} for name, leaf in leaves.items()], **self._options()
        )
        for name, leaf in leaves.items():
            memory = {key.partition(".")[2]: tensor for key, tensor in self.state.items() if key.startswith(f"{name}.")}
            if memory:
                optimiser.state[leaf] = {key: _unpacked(tensor, leaf) for key, tensor in memory.items()}
        optimiser.step()
        for name, leaf in leaves.items():
            for key, tensor in optimiser.state[leaf].items():
                if tensor is not None:
                    self.state[f"{name}.{key}"] = _packed(tensor, leaf)

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.hyperparameters}

    def _new_pace(self) -> Pace:
        rates = {name: getattr(unknown, "lr", None) or self.lr for name, unknown in self.unknowns}
        rates["opr"] = rates["probe"]
        if not self.unknowns.amplitude:
            rates["amplitude"] = rates["object"]
        return Pace(self.torch_class, rates, self._options(), self.scheduler, self.epochs)


def _packed(tensor: Tensor, leaf: Tensor) -> Tensor:
    """Memory of pairs of reals as complex numbers, so that what is of the object's shape grows with it."""
    return torch.view_as_complex(tensor) if tensor.ndim == 4 and tensor.shape == leaf.shape else tensor


def _unpacked(tensor: Tensor, leaf: Tensor) -> Tensor:
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.cpu() if tensor.ndim == 0 and leaf.ndim else tensor
