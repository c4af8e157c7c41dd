"""Moves of positions that are known: geometry, drift, lag and scatter, alone and together, on three kinds of scans."""

from __future__ import annotations

import numpy as np
import pytest

from ptymesh.compare import moves_apart
from ptymesh.errors import BadInput
from ptymesh.models.scan_geometry import matrix_of


def raster(serpentine: bool = True, side: int = 18) -> np.ndarray:
    """A jittered raster with steps of 5 pixels."""
    y, x = np.mgrid[:side, :side] * 5.0
    if serpentine:
        x[1::2] = x[1::2, ::-1]
    return np.stack([y.ravel(), x.ravel()], axis=1) + np.random.default_rng(1).uniform(-0.4, 0.4, (side**2, 2))


def spiral(views: int = 300) -> np.ndarray:
    turn = np.arange(views) * np.pi * (3 - np.sqrt(5))
    return 3 * np.sqrt(np.arange(views))[:, None] * np.stack([np.sin(turn), np.cos(turn)], axis=1) + 100


SCANS = {"serpentine": raster(), "one way": raster(False), "spiral": spiral()}


def scatter(views: int, rms: float = 0.1) -> np.ndarray:
    """Normal in each direction, of root mean square length rms."""
    return np.random.default_rng(2).normal(scale=rms / np.sqrt(2), size=(views, 2))


def turned(p: np.ndarray, **terms: float) -> np.ndarray:
    return (p - p.mean(axis=0)) @ matrix_of(terms).T + p.mean(axis=0)


@pytest.mark.parametrize("scan", SCANS)
def test_geometry(scan: str) -> None:
    p = SCANS[scan]
    refined = turned(p, scale=0.01, rotation=0.02, shear=-0.008) + scatter(len(p)) + (30, -4)
    found = moves_apart(p, refined)
    assert found.terms["scale"] == pytest.approx(0.01, abs=1e-3)
    assert found.terms["rotation"] == pytest.approx(0.02, abs=1e-3)
    assert found.terms["shear"] == pytest.approx(-0.008, abs=1e-3)
    assert set(found.shares) == {"scale", "rotation", "shear", "own"} and sum(found.shares.values()) == pytest.approx(1)
    moved = (refined - p) - (refined - p).mean(axis=0)
    sizes = np.array([0.01, 0.02, 0.008]) ** 2 * ((p - p.mean(axis=0)) ** 2).sum() / (moved**2).sum()
    # What the terms of a square or round scan explain adds up, but for the second order of the rotation.
    np.testing.assert_allclose([found.shares[name] for name in ("scale", "rotation", "shear")], sizes, atol=0.03)
    assert found.rms_own_px == pytest.approx(0.1, rel=0.1)
    np.testing.assert_allclose(found.affine, refined, atol=0.5)
    assert "% rotation of +1." in found.sentence() and "scale of +" in found.sentence()


@pytest.mark.parametrize("scan", SCANS)
def test_drift(scan: str) -> None:
    p = SCANS[scan]
    t = np.linspace(-1, 1, len(p))
    drift = np.stack([2 * t**2, np.sin(3 * t)], axis=1)
    found = moves_apart(p, p + drift + scatter(len(p)))
    assert set(found.shares) == {"drift", "own"} and found.shares["drift"] > 0.95
    assert found.drift_px == pytest.approx(np.hypot(2, 2), rel=0.1)
    # In a raster part of it could be a geometry; in a spiral it could not.
    assert found.or_slow_axis == (scan != "spiral")
    assert ("slow axis" in found.sentence()) == (scan != "spiral")


@pytest.mark.parametrize("lag", [0.4, -0.3, 1, 3, -2])
@pytest.mark.parametrize("scan", SCANS)
def test_lag(scan: str, lag: float) -> None:
    """Positions behind by k frames: that of view j belongs to pattern j - k, as after np.roll(p, k)."""
    p = SCANS[scan]
    frames = np.arange(len(p)) + lag
    refined = np.stack([np.interp(frames, np.arange(len(p)), line) for line in p.T], axis=1) + scatter(len(p))
    found = moves_apart(p, refined)
    assert found.lag == pytest.approx(lag, abs=0.04) and found.shares["lag"] > 0.5
    assert f"{abs(found.lag):.2g} frames {'behind' if lag > 0 else 'ahead of'} the patterns" in found.sentence()


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("seed", range(5))
def test_scatter_alone_is_nothing_else(scan: str, seed: int) -> None:
    p = SCANS[scan]
    found = moves_apart(p, p + np.random.default_rng(seed).normal(size=p.shape))
    assert found.shares == {"own": 1.0} and found.lag == 0 and not any(found.terms.values())
    assert ": 100% each view's own" in found.sentence()


