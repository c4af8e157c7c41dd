"""On a device that does late what it is told, and rounds as GPUs do: the answer is the host's, and has the same bits in
any chunks; test_triton.py runs this file by Triton's interpreter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pretended import DEVICE, Pretended
from wait_checks import FUSED, device, moved, problem_on, run, run_here

from ptymesh.engines import ENGINES
from ptymesh.kernels.gpu import backend as triton_backend
from ptymesh.kernels.gpu.backend import GpuBackend
from ptymesh.physics.backend import Backend
from ptymesh.physics.beam.modes import orthogonalise
from ptymesh.problem import Batch
from toy import make, relative, share

__all__ = ["device"]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_done_late_is_right(engine: str, device: Pretended) -> None:
    device.late = True
    toy = make(views=8, window=(8, 12))
    problem = problem_on(device, toy, GpuBackend() if engine in FUSED else Backend())
    state = run(problem, moved(share(toy.start(), problem), device), engine, positions={"gain": 1})
    wanted = run_here(toy, engine, positions={"gain": 1})
    assert relative(state.estimate.object.here, wanted.object) < 1e-7  # type: ignore[attr-defined]


#: Engines and what they are asked for, of which each is swept in chunks of other sizes.
CHUNKED: dict[str, tuple[str, bool, dict[str, Any], dict[str, Any]]] = {
    "rpie": ("rpie", True, {}, {"positions": {"gain": 1}}),
    "poisson": ("rpie", True, {"fidelity": "poisson", "noise": True}, {"fidelity": "poisson"}),
    "lsqml": ("lsqml", True, {}, {}),
    "adam": ("adam", True, {}, {}),
    "dm": ("dm", True, {}, {}),
    "slices": ("adam", True, {"slices": 3}, {"unknowns": {"tilt": True}}),
    "bilinear slices": ("lsqml", True, {"slices": 2, "subpixel": "bilinear"}, {"positions": {"gain": 1}}),
    "torch's rpie": ("rpie", False, {}, {"positions": {"gain": 1}}),
    "torch's lsqml": ("lsqml", False, {"slices": 2}, {}),
    "torch's cg": ("cg", False, {}, {}),
}


@pytest.mark.parametrize("case", CHUNKED)
def test_the_same_bits_in_any_chunks(case: str, device: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "TILE", 32)  # so that there are several in a window
    engine, fused, options, asked = CHUNKED[case]
    toy, found = make(views=4, window=(8, 12), **options), []
    for limit in (1, 2, 4):
        problem = problem_on(device, toy, GpuBackend(capture=False) if fused else Backend())
        problem.loader.chunk_sizes.limit = limit
        found.append(run(problem, moved(toy.start(), device), engine, epochs=1, **asked).estimate)
    for other in found[1:]:
        for name in ("object", "probe", "positions"):
            same = torch.equal(getattr(other, name).here, getattr(found[0], name).here)
            assert same, name


def test_the_device_rounds_few_otherwise() -> None:
    generator = torch.Generator().manual_seed(3)
    rows, waves = torch.randn(64, 33, generator=generator), torch.randn(8, 12, 10, dtype=torch.complex64)
    with Pretended() as device:
        there, light = device.far(rows), device.far(waves)
        many, few = there.sum(1).here, torch.stack([row[None].sum(1)[0] for row in there]).here
        assert not torch.equal(many, few) and relative(few, many) < 1e-5
        both = torch.fft.fft2(light).here, torch.cat([torch.fft.fft2(wave[None]) for wave in light]).here
        assert not torch.equal(*both) and relative(*both) < 1e-5


def test_what_is_late_is_noticed() -> None:
    """Memory of the host that is written again before it has been read, or read before it has been written."""
    with Pretended(late=True) as device:
        pinned, back = torch.ones(3).pin_memory(), torch.zeros(3).pin_memory()
        there = pinned.to(DEVICE, non_blocking=True)
        pinned.fill_(7)
        assert there.tolist() == [7, 7, 7], "too early"
        back.copy_(there, non_blocking=True)
        assert back.tolist() == [0, 0, 0], "too early"
        device.finish()
        assert back.tolist() == [7, 7, 7]
        assert bool(torch.empty(2, device=DEVICE).isnan().all())
        assert device.launched["_to_copy"] == 1 == device.launched["copy_"] and "empty" not in device.launched


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_modes_are_told_apart_by_their_inner_products(dtype: torch.dtype) -> None:
    probe = torch.randn(4, 12, 10, dtype=dtype, generator=torch.Generator().manual_seed(5))
    probe *= torch.tensor([1, 0.3, 0.1, 1e-4])[:, None, None]
    wanted = orthogonalise(probe)
    with Pretended() as device:
        found = orthogonalise(device.far(probe)).here
        assert not any("svd" in name for name in device.launched), "of so many pixels"
    for got, mode in zip(found, wanted, strict=True):
        assert relative(got, mode) < (1e-4 if dtype == torch.complex64 else 1e-9)


def test_no_transform_takes_a_second_pass_over_the_waves(device: Pretended) -> None:
    """Which is what it would take to scale it; the probe alone is transformed that way, once for all chunks."""
    toy, found = make(views=4, window=(8, 12)), []
    for limit in (2, 1):
        problem = problem_on(device, toy, GpuBackend(capture=False))
        problem.loader.chunk_sizes.limit = limit
        estimate, before = moved(toy.start(), device), device.launched["_fft_c2c"]
        problem.begin_epoch(estimate)
        problem.gradients(estimate, Batch(np.arange(4)))
        found.append(device.launched["_fft_c2c"] - before)
    assert found[1] - found[0] == 2 * 4, "two more chunks: probes, detector, back, and to the probe"
