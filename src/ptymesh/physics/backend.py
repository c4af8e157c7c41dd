"""Passes over a chunk of views in which a reconstruction spends its time, in plain torch.

B, L, M      views of the chunk, slices, modes
psi, Psi     exit waves, waves on the detector;  chi  change of an exit wave
dO, dP       directions of object and probe

This is the reference. `ptymesh.kernels` has passes of the same signatures, fused for a kind of device; the problem
chooses between them. Callers may use `windows`, `incoming` and `exit` of the intermediates, and nothing else of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Concatenate, Literal, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from ptymesh.physics import fidelity, window_shifts
from ptymesh.physics.background import BackgroundSums
from ptymesh.physics.elementwise import over_window, overlap, times
from ptymesh.physics.fidelity import Data, Saturation
from ptymesh.physics.kinds import OBJECT, OBJECT_WEIGHT, OPR, OPR_WEIGHT, PROBE, PROBE_WEIGHT
from ptymesh.physics.model import Intermediates, Model, inner, power
from ptymesh.physics.operators import Values
from ptymesh.physics.propagate import derivatives, fft, ifft
from ptymesh.physics.rounding import rounded
from ptymesh.physics.sums import Adjoints, BlockOperations

#: Change of an exit wave per pixel, relative to the wave, below which a view does not determine its position: the
#: near-field image of a constant object stays where it is when the beam moves.
INSENSITIVE = 1e-3
#: Columns of the array that `at_detector` returns.
LOSS, MISFIT, COUNTS, ABSOLUTE, ROOTS, SQUARES = range(6)
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., object])
Words = ParamSpec("Words")
#: Passes over the detector, by name.
Task = Literal["evaluate", "exit_wave_update", "loss_gradient"]
#: Operations for which a backend may have kernels: entries of `Backend`; "steps" is `sweep` with `steps`.
Operation = Literal[
    "forward",
    "at_detector",
    "apply_at_detector",
    "detector",
    "adjoint",
    "sweep",
    "steps",
    "recompute_waves",
    "illuminate",
    "illumination",
    "position_step",
    "weight_step",
    "systems",
    "gap_products",
]


class BatchCache:
    """Results that hold while a batch is processed.

    Attributes:
        is_swept: True if waves of the batch come from `Backend.sweep`, which may round otherwise than `detector`.
    """

    def __init__(self) -> None:
        self.is_swept = False
        self._results: dict[Hashable, tuple[Tensor, object]] = {}

    def get(self, key: Hashable, source: Tensor, compute: Callable[[], Result]) -> Result:
        """Return what is computed from a tensor, computed when it is first asked for.

        Args:
            key: name of the result.
            source: tensor that it is computed from; another one makes the result stale.
            compute: computes the result.
        """
        entry = self._results.get(key)
        if entry is None or entry[0] is not source:
            entry = self._results[key] = (source, compute())
        return cast("Result", entry[1])


@dataclass(frozen=True)
class Chunk:
    """A batch's views of this rank that are processed together, with what the model needs of them.

    Attributes:
        views: (B,) int64, global indices of the views.
        rows: (B,) int64, their indices in this rank's storage.
        anchors: (B, 2) int64, corners of the windows in object pixels.
        fractions: (B, 2) sub-pixel parts of the positions, in pixels.
        weights: (B, 1 + K) weights of the probe and of the OPR modes.
        counts: (B, h, w) patterns in the detector's dtype, or (n, h, w) with `pattern_index`.
        mask: (h, w) bool, False where the detector's pixels are not used.
        background: (h, w) counts that are there without light: the estimate's background, and what pieces add.
        integer_positions: True if all views of the scan lie on whole pixels, so that nothing needs to be shifted.
        cache: results that hold while the batch is processed.
        pattern_index: (B,) indices of the views in `counts`, if that array has more patterns than this chunk.
        border: True if other ranks wait for the sums of this chunk.
        values: unknowns of the model's operators, by name (operators.py).
        object: (L, H, W) object in which the anchors count, if that is not the estimate's.
        setting: number of the scan that these views are of, where scans have probes or backgrounds of their own.
        saturation: of the model's detector, or None.
    """

    views: Tensor
    rows: Tensor
    anchors: Tensor
    fractions: Tensor
    weights: Tensor
    counts: Tensor
    mask: Tensor
    background: Tensor
    integer_positions: bool = False
    cache: BatchCache = field(default_factory=BatchCache)
    pattern_index: Tensor | None = None
    border: bool = False
    values: Values = field(default_factory=dict)
    object: Tensor | None = None
    setting: int = 0
    saturation: Saturation | None = None

    @property
    def patterns(self) -> Tensor:
        """Counts of these views alone, (B, h, w), in the detector's dtype."""
        return self.counts if self.pattern_index is None else self.counts.index_select(0, self.pattern_index)

    @cached_property
    def data(self) -> Data:
        """Counts as floats, with the pixels that hold data."""
        return Data.of(self.patterns, self.mask, self.background, self.background.dtype, self.saturation)


