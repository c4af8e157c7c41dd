"""Elementwise torch optimisers as engines: which unknowns move, at which rate, and what is remembered.

x          an unknown in its unit;  g = scale x slope, its gradient in that unit (sweep.py)
lr         learning rate, in units of the unknown: of the object's amplitude, of the probe's rms, in pixels (for a tilt:
           by which the wave moves from slice to slice), of the size that an operator of the model names; for the
           background, a fraction of its Gauss-Newton step ... Each of L slices moves by lr / sqrt(L) if an optimiser
           makes all steps of one length, so that together they disturb the wave as much as a single one

    x <- torch's update(x, g, memory)

Because g is a Gauss-Newton step, SGD with lr = 1 is ePIE, and `eps`, if an optimiser has one, is a fraction of the
gradient of a wholly wrong, fully illuminated pixel: pixels with hardly any illumination stay as they are.
The optimiser's memory is kept in `state` as `unknown.name`, for each unknown from the batch in which it first moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from inspect import signature, unwrap
from typing import Annotated, Any, ClassVar

import torch
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.engines.base import Engine, OnOff, Options, Schedule
from ptymesh.engines.cost import EngineCost, StepNeeds
from ptymesh.engines.gradients.autodiff import Autodiff
from ptymesh.engines.gradients.schedulers import Pace, Scheduler
from ptymesh.engines.gradients.sweep import Part, packed, unpacked
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.models import declared, refuse_fixed
from ptymesh.problem import Batch, Problem
from ptymesh.unknowns import Unknown


class UnknownSchedule(Schedule, Options):
    """One unknown: its own learning rate, and the epochs in which it moves.

    Attributes:
        lr: learning rate; None for the engine's (for the probe 2.5 times that with adam, adamw, nadam, radam or
            adamax).
    """

    lr: float | None = Field(None, gt=0)


class Unknowns(Options):
    """The unknowns that move.

    Amplitude (of parametrisation amplitude_phase) moves with the object unless it has an entry of its own; positions
    need the stage's `positions`, whose steps then go through the optimiser; opr (modes) and weights (of beam and modes)
    are left to the constraints of the probe unless they stand here.
    """

    object: Annotated[UnknownSchedule | None, OnOff] = UnknownSchedule()
    amplitude: UnknownSchedule | None = None
    probe: Annotated[UnknownSchedule | None, OnOff] = UnknownSchedule()
    opr: Annotated[UnknownSchedule | None, OnOff] = None
    positions: Annotated[UnknownSchedule | None, OnOff] = None
    weights: Annotated[UnknownSchedule | None, OnOff] = None
    background: Annotated[UnknownSchedule | None, OnOff] = None
    slice_spacing: Annotated[UnknownSchedule | None, OnOff] = None
    tilt: Annotated[UnknownSchedule | None, OnOff] = None
    absorption: Annotated[UnknownSchedule | None, OnOff] = None

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[UnknownSchedule | None, OnOff]]

    @model_validator(mode="before")
    @classmethod
    def _declared(cls, values: Any) -> Any:
        """Accept, besides these fields, unknowns that the operators of `optics` declare."""
        odd = [name for name in values if name not in cls.model_fields] if isinstance(values, dict) else []
        for name in odd:
            if name not in declared():
                raise ValidationError.from_exception_data(
                    cls.__name__, [{"type": "extra_forbidden", "loc": (name,), "input": values[name]}]
                )
            refuse_fixed(name)
        return values

    def moving(self) -> dict[str, UnknownSchedule]:
        """Return the unknowns that are on, by name."""
        return {name: unknown for name, unknown in self if unknown}


def eager(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return torch's optimiser without its support of torch.compile, whose import alone takes longer than an epoch."""
    methods = {"add_param_group": unwrap(kind.add_param_group), "step": torch.no_grad()(unwrap(kind.step))}
    return type(kind.__name__, (kind,), methods)


@cache
def _has_fused(kind: type[torch.optim.Optimizer]) -> bool:
    """Return True if this optimiser of torch's has a fused implementation."""
    return "fused" in signature(kind).parameters


