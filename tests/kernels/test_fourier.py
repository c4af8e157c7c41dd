"""The pass from exit waves to the detector and back in one go, against torch's transforms and the reference."""

from __future__ import annotations

import ctypes
import resource
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from references import Case, compare_scenes

from ptymesh.kernels.cpu.backend import CpuBackend
from ptymesh.kernels.cpu.compiled import column_panels
from ptymesh.kernels.cpu.ready import keep_memory
from ptymesh.physics.backend import BatchCache

#: Sides of every kind of stage, two of which (13, 22) have none, and some that are too short; widths of whole and part
#: panels.
WINDOWS = [(128, 128), (60, 36), (9, 7), (50, 33), (13, 22), (2, 70), (16, 16), (56, 21), (8, 30)]


@pytest.mark.parametrize("size", range(1, 130))
def test_stages(size: int) -> None:
    found = column_panels.stages(size)
    rest = size
    for prime in (2, 3, 5, 7):
        while rest % prime == 0:
            rest //= prime
    assert (len(found) > 0) == (rest == 1 and size >= 8)
    if found:
        assert int(np.prod(found)) == size and {2, 8}.isdisjoint(found[:-1])
        assert len(found) > 1 or found == [8], "the last stage of several, or of row panels, may write where it reads"


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("task", ["exit_wave_update", "loss_gradient", "evaluate"])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_there_and_back(window: tuple[int, int], task: str, dtype: torch.dtype) -> None:
    for fidelity, modes in (("amplitude", 2), ("poisson", 1), ("intensity", 1)):
        case = Case(dtype, window, modes, background=1.0, fidelity=fidelity, counts=torch.float32)
        waves = case.many()
        (reference, wanted), (fused, got) = (
            p.apply_at_detector(case.model, replace(case.chunk, cache=BatchCache()), waves.clone(), task)  # type: ignore[arg-type]
            for p in case.both
        )
        for column in range(fused.shape[1]):
            case.close(got[:, column], wanted[:, column])
        if task != "evaluate":
            case.close(fused, reference)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("subpixel", ["fourier", "bilinear", "none"])
@pytest.mark.parametrize("task", ["exit_wave_update", "evaluate"])
def test_exit_waves_made_on_the_way(window: tuple[int, int], subpixel: str, task: str) -> None:
    case = Case(window=window, subpixel=subpixel)
    (reference, wanted), (fused, got) = (p.detector(case.model, c, s, task) for p, c, s in case.forwards())  # type: ignore[arg-type]
    case.close(got, wanted)
    if task != "evaluate":
        case.close(fused, reference)


def test_shifted_probes_of_any_window() -> None:
    for window in ((60, 36), (50, 33), (13, 22), (56, 21), (8, 30)):
        compare_scenes(Case(window=window, modes=3))


def test_transforms_are_ours_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    fft2 = torch.fft.fft2
    monkeypatch.setattr(torch.fft, "fft2", lambda waves, **how: seen.append(waves.shape) or fft2(waves, **how))
    for window in ((60, 36), (13, 22)):
        case = Case(window=window)
        case.both[1].apply_at_detector(case.model, case.chunk, case.many(), "exit_wave_update")
    assert [shape[-2:] for shape in seen] == [(13, 22)]
    near = Case(window=(60, 36), propagation="angular_spectrum")
    near.both[1].apply_at_detector(near.model, near.chunk, near.many(), "exit_wave_update")
    assert seen[-1][-2:] == (60, 36)


def test_patterns_where_they_lie() -> None:
    case = Case(window=(16, 16), counts=torch.uint16)
    order = torch.tensor([3, 0, 4, 1, 2])
    store = torch.empty_like(case.chunk.counts)
    store.numpy()[order.numpy()] = case.chunk.counts.numpy()
    waves = case.many()
    for backend in case.both:
        found = []
        for counts, places in ((case.chunk.counts, None), (store, order)):
            chunk = replace(case.chunk, counts=counts, pattern_index=places, cache=BatchCache())
            found.append(backend.apply_at_detector(case.model, chunk, waves.clone(), "exit_wave_update"))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_views_do_not_depend_on_their_company() -> None:
    case = Case(torch.complex64, window=(48, 32), modes=2)
    waves, backend = case.many(), CpuBackend(torch.complex64)
    together, _ = backend.apply_at_detector(case.model, case.chunk, waves.clone(), "exit_wave_update")
    for view in range(len(waves)):
        some = slice(view, view + 1)
        chunk = replace(case.chunk, counts=case.chunk.counts[some], cache=BatchCache())
        alone, _ = backend.apply_at_detector(case.model, chunk, waves[some].clone(), "exit_wave_update")
        assert torch.equal(alone, together[some])


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="freed memory is kept with glibc alone"
)
def test_freed_memory_is_kept() -> None:
    keep_memory()

    def use() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            torch.ones(1 << 20)  # 4 MB
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    use()
    assert use() < 20 * 1024 / 2  # pages of 4 kB: all of them, if every array came from the system
