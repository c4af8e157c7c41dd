"""Windows that wait to be added to an object: what is read later, and what is divided without having been summed up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from references import TOLERANCE, Case, found_in, nothing, same_reach, swept
from torch import Tensor

from ptymesh.engines import ENGINES
from ptymesh.estimate import BLOCK
from ptymesh.kernels import compiled_object, cpu, object_sums
from ptymesh.kernels import waiting as waits_when
from ptymesh.kernels.arguments import constants_of
from ptymesh.kernels.cpu import CpuBackend
from ptymesh.kernels.object_sums import ObjectSums
from ptymesh.physics.backend import Adjoints, Backend, Chunk
from ptymesh.physics.blocks import Leaf, Quotient, blocked
from ptymesh.physics.kinds import OBJECT, OBJECT_WEIGHT, SUMS
from ptymesh.physics.rounding import narrowed, rounded, shifts_for
from ptymesh.problem import Batch
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make

SIDE = 128
WINDOWS = [(16, 16), (9, 28), (20, 12)]


def case_of(dtype: torch.dtype, window: tuple[int, int], modes: int, subpixel: str) -> Case:
    case = Case(dtype, window, modes, subpixel)
    case.object = case.waves(1, SIDE, SIDE)
    case.chunk.anchors[1] = case.chunk.anchors[0] + torch.tensor([3, 5])  # neighbours that overlap
    case.chunk.anchors[4] = torch.tensor([SIDE - window[0] - 2, SIDE - window[1] - 3])
    return case


def begun(case: Case, backend: Backend, views: int | None = Case.views, parts: int = 0) -> tuple[Adjoints, Leaf, Leaf]:
    """Sums over all blocks of the object, and leaves of what is found of them, as an engine gets it."""
    height, width = (side // BLOCK for side in case.object.shape[1:])
    rows, columns = (c.contiguous() for c in torch.cartesian_prod(torch.arange(height), torch.arange(width)).unbind(1))
    sums = replace(nothing(case, parts=parts), views=views)
    assert sums.object is not None and sums.object_weight is not None
    sums.object += 7  # left from the batch before
    sums.object_weight += 7
    found = torch.full_like(case.object, 7), torch.full_like(case.object.real, 7)
    backend.begin(sums, rows, columns, found)
    leaves = [Leaf(rows, columns, whole=field) for field in found]
    for leaf in leaves:
        leaf.late = sums.late
    return sums, *leaves


def sweep(case: Case, backend: Backend, sums: Adjoints, task: str = "exit_wave_update", keep: bool = False) -> Chunk:
    chunk = replace(case.chunk, sweep={})
    backend.sweep(case.model, chunk, backend.forward(case.model, chunk, case.object, case.probe), task, sums, keep)  # type: ignore[arg-type]
    return chunk


def waiting(sums: Adjoints) -> int:
    assert isinstance(sums.late, ObjectSums)
    return sums.late._waiting


def untouched(sums: Adjoints, *leaves: Leaf) -> bool:
    """Whether nothing has been added to the sums so far, and nothing found."""
    fields = (sums.object, sums.object_weight, *(leaf.array for leaf in leaves))
    return all(field is not None and bool((field == 7).all()) for field in fields)


def at_once(case: Case, backend: Backend, task: str = "exit_wave_update", parts: int = 0) -> tuple[Tensor, Tensor]:
    """Sums that did not wait, in the precision of the object."""
    sums, obj, weight = begun(case, backend, views=None, parts=parts)
    sweep(case, backend, sums, task)
    assert waiting(sums) == 0
    assert obj.whole is not None and weight.whole is not None
    return obj.whole, weight.whole


def same(leaf: Leaf, wanted: Tensor) -> None:
    """Who reads finds this, bit by bit."""
    assert leaf.whole is not None and torch.equal(leaf.whole, wanted)


@pytest.mark.parametrize(("dtype", "parts"), [(torch.complex64, 1), (torch.complex64, 2), (torch.complex128, 2)])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("modes", [1, 3])
@pytest.mark.parametrize("subpixel", ["fourier", "none"])
def test_a_quotient_needs_no_sums(
    dtype: torch.dtype, parts: int, window: tuple[int, int], modes: int, subpixel: str
) -> None:
    case = case_of(dtype, window, modes, subpixel)
    backend = case.fused
    wanted, wanted_weight = at_once(case, backend, parts=parts)
    sums, obj, weight = begun(case, backend, parts=parts)
    sweep(case, backend, sums)
    assert waiting(sums) == case.views
    assert weight.tops is not None and float(weight.tops.max()) == float(wanted_weight.max())
    assert untouched(sums, obj), "nothing has been added so far"
    assert weight.array is not None
    lit = wanted_weight > 0
    assert torch.equal(weight.array[lit], wanted_weight[lit]), "but what is divided by is known"

    expected, got = case.object.clone(), case.object.clone()
    quotient = Quotient(obj, weight, float(weight.tops.max()), 0.3, 0.7)
    seen = Leaf(obj.rows, obj.columns, whole=wanted), Leaf(obj.rows, obj.columns, whole=wanted_weight)
    of_sums = replace(quotient, change=seen[0], weight=seen[1])
    backend.write(expected, of_sums, obj.rows, obj.columns, add=True)
    backend.write(got, quotient, obj.rows, obj.columns, add=True)
    assert waiting(sums) == case.views and untouched(sums, obj), "nor by that"
    assert torch.equal(got, expected), "the same bits as of the sums"
    Backend().write(reference := case.object.clone(), of_sums, obj.rows, obj.columns, add=True)
    case.close(got - case.object, reference - case.object)
    assert bool((got == case.object)[wanted == 0].all()), "where no window is, the object stays"

    same(obj, wanted)  # that reads them
    assert waiting(sums) == 0
    same(weight, wanted_weight)
    backend.write(again := case.object.clone(), quotient, obj.rows, obj.columns, add=True)
    assert torch.equal(again, expected)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("subpixel", ["fourier", "none"])
def test_who_reads_finds_all(subpixel: str, dtype: torch.dtype) -> None:
    """What a second chunk adds, or a pass that does not wait."""
    case = case_of(dtype, (16, 16), 2, subpixel)
    backend = case.fused
    once, once_weight = at_once(case, backend)
    for more in (sweep, by_waves):
        sums, obj, weight = begun(case, backend)
        sweep(case, backend, sums)
        more(case, backend, sums)
        quotient = Quotient(obj, weight, 1.0, 0.5, 1.0)
        backend.write(got := case.object.clone(), quotient, obj.rows, obj.columns, add=True)
        case.close(got - case.object, 2 * once / (once_weight + 0.5))
        assert obj.whole is not None and weight.whole is not None
        case.close(obj.whole, 2 * once)
        case.close(weight.whole, 2 * once_weight)
        assert weight.tops is not None and float(weight.tops.max()) == float(weight.whole.max())
        if more is sweep:  # the same terms
            same(obj, 2 * once)
            same(weight, 2 * once_weight)
        seen = (Leaf(leaf.rows, leaf.columns, whole=leaf.whole) for leaf in (obj, weight))
        of_sums = Quotient(*seen, 1.0, 0.5, 1.0)
        backend.write(expected := case.object.clone(), of_sums, obj.rows, obj.columns, add=True)
        assert torch.equal(got, expected)


def by_waves(case: Case, backend: Backend, sums: Adjoints) -> None:
    """Adds what `sweep` does, of waves that are written down first."""
    chunk = replace(case.chunk, sweep={})
    intermediates = backend.forward(case.model, chunk, case.object, case.probe)
    Backend.sweep(backend, case.model, chunk, intermediates, "exit_wave_update", sums)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_sums_are_completed_before_they_are_found(dtype: torch.dtype) -> None:
    """For whoever sends them on; who reads them in the object's precision finds what is there then."""
    case = case_of(dtype, (16, 16), 2, "none")
    backend = case.fused
    wanted, wanted_weight = at_once(case, backend)
    sums, obj, weight = begun(case, backend)
    sweep(case, backend, sums)
    backend.settle(sums)
    assert waiting(sums) == 0
    for name, field, expected in (("object", obj, wanted), ("object_weight", weight, wanted_weight)):
        assert torch.equal(found_in(sums, name).to(expected.dtype), expected)
        assert field.array is not None and bool((field.array == 7).all()), "nobody has read it"
    same(obj, wanted)
    same(weight, wanted_weight)
    sweep(case, backend, sums)  # after it has been read
    same(weight, 2 * wanted_weight)
    same(obj, 2 * wanted)


