"""Blocks that the parts of several ranks have in common: who holds them, who adds them up, which views reach them.

H, W   object pixels of a part;  b = BLOCK, side of a block
"""

from __future__ import annotations

import numpy as np

from ptymesh.distributed.tiles import Rect
from ptymesh.estimate import BLOCK

#: Sums are relayed by block owners where that takes less than this fraction of the bytes; ranks sampled to estimate it.
LESS, SAMPLE = 0.75, 64


def relayed_is_less(tiles: list[Rect], parts: list[Rect]) -> bool:
    """Return True if relaying sums through block owners takes clearly fewer bytes than sending them to every holder.

    Args:
        tiles: tile of each rank, in order of rank.
        parts: part of each rank, in order of rank.
    """
    sample = sorted({int(r) for r in np.linspace(0, len(parts) - 1, SAMPLE).round()})
    edges = np.array(parts)
    directly, relayed = 0, 0
    for rank in sample:
        sides = np.minimum(edges[:, 2:], edges[rank, 2:]) - np.maximum(edges[:, :2], edges[rank, :2])
        local_pixels = parts[rank].shape[0] * parts[rank].shape[1]
        directly += int(sides.clip(min=0).prod(1).sum()) - local_pixels
        relayed += 2 * (local_pixels - tiles[rank].shape[0] * tiles[rank].shape[1])
    return relayed < LESS * directly


def in_common(part: Rect, other: Rect) -> np.ndarray:
    """Return the blocks (H/b, W/b) bool of a part that another part has too."""
    mask = np.zeros([n // BLOCK for n in part.shape], dtype=bool)
    y, x = (part & other).inside(part.corner)
    mask[y.start // BLOCK : y.stop // BLOCK, x.start // BLOCK : x.stop // BLOCK] = True
    return mask


def block_owners(tiles: list[Rect], part: Rect) -> np.ndarray:
    """Return for each block (H/b, W/b) int64 of a part the rank whose tile contains the block's middle."""
    block_owner = np.full([n // BLOCK for n in part.shape], -1)
    for rank, tile in enumerate(tiles):
        y, x = (tile & part).inside(part.corner)
        if not (tile & part).empty:
            rows, columns = (slice(*(-((BLOCK // 2 - n) // BLOCK) for n in (s.start, s.stop))) for s in (y, x))
            block_owner[rows, columns] = rank
    return block_owner


def reach_into(mask: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return for each box whether it contains a block of the mask.

    Args:
        mask: (H/b, W/b) bool.
        edges: (B, 4) int64, first row, first column, row and column after the last, in blocks.

    Returns:
        (B,) bool.
    """
    height, width = mask.shape
    counts = np.zeros((height + 1, width + 1), dtype=np.int64)
    counts[1:, 1:] = mask.astype(np.int64).cumsum(0).cumsum(1)
    top, left, bottom, right = edges.T
    return counts[bottom, right] - counts[top, right] - counts[bottom, left] + counts[top, left] > 0
