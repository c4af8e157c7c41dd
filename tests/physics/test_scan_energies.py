"""Powers of windows, by the energy of each view's scan."""

from __future__ import annotations

import torch

from ptymesh.physics.operators import Views
from ptymesh.physics.scan_energies import ScanEnergies

PIECE = ScanEnergies(ratios=(1.0, 1.7), first_views=(0, 3))


def views_of(numbers: list[int]) -> Views:
    none = torch.zeros(len(numbers), 2, dtype=torch.float64)
    return Views(none, none, none, torch.tensor(numbers))


def test_powers_and_their_derivative() -> None:
    torch.manual_seed(1)
    values, absorption = 6 * torch.rand(3, 2, 9, 7, dtype=torch.float64) - 3, 0.2
    windows = torch.exp((1j - absorption) * values).requires_grad_()
    found, derivative = PIECE.powers(windows, views_of([2, 3, 5]))
    ratio = torch.tensor([1.0, 1.7, 1.7], dtype=torch.float64)[:, None, None, None]
    torch.testing.assert_close(found, torch.exp((1j - absorption) * ratio * values))
    assert torch.equal(found[0], windows[0])
    (slope,) = torch.autograd.grad(found.real.sum(), windows)
    torch.testing.assert_close(slope, derivative.conj().resolve_conj())


def test_a_view_has_the_same_bits_alone() -> None:
    torch.manual_seed(2)
    windows = torch.polar(torch.ones(5, 1, 9, 7), 3 * torch.rand(5, 1, 9, 7))
    numbers = [0, 1, 4, 3, 6]
    together = PIECE.powers(windows, views_of(numbers))
    for index, number in enumerate(numbers):
        alone = PIECE.powers(windows[index : index + 1].clone(), views_of([number]))
        assert all(torch.equal(a, b[index : index + 1]) for a, b in zip(alone, together, strict=True))