def test_all_together_on_a_spiral() -> None:
    p = SCANS["spiral"]
    t = np.linspace(-1, 1, len(p))[:, None]
    found = moves_apart(
        p, turned(p, scale=0.01, rotation=-0.02) + np.concatenate([2 * t**2, 0 * t], 1) + scatter(len(p))
    )
    assert found.terms["scale"] == pytest.approx(0.01, abs=2e-3)
    assert found.terms["rotation"] == pytest.approx(-0.02, abs=2e-3)
    assert set(found.shares) == {"scale", "rotation", "drift", "own"} and not found.or_slow_axis
    assert found.summary()["rotation_rad"] == found.terms["rotation"]


def test_backlash_is_told_from_a_lag() -> None:
    """Rows that come from the left and from the right are 0.3 pixels apart."""
    p = raster()
    apart = np.where(np.diff(p[:, 1], append=p[-1:, 1]) > 0, 0.15, -0.15)
    found = moves_apart(p, p + np.stack([0 * apart, apart], axis=1) + scatter(len(p)))
    assert 0 < found.lag < 0.05 and ", or backlash" in found.sentence()


def test_outliers_are_left_out_and_named() -> None:
    p = SCANS["spiral"]
    refined = turned(p, scale=0.01) + scatter(len(p))
    refined[[7, 40]] += 30
    found = moves_apart(p, refined)
    assert list(found.outliers) == [7, 40] and found.terms["scale"] == pytest.approx(0.01, abs=1e-3)
    assert "2 views that moved far more left out" in found.sentence()


def test_what_did_not_move() -> None:
    p = SCANS["serpentine"]
    found = moves_apart(p, p + 5)
    assert not found.has_moved and "as recorded" in found.sentence()


@pytest.mark.parametrize(
    ("recorded", "refined", "said"),
    [
        (np.zeros((11, 2)), np.zeros((11, 2)), "There are 11 views"),
        (np.zeros((20, 2)), np.zeros((19, 2)), "have the shape"),
        (np.zeros((20, 3)), np.zeros((20, 3)), r"give \(N, 2\)"),
    ],
)
def test_bad_inputs(recorded: np.ndarray, refined: np.ndarray, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        moves_apart(recorded, refined)


@pytest.mark.parametrize("p", [np.zeros((20, 2)), np.stack([np.arange(30.0), np.zeros(30)], 1)], ids=["point", "line"])
def test_scans_without_extent(p: np.ndarray) -> None:
    """A point has no geometry, and a line has no shear that could be told from its rotation."""
    found = moves_apart(p, p + scatter(len(p)))
    assert sum(found.shares.values()) == pytest.approx(1) and np.isfinite(found.fitted).all()


def test_held_out_views_do_not_count_as_unmoved() -> None:
    p = SCANS["spiral"]
    held = np.arange(0, len(p), 10)
    refined = turned(p, scale=0.01) + scatter(len(p), 0.02)
    free = np.setdiff1d(np.arange(len(p)), held)
    refined[held] = p[held]
    found = moves_apart(p, refined, held)
    expected = (refined - p)[free]
    power = ((expected - expected.mean(axis=0)) ** 2).sum(axis=1).mean()
    assert found.rms_px == pytest.approx(np.sqrt(power), rel=1e-3)
    assert found.terms["scale"] == pytest.approx(0.01, abs=2e-5)
    assert found.rms_own_px == pytest.approx(0.02, rel=0.1) and not len(found.outliers)
    assert moves_apart(p, refined).terms["scale"] < 0.0095
    np.testing.assert_array_equal(found.held_out, held)
    with pytest.raises(BadInput, match="There are 11 views"):
        moves_apart(p[:20], refined[:20], np.arange(9))
