"""Patterns of a beam through a crystal, slice by slice of its atoms, apart from the forward models of reconstructions.

C, S, L     configurations of frozen displacements, thin slices, slabs of the truth
n           side of the field in which a beam is simulated, pixels;  q  samples of its spectrum in a detector pixel
V_s(r)      projected potential of slice s;  sigma  interaction, rad / (V m);  P  propagator;  psi_0  the beam

    V_s = F^-1 sum_j v_j(k) exp(-2 pi i k.r_j),    t_s = B exp(i sigma V_s)
    psi_s+1 = F^-1 P F (t_s psi_s),                P = B exp(-i pi lambda dz k^2)
    I = 1/C sum_c |F psi_S|^2, over each detector pixel

Kirkland, Advanced Computing in Electron Microscopy (2020), ch. 5 to 7; frozen displacements: Loane, Xu & Silcox, Acta
Cryst. A 47, 267 (1991). B keeps two thirds of the band, so that products do not fold back. Potentials are those of
single atoms at their exact places. Atoms stay at their depth; the mean over all displacements u multiplies each v by
exp(-2 pi^2 u^2 k^2), from which the slabs of the truth follow. A slice acts in its middle.

A detector pixel that integrates takes the mean of the intensity over its square: a sinc in the plane of the sample,
exact where the exit wave lies within half of its field. In that of one window the wave is first padded to two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from scipy.fft import next_fast_len
from torch import Tensor

from ptymesh.geometry import Geometry, electron_interaction
from ptymesh.physics.beam import probes
from ptymesh.physics.propagate import fft, frequencies, fresnel_kernel, ifft
from ptymesh.simulate.crystal import Atoms, Crystal, arrange_atoms
from ptymesh.simulate.scattering import projected_potential

#: Share of the band that is kept.
BAND = 2 / 3
#: Field of the crystal beyond the outermost beams, so that its periodic border stays out of their reach (m).
BORDER_M = 4e-10


@dataclass(frozen=True)
class Specimen:
    """A crystal on the pixels of its simulation.

    Attributes:
        crystal: its options.
        geometry: of the window.
        sides: (H, W) of the object, in object pixels.
        slabs: L.
        seed: of the displacements.
    """

    crystal: Crystal
    geometry: Geometry
    sides: tuple[int, int]
    slabs: int
    seed: int
    _kept: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def object_pixel_m(self) -> float:
        """Object pixel."""
        assert self.geometry.object_pixel_m is not None
        return self.geometry.object_pixel_m[0]

    @property
    def wavelength_m(self) -> float:
        """Wavelength."""
        assert self.geometry.wavelength_m is not None
        return self.geometry.wavelength_m

    @property
    def pixel_m(self) -> float:
        """Pixel of the simulation."""
        return self.object_pixel_m / self.crystal.refine

    @property
    def side(self) -> int:
        """Side n of a beam's field."""
        return self.geometry.shape[0] * self.crystal.extent * self.crystal.refine

    @property
    def border(self) -> int:
        """Pixels of the simulation before the object's first."""
        beyond = (self.side - self.geometry.shape[0] * self.crystal.refine + 1) // 2
        return beyond + math.ceil(BORDER_M / self.pixel_m)

    @property
    def field(self) -> tuple[int, int]:
        """Sides of the crystal's field in pixels of the simulation."""
        y, x = (next_fast_len(n * self.crystal.refine + 2 * self.border) for n in self.sides)
        return y, x

    @property
    def slices(self) -> int:
        """Number of thin slices S, as many in each slab."""
        return self.slabs * math.ceil(self.crystal.thickness_m / self.slabs / self.crystal.slice_m - 1e-9)

    @property
    def slice_m(self) -> float:
        """Thickness of a thin slice."""
        return self.crystal.thickness_m / self.slices

    @cached_property
    def atoms(self) -> Atoms:
        """Atoms at rest."""
        height, width = self.field
        return arrange_atoms(self.crystal, (height * self.pixel_m, width * self.pixel_m))

    @cached_property
    def offsets_m(self) -> np.ndarray:
        """Points (C, 2) of the source, y x, of mean zero and the source's variance in all."""
        count = self.crystal.configurations
        if not self.crystal.source_m:
            return np.zeros((count, 2))
        share = (np.arange(count) + 0.5) / count
        radius, angle = np.sqrt(-2 * np.log(1 - share)), np.arange(count) * math.pi * (3 - math.sqrt(5))
        points = np.stack((radius * np.sin(angle), radius * np.cos(angle)), axis=1)
        points -= points.mean(axis=0)
        return np.asarray(points * self.crystal.source_m * math.sqrt(2) / np.sqrt((points**2).sum(axis=1).mean()))

    def slab_phases(self) -> np.ndarray:
        """Return sigma times the mean potential of each slab over all displacements, (L, H, W) float64 in rad."""
        thickness = self.crystal.thickness_m / self.slabs
        potentials = project(self.atoms, self.field, self.pixel_m, (self.slabs, thickness), self.crystal.displacement_m)
        refine, border = self.crystal.refine, self.border
        if refine > 1:
            y, x = frequencies(self.field, (self.pixel_m,) * 2)
            inside = (y.abs() < 0.5 / self.object_pixel_m) & (x.abs() < 0.5 / self.object_pixel_m)
            potentials = torch.fft.ifft2(torch.fft.fft2(potentials) * inside).real
        rows, columns = (slice(border, border + n * refine, refine) for n in self.sides)
        return np.asarray(potentials[:, rows, columns] * electron_interaction(self.wavelength_m))

    def transmissions(self, configuration: int) -> Tensor:
        """Return t of each slice, (S, *field) complex64, with the atoms displaced as in a configuration; kept."""
        if configuration not in self._kept:
            rng = np.random.default_rng([self.seed, 12, configuration])
            places = self.atoms.places_m.copy()
            places[:, :2] += self.crystal.displacement_m * rng.standard_normal((len(places), 2))
            moved = Atoms(self.atoms.elements, places)
            potentials = project(moved, self.field, self.pixel_m, (self.slices, self.slice_m))
            phase = potentials * electron_interaction(self.wavelength_m)
            waves = torch.polar(torch.ones_like(phase), phase)
            inside = _band(self.field, self.pixel_m)
            self._kept[configuration] = torch.stack([ifft(fft(one) * inside).to(torch.complex64) for one in waves])
        return self._kept[configuration]

    def beam(self, depth_m: float = 0.0) -> Tensor:
        """Return the beam (n, n) complex128 of unit power, centred, as it would be at a depth without the crystal."""
        pixel, shape = (self.pixel_m, self.pixel_m), (self.side, self.side)
        wave = probes.aberrated(
            shape, pixel, self.wavelength_m, self.crystal.semiangle_rad, dict(self.crystal.aberrations_m)
        )
        return ifft(fft(wave) * fresnel_kernel(shape, pixel, self.wavelength_m, depth_m))

    def slab_probe(self) -> Tensor:
        """Return the beam (h, w) in the middle of the first slab, on object pixels, of unit power in its field."""
        wave = torch.fft.fftshift(fft(self.beam(self.crystal.thickness_m / self.slabs / 2)))
        size, middle = self.geometry.shape[0], self.side // 2
        frequencies = size * self.crystal.extent  # frequencies of the object pixels, in the field of the beam
        wave = wave[
            middle - frequencies // 2 : middle - frequencies // 2 + frequencies,
            middle - frequencies // 2 : middle - frequencies // 2 + frequencies,
        ]
        coarse = ifft(torch.fft.ifftshift(wave))
        start = frequencies // 2 - size // 2
        return coarse[start : start + size, start : start + size].contiguous()

    def intensities(self, positions: np.ndarray, chunk: int) -> Iterator[Tensor]:
        """Yield the mean patterns (B, h, w) float64 of views, `chunk` at a time, of a beam of unit power.

        Args:
            positions: (N, 2) object pixels of the windows' corners, y x.
            chunk: views that are computed together.
        """
        beam = fft(self.beam(self.slice_m / 2))
        pixel, shape = (self.pixel_m, self.pixel_m), (self.side, self.side)
        kernel = fresnel_kernel(shape, pixel, self.wavelength_m, self.slice_m) * _band(shape, self.pixel_m)
        kernel = kernel.to(torch.complex64)
        frequency = frequencies(shape, (1.0, 1.0))
        size, refine = self.geometry.shape[0], self.crystal.refine
        # the object pixel at a window's middle lies at the middle of the beam's field
        corners = (positions + size // 2) * refine + self.border - self.side // 2
        for start in range(0, len(positions), chunk):
            nominal = corners[start : start + chunk]
            total: Tensor | None = None
            for configuration, offset in enumerate(self.offsets_m):
                moved = nominal + offset / self.pixel_m
                pixels = np.floor(moved + 0.5).astype(int)
                rest = torch.from_numpy(moved - pixels)[..., None, None]
                ramp = -2 * math.pi * (rest[:, 0] * frequency[0] + rest[:, 1] * frequency[1])
                waves = ifft(beam * torch.polar(torch.ones_like(ramp), ramp)).to(torch.complex64)
                exits = transmit(waves, self.transmissions(configuration), kernel, pixels)
                intensities = torch.view_as_real(fft(self._padded(exits))).square().sum(-1).to(torch.float64)
                total = intensities if total is None else total + intensities
            assert total is not None
            yield self._detected(total / self.crystal.configurations)

    def _padded(self, exits: Tensor) -> Tensor:
        """Return exit waves in a field of at least two windows where detector pixels integrate."""
        if self.crystal.extent > 1 or not self.crystal.integrating:
            return exits
        return torch.nn.functional.pad(exits, (0, self.side, 0, self.side))

    def _detected(self, fine: Tensor) -> Tensor:
        """Return what detector pixels count, (B, h, w), of spectra that have q samples in each; DC at the corner."""
        size = self.geometry.shape[0]
        samples = fine.shape[-1] // (size * self.crystal.refine)
        if self.crystal.integrating:
            k = frequencies((fine.shape[-2], fine.shape[-1]), (1.0, 1.0))
            box = torch.sinc(samples * k[0]) * torch.sinc(samples * k[1])
            fine = torch.fft.ifft2(torch.fft.fft2(fine) * box).real.clamp(min=0)
        # where the pixel's samples are not the wave's, its power is theirs times q^2
        patterns = torch.fft.fftshift(fine[:, ::samples, ::samples] * samples**2, dim=(-2, -1))
        start = patterns.shape[-1] // 2 - size // 2
        return torch.fft.ifftshift(patterns[:, start : start + size, start : start + size], dim=(-2, -1))


def project(
    atoms: Atoms,
    shape: tuple[int, int],
    pixel_m: float,
    slices: tuple[int, float],
    displacement_m: float = 0.0,
) -> Tensor:
    """Return projected potentials of slices, periodic at the field's borders.

    Args:
        atoms: in the field.
        shape: of the field in pixels.
        pixel_m: pixel.
        slices: their number S and thickness in metres.
        displacement_m: root of the mean square of displacements along an axis, over which the mean is taken.

    Returns:
        (S, *shape) float64 in V m.
    """
    count, thickness_m = slices
    pixel = pixel_m * 1e10
    y, x = torch.fft.fftfreq(shape[0], pixel, dtype=torch.float64), torch.fft.rfftfreq(shape[1], pixel).double()
    frequency = torch.hypot(y[:, None], x[None, :])
    blur = torch.exp(-2 * (math.pi * displacement_m * 1e10 * frequency) ** 2)
    level = np.clip(np.floor(atoms.places_m[:, 2] / thickness_m).astype(int), 0, count - 1)
    places = torch.from_numpy(atoms.places_m[:, :2] * 1e10)
    spectra = torch.zeros((count, *frequency.shape), dtype=torch.complex128)
    for element in np.unique(atoms.elements):
        amplitude = torch.from_numpy(projected_potential(str(element), frequency.numpy())) * blur / pixel**2
        for index in range(count):
            chosen = places[torch.from_numpy((level == index) & (atoms.elements == element))]
            if len(chosen):
                rows, columns = _waves(y, chosen[:, 0]), _waves(x, chosen[:, 1])
                spectra[index] += amplitude * (rows.T @ columns)
    return torch.fft.irfft2(spectra, s=shape) * 1e-10


def _waves(frequency: Tensor, places: Tensor) -> Tensor:
    """Return exp(-2 pi i k r), (J, K) complex64, whose products are summed over atoms in single precision."""
    turns = torch.outer(places, frequency)
    phase = -2 * math.pi * (turns - turns.round())
    return torch.polar(torch.ones_like(phase), phase).to(torch.complex64)


def transmit(waves: Tensor, transmissions: Tensor, kernel: Tensor, corners: np.ndarray) -> Tensor:
    """Return waves behind all slices, each through its own window of them.

    Args:
        waves: (B, n, n) complex, in the middle of the first slice.
        transmissions: (S, ...) complex of the field.
        kernel: (n, n) complex, from slice to slice, DC at the corner.
        corners: (B, 2) int, first pixel of each window in the field.
    """
    side, waves = waves.shape[-1], waves.clone()
    scaled = kernel / side**2  # transforms without a factor of their own save two passes
    for index, transmission in enumerate(transmissions):
        if index:
            spectra = fft(waves, "backward")
            spectra *= scaled
            waves = ifft(spectra, "forward")
        for wave, (y, x) in zip(waves, corners.tolist(), strict=True):
            wave *= transmission[y : y + side, x : x + side]
    return waves


def _band(shape: tuple[int, int], pixel_m: float) -> Tensor:
    """Return the frequencies that are kept, bool."""
    y, x = frequencies(shape, (pixel_m, pixel_m))
    return torch.hypot(y, x) < BAND * 0.5 / pixel_m
