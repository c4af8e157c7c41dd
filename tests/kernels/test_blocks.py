"""Expressions on an object's blocks, worked out block by block and by torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from ptymesh.distributed.layouts.layout import BlockSparseField
from ptymesh.estimate import BLOCK
from ptymesh.kernels.cpu import blocks
from ptymesh.kernels.cpu import sums as cpu_sums
from ptymesh.kernels.cpu.backend import CpuBackend
from ptymesh.physics.backend import Backend
from ptymesh.physics.blocks import FieldView, RegularisedQuotient, blocked
from ptymesh.physics.sums import RankSums

SLICES, SIDE = 2, 128
TOLERANCE = {torch.complex128: 1e-14, torch.complex64: 1e-6}
PER_SLICE = torch.tensor([0.5, 2.0]).reshape(2, 1, 1, 1)

Make = Callable[[BlockSparseField, BlockSparseField, BlockSparseField, BlockSparseField], BlockSparseField]
#: What the kernel writes in one pass.
FORMS: dict[str, Make] = {
    "root": lambda s, t, w, k: s / (k * k + 0.1).sqrt(),
    "root, a number for each slice": lambda s, t, w, k: s / (k * k + PER_SLICE).sqrt(),
    "scaled": lambda s, t, w, k: s * 0.3,
    "scaled, a number for each slice": lambda s, t, w, k: s * PER_SLICE,
}
#: What torch evaluates.
OTHERS: dict[str, Make] = {
    "quotient": lambda s, t, w, k: 0.7 * s / (w * 0.5 + (0.5 * PER_SLICE + 1e-30)),
    "scaled root": lambda s, t, w, k: torch.tensor(0.3) * (s / (k * k + 0.1).sqrt()),
    "root of a product": lambda s, t, w, k: s / (k * w + 0.1).sqrt(),
    "conjugate": lambda s, t, w, k: s * 0.25 + (t / (w + k)) * PER_SLICE,
    "one": lambda s, t, w, k: s,
    "by a real field from the left": lambda s, t, w, k: w * s + t / 4,
    "complex over complex": lambda s, t, w, k: s / t,
    "complex number": lambda s, t, w, k: s * torch.tensor(1j),
}


def fields(dtype: torch.dtype, gathered: bool) -> tuple[list[BlockSparseField], Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(2)
    real = torch.empty(0, dtype=dtype).real.dtype
    places = torch.randperm(16, generator=rng)[:7]
    rows, columns = places // 4, places % 4
    made = []
    for kind in (dtype, dtype, real, real):
        whole = torch.randn(SLICES, SIDE, SIDE, generator=rng, dtype=torch.complex128)
        whole = whole.to(dtype) if kind == dtype else (whole.real.abs() + 0.1).to(real)
        leaf = FieldView(rows, columns, array=whole)
        made.append(BlockSparseField(leaf.values.clone() if gathered else leaf, rows, columns))
    target = torch.randn(SLICES, SIDE, SIDE, generator=rng, dtype=torch.complex128).to(dtype)
    return made, rows, columns, target


@pytest.mark.parametrize("name", [*FORMS, *OTHERS])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_write(name: str, dtype: torch.dtype, gathered: bool, add: bool) -> None:
    given, rows, columns, target = fields(dtype, gathered)
    change = {**FORMS, **OTHERS}[name](*given)
    wanted, got = target.clone(), target.clone()
    Backend().write(wanted, change.expression, rows, columns, add)
    assert blocks.write(target.clone(), change.expression, rows, columns, add, 3) == (name in FORMS)
    CpuBackend(dtype).write(got, change.expression, rows, columns, add)
    assert float((got - wanted).abs().max()) <= TOLERANCE[dtype] * float(wanted.abs().max())
    outside = torch.ones(SLICES, SIDE, SIDE, dtype=torch.bool)
    blocked(outside)[:, rows, columns] = False
    assert torch.equal(got[outside], target[outside]) and not torch.equal(got, target)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("gathered", [False, True])
def test_quotient(dtype: torch.dtype, gathered: bool) -> None:
    (s, _, w, _), rows, columns, target = fields(dtype, gathered)
    assert w.max().flatten()[0] != w.max().flatten()[1], "each slice has its own"
    for top in (w.max(), 3.0):
        quotient = RegularisedQuotient(s.expression, w.expression, top, 0.3, 0.7)
        wanted, got = target.clone(), target.clone()
        Backend().write(wanted, quotient, rows, columns, add=True)
        assert blocks.write(got, quotient, rows, columns, True, 3)
        assert float((got - wanted).abs().max()) <= TOLERANCE[dtype] * float(wanted.abs().max())
        assert not torch.equal(got, target)
        of_other = RegularisedQuotient(s.expression, (w * 2).expression, top, 0.3, 0.7)
        assert not blocks.write(got.clone(), of_other, rows, columns, True, 3), "left to torch"
        CpuBackend(dtype).write(by_torch := target.clone(), of_other, rows, columns, add=True)
        Backend().write(wanted := target.clone(), of_other, rows, columns, add=True)
        assert torch.equal(by_torch, wanted)
    literal = 0.7 * s.values / (0.7 * w.values + 0.3 * w.max())
    quotient = RegularisedQuotient(s.expression, w.expression, w.max(), 0.3, 0.7)
    CpuBackend(dtype).write(got := target.clone(), quotient, rows, columns, add=True)
    torch.testing.assert_close(
        blocked(got)[:, rows, columns], blocked(target)[:, rows, columns] + literal.to(dtype), rtol=1e-5, atol=1e-5
    )


def test_division_by_infinity() -> None:
    (_, _, w, _), rows, columns, target = fields(torch.complex64, False)
    for divisor in (w / 0.0, (w * w + torch.inf).sqrt()):  # by torch, and by the kernel
        field = FieldView(rows, columns, array=target.abs().to(target.dtype))
        change = BlockSparseField(field, rows, columns) / divisor
        CpuBackend(torch.complex64).write(written := target.clone(), change.expression, rows, columns)
        assert not blocked(written)[:, rows, columns].any()  # 1 / infinity, not NaN


def test_clear() -> None:
    (field, _, weight, _), rows, columns, _ = fields(torch.complex64, False)
    arrays = [f.expression.array.clone() for f in (field, weight)]
    CpuBackend(torch.complex64).clear(*arrays, rows, columns)
    for array, before in zip(arrays, (field, weight), strict=True):
        wanted = before.expression.array.clone()
        blocked(wanted)[:, rows, columns] = 0
        assert torch.equal(array, wanted)


@pytest.mark.parametrize("bands", [1, 4, 7])
@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 70])
def test_blocks_side_by_side(bands: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are longer than what is worked on together, that end with a row, or between bands."""
    generator = torch.Generator().manual_seed(count)
    rows, columns = (torch.arange(80) // 40)[:count], (torch.arange(80) % 40)[:count]
    whole, weight = (torch.randn(SLICES, 64, 40 * BLOCK, generator=generator) for _ in range(2))
    field = torch.complex(whole, -whole)
    monkeypatch.setattr(cpu_sums, "bands_of_rows", lambda: bands)
    backend = CpuBackend(torch.complex64)
    wanted, got = field.clone(), field.clone()
    leaf = FieldView(rows, columns, array=weight)
    change = (
        BlockSparseField(FieldView(rows, columns, array=field.clone()), rows, columns)
        / ((k := BlockSparseField(leaf, rows, columns)) * k + 0.5).sqrt()
    )
    Backend().write(wanted, change.expression, rows, columns)
    assert blocks.write(got, change.expression, rows, columns, False, bands)
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    assert torch.equal(backend.largest(leaf), Backend().largest(leaf))
    backend.clear(got, weight, rows, columns)
    assert not blocked(got)[:, rows, columns].any() and not blocked(weight)[:, rows, columns].any()
    assert int((got == 0).sum()) == int((weight == 0).sum()) == SLICES * count * BLOCK**2


def test_an_expression_may_write_where_it_reads() -> None:
    (s, _, w, _), rows, columns, _ = fields(torch.complex128, False)
    whole = s.expression.array
    wanted = whole.clone()
    blocked(wanted)[:, rows, columns] = (s / w).values
    CpuBackend(torch.complex128).write(whole, (s / w).expression, rows, columns)
    torch.testing.assert_close(whole, wanted, rtol=1e-14, atol=0)


def test_a_leaf_that_leaves_keeps_its_values() -> None:
    (s, *_), _, _, _ = fields(torch.complex128, False)
    before = s.expression.values.clone()
    fresh = FieldView(s.rows, s.columns, array=s.expression.array)
    assert fresh.is_complex
    fresh.copy_out()
    s.expression.array.zero_()
    assert torch.equal(fresh.values, before) and fresh.array is None


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_where_nothing_was_summed_nothing_is_added(dtype: torch.dtype) -> None:
    (s, _, w, _), rows, columns, target = fields(dtype, gathered=True)
    values, weight = s.values, w.values
    for row, start, stop in ((5, 0, 32), (20, 0, 7), (21, 1, 16), (22, 8, 24)):  # of eight pixels all, or all but one
        values[:, :, row, start:stop] = 0
    wanted, got = target.clone(), target.clone()
    quotient = RegularisedQuotient(s.expression, w.expression, 0.5, 0.5, 1.0)
    Backend().write(wanted, quotient, rows, columns, add=True)
    CpuBackend(dtype).write(got, quotient, rows, columns, add=True)
    torch.testing.assert_close(got, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    values.zero_()
    weight.fill_(torch.nan)
    CpuBackend(dtype).write(got := target.clone(), quotient, rows, columns, add=True)
    assert torch.equal(got, target), "nothing by no number is nothing"


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("many", [1, 2, 3])
def test_sums_together_round_once(dtype: torch.dtype, slices: int, parts: int, many: int) -> None:
    """To the last bit what torch makes of them, also where a second part decides it; of arrays that begin elsewhere and
    have other sides."""
    random = torch.Generator().manual_seed(5)

    def multiples(step: float, count: int) -> Tensor:
        return (torch.randn(count, dtype=torch.float64, generator=random) / 2**-20).round() * step

    made, ranks, at = list[Tensor](), list[tuple[int, ...]](), 0
    for rank in range(many):
        height, width = 32 * (3 + rank), 32 * (5 - rank)
        for of_pixel in (2, 1):
            made += [multiples(step, of_pixel * slices * height * width) for step in (2.0**-20, 2.0**-62)[:parts]]
        count = parts * slices * height * width
        ranks.append((at, at + 2 * count, height, width, 1 + rank, rank - 1))
        at += 3 * count
    sums = RankSums(torch.cat(made), np.array(ranks), parts)
    rows, columns, reached = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 1]), torch.tensor([-1, 1, 1 << many - 1])
    found = []
    for backend in (CpuBackend(dtype), Backend()):
        fields = torch.zeros(slices, 64, 96, dtype=dtype), torch.zeros(slices, 64, 96, dtype=dtype.to_real())
        backend.combine(sums, reached, rows, columns, fields)
        found.append(fields)
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs) and bool(theirs.abs().max() > 1)
        hit = theirs.view(slices, 2, 32, 3, 32).permute(1, 3, 0, 2, 4).flatten(2).any(2)
        assert hit.nonzero().tolist() == [[0, 1], [0, 2], [1, 1]]
    own = sums.of(0, slices)[0]
    wanted = own[:slices, 32:64, 32:64] + (own[slices:, 32:64, 32:64] if parts == 2 else 0)
    assert torch.equal(found[0][0][:, :32, 64:], wanted.to(dtype)), "of the first rank alone"
