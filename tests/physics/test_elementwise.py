"""Neither an element's place in its array, nor strides, nor threads show in a bit of what physics/elementwise.py
offers, nor of those functions of torch that are used beside it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ptymesh.physics.elementwise import means, over_window, overlap, phase, raised, times

OFFERED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "times": times,
    "overlap": overlap,
    "phase": lambda a, b: phase(a),
    "raised": lambda a, b: raised(a.real.abs(), 0.7),
    "product with real numbers": lambda a, b: a * b.real,
    "quotient by real numbers": lambda a, b: a / b.real,
    "sums and products of real numbers": lambda a, b: a.real * b.real + b.imag,
    "addcmul": lambda a, b: torch.addcmul(a.real, b.real, a.imag),
    "addcdiv": lambda a, b: torch.addcdiv(a.real, b.real, a.imag),
    "lerp": lambda a, b: torch.lerp(a.real, b.real, 0.3),
    "sqrt": lambda a, b: a.real.abs().sqrt(),
    "hypot": lambda a, b: torch.hypot(a.real, b.imag),
    "exp": lambda a, b: a.real.exp(),
    "log": lambda a, b: a.real.abs().log(),
    "cos": lambda a, b: a.real.cos(),
    "sin": lambda a, b: a.real.sin(),
    "polar": lambda a, b: torch.polar(a.real.abs(), b.real),
}
N = 70_003


def pair(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, generator=generator, dtype=dtype), torch.randn(N, generator=generator, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", list(OFFERED))
def test_elements(name: str, dtype: torch.dtype) -> None:
    function, (a, b) = OFFERED[name], pair(dtype)
    whole = function(a, b)
    for first, count in ((1, N - 1), (3, 17), (5, 255), (7, N - 9), (0, N - 3)):
        part = slice(first, first + count)
        assert torch.equal(function(a[part].clone(), b[part].clone()), whole[part]), "place"
        assert torch.equal(function(a[part], b[part]), whole[part]), "place in memory"
    side = torch.stack((a, b), 1)
    assert torch.equal(function(side[:, 0], side[:, 1]), whole), "strides"
    for threads in (2, 3):
        torch.set_num_threads(threads)
        try:
            assert torch.equal(function(a, b), whole), "threads"
        finally:
            torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5, 2, 190, 203), (1, 1, 300, 301)])
def test_sums(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=dtype)
    windows, columns = over_window(x), means(x.reshape(-1, 7)[:, :2])
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            assert torch.equal(over_window(x), windows) and torch.equal(means(x.reshape(-1, 7)[:, :2]), columns)
            for one, expected in zip(x, windows, strict=True):
                assert torch.equal(over_window(one[None])[0], expected), "alone"
            line = means(x.flatten())
        finally:
            torch.set_num_threads(1)
        assert torch.equal(means(x.flatten()), line)
    assert torch.allclose(windows, x.double().sum((-1, -2)), rtol=1e-4, atol=1e-2)
    assert torch.allclose(columns.double(), x.reshape(-1, 7)[:, :2].double().mean(0), rtol=1e-4, atol=1e-6)


def test_phase_of_nothing() -> None:
    """0, with a derivative of 0; elsewhere torch's."""
    x = torch.tensor([0j, 1 - 2j, -3 + 0j], dtype=torch.complex128, requires_grad=True)
    around = torch.polar(
        torch.rand(99, dtype=torch.float64) + 0.1, torch.linspace(-3.14, 3.14, 99, dtype=torch.float64)
    )
    for given in (x, around):
        assert torch.allclose(phase(given), torch.angle(given), rtol=0, atol=1e-15)
    (ours,) = torch.autograd.grad(phase(x).square().sum(), x)
    (theirs,) = torch.autograd.grad(torch.angle(x).square().sum(), x)
    assert torch.allclose(ours, theirs) and ours[0] == 0


def test_powers() -> None:
    x = torch.tensor([0.0, 0.3, 7.0], dtype=torch.float64)
    for power in (0.5, 0.7, 1.0):
        assert torch.allclose(raised(x, power), x**power, rtol=1e-14)
