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
from ptymesh.physics.blocks import (
    TINY,
    Expression,
    Late,
    Leaf,
    Quotient,
    blocked,
    cut_blocks,
    evaluate,
    put_blocks,
    top_of,
)
from ptymesh.physics.elementwise import over_window
from ptymesh.physics.fidelity import Data
from ptymesh.physics.kinds import OBJECT, OBJECT_WEIGHT, OPR, OPR_WEIGHT, PROBE, PROBE_WEIGHT
from ptymesh.physics.model import Intermediates, Model, inner, power
from ptymesh.physics.operators import Values
from ptymesh.physics.rounding import largest, narrowed, rounded

#: Change of an exit wave per pixel, relative to the wave, below which a view says nothing of its position: a near-field
#: image of a constant object stays where it is when the beam moves.
INSENSITIVE = 1e-3
#: Columns of what `exit_wave_update` and `loss_gradient` return.
LOSS, MISFIT, COUNTS, ABSOLUTE, ROOTS, SQUARES = range(6)
Result = TypeVar("Result")
#: Passes over the detector, by name.
Task = Literal["evaluate", "exit_wave_update", "loss_gradient"]


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


@dataclass
class Adjoints:
    """Sums over a batch on this rank, in double precision, to which `Backend.adjoint` adds rounded terms (rounding.py).

    Each has so many parts: object (parts L, H, W) or None; probe (parts M, h, w) or None, of `Model.unshifted_terms` if
    `shifted`; opr (parts K, h, w); with their weights, real, probe_weight (parts, h, w). shifts (6, 2): by kind of sum
    and part. reached: (6,) the largest terms so far.
    views: how many the batch has, if no other rank has any, so that the object's sums need not be complete before they
    are read; late: what completes them then, or when `settle` says so. kept: what else a pass keeps until `finish`.
    windows: where those of views go that other ranks add, too, until `gather` says that all are there.
    """

    object: Tensor | None
    object_weight: Tensor | None
    probe: Tensor | None
    probe_weight: Tensor
    opr: Tensor
    opr_weight: Tensor
    shifts: Tensor
    reached: Tensor
    parts: int = 1
    shifted: bool = False
    views: int | None = None
    late: Late | None = None
    kept: tuple[Any, ...] = ()
    windows: Any = None

    def rounded(self, kind: int, terms: Tensor) -> Tensor:
        """Terms (B, C, ...) in parts (B, parts C, ...); how large they are is noted."""
        self.note(kind, largest(terms))
        return rounded(terms, self.shifts[kind], self.parts)

    def note(self, kind: int, reached: Tensor) -> None:
        """Terms were as large as this, 0-d."""
        torch.maximum(self.reached[kind], reached, out=self.reached[kind])


