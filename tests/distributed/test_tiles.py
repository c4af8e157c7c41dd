"""Arithmetic of tiles: balanced, without gaps or overlaps, whatever the scan."""

import numpy as np
import pytest

from ptymesh.distributed.tiles import Rect, bisect, parts_of, tiles_of
from ptymesh.estimate import BLOCK, REACH

WINDOW = (24, 40)


def scan(kind: str, n: int = 500) -> np.ndarray:
    rng = np.random.default_rng(1)
    if kind == "uneven":
        return rng.random((n, 2)) ** 3 * [900, 600]
    if kind == "raster":
        return np.stack(np.divmod(np.arange(n), 25), axis=1) * 12.0
    if kind == "line":
        return np.stack((np.full(n, 5.0), np.arange(n) * 3.0), axis=1)
    return np.full((n, 2), 7.0)


@pytest.mark.parametrize("kind", ["uneven", "raster", "line", "one place"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 16, 700])
def test_balanced_and_without_gaps(kind: str, ranks: int) -> None:
    positions = scan(kind)
    centres = positions + np.array(WINDOW) / 2
    owner, cells = bisect(centres, ranks)
    counts = np.bincount(owner, minlength=ranks)
    assert counts.max() - counts.min() <= (1 if ranks <= 2 else 3) and (ranks > 500 or counts.min() > 0)
    origin = (4.0, 4.0)
    extent = tuple(int(-(-n // BLOCK) * BLOCK) for n in positions.max(axis=0) + np.array(WINDOW) + 8)
    tiles = tiles_of(cells, origin, extent)
    counted = np.zeros(extent, dtype=int)
    for tile in tiles:
        assert min(tile) >= 0
        counted[tile.inside((0, 0))] += 1
    assert (counted == 1).all()
    anchors = np.floor(positions + 4.5).astype(int)
    parts = parts_of(tiles, owner, anchors, WINDOW, extent)
    whole = Rect(0, 0, *extent)
    for rank, part in enumerate(parts):
        assert whole.holds(part) and part.holds(tiles[rank]) and all(n % BLOCK == 0 for n in part)
        assert part.shape[0] > WINDOW[0] and part.shape[1] > WINDOW[1]
        for y, x in anchors[owner == rank]:
            assert part.holds(Rect(y, x, y + WINDOW[0], x + WINDOW[1]).grown(REACH) & whole)


def test_views_are_in_their_tile_or_on_its_edge() -> None:
    centres = scan("uneven")
    owner, cells = bisect(centres, 7)
    mine = cells[owner]
    assert ((centres >= mine[:, :2]) & (centres <= mine[:, 2:])).all()


def test_rectangles() -> None:
    a, b = Rect(0, 0, 10, 20), Rect(5, 15, 30, 40)
    assert a & b == Rect(5, 15, 10, 20) and a.hull(b) == Rect(0, 0, 30, 40) and not a.holds(b)
    assert (a & Rect(10, 0, 12, 5)).empty and a.holds(Rect(10, 0, 10, 5)) and a.hull(Rect(90, 90, 90, 95)) == a
    assert b.moved(-5, 1) == Rect(0, 16, 25, 41) and b.grown(2) == Rect(3, 13, 32, 42) and b.shape == (25, 25)
    assert Rect(-1, 33, 32, 65).blocks() == Rect(-BLOCK, BLOCK, BLOCK, 3 * BLOCK)
