"""Sums in integers and of rounded terms: exact, whatever the order, with steps as fine as they are said to be."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ptymesh.distributed.exact import Reduction, brightest
from ptymesh.distributed.world import Solo
from ptymesh.physics import window_shifts
from ptymesh.physics.rounding import bits_for, largest, narrowed, rounded, shifts_for, total_of
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
        total = Reduction(tuple(part.shape[1:]), CPU)
        total.add(part)
        totals.append(total.local)
    return total.read(torch.stack(totals).sum(0))


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


def test_a_tally_adds_chunk_after_chunk() -> None:
    values, tally = numbers((50, 2), 5), Reduction((2,), CPU)
    tally.add(values[:20])
    tally.add(values[20:])
    assert torch.equal(tally.read(tally.local), exactly(values))


@pytest.mark.parametrize("terms", [1, 2, 64, 65, 100_000])
@pytest.mark.parametrize("parts", [1, 2])
def test_steps_are_as_documented(terms: int, parts: int) -> None:
    """All sums of so many terms within the limit are exact, and terms are held to half a step."""
    shifts, limits = shifts_for(torch.tensor([1000.0, 0.0, math.nan, 1024.0]), terms)
    assert limits.tolist() == [1024, 2, 2, 2048]
    bits = bits_for(terms)
    step = 1024 * 2.0 ** (-bits if parts == 1 else -2 * bits - 1)
    values = (2048 * torch.rand(1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 1024)[:, None]
    found = rounded(values, shifts[0], parts)
    assert bool(((found / 2 ** math.floor(math.log2(step))) % 1 == 0).all())
    kept = narrowed(found.T, torch.float64, 1)[0]
    assert float((kept - values[:, 0]).abs().max()) <= max(step / 2, 1024 * 2.0**-53)
    assert terms * 2.0**bits <= 2.0**53 and float(largest(values)) <= 1024


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float32])
def test_windows_added_in_any_order_have_the_same_bits(dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(2)
    windows = torch.randn(30, 2, 5, 7, generator=rng, dtype=dtype) * 1e3
    corners = torch.stack((torch.randint(0, 12, (30,), generator=rng), torch.randint(0, 10, (30,), generator=rng)), 1)
    wide, parts = (torch.complex128 if dtype.is_complex else torch.float64), 1 + (dtype == torch.complex128)
    shifts, _ = shifts_for(largest(windows)[None], 30)

    def added(order: Tensor, pieces: int) -> Tensor:
        total = torch.zeros(parts * 2, 16, 16, dtype=wide)
        for some in order.chunk(pieces):
            window_shifts.add_back(total, rounded(windows[some], shifts[0], parts), corners[some])
        return narrowed(total, dtype, 2)

    one = added(torch.arange(30), 1)
    assert torch.equal(added(torch.arange(29, -1, -1), 7), one)
    expected = torch.zeros(2, 16, 16, dtype=wide)
    for window, (y, x) in zip(windows, corners.tolist(), strict=True):
        expected[:, y : y + 5, x : x + 7] += window
    assert relative(one, expected) < (1e-15 if dtype == torch.complex128 else 1e-7)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_total_is_free_of_order_and_threads(threads: int) -> None:
    values = numbers((100_003,), 5)
    torch.set_num_threads(threads)
    try:
        found = total_of(values), total_of(values.flip(0))
    finally:
        torch.set_num_threads(1)
    assert found[0] == found[1] and abs(float(found[0]) / math.fsum(values.tolist()) - 1) < 1e-13
    assert total_of(values[:0]) == 0 and total_of(torch.full((5,), 0.25)) == 1.25


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("window", [(128, 128), (24, 28), (15, 13), (97, 64)])
def test_a_transform_does_not_depend_on_its_neighbours(window: tuple[int, int], dtype: torch.dtype) -> None:
    """What equal bits build upon: the FFT of a stack is that of each, bit for bit."""
    rng = torch.Generator().manual_seed(3)
    stack = torch.randn(11, 3, *window, generator=rng, dtype=dtype)
    for transform in (torch.fft.fft2, torch.fft.ifft2):
        whole = transform(stack, norm="ortho")
        for some in (slice(4, 5), slice(1, 3), slice(0, 10)):
            assert torch.equal(transform(stack[some].clone(), norm="ortho"), whole[some])


def test_threads_share_no_view_s_counts() -> None:
    """A last view alone, of counts that are no whole numbers."""
    counts = torch.rand(1, 300, 301, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mask, found = torch.ones(300, 301, dtype=torch.bool), set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            found.add(brightest([counts], mask, Solo()))
        finally:
            torch.set_num_threads(1)
    assert len(found) == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.uint32])
@pytest.mark.parametrize("masked", [False, True])
def test_the_brightest_view_of_whole_numbers(dtype: type, masked: bool) -> None:
    rng = np.random.default_rng(3)
    info = np.iinfo(dtype)
    counts = torch.from_numpy(rng.integers(max(info.min, -9), info.max, (5, 6, 7), dtype, endpoint=True))
    mask = torch.from_numpy(rng.random((6, 7)) < 0.7) if masked else torch.ones(6, 7, dtype=torch.bool)
    assert brightest([counts], mask, Solo()) == brightest([counts.to(torch.float64)], mask, Solo())
