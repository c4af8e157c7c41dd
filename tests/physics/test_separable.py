"""Products and convolutions with factors of rows and of columns: kernels against torch, and bits."""

from __future__ import annotations

import pytest
import torch

from ptymesh.kernels.cpu.backend import CpuBackend
from ptymesh.physics.separable import CONVOLUTIONS, TURNS, convolve_windows, turn_waves

WINDOWS = [(16, 24), (9, 14), (13, 8), (8, 31)]


@pytest.fixture(params=[torch.complex64, torch.complex128])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    CpuBackend(request.param)  # which offers its kernels
    return request.param


@pytest.mark.parametrize("window", WINDOWS)
def test_turned_has_the_bits_of_torch(
    window: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    h, w = window
    waves, rows, columns = (torch.randn(shape, dtype=dtype) for shape in ((5, 3, h, w), (5, h), (5, w)))
    found = turn_waves(waves, rows, columns)
    monkeypatch.delitem(TURNS, dtype)
    assert torch.equal(found, turn_waves(waves, rows, columns))
    assert torch.allclose(found, waves * rows[:, None, :, None] * columns[:, None, None], rtol=1e-4)


@pytest.mark.parametrize("window", WINDOWS)
def test_convolved_is_the_sum_over_neighbours_around_the_edges(
    window: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    S = torch.rand(4, 2, *window, dtype=dtype.to_real())
    down, across = torch.tensor([0.5, 0.2, 0.05]).to(S.dtype), torch.tensor([0.6, 0.1, 0.07, 0.03]).to(S.dtype)
    found = convolve_windows(S, down, across)
    wanted = torch.zeros_like(S)
    for y in range(-2, 3):
        for x in range(-3, 4):
            wanted += down[abs(y)] * across[abs(x)] * S.roll((y, x), (-2, -1))
    tolerance = 1e-6 if dtype == torch.complex64 else 1e-15
    assert torch.allclose(found, wanted, rtol=4 * tolerance, atol=0)
    assert torch.equal(convolve_windows(S[1:2], down, across), found[1:2]), "bits depend on how many views there are"
    monkeypatch.delitem(CONVOLUTIONS, S.dtype)
    assert torch.allclose(convolve_windows(S, down, across), found, rtol=4 * tolerance, atol=0)


def test_what_has_a_gradient_is_left_to_torch() -> None:
    CpuBackend(torch.complex128)
    rows = torch.randn(2, 9, dtype=torch.complex128, requires_grad=True)
    turn_waves(torch.randn(2, 1, 9, 8, dtype=torch.complex128), rows, rows[:, :8]).abs().sum().backward()
    assert rows.grad is not None
