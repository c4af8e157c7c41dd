"""The pass that transforms columns on its way to the detector and back, against torch's transforms and the twin."""

from __future__ import annotations

import ctypes
import resource
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from twins import Case

from ptymesh.kernels import compiled_fourier
from ptymesh.kernels.cpu import CpuPasses
from ptymesh.kernels.ready import keep_memory

#: Heights of every kind of stage, of one stage and of several, and one (13) that has none; widths of whole and part
#: strips.
WINDOWS = [(128, 128), (60, 34), (9, 7), (50, 33), (13, 22), (2, 70), (16, 16)]


@pytest.mark.parametrize("height", range(1, 130))
def test_stages(height: int) -> None:
    found = compiled_fourier.stages(height)
    rest = height
    for prime in (2, 3, 5):
        while rest % prime == 0:
            rest //= prime
    assert (len(found) > 0) == (rest == 1 and height > 1)
    if found:
        assert int(np.prod(found)) == height and 2 not in found[:-1]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("task", ["revise", "descend", "watch"])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_there_and_back(window: tuple[int, int], task: str, dtype: torch.dtype) -> None:
    for fidelity, modes in (("amplitude", 2), ("poisson", 1), ("intensity", 1)):
        case = Case(dtype, window, modes, background=1.0, fidelity=fidelity, counts=torch.float32)
        waves = case.many()
        (twin, wanted), (fused, got) = (
            p.there_and_back(case.model, replace(case.chunk, sweep={}), waves.clone(), task)  # type: ignore[arg-type]
            for p in case.both
        )
        for column in range(fused.shape[1]):
            case.close(got[:, column], wanted[:, column])
        if task != "watch":
            case.close(fused, twin)


def test_columns_are_taken_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    row_fft = torch.fft.fft
    monkeypatch.setattr(torch.fft, "fft", lambda waves: rows.append(waves.shape) or row_fft(waves))
    for window in ((60, 34), (13, 22)):
        case = Case(window=window)
        case.both[1].there_and_back(case.model, case.chunk, case.many(), "revise")
    near = Case(window=(60, 34), propagation="angular_spectrum")
    near.both[1].there_and_back(near.model, near.chunk, near.many(), "revise")
    assert [shape[-2:] for shape in rows] == [(60, 34)]


def test_patterns_where_they_lie() -> None:
    case = Case(window=(16, 16), counts=torch.uint16)
    order = torch.tensor([3, 0, 4, 1, 2])
    store = torch.empty_like(case.chunk.counts)
    store.numpy()[order.numpy()] = case.chunk.counts.numpy()
    waves = case.many()
    for passes in case.both:
        found = []
        for counts, places in ((case.chunk.counts, None), (store, order)):
            chunk = replace(case.chunk, counts=counts, places=places, sweep={})
            found.append(passes.there_and_back(case.model, chunk, waves.clone(), "revise"))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_views_do_not_depend_on_their_company() -> None:
    case = Case(torch.complex64, window=(48, 32), modes=2)
    waves, passes = case.many(), CpuPasses(torch.complex64)
    together, _ = passes.there_and_back(case.model, case.chunk, waves.clone(), "revise")
    for view in range(len(waves)):
        some = slice(view, view + 1)
        chunk = replace(case.chunk, counts=case.chunk.counts[some], sweep={})
        alone, _ = passes.there_and_back(case.model, chunk, waves[some].clone(), "revise")
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
