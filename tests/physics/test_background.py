"""Sums of what views ask of a background: exact, within bounds that are known before, free of order."""

from __future__ import annotations

import math

import pytest
import torch

from ptymesh.physics.background import BackgroundSums, darkness, raised_signals
from ptymesh.physics.fidelity import Data, slope


def views(count: int = 40, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, Data]:
    """Signals of which some are dark, and data with pixels that are none."""
    rng = torch.Generator().manual_seed(3)
    S = (torch.randn(count, 6, 7, generator=rng) * 4).exp().to(dtype)
    counts = torch.poisson(S, generator=rng) + 1.0
    counts[3, 2, 2] = -1
    return S, Data.of(counts, torch.ones(6, 7, dtype=torch.bool), torch.full((6, 7), 0.3, dtype=dtype), dtype)


@pytest.mark.parametrize("kind", ["amplitude", "poisson", "intensity"])
def test_they_are_exact(kind: str) -> None:
    S, data = views()
    assert data.background is not None
    sums = BackgroundSums.zeros(data.background, kind, float(data.y.max()), len(S))  # type: ignore[arg-type]
    sums.add(S, data)
    seen = raised_signals(S, data)
    for got, terms in zip(
        BackgroundSums.total(sums.sums),
        (slope(kind, seen, data), darkness(seen, data)),  # type: ignore[arg-type]
        strict=True,
    ):
        for y, x in ((0, 0), (2, 2), (5, 6)):
            exact = math.fsum(terms[:, y, x].tolist())
            assert float(got[y, x]) == pytest.approx(exact, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("kind", ["amplitude", "poisson"])
def test_no_slope_exceeds_its_bound(kind: str) -> None:
    """One pixel has all counts, where the model has no light."""
    counts = torch.zeros(1, 16, 16)
    counts[0, 3, 3] = 1e7
    data = Data.of(counts, torch.ones(16, 16, dtype=torch.bool), torch.zeros(16, 16), torch.float32)
    sums = BackgroundSums.zeros(torch.zeros(16, 16), kind, 1e7, 1)  # type: ignore[arg-type]
    S = torch.zeros(1, 16, 16)
    steepest = float(slope(kind, raised_signals(S, data), data).abs().max())  # type: ignore[arg-type]
    assert 0.4 * float(sums.limits[0]) < steepest < float(sums.limits[0])
    sums.add(S, data)
    assert float(BackgroundSums.total(sums.sums)[0, 3, 3]) == -steepest


def test_order_and_chunks_do_not_matter() -> None:
    S, data = views(dtype=torch.float32)
    assert data.background is not None
    found = []
    for parts in (torch.arange(40).split(40), torch.randperm(40, generator=torch.Generator().manual_seed(1)).split(7)):
        sums = BackgroundSums.zeros(data.background, "amplitude", float(data.y.max()), len(S))
        for part in parts:
            sums.add(S[part], Data(data.y[part], data.good[part], data.background))
        found.append(sums.sums)
    assert torch.equal(*found)
