"""Gradients for the engines that descend them: the elementwise torch optimisers and L-BFGS.

Kandel, Maddali, Allain, Hruszkewycz, Jacobsen & Nashed, Opt. Express 27, 18653 (2019)
Du, Nashed, Kandel, Gursoy & Jacobsen, Sci. Adv. 6, eaay3700 (2020)

L          loss of a batch (losses.py) over its divisor D, plus regularisers
g_jm       slope_j . Psi_jm on the detector; D^H g at the exit; every dL/d conj(x) is an adjoint of it
slope, scale, unit      of each unknown: sweep.py

The sweep is written out by hand and summed over ranks once per batch; all later operations are the same on every rank.

`parametrisation` of the object: complex numbers; exp(i phi), phase alone; or amplitude and phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr, field_serializer, field_validator, model_validator
from torch import Tensor

from ptymesh.engines.gradients import losses, regularisers
from ptymesh.engines.gradients.losses import LOSSES, Loss, PixelLoss
from ptymesh.engines.gradients.regularisers import COMPARING, REGULARISERS, Density
from ptymesh.engines.gradients.sweep import Part, Sweep, above_zero, averages, pixels_under_windows, real
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.models import declared
from ptymesh.options import Options
from ptymesh.physics.elementwise import phase as phase_of
from ptymesh.physics.fidelity import fidelity_of
from ptymesh.physics.object_models import object_model_of
from ptymesh.problem import Batch, Problem
from ptymesh.schedule import Schedule

#: Absorption of a common size, in which optimisers step; and the largest, as of an object's option.
ABSORPTION_UNIT, LARGEST_ABSORPTION = 0.1, 10.0


class Regulariser(Schedule, Options):
    """A regulariser of the object or of an unknown on its pixels, with its weight against the loss.

    Attributes:
        kind: a name, or a function (regularisers.py).
        weight: factor of its mean density over the pixels under windows.
        of: object, or a tiled unknown of the model's operators.
        blur_px: standard deviation of the blur before slices or modes of the object are compared, px; None for 1.
    """

    kind: str | Density
    weight: float = Field(gt=0)
    of: str = "object"
    blur_px: float | None = Field(None, ge=0, le=regularisers.WIDEST_PX)

    @field_validator("of")
    @classmethod
    def _tiled(cls, of: str) -> str:
        tiled = [name for name, one in declared().items() if one.unknown.scope == "tiled"]
        if of != "object" and of not in tiled:
            raise ValueError(f"there is no {of} on the object's pixels; there are {', '.join(('object', *tiled))}")
        return of

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str | Density) -> str | Density:
        if isinstance(kind, str):
            REGULARISERS[kind]
        return next((name for name, density in COMPARING.items() if density is kind), kind)

    @model_validator(mode="after")
    def _compares(self) -> Regulariser:
        if self.kind in COMPARING and self.of != "object":
            raise ValueError(f"{self.kind} compares planes of the object; remove of ({self.of})")
        if self.kind not in COMPARING and self.blur_px is not None:
            raise ValueError(f"blur_px ({self.blur_px:g}) belongs to {' and '.join(COMPARING)}; remove it")
        return self

    @field_serializer("kind", when_used="json")
    def _named(self, kind: str | Density) -> str:
        return kind if isinstance(kind, str) else REGULARISERS.name_of(kind)

    @property
    def density(self) -> Density:
        """Function that `kind` names."""
        return REGULARISERS[self.kind] if isinstance(self.kind, str) else self.kind

    def density_of(self, estimate: Estimate) -> Density:
        """Return the density as a function of the planes alone, which those that compare planes are not."""
        if not isinstance(self.kind, str) or self.kind not in COMPARING:
            return self.density
        blur_px = 1.0 if self.blur_px is None else self.blur_px
        return partial(COMPARING[self.kind], slices=estimate.slices, blur_px=blur_px)

    def check(self, problem: Problem) -> None:
        """Check that there are slices, or modes of the object, to be compared.

        Raises:
            BadInput: there is one.
        """
        if self.kind == "similar_slices" and problem.model.slice_kernel is None:
            raise BadInput(
                "The regulariser similar_slices compares slices of the object, and there is one; set object.slices, or "
                "remove it from the stage."
            )
        if self.kind == "similar_modes" and problem.model.object_modes == 1:
            raise BadInput(
                "The regulariser similar_modes compares modes of the object, and there is one; set object.modes, or "
                "remove it from the stage."
            )


@dataclass(frozen=True)
class Gradient:
    """A loss and its derivatives.

    Attributes:
        value: the loss, 0-d.
        parts: derivative by unknown.
    """

    value: Tensor
    parts: dict[str, Part]


class Autodiff(Options):
    """A loss that is descended, with its options: the gradient engines are engines that have one.

    Attributes:
        fidelity: of the engine's stage, which a loss may be added to or not.
        loss: `fidelity`, `nrmse` of powers, or a user's own, by name or as a function.
        power: p of `nrmse`.
        averaged: weight of the misfit of the pattern averaged over the batch (a second sweep).
        parametrisation: of the object.
        regularisers: of the object, and of tiled unknowns of the model's operators.
    """

    moves_optics: ClassVar[bool] = True
    moves_object_values: ClassVar[bool] = True

    fidelity: str = "amplitude"
    loss: str | PixelLoss = "fidelity"
    power: float | None = Field(None, gt=0, le=1)
    averaged: float = Field(0.0, ge=0)
    parametrisation: Literal["complex", "phase", "amplitude_phase"] = "complex"
    regularisers: list[Regulariser] = Field(default_factory=list)

    #: Pixels of this rank's part of the object under windows, in this epoch; not in checkpoints, which other ranks may
    #: read.
    _under_windows: Tensor | None = PrivateAttr(None)

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, loss: str | PixelLoss) -> str | PixelLoss:
        if isinstance(loss, str) and loss not in LOSSES.also:
            LOSSES[loss]
        return loss

    @field_serializer("loss", when_used="json")
    def _named_loss(self, loss: str | PixelLoss) -> str:
        return loss if isinstance(loss, str) else LOSSES.name_of(loss)

    @model_validator(mode="after")
    def _losses_fit(self) -> Autodiff:
        if self.power is not None and self.loss != "nrmse":
            raise ValueError(f"power ({self.power:g}) belongs to loss nrmse; remove it")
        squares = self.loss == "fidelity" and fidelity_of(self.fidelity).in_squares
        if self.averaged and (self.loss == "nrmse" or squares):
            kind = self.fidelity if self.loss == "fidelity" else self.loss
            raise ValueError(f"averaged cannot be added to {kind}, which is not divided by the counts; remove it")
        return self

    @property
    def from_vacuum(self) -> bool:
        """True if a complex object is counted from vacuum (1), towards which it then decays."""
        return True

    def check_regularisers(self, problem: Problem) -> None:
        """Check that the regularisers have a meaning for a problem. Raises BadInput."""
        for regulariser in self.regularisers:
            regulariser.check(problem)

    def before_epoch(self, problem: Problem, estimate: Estimate) -> None:
        """Set the amplitude of a phase-only object to 1, and find the pixels under windows for the regularisers."""
        if self.parametrisation == "phase":
            phase = phase_of(estimate.object)
            estimate.object.copy_(torch.polar(torch.ones_like(phase), phase))
        self._under_windows = pixels_under_windows(estimate) if self.regularisers else None

    def gradient(
        self, problem: Problem, estimate: Estimate, batch: Batch, wanted: set[str], note: bool = True
    ) -> Gradient:
        """Return loss and slopes of unknowns, in one sweep and one message. Collective.

        Args:
            problem: loader, evaluator and fields of the stage.
            estimate: the unknowns.
            batch: the views.
            wanted: names of the unknowns: object, amplitude, probe, opr, background, positions, weights, slice_spacing,
                tilt, absorption of an object that follows from values, and those of the model's operators.
            note: True to record the loss for the running loss of the epoch.
        """
        loss = self._loss(problem)
        if self.averaged:
            loss = losses.WithAverage(loss, self.averaged, *averages(problem, estimate, batch))
        sweep = Sweep(problem, estimate, batch, wanted, loss)
        sweep.run(note)
        sums, summary, parts = sweep.total()
        value = summary.value
        for one in problem.model.tiled:
            if active := self._active(estimate, batch, one.name) if one.name in parts else []:
                part, field = parts[one.name], _add_vacuum(estimate.others[one.name], one.outside)
                penalty, by_field = self._penalty(problem, replace(estimate, object=field), active)
                more = real(by_field) if one.complex else by_field.real
                value, parts[one.name] = value + penalty, replace(part, slope=part.slope + more)
        if wanted & {"object", "amplitude", "absorption"}:
            slope = torch.zeros_like(estimate.object)
            problem.fields.add(slope, sums.object * (-2 / summary.divisor))
            if active := self._active(estimate, batch, "object"):
                penalty, by_object = self._penalty(problem, estimate, active)
                value, slope = value + penalty, slope + by_object
            scale = summary.divisor / (2 * summary.curvature * above_zero(sums.object_weight.max().max()))
            if estimate.object_values is not None:
                scale = scale / object_model_of(estimate.object_kind).vacuum_power(estimate.absorption)
            if "absorption" in wanted:
                parts["absorption"] = self._sum_absorption_slope(problem, estimate, slope, scale)
            slopes = self._chain(estimate, slope)
            parts |= {name: Part(slope, scale) for name, slope in slopes.items() if name in wanted}
        return Gradient(value, parts)

    def _sum_absorption_slope(self, problem: Problem, estimate: Estimate, slope: Tensor, scale: Tensor) -> Part:
        """Return dL/da = sum Re(conj(dO/da) g), g the slope by O, over all pixels. Collective.

        Args:
            problem: the problem that is solved.
            estimate: its object follows from values, with an absorption.
            slope: g, (L, H, W) complex, of this rank's part.
            scale: 0-d, of the slope by V.
        """
        assert estimate.object_values is not None, "checked"
        owned, model = problem.layout.owned(estimate), object_model_of(estimate.object_kind)
        by_pixel = model.absorption_terms(estimate.object_values, estimate.object, slope)
        terms = [torch.where(owned, term, 0.0) for term in by_pixel]
        total, norm = problem.layout.totals(estimate, *terms)
        # as if all light were where it is brightest: the step is no longer than Gauss and Newton's; V = 0 has none
        flat = scale * model.vacuum_power(estimate.absorption)
        return Part(total, torch.where(norm > 0, flat / above_zero(norm), 0.0), ABSORPTION_UNIT)

    def _active(self, estimate: Estimate, batch: Batch, name: str) -> list[tuple[Density, float]]:
        """Return densities and weights of the regularisers of an unknown that are on."""
        active = [r for r in self.regularisers if r.of == name and r.active(batch.epoch)]
        return [(r.density_of(estimate), r.weight) for r in active]

    def _penalty(
        self, problem: Problem, estimate: Estimate, terms: list[tuple[Density, float]]
    ) -> tuple[Tensor, Tensor]:
        """Return the mean density over the pixels under windows, and its slope by the object there.

        A pixel that lies under several windows counts once.
        """
        if self._under_windows is None:  # resumed within an epoch
            self._under_windows = pixels_under_windows(estimate)
        layout, under = problem.layout, self._under_windows
        counting = under & layout.owned(estimate)
        pixels = layout.sum_owned(counting.sum()) * len(estimate.object)
        padded, place = layout.with_margin(estimate.object, estimate, regularisers.REACH)
        under_around, _ = layout.with_margin(under[None], estimate, regularisers.REACH)
        top, left = (c - w for c, w in zip(estimate.corner, place.corner, strict=True))
        height, width = under.shape
        densities, slope = (
            field[:, top : top + height, left : left + width]
            for field in regularisers.gradient(terms, padded, under_around[0], pixels)
        )
        total = layout.totals(estimate, torch.where(counting, densities, 0.0))[0]
        return (total / pixels).to(problem.real), slope * under

    def leaves(self, estimate: Estimate, parts: dict[str, Part]) -> dict[str, Tensor]:
        """Return the unknowns as real tensors of the parts' shapes, in their units.

        The object is given as difference from vacuum, as its own memory, or as the values it follows from; positions,
        spacing and tilt as changes, 0.
        """
        leaves = {}
        for name, part in parts.items():
            if name == "object" and estimate.object_values is not None:
                leaves[name] = real(estimate.object_values).clone()
            elif name == "object":
                is_complex = self.parametrisation == "complex"
                departs = estimate.object - 1 if self.from_vacuum else estimate.object
                leaves[name] = real(departs) if is_complex else phase_of(estimate.object)
            elif name == "amplitude":
                leaves[name] = estimate.object.abs() - 1
            elif name in ("positions", "slice_spacing", "tilt"):
                leaves[name] = torch.zeros_like(part.slope)  # how far they move
            elif name == "absorption":
                leaves[name] = torch.full_like(part.slope, estimate.absorption) / part.unit
            else:
                leaves[name] = real(estimate[name]) / part.unit
        return leaves

    def write(self, problem: Problem, estimate: Estimate, leaves: dict[str, Tensor], parts: dict[str, Part]) -> None:
        """Write unknowns to the estimate, in place.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            leaves: new values by unknown, as `leaves` returns them.
            parts: slopes, scales and units of the same unknowns.
        """
        obj = estimate.object
        if estimate.object_values is not None:
            if "absorption" in leaves:
                absorption = float(leaves["absorption"] * parts["absorption"].unit)
                estimate.absorption = min(max(absorption, 0.0), LARGEST_ABSORPTION)
            if "object" in leaves:
                real(estimate.object_values).copy_(leaves["object"])
            if leaves.keys() & {"object", "absorption"}:
                model = object_model_of(estimate.object_kind)
                obj.copy_(model.transmission(estimate.object_values, estimate.absorption))
        elif leaves.keys() & {"object", "amplitude"}:
            if self.parametrisation == "complex":
                complex_values = torch.view_as_complex(leaves["object"])
                if self.from_vacuum:
                    obj.copy_(complex_values + 1)
                elif complex_values.data_ptr() != obj.data_ptr():  # else the object was changed in place
                    obj.copy_(complex_values)
            else:
                phase = leaves["object"] if "object" in leaves else phase_of(obj)
                amplitude = torch.ones_like(phase) if self.parametrisation == "phase" else obj.abs()
                obj.copy_(torch.polar(leaves["amplitude"] + 1 if "amplitude" in leaves else amplitude, phase))
        for name in leaves.keys() & {"probe", "opr", "weights"}:
            real(estimate[name]).copy_(leaves[name] * parts[name].unit)
        bounds = {one.name: one.least for one in problem.model.unknowns}
        for name in leaves.keys() & estimate.others.keys():
            real(estimate.others[name]).copy_(leaves[name] * parts[name].unit)
            if bounds[name] is not None:
                estimate.others[name].clamp_(min=bounds[name])
        if "background" in leaves:
            estimate.background.copy_((leaves["background"] * parts["background"].unit).clamp(min=0))
        # Spacing and tilt are numbers on the host: one transfer from the device for both.
        if gaps := [name for name in ("slice_spacing", "tilt") if name in leaves]:
            gap_values = torch.cat([(leaves[name] * parts[name].unit).reshape(-1) for name in gaps]).tolist()
            if "slice_spacing" in gaps:
                estimate.slice_spacing_m *= 1 + gap_values.pop(0)
            if "tilt" in gaps:
                y, x = gap_values
                estimate.tilt_rad = (estimate.tilt_rad[0] + y, estimate.tilt_rad[1] + x)

    def _loss(self, problem: Problem) -> Loss:
        if self.loss == "fidelity":
            return losses.OfFidelity(problem.model.fidelity)
        if self.loss == "nrmse":
            return losses.NRMSE(0.5 if self.power is None else self.power)
        return losses.OfFunction(LOSSES[self.loss] if isinstance(self.loss, str) else self.loss)

    def _chain(self, estimate: Estimate, slope: Tensor) -> dict[str, Tensor]:
        """Turn the slope by the complex object into slopes by its values or its parametrisation."""
        obj = estimate.object
        if estimate.object_values is not None:
            model = object_model_of(estimate.object_kind)
            return {"object": real(model.slope(estimate.object_values, obj, slope, estimate.absorption))}
        if self.parametrisation == "complex":
            return {"object": real(slope)}
        turned = obj.conj() * slope  # O = a exp(i phi): dO = i O dphi + (O / a) da
        slopes = {"object": turned.imag}
        if self.parametrisation == "amplitude_phase":
            slopes["amplitude"] = turned.real / obj.abs().clamp(min=torch.finfo(obj.real.dtype).tiny)
        return slopes


def _add_vacuum(theta: Tensor, outside: float) -> Tensor:
    """Return a tiled unknown as regularisers take an object: complex, and 1 where it is as outside of the object."""
    return (theta if theta.is_complex() else torch.complex(theta, torch.zeros_like(theta))) + (1 - outside)
