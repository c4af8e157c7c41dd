"""Passes on a CPU through models with operators: by kernels up to an operator, by its own methods, and on by kernels.

B, M, h, w   views of the chunk, modes, window pixels;  K  waves that operators make of a mode

An operator that only shifts or propagates (`ShiftedCopies`) takes no pass of its own: kernels shift its copies together
with the probe, as if each were a view.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels.arrays import CopyInputs, RealArray
from ptymesh.kernels.capabilities import varies
from ptymesh.kernels.cpu import panels
from ptymesh.kernels.cpu.arguments import array_of, arrays_of, threads_for, transform_for
from ptymesh.kernels.cpu.compiled import probes as compiled_probes
from ptymesh.kernels.cpu.compiled.column_panels import WIDTH
from ptymesh.kernels.cpu.inputs import CpuInputs
from ptymesh.kernels.cpu.ready import share_threads
from ptymesh.kernels.cpu.sums import record_largest
from ptymesh.kernels.fused import Beams, FusedBackend, FusedIntermediates, StackedIntermediates, window_of
from ptymesh.physics.backend import Adjoints, Chunk
from ptymesh.physics.kinds import PROBE_WEIGHT, SUMS
from ptymesh.physics.model import Intermediates, Model
from ptymesh.physics.operators import ShiftedCopies, Values, apply_operator_adjoints, apply_operators, views_for
from ptymesh.physics.propagate import turn_phases


class OperatorIntermediates(FusedIntermediates):
    """Intermediates with operators before the first slice or behind the last, computed when they are asked for."""

    inputs: CpuInputs

    @cached_property
    def copies(self) -> CopyInputs | None:
        """Numbers that make the copies; None if operators at the probe make others."""
        return copies_of(self.model, self.chunk, self.window)

    @cached_property
    def probes(self) -> Tensor:
        """Shifted probes before the operators, (B, M, h, w)."""
        return self.beams_of(self.probe)

    @cached_property
    def beams(self) -> Beams:
        """Waves that enter the slice, behind the operators at the probe."""
        if not has_probe_operators(self.model):
            return super().beams
        return Beams(self.behind_operators(self.probe), torch.ones_like(self.chunk.weights[:, 0]))

    @cached_property
    def exit(self) -> Tensor:
        """Waves behind the last operator, (B, M K, h, w)."""
        waves = self.backend.exit_waves(self.slice(-1))
        return apply_operators(self.model.operators, "exit", waves, self.values)

    def beams_of(self, probe: Tensor, opr: Tensor | None = None) -> Tensor:
        """Return the probes of the views before operators, (B, M, h, w).

        Args:
            probe: (M, h, w) complex.
            opr: (K, h, w) complex, variable-probe modes; None for those of the intermediates.
        """
        plain = self.backend.beams(self.model, self.chunk, probe, self.opr if opr is None else opr)
        return plain.waves * plain.amplitudes[:, None, None, None] if plain.shared else plain.waves

    def behind_operators(self, probe: Tensor, opr: Tensor | None = None) -> Tensor:
        """Return the probes of the views behind the operators at the probe, (B, M K, h, w).

        Args:
            probe: (M, h, w) complex.
            opr: (K, h, w) complex, variable-probe modes; None for those of the intermediates.
        """
        if self.copies is None or varies(self.chunk):
            waves = self.beams_of(probe, opr)
            return apply_operators(self.model.operators, "probe", waves, self.values).contiguous()
        waves = self.inputs.copies_of_probes(self.backend.spectrum(self.chunk, probe), self.copies)
        return by_mode(waves, len(self.chunk.views))


class StackedOperatorIntermediates(OperatorIntermediates, StackedIntermediates):
    """The same of several slices."""


class AroundOperators:
    """Kernels for models with operators, slice by slice.

    Args:
        backend: whose kernels they are.
        inputs: the same backend, with what kernels are given.
    """

    def __init__(self, backend: FusedBackend, inputs: CpuInputs) -> None:
        self.backend, self.inputs = backend, inputs

    def forward(
        self, model: Model, chunk: Chunk, obj: Tensor, probe: Tensor, opr: Tensor | None = None
    ) -> Intermediates:
        """Return intermediates in which nothing is computed before it is asked for.

        Args:
            model: the forward model.
            chunk: the views.
            obj: (L, H, W) complex.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex, variable-probe modes.
        """
        share_threads()
        kind = OperatorIntermediates if model.slice_kernel is None else StackedOperatorIntermediates
        built = kind(self.backend, model, chunk, obj.contiguous(), probe, opr)
        built.inputs = self.inputs
        return built

    def adjoint(self, model: Model, chunk: Chunk, intermediates: Intermediates, waves: Tensor, into: Adjoints) -> None:
        """Add the adjoints of waves behind all operators, with their weights, to the sums of the batch.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            waves: (B, M K, h, w) complex.
            into: the sums of the batch.
        """
        assert isinstance(intermediates, OperatorIntermediates)
        waves = apply_operator_adjoints(model.operators, "exit", waves, chunk.values)
        if not has_probe_operators(model):
            self.backend.adjoint_of_slices(model, chunk, intermediates, waves, into)
            return
        waves, first = self.backend.to_slices(model, chunk, intermediates, waves, into), intermediates.slice(0)
        if into.probe is None:
            return
        if not into.shifted or len(into.opr) or not transform_for(window_of(waves), self.inputs.real).known:
            window = first.windows[:, 0]
            illumination = window.real.square() + window.imag.square()
            self.backend.gather(model, chunk, self._to_probes(model, first, chunk.values, waves), illumination, into)
            return
        corners, amplitudes = array_of(chunk.anchors), np.ascontiguousarray(array_of(chunk.weights)[:, 0])
        obj, fractions = array_of(first.object), array_of(chunk.fractions)
        copies: CopyInputs = fractions, amplitudes, self.inputs.no_turns
        self._add(waves[:, :0], obj, corners, copies, into, weigh=True)
        if intermediates.copies is not None:
            count, copies = model.fan_out, intermediates.copies
            waves, corners = by_copy(waves, count), corners.repeat(count, axis=0)
        else:
            waves = self._to_probes(model, first, chunk.values, waves)
            obj, corners = np.ones(waves.shape[2:], obj.dtype), np.zeros_like(corners)
        self._add(waves, obj, corners, copies, into)

    def _to_probes(self, model: Model, first: FusedIntermediates, values: Values, waves: Tensor) -> Tensor:
        """Return waves behind the first slice taken back to the probes before the operators, (B, M, h, w)."""
        before = self.backend.to_probes(first, waves)
        return apply_operator_adjoints(model.operators, "probe", before, values).contiguous()

    def _add(
        self,
        waves: Tensor,
        obj: RealArray,
        corners: RealArray,
        copies: CopyInputs,
        into: Adjoints,
        weigh: bool = False,
    ) -> None:
        """Add a conj(S O) waves, shifted back, to the sums of the probe; with `weigh` a^2 |S O|^2 to its weight."""
        count, (h, w) = len(waves), waves.shape[2:]
        sums, lights = self.inputs.bands_of(into)[:2]
        lights = lights if weigh else np.zeros_like(lights)
        reached, work = np.zeros((count, SUMS)), self.inputs.work(threads_for(count), (max(1, waves.shape[1]), h, w))
        back, tables = (array_of(waves), obj, corners), self.inputs.transform(waves).tables
        into_bands = into.shifts.numpy(), sums, lights, reached
        compiled_probes.to_spectrum(work, back, copies, tables, into_bands)
        if not weigh:
            reached[:, PROBE_WEIGHT] = 0
        record_largest(into, reached)

    def systems(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, d_object: Tensor, d_probe: Tensor, chi: Tensor
    ) -> Tensor:
        """Return ||P dO||^2, ||dP O||^2, <P dO, dP O>, <P dO, chi>, <dP O, chi> of each view, (B, 5) float64.

        Operators behind the slice keep products, which are taken before them.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            d_object: (1, H, W) complex, direction of the object.
            d_probe: (M, h, w) complex, direction of the probe.
            chi: (B, m, h, w) complex, changes of the waves behind all operators; sums go over these m waves.
        """
        assert isinstance(intermediates, OperatorIntermediates)
        waves = chi.shape[1]
        chi = apply_operator_adjoints(model.operators, "exit", chi, chunk.values).contiguous()
        change, _ = self.backend.cut_from(model, chunk, d_object.contiguous(), window_of(chi))
        beams, none = intermediates.beams, d_probe[:0]
        if has_probe_operators(model):
            direction = Beams(
                intermediates.behind_operators(d_probe, none)[:, :waves].contiguous(), torch.ones_like(beams.amplitudes)
            )
        else:
            direction = self.backend.beams(model, chunk, d_probe[:waves])
        return self.backend.step_systems(intermediates, change, beams.waves[:, :waves].contiguous(), direction, chi)


def has_probe_operators(model: Model) -> bool:
    """Return True if an operator stands between the probe and the object."""
    return any(placed.operator.at == "probe" for placed in model.operators)


def copies_of(model: Model, chunk: Chunk, window: tuple[int, int]) -> CopyInputs | None:
    """Return shifts (B K, 2) px, amplitudes (B K,) and turns, as `compiled_probes.ramped` reads them, that make all
    copies of the views' probes; None if operators at the probe make others.

    Args:
        model: the forward model.
        chunk: the views.
        window: (h, w).
    """
    at_probe = [placed for placed in model.operators if placed.operator.at == "probe"]
    if len(at_probe) != 1:
        return None
    operator, tables = at_probe[0].operator, at_probe[0].tables
    if not isinstance(operator, ShiftedCopies):
        return None
    kind = type(operator)
    if (kind.forward, kind.adjoint, kind.turns) != (ShiftedCopies.forward, ShiftedCopies.adjoint, ShiftedCopies.turns):
        return None
    places, factors = operator.copies(chunk.values, tables, **views_for(operator, "copies", chunk.values))
    shifted = model.subpixel == "fourier" and not chunk.integer_positions
    fractions = chunk.fractions[:, None] if shifted else torch.zeros_like(chunk.fractions)[:, None]
    shifts, amplitudes = arrays_of((fractions + places).flatten(0, 1), (chunk.weights[:, :1] * factors).flatten())
    propagated = operator.distances(chunk.values, tables, **views_for(operator, "distances", chunk.values))
    if propagated is None:
        return shifts, amplitudes, np.empty((1, 0), amplitudes.dtype)
    if not transform_for(window, chunk.weights.dtype).known:
        return None
    z, rate = propagated

    def turn() -> RealArray:
        return _turns_in_panels(z.detach().flatten(), rate)

    # the same for all views of a batch, if it is for those of a chunk
    return shifts, amplitudes, chunk.cache.get("turns", rate, turn) if len(z) == 1 else turn()


def _turns_in_panels(z: Tensor, rate: Tensor) -> RealArray:
    """Return exp(i z r) of distances (n,) and r (h, w), panel after panel, (n, 2 h w')."""
    numbers, places = _distinct_rates(rate)
    turned = turn_phases(z, numbers[None])[:, 0]
    return torch.cat((turned.real, turned.imag), dim=1).index_select(1, places).numpy()


@lru_cache(maxsize=4)
def _distinct_rates(rate: Tensor) -> tuple[Tensor, Tensor]:
    """Return the n numbers that r (h, w) has, as it is even, and the indices of all pixels among these, panel after
    panel: of real parts, and n further of imaginary ones, (2 h w',)."""
    numbers, places = np.unique(panels.in_panels(rate.numpy()), return_inverse=True)
    eight = places.reshape(-1, 1, WIDTH)
    return torch.from_numpy(numbers), torch.from_numpy(np.concatenate((eight, eight + len(numbers)), axis=1).ravel())


def by_mode(waves: Tensor, views: int) -> Tensor:
    """Return copies (B K, M, h, w) as waves (B, M K, h, w), those of a mode beside each other."""
    return waves.unflatten(0, (views, -1)).transpose(1, 2).flatten(1, 2).contiguous()


def by_copy(waves: Tensor, copies: int) -> Tensor:
    """Return waves (B, M K, h, w) as copies (B K, M, h, w)."""
    return waves.unflatten(1, (-1, copies)).transpose(1, 2).flatten(0, 1).contiguous()
