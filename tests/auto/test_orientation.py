"""How the detector lies to the scan, from made-up centres of mass."""

from __future__ import annotations

import numpy as np
import pytest

from ptymesh.auto.orientation import TURNS, rotation, unexplained


@pytest.fixture(scope="module")
def slopes() -> tuple[np.ndarray, np.ndarray]:
    """Positions (N, 2), and gradients there of a bumpy f, with a little noise."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0, 100, (300, 2))
    y, x = p.T / 12
    c = np.stack([np.cos(y) * np.sin(x) + 0.3, np.sin(y) * np.cos(x) - 0.5 * np.sin(x / 2)], axis=1)
    return p, c + rng.normal(0, 0.02, c.shape)


@pytest.mark.parametrize("name", list(TURNS))
def test_four_ways_to_lay_a_detector(slopes: tuple[np.ndarray, np.ndarray], name: str) -> None:
    p, c = slopes
    seen = c @ np.linalg.inv(np.array(TURNS[name], float)).T
    left = unexplained(seen, p)
    assert min(left, key=lambda one: left[one]) == name
    assert all(left[other] > 3 * left[name] for other in TURNS if other != name)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("angle", [-70.0, 0.0, 33.0])
def test_a_scan_that_is_rotated(slopes: tuple[np.ndarray, np.ndarray], angle: float, transpose: bool) -> None:
    """Stored positions are those of the truth before `positions.rotation_deg`."""
    p, c = slopes
    cosine, sine = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
    stored = p @ np.array([[cosine, -sine], [sine, cosine]])  # R^T p, for y' = y cos - x sin
    found = rotation(c[:, ::-1] if transpose else c, stored)
    assert found.transpose == transpose and found.angle_deg == pytest.approx(angle, abs=2)
    assert found.left < 0.5 * found.told or (angle == 0 and not transpose)