class Elementwise(Autodiff, Engine):
    """An elementwise torch optimiser: learning rate, what moves, and how the learning rate changes by epoch.

    Attributes:
        lr: learning rate.
        unknowns: which unknowns move, when, and at which rate.
        scheduler: learning rate by epoch; None keeps it.
    """

    models_of: ClassVar[tuple[str, ...]] = ("probe", "positions")
    moves_own_probes: ClassVar[bool] = True
    meets_new_views: ClassVar[bool] = True
    memory_meets_new_views: ClassVar[bool] = True
    torch_class: ClassVar[Callable[..., torch.optim.Optimizer]]
    #: True if steps are about lr however small gradients are.
    alike: ClassVar[bool] = True
    #: Factors of lr for unknowns whose rate the recipe does not give.
    larger: ClassVar[dict[str, float]] = {}
    #: As Adam, whichever optimiser it is.
    cost: ClassVar[EngineCost] = EngineCost(0.95, 0.8, per_batch=2.2, per_object_pixel=0.26, per_epoch=1.0, whole=True)
    step_needs: ClassVar[StepNeeds] = StepNeeds(numbers=3, object_arrays=7)

    lr: float = Field(0.03, gt=0)
    unknowns: Unknowns = Unknowns()
    scheduler: Annotated[Scheduler | None, OnOff] = None

    _pace: Pace | None = PrivateAttr(None)

    def _memory(self, name: str, leaf: Tensor) -> dict[str, Tensor]:
        """Return torch's memory of this unknown; none if it was made for an array of another shape."""
        tensors = {key.partition(".")[2]: tensor for key, tensor in self.state.items() if key.startswith(f"{name}.")}
        memory = {key: unpacked(tensor, leaf) for key, tensor in tensors.items()}
        return memory if all(tensor.ndim == 0 or tensor.shape == leaf.shape for tensor in memory.values()) else {}

    def _hyperparameters(self) -> dict[str, object]:
        """Return the options of the torch optimiser, besides lr."""
        names = type(self).model_fields.keys() - Elementwise.model_fields.keys()
        return {name: getattr(self, name) for name in names}

    @model_validator(mode="after")
    def _consistent(self) -> Elementwise:
        unknowns = self.unknowns
        if unknowns.amplitude and self.parametrisation != "amplitude_phase":
            raise ValueError(
                f"unknowns.amplitude has no meaning with parametrisation {self.parametrisation}; remove it"
            )
        if unknowns.positions and self.positions and self.positions.method != "gradient":
            raise ValueError(
                f"unknowns.positions follows the gradient, and positions.method is {self.positions.method}; remove one "
                "of the two"
            )
        if unknowns.positions and (not self.positions or self.positions.gain == "auto"):
            raise ValueError(
                "unknowns.positions needs positions: {gain: 1}, whose limits and drift removal it uses, and whose gain "
                "multiplies its steps"
            )
        for regulariser in self.regularisers:
            if regulariser.of not in ("object", *unknowns.moving()):
                raise ValueError(
                    f"a regulariser is of {regulariser.of}, which stays; add unknowns: {{{regulariser.of}: true}}, or "
                    "remove it"
                )
        if not unknowns.moving():
            raise ValueError("unknowns leaves nothing to move; remove it")
        if (unknowns.opr or unknowns.weights) and (self.probe.opr or self.probe.intensity):
            raise ValueError(
                "unknowns.opr and unknowns.weights refine what probe.opr and probe.intensity do; "
                "set both of probe's to false"
            )
        self._new_pace().try_out()
        return self

    def check(self, problem: Problem) -> None:
        """Check that the unknowns that move exist in a problem.

        Raises:
            BadInput: an unknown between slices with a single slice, one of an operator that is missing, or nothing
                moves.
        """
        super().check(problem)
        self.check_regularisers(problem)
        for name in ("slice_spacing", "tilt"):
            if getattr(self.unknowns, name) and problem.model.slice_kernel is None:
                raise BadInput(f"unknowns.{name} has no meaning for a single slice; remove it from the stage.")
        if not self.unknowns.moving().keys() - problem.model.replaced:
            (first, *_) = (p.operator for p in problem.model.operators if p.operator.replaces)
            raise BadInput(
                f"Nothing would move: optics.{first.name} takes the part of {', '.join(self.unknowns.moving())}; add "
                f"unknowns: {{{first.unknowns[0].name}: true}} to the stage."
            )

    def named_unknowns(self) -> list[str]:
        """Return the names of the unknowns of operators that the stage names."""
        return [name for name in self.unknowns.moving() if name not in Unknowns.model_fields]

    @property
    def moves_background(self) -> bool:
        """True if this stage moves the background, in whichever of its epochs."""
        return self.unknowns.background is not None

    def moved_optics(self, optics: Sequence[Unknown]) -> frozenset[str]:
        """Return the names of those of the operators' unknowns that this stage moves, in whichever of its epochs."""
        return frozenset(one.name for one in optics) & self.unknowns.moving().keys()

    def view_unknowns(self, optics: Sequence[Unknown], opr_modes: int) -> frozenset[str]:
        """Return what this stage moves of each view alone; see `Engine.view_unknowns`.

        Args:
            optics: unknowns of the model's operators.
            opr_modes: number of variable-probe modes.
        """
        weights = {"intensity", *(["opr"] if opr_modes else [])} if self.unknowns.weights else set()
        return super().view_unknowns(optics, opr_modes) | weights

    @property
    def from_vacuum(self) -> bool:
        """True with weight decay; otherwise it makes no difference, and three passes over the object are saved."""
        return getattr(self, "weight_decay", 0.0) > 0

    def step(self, problem: Problem, estimate: Estimate, batch: Batch) -> None:
        """Update every unknown that moves in this epoch. Collective.

        Args:
            problem: loader, evaluator and fields of the stage.
            estimate: the unknowns, changed in place.
            batch: the views.
        """
        moving = self._moving(problem, batch)
        gradient = self.gradient(problem, estimate, batch, moving)
        background = gradient.parts.pop("background", None)
        leaves = self.leaves(estimate, gradient.parts)
        for name, part in gradient.parts.items():
            leaves[name].grad = (part.slope * (part.scale / part.unit)).to(leaves[name].dtype)
        if leaves:
            # A fused step is faster on a CPU; on a GPU it would round the last elements of an array otherwise.
            self._update(leaves, batch.epoch, fused=problem.device.type == "cpu")
        self.write(problem, estimate, leaves, gradient.parts)
        if background is not None:
            self._step_background(estimate, background, batch.epoch)
        if "positions" in leaves:
            local_views = sent(problem.layout.own, problem.device)
            batch.view_updates.positions = [(local_views, leaves["positions"][local_views])]

    def rate(self, epoch: int) -> float:
        """Return the learning rate of the first unknown that moves, or 0 if no scheduler changes it."""
        if self.scheduler is None:
            return 0.0
        (first, *_) = self.unknowns.moving()
        return float(self._options_at(epoch)[first]["lr"])

    def after_epoch(self, problem: Problem, estimate: Estimate) -> None:
        """Store the epoch's loss for a scheduler that uses it."""
        if self.scheduler and self.scheduler.looks_at_losses:
            loss = torch.tensor([problem.evaluator.running()[0]], dtype=torch.float64)
            self.state["losses"] = torch.cat((self.state.get("losses", loss[:0]).cpu(), loss))

    def _moving(self, problem: Problem, batch: Batch) -> set[str]:
        """Return the names of the unknowns that move in this batch."""
        moving = set()
        for name, unknown in self.unknowns.moving().items():
            if unknown.active(batch.epoch):
                moving.add(name)
        if "object" in moving and self.parametrisation == "amplitude_phase" and not self.unknowns.amplitude:
            moving.add("amplitude")
        moving -= batch.frozen
        if not batch.refine:
            moving.discard("positions")
        return moving

    def _update(self, leaves: dict[str, Tensor], epoch: int, fused: bool) -> None:
        """Apply torch's step to `leaves` in place, with its memory from and to `state`; fused if torch can."""
        groups = self._groups(epoch)
        if self.alike:
            for name in leaves.keys() & {"object", "amplitude"}:
                groups[name] = {**groups[name], "lr": groups[name]["lr"] / math.sqrt(len(leaves[name]))}
        one_pass = {"fused": True} if fused and _has_fused(self.torch_class) else {}
        parameters = [{**groups[name], **one_pass, "params": [leaf]} for name, leaf in leaves.items()]
        optimiser = self.torch_class(parameters, **self._hyperparameters(), **one_pass)
        for name, leaf in leaves.items():
            memory = self._memory(name, leaf)
            if memory:
                optimiser.state[leaf] = memory
        optimiser.step()
        torch.autograd.graph.increment_version(list(leaves.values()))  # torch's fused steps do not count as writes
        for name, leaf in leaves.items():
            for key, tensor in optimiser.state[leaf].items():
                if tensor is not None:
                    self.state[f"{name}.{key}"] = packed(tensor, leaf)

    def _step_background(self, estimate: Estimate, part: Part, epoch: int) -> None:
        """Set b <- max(0, b - lr x Gauss-Newton step).

        An optimiser that makes all steps of one length, as Adam does, would let pixels that need no background walk at
        random by lr, and the model would fit that.
        """
        step = self._groups(epoch)["background"]["lr"] * part.scale * part.slope
        estimate.background.copy_((estimate.background - step.to(estimate.background.dtype)).clamp(min=0))

    def _groups(self, epoch: int) -> dict[str, dict[str, object]]:
        """Return the options by unknown in this epoch, and drop losses of later epochs of an earlier call."""
        if "losses" in self.state:  # an earlier call may have gone further
            self.state["losses"] = self.state["losses"][: epoch - 1]
        return self._options_at(epoch)

    def _options_at(self, epoch: int) -> dict[str, dict[str, object]]:
        """Return the options by unknown in an epoch, from the losses of those before it."""
        if self._pace is None:
            self._pace = self._new_pace()
        losses = self.state.get("losses")
        return self._pace.options_in_epoch(epoch, None if losses is None else losses[: epoch - 1])

    def _new_pace(self) -> Pace:
        """Return the learning rates and the scheduler of all unknowns."""
        usual = {name: self.lr * self.larger.get(name, 1.0) for name, _ in self.unknowns}
        rates = {name: getattr(unknown, "lr", None) or usual[name] for name, unknown in self.unknowns}
        if not self.unknowns.amplitude:
            rates["amplitude"] = rates["object"]
        return Pace(self.torch_class, rates, self._hyperparameters(), self.scheduler, self.epochs)