def test_a_probe_that_moves_leaves_what_waits_alone() -> None:
    case = case_of(torch.complex128, (16, 16), 1, "none")
    backend = case.fused
    wanted, wanted_weight = at_once(case, backend)
    sums, obj, weight = begun(case, backend)
    chunk = sweep(case, backend, sums)
    case.probe.mul_(3)
    chunk.anchors.add_(1)
    chunk.weights.mul_(2)
    same(obj, wanted)
    same(weight, wanted_weight)


@pytest.mark.parametrize("subpixel", ["fourier", "none"])
def test_two_sums_at_a_time(subpixel: str) -> None:
    """They would wait in the same room."""
    case = case_of(torch.complex128, (16, 16), 2, subpixel)
    backend = case.fused
    wanted, wanted_weight = at_once(case, backend)
    sums, obj, weight = begun(case, backend)
    sweep(case, backend, sums)
    case.chunk = replace(case.chunk, anchors=case.chunk.anchors.flip(0))
    other, other_obj, other_weight = begun(case, backend)
    sweep(case, backend, other)
    assert waiting(sums) == 0 and waiting(other) == case.views
    same(obj, wanted)
    same(weight, wanted_weight)
    others = [leaf.whole for leaf in (other_obj, other_weight)]
    for got, expected in zip(others, at_once(case, backend), strict=True):
        assert got is not None and torch.equal(got, expected)
    assert not torch.equal(others[0], wanted)  # type: ignore[arg-type]


