"""Waves as halves with a power of two per view."""

import pytest
import torch

from ptymesh.physics.half_precision import Halves


def waves(scales: tuple[float, ...] = (1.0, 3e4, 7e-9), spread: float = 1.0) -> torch.Tensor:
    """(B, 2, 12, 10) complex64, each view of another size; spread: powers of ten between pixels."""
    generator = torch.Generator().manual_seed(4)
    made = torch.randn(len(scales), 2, 12, 10, dtype=torch.complex64, generator=generator)
    made *= 10 ** (-spread * torch.rand(made.shape, generator=generator))
    return made * torch.tensor(scales)[:, None, None, None]


def test_every_part_keeps_eleven_bits() -> None:
    """Down to 2^-28 of the view's largest one."""
    given = waves(spread=6)
    found = Halves.of(given)
    assert found.pairs.dtype == torch.float16 and found.pairs.shape == (*given.shape, 2)
    parts, back = torch.view_as_real(given), torch.view_as_real(found.waves)
    largest = parts.abs().amax((1, 2, 3, 4), keepdim=True)
    assert bool(((back - parts).abs() <= torch.maximum(2.0**-11 * parts.abs(), 2.0**-39 * largest)).all())
    assert 1e-5 < float((back - parts).norm() / parts.norm()) < 4.9e-4
    assert bool(((found.pairs.abs().amax((1, 2, 3, 4)) >= 2.0**14) & (found.pairs.abs().amax() < 2.0**15)).all())


def test_scales_are_powers_of_two_and_halves_come_back_as_they_are() -> None:
    found = Halves.of(waves())
    mantissa, _ = torch.frexp(found.scale)
    assert bool((mantissa == 0.5).all())
    again = Halves.of(found.waves)
    assert torch.equal(again.pairs, found.pairs) and torch.equal(again.scale, found.scale)


def test_views_know_nothing_of_each_other() -> None:
    together = Halves.of(waves())
    for view, wave in enumerate(waves()):
        alone = Halves.of(wave[None])
        assert torch.equal(alone.pairs[0], together.pairs[view]) and alone.scale[0] == together.scale[view]


@pytest.mark.parametrize("value", [0.0, 1e-38, 1e38, float("inf"), float("nan")])
def test_what_is_dark_or_no_number(value: float) -> None:
    """Waves of nothing stay nothing; what has diverged stays no number, and is noticed as such."""
    given = torch.full((1, 1, 2, 2), value, dtype=torch.complex64)
    given.imag.zero_()
    back = Halves.of(given).waves
    if value in (0.0, 1e-38):
        assert float(back.abs().max()) <= 1e-38
    elif value == 1e38:
        assert torch.allclose(back, given, rtol=1e-3)
    else:
        assert not bool(back.isfinite().any())


def test_conjugates_and_no_views() -> None:
    given = waves()
    assert torch.equal(Halves.of(given.conj()).waves, Halves.of(given).waves.conj())
    assert Halves.of(given[:0]).waves.shape == (0, 2, 12, 10)
