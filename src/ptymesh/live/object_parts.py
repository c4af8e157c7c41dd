"""Object that grows with a scan: parts of it are copied out, updated, and put back.

L, H, W slices, object pixels
"""

from __future__ import annotations

import numpy as np
import torch


def paste(source: torch.Tensor, target: torch.Tensor, offset: np.ndarray) -> None:
    """Copy an object into another one where they overlap.

    Args:
        source: (L, H, W) complex.
        target: (L, H', W') complex, changed in place.
        offset: (2,) integer, place of the source's first pixel in the target.
    """
    spans = []
    for start, size, room in zip(offset.tolist(), source.shape[-2:], target.shape[-2:], strict=True):
        low, high = max(0, start), min(room, start + size)
        if low >= high:
            return
        spans.append((slice(low - start, high - start), slice(low, high)))
    (from_y, to_y), (from_x, to_x) = spans
    target[:, to_y, to_x] = source[:, from_y, from_x]


def join_part(
    before: torch.Tensor | None, zero: np.ndarray, part: torch.Tensor, part_zero: np.ndarray, outside: float = 1.0
) -> tuple[torch.Tensor, np.ndarray]:
    """Return an object that holds a part of it as it is now, larger where the part reaches beyond it.

    Args:
        before: (L, H, W) complex, or the values it follows from; None before the first part.
        zero: (2,) its pixel at which the scan's own coordinates have their zero.
        part: (L, H', W') of the same type.
        part_zero: (2,) of the part.
        outside: what is where nothing has been, 1 for vacuum of an object.

    Returns:
        The object and its zero.
    """
    if before is None:
        return part.clone(), part_zero
    corner = (zero - part_zero).astype(np.int64)  # of the part, in the object
    low = np.minimum(0, corner)
    high = np.maximum(before.shape[-2:], corner + np.array(part.shape[-2:]))
    if low.any() or (high != before.shape[-2:]).any():
        sides = (high - low).tolist()
        joined = torch.full((len(before), *sides), outside, dtype=before.dtype, device=before.device)
        paste(before, joined, -low)
        before, zero, corner = joined, zero - low, corner - low
    paste(part, before, corner)
    return before, zero
