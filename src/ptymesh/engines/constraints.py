"""Gauges and constraints of probe and object between epochs, each on its own schedule.

L, H, W  slices, object pixels;  M, h, w  modes, window pixels

Gauges use the exact ambiguities of ptychography: scale between object and probe, translation, a linear ramp on the
object with the inverse ramp on the probe. They do not change intensities.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field, model_validator
from torch import Tensor

from ptymesh.engines import waves
from ptymesh.engines.waves import EngineMemory
from ptymesh.estimate import Estimate
from ptymesh.physics.elementwise import phase as phase_of
from ptymesh.physics.elementwise import times
from ptymesh.physics.modes import mixed, orthogonalising
from ptymesh.physics.propagate import fft, ifft
from ptymesh.physics.rounding import total_of
from ptymesh.physics.views import shift
from ptymesh.problem import Problem
from ptymesh.registry import Registry, subclass_of
from ptymesh.schedule import Schedule

#: Least illumination, as a fraction of the largest, of the pixels that decide gauges of the object.
LIT = 0.1


class Constraint(Schedule):
    """A change of probe and object after the epochs of its schedule; its options are fields.

    Those of ptymesh are keys of `probe` and `object` of a stage; one of another package, which offers it by an entry
    point of the group `ptymesh.constraints`, stands under its name in `constraints`.
    """

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Change the estimate in place, in the same way on all ranks. Collective.

        If object, probe and positions are replaced by others with the same intensities, exit waves in the engine's
        memory must be changed with them (waves.py).

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: memory of the engine.
        """
        raise NotImplementedError


CONSTRAINTS: Registry[type[Constraint]] = Registry(
    "constraint", "ptymesh.constraints", subclass_of(Constraint), "make it a subclass of ptymesh.engines.Constraint"
)


class Support(Constraint):
    """Disc outside of which the probe is zero, in real space or in Fourier space, as a fraction of the half window.

    Attributes:
        radius: of the disc.
        edge: width of the smooth (cosine) edge, as a fraction of the half window.
    """

    radius: float = Field(0.9, gt=0, le=1.5)
    edge: float = Field(0.05, ge=0, le=1)

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Multiply the probe by the disc.

        Args:
            problem: not used.
            estimate: the unknowns.
            engine: not used.
        """
        estimate.probe *= disc(estimate.window, self, estimate.probe, centred=True)


class FourierSupport(Support):
    """Disc in Fourier space outside of which the probe's transform is zero: the aperture."""

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Multiply the probe's Fourier transform by the disc.

        Args:
            problem: not used.
            estimate: the unknowns.
            engine: not used.
        """
        aperture = disc(estimate.window, self, estimate.probe, centred=False)
        estimate.probe.copy_(ifft(fft(estimate.probe) * aperture))


class Orthogonalise(Constraint):
    """Probe modes are made orthogonal, the strongest first."""

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Make the probe's modes orthogonal by the rotation that rank 0 computes; stored waves follow. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: memory with exit waves, which are rotated, too.
        """
        if len(estimate.probe) > 1:
            rotation = problem.world.broadcast(orthogonalising(estimate.probe))[0]
            estimate.probe.copy_(mixed(estimate.probe, rotation))
            waves.rotate(engine, rotation)


class Smooth(Constraint):
    """Object blended with its Gaussian-filtered self: O + weight (G O - O), standard deviation sigma_px.

    Attributes:
        sigma_px: standard deviation, in object pixels.
        weight: of the filtered object.
    """

    sigma_px: float = Field(1.0, gt=0, le=16)
    weight: float = Field(0.1, gt=0, le=1)

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Smooth the object, with pixels of other ranks around this one's part. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: not used.
        """
        around, where = problem.layout.with_margin(estimate.object, estimate, _reach(self))
        top, left = (c - w for c, w in zip(estimate.corner, where.corner, strict=True))
        height, width = estimate.object.shape[-2:]
        estimate.object.copy_(smoothed(around, self)[:, top : top + height, left : left + width])


class Limits(Constraint):
    """Values below `low` and above `high` are brought back to the limit."""

    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _ordered_limits(self) -> Limits:
        if self.low is None and self.high is None:
            raise ValueError("give low, high or both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


class Amplitude(Limits):
    """Limits of |O|."""

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Limit the object's amplitude.

        Args:
            problem: not used.
            estimate: the unknowns.
            engine: not used.
        """
        limit_amplitude(estimate.object, self)


