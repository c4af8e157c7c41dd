"""Products of complex numbers by numba have the bits of torch's real products, whatever is conjugated or strided."""

from itertools import product as combinations

import pytest
import torch
from torch import Tensor

from ptymesh.kernels import kernel_backend
from ptymesh.kernels.cpu import products
from ptymesh.physics.elementwise import PRODUCTS, times
from ptymesh.physics.propagate import frequencies
from ptymesh.physics.separable import filter_windows

SHAPES = [((8, 2, 101, 90), (8, 1, 101, 90)), ((101, 90), (3, 2, 101, 90)), ((5, 1, 64, 64), (64, 64))]
WAYS = (lambda x: x, lambda x: x.conj(), lambda x: x.mT, lambda x: x.conj().mT)


def by_torch(a: Tensor, b: Tensor) -> Tensor:
    return torch.complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_the_same_bits(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: torch.dtype) -> None:
    kernel_backend(torch.device("cpu"), dtype)
    assert PRODUCTS[dtype] is products.product
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes)
    for left, right in combinations(WAYS, repeat=2):
        x, y = left(a), right(b)
        if x.shape[-2:] == y.shape[-2:]:
            found = products.product(x, y)
            assert found is not None and torch.equal(found, by_torch(x, y)) and torch.equal(times(x, y), found)


def test_what_is_left_to_torch() -> None:
    x = torch.randn(64, 64, dtype=torch.complex64)
    for a, b in ((x[0], x), (x[:, :1], x), (x[:8, :8], x[:8, :8]), (x.clone().requires_grad_(), x)):
        assert products.product(a, b) is None and torch.equal(times(a, b), by_torch(a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("window", [(16, 20), (60, 36), (50, 35), (18, 9)])
def test_windows_are_filtered_as_torch_does_it(window: tuple[int, int], dtype: torch.dtype) -> None:
    """And one among many as it is by itself; outside of a pass over the detector it is torch's bits."""
    kernel_backend(torch.device("cpu"), dtype.to_complex())
    S = 1e4 * torch.rand(3, *window, generator=torch.Generator().manual_seed(1), dtype=dtype)
    y, x = frequencies(window, (1.0, 1.0))
    transfer = torch.sinc(y) * torch.sinc(0.7 * x)
    wanted = filter_windows(S, transfer)
    with products.filtering():
        found, alone = filter_windows(S, transfer), filter_windows(S[1:2].clone(), transfer)
    assert float((found - wanted).abs().max()) <= 10 * torch.finfo(dtype).eps * float(wanted.abs().max())
    assert torch.equal(found[1:2], alone)
    assert torch.equal(filter_windows(S, transfer), wanted)
