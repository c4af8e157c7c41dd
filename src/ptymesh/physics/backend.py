"""The passes over a chunk of views that a reconstruction spends its time in, in plain torch.

B, L, M      views of the chunk, slices, modes
psi, Psi     exit waves, waves on the detector;  chi  change of an exit wave
dO, dP       directions of object and probe

This is the reference: `ptymesh.kernels` has passes of the same signatures, fused for a kind of device, and the problem
chooses. Whoever calls a pass must not count on what its intermediates hold beyond `windows`, `incoming`
and `exit`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from ptymesh.physics import fidelity, views
from ptymesh.physics.background import BackgroundSums
from ptymesh.physics.elementwise import over_window, overlap, times
from ptymesh.physics.fidelity import Data
from ptymesh.physics.kinds import OBJECT, OBJECT_WEIGHT, OPR, OPR_WEIGHT, PROBE, PROBE_WEIGHT
from ptymesh.physics.model import Intermediates, Model, inner, power
from ptymesh.physics.operators import Values
from ptymesh.physics.propagate import derivatives, fft, ifft
from ptymesh.physics.rounding import rounded
from ptymesh.physics.sums import Adjoints, BlockOperations

#: Change of an exit wave per pixel, relative to the wave, below which a view says nothing of its position: a near-field
#: image of a constant object stays where it is when the beam moves.
INSENSITIVE = 1e-3
#: Columns of what `at_detector` returns.
LOSS, MISFIT, COUNTS, ABSOLUTE, ROOTS, SQUARES = range(6)
Result = TypeVar("Result")
#: Passes over the detector, by name.
Task = Literal["evaluate", "exit_wave_update", "loss_gradient"]
#: What a backend is asked whether it does: methods of `Backend`; "steps": whether `sweep` may be told of them.
Wanted = Literal[
    "forward",
    "at_detector",
    "there_and_back",
    "detector",
    "adjoint",
    "sweep",
    "steps",
    "position_step",
    "systems",
    "gap_products",
]


@dataclass(frozen=True)
class Chunk:
    """Views of this rank that are swept together; `views` are global indices, `rows` those of this rank's storage.

    anchors, fractions (B, 2); weights (B, 1 + K); counts (B, h, w) in the detector's dtype; mask (h, w) bool;
    background (h, w). whole: no view of the scan has a fraction, so that nothing needs to be shifted. sweep: what
    stays as it is while a batch is swept, by name, for a pass to fill. places: of the views (B,) in `counts`, where
    that is an array (n, h, w) of more patterns than theirs. border: whether other ranks wait for the chunk's sums.
    values: of the unknowns of the model's operators, by name (operators.py). object: (L, H, W) that anchors count in,
    where that is not the estimate's.
    """

    views: Tensor
    rows: Tensor
    anchors: Tensor
    fractions: Tensor
    weights: Tensor
    counts: Tensor
    mask: Tensor
    background: Tensor
    whole: bool = False
    sweep: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    places: Tensor | None = None
    border: bool = False
    values: Values = field(default_factory=dict)
    object: Tensor | None = None

    @property
    def patterns(self) -> Tensor:
        """Counts of the views alone, (B, h, w)."""
        return self.counts if self.places is None else self.counts.index_select(0, self.places)

    @cached_property
    def data(self) -> Data:
        """The counts as floats, and which of them are to be believed."""
        return Data.of(self.patterns, self.mask, self.background, self.background.dtype)


class Backend(BlockOperations):
    """The contract of a backend, and its reference for any model and device.

    Ten operations take a chunk of views through a model: `forward`, `at_detector`, `there_and_back`, `detector`,
    `adjoint`, `sweep`, `position_step`, `weight_step`, `systems` and `gap_products`. A subclass does some of them
    otherwise, for the models and chunks that `supports` names, and hands all others to the class it inherits from.
    """

    def supports(self, model: Model, chunk: Chunk, wanted: Wanted) -> bool:
        """Whether this class itself does an operation for such a model and chunk, in a way of its own: this is the one
        place that says so. The reference does all."""
        return True

    def forward(
        self, model: Model, chunk: Chunk, obj: Tensor, probe: Tensor, opr: Tensor | None = None
    ) -> Intermediates:
        """Windows, incoming and exit waves: obj (L, H, W), probe (M, h, w), opr (K, h, w)."""
        window = (probe.shape[-2], probe.shape[-1])
        windows = model.windows(obj, chunk.anchors, chunk.fractions, window)
        return model.forward(windows, model.probes(probe, chunk.fractions, chunk.weights, opr), chunk.values)

    def kept(self, intermediates: Intermediates, halves: bool = False) -> Callable[[], Intermediates] | None:
        """What gives the intermediates back, without what a later pass can do without; None where they are to be made
        again instead. halves: whether waves are kept as such."""
        return None

    def at_detector(
        self, model: Model, chunk: Chunk, detected: Tensor, task: Task, lit: BackgroundSums | None = None
    ) -> Tensor:
        """What the task makes of Psi (B, M, h, w), in place: Psi' - Psi of "exit_wave_update", -dL/dI Psi of
        "loss_gradient", and of "evaluate" Psi stays. Returns (B, 6) float64. lit: to which "loss_gradient" adds what
        views ask of the background.

        Columns: loss, sum (sqrt I - sqrt y)^2, sum y, sum |sqrt I - sqrt y|, sum sqrt y, sum y^2.
        """
        S = power(detected)
        if task == "exit_wave_update":
            detected *= (fidelity.revision(model.fidelity, S, chunk.data) - 1)[:, None]
        elif task == "loss_gradient":
            if lit is not None:
                lit.add(S, chunk.data)
            detected *= -fidelity.slope(model.fidelity, S, chunk.data)[:, None]
        return terms(model, chunk, S)

    def there_and_back(
        self, model: Model, chunk: Chunk, waves: Tensor, task: Task, lit: BackgroundSums | None = None
    ) -> tuple[Tensor, Tensor]:
        """D^H of what `task` makes of D waves, and what it returns; waves (B, M, h, w) at the exit.

        Of "evaluate", what comes back means nothing.
        """
        detected = model.detect(waves, chunk.fractions)
        found = self.at_detector(model, chunk, detected, task, lit)
        return (detected if task == "evaluate" else model.detect_adjoint(detected, chunk.fractions)), found

    def detector(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: Intermediates,
        task: Task,
        lit: BackgroundSums | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`there_and_back` of the intermediates's exit waves."""
        return self.there_and_back(model, chunk, intermediates.exit, task, lit)

    def adjoint(self, model: Model, chunk: Chunk, intermediates: Intermediates, waves: Tensor, into: Adjoints) -> None:
        """Adds S_j^H conj(phi) waves, T_{-f} conj(S O) waves and their weights; waves (B, M, h, w) at the exit."""
        to_windows, to_probes = model.forward_adjoint(intermediates, waves)
        if into.object is not None and into.object_weight is not None:
            illumination = torch.stack([power(wave) for wave in intermediates.incoming], dim=1)
            for kind, out, windows in (
                (OBJECT, into.object, to_windows),
                (OBJECT_WEIGHT, into.object_weight, illumination),
            ):
                terms, corners = model.placed(windows, chunk.anchors, chunk.fractions)
                views.add_back(out, into.rounded(kind, terms), corners)
        if into.probe is not None:
            self.gather(model, chunk, to_probes, power(intermediates.windows[:, :1]), into)

    def gather(self, model: Model, chunk: Chunk, to_probes: Tensor, lit: Tensor, into: Adjoints) -> None:
        """Adds what waves (B, M, h, w) and |S O|^2, (B, h, w), are to probe, OPR modes and their weights."""
        weights = chunk.weights

        def terms(waves: Tensor, weight: Tensor) -> Tensor:
            if into.shifted:
                return model.unshifted_terms(waves, chunk.fractions, weight)
            return waves * weight[:, None, None, None]

        assert into.probe is not None
        into.probe += into.rounded(PROBE, terms(to_probes, weights[:, 0])).sum(0)
        into.probe_weight += into.rounded(PROBE_WEIGHT, (lit * weights[:, :1, None] ** 2)[:, None]).sum(0)
        if len(into.opr):
            modes = torch.cat([terms(to_probes[:, :1], weight) for weight in weights[:, 1:].unbind(1)], dim=1)
            into.opr += into.rounded(OPR, modes).sum(0)
            into.opr_weight += into.rounded(OPR_WEIGHT, lit[:, None] * weights[:, 1:, None, None] ** 2).sum(0)

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
        """`detector`, and `adjoint` of what comes back; returns what `detector` does, of which without `keep` the waves
        mean nothing. into: complete sums, of object and probe. With `steps`, `position_step` and `weight_step` may be
        asked of these intermediates and the waves that are returned."""
        waves, found = self.detector(model, chunk, intermediates, task, into.background)
        self.adjoint(model, chunk, intermediates, waves, into)
        return waves, found

    def made_again(self, model: Model, chunk: Chunk, intermediates: Intermediates, task: Task) -> Tensor:
        """The waves of a `sweep` with `keep` once more, of a chunk of the same views or of any others, (B, M, h, w).

        To the last bit: memory for waves of a batch must not show in the result.
        """
        return self.detector(model, chunk, intermediates, task)[0]

    def sweep_bytes(self, model: Model, probe: Tensor, steps: bool, whole: bool) -> int:
        """Of the largest array of a chunk that `sweep` writes and reads again without `keep`, for each view; steps:
        with what views ask of their positions and weights; whole: as of `Chunk`."""
        return probe.numel() * probe.element_size()

    def repeat(
        self, name: tuple[Any, ...], work: Callable[..., Result], *given: Tensor, brought: tuple[Tensor, ...] = ()
    ) -> Result:
        """What `work` makes of these tensors, by small steps in which nothing but they and what the name says matters:
        a GPU launches it as one where it comes again with the same tensors, or with others that are `brought`. What it
        returns lasts until the next call of that name, which begins with words for what it is.
        """
        return work(*given, *brought)

    def forget(self) -> None:
        """Lets go of what is kept to be faster: there is too little memory, or what it was kept for is over."""

    def illuminate(self, model: Model, chunk: Chunk, light: Tensor, shifts: Tensor, out: Tensor) -> None:
        """out (parts, H, W) += sum_j w_j0^2 S_j^H light (h, w), at the integer anchors, rounded; shifts as of
        `Adjoints`."""
        many = light * chunk.weights[:, :1, None] ** 2
        views.add_back(out, rounded(many[:, None], shifts[OBJECT_WEIGHT], len(out)), chunk.anchors)

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
        """<d psi/d p_a, chi> / ||d psi/d p_a||^2 of each view and axis, (B, 2) float64.

        Where a moved probe goes to a far field, the product is taken where the probe is, and the norm is
        ||O_1 d_a P_j|| behind the first slice, of the beam before it is shifted, times the share of the wave's power
        that other slices let through: exact for views on whole pixels if no slice absorbs. To shift both derivatives
        for each view, or to carry them through all slices, would double what a sweep costs.
        """
        power_of_exit = inner(intermediates.exit, intermediates.exit)
        if model.subpixel == "fourier" and model.kernel is None and not model.operators:
            to_probes = model.forward_adjoint(intermediates, chi)[1]
            moved = [-views.derivative(intermediates.incoming[0], axis) for axis in (0, 1)]
            norms = self.powers_of_moves(chunk, intermediates, probe, opr)
            if model.slice_kernel is not None:
                norms = norms * self.let_through(intermediates, power_of_exit)[:, None]
            pairs = [(inner(d, to_probes), norm) for d, norm in zip(moved, norms.unbind(1), strict=True)]
        else:
            derivatives = [
                model.position_derivative(obj, chunk.anchors, chunk.fractions, intermediates, axis) for axis in (0, 1)
            ]
            pairs = [(inner(moved, chi), inner(moved, moved)) for moved in derivatives]
        return torch.stack([step_along(along, norm, power_of_exit, chi) for along, norm in pairs], dim=1)

    def powers_of_moves(self, chunk: Chunk, intermediates: Intermediates, probe: Tensor, opr: Tensor) -> Tensor:
        """||O_1 d_y P_j||^2 and ||O_1 d_x P_j||^2 of views' beams before they are shifted, (B, 2) float64."""
        maps, size = once(chunk, "maps of moves", probe, lambda: maps_of_moves(probe, opr)), 1 + len(opr)
        shares = chunk.weights.to(torch.float64)
        shares = torch.stack([shares[:, k] * shares[:, i] for k in range(size) for i in range(k, size)], dim=1)
        return (self.lit(chunk, intermediates, maps).view(len(shares), 2, -1) * shares[:, None]).sum(2)

    def powers_of_parts(self, chunk: Chunk, intermediates: Intermediates, probe: Tensor, opr: Tensor) -> Tensor:
        """||O_1 P||^2 of the probe and of each OPR mode before they are shifted, as if views had them in full,
        (B, 1 + K) float64."""
        maps = once(chunk, "maps of parts", probe, lambda: torch.cat((power(probe[None]), power(opr[:, None]))))
        return self.lit(chunk, intermediates, maps)

    def lit(self, chunk: Chunk, intermediates: Intermediates, maps: Tensor) -> Tensor:
        """sum |O_1|^2 map over each view's window, of maps (n, h, w), (B, n) float64."""
        light = power(intermediates.windows[:, :1])
        return torch.stack([over_window(light * each) for each in maps], dim=1)

    @staticmethod
    def let_through(intermediates: Intermediates, power_of_exit: Tensor) -> Tensor:
        """Share of the power behind the first slice that is left at the exit, (B,)."""
        behind = times(intermediates.incoming[0], intermediates.windows[:, :1])
        return let_through(inner(behind, behind), power_of_exit)

    def weight_step(
        self, model: Model, chunk: Chunk, probe: Tensor, opr: Tensor, intermediates: Intermediates, chi: Tensor
    ) -> Tensor:
        """<d psi/d w_jk, chi> / ||d psi/d w_jk||^2 of each view for the beam (k = 0) and its OPR modes, (B, 1 + K).

        Where there are OPR modes and no operators, product and norms are taken where `position_step` takes them.
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
        norms = self.powers_of_parts(chunk, intermediates, probe, opr)
        if model.slice_kernel is not None:
            norms = norms * self.let_through(intermediates, inner(intermediates.exit, intermediates.exit))[:, None]
        return (along / norms.clamp(min=tiny)).to(ones.dtype)

    def systems(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, d_object: Tensor, d_probe: Tensor, chi: Tensor
    ) -> Tensor:
        """||P dO||^2, ||dP O||^2, <P dO, dP O>, <P dO, chi>, <dP O, chi> of each view, (B, 5) float64.

        d_object (L, H, W), d_probe (M, h, w), through all slices; sums go over the modes that chi (B, m, h, w) has.
        """
        windows = model.windows(d_object, chunk.anchors, chunk.fractions, (chi.shape[-2], chi.shape[-1]))
        probes = model.probes(d_probe, chunk.fractions, chunk.weights)
        by_object, by_probe = (
            model.exit_change(intermediates, None, windows),
            model.exit_change(intermediates, probes, None),
        )
        p, o = by_object[:, : chi.shape[1]], by_probe[:, : chi.shape[1]]
        return torch.stack([inner(a, b) for a, b in ((p, p), (o, o), (p, o), (p, chi), (o, chi))], dim=1)

    def gap_products(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, rates: Tensor, chi: Tensor
    ) -> Tensor:
        """<d_k psi, chi> and ||d_k psi||^2 of each view, (B, K, 2) float64, chi (B, M, h, w).

        rates (K, h, w): of the phase of the transfer function between slices by each of K unknowns.
        """
        changes = [model.gap_derivative(intermediates, rate) for rate in rates]
        return torch.stack([torch.stack((inner(d, chi), inner(d, d)), dim=1) for d in changes], dim=1)


def terms(model: Model, chunk: Chunk, S: Tensor) -> Tensor:
    """Loss, the four sums of the residual, and sum y^2 of each view, (B, 6) float64."""
    residual = fidelity.residual_terms(S, chunk.data)
    loss = residual[:, 0] if model.fidelity == "amplitude" else fidelity.value(model.fidelity, S, chunk.data)
    squares = over_window(chunk.data.y.square())
    return torch.cat((loss[:, None], residual, squares[:, None]), dim=1)


def maps_of_moves(probe: Tensor, opr: Tensor) -> Tensor:
    """What |d_y|^2 and then |d_x|^2 of beams is made of, by products of a view's shares, (2 n, h, w): the probe's
    power over modes (M, h, w), and of its first mode and OPR modes (K, h, w), each with itself and with each later one,
    twice, the real part of their product."""
    modes = torch.cat((probe, opr)) if len(opr) else probe
    both = derivatives((modes.shape[-2], modes.shape[-1]), modes.dtype, modes.device)
    waves = ifft(times(fft(modes), both[:, None]))
    first, *parts = waves[:, 0], *waves[:, len(probe) :].unbind(1)
    maps = [power(waves[:, : len(probe)])]
    for i, one in enumerate((first, *parts)):
        maps += [power(one[:, None])] if i else []
        maps += [2 * overlap(one, other) for other in parts[i:]]
    return torch.stack(maps, dim=1).flatten(0, 1)


def once(chunk: Chunk, name: str, probe: Tensor, made: Callable[[], Tensor]) -> Tensor:
    """What is made of a probe, and of OPR modes beside it, once while a batch is swept."""
    kept = chunk.sweep.get(name)
    if kept is None or kept[0] is not probe:
        kept = chunk.sweep[name] = (probe, made())
    found: Tensor = kept[1]
    return found


def let_through(behind: Tensor, exit_norm: Tensor) -> Tensor:
    """Share of the power behind the first slice that is left at the exit, (B,)."""
    return exit_norm / behind.clamp(min=torch.finfo(behind.dtype).tiny)


def step_along(along: Tensor, norm: Tensor, exit_norm: Tensor, like: Tensor) -> Tensor:
    """<d, chi> / ||d||^2, (B,), with ||d|| kept above what says anything about an exit wave of this norm."""
    floor = INSENSITIVE**2 * exit_norm + torch.finfo(like.real.dtype).tiny
    return along / torch.maximum(norm, floor)
