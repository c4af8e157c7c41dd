"""What all engines share: options of a stage, constraints and gauges, and the contract of `step`.

An engine is a pydantic model, which makes a recipe's stage typed and its errors readable. The loop gives it a problem,
an estimate and one batch after the other; whatever it must remember goes into `state`, and what it must remember of
each view into `per_view`: tensors by name, which are kept between calls and in checkpoints.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, SerializeAsAny, field_validator, model_validator
from torch import Tensor

from ptymesh.engines.constraints import (
    CONSTRAINTS,
    Amplitude,
    Centre,
    Constraint,
    FourierSupport,
    Orthogonalise,
    Phase,
    Power,
    Ramp,
    Scale,
    Smooth,
    Support,
)
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.models import MODELS, Parametrisation, named
from ptymesh.options import Options
from ptymesh.physics.fidelity import Fidelity
from ptymesh.problem import Batch, Problem
from ptymesh.schedule import MOST, Count, OnOff, Schedule
from ptymesh.unknowns import Unknown

#: In the order in which they are applied: keys of `probe` and `object`. The first ones leave a frozen probe alone.
ORDER = (
    ("probe", "support"),
    ("probe", "fourier_support"),
    ("probe", "orthogonalise"),
    ("object", "smooth"),
    ("object", "amplitude"),
    ("object", "phase"),
    ("object", "ramp"),
    ("object", "scale"),
    ("probe", "centre"),
    ("probe", "power"),
)
OF_MOVING_PROBE = ("support", "fourier_support", "orthogonalise")
#: How batches are made up (run/batches.py).
Order = Literal["random", "uniform", "compact"]


class Positions(Schedule):
    """Position refinement: gradient steps normalised by each view's own ||d psi/d p_a||^2.

    gain: of the step, or `auto`: it starts at 1, doubles while the moves of successive epochs agree (neighbours share
    an object that moves along, which makes single steps too short), up to 16, and halves when they turn; limit_px: a
    position moves at most so far per epoch and axis; drift: keep the mean displacement from nominal at zero; affine:
    keep only the affine part of the displacements (scale, shear, rotation).
    """

    gain: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    limit_px: float = Field(0.5, gt=0, le=1)
    drift: bool = True
    affine: bool = False


class Variable(Schedule):
    """Beams that differ from view to view: the view's intensity, or its shares of the OPR modes (Odstrcil 2016).

    gain: of the steps, each normalised by what the view itself sees.
    """

    gain: float = Field(0.5, gt=0, le=1)


class ProbeConstraints(Options):
    """Probe: frozen for the first `frozen` epochs; variable intensity and OPR modes; gauges, supports, modes.

    OPR modes are refined by default, where the estimate has any (`probe.opr_modes` of the recipe).
    """

    frozen: int = Field(0, ge=0, le=MOST)
    intensity: Annotated[Variable | None, OnOff] = None
    opr: Annotated[Variable | None, OnOff] = Variable()
    power: Annotated[Power | None, OnOff] = None
    centre: Annotated[Centre | None, OnOff] = None
    orthogonalise: Annotated[Orthogonalise | None, OnOff] = Orthogonalise()
    support: Annotated[Support | None, OnOff] = None
    fourier_support: Annotated[FourierSupport | None, OnOff] = None


class ObjectConstraints(Options):
    """Object: limits of amplitude and of phase (rad), smoothing, ramp removal, scale gauge (mean amplitude 1)."""

    amplitude: Amplitude | None = None
    phase: Phase | None = None
    smooth: Annotated[Smooth | None, OnOff] = None
    ramp: Annotated[Ramp | None, OnOff] = None
    scale: Annotated[Scale | None, OnOff] = None


class Engine(Options):
    """One stage of a reconstruction.

    Fields: epochs; batch, views per update over all ranks (None: all); order, how batches are made up: spread over the
    scan with members that change (random) or stay (uniform), or clusters of neighbours (compact); fidelity; refinement
    of positions; constraints and gauges of probe and object; models, numbers that make up probe or positions;
    constraints of other packages; coarsen, the factor by which pixels are larger, using the inner part of the detector.
    """

    name: ClassVar[str]
    #: Of what `models` may stand here: of the probe where a batch's sums are those of a step of it; of positions where
    #: its steps of positions are not part of a step of everything.
    models_of: ClassVar[tuple[str, ...]] = ("positions",)
    #: What it remembers whose axes or value outside of the object are not those of a sum or velocity: copies of the
    #: object (value outside 1), exit waves of views (axes N M h w), which follow the gauges.
    remembers: ClassVar[tuple[Unknown, ...]] = ()
    #: Whether it works with operators in the model (`optics`); those whose own model of the exit wave has none do not.
    with_optics: ClassVar[bool] = True
    #: Whether it moves the unknowns that these operators declare.
    moves_optics: ClassVar[bool] = False

    epochs: Count = 50
    batch: Count | None = 64
    order: Order = "random"
    fidelity: Fidelity = "amplitude"
    coarsen: Literal[1, 2, 4] = 1
    positions: Annotated[Positions | None, OnOff] = None
    probe: ProbeConstraints = ProbeConstraints()
    object: ObjectConstraints = ObjectConstraints()
    models: dict[str, SerializeAsAny[Parametrisation]] = Field(default_factory=dict)
    constraints: dict[str, SerializeAsAny[Constraint]] = Field(default_factory=dict)

    _state: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _per_view: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    @field_validator("models", mode="before")
    @classmethod
    def _models(cls, given: Any) -> Any:
        return named(given, MODELS, "models")

    @field_validator("constraints", mode="before")
    @classmethod
    def _constraints(cls, given: Any) -> Any:
        return named(given, CONSTRAINTS, "constraints")

    @model_validator(mode="after")
    def _one_gauge(self) -> Engine:
        if self.probe.power and self.object.scale:
            raise ValueError("probe.power and object.scale set the same gauge; choose one")
        return self

    @property
    def state(self) -> dict[str, Tensor]:
        """What the engine remembers, by name. Tensors of the object's shape grow with the object."""
        return self._state

    @property
    def per_view(self) -> dict[str, Tensor]:
        """What the engine remembers of views, by name: one row per own view, in the order of `problem.layout.own`.

        Exit waves, which follow the gauges, are declared in `remembers`. All is forgotten when a later stage starts,
        whose estimate moves on without it.
        """
        return self._per_view

    def outside(self, name: str) -> float:
        """What an array of the object's shape that it remembers holds where the object grows."""
        return next((one.outside for one in self.remembers if one.name == name), 0.0)

    def check(self, problem: Problem) -> None:
        """Raises BadInput where these options have no meaning for this problem; called before any work."""
        if self.positions and problem.model.subpixel == "none":
            raise BadInput("Positions cannot be refined with positions.subpixel 'none'; use 'fourier' or 'bilinear'.")
        if self.probe.centre and problem.geometry.propagation != "far_field":
            raise BadInput("probe.centre would move a near-field image on the detector; remove it from the stage.")
        if problem.model.operators and not self.with_optics:
            named = ", ".join(placed.operator.name for placed in problem.model.operators)
            raise BadInput(f"{self.name} does not know optics ({named}); use another engine, such as lsqml or adam.")
        if problem.model.replaced and not self.moves_optics:
            named = ", ".join(placed.operator.name for placed in problem.model.operators if placed.operator.replaces)
            raise BadInput(
                f"{self.name} would move nothing, as optics.{named} takes the object's part; use adam or lbfgs."
            )
        for name, model in self.models.items():
            model.check(problem.geometry)
            if model.of == "positions" and problem.model.subpixel == "none":
                raise BadInput(f"models.{name} moves positions, which subpixel 'none' does not; use 'fourier'.")
            if model.of not in self.models_of:
                raise BadInput(
                    f"models.{name} needs an engine whose batches ask for steps of the {model.of} alone, such as rpie, "
                    f"lsqml or adam, which {self.name} is not: use one of these, or remove models.{name}."
                )

    def apply_constraints(self, problem: Problem, estimate: Estimate, epoch: int) -> None:
        """All constraints and gauges that are due after this epoch (1-based), those of other packages last."""
        for group, key in ORDER:
            constraint: Constraint | None = getattr(getattr(self, group), key)
            held = epoch <= self.probe.frozen and key in OF_MOVING_PROBE
            if constraint and constraint.active(epoch) and not held:
                constraint.apply(problem, estimate, self)
        for constraint in self.constraints.values():
            if constraint.active(epoch):
                constraint.apply(problem, estimate, self)

    def rate(self, epoch: int) -> float:
        """Learning rate of this epoch (from 1), 0 where an engine has none that changes."""
        return 0.0

    def before_epoch(self, problem: Problem, estimate: Estimate) -> None:
        """What is computed once per epoch, before its first batch; kept in `state`, for an epoch may be interrupted."""

    def step(self, problem: Problem, estimate: Estimate, batch: Batch) -> None:
        """One update from one batch."""
        raise NotImplementedError

    def after_epoch(self, problem: Problem, estimate: Estimate) -> None:
        """What is done once per epoch, after its last batch and before constraints and gauges."""