def entry(
    reference: Callable[Concatenate[Backend, Model, Chunk, Words], Result],
) -> Callable[Concatenate[Backend, Model, Chunk, Words], Result]:
    """Make a method of `Backend` an entry: it calls the kernel that the backend has for such a model and chunk.

    The method itself is the reference, for all that no kernel knows.
    """
    name = cast("Operation", reference.__name__)

    @wraps(reference)
    def call(self: Backend, model: Model, chunk: Chunk, /, *given: Words.args, **named: Words.kwargs) -> Result:
        kernel = self.kernel_for(name, model, chunk)
        if kernel is None:
            return reference(self, model, chunk, *given, **named)
        return cast("Result", kernel(model, chunk, *given, **named))

    return call


def reference_of(method: Function) -> Function:
    """Return the reference behind an entry of `Backend`, which asks for no kernel."""
    return cast("Function", inspect.unwrap(method))


class Backend(BlockOperations):
    """The interface of a backend, and the reference implementation for any model and device.

    Its entries take a chunk of views through a model. Each asks `kernel_for` for a kernel of the subclass before it
    runs; no subclass overrides an entry.
    """

    def kernel_for(self, operation: Operation, model: Model, chunk: Chunk) -> Callable[..., object] | None:
        """Return the kernel of an operation, with the entry's parameters; None if the reference does it.

        Args:
            operation: name of the operation.
            model: the forward model.
            chunk: the views to be processed.
        """
        return None

    def supports(self, model: Model, chunk: Chunk, operation: Operation) -> bool:
        """Return True if this class has its own implementation of an operation for such a model and chunk.

        The reference implements everything.

        Args:
            model: the forward model.
            chunk: the views to be processed.
            operation: name of the operation; "steps" for a `sweep` with `steps`.
        """
        return True

    @entry
    def forward(
        self, model: Model, chunk: Chunk, obj: Tensor, probe: Tensor, opr: Tensor | None = None
    ) -> Intermediates:
        """Compute windows, incoming and exit waves of a chunk.

        Args:
            model: the forward model.
            chunk: the views.
            obj: (L, H, W) complex.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex, variable-probe modes; None without any.
        """
        window = (probe.shape[-2], probe.shape[-1])
        windows = model.windows(obj, chunk.anchors, chunk.fractions, window)
        return model.forward(windows, model.probes(probe, chunk.fractions, chunk.weights, opr), chunk.values)

    def keep_intermediates(
        self, intermediates: Intermediates, halves: bool = False
    ) -> Callable[[], Intermediates] | None:
        """Return a function that gives the intermediates back, holding only what later passes need.

        Args:
            intermediates: windows and waves of a chunk.
            halves: True if waves may be stored in half precision.

        Returns:
            The function, or None if the intermediates are to be recomputed instead.
        """
        return None

    @entry
    def at_detector(
        self, model: Model, chunk: Chunk, detected: Tensor, task: Task, background_sums: BackgroundSums | None = None
    ) -> Tensor:
        """Apply a task to the waves on the detector, in place.

        Args:
            model: the forward model, with its fidelity.
            chunk: the views, with counts and background.
            detected: (B, M, h, w) complex Psi, overwritten: with Psi' - Psi for "exit_wave_update", with -dL/dI Psi for
                "loss_gradient"; unchanged for "evaluate".
            task: one of these three.
            background_sums: background sums to which the terms of these views are added.

        Returns:
            (B, 6) float64: loss, sum (sqrt I - sqrt y)^2, sum y, sum |sqrt I - sqrt y|, sum sqrt y, sum y^2 of each
            view.
        """
        S, response = power(detected), model.response(chunk.values)
        signal = S if response is None else response.signal(S)
        if background_sums is not None:
            background_sums.add(signal, chunk.data)
        if task == "exit_wave_update":
            kind, data = model.fidelity, chunk.data
            if response is None:
                factor = fidelity.revision(kind, S, data)
            else:
                factor = fidelity.revision_through(kind, response, S, data)
            detected *= (factor - 1)[:, None]
        elif task == "loss_gradient":
            slope = fidelity.slope(model.fidelity, signal, chunk.data)
            detected *= -(slope if response is None else response.adjoint(slope))[:, None]
        return fidelity_columns(model, chunk, signal)

    @entry
    def apply_at_detector(
        self, model: Model, chunk: Chunk, waves: Tensor, task: Task, background_sums: BackgroundSums | None = None
    ) -> tuple[Tensor, Tensor]:
        """Propagate exit waves to the detector, apply the task there, and propagate the result back by D^H.

        Args:
            model: the forward model.
            chunk: the views.
            waves: (B, M, h, w) complex, at the exit of the last slice.
            task: see `at_detector`.
            background_sums: background sums to which the terms of these views are added.

        Returns:
            Waves (B, M, h, w), undefined for "evaluate"; and the columns of `at_detector`, (B, 6) float64.
        """
        detected = model.detect(waves, chunk.fractions)
        results = self.at_detector(model, chunk, detected, task, background_sums)
        return (detected if task == "evaluate" else model.detect_adjoint(detected, chunk.fractions)), results

    @entry
    def detector(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: Intermediates,
        task: Task,
        background_sums: BackgroundSums | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Apply `apply_at_detector` to the exit waves of the intermediates.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: from `forward`.
            task: see `at_detector`.
            background_sums: background sums to which the terms of these views are added.

        Returns:
            Waves (B, M, h, w), undefined for "evaluate"; and the columns of `at_detector`, (B, 6) float64.
        """
        return self.apply_at_detector(model, chunk, intermediates.exit, task, background_sums)

    @entry
    def adjoint(self, model: Model, chunk: Chunk, intermediates: Intermediates, waves: Tensor, into: Adjoints) -> None:
        """Add the adjoints S_j^H conj(phi) waves and T_{-f} conj(S O) waves, with their weights, to the batch's sums.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: from `forward`.
            waves: (B, M, h, w) complex, at the exit of the last slice.
            into: the sums; those of the object or the probe that are None are left out.
        """
        to_windows, to_probes = model.forward_adjoint(intermediates, waves)
        if into.object is not None and into.object_weight is not None:
            illumination = model.illumination(intermediates)
            for kind, out, windows in (
                (OBJECT, into.object, to_windows),
                (OBJECT_WEIGHT, into.object_weight, illumination),
            ):
                terms, corners = model.placed(windows, chunk.anchors, chunk.fractions)
                window_shifts.add_back(out, into.rounded(kind, terms), corners)
        if into.probe is not None:
            self.gather(model, chunk, to_probes, model.first_slice_power(intermediates.windows), into)

    def gather(self, model: Model, chunk: Chunk, to_probes: Tensor, lit: Tensor, into: Adjoints) -> None:
        """Add the adjoints of a chunk to the sums of probe and OPR modes, and to their weights.

        Args:
            model: the forward model.
            chunk: the views.
            to_probes: (B, M, h, w) complex, waves taken back to where the probes enter.
            lit: (B, h, w) real, |S O|^2 of the first slice.
            into: the sums of the batch.
        """
        weights = chunk.weights

        def probe_terms(waves: Tensor, weight: Tensor) -> Tensor:
            """Return the terms of the probe's sum for waves (B, m, h, w) and one weight for each view, (B,)."""
            if into.shifted:
                return model.unshifted_terms(waves, chunk.fractions, weight)
            return waves * weight[:, None, None, None]

        assert into.probe is not None
        into.probe += into.rounded(PROBE, probe_terms(to_probes, weights[:, 0])).sum(0)
        into.probe_weight += into.rounded(PROBE_WEIGHT, (lit * weights[:, :1, None] ** 2)[:, None]).sum(0)
        if len(into.opr):
            modes = torch.cat([probe_terms(to_probes[:, :1], weight) for weight in weights[:, 1:].unbind(1)], dim=1)
            into.opr += into.rounded(OPR, modes).sum(0)
            into.opr_weight += into.rounded(OPR_WEIGHT, lit[:, None] * weights[:, 1:, None, None] ** 2).sum(0)

    @entry
    def sweep(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: Intermediates,
        task: Task,
        into: Adjoints,
        keep: bool = False,
        steps: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute `detector`, and add the `adjoint` of its waves to the sums.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: from `forward`.
            task: see `at_detector`.
            into: sums of both object and probe.
            keep: True if the caller uses the waves that are returned.
            steps: True if `position_step` and `weight_step` follow with these intermediates and waves.

        Returns:
            Waves (B, M, h, w), undefined without `keep`; and the columns of `at_detector`, (B, 6) float64.
        """
        waves, columns = self.detector(model, chunk, intermediates, task, into.background)
        self.adjoint(model, chunk, intermediates, waves, into)
        return waves, columns

    @entry
    def recompute_waves(self, model: Model, chunk: Chunk, intermediates: Intermediates, task: Task) -> Tensor:
        """Recompute the waves of a `sweep` with `keep`, (B, M, h, w).

        They are equal to the last bit, also if the views are chunked otherwise: how much memory there is for the waves
        of a batch must not show in the result.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: from `forward`.
            task: see `at_detector`.
        """
        return self.detector(model, chunk, intermediates, task)[0]

    def sweep_bytes(self, model: Model, probe: Tensor, steps: bool, whole: bool) -> int:
        """Return the bytes per view of the largest array that `sweep` without `keep` writes and reads again.

        Args:
            model: the forward model.
            probe: (M, h, w) complex.
            steps: True if position and weight steps of the views follow.
            whole: True if all views lie on whole pixels.
        """
        return probe.numel() * probe.element_size() * model.fan_out

    def repeat(
        self, name: tuple[object, ...], work: Callable[..., Result], *given: Tensor, brought: tuple[Tensor, ...] = ()
    ) -> Result:
        """Call a function that consists of many small operations on tensors.

        A GPU may record the operations and replay them as one launch if the same name comes with the same tensors
        again.

        Args:
            name: what the work depends on besides the tensors; begins with words that identify it.
            work: the function; its result may depend on the tensors and on `name` alone.
            given: tensors that are the same objects in each call of this name.
            brought: tensors that may be others in each call; passed after `given`.

        Returns:
            What `work` returns; valid until the next call with this name.
        """
        return work(*given, *brought)

    def clear_caches(self) -> None:
        """Free what is cached for speed: memory is short, or the cache is out of date."""

    @entry
    def illuminate(self, model: Model, chunk: Chunk, light: Tensor, shifts: Tensor, out: Tensor) -> None:
        """Add the illumination of the views, w_j0^2 S_j^H light at the integer anchors, to a sum.

        Args:
            model: the forward model.
            chunk: the views.
            light: (h, w) real, power of the beam.
            shifts: (6, 2) float64, rounding shifts by kind of sum, as in `Adjoints`.
            out: (parts, H, W) float64, added to.
        """
        many = light * chunk.weights[:, :1, None] ** 2
        window_shifts.add_back(out, rounded(many[:, None], shifts[OBJECT_WEIGHT], len(out)), chunk.anchors)

    @entry
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
        """Return <d psi/d p_a, chi> / ||d psi/d p_a||^2 of each view and axis, (B, 2) float64, in pixels.

        Where a moved probe goes to a far field, the product is taken where the probe is, and the norm is
        ||O_1 d_a P_j|| behind the first slice, of the beam before it is shifted, times the share of the wave's power
        that other slices transmit: exact for views on whole pixels if no slice absorbs. Shifting both derivatives
        for each view, or carrying them through all slices, would double the cost of a sweep.

        Args:
            model: the forward model.
            chunk: the views.
            obj: (L, H, W) complex.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex, variable-probe modes; K may be 0.
            intermediates: from `forward`.
            chi: (B, M, h, w) complex, wanted change of the exit waves.
        """
        power_of_exit = inner(intermediates.exit, intermediates.exit)
        if model.subpixel == "fourier" and model.kernel is None and not model.operators:
            to_probes = model.forward_adjoint(intermediates, chi)[1]
            moved = [-window_shifts.derivative(intermediates.incoming[0], axis) for axis in (0, 1)]
            norms = self.position_derivative_norms(model, chunk, intermediates, probe, opr)
            if len(intermediates.incoming) > 1:
                norms = norms * transmitted_fraction(_power_behind_first_slice(intermediates), power_of_exit)[:, None]
            pairs = [(inner(d, to_probes), norm) for d, norm in zip(moved, norms.unbind(1), strict=True)]
        else:
            derivatives = [
                model.position_derivative(obj, chunk.anchors, chunk.fractions, intermediates, axis) for axis in (0, 1)
            ]
            pairs = [(inner(moved, chi), inner(moved, moved)) for moved in derivatives]
        return torch.stack([step_along(along, norm, power_of_exit, chi) for along, norm in pairs], dim=1)

    def position_derivative_norms(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, probe: Tensor, opr: Tensor
    ) -> Tensor:
        """Return ||O_1 d_y P_j||^2 and ||O_1 d_x P_j||^2 of the views' beams before they are shifted, (B, 2) float64.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: from `forward`.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex.
        """
        maps, size = chunk.cache.get("maps of moves", probe, lambda: derivative_maps(probe, opr)), 1 + len(opr)
        shares = chunk.weights.to(torch.float64)
        shares = torch.stack([shares[:, k] * shares[:, i] for k in range(size) for i in range(k, size)], dim=1)
        return (self.illumination(model, chunk, intermediates, maps).view(len(shares), 2, -1) * shares[:, None]).sum(2)

    def mode_norms(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, probe: Tensor, opr: Tensor
    ) -> Tensor:
        """Return ||O_1 P||^2 of the probe and of each OPR mode at weight 1, before they are shifted, (B, 1 + K)
        float64.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: from `forward`.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex.
        """
        maps = chunk.cache.get("maps of parts", probe, lambda: torch.cat((power(probe[None]), power(opr[:, None]))))
        return self.illumination(model, chunk, intermediates, maps)

    @entry
    def illumination(self, model: Model, chunk: Chunk, intermediates: Intermediates, maps: Tensor) -> Tensor:
        """Return sum |O_1|^2 map over each view's window, (B, n) float64.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: from `forward`.
            maps: (n, h, w) real.
        """
        light = model.first_slice_power(intermediates.windows)
        return torch.stack([over_window(light * each) for each in maps], dim=1)

    @entry
    def weight_step(
        self, model: Model, chunk: Chunk, probe: Tensor, opr: Tensor, intermediates: Intermediates, chi: Tensor
    ) -> Tensor:
        """Return <d psi/d w_jk, chi> / ||d psi/d w_jk||^2 of each view, (B, 1 + K).

        The first column is the probe's (k = 0), the others are its OPR modes'. Where there are OPR modes and no
        operators, product and norms are taken where `position_step` takes them.

        Args:
            model: the forward model.
            chunk: the views.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex.
            intermediates: from `forward`.
            chi: (B, M, h, w) complex, wanted change of the exit waves.
        """
        ones = torch.ones_like(chunk.weights[:, :1])
        parts = [model.probes(modes, chunk.fractions, ones) for modes in (probe, *opr[:, None])]
        tiny = torch.finfo(ones.dtype).tiny
        if not len(opr) or model.operators:
            waves = [model.exit_change(intermediates, part, None) for part in parts]
            pairs = [(inner(wave, chi[:, : wave.shape[1]]), inner(wave, wave)) for wave in waves]
            return torch.stack([along / norm.clamp(min=tiny) for along, norm in pairs], dim=1).to(ones.dtype)
        to_probes = model.forward_adjoint(intermediates, chi)[1]
        along = torch.stack([inner(part, to_probes[:, : part.shape[1]]) for part in parts], dim=1)
        norms = self.mode_norms(model, chunk, intermediates, probe, opr)
        if len(intermediates.incoming) > 1:
            power_of_exit = inner(intermediates.exit, intermediates.exit)
            norms = norms * transmitted_fraction(_power_behind_first_slice(intermediates), power_of_exit)[:, None]
        return (along / norms.clamp(min=tiny)).to(ones.dtype)

    @entry
    def systems(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, d_object: Tensor, d_probe: Tensor, chi: Tensor
    ) -> Tensor:
        """Return ||P dO||^2, ||dP O||^2, <P dO, dP O>, <P dO, chi>, <dP O, chi> of each view, (B, 5) float64.

        Args:
            model: the forward model; changes are carried through all slices.
            chunk: the views.
            intermediates: from `forward`.
            d_object: (L, H, W) complex, dO.
            d_probe: (M, h, w) complex, dP.
            chi: (B, m, h, w) complex; sums go over these m modes.
        """
        windows = model.windows(d_object, chunk.anchors, chunk.fractions, (chi.shape[-2], chi.shape[-1]))
        probes = model.probes(d_probe, chunk.fractions, chunk.weights)
        by_object, by_probe = (
            model.exit_change(intermediates, None, windows),
            model.exit_change(intermediates, probes, None),
        )
        p, o = by_object[:, : chi.shape[1]], by_probe[:, : chi.shape[1]]
        return torch.stack([inner(a, b) for a, b in ((p, p), (o, o), (p, o), (p, chi), (o, chi))], dim=1)

    @entry
    def gap_products(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, rates: Tensor, chi: Tensor
    ) -> Tensor:
        """Return <d_k psi, chi> and ||d_k psi||^2 of each view for unknowns of the gaps, (B, K, 2) float64.

        Gaps are those between slices.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: from `forward`.
            rates: (K, h, w) real, derivative of the phase of the transfer function between slices by each unknown.
            chi: (B, M, h, w) complex, wanted change of the exit waves.
        """
        changes = [model.gap_derivative(intermediates, rate) for rate in rates]
        return torch.stack([torch.stack((inner(d, chi), inner(d, d)), dim=1) for d in changes], dim=1)


def fidelity_columns(model: Model, chunk: Chunk, S: Tensor) -> Tensor:
    """Return loss, the four sums of the residual, and sum y^2 of each view, (B, 6) float64.

    Args:
        model: the forward model, with its fidelity.
        chunk: the views, with their data.
        S: (B, h, w) real, coherent signal, behind the pieces of the detector.
    """
    residual = fidelity.residual_terms(S, chunk.data)
    loss = residual[:, 0] if model.fidelity == "amplitude" else fidelity.value(model.fidelity, S, chunk.data)
    squares = over_window(chunk.data.y.square())
    return torch.cat((loss[:, None], residual, squares[:, None]), dim=1)


def derivative_maps(probe: Tensor, opr: Tensor) -> Tensor:
    """Return maps whose sum, weighted by products of a view's weights, is |d_y|^2, then |d_x|^2 of its beam.

    Args:
        probe: (M, h, w) complex.
        opr: (K, h, w) complex.

    Returns:
        (2 n, h, w) real. For each axis: the power of the probe's derivative over all modes; then, of the derivatives
        of its first mode and the OPR modes, each one's power (but the first's) and twice its overlap with each later
        one.
    """
    modes = torch.cat((probe, opr)) if len(opr) else probe
    pair = derivatives((modes.shape[-2], modes.shape[-1]), modes.dtype, modes.device)
    waves = ifft(times(fft(modes), pair[:, None]))
    first, *parts = waves[:, 0], *waves[:, len(probe) :].unbind(1)
    maps = [power(waves[:, : len(probe)])]
    for i, one in enumerate((first, *parts)):
        maps += [power(one[:, None])] if i else []
        maps += [2 * overlap(one, other) for other in parts[i:]]
    return torch.stack(maps, dim=1).flatten(0, 1)


def _power_behind_first_slice(intermediates: Intermediates) -> Tensor:
    """Return the power of each view's waves behind the first slice, (B,)."""
    exit_waves = times(intermediates.incoming[0], intermediates.windows[:, :1])
    return inner(exit_waves, exit_waves)


def transmitted_fraction(behind: Tensor, exit_norm: Tensor) -> Tensor:
    """Return the share exit_norm / behind of the power behind the first slice that is left at the exit, (B,)."""
    return exit_norm / behind.clamp(min=torch.finfo(behind.dtype).tiny)


def step_along(along: Tensor, norm: Tensor, exit_norm: Tensor, like: Tensor) -> Tensor:
    """Return <d, chi> / ||d||^2 of each view, (B,), with ||d|| at least INSENSITIVE times the norm of the exit wave.

    Args:
        along: (B,) real, <d, chi>.
        norm: (B,) real, ||d||^2.
        exit_norm: (B,) real, squared norm of the exit wave.
        like: tensor of the waves' precision.
    """
    floor = INSENSITIVE**2 * exit_norm + torch.finfo(like.real.dtype).tiny
    return along / torch.maximum(norm, floor)
