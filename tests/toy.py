"""Small problems with known truth, quick enough for every test."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.layouts.panels import Panels
from ptymesh.distributed.layouts.tiled import Tiled
from ptymesh.distributed.world import Solo, World
from ptymesh.estimate import BLOCK, Estimate
from ptymesh.geometry import Geometry, far_field, near_field
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.physics.model import Model, SliceStack
from ptymesh.physics.object_modes import with_object_modes
from ptymesh.problem import Problem


@dataclass
class Toy:
    """A scan, the model that made it, and the truth."""

    measurement: Measurement
    model: Model
    truth: Estimate

    def problem(self, world: World | None = None, layout: str = "replicated", halves: bool = False) -> Problem:
        """As one rank of `world` sees it; halves: precision is mixed. A layout more: "sent" is "tiled" by messages."""
        world, scan = world or Solo(), self.measurement
        if layout == "panels" and Panels.fit(world, self.truth.extent):
            owners: Replicated | Tiled = Panels(world, scan.positions, scan.window)
        elif layout in ("replicated", "panels"):
            owners = Replicated(world, scan.positions)
        else:
            owners = Tiled(world, scan.positions, scan.window)
            owners.in_memory &= layout != "sent"
        return Problem(self.model, scan, owners, self.truth.object.dtype, halves=halves)

    def start(self, probe_error: float = 0.2, position_error: float = 0.0, seed: int = 5) -> Estimate:
        """An object of ones, the true probe disturbed, positions disturbed by up to `position_error` px."""
        rng = torch.Generator().manual_seed(seed)
        truth, dtype = self.truth, self.truth.probe.dtype
        noise = torch.randn(truth.probe.shape, generator=rng, dtype=dtype)
        probe = (
            truth.probe + probe_error * truth.probe.abs().max() * noise * truth.probe.abs() / truth.probe.abs().max()
        )
        jitter = (2 * torch.rand(truth.positions.shape, generator=rng, dtype=torch.float64) - 1) * position_error
        positions = truth.positions + jitter
        flat = torch.ones_like(truth.object)
        if truth.object_modes > 1:
            apart = 0.05 * torch.randn(flat.shape, generator=rng, dtype=flat.real.dtype)
            flat = torch.polar(torch.ones_like(apart), apart)
        return Estimate(
            flat,
            probe,
            positions,
            torch.floor(positions + 0.5).long(),
            positions.clone(),
            truth.weights.clone(),
            truth.background.clone(),
            truth.slice_spacing_m,
            truth.tilt_rad,
            object_modes=truth.object_modes,
        )


def share(estimate: Estimate, problem: Problem) -> Estimate:
    """The estimate with the part of its whole object that this rank holds."""
    part = problem.layout.place(estimate.extent, estimate.origin, estimate.anchors.numpy())
    obj = estimate.object[(slice(None), *part.inside((0, 0)))].clone()
    return replace(estimate, object=obj, corner=part.corner)


def smooth(shape: tuple[int, ...], width: float, rng: np.random.Generator) -> np.ndarray:
    """Real Gaussian-filtered noise, mean 0, standard deviation 1, over the last two axes."""
    spectrum = np.fft.fft2(rng.standard_normal(shape))
    ky, kx = np.fft.fftfreq(shape[-2])[:, None], np.fft.fftfreq(shape[-1])[None]
    field = np.fft.ifft2(spectrum * np.exp(-2 * (np.pi * width) ** 2 * (ky**2 + kx**2))).real
    return field / field.std()


def make(**options: Any) -> Toy:
    """A scan of `views` windows over an object of three blocks a side, or more; options: those of `_make`.

    What takes long is done once for each set of options in a process; callers may change what they get.
    """
    toy = _make(**options)
    scan, patterns = toy.measurement, toy.measurement.patterns
    copied = replace(
        scan,
        patterns=ArraySource(patterns.read(np.arange(scan.views)).copy()),
        positions=scan.positions.copy(),
        mask=scan.mask.copy(),
    )
    return Toy(copied, copy.deepcopy(toy.model), copy.deepcopy(toy.truth))


@functools.lru_cache(maxsize=32)
def _make(
    *,
    views: int = 40,
    window: tuple[int, int] = (24, 28),
    modes: int = 1,
    slices: int = 1,
    object_modes: int = 1,
    tilt_rad: tuple[float, float] = (0.0, 0.0),
    subpixel: str = "fourier",
    propagation: str = "far_field",
    fidelity: str = "amplitude",
    background: float = 0.0,
    uneven: bool = False,
    varying: bool = False,
    counts: float = 1e4,
    noise: bool = False,
    dtype: torch.dtype = torch.complex128,
    seed: int = 3,
    blocks: int = 3,
) -> Toy:
    rng = np.random.default_rng(seed)
    h, w = window
    side = blocks * BLOCK
    planes = slices * object_modes
    phase = 0.8 * smooth((planes, side, side), 3.0, rng)
    amplitude = 1 - 0.2 * np.abs(smooth((planes, side, side), 3.0, rng)).clip(0, 3) / 3
    obj = torch.as_tensor(amplitude * np.exp(1j * phase / slices)).to(dtype)
    y, x = np.mgrid[:h, :w] - np.array([h // 2, w // 2])[:, None, None]
    envelope = np.exp(-(y**2 + x**2) / (2 * (min(h, w) / 6) ** 2)) * np.exp(0.02j * (y**2 + 1.5 * x**2))
    probe = np.stack([envelope * (1, x / 4, y / 4, x * y / 16)[m] for m in range(modes)])
    probe *= np.sqrt(counts / (np.abs(probe) ** 2).sum())
    spread = rng.random((views, 2))
    if uneven:
        spread = spread**2
    positions = 5.0 + spread * np.array([side - h - 10, side - w - 10])
    p = torch.as_tensor(positions)
    truth = Estimate(
        obj,
        torch.as_tensor(probe).to(dtype),
        p,
        torch.floor(p + 0.5).long(),
        p.clone(),
        torch.ones(views, 1, dtype=obj.real.dtype),
        torch.full((h, w), background, dtype=obj.real.dtype),
        2e-6 if slices > 1 else 0.0,
        tilt_rad,
        object_modes=object_modes,
    )
    if varying:
        truth.weights = 1 + 0.2 * torch.as_tensor(rng.standard_normal((views, 1))).clamp(-2, 2).to(obj.real.dtype)
    geometry = geometry_for(propagation, window)
    model = Model.for_geometry(
        geometry,
        subpixel=subpixel,  # type: ignore[arg-type]
        fidelity=fidelity,  # type: ignore[arg-type]
        slices=SliceStack(slices, truth.slice_spacing_m, tilt_rad),
        optics=with_object_modes((), object_modes),
        dtype=dtype,
    )
    every = torch.arange(views)
    intensity = model.intensity(
        truth.object, truth.probe, truth.anchors, truth.fractions(every), truth.weights, truth.background
    ).numpy()
    data = rng.poisson(intensity).astype(np.uint16) if noise else intensity.astype(obj.real.numpy().dtype)
    measurement = Measurement(ArraySource(data), positions, geometry, np.ones(window, dtype=bool))
    return Toy(measurement, model, truth)


def geometry_for(propagation: str, window: tuple[int, int]) -> Geometry:
    """10 keV, object pixels of about 50 nm."""
    wavelength = 1.24e-10
    if propagation == "far_field":
        pixel = (wavelength * 2 / (window[0] * 50e-9), wavelength * 2 / (window[1] * 50e-9))
        return far_field(window, wavelength, 2.0, pixel)
    return near_field(window, wavelength, 2e-4, (50e-9, 50e-9), propagation=propagation)  # type: ignore[arg-type]


def relative(a: torch.Tensor | np.ndarray, b: torch.Tensor | np.ndarray) -> float:
    """||a - b|| / ||b||."""
    a, b = np.asarray(a), np.asarray(b)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
