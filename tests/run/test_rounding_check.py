"""Ranks whose processors round otherwise are noticed when they join, and named."""

import pytest
import torch

import ptymesh as pm
from ptymesh.distributed.world import World
from ptymesh.run.assembly import rounding_check
from toy import make

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_signature_knows_no_threads(dtype: torch.dtype) -> None:
    one = rounding_check.rounding_signature(CPU, dtype)
    assert len(one) == 16
    for threads in (2, 3):
        torch.set_num_threads(threads)
        try:
            assert rounding_check.rounding_signature(CPU, dtype) == one
        finally:
            torch.set_num_threads(1)


def otherwise(x: torch.Tensor) -> torch.Tensor:
    """A Fourier transform that rounds one number otherwise."""
    found = torch.fft.fft2(x, norm="ortho")
    torch.view_as_real(found).view(-1)[5] *= 1 + 2e-7
    return found


@pytest.mark.parametrize("name", ["fft", "phase", "times"])
def test_a_signature_is_of_every_part(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = rounding_check.rounding_signature(CPU, torch.complex64), getattr(rounding_check, name)
    changed = otherwise if name == "fft" else lambda *given: real(*given) * (1 + 3e-7)
    monkeypatch.setattr(rounding_check, name, changed)
    assert rounding_check.rounding_signature(CPU, torch.complex64) != before


def joined(world: World, odd: tuple[int, ...]) -> str:
    """What rank 0 says while these ranks round otherwise."""
    import contextlib
    import io

    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        if world.rank in odd:
            patch.setattr(rounding_check, "fft", otherwise)
        pm.Reconstruction(make(views=9, window=(16, 16)).measurement, device=world)
    return said.getvalue()


def test_who_rounds_otherwise_is_named(ranks) -> None:  # type: ignore[no-untyped-def]
    assert ranks(3, joined, ()) == ["", "", ""]
    said, *silent = ranks(3, joined, (1, 2))
    assert silent == ["", ""]
    assert said.startswith("ptymesh: Rank 0 (") and ") does not round as rank 1 (" in said and ", rank 2 (" in said
    assert said.endswith("to have the same bits on any number of ranks.\n")
