"""Orthogonalisation keeps the mixed state."""

import torch

from ptymesh.physics.beam.modes import orthogonalise, powers


def random_modes(dtype: torch.dtype = torch.complex128) -> torch.Tensor:
    return torch.randn(4, 10, 12, generator=torch.Generator().manual_seed(0), dtype=dtype)


def test_modes_become_orthogonal_and_sorted() -> None:
    flat = orthogonalise(random_modes()).reshape(4, -1)
    gram = flat.conj() @ flat.T
    assert torch.allclose(gram, torch.diag(gram.diagonal()), atol=1e-12)
    assert (gram.diagonal().real.diff() < 0).all()


def test_mutual_intensity_stays() -> None:
    before, after = random_modes().reshape(4, -1), orthogonalise(random_modes()).reshape(4, -1)
    assert torch.allclose(before.T @ before.conj(), after.T @ after.conj())


def test_twice_is_once_up_to_nothing() -> None:
    once = orthogonalise(random_modes())
    assert torch.allclose(orthogonalise(once), once)


def test_arbitrary_phases_of_the_input_do_not_show_in_its_own_modes() -> None:
    once = orthogonalise(random_modes())
    assert torch.allclose(orthogonalise(once.flip(0)), once)


def test_weak_modes_survive_single_precision() -> None:
    modes = random_modes(torch.complex64) * torch.tensor([1, 1e-2, 1e-3, 1e-4])[:, None, None]
    assert torch.allclose(powers(orthogonalise(modes)), powers(modes), rtol=0.05)


def test_modes_that_are_no_numbers_are_left_to_others() -> None:
    """A run that diverges says so in its own words, and not in those of a decomposition."""
    modes = random_modes(torch.complex64)
    modes[1, 2, 3] = float("nan")
    assert bool(orthogonalise(modes).isnan().any())
