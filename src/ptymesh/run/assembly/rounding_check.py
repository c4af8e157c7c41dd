"""Check of rounding: all ranks have to round alike, and processors of different kinds or versions of torch do not.

Sums are free of order (physics/rounding.py), but their terms are what a processor's vector unit, its Fourier transform
and its elementary functions make of them. Where these differ, so does the result by who computes what.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from ptymesh.distributed.world import World
from ptymesh.kernels import kernel_backend
from ptymesh.physics.backend import Backend, Chunk
from ptymesh.physics.beam.modes import orthogonalising
from ptymesh.physics.elementwise import phase, times
from ptymesh.physics.model import Model
from ptymesh.physics.propagate import fft
from ptymesh.run.machine import processor

#: Windows of the made-up views: their sides have the factors 2, 3, 5 and 7.
WINDOWS = ((32, 32), (30, 28))
VIEWS, MODES = 3, 2


def warn_of_rounding(world: World, dtype: torch.dtype) -> None:
    """Say on standard error, once, which ranks round otherwise than the first one. Collective.

    Args:
        world: the ranks.
        dtype: complex, of the computations.
    """
    if world.size == 1:
        return
    bits = world.on_all_ranks(lambda: rounding_signature(world.device, dtype), "comparing how ranks round")
    odd = ranks_that_round_differently(world, bits)
    if odd and world.rank == 0:
        print(f"ptymesh: {odd}", file=sys.stderr, flush=True)


def ranks_that_round_differently(world: World, bits: str) -> str:
    """Return a sentence that names the ranks whose signature is not that of rank 0; empty if there are none.

    Collective; the sentence is the same on all ranks.

    Args:
        world: the ranks.
        bits: this rank's signature.
    """
    signatures = [word.split(" ", 1) for word in world.gather_strings(f"{bits} {describe_platform(world.device)}")]
    differing = [rank for rank, (bits, _) in enumerate(signatures) if bits != signatures[0][0]]
    if not differing:
        return ""
    named = ", ".join(f"rank {rank} ({signatures[rank][1]})" for rank in differing)
    return (
        f"Rank 0 ({signatures[0][1]}) does not round as {named}: the last bits of the result, and what iterations "
        "make of them, depend on who computes what; use processors of one kind, and one version of torch, to have "
        "the same bits on any number of ranks."
    )


def describe_platform(device: torch.device) -> str:
    """Return host, processor and version of torch, in words for people."""
    processor_name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return f"{platform.node()}, {processor_name}, torch {torch.__version__}"


def rounding_signature(device: torch.device, dtype: torch.dtype) -> str:
    """Return a digest of what this rank's kernels and functions make of made-up views.

    Args:
        device: of the rank.
        dtype: complex64 or complex128.

    Raises:
        BadInput: PTYMESH_KERNELS says something unknown.
    """
    digest = hashlib.blake2b(digest_size=8)
    for tensor in _sample_results(device, dtype):
        digest.update(tensor.detach().cpu().resolve_conj().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _sample_results(device: torch.device, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield the arrays that kernels and functions make of made-up views, for windows of every size in WINDOWS."""
    # on a GPU the reference, as kernels would have to be compiled for windows of these sizes
    backend = kernel_backend(device, dtype) if device.type == "cpu" else Backend()
    real = torch.float32 if dtype == torch.complex64 else torch.float64
    for h, w in WINDOWS:
        obj, probe = (
            _made_up_numbers((1, h + 8, w + 8), dtype).to(device),
            _made_up_numbers((MODES, h, w), dtype).to(device),
        )
        views = torch.arange(VIEWS)
        chunk = Chunk(
            views,
            views,
            torch.stack((views, 2 * views), 1).to(device),
            (torch.stack((views, -views), 1) / 8).to(real).to(device),
            torch.ones(VIEWS, 1, dtype=real, device=device),
            (100 * _made_up_numbers((VIEWS, h, w), dtype).real).to(torch.int32).to(device),
            torch.ones(h, w, dtype=torch.bool, device=device),
            torch.zeros(h, w, dtype=real, device=device),
        )
        yield from backend.detector(Model(), chunk, backend.forward(Model(), chunk, obj, probe), "exit_wave_update")
        waves = times(fft(probe), obj[:, :h, :w])
        yield from (waves, phase(waves), waves.abs().sqrt(), waves.real.exp(), waves.real.cos(), orthogonalising(probe))


def _made_up_numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return complex numbers with parts between 0 and 1 in steps of 2^-16, the same everywhere."""
    generator = torch.Generator().manual_seed(1)
    integers = torch.randint(1 << 16, (*shape, 2), generator=generator).to(torch.float64)
    return torch.view_as_complex(integers / (1 << 16)).to(dtype)
