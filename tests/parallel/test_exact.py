"""Sums in integers: exact, whatever the order, and fixed point as fine as it is said to be."""

import math

import pytest
import torch
from torch import Tensor

from ptymesh.parallel.exact import HEADROOM, ExactSum, FixedSum, Grid, Tally
from ptymesh.physics.passes import Passes
from toy import relative

CPU = torch.device("cpu")


def numbers(shape: tuple[int, ...], decades: float, dtype: torch.dtype = torch.float64) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    size = 10 ** (decades * (2 * torch.rand(shape, generator=rng, dtype=torch.float64) - 1))
    return (torch.randn(shape, generator=rng, dtype=torch.float64) * size).to(dtype)


def exactly(*parts: Tensor) -> Tensor:
    """Of parts (B, ...), each added by a rank of its own."""
    totals = []
    for part in parts:
        total = ExactSum(tuple(part.shape[1:]), CPU)
        total.add(part)
        totals.append(total.local)
    return ExactSum.value(torch.stack(totals).sum(0))


@pytest.mark.parametrize("decades", [0, 10, 100])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_are_correctly_rounded(decades: float, dtype: torch.dtype) -> None:
    values = numbers((1000, 3), min(decades, 30) if dtype == torch.float32 else decades, dtype)
    expected = torch.tensor([math.fsum(column.tolist()) for column in values.T], dtype=torch.float64)
    found = exactly(values)
    assert relative(found, expected) < 3e-16
    assert torch.equal(exactly(values.flip(0)), found)
    assert torch.equal(exactly(values[:400], values[400:401], values[401:]), found)


def test_cancellation_and_signs() -> None:
    values = torch.tensor([[1e100], [3.25], [-1e100], [-3.0], [-1e-60]], dtype=torch.float64)
    assert exactly(values).tolist() == [0.25]
    assert exactly(-values[:2]).tolist() == [-1e100] and exactly(values[1:2], values[3:4]).tolist() == [0.25]
    assert exactly(torch.zeros(0, 2)).tolist() == [0, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1e120])
def test_what_is_no_number_makes_the_sum_none(bad: float) -> None:
    found = exactly(torch.tensor([[1.0, 2.0], [bad, 3.0]], dtype=torch.float64))
    assert math.isnan(found[0]) and found[1] == 5


def test_a_tally_is_exact_where_it_is_told_to() -> None:
    values = numbers((50, 2), 5)
    for exact in (True, False):
        tally = Tally((2,), CPU, exact=exact)
        tally.add(values[:20])
        tally.add(values[20:])
        assert tally.local.dtype == (torch.int64 if exact else torch.float64)
        assert relative(tally.read(tally.local), values.sum(0)) < 1e-12


@pytest.mark.parametrize("terms", [1, 64, 65, 100_000])
def test_steps_of_the_grid_are_as_documented(terms: int) -> None:
    grid = Grid(1000.0, terms)
    guard = math.ceil(math.log2(terms))
    assert grid.bits == 62 - guard
    step = 1024 * 2.0 ** (HEADROOM - 2 * grid.bits)
    values = numbers((500,), 3)
    limbs = torch.zeros(2, 1, 1, 1, 500, dtype=torch.int64)
    assert Passes().add_fixed(values.view(1, 1, 1, -1, 1), torch.zeros(1, 2).long(), grid.exponent, grid.bits, limbs)
    error = (grid.decode(*limbs).flatten() - values).abs()
    assert bool((error <= torch.maximum(values.abs() * 2e-16, torch.tensor(step))).all())
    largest = torch.tensor([1000 * 2.0 ** (HEADROOM - 1)])
    for value, fits in ((largest, True), (-largest, True), (4 * largest, False), (largest * math.nan, False)):
        limb = torch.zeros(2, 1, 1, 1, 1, dtype=torch.int64)
        corners = torch.zeros(1, 2).long()
        assert Passes().add_fixed(value.view(1, 1, 1, 1, 1), corners, grid.exponent, grid.bits, limb) is fits
        assert not fits or int(limb.abs().max()) * terms < 2**63


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float32])
def test_windows_added_in_any_order_have_the_same_bits(dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(2)
    windows = torch.randn(30, 2, 5, 7, generator=rng, dtype=dtype) * 1e3
    corners = torch.stack((torch.randint(0, 12, (30,), generator=rng), torch.randint(0, 10, (30,), generator=rng)), 1)
    like = torch.zeros(2, 16, 16, dtype=dtype)

    def added(order: Tensor, pieces: int) -> Tensor:
        total = FixedSum.over(like, 1.0, 30, Passes())
        for some in order.chunk(pieces):
            total.add(windows[some], corners[some])
        return total.decode(total.out, total.spoilt, dtype)

    one = added(torch.arange(30), 1)
    assert torch.equal(added(torch.arange(29, -1, -1), 7), one)
    expected = torch.zeros(2, 16, 16, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    for window, (y, x) in zip(windows, corners.tolist(), strict=True):
        expected[:, y : y + 5, x : x + 7] += window
    assert relative(one, expected) < (1e-15 if dtype == torch.complex128 else 1e-7)


def test_values_out_of_range_spoil_the_sum() -> None:
    like = torch.zeros(1, 4, 4)
    total = FixedSum.over(like, 1.0, 2, Passes())
    total.add(torch.full((1, 1, 4, 4), 2.0**70))
    assert bool(total.decode(total.out, total.spoilt, torch.float32).isnan().all())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("window", [(128, 128), (24, 28), (15, 13), (97, 64)])
def test_a_transform_does_not_depend_on_its_neighbours(window: tuple[int, int], dtype: torch.dtype) -> None:
    """What deterministic runs build upon: the FFT of a stack is that of each, bit for bit."""
    rng = torch.Generator().manual_seed(3)
    stack = torch.randn(11, 3, *window, generator=rng, dtype=dtype)
    for transform in (torch.fft.fft2, torch.fft.ifft2):
        whole = transform(stack, norm="ortho")
        for some in (slice(4, 5), slice(1, 3), slice(0, 10)):
            assert torch.equal(transform(stack[some].clone(), norm="ortho"), whole[some])
