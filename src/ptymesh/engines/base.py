"""Common part of all engines: options of a stage, constraints and gauges, and the contract of `step`.

An engine is a pydantic model, which makes a recipe's stage typed and its errors readable. The loop gives it a problem,
an estimate and one batch after the other. An engine stores what it needs later in `state`, and values of each view
in `per_view`: tensors by name, which are kept between calls and in checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, SerializeAsAny, field_validator, model_validator
from torch import Tensor

from ptymesh.engines.constraints import (
    CONSTRAINTS,
    KEYS,
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
    ordered,
)
from ptymesh.engines.constraints.base import apply_constraint
from ptymesh.engines.cost import EngineCost, StepNeeds
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.models import MODELS, Parametrisation, declared, named
from ptymesh.options import Options
from ptymesh.physics.fidelity import FIDELITIES
from ptymesh.problem import Batch, Problem
from ptymesh.schedule import MOST, Count, OnOff, Schedule
from ptymesh.unknowns import Unknown

#: How batches are made up (planning/batches.py).
Order = Literal["random", "uniform", "compact"]


#: Freedoms of an affine map of all positions, beside their common move.
AffineTerm = Literal["scale", "rotation", "aspect", "shear"]
AFFINE_TERMS: tuple[AffineTerm, ...] = ("scale", "rotation", "aspect", "shear")


class PositionRefinement(Schedule, Options):
    """Position refinement: gradient steps normalised by each view's own ||d psi/d p_a||^2, or by another method.

    Attributes:
        method: steps along the gradient in each batch; or between epochs, by cross-correlation of the object under a
            view with what the view makes of it, or by random trials around each position, of which the best stays.
        gain: factor of the step. `auto` starts at 1, doubles while the moves of successive epochs agree, up to 16, and
            halves when they turn; neighbours share an object that moves with them, which makes single steps too short.
            Trials have no use for it.
        limit_px: largest move of a position per epoch and axis; trials have a radius of their own.
        momentum: share of the last epoch's moves that is added to those of this one.
        clip_mad: largest distance of a displacement from the affine part of all, in standard deviations by MAD.
        drift: True to keep the mean displacement from nominal at zero.
        affine: True to keep only the affine part of the displacements (scale, rotation, aspect, shear), or the names of
            those that are kept.
        trials: trials of each view in an epoch, 4 unless said otherwise; of `annealing` alone.
        radius_px: half side of the square of trials at first, 2 unless said otherwise; it shrinks to 0 over the epochs
            in which positions move; of `annealing` alone.
        relocate: True to leave views that fit far worse than the others out for four epochs in twelve, and to look for
            them anew around the affine part of the others' moves (engines/positions/relocation.py).
        judge: True to judge them by held-out views halfway through, where there are such, and to go back
            to recorded positions where refined ones do not help (run/position_check.py).
    """

    method: Literal["gradient", "correlation", "annealing"] = "gradient"
    gain: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    limit_px: float = Field(0.5, gt=0, le=1)
    momentum: float = Field(0.0, ge=0, lt=1)
    clip_mad: float | None = Field(None, ge=1)
    drift: bool = True
    affine: bool | Annotated[list[AffineTerm], Field(min_length=1)] = False
    trials: int | None = Field(None, ge=1, le=64)
    radius_px: float | None = Field(None, gt=0, le=8)
    relocate: bool = False
    judge: bool = True

    @field_validator("affine", mode="before")
    @classmethod
    def _known_terms(cls, names: object) -> object:
        wrong = [term for term in names if term not in AFFINE_TERMS] if isinstance(names, list) else []
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no part of an affine map; name some of {', '.join(AFFINE_TERMS)}")
        return names

    @model_validator(mode="after")
    def _refuse_what_has_no_effect(self) -> PositionRefinement:
        annealing = self.method == "annealing"
        for name in ("trials", "radius_px"):
            if getattr(self, name) is not None and not annealing:
                raise ValueError(f"{name} is for method: annealing, not for {self.method}; remove it")
        if annealing and self.momentum:
            raise ValueError("momentum would carry positions beyond the best of their trials; remove it, or annealing")
        if self.relocate and self.affine:
            raise ValueError("relocate moves views one by one, and affine keeps no such moves; remove one of them")
        if self.relocate and self.every > 1:
            raise ValueError("relocate counts epochs in which positions move, one by one; remove every, or relocate")
        if isinstance(self.affine, list) and len(set(self.affine)) < len(self.affine):
            raise ValueError(f"affine names one twice: {', '.join(self.affine)}; name each once")
        return self

    @property
    def affine_terms(self) -> Sequence[AffineTerm]:
        """Names of the affine freedoms that are kept."""
        return self.affine if isinstance(self.affine, list) else AFFINE_TERMS

    @property
    def trial_count(self) -> int:
        """Trials of each view in an epoch."""
        return 4 if self.trials is None else self.trials

    @property
    def first_radius_px(self) -> float:
        """Half side of the square of trials in the first epoch."""
        return 2.0 if self.radius_px is None else self.radius_px


class Variable(Schedule, Options):
    """Beams that differ from view to view: the view's intensity, or its shares of the OPR modes (Odstrcil 2016).

    Attributes:
        gain: factor of the steps, each normalised by the view's own curvature.
    """

    gain: float = Field(0.5, gt=0, le=1)


class VariableModes(Variable):
    """OPR modes, and each view's shares of them.

    Attributes:
        smooth_views: standard deviation of the Gaussian, in views of the order in which they were taken, by which the
            shares are smoothed after each epoch, each scan by itself; 0 leaves every view its own.
    """

    smooth_views: float = Field(0.0, ge=0, le=1000)


class ProbeConstraints(Options):
    """Probe: frozen for the first `frozen` epochs; variable intensity and OPR modes; gauges, supports, modes.

    OPR modes are refined by default, if the estimate has any (`probe.opr_modes` of the recipe).
    """

    frozen: int = Field(0, ge=0, le=MOST)
    intensity: Annotated[Variable | None, OnOff] = None
    opr: Annotated[VariableModes | None, OnOff] = VariableModes()
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

    Attributes:
        epochs: passes over all views.
        batch: views per update over all ranks; None for all.
        order: how batches are made up: spread over the scan with members that change (random) or stay (uniform), or
            clusters of neighbours (compact).
        fidelity: name of the loss between intensities and counts.
        coarsen: factor by which pixels are larger, using the inner part of the detector.
        positions: refinement of positions.
        probe: constraints and gauges of the probe.
        object: constraints and gauges of the object.
        models: numbers that make up probe or positions.
        constraints: further constraints by name, those of other packages too.
    """

    name: ClassVar[str]
    #: Unknowns whose `models` this engine accepts: the probe if a batch's sums are those of a probe step; positions if
    #: their steps are not part of a joint step of all unknowns.
    models_of: ClassVar[tuple[str, ...]] = ("positions",)
    #: Declarations of tensors in its memory that are no sums or velocities: copies of the object (1 outside of it), and
    #: exit waves of views (axes N M h w), which follow the gauges.
    remembers: ClassVar[tuple[Unknown, ...]] = ()
    #: True if it works with operators in the model (`optics`).
    with_optics: ClassVar[bool] = True
    #: True if it moves the unknowns that these operators declare, unless its options say otherwise.
    moves_optics: ClassVar[bool] = False
    #: True if it moves those unknowns of the model's pieces alone that its `unknowns` name.
    moves_named_unknowns: ClassVar[bool] = False
    #: True if its steps move a probe for each of several scans.
    moves_own_probes: ClassVar[bool] = False
    #: True if it moves an object that follows from values: by slopes, or by steps of the transmission in each batch.
    moves_object_values: ClassVar[bool] = False
    #: Its steps remember nothing of other views, so that views may come at any time (ptymesh.live).
    meets_new_views: ClassVar[bool] = False
    #: What it remembers of object and probe is good for batches of any views: moments, but not the object of an epoch's
    #: start.
    memory_meets_new_views: ClassVar[bool] = False
    #: False if each of its steps sees all views, so that a stage has neither batch nor order.
    in_batches: ClassVar[bool] = True
    #: By program (ptychi, ptyrad), the names that stand for this engine in its settings: an option that no other of its
    #: algorithms has, or "" for the algorithm to take where the settings name one that ptymesh does not have.
    peer_names: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    #: Work of its epochs; unless an engine says otherwise, that of rPIE.
    cost: ClassVar[EngineCost] = EngineCost(1.05, per_batch=0.85, per_object_pixel=0.0, per_epoch=0.7)
    #: What its steps send and keep; unless an engine says otherwise, as rPIE.
    step_needs: ClassVar[StepNeeds] = StepNeeds()

    epochs: Count = 50
    batch: Count | None = 64
    order: Order = "random"
    fidelity: str = "amplitude"
    coarsen: Literal[1, 2, 4] = 1
    positions: Annotated[PositionRefinement | None, OnOff] = None
    probe: ProbeConstraints = ProbeConstraints()
    object: ObjectConstraints = ObjectConstraints()
    models: dict[str, SerializeAsAny[Parametrisation]] = Field(default_factory=dict)
    constraints: dict[str, SerializeAsAny[Constraint]] = Field(default_factory=dict)

    _state: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _per_view: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    @field_validator("fidelity")
    @classmethod
    def _known_fidelity(cls, name: str) -> str:
        FIDELITIES[name]
        return name

    @field_validator("models", mode="before")
    @classmethod
    def _models(cls, names: object) -> object:
        return named(names, MODELS, "models")

    @field_validator("constraints", mode="before")
    @classmethod
    def _constraints(cls, values: Any) -> Any:
        for group, key in KEYS:
            if isinstance(values, dict) and key in values:
                raise ValueError(f"{key} is a key of {group}: write {group}: {{{key}: ...}} instead")
        return named(values, CONSTRAINTS, "constraints")

    @model_validator(mode="after")
    def _one_gauge(self) -> Engine:
        if self.probe.power and self.object.scale:
            raise ValueError("probe.power and object.scale set the same gauge; choose one")
        return self

    @property
    def state(self) -> dict[str, Tensor]:
        """Memory of the engine, by name. Tensors of the object's shape grow with the object."""
        return self._state

    @property
    def per_view(self) -> dict[str, Tensor]:
        """Memory of the engine for views, by name: one row for each view of this rank.

        Rows are in the order of `problem.layout.own`. Exit waves, which follow the gauges, are declared in `remembers`.
        All is dropped when a later stage starts, which changes the estimate without it.
        """
        return self._per_view

    def outside(self, name: str) -> float:
        """Return what an array of the object's shape in `state` holds outside of the object, for when that grows."""
        return next((one.outside for one in self.remembers if one.name == name), 0.0)

    def check(self, problem: Problem) -> None:
        """Check that these options make sense for a problem, before any work.

        Raises:
            BadInput: an option has no meaning for this problem.
        """
        if self.positions and problem.model.subpixel == "none":
            raise BadInput("Positions cannot be refined with positions.subpixel 'none'; use 'fourier' or 'bilinear'.")
        if self.probe.centre and problem.geometry.propagation != "far_field":
            raise BadInput("probe.centre would move a near-field image on the detector; remove it from the stage.")
        if problem.model.pieces and not self.with_optics:
            named = ", ".join(placed.operator.label for placed in problem.model.pieces)
            raise BadInput(f"{self.name} does not know {named}; use another engine, such as lsqml or adam.")
        if problem.model.replaced and not self.moves_optics:
            named = ", ".join(placed.operator.name for placed in problem.model.operators if placed.operator.replaces)
            raise BadInput(
                f"{self.name} would move nothing, as optics.{named} takes the object's part; use adam or lbfgs."
            )
        if problem.model.object_modes > 1 and "object" in problem.model.replaced:
            raise BadInput("object.modes asks for several objects, whose part a piece of the optics takes; remove one.")
        if problem.probe_count > 1:
            self._check_own_probes()
        for constraint in self.all_constraints():
            constraint.check(problem)
        for name, model in self.models.items():
            model.check(problem.geometry)
            model.check_scans(problem.scans)
            if model.of == "positions" and problem.model.subpixel == "none":
                raise BadInput(f"models.{name} moves positions, which subpixel 'none' does not; use 'fourier'.")
            self._check_widths(name, model, problem)
            if model.of not in self.models_of:
                raise BadInput(
                    f"models.{name} needs an engine whose batches ask for steps of the {model.of} alone, such as rpie, "
                    f"lsqml or adam, which {self.name} is not: use one of these, or remove models.{name}."
                )

        known_unknowns = {"background", *(one.name for one in problem.model.unknowns)}
        for name in self.named_unknowns():
            if name not in known_unknowns:
                raise BadInput(
                    f"unknowns.{name} belongs to optics.{declared()[name].operator}, which the recipe does not have; "
                    f"add optics: {{{declared()[name].operator}: true}}, or remove it."
                )

    def _check_widths(self, name: str, model: Parametrisation, problem: Problem) -> None:
        """Check that priors of a model's numbers can be held against the counts.

        Raises:
            BadInput: the loss is in squares of counts, or steps of positions have a norm that the beam does not tell.
        """
        if model.widths and FIDELITIES[self.fidelity].in_squares:
            raise BadInput(f"models.{name}.widths is held against counts; use fidelity amplitude or poisson.")
        steps = model.of == "positions" and not model.moves_between_epochs
        if model.widths and steps and problem.model.subpixel == "bilinear":
            raise BadInput(f"models.{name}.widths needs positions.subpixel fourier, or follow: patterns.")

    def _check_own_probes(self) -> None:
        """Check that this stage can be run where each scan has a probe of its own.

        Raises:
            BadInput: the engine, one of its constraints or of its models is for a single probe.
        """
        if not self.moves_own_probes:
            able_engines = "rpie, epie, mpie, or adam and other elementwise optimisers"
            raise BadInput(f"{self.name} moves a single probe; use {able_engines}, or probe.scans: shared.")
        for constraint in self.all_constraints():
            if not constraint.for_own_probes:
                raise BadInput(
                    f"{self.key_of(constraint)} is a constraint of a single probe, and each scan has its own; remove "
                    "it from the stage, or use probe.scans: shared."
                )
        for name, model in self.models.items():
            if model.of == "probe":
                raise BadInput(
                    f"models.{name} makes up a single probe, and each scan has its own; remove it, or use probe.scans: "
                    "shared."
                )

    def apply_constraints(self, problem: Problem, estimate: Estimate, epoch: int) -> None:
        """Apply all constraints and gauges that are due after an epoch, in their order. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns, changed in place.
            epoch: of the stage, from 1.
        """
        for constraint in self.all_constraints():
            is_frozen = epoch <= self.probe.frozen and constraint.of_moving_probe
            if constraint.active(epoch) and not is_frozen:
                now = constraint.at_epoch(epoch)
                if estimate.probe_count > 1 and constraint.of_moving_probe:
                    for probe in estimate.probes:
                        now.apply(problem, replace(estimate, probe=probe, probe_count=1), self)
                else:
                    apply_constraint(now, problem, estimate, self)

    def all_constraints(self) -> list[Constraint]:
        """Return constraints and gauges of this stage in the order in which they are applied."""
        by_name: dict[str, Constraint | None] = {key: getattr(getattr(self, group), key) for group, key in KEYS}
        by_name |= self.constraints
        return [constraint for name in ordered(self.constraints) if (constraint := by_name.get(name))]

    def key_of(self, constraint: Constraint) -> str:
        """Return the key of the stage under which one of its constraints is."""
        keys = {f"{group}.{key}": getattr(getattr(self, group), key) for group, key in KEYS}
        keys |= {f"constraints.{name}": one for name, one in self.constraints.items()}
        return next(key for key, one in keys.items() if one is constraint)

    def named_unknowns(self) -> list[str]:
        """Return the names of the operators' unknowns that the stage names, all of which a model must have."""
        return []

    @property
    def moves_background(self) -> bool:
        """True if this stage moves the background, in whichever of its epochs."""
        return False

    def moved_optics(self, optics: Sequence[Unknown]) -> frozenset[str]:
        """Return the names of those of the operators' unknowns that this stage moves, in whichever of its epochs."""
        return frozenset()

    def refines(self, name: str, optics: Sequence[Unknown]) -> bool:
        """Return True if this stage moves an unknown, in whichever of its epochs.

        Args:
            name: positions, background, or an unknown of the model's operators.
            optics: unknowns of these.
        """
        built_in = {"positions": self.positions is not None, "background": self.moves_background}
        return built_in.get(name, name in self.moved_optics(optics))

    def due_unknowns(self, epoch: int) -> dict[str, float]:
        """Return the factors of the steps that the loop takes of the pieces' unknowns in this epoch, by name."""
        return {}

    def view_unknowns(self, optics: Sequence[Unknown], opr_modes: int) -> frozenset[str]:
        """Return what this stage moves of each view alone, in whichever of its epochs.

        Args:
            optics: unknowns of the model's operators.
            opr_modes: number of variable-probe modes.

        Returns:
            "positions"; "intensity" and "opr", the columns of the weights; and names of operators' unknowns.
        """
        names = {one.name for one in optics if one.scope == "view"} & self.moved_optics(optics)
        names |= {"positions"} if self.positions else set()
        names |= {"intensity"} if self.probe.intensity else set()
        return frozenset(names | ({"opr"} if self.probe.opr and opr_modes else set()))

    def rate(self, epoch: int) -> float:
        """Return the learning rate of this epoch (from 1), 0 for an engine without one that changes."""
        return 0.0

    def before_epoch(self, problem: Problem, estimate: Estimate) -> None:
        """Compute what is needed once per epoch, before its first batch.

        It is stored in `state`, as epochs may be interrupted.
        """

    def step(self, problem: Problem, estimate: Estimate, batch: Batch) -> None:
        """Update the estimate from one batch. Collective.

        Args:
            problem: loader, evaluator and fields of the stage.
            estimate: the unknowns, changed in place.
            batch: the views; steps for unknowns that the loop moves go to `batch.view_updates`.
        """
        raise NotImplementedError

    def after_epoch(self, problem: Problem, estimate: Estimate) -> None:
        """Do what is due once per epoch, after its last batch and before constraints and gauges."""
