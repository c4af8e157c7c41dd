"""Scan patterns: count, spacing, density."""

import numpy as np
import pytest
from scipy.spatial import cKDTree

from ptymesh.errors import BadInput
from ptymesh.simulate.scans import scan


@pytest.mark.parametrize("kind", ["fermat", "raster", "jitter"])
@pytest.mark.parametrize("views", [1, 2, 37, 400])
def test_every_pattern_has_the_asked_number_of_distinct_views(kind, views):
    positions = scan(kind, views, 5.0, seed=1)
    assert positions.shape == (views, 2)
    assert len(np.unique(positions, axis=0)) == views
    np.testing.assert_allclose(positions.min(axis=0), -positions.max(axis=0), atol=1e-12)


@pytest.mark.parametrize("kind", ["fermat", "raster", "jitter"])
def test_one_view_per_step_squared(kind):
    positions = scan(kind, 900, 5.0)
    np.testing.assert_allclose(np.ptp(positions, axis=0), 30 * 5.0, rtol=0.07)
    nearest = cKDTree(positions).query(positions, k=2)[0][:, 1]
    assert nearest.mean() == pytest.approx({"fermat": 4.8, "raster": 5.0, "jitter": 3.3}[kind], rel=0.1)


def test_raster_runs_along_rows():
    np.testing.assert_allclose(np.diff(scan("raster", 16, 2.0), axis=0)[:3], [[0, 2], [0, 2], [0, 2]])


@pytest.mark.parametrize("ratio", [0.25, 6.0])
def test_density_rises_linearly_to_the_ratio(ratio):
    positions = scan("jitter", 4000, 3.0, density_ratio=ratio)
    x = (positions[:, 1] - positions[:, 1].min()) / np.ptp(positions[:, 1])
    found = np.histogram(x, 4, (0, 1))[0] / len(x)
    edges = np.linspace(0, 1, 5)
    expected = np.diff((edges + (ratio - 1) * edges**2 / 2) / (1 + (ratio - 1) / 2))
    np.testing.assert_allclose(found, expected, atol=0.02)
    even = scan("jitter", 4000, 3.0)
    np.testing.assert_allclose(np.ptp(positions, axis=0), np.ptp(even, axis=0))


def test_jitter_depends_on_the_seed_alone():
    assert np.array_equal(scan("jitter", 50, 3.0, seed=4), scan("jitter", 50, 3.0, seed=4))
    assert not np.array_equal(scan("jitter", 50, 3.0, seed=4), scan("jitter", 50, 3.0, seed=5))


@pytest.mark.parametrize(("views", "step", "ratio"), [(0, 5.0, 1.0), (9, 0.0, 1.0), (9, 5.0, -1.0), (9, 5.0, np.nan)])
def test_unsound_scans_are_refused(views, step, ratio):
    with pytest.raises(BadInput, match="give a positive number"):
        scan("fermat", views, step, density_ratio=ratio)
