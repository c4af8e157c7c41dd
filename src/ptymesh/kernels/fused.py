"""Base of the backends with fused passes: cpu/backend.py gives them numba's kernels, gpu/backend.py Triton's.

B, M, h, w   views of the chunk, modes, window pixels;  K  OPR modes

Each has a table that says which kernel an entry of `Backend` calls for which models and chunks (capabilities.py);
`forward_slices`, `adjoint_of_slices`, `step_probe`, `step_weights` and `systems_of_windows` are made of the abstract
methods for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ptymesh.kernels.arrays import ExitInputs
from ptymesh.kernels.capabilities import Request, Table, capability_for, varies
from ptymesh.physics import window_shifts
from ptymesh.physics.backend import Adjoints, Backend, Chunk, Operation, step_along
from ptymesh.physics.half_precision import Halves
from ptymesh.physics.model import Intermediates, Model
from ptymesh.physics.operators import Values
from ptymesh.physics.propagate import fft


@dataclass(frozen=True)
class Beams:
    """Probes (1 or B, M, h, w) and the amplitudes (B,) that multiply them."""

    waves: Tensor
    amplitudes: Tensor

    @property
    def shared(self) -> bool:
        """True if all views have the same probes."""
        return len(self.waves) == 1


@dataclass(frozen=True)
class SweepProducts:
    """Scalar products that a sweep has found of the waves that it brought back.

    Attributes:
        waves: (B, M, h, w) complex, the waves.
        products: (B, 3 (1 + K) + 2) float64, see `compiled_detector.detector`.
    """

    waves: Tensor
    products: Tensor


class FusedIntermediates(Intermediates):
    """Intermediates of a single slice, computed when they are asked for.

    `object` (H', W') and `corners` (B, 2) say where each window is: in the object itself or, with bilinear positions,
    in a column of interpolated windows.
    """

    def __init__(
        self, backend: FusedBackend, model: Model, chunk: Chunk, obj: Tensor, probe: Tensor, opr: Tensor | None
    ) -> None:
        self.backend, self.model, self.chunk = backend, model, chunk
        self.whole_object, self.probe = obj, probe
        self.opr = probe[:0] if opr is None else opr
        self.window = window_of(probe)

    backend: FusedBackend
    model: Model
    chunk: Chunk
    whole_object: Tensor
    probe: Tensor  # (M, h, w)
    opr: Tensor  # (K, h, w), variable-probe modes; K may be 0
    window: tuple[int, int]
    index: int = 0  # which slice
    sweep_products: SweepProducts | None = None  # once a sweep has brought waves back
    kernel_arrays: ExitInputs | None = None  # once numba's kernels have asked for them

    @property
    def values(self) -> Values:
        """Unknowns of the operators, by name."""
        return self.chunk.values

    @cached_property
    def beams(self) -> Beams:
        """P_jm of the views, or what they share."""
        return self.backend.beams(self.model, self.chunk, self.probe, self.opr)

    @cached_property
    def windows(self) -> Tensor:
        """Windows of the object, (B, 1, h, w)."""
        if self.model.subpixel == "bilinear":
            return self.object.view(len(self.corners), 1, -1, self.object.shape[1])
        return window_shifts.cut(self.whole_object, self.chunk.anchors, self.window)

    @cached_property
    def incoming(self) -> tuple[Tensor, ...]:
        """Waves that enter the slice, one (B, M, h, w)."""
        return (self.beams.waves * self.beams.amplitudes[:, None, None, None],)

    @cached_property
    def exit(self) -> Tensor:
        """Exit waves behind the last slice, (B, M, h, w)."""
        return self.backend.exit_waves(self.slice(-1))

    def slice(self, index: int) -> FusedIntermediates:
        """Return the intermediates of a slice, whose beams are the waves that enter it."""
        return self

    def free_exit_waves(self) -> None:
        """Free the exit waves, which are made anew if they are asked for."""
        vars(self).pop("exit", None)  # where `cached_property` keeps them

    @cached_property
    def _cut(self) -> tuple[Tensor, Tensor]:
        return self.backend.cut_from(self.model, self.chunk, self.whole_object, self.window)

    @property
    def object(self) -> Tensor:
        """Array (H', W') from which windows are taken."""
        return self._cut[0]

    @property
    def corners(self) -> Tensor:
        """First pixel (B, 2) of each window in `object`."""
        return self._cut[1]


class StackedIntermediates(FusedIntermediates):
    """Intermediates of several slices, each with those of a single one."""

    def slice(self, index: int) -> FusedIntermediates:
        """Return the intermediates of a slice, whose beams are the waves that enter it."""
        return self._slices[index]

    @cached_property
    def _slices(self) -> list[FusedIntermediates]:
        stack, beams = [], self.beams
        for index, obj in enumerate(self.whole_object[:, None]):
            one = FusedIntermediates(self.backend, self.model, self.chunk, obj, self.probe, self.opr)
            one.index, one.beams = index, beams
            stack.append(one)
            if index + 1 < len(self.whole_object):
                waves = self.model.to_next(self.backend.exit_waves(one))
                beams = Beams(waves, torch.ones_like(beams.amplitudes))
        return stack

    @cached_property
    def windows(self) -> Tensor:
        """Windows of the object, (B, L, h, w)."""
        return self.model.windows(self.whole_object, self.chunk.anchors, self.chunk.fractions, self.window)

    @property
    def incoming(self) -> tuple[Tensor, ...]:
        """Waves that enter each slice, (B, M, h, w)."""
        first, *others = self._slices
        return (*first.incoming, *(one.beams.waves for one in others))


@dataclass(frozen=True)
class KeptProbes:
    """Intermediates that are stored with their probes, in full or in half precision, and returned by a call."""

    intermediates: FusedIntermediates
    probes: Tensor | Halves
    amplitudes: Tensor

    def __call__(self) -> Intermediates:
        """Return the intermediates; probes of half precision are expanded to memory of their own."""
        if not isinstance(self.probes, Halves):
            return self.intermediates
        restored = copy(self.intermediates)
        restored.beams = Beams(self.probes.waves, self.amplitudes)
        return restored


class FusedBackend(Backend, ABC):
    """A backend whose loops over pixels are kernels: the abstract methods, and what is done with them."""

    #: Called before each chunk.
    prepare: Callable[[], None] | None = None
    #: Kernels by operation and capability, with the parameters of the entries.
    table: Table

    # --- which kernel ---

    def kernel_for(self, operation: Operation, model: Model, chunk: Chunk) -> Callable[..., object] | None:
        """Return the kernel of an operation that the table has for a model and chunk; None if the reference does it.

        Args:
            operation: name of the operation.
            model: the forward model.
            chunk: the views to be processed.
        """
        h, w = window_of(chunk.mask)
        finer = model.binning if model.detector else 1
        transform_known = self.knows_transform((finer * h, finer * w))
        return self.kernel_of(operation, Request.of(model, varies(chunk), chunk.integer_positions, transform_known))

    def kernel_of(self, operation: Operation, request: Request) -> Callable[..., object] | None:
        """Return the kernel of an operation for a request; None if there is none."""
        key = operation, request
        if key not in self._chosen:
            capabilities = [capability for one, capability in self.table if one == operation]
            capability = capability_for(operation, request, capabilities)
            self._chosen[key] = None if capability is None else self.table[operation, capability]
        return self._chosen[key]

    @cached_property
    def _chosen(self) -> dict[tuple[Operation, Request], Callable[..., object] | None]:
        """Kernels that have been chosen so far."""
        return {}

    def supports(self, model: Model, chunk: Chunk, operation: Operation) -> bool:
        """Return True if the table has a kernel of an operation for a model and chunk.

        Args:
            model: the forward model.
            chunk: the views to be processed.
            operation: name of the operation.
        """
        return self.kernel_for(operation, model, chunk) is not None

    def knows_transform(self, window: tuple[int, int]) -> bool:
        """Return True if the kernels know the Fourier transform of a window."""
        return True

    # --- kernels ---

    @abstractmethod
    def exit_waves(self, intermediates: FusedIntermediates) -> Tensor:
        """Return a_j beams_jm S_j O, (B, M, h, w)."""

    @abstractmethod
    def interpolated(self, chunk: Chunk, obj: Tensor, window: tuple[int, int]) -> Tensor:
        """Return the object at bilinear positions, (B h, w): window after window.

        Args:
            chunk: the views.
            obj: (1, H, W) complex.
            window: pixels h, w.
        """

    @abstractmethod
    def ramped(self, spectrum: Tensor, fractions: Tensor, amplitudes: Tensor, axis: int) -> Tensor:
        """Return F^H of a_j exp(-2 pi i k.f_j) spectrum_m, (B, M, h, w).

        Args:
            spectrum: (M, h, w) complex, probes in Fourier space.
            fractions: (B, 2) real, sub-pixel parts of the positions in pixels.
            amplitudes: (B,) real, amplitude of each view's beam.
            axis: 0 or 1 for the derivative along y or x, which is times 2 pi i k_axis; -1 for none.
        """

    @abstractmethod
    def to_object(
        self, model: Model, chunk: Chunk, intermediates: FusedIntermediates, waves: Tensor, into: Adjoints
    ) -> None:
        """Add sum_j S_j^H sum_m conj(a_j beams_jm) waves_jm to the object's sums, and the same of |a_j beams_jm|^2 to
        its weight.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: of the slice whose object it is.
            waves: (B, M, h, w) complex.
            into: the sums of the batch.
        """

    @abstractmethod
    def to_probe(self, intermediates: FusedIntermediates, waves: Tensor, amplitudes: Tensor, into: Adjoints) -> None:
        """Add sum_j a_j conj(S_j O) waves_jm to the probe's sums, and sum_j a_j^2 |S_j O|^2 to its weight.

        Args:
            intermediates: windows and waves of the views.
            waves: (B, M, h, w) complex.
            amplitudes: (B,) real, amplitude of each view's beam.
            into: the sums of the batch.
        """

    @abstractmethod
    def to_probes(self, intermediates: FusedIntermediates, waves: Tensor) -> Tensor:
        """Return conj(S_j O) waves_jm, (B, M, h, w)."""

    @abstractmethod
    def to_spectrum(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: FusedIntermediates,
        chi: Tensor,
        amplitudes: Tensor,
        into: Adjoints,
    ) -> None:
        """Add sum_j exp(+2 pi i k.f_j) F a_j conj(S_j O) chi_jm to the probe's sums, and sum_j a_j^2 |S_j O|^2 to its
        weight.

        Either may wait until `finish`.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            chi: (B, M, h, w) complex, changes of the exit waves.
            amplitudes: (B,) real, amplitude of each view's beam.
            into: the sums of the batch.
        """

    @abstractmethod
    def along_positions(self, intermediates: FusedIntermediates, chi: Tensor, by_y: Tensor, by_x: Tensor) -> Tensor:
        """Return <d_y, chi>, <d_x, chi>, ||psi||^2 of each view with d_a = -O by_a, (B, 3) float64.

        Args:
            intermediates: windows and waves of the views.
            chi: (B, M, h, w) complex, changes of the exit waves.
            by_y: (B, M, h, w) complex, derivative of the beams along y.
            by_x: (B, M, h, w) complex, derivative of the beams along x.
        """

    @abstractmethod
    def step_systems(
        self, intermediates: FusedIntermediates, change: Tensor, beams: Tensor, d_beams: Beams, chi: Tensor
    ) -> Tensor:
        """Return `systems` for the modes of beams and chi, (B, 5) float64.

        Args:
            intermediates: windows and waves of the views.
            change: (H', W') complex, direction of the object, at the pixels of the intermediates' object.
            beams: (1 or B, M, h, w) complex.
            d_beams: direction of the beams.
            chi: (B, M, h, w) complex, changes of the exit waves.
        """

    # --- forward ---

    def forward_slices(
        self, model: Model, chunk: Chunk, obj: Tensor, probe: Tensor, opr: Tensor | None = None
    ) -> Intermediates:
        """Return intermediates whose windows and waves are computed when they are asked for.

        Args:
            model: the forward model.
            chunk: the views.
            obj: (L, H, W) complex.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex, variable-probe modes.
        """
        if self.prepare:
            self.prepare()
        kind = FusedIntermediates if model.slice_kernel is None else StackedIntermediates
        return kind(self, model, chunk, obj.contiguous(), probe, opr)

    def keep_intermediates(
        self, intermediates: Intermediates, halves: bool = False
    ) -> Callable[[], Intermediates] | None:
        """Return a function that gives the intermediates back with their probes, which took a transform.

        Those of several slices are rather made anew, for which None is returned.
        """
        if not isinstance(intermediates, FusedIntermediates) or isinstance(intermediates, StackedIntermediates):
            return None
        intermediates.free_exit_waves()
        beams = intermediates.beams
        if not halves:
            return KeptProbes(intermediates, beams.waves, beams.amplitudes)
        # also if all views share it: a chunk of a single view must not differ from others
        del intermediates.beams
        return KeptProbes(intermediates, Halves.of(beams.waves), beams.amplitudes)

    def beams(self, model: Model, chunk: Chunk, probe: Tensor, opr: Tensor | None = None) -> Beams:
        """Return P_jm of the views.

        Args:
            model: the forward model.
            chunk: the views.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex, variable-probe modes.
        """
        if opr is not None and opr.shape[0]:
            waves = model.probes(probe, chunk.fractions, chunk.weights, opr).contiguous()
            return Beams(waves, torch.ones_like(chunk.weights[:, 0]))
        amplitudes = chunk.weights[:, 0].contiguous()
        if model.subpixel != "fourier" or chunk.integer_positions:
            return Beams(probe[None].contiguous(), amplitudes)
        return Beams(self._shifted(chunk, probe, amplitudes), torch.ones_like(amplitudes))

    def _shifted(self, chunk: Chunk, probe: Tensor, amplitudes: Tensor, axis: int = -1) -> Tensor:
        """Return w_j0 T_f P_m, (B, M, h, w), or its derivative along an axis."""
        return self.ramped(self.spectrum(chunk, probe), chunk.fractions, amplitudes, axis)

    def spectrum(self, chunk: Chunk, probe: Tensor) -> Tensor:
        """Return F P_m, (M, h, w); computed once in a batch."""
        # the cache holds the tensor, so that no other has its id
        return chunk.cache.get(("spectrum", id(probe)), probe, lambda: fft(probe))

    def cut_from(self, model: Model, chunk: Chunk, obj: Tensor, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return an array (H', W') and the pixels (B, 2) of it where the windows of a chunk start.

        Args:
            model: the forward model.
            chunk: the views.
            obj: (1, H, W) complex.
            window: pixels h, w.

        Returns:
            The object's slice and anchors or, with bilinear positions, a column of interpolated windows and their
            starts.
        """
        if model.subpixel != "bilinear":
            return obj[0], chunk.anchors
        starts = torch.zeros_like(chunk.anchors)
        starts[:, 0] = torch.arange(len(starts), device=starts.device) * window[0]
        return self.interpolated(chunk, obj, window), starts

    # --- adjoints ---

    def adjoint_of_slices(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, waves: Tensor, into: Adjoints
    ) -> None:
        """Add the adjoints of the waves, with their weights, to the sums of the batch.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            waves: (B, M, h, w) complex, at the exit of the last slice.
            into: the sums of the batch.
        """
        assert isinstance(intermediates, FusedIntermediates)
        waves, first = self.to_slices(model, chunk, intermediates, waves, into), intermediates.slice(0)
        if into.probe is None:
            return
        amplitudes = chunk.weights[:, 0].contiguous()
        if into.opr.shape[0]:
            window = first.windows[:, 0]
            illumination = window.real.square() + window.imag.square()
            self.gather(model, chunk, self.to_probes(first, waves), illumination, into)
        elif into.shifted:
            self.to_spectrum(model, chunk, first, waves, amplitudes, into)
        else:
            self.to_probe(first, waves, amplitudes, into)

    def to_slices(
        self, model: Model, chunk: Chunk, intermediates: FusedIntermediates, waves: Tensor, into: Adjoints
    ) -> Tensor:
        """Add the adjoints of the waves, with their weights, to the sums of all slices.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            waves: (B, M, h, w) complex, at the exit of the last slice.
            into: the sums of the batch.

        Returns:
            The waves at the exit of the first slice, (B, M, h, w).
        """
        waves = waves.contiguous()
        for index in range(len(intermediates.whole_object) - 1, -1, -1):
            one = intermediates.slice(index)
            if into.object is not None and into.object_weight is not None:
                self.to_object(model, chunk, one, waves, into)
            if index:
                waves = model.to_next_adjoint(self.to_probes(one, waves)).contiguous()
        return waves

    # --- sums of single views ---

    def step_probe(
        self,
        model: Model,
        chunk: Chunk,
        obj: Tensor,
        probe: Tensor,
        opr: Tensor,
        intermediates: Intermediates,
        chi: Tensor,
    ) -> Tensor:
        """Return <d_a psi, chi> / ||d_a psi||^2 of each view along y and x, (B, 2) real, in pixels.

        Args:
            model: the forward model.
            chunk: the views.
            obj: (L, H, W) complex.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex, variable-probe modes.
            intermediates: windows and waves of the views.
            chi: (B, M, h, w) complex, changes of the exit waves.
        """
        assert isinstance(intermediates, FusedIntermediates)
        amplitudes = chunk.weights[:, 0].contiguous()
        by_y, by_x = (self._shifted(chunk, probe, amplitudes, axis) for axis in (0, 1))
        sums = self.along_positions(intermediates, chi, by_y, by_x)
        return steps_of(
            sums[:, :2], self.position_derivative_norms(model, chunk, intermediates, probe, opr), sums[:, 2], chi
        )

    def step_weights(
        self, model: Model, chunk: Chunk, probe: Tensor, opr: Tensor, intermediates: Intermediates, chi: Tensor
    ) -> Tensor:
        """Return <d psi/d w_jk, chi> / ||d psi/d w_jk||^2 of each view for the probe and its OPR modes, (B, 1 + K).

        For a single slice and a beam alone they come from the systems of step lengths, with a probe of amplitude 1 as
        the direction.

        Args:
            model: the forward model.
            chunk: the views.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex, variable-probe modes.
            intermediates: windows and waves of the views.
            chi: (B, M, h, w) complex, changes of the exit waves.
        """
        assert isinstance(intermediates, FusedIntermediates)
        ones = replace(chunk, weights=torch.ones_like(chunk.weights))
        products = self.systems(model, ones, intermediates, intermediates.whole_object, probe, chi)
        real = chunk.weights.dtype
        return (products[:, 4] / products[:, 1].clamp(min=torch.finfo(real).tiny))[:, None].to(real)

    def systems_of_windows(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, d_object: Tensor, d_probe: Tensor, chi: Tensor
    ) -> Tensor:
        """Return ||P dO||^2, ||dP O||^2, <P dO, dP O>, <P dO, chi>, <dP O, chi> of each view, (B, 5) float64.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            d_object: (L, H, W) complex, direction of the object.
            d_probe: (M, h, w) complex, direction of the probe.
            chi: (B, M, h, w) complex, changes of the exit waves.
        """
        assert isinstance(intermediates, FusedIntermediates)
        modes = chi.shape[1]
        change, _ = self.cut_from(model, chunk, d_object.contiguous(), window_of(chi))
        d_beams = self.beams(model, chunk, d_probe if modes == len(d_probe) else d_probe[:modes])
        return self.step_systems(
            intermediates, change, intermediates.beams.waves[:, :modes].contiguous(), d_beams, chi.contiguous()
        )


def steps_of(along: Tensor, norms: Tensor, exit_norm: Tensor, like: Tensor) -> Tensor:
    """Return steps of positions, (B, 2).

    Args:
        along: (B, 2) real, <d_a, chi>.
        norms: (B, 2) real, ||d_a||^2.
        exit_norm: (B,) real, squared norms of the exit waves.
        like: tensor of the waves' precision.
    """
    pairs = zip(along.unbind(1), norms.unbind(1), strict=True)
    return torch.stack([step_along(one, norm, exit_norm, like) for one, norm in pairs], dim=1)


def corners(chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Return the top-left pixel of the interpolation (B, 2) and the weights of the next ones (B, 2) in [0, 1)."""
    below = torch.floor(chunk.fractions)
    return chunk.anchors + below.to(chunk.anchors.dtype), chunk.fractions - below


def shifts_probe(model: Model, chunk: Chunk) -> bool:
    """Return True if each view has the probe shifted by a fraction of its own, which may be none where beams vary."""
    return model.subpixel == "fourier" and (varies(chunk) or not chunk.integer_positions)


def window_of(waves: Tensor) -> tuple[int, int]:
    """Return the pixels (h, w) of waves."""
    return waves.shape[-2], waves.shape[-1]