class Backend:
    """The passes, for any model and device."""

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

    def exit_wave_update(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """Psi (B, M, h, w) becomes Psi' - Psi, in place; returns (B, 6) float64.

        Columns: loss, sum (sqrt I - sqrt y)^2, sum y, sum |sqrt I - sqrt y|, sum sqrt y, sum y^2.
        """
        S = power(detected)
        detected *= (fidelity.revision(model.fidelity, S, chunk.data) - 1)[:, None]
        return terms(model, chunk, S)

    def loss_gradient(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """Psi (B, M, h, w) becomes -dL/dI Psi, in place; returns what `exit_wave_update` returns."""
        S = power(detected)
        detected *= -fidelity.slope(model.fidelity, S, chunk.data)[:, None]
        return terms(model, chunk, S)

    def evaluate(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """What `exit_wave_update` returns; Psi stays."""
        return terms(model, chunk, power(detected))

    def there_and_back(self, model: Model, chunk: Chunk, waves: Tensor, task: Task) -> tuple[Tensor, Tensor]:
        """D^H of what `task` makes of D waves, and what it returns; waves (B, M, h, w) at the exit.

        Of "evaluate", what comes back means nothing.
        """
        detected = model.detect(waves, chunk.fractions)
        found: Tensor = getattr(self, task)(model, chunk, detected)
        return (detected if task == "evaluate" else model.detect_adjoint(detected, chunk.fractions)), found

    def detector(self, model: Model, chunk: Chunk, intermediates: Intermediates, task: Task) -> tuple[Tensor, Tensor]:
        """`there_and_back` of the intermediates's exit waves."""
        return self.there_and_back(model, chunk, intermediates.exit, task)

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
        self, model: Model, chunk: Chunk, intermediates: Intermediates, task: Task, into: Adjoints, keep: bool = False
    ) -> tuple[Tensor, Tensor]:
        """`detector`, and `adjoint` of what comes back; returns what `detector` does, of which without `keep` the waves
        mean nothing."""
        waves, found = self.detector(model, chunk, intermediates, task)
        self.adjoint(model, chunk, intermediates, waves, into)
        return waves, found

    def sweep_bytes(self, model: Model, probe: Tensor) -> int:
        """Of the largest array of a chunk that `sweep` writes and reads again without `keep`, for each view."""
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

    # --- blocks of the object ---

    def clear(self, field: Tensor, weight: Tensor, rows: Tensor, columns: Tensor) -> None:
        """A complex and a real field (L, H, W) become 0 on these blocks (n,)."""
        for array in (field, weight):
            blocked(array)[:, rows, columns] = 0

    def begin(self, into: Adjoints, rows: Tensor, columns: Tensor, found: tuple[Tensor, Tensor]) -> None:
        """Clears these blocks of the object's sums, which are about to be added up, or notes that it is to be done;
        the other sums are zero already. found: fields (L, H, W) that are to hold the sums once they are read."""
        if into.object is not None and into.object_weight is not None:
            self.clear(into.object, into.object_weight, rows, columns)

    def hands_over(self, model: Model, probe: Tensor, task: Task, each: bool, views: int, blocks: int) -> bool:
        """Whether ranks should hand over windows of so many views, over so many blocks, to each other, not their sums;
        each: whether each view has its own light. Only if all that `task` makes goes through `sweep`."""
        return False

    def gathered(self, into: Adjoints) -> None:
        """The windows of all ranks are there."""

    def settle(self, into: Adjoints) -> None:
        """The object's sums are complete: they are about to travel, or to be read."""

    def narrow(self, sums: tuple[Tensor, Tensor], rows: Tensor, columns: Tensor, found: tuple[Tensor, Tensor]) -> None:
        """Fields (L, H, W) become what the object's sums are, and their weight, on these blocks (n,)."""
        for parts, target in zip(sums, found, strict=True):
            values = narrowed(cut_blocks(parts, rows, columns), target.dtype, len(target))
            put_blocks(target, rows, columns, values)

    def combine(
        self,
        sums: tuple[Tensor, Tensor],
        more: tuple[Tensor, Tensor] | None,
        rows: Tensor,
        columns: Tensor,
        top: int,
        found: tuple[Tensor, Tensor],
    ) -> None:
        """Fields (L, h, W) become what two sums (parts L, H, W) of the object, and their weights, are together on these
        blocks (n,), or the first alone; the sums begin `top` rows of blocks before the fields."""
        for place, target in enumerate(found):
            total = cut_blocks(sums[place], rows + top, columns)
            if more is not None:
                total = total + cut_blocks(more[place], rows + top, columns)
            put_blocks(target, rows, columns, narrowed(total, target.dtype, len(target)))

    def largest(self, leaf: Leaf) -> Tensor:
        """The largest value of a real field on its blocks in each slice, (L, 1, 1, 1); of no blocks, 0."""
        return top_of(leaf.values)

    def write(
        self, target: Tensor, expression: Expression | Quotient, rows: Tensor, columns: Tensor, add: bool = False
    ) -> None:
        """target (L, H, W) = or += the expression on these blocks (n,)."""
        values = evaluate(expression).to(target.dtype)
        if add:
            blocked(target)[:, rows, columns] += values
        else:
            blocked(target)[:, rows, columns] = values

    # --- after the last chunk ---

    def add_quotient(self, target: Tensor, change: Tensor, weight: Tensor, blend: float, times: float) -> None:
        """target (M, h, w) += times change / ((1 - blend) weight + blend max weight); weight (h, w), real.

        Of a probe what `write` does with a `Quotient` of an object.
        """
        target += change * (times / (weight.lerp(weight.max(), blend) + TINY))

    def finish(self, into: Adjoints) -> None:
        """Completes the sums after the last chunk; not the object's, which may be travelling by then."""

    def position_step(
        self, model: Model, chunk: Chunk, obj: Tensor, intermediates: Intermediates, chi: Tensor
    ) -> Tensor:
        """<d psi/d p_a, chi> / ||d psi/d p_a||^2 of each view and axis, (B, 2) float64."""
        steps = []
        for axis in (0, 1):
            moved = model.position_derivative(obj, chunk.anchors, chunk.fractions, intermediates, axis)
            steps.append(
                step_along(inner(moved, chi), inner(moved, moved), inner(intermediates.exit, intermediates.exit), chi)
            )
        return torch.stack(steps, dim=1)

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


def terms(model: Model, chunk: Chunk, S: Tensor) -> Tensor:
    """Loss, the four sums of the residual, and sum y^2 of each view, (B, 6) float64."""
    residual = fidelity.residual_terms(S, chunk.data)
    loss = residual[:, 0] if model.fidelity == "amplitude" else fidelity.value(model.fidelity, S, chunk.data)
    squares = over_window(chunk.data.y.square())
    return torch.cat((loss[:, None], residual, squares[:, None]), dim=1)


def step_along(along: Tensor, norm: Tensor, exit_norm: Tensor, like: Tensor) -> Tensor:
    """<d, chi> / ||d||^2, (B,), with ||d|| kept above what says anything about an exit wave of this norm."""
    floor = INSENSITIVE**2 * exit_norm + torch.finfo(like.real.dtype).tiny
    return along / torch.maximum(norm, floor)