class Phase(Limits):
    """Limits of arg O, in rad."""

    @model_validator(mode="after")
    def _in_radians(self) -> Phase:
        for name, limit in (("low", self.low), ("high", self.high)):
            if limit is not None and abs(limit) > 2 * math.pi:
                raise ValueError(
                    f"{name} is {limit:g} rad, more than a whole turn; give radians ({limit:g} degrees are "
                    f"{math.radians(limit):.4g})"
                )
        return self

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Limit the object's phase.

        Args:
            problem: not used.
            estimate: the unknowns.
            engine: not used.
        """
        limit_phase(estimate.object, self)


class Ramp(Constraint):
    """Gauge without a linear phase ramp of the object; the probe takes the inverse."""

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Remove the object's mean phase gradient over illuminated pixels; stored waves follow. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: memory with exit waves, which take what is left of the ramps.
        """
        waves.ramp(engine, problem, estimate, remove_ramp(problem, estimate, illuminated_mask(problem, estimate)))


class Scale(Constraint):
    """Gauge with mean amplitude 1 of the object where it is illuminated; the probe takes the inverse."""

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Set the mean amplitude over illuminated pixels to 1. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: not used.
        """
        mean = problem.fields.mean(estimate.object.abs(), illuminated_mask(problem, estimate), estimate)
        rescale(estimate, float(mean) ** -len(estimate.object))


class Centre(Constraint):
    """Gauge with the probe's centre of mass in the middle of the window; positions follow."""

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Move the probe to the middle of the window; stored waves follow.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: memory with exit waves, which are moved if the probe's shift is not part of the model.
        """
        waves.move(engine, problem, centre(estimate, whole=problem.model.subpixel == "none"))


class Power(Constraint):
    """Gauge that holds sum |P|^2 at `counts` (default: its value when first applied); the object takes the inverse."""

    counts: float | None = Field(None, gt=0)

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Set the probe's power.

        Args:
            problem: not used.
            estimate: the unknowns.
            engine: memory that holds the power from when this was first applied.
        """
        current = total_of(torch.view_as_real(estimate.probe).square())
        if self.counts is None:
            engine.state.setdefault("probe_power", current.clone())
        target = float(engine.state["probe_power"]) if self.counts is None else self.counts
        rescale(estimate, math.sqrt(float(current) / target))


def illuminated_mask(problem: Problem, estimate: Estimate) -> Tensor:
    """Return the object pixels (H, W) bool that are illuminated well enough to decide a gauge. Collective."""
    illumination = problem.evaluator.illumination(estimate)
    return illumination > LIT * problem.fields.max(illumination)


def rescale(estimate: Estimate, factor: float) -> None:
    """Multiply the product of the slices by `factor`, shared evenly between them; divide the probe by it."""
    estimate.object *= factor ** (1 / len(estimate.object))
    estimate.probe /= factor


