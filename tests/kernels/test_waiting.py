"""Windows that wait to be added to an object: what is read later, and what is divided without having been summed up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from twins import TOLERANCE, Case, nothing, swept

from ptymesh.engines import ENGINES
from ptymesh.estimate import BLOCK
from ptymesh.kernels import compiled_object, cpu, object_sums
from ptymesh.kernels.arguments import constants_of
from ptymesh.kernels.cpu import CpuPasses
from ptymesh.kernels.object_sums import ObjectSums
from ptymesh.physics.blocks import Leaf, Quotient, blocked
from ptymesh.physics.kinds import SUMS
from ptymesh.physics.passes import Adjoints, Chunk, Passes
from ptymesh.physics.rounding import shifts_for
from ptymesh.problem import Batch
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make, relative

SIDE = 128
WINDOWS = [(16, 16), (9, 28), (20, 12)]


def case_of(dtype: torch.dtype, window: tuple[int, int], modes: int, subpixel: str) -> Case:
    case = Case(dtype, window, modes, subpixel)
    case.object = case.waves(1, SIDE, SIDE)
    case.chunk.anchors[1] = case.chunk.anchors[0] + torch.tensor([3, 5])  # neighbours that overlap
    case.chunk.anchors[4] = torch.tensor([SIDE - window[0] - 2, SIDE - window[1] - 3])
    return case


def begun(case: Case, passes: Passes, views: int | None = Case.views) -> tuple[Adjoints, Leaf, Leaf]:
    """Sums over all blocks of the object, and their leaves as an engine gets them."""
    height, width = (side // BLOCK for side in case.object.shape[1:])
    rows, columns = (c.contiguous() for c in torch.cartesian_prod(torch.arange(height), torch.arange(width)).unbind(1))
    sums = replace(nothing(case), views=views)
    assert sums.object is not None and sums.object_weight is not None
    sums.object += 7  # left from the batch before
    sums.object_weight += 7
    found = torch.full_like(case.object, 7), torch.full_like(case.object.real, 7)
    passes.begin(sums, rows, columns, found)
    leaves = [Leaf(rows, columns, whole=field) for field in found]
    for leaf in leaves:
        leaf.late = sums.late
    return sums, *leaves


def sweep(case: Case, passes: Passes, sums: Adjoints, task: str = "revise", keep: bool = False) -> Chunk:
    chunk = replace(case.chunk, sweep={})
    passes.sweep(case.model, chunk, passes.scene(case.model, chunk, case.object, case.probe), task, sums, keep)  # type: ignore[arg-type]
    return chunk


def waiting(sums: Adjoints) -> int:
    assert isinstance(sums.late, ObjectSums)
    return sums.late._waiting


def at_once(case: Case, passes: Passes, task: str = "revise") -> tuple[Tensor, Tensor]:
    """Sums that did not wait."""
    sums, obj, weight = begun(case, passes, views=None)
    sweep(case, passes, sums, task)
    assert waiting(sums) == 0
    assert obj.whole is not None and weight.whole is not None
    return obj.whole, weight.whole


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("modes", [1, 3])
@pytest.mark.parametrize("subpixel", ["fourier", "none"])
def test_a_quotient_needs_no_sums(dtype: torch.dtype, window: tuple[int, int], modes: int, subpixel: str) -> None:
    case = case_of(dtype, window, modes, subpixel)
    passes = case.fused
    wanted, wanted_weight = at_once(case, passes)
    sums, obj, weight = begun(case, passes)
    sweep(case, passes, sums)
    assert waiting(sums) == case.views
    assert weight.tops is not None and float(weight.tops.max()) == float(wanted_weight.max())
    assert sums.object_weight is not None and bool((sums.object_weight == 7).all()), "nothing has been added so far"

    expected, got = case.object.clone(), case.object.clone()
    quotient = Quotient(obj, weight, float(weight.tops.max()), 0.3, 0.7)
    seen = Leaf(obj.rows, obj.columns, whole=wanted), Leaf(obj.rows, obj.columns, whole=wanted_weight)
    passes.write(expected, replace(quotient, change=seen[0], weight=seen[1]), obj.rows, obj.columns, add=True)
    passes.write(got, quotient, obj.rows, obj.columns, add=True)
    assert waiting(sums) == case.views and bool((sums.object_weight == 7).all()), "nor by that"
    assert torch.equal(got, expected), "the same bits as of the sums"
    assert bool((got == case.object)[wanted == 0].all()), "where no window is, the object stays"

    assert obj.whole is not None and weight.whole is not None  # that reads them
    assert waiting(sums) == 0
    assert torch.equal(obj.whole, wanted) and torch.equal(weight.whole, wanted_weight)
    passes.write(again := case.object.clone(), quotient, obj.rows, obj.columns, add=True)
    assert torch.equal(again, expected)


@pytest.mark.parametrize("subpixel", ["fourier", "none"])
def test_who_reads_finds_all(subpixel: str) -> None:
    """What a second chunk adds, or a pass that does not wait."""
    case = case_of(torch.complex128, (16, 16), 2, subpixel)
    passes = case.fused
    once, once_weight = at_once(case, passes)
    for more in (sweep, lambda *given: Passes.sweep(passes, case.model, *also(case, passes), given[2])):
        sums, obj, weight = begun(case, passes)
        sweep(case, passes, sums)
        more(case, passes, sums)
        quotient = Quotient(obj, weight, 1.0, 0.5, 1.0)
        passes.write(got := case.object.clone(), quotient, obj.rows, obj.columns, add=True)
        case.close(got - case.object, 2 * once / (once_weight + 0.5))
        case.close(obj.values.sum(), 2 * once.sum())
        assert weight.tops is not None and float(weight.tops.max()) == pytest.approx(2 * float(once_weight.max()))


def also(case: Case, passes: Passes) -> tuple[Any, ...]:
    """The rest of what `sweep` takes."""
    chunk = replace(case.chunk, sweep={})
    return chunk, passes.scene(case.model, chunk, case.object, case.probe), "revise"


def test_a_probe_that_moves_leaves_what_waits_alone() -> None:
    case = case_of(torch.complex128, (16, 16), 1, "none")
    passes = case.fused
    wanted, wanted_weight = at_once(case, passes)
    sums, obj, weight = begun(case, passes)
    chunk = sweep(case, passes, sums)
    case.probe.mul_(3)
    chunk.anchors.add_(1)
    chunk.weights.mul_(2)
    case.close(obj.whole, wanted)  # type: ignore[arg-type]
    case.close(weight.whole, wanted_weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("subpixel", ["fourier", "none"])
def test_two_sums_at_a_time(subpixel: str) -> None:
    """They would wait in the same room."""
    case = case_of(torch.complex128, (16, 16), 2, subpixel)
    passes = case.fused
    wanted, _ = at_once(case, passes)
    sums, obj, _ = begun(case, passes)
    sweep(case, passes, sums)
    case.chunk = replace(case.chunk, anchors=case.chunk.anchors.flip(0))
    other, other_obj, _ = begun(case, passes)
    sweep(case, passes, other)
    assert waiting(sums) == 0 and waiting(other) == case.views
    case.close(obj.whole, wanted)  # type: ignore[arg-type]
    case.close(other_obj.whole, at_once(case, passes)[0])  # type: ignore[arg-type]


def test_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(torch.complex64, (16, 16), 2, "none")
    passes = case.fused

    def waits(task: str = "revise", keep: bool = False, views: int | None = case.views) -> bool:
        sums = begun(case, passes, views)[0]
        sweep(case, passes, sums, task, keep)
        return waiting(sums) > 0

    assert waits()
    assert not waits("descend"), "of whom gradients are read"
    assert not waits(keep=True), "who needs a direction"
    assert not waits(views=None), "for whom other ranks wait"
    assert not waits(views=case.views + 1), "whose batch has other chunks"
    with monkeypatch.context() as patch:
        patch.setattr(object_sums, "WAITING_BYTES", case.views * 16 * 16 * 8 - 1)
        assert not waits(), "who are too many"
    monkeypatch.setattr(object_sums, "OVERLAP", case.views * 16 * 16 / SIDE**2 * 0.99)
    assert not waits(), "who stand too close to each other"


@pytest.mark.parametrize("subpixel", ["fourier", "none"])
def test_strips_wait_together(subpixel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, strips = case_of(torch.complex64, (16, 16), 2, subpixel), []
    wanted = at_once(case, case.fused)[0]
    monkeypatch.setattr("ptymesh.kernels.arguments.STRIP_BYTES", 2 * 16 * 16 * 16)
    detector = cpu.compiled_detector.detector
    monkeypatch.setattr(cpu.compiled_detector, "detector", lambda *a: (strips.append(len(a[8])), detector(*a)))
    passes = case.fused
    sums, obj, _ = begun(case, passes)
    sweep(case, passes, sums)
    assert waiting(sums) == case.views == sum(strips) and len(strips) > 1
    case.close(obj.whole, wanted)  # type: ignore[arg-type]


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
            passes = case.fused
            sums, obj, weight = begun(case, passes)
            sweep(case, passes, sums)
            assert weight.tops is not None
            top = float(weight.tops.max())
            quotient = Quotient(obj, weight, top, 0.3, 0.7)
            passes.write(got := case.object.clone(), quotient, obj.rows, obj.columns, add=True)
            assert waiting(sums)
            found.append((top, got, obj.values))
        finally:
            torch.set_num_threads(before)
    for top, got, values in found[1:]:
        assert top == found[0][0] and torch.equal(got, found[0][1]) and torch.equal(values, found[0][2])


def test_more_threads_by_the_time_that_sums_are_read() -> None:
    case, before = case_of(torch.complex64, (16, 16), 1, "none"), torch.get_num_threads()
    passes = case.fused
    wanted = at_once(case, passes)[0]
    try:
        torch.set_num_threads(1)
        sums, obj, weight = begun(case, passes)
        sweep(case, passes, sums)
        torch.set_num_threads(2)
        assert weight.tops is not None and len(weight.tops) == 1
        case.close(obj.whole, wanted)  # type: ignore[arg-type]
        sweep(case, passes, sums)
        case.close(obj.whole, 2 * wanted)  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(before)


def test_what_is_divided_goes_to_the_object_alone() -> None:
    """For other arrays than such as the sums are of, other blocks and other quotients, they are read."""
    case = case_of(torch.complex64, (16, 16), 1, "none")
    passes = case.fused
    wanted, wanted_weight = at_once(case, passes)
    others = (
        case.object.to(torch.complex128),
        case.object.mT.contiguous().mT,
        case.object.conj_physical().conj(),
    )
    for other in others:
        sums, obj, weight = begun(case, passes)
        sweep(case, passes, sums)
        before = other.clone()
        passes.write(other, Quotient(obj, weight, 1.0, 0.5, 1.0), obj.rows, obj.columns, add=True)
        assert waiting(sums) == 0
        case.close((other - before).to(wanted.dtype), wanted / (wanted_weight + 1) * 2)
    for few, swapped in ((1, False), (None, True)):
        sums, obj, weight = begun(case, passes)
        sweep(case, passes, sums)
        numerator = weight if swapped else obj
        rows, columns = obj.rows[:few], obj.columns[:few]
        change = Leaf(rows, columns, whole=numerator.array)
        divisor = Leaf(rows, columns, whole=weight.array)
        change.late = divisor.late = sums.late
        passes.write(got := case.object.clone(), Quotient(change, divisor, 1.0, 0.5, 1.0), rows, columns, add=True)
        assert waiting(sums) == 0
        expected = torch.zeros_like(got)
        fraction = (wanted_weight if swapped else wanted) / (wanted_weight + 1) * 2
        blocked(expected)[:, rows, columns] = blocked(fraction.to(got.dtype))[:, rows, columns]
        case.close(got - case.object, expected)


def test_of_the_sums_themselves_no_top_is_known() -> None:
    case = case_of(torch.complex64, (16, 16), 1, "none")
    sums, obj, weight = begun(case, case.fused)
    sweep(case, case.fused, sums)
    assert obj.tops is None and weight.tops is not None


def test_memory_that_is_let_go_of_stays_with_who_has_it() -> None:
    case = case_of(torch.complex64, (16, 16), 1, "none")
    passes = case.fused
    wanted = at_once(case, passes)[0]
    sums, obj, _ = begun(case, passes)
    sweep(case, passes, sums)
    passes.forget()
    other, other_obj, _ = begun(case, passes)
    sweep(case, passes, other)
    case.close(obj.whole, wanted)  # type: ignore[arg-type]
    case.close(other_obj.whole, wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["rpie", "epie", "mpie", "lsqml", "adam", "dm"])
def test_engines_that_ask_for_a_quotient_never_make_sums(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ObjectSums] = []
    plain, waited = ObjectSums.open, []
    monkeypatch.setattr(ObjectSums, "open", lambda sums: (made.append(sums), plain(sums))[1])
    kernel = compiled_object.divide_windows
    monkeypatch.setattr(compiled_object, "divide_windows", lambda *a: (waited.append(a[7]), kernel(*a)))
    toy = make(views=12, modes=2)
    options: dict[str, Any] = {"epochs": 1} if engine == "dm" else {"epochs": 1, "batch": 4}
    Loop(toy.problem(), RunState(toy.start()), [ENGINES[engine](**options)], seed=7).run()
    if engine in ("rpie", "epie", "mpie"):
        assert not made and sum(divide is True for divide in waited) == 3
    else:
        assert made and not waited


def test_sums_of_two_batches_at_a_time() -> None:
    """An engine may hold those of the last one while it asks for the next, and add several quotients."""
    toy = make(views=12, modes=2)
    problem, estimate = toy.problem(), toy.start()
    problem.begin_epoch(estimate)
    first, second = (Batch(views) for views in np.arange(12).reshape(2, 6))
    wanted = [problem.gradients(estimate, batch).object.values.clone() for batch in (first, second)]
    held = problem.gradients(estimate, first)
    late = problem.gradients(estimate, second)
    assert relative(held.object.values, wanted[0]) < 1e-12
    before = estimate.object.clone()
    for times in (1.0, 0.5):
        problem.add_weighted(estimate.object, late.object, late.object_weight, blend=0.5, times=times)
    change = late.object.of(wanted[1])
    problem.add_weighted(before, change, late.object_weight, blend=0.5, times=1.5)
    assert relative(estimate.object, before) < 1e-12
    assert relative(late.object.values, wanted[1]) < 1e-12


def test_views_beside_each_other_and_none() -> None:
    """Spans of columns that touch are joined; a row of blocks that no window crosses is passed over."""
    rng = torch.Generator().manual_seed(3)
    corners = torch.tensor([[0, 0], [0, 13], [70, 40], [2, 115], [100, 3], [101, 60]])
    windows = torch.randn(6, 11, 13, generator=rng, dtype=torch.complex128)
    light, a = torch.rand(6, 11, 13, generator=rng, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    sums, weight = torch.zeros(SIDE, SIDE, dtype=torch.complex128), torch.zeros(SIDE, SIDE, dtype=torch.float64)
    for (y, x), window, of_view, f in zip(corners.tolist(), windows, light, a, strict=True):
        sums[y : y + 11, x : x + 13] += window
        weight[y : y + 11, x : x + 13] += f**2 * of_view
    target, tops = torch.zeros_like(sums), torch.zeros(4, 16, dtype=torch.float64)
    shifts, _ = shifts_for(torch.full((SUMS,), 8.0), 6)
    given = [t.numpy() for t in (windows, light, corners, a, corners[:, 1].argsort(), shifts)]
    rows, weights = torch.zeros(4, 2, 1, SIDE, dtype=torch.complex128), torch.zeros(4, 2, 1, SIDE, dtype=torch.float64)
    for divide in (False, True):
        numbers = torch.tensor([0.7, 0.3, 0.1], dtype=torch.float64).numpy()
        room = [t.numpy() for t in (target, rows, weights, tops)]
        compiled_object.divide_windows(*given, numbers, divide, constants_of(torch.float64, 1.0), *room)
        assert bool(target.any()) == divide
        assert float(tops.max()) == pytest.approx(float(weight.max()), rel=1e-14)
    torch.testing.assert_close(target, 0.7 * sums / (0.3 * weight + 0.1), rtol=1e-13, atol=1e-14)


def test_a_sweep_without_beginning_ends_complete() -> None:
    for subpixel in ("fourier", "none"):
        case = case_of(torch.complex128, (16, 16), 2, subpixel)
        sums = swept(case, CpuPasses(torch.complex128), case.chunk, "revise", keep=False)[0]
        twin = swept(case, Passes(), case.chunk, "revise", keep=False)[0]
        assert sums.late is None
        case.close(sums.object, twin.object)  # type: ignore[arg-type]