def test_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(torch.complex64, (16, 16), 2, "none")
    backend = case.fused

    def waits(task: str = "exit_wave_update", keep: bool = False, views: int | None = case.views) -> bool:
        sums = begun(case, backend, views)[0]
        sweep(case, backend, sums, task, keep)
        return waiting(sums) > 0

    assert waits()
    assert not waits("loss_gradient"), "of whom gradients are read"
    assert not waits(keep=True), "who needs a direction"
    assert not waits(views=None), "for whom other ranks wait"
    assert not waits(views=case.views + 1), "whose batch has other chunks"
    for name, most, why in (
        ("WAITING_BYTES", case.views * 16 * 16 * 8, "who are too many"),
        ("OVERLAP", case.views * 16 * 16 / SIDE**2, "who stand too close to each other"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(waits_when, name, most)
            assert waits()
            patch.setattr(waits_when, name, most * 0.999)
            assert not waits(), why


@pytest.mark.parametrize("subpixel", ["fourier", "none"])
def test_panels_wait_together(subpixel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, panels = case_of(torch.complex64, (16, 16), 2, subpixel), []
    wanted, wanted_weight = at_once(case, case.fused)
    monkeypatch.setattr("ptymesh.kernels.arguments.PANEL_BYTES", 2 * 16 * 16 * 16)
    detector = cpu.compiled_detector.detector
    monkeypatch.setattr(cpu.compiled_detector, "detector", lambda *a: (panels.append(len(a[9])), detector(*a)))
    backend = case.fused
    sums, obj, weight = begun(case, backend)
    sweep(case, backend, sums)
    assert waiting(sums) == case.views == sum(panels) and len(panels) > 1
    same(obj, wanted)
    same(weight, wanted_weight)


@pytest.mark.parametrize("subpixel", ["fourier", "none"])
@pytest.mark.parametrize("height", [SIDE, 17 * BLOCK])  # blocks are cleared before, or when they are first added to
def test_threads_and_bands_change_no_bit(subpixel: str, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case, found = case_of(torch.complex64, (20, 12), 2, subpixel), []
    case.object = case.waves(1, height, SIDE)
    case.chunk.anchors[2, 0] = height - 22
    before = torch.get_num_threads()
    for threads, bands in ((1, 1), (2, 3), (2, 8)):
        monkeypatch.setattr(object_sums, "bands_of_rows", lambda bands=bands: bands)
        torch.set_num_threads(threads)
        try:
            backend = case.fused
            sums, obj, weight = begun(case, backend)
            sweep(case, backend, sums)
            assert weight.tops is not None
            top = float(weight.tops.max())
            quotient = Quotient(obj, weight, top, 0.3, 0.7)
            backend.write(got := case.object.clone(), quotient, obj.rows, obj.columns, add=True)
            assert waiting(sums)
            found.append((top, got, obj.values, weight.values, sums.object, sums.object_weight))
        finally:
            torch.set_num_threads(before)
    for top, *fields in found[1:]:
        assert top == found[0][0] and all(map(torch.equal, fields, found[0][1:]))


def test_more_threads_by_the_time_that_sums_are_read() -> None:
    case, before = case_of(torch.complex64, (16, 16), 1, "none"), torch.get_num_threads()
    backend = case.fused
    wanted, wanted_weight = at_once(case, backend)
    try:
        torch.set_num_threads(1)
        sums, obj, weight = begun(case, backend)
        sweep(case, backend, sums)
        torch.set_num_threads(2)
        assert weight.tops is not None and len(weight.tops) == 1
        same(obj, wanted)
        sweep(case, backend, sums)
        same(obj, 2 * wanted)
        same(weight, 2 * wanted_weight)
    finally:
        torch.set_num_threads(before)


def test_what_is_divided_goes_to_the_object_alone() -> None:
    """For other arrays than such as the sums are of, other blocks and other quotients, they are read."""
    case = case_of(torch.complex64, (16, 16), 1, "none")
    backend = case.fused
    wanted, wanted_weight = at_once(case, backend)
    others = (
        case.object.to(torch.complex128),
        case.object.mT.contiguous().mT,
        case.object.conj_physical().conj(),
    )
    for other in others:
        sums, obj, weight = begun(case, backend)
        sweep(case, backend, sums)
        before = other.clone()
        backend.write(other, Quotient(obj, weight, 1.0, 0.5, 1.0), obj.rows, obj.columns, add=True)
        assert waiting(sums) == 0
        same(obj, wanted)
        same(weight, wanted_weight)
        case.close((other - before).to(wanted.dtype), wanted / (wanted_weight + 1) * 2)
    for few, swapped in ((1, False), (None, True)):
        sums, obj, weight = begun(case, backend)
        sweep(case, backend, sums)
        numerator = weight if swapped else obj
        rows, columns = obj.rows[:few], obj.columns[:few]
        change = Leaf(rows, columns, whole=numerator.array)
        divisor = Leaf(rows, columns, whole=weight.array)
        change.late = divisor.late = sums.late
        backend.write(got := case.object.clone(), Quotient(change, divisor, 1.0, 0.5, 1.0), rows, columns, add=True)
        assert waiting(sums) == 0
        same(obj, wanted)
        same(weight, wanted_weight)
        expected = torch.zeros_like(got)
        fraction = (wanted_weight if swapped else wanted) / (wanted_weight + 1) * 2
        blocked(expected)[:, rows, columns] = blocked(fraction.to(got.dtype))[:, rows, columns]
        case.close(got - case.object, expected)


def test_of_the_sums_themselves_no_top_is_known() -> None:
    case = case_of(torch.complex64, (16, 16), 1, "none")
    sums, obj, weight = begun(case, case.fused)
    sweep(case, case.fused, sums)
    assert obj.tops is None and weight.tops is not None
    assert sums.late is not None and sums.object is not None and sums.object_weight is not None
    for field in (sums.object, sums.object_weight):
        assert sums.late.tops(field) is None, "it is asked of what is found"


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_quotient_of_sums_in_double_precision_reads_them(dtype: torch.dtype) -> None:
    """Nothing is worked out from windows for them, even where they have the dtype of what is found."""
    case = case_of(dtype, (16, 16), 1, "none")
    backend = case.fused
    wanted, wanted_weight = at_once(case, backend, parts=1)
    sums, obj, weight = begun(case, backend, parts=1)
    sweep(case, backend, sums)
    assert sums.object is not None and sums.object_weight is not None
    wide = [Leaf(obj.rows, obj.columns, whole=field) for field in (sums.object, sums.object_weight)]
    for leaf in wide:
        leaf.late = sums.late
    backend.write(got := case.object.clone(), Quotient(*wide, 1.0, 0.5, 1.0), obj.rows, obj.columns, add=True)
    assert waiting(sums) == 0
    case.close(got - case.object, wanted / (wanted_weight + 1) * 2)
    same(obj, wanted)
    same(weight, wanted_weight)


def test_memory_that_is_let_go_of_stays_with_who_has_it() -> None:
    case = case_of(torch.complex64, (16, 16), 1, "none")
    backend = case.fused
    wanted, wanted_weight = at_once(case, backend)
    sums, *leaves = begun(case, backend)
    sweep(case, backend, sums)
    backend.forget()
    other, *others = begun(case, backend)
    sweep(case, backend, other)
    for obj, weight in (leaves, others):
        same(obj, wanted)
        same(weight, wanted_weight)


@pytest.mark.parametrize("engine", ["rpie", "epie", "mpie", "lsqml", "adam", "dm"])
def test_engines_that_ask_for_a_quotient_never_make_sums(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ObjectSums] = []
    plain, waited = ObjectSums.open, []
    monkeypatch.setattr(ObjectSums, "open", lambda sums: (made.append(sums), plain(sums))[1])
    kernel = compiled_object.divide_windows
    monkeypatch.setattr(compiled_object, "divide_windows", lambda *a: (waited.append(a), kernel(*a)))
    toy = make(views=12, modes=2)
    options: dict[str, Any] = {"epochs": 1} if engine == "dm" else {"epochs": 1, "batch": 4}
    Loop(toy.problem(), RunState(toy.start()), [ENGINES[engine](**options)], seed=7).run()
    if engine in ("rpie", "epie", "mpie"):
        assert not made and len(waited) == 3
    else:
        assert made and not waited


def test_sums_of_two_batches_at_a_time() -> None:
    """An engine may hold those of the last one while it asks for the next, and add several quotients."""
    toy = make(views=12, modes=2)
    problem, estimate = toy.problem(), toy.start()
    problem.begin_epoch(estimate)
    first, second = (Batch(views) for views in np.arange(12).reshape(2, 6))
    wanted, weights = [], []
    for batch in (first, second):
        found = problem.gradients(estimate, batch)
        wanted.append(found.object.values.clone())
        weights.append(found.object_weight.values.clone())
    held = problem.gradients(estimate, first)
    late = problem.gradients(estimate, second)
    assert torch.equal(held.object.values, wanted[0]) and torch.equal(held.object_weight.values, weights[0])
    before = estimate.object.clone()
    for times in (1.0, 0.5):
        problem.fields.add_weighted(estimate.object, late.object, late.object_weight, blend=0.5, times=times)
        change, weight = late.object.of(wanted[1]), late.object_weight.of(weights[1])
        problem.fields.add_weighted(before, change, weight, blend=0.5, times=times)
        assert torch.equal(estimate.object, before)
    assert torch.equal(late.object.values, wanted[1]) and torch.equal(late.object_weight.values, weights[1])


def test_views_beside_each_other_and_none() -> None:
    """Spans of columns that touch are joined; a row of blocks that no window crosses is passed over."""
    rng = torch.Generator().manual_seed(3)
    corners = torch.tensor([[0, 0], [0, 13], [70, 40], [2, 115], [100, 3], [101, 60]])
    windows = torch.randn(6, 11, 13, generator=rng, dtype=torch.complex128)
    light, a = torch.rand(6, 11, 13, generator=rng, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    shifts, _ = shifts_for(torch.full((SUMS,), 8.0), 6)
    found = []
    for kind, terms in ((OBJECT, windows), (OBJECT_WEIGHT, (a * a)[:, None, None] * light)):
        plain, parts = (torch.zeros(n, SIDE, SIDE, dtype=terms.dtype) for n in (1, 2))
        for (y, x), term, in_parts in zip(
            corners.tolist(), terms, rounded(terms[:, None], shifts[kind], 2), strict=True
        ):
            plain[0, y : y + 11, x : x + 13] += term
            parts[:, y : y + 11, x : x + 13] += in_parts
        found.append(narrowed(parts, parts.dtype, 1))
        torch.testing.assert_close(found[-1], plain, rtol=1e-14, atol=1e-14)
    sums, weight = found
    blocks = torch.cartesian_prod(torch.arange(4), torch.arange(4)).unbind(1)
    quotient = Quotient(Leaf(*blocks, whole=sums), Leaf(*blocks, whole=weight), float(weight.max()), 0.7, 0.6)
    numbers = np.array([quotient.times, *quotient.divisor])
    target, tops = torch.zeros_like(sums), torch.zeros(4, 16, dtype=torch.float64)
    rows, weights = torch.zeros(4, 2, 1, SIDE, dtype=torch.complex128), torch.zeros(4, 2, 1, SIDE, dtype=torch.float64)
    x, lit, n, factors, order, shift = (
        t.numpy() for t in (windows, light, corners, a, corners[:, 1].argsort(), shifts)
    )
    out, into = torch.zeros_like(weight), (rows.numpy(), weights.numpy())
    compiled_object.weigh_windows(lit, n, factors, 11, order, shift, out[0].numpy(), into[1], tops.numpy())
    assert torch.equal(out, weight) and float(tops.max()) == float(weight.max())
    constants = constants_of(torch.float64, 1.0)
    compiled_object.divide_windows(x, n, order, shift, numbers, constants, out[0].numpy(), target[0].numpy(), into[0])
    Backend().write(reference := torch.zeros_like(target), quotient, *blocks, add=True)
    torch.testing.assert_close(target, reference, rtol=1e-13, atol=1e-14)
    CpuBackend(torch.complex128).write(expected := torch.zeros_like(target), quotient, *blocks, add=True)
    assert torch.equal(target, expected)


def test_a_sweep_without_beginning_ends_complete() -> None:
    for subpixel in ("fourier", "none"):
        case = case_of(torch.complex128, (16, 16), 2, subpixel)
        backend = CpuBackend(torch.complex128)
        sums = swept(case, backend, case.chunk, "exit_wave_update", keep=False)[0]
        reference = swept(case, Backend(), case.chunk, "exit_wave_update", keep=False)[0]
        assert sums.late is None
        names = ("object", "object_weight")
        for name, once in zip(names, at_once(case, backend), strict=True):
            case.close(found_in(sums, name), found_in(reference, name))
            assert torch.equal(found_in(sums, name), 2 * once), "all views, and then one by one and the others"
        same_reach(sums, reference, names)
