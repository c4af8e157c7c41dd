"""Products of complex numbers by numba have the bits of torch's real products, whatever is conjugated or strided."""

from itertools import product as combinations

import pytest
import torch
from torch import Tensor

from ptymesh.kernels import kernel_backend
from ptymesh.kernels.cpu import products
from ptymesh.physics.elementwise import PRODUCTS, times

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
