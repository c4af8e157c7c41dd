"""What fused passes are, whoever runs their loops: cpu.py gives them numba's kernels, triton_backend.py Triton's.

B, M, h, w   views of the chunk, modes, window pixels;  K  OPR modes

Fused are single slices, near and far field alike, with every kind of sub-pixel position, and where a backend says so
several, one after the other. What remains (arithmetic on blocks) is left to torch (`Backend`), unless a kernel says
otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ptymesh.physics import views
from ptymesh.physics.backend import Adjoints, Backend, Chunk, Wanted, step_along
from ptymesh.physics.halves import Halves
from ptymesh.physics.model import Intermediates, Model
from ptymesh.physics.propagate import fft


@dataclass(frozen=True)
class Beams:
    """Probes (1 or B, M, h, w) and the amplitudes (B,) that multiply them."""

    waves: Tensor
    amplitudes: Tensor

    @property
    def shared(self) -> bool:
        """Whether all views have the same."""
        return len(self.waves) == 1


class FusedIntermediates(Intermediates):
    """A intermediates of a single slice that computes what it is asked for.

    `object` (H', W') and `corners` (B, 2) say where each window is: in the object itself or, with bilinear positions,
    in a column of interpolated windows.
    """

    def __init__(
        self, backend: FusedBackend, model: Model, chunk: Chunk, obj: Tensor, probe: Tensor, opr: Tensor | None
    ) -> None:
        set_ = object.__setattr__  # the base class is frozen
        set_(self, "backend", backend)
        set_(self, "model", model)
        set_(self, "chunk", chunk)
        set_(self, "whole_object", obj)
        set_(self, "probe", probe)
        set_(self, "opr", probe[:0] if opr is None else opr)
        set_(self, "window", window_of(probe))

    backend: FusedBackend
    model: Model
    chunk: Chunk
    whole_object: Tensor
    probe: Tensor  # what beams are made of
    opr: Tensor  # and what else, of no modes if that is all
    window: tuple[int, int]
    index: int = 0  # of the slice

    @cached_property
    def beams(self) -> Beams:
        """P_jm of the views, or what they share."""
        return self.backend.beams(self.model, self.chunk, self.probe, self.opr)

    @cached_property
    def windows(self) -> Tensor:
        """(B, 1, h, w)."""
        if self.model.subpixel == "bilinear":
            return self.object.view(len(self.corners), 1, -1, self.object.shape[1])
        return views.cut(self.whole_object, self.chunk.anchors, self.window)

    @cached_property
    def incoming(self) -> tuple[Tensor, ...]:
        """One (B, M, h, w)."""
        return (self.beams.waves * self.beams.amplitudes[:, None, None, None],)

    @cached_property
    def exit(self) -> Tensor:
        """(B, M, h, w)."""
        return self.backend.exit_waves(self)

    def slice(self, index: int) -> FusedIntermediates:
        """Those of a slice, whose beams are the waves that enter it."""
        return self

    @cached_property
    def _cut(self) -> tuple[Tensor, Tensor]:
        return self.backend.cut_from(self.model, self.chunk, self.whole_object, self.window)

    @property
    def object(self) -> Tensor:
        """(H', W')."""
        return self._cut[0]

    @property
    def corners(self) -> Tensor:
        """(B, 2)."""
        return self._cut[1]


class StackedIntermediates(FusedIntermediates):
    """Intermediates of several slices: of each those of a single one."""

    def slice(self, index: int) -> FusedIntermediates:
        """See the base."""
        return self._slices[index]

    @cached_property
    def _slices(self) -> list[FusedIntermediates]:
        found, beams = [], self.beams
        for index, obj in enumerate(self.whole_object[:, None]):
            one = FusedIntermediates(self.backend, self.model, self.chunk, obj, self.probe, self.opr)
            one.__dict__ |= {"index": index, "beams": beams}
            found.append(one)
            if index + 1 < len(self.whole_object):
                waves = self.model.to_next(self.backend.exit_waves(one))
                beams = Beams(waves, torch.ones_like(beams.amplitudes))
        return found

    @cached_property
    def windows(self) -> Tensor:
        """(B, L, h, w)."""
        return self.model.windows(self.whole_object, self.chunk.anchors, self.chunk.fractions, self.window)

    @property
    def incoming(self) -> tuple[Tensor, ...]:
        """(B, M, h, w) of each slice."""
        first, *others = self._slices
        return (*first.incoming, *(one.beams.waves for one in others))

    @cached_property
    def exit(self) -> Tensor:
        """(B, M, h, w)."""
        return self.backend.exit_waves(self._slices[-1])


@dataclass(frozen=True)
class KeptProbes:
    """Intermediates that are kept with their probes, in whole or as halves, and are given back when this is called."""

    intermediates: FusedIntermediates
    probes: Tensor | Halves
    amplitudes: Tensor

    def __call__(self) -> Intermediates:
        """With probes of their own memory where they were halves, which goes when nobody needs it any more."""
        if not isinstance(self.probes, Halves):
            return self.intermediates
        made = copy(self.intermediates)
        made.__dict__["beams"] = Beams(self.probes.waves, self.amplitudes)
        return made


class FusedBackend(Backend, ABC):
    """A backend whose loops over pixels are kernels: the abstract methods, and what is done at the detector."""

    #: Called before a chunk is begun.
    prepare: Callable[[], None] | None = None

    # --- kernels ---

    @abstractmethod
    def exit_waves(self, intermediates: FusedIntermediates) -> Tensor:
        """a_j beams_jm S_j O, (B, M, h, w)."""

    @abstractmethod
    def interpolated(self, chunk: Chunk, obj: Tensor, window: tuple[int, int]) -> Tensor:
        """Object (1, H, W) at bilinear positions, (B h, w): window after window."""

    @abstractmethod
    def ramped(self, spectrum: Tensor, fractions: Tensor, amplitudes: Tensor, axis: int) -> Tensor:
        """F^H of a_j exp(-2 pi i k.f_j) spectrum_m, (B, M, h, w); times 2 pi i k_axis where axis is 0 or 1, not -1."""

    @abstractmethod
    def to_object(
        self, model: Model, chunk: Chunk, intermediates: FusedIntermediates, waves: Tensor, into: Adjoints
    ) -> None:
        """into.object += sum_j S_j^H sum_m conj(a_j beams_jm) waves_jm, its weight += the same of |a_j beams_jm|^2, in
        the slice whose intermediates these are."""

    @abstractmethod
    def to_probe(self, intermediates: FusedIntermediates, waves: Tensor, amplitudes: Tensor, into: Adjoints) -> None:
        """into.probe += sum_j a_j conj(S_j O) waves_jm, into.probe_weight += sum_j a_j^2 |S_j O|^2."""

    @abstractmethod
    def to_probes(self, intermediates: FusedIntermediates, waves: Tensor) -> Tensor:
        """conj(S_j O) waves_jm, (B, M, h, w)."""

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
        """into.probe += sum_j exp(+2 pi i k.f_j) F a_j conj(S_j O) chi_jm; into.probe_weight as in `to_probe`. Either
        may wait until `finish`."""

    @abstractmethod
    def along_positions(self, intermediates: FusedIntermediates, chi: Tensor, by_y: Tensor, by_x: Tensor) -> Tensor:
        """<d_y, chi>, <d_x, chi>, ||psi||^2 of each view, (B, 3) float64; d_a = -O by_a."""

    @abstractmethod
    def step_systems(
        self, intermediates: FusedIntermediates, change: Tensor, beams: Tensor, d_beams: Beams, chi: Tensor
    ) -> Tensor:
        """`systems` with dO as `change`, at the pixels of the intermediates' object, for the modes of beams and chi."""

    # --- what it does ---

    def supports(self, model: Model, chunk: Chunk, wanted: Wanted) -> bool:
        """Single slices without operators; steps of positions by probes that are shifted, to the far field."""
        single = model.slice_kernel is None and not model.operators
        if wanted == "position_step":
            return single and model.subpixel == "fourier" and model.kernel is None and not varies(chunk)
        return single and wanted != "steps"

    # --- forward ---

    def forward(
        self, model: Model, chunk: Chunk, obj: Tensor, probe: Tensor, opr: Tensor | None = None
    ) -> Intermediates:
        """As `Backend.intermediates`; windows and waves are computed when they are asked for."""
        if not self.supports(model, chunk, "forward"):
            return super().forward(model, chunk, obj, probe, opr)
        if self.prepare:
            self.prepare()
        kind = FusedIntermediates if model.slice_kernel is None else StackedIntermediates
        return kind(self, model, chunk, obj.contiguous(), probe, opr)

    def keep_intermediates(
        self, intermediates: Intermediates, halves: bool = False
    ) -> Callable[[], Intermediates] | None:
        """A fused intermediates with its probes, which took a transform; several slices are rather made again."""
        if not isinstance(intermediates, FusedIntermediates) or isinstance(intermediates, StackedIntermediates):
            return None
        intermediates.__dict__.pop("exit", None)  # made again if it is asked for
        beams = intermediates.beams
        if not halves:
            return KeptProbes(intermediates, beams.waves, beams.amplitudes)
        # the one that all views share, too: whether a chunk of a single view has it of its own is not to be seen
        del intermediates.__dict__["beams"]
        return KeptProbes(intermediates, Halves.of(beams.waves), beams.amplitudes)

    def beams(self, model: Model, chunk: Chunk, probe: Tensor, opr: Tensor | None = None) -> Beams:
        """P_jm of the chunk's views."""
        if opr is not None and opr.shape[0]:
            waves = model.probes(probe, chunk.fractions, chunk.weights, opr).contiguous()
            return Beams(waves, torch.ones_like(chunk.weights[:, 0]))
        amplitudes = chunk.weights[:, 0].contiguous()
        if model.subpixel != "fourier" or chunk.integer_positions:
            return Beams(probe[None].contiguous(), amplitudes)
        return Beams(self._shifted(chunk, probe, amplitudes), torch.ones_like(amplitudes))

    def _shifted(self, chunk: Chunk, probe: Tensor, amplitudes: Tensor, axis: int = -1) -> Tensor:
        """w_j0 T_f P_m, (B, M, h, w), and with an axis its derivative."""
        return self.ramped(self.spectrum(chunk, probe), chunk.fractions, amplitudes, axis)

    def spectrum(self, chunk: Chunk, probe: Tensor) -> Tensor:
        """F P_m, (M, h, w); computed once in a sweep."""
        name = f"spectrum {id(probe)}"  # of a tensor that is kept, so that no other takes its name
        kept = chunk.sweep.get(name)
        if kept is None:
            kept = chunk.sweep[name] = (probe, fft(probe))
        found: Tensor = kept[1]
        return found

    def cut_from(self, model: Model, chunk: Chunk, obj: Tensor, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Array (H', W') and pixels (B, 2) of it where the windows of a chunk start: obj (1, H, W) or interpolated."""
        if model.subpixel != "bilinear":
            return obj[0], chunk.anchors
        starts = torch.zeros_like(chunk.anchors)
        starts[:, 0] = torch.arange(len(starts), device=starts.device) * window[0]
        return self.interpolated(chunk, obj, window), starts

    # --- adjoints ---

    def adjoint(self, model: Model, chunk: Chunk, intermediates: Intermediates, waves: Tensor, into: Adjoints) -> None:
        """As `Backend.adjoint`."""
        if not self.supports(model, chunk, "adjoint"):
            super().adjoint(model, chunk, intermediates, waves, into)
            return
        assert isinstance(intermediates, FusedIntermediates)
        waves, first = waves.contiguous(), intermediates.slice(0)
        for index in range(len(intermediates.whole_object) - 1, -1, -1):
            one = intermediates.slice(index)
            if into.object is not None and into.object_weight is not None:
                self.to_object(model, chunk, one, waves, into)
            if index:
                waves = model.to_next_adjoint(self.to_probes(one, waves))
        if into.probe is None:
            return
        amplitudes = chunk.weights[:, 0].contiguous()
        if into.opr.shape[0]:
            window = first.windows[:, 0]
            lit = window.real.square() + window.imag.square()
            self.gather(model, chunk, self.to_probes(first, waves), lit, into)
        elif into.shifted:
            self.to_spectrum(model, chunk, first, waves, amplitudes, into)
        else:
            self.to_probe(first, waves, amplitudes, into)

    # --- sums of single views ---

    def position_step(
        self,
        model: Model,
        chunk: Chunk,
        obj: Tensor,
        probe: Tensor,
        opr: Tensor,
        intermediates: Intermediates,
        chi: Tensor,
    ) -> Tensor:
        """As `Backend.position_step`."""
        if not self.supports(model, chunk, "position_step"):
            return super().position_step(model, chunk, obj, probe, opr, intermediates, chi)
        assert isinstance(intermediates, FusedIntermediates)
        amplitudes = chunk.weights[:, 0].contiguous()
        by_y, by_x = (self._shifted(chunk, probe, amplitudes, axis) for axis in (0, 1))
        found = self.along_positions(intermediates, chi, by_y, by_x)
        return steps_of(
            found[:, :2], self.position_derivative_norms(chunk, intermediates, probe, opr), found[:, 2], chi
        )

    def systems(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, d_object: Tensor, d_probe: Tensor, chi: Tensor
    ) -> Tensor:
        """As `Backend.systems`."""
        if not FusedBackend.supports(self, model, chunk, "systems"):
            return super().systems(model, chunk, intermediates, d_object, d_probe, chi)
        assert isinstance(intermediates, FusedIntermediates)
        modes = chi.shape[1]
        change, _ = self.cut_from(model, chunk, d_object.contiguous(), window_of(chi))
        d_beams = self.beams(model, chunk, d_probe if modes == len(d_probe) else d_probe[:modes])
        return self.step_systems(
            intermediates, change, intermediates.beams.waves[:, :modes].contiguous(), d_beams, chi.contiguous()
        )


def steps_of(along: Tensor, norms: Tensor, exit_norm: Tensor, like: Tensor) -> Tensor:
    """Steps of positions (B, 2): of products and norms (B, 2), and powers of exit waves (B,)."""
    pairs = zip(along.unbind(1), norms.unbind(1), strict=True)
    return torch.stack([step_along(one, norm, exit_norm, like) for one, norm in pairs], dim=1)


def corners(chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Top-left pixel of the interpolation (B, 2) and weights of the next ones (B, 2) in [0, 1)."""
    below = torch.floor(chunk.fractions)
    return chunk.anchors + below.to(chunk.anchors.dtype), chunk.fractions - below


def shifts_probe(model: Model, chunk: Chunk) -> bool:
    """Whether each view has the probe shifted by a fraction of its own, which may be none where beams vary."""
    return model.subpixel == "fourier" and (varies(chunk) or not chunk.integer_positions)


def varies(chunk: Chunk) -> bool:
    """Whether its beams have OPR modes."""
    return chunk.weights.shape[1] > 1


def window_of(waves: Tensor) -> tuple[int, int]:
    """(h, w)."""
    return waves.shape[-2], waves.shape[-1]