def centre(estimate: Estimate, *, whole: bool = False) -> Tensor:
    """Move the centre of mass of sum |P|^2 to (h//2, w//2), by a shift T_d of the probe and of all positions by -d.

    The object stays: P(r - d) O(r + p - d) is the old exit wave moved by d, whose far-field intensity is the same.

    Args:
        estimate: the unknowns, changed in place.
        whole: True to move by whole pixels, for a model in which fractions do not act; anchors move by -d then.

    Returns:
        d (2,) in pixels, y x.
    """
    intensity = (estimate.probe.abs() ** 2).sum(0).to(torch.float64)
    total = total_of(intensity)
    d = []
    for axis, n in enumerate(intensity.shape):
        r = torch.arange(n, dtype=torch.float64, device=intensity.device)
        d.append(n // 2 - total_of(intensity * (r if axis else r[:, None])) / total)
    move = torch.stack(d).round() if whole else torch.stack(d)
    if whole:
        estimate.anchors -= move.to(estimate.anchors.dtype)
    estimate.probe.copy_(shift(estimate.probe, move[None].to(estimate.probe.real.dtype))[0])
    estimate.positions -= move
    estimate.nominal -= move
    estimate.origin = (estimate.origin[0] - float(move[0]), estimate.origin[1] - float(move[1]))
    return move


def remove_ramp(problem: Problem, estimate: Estimate, where: Tensor) -> list[float]:
    """Bring the mean phase gradient of the product of slices to zero; the probe takes the inverse ramp. Collective.

    The gradient is the phase of sum conj(O[r]) O[r + 1], robust against wraps and noise.

    Args:
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        where: (H, W) bool, pixels that count.

    Returns:
        The gradient in rad/px, y x.
    """
    layout = problem.layout
    around, at = layout.with_margin(estimate.object, estimate, 1)  # with the pixels next to those of this rank
    total, lit_around = around.prod(0), layout.with_margin(where[None], estimate, 1)[0][0]
    owned = torch.zeros_like(lit_around)
    y, x = (
        slice(c - first, c - first + n) for c, first, n in zip(estimate.corner, at.corner, where.shape, strict=True)
    )
    owned[y, x] = layout.owned(estimate).expand(where.shape)
    sums = []
    for axis in (0, 1):
        n = total.shape[axis] - 1
        first, second = total.narrow(axis, 0, n), total.narrow(axis, 1, n)
        both = lit_around.narrow(axis, 0, n) & lit_around.narrow(axis, 1, n) & owned.narrow(axis, 0, n)
        along = torch.where(both, times(first.conj(), second), 0)
        sums += [along.real, along.imag]
    gradient = phase_of(torch.view_as_complex(layout.totals(estimate, *sums).view(2, 2))).tolist()
    middle = [n // 2 for n in estimate.extent]
    corner = [m - c for m, c in zip(middle, estimate.corner, strict=True)]
    ramp = _ramp(estimate.object, gradient, -1.0, corner)
    estimate.object[-1] = times(estimate.object[-1], ramp)
    estimate.probe.copy_(times(estimate.probe, _ramp(estimate.probe, gradient, 1.0, [n // 2 for n in estimate.window])))
    return gradient


def _ramp(like: Tensor, gradient: list[float], sign: float, middle: list[int]) -> Tensor:
    """Return exp(i sign g.(r - middle)) over the last two axes of `like`, g in rad/px."""
    y, x = (torch.arange(n, dtype=torch.float64, device=like.device) for n in like.shape[-2:])
    phase = sign * (gradient[0] * (y - middle[0])[:, None] + gradient[1] * (x - middle[1])[None, :])
    return torch.polar(torch.ones_like(phase), phase).to(like.dtype)


def disc(window: tuple[int, int], support: Support, like: Tensor, *, centred: bool) -> Tensor:
    """Return the disc (h, w) of a support, with a cosine edge.

    Args:
        window: (h, w).
        support: radius and edge, as fractions of the half window.
        like: tensor that gives precision and device.
        centred: True for a disc about (h//2, w//2), False for FFT order.
    """
    axes = []
    for n in window:
        r = torch.fft.fftfreq(n, 1 / 2, dtype=torch.float64, device=like.device)  # -1 to 1 over the window
        axes.append(torch.fft.fftshift(r) if centred else r)
    distance = torch.sqrt(axes[0][:, None] ** 2 + axes[1][None, :] ** 2)
    if not support.edge:
        return (distance <= support.radius).to(like.real.dtype)
    inside = ((support.radius + support.edge / 2 - distance) / support.edge).clamp(0, 1)
    return (0.5 - 0.5 * torch.cos(math.pi * inside)).to(like.real.dtype)


def limit_amplitude(obj: Tensor, limits: Limits) -> None:
    """Bring |O| into the limits in place, with its phase; a zero has no phase and becomes real."""
    amplitude = obj.abs()
    bounded = amplitude.clamp(limits.low, limits.high)
    unit = torch.where(amplitude > 0, obj / amplitude.clamp(min=torch.finfo(amplitude.dtype).tiny), 1)
    obj.copy_(torch.where(bounded == amplitude, obj, bounded * unit))


def limit_phase(obj: Tensor, limits: Limits) -> None:
    """Bring arg O (rad, in -pi to pi) into the limits in place, with its amplitude."""
    phase = phase_of(obj)
    bounded = phase.clamp(limits.low, limits.high)
    obj.copy_(torch.where(bounded == phase, obj, torch.polar(obj.abs(), bounded)))


def _reach(smooth: Smooth) -> int:
    """Return by how many pixels the filter reaches to each side."""
    return max(1, math.ceil(4 * smooth.sigma_px))


def smoothed(obj: Tensor, smooth: Smooth) -> Tensor:
    """Return O + weight (G O - O), G a Gaussian of finite length (four standard deviations), edges repeated."""
    reach = _reach(smooth)
    r = torch.arange(-reach, reach + 1, dtype=obj.real.dtype, device=obj.device)
    kernel = torch.exp(-0.5 * (r / smooth.sigma_px) ** 2)
    kernel = kernel / kernel.sum()
    planes = torch.view_as_real(obj).permute(0, 3, 1, 2).reshape(-1, 1, *obj.shape[-2:])
    padded = torch.nn.functional.pad(planes, (reach,) * 4, mode="replicate")
    with torch.backends.cudnn.flags(allow_tf32=False, deterministic=True):  # TF32 would round to ten bits
        rows = torch.nn.functional.conv2d(padded, kernel.view(1, 1, -1, 1))
        both = torch.nn.functional.conv2d(rows, kernel.view(1, 1, 1, -1))
    parts = both.view(len(obj), 2, *obj.shape[-2:]).permute(0, 2, 3, 1).contiguous()
    return obj + smooth.weight * (torch.view_as_complex(parts) - obj)
