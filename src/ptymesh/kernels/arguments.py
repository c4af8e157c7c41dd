"""Arguments of numba's kernels: memory of tensors, how windows are transformed, threads, bands and panels of views."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels import column_panels
from ptymesh.physics import background, fidelity

#: Rows of an object or window are given to threads in so many bands each, so that these end at the same time.
BANDS = 4
#: Bytes of the largest array that one pass over a panel of views writes and the next one reads: it is to fit a cache.
PANEL_BYTES = 4 << 20


@dataclass(frozen=True)
class Transform:
    """How windows are transformed: constants of the kernels, plan and twiddles (see column_panels.py)."""

    constants: np.ndarray[Any, Any]
    plan: np.ndarray[Any, Any]
    twiddles: np.ndarray[Any, Any]

    @property
    def known(self) -> bool:
        """Whether there is such a transform; if not, the kernels leave waves as they are."""
        return bool(self.plan[0, 0])

    @property
    def tables(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Constants, plan and twiddles, as kernels take them."""
        return self.constants, self.plan, self.twiddles


@lru_cache
def transform_for(window: tuple[int, int], real: torch.dtype) -> Transform:
    """Of windows in this precision."""
    stages = [column_panels.stages(size) for size in window]
    if not all(stages):
        return untransformed(window, real)
    plan = np.zeros((2, max(map(len, stages))), dtype=np.int64)
    twiddles = np.zeros((2, 2 * max(window)), dtype=numpy_dtype(real))
    for axis, size in enumerate(window):
        angles = 2 * np.pi * np.arange(size) / size
        plan[axis, : len(stages[axis])] = stages[axis]
        twiddles[axis, : 2 * size] = np.stack((np.cos(angles), -np.sin(angles)), axis=1).ravel()
    return Transform(constants_of(real, (window[0] * window[1]) ** -0.5, window[0] * window[1]), plan, twiddles)


@lru_cache
def untransformed(window: tuple[int, int], real: torch.dtype) -> Transform:
    """Of windows that stay as they are."""
    return Transform(
        constants_of(real, 1.0, window[0] * window[1]), np.zeros((2, 1), np.int64), np.zeros((2, 1), numpy_dtype(real))
    )


def constants_of(real: torch.dtype, scale: float, pixels: int = 1) -> np.ndarray[Any, Any]:
    """Numbers that kernels cannot name in their precision; scale: of an orthonormal transform; pixels: of a window."""
    numbers = [0, 1, fidelity.DARK, fidelity.DARK**0.5, fidelity.BRIGHTEST_RATIO, fidelity.NEWTON_STEPS, scale]
    numbers += [fidelity.UNLIT / pixels, background.FAINT / pixels, background.FAINTEST]
    return np.array(numbers, dtype=numpy_dtype(real))


def arrays_of(*tensors: Tensor) -> tuple[np.ndarray[Any, Any], ...]:
    """The same memory for numba, which wants it contiguous."""
    return tuple([array_of(t) for t in tensors])


def array_of(t: Tensor) -> np.ndarray[Any, Any]:
    """The memory of a tensor for numba."""
    if t.is_contiguous():
        try:
            return t.numpy()
        except RuntimeError:  # it has a gradient, or is to be conjugated
            pass
    return t.detach().resolve_conj().contiguous().numpy()


@lru_cache(maxsize=1)
def places_of(rows: Tensor, columns: Tensor) -> np.ndarray[Any, Any]:
    """Blocks (1, 2, n) as kernels want them, the same in every field; not to be written to.

    Those that were asked for last are kept: a batch asks for its own several times.
    """
    places = np.empty((1, 2, rows.shape[0]), dtype=np.int64)
    places[0, 0], places[0, 1] = rows.numpy(), columns.numpy()
    return places


def threads_for(views: int) -> int:
    """Threads that can share so many views."""
    return max(1, min(torch.get_num_threads(), views))


def views_of_strip(wave: Tensor) -> int:
    """Views of a panel, where each has such a wave."""
    return max(1, PANEL_BYTES // (wave.numel() * wave.element_size()))


def strips_of(count: int, size: int) -> Iterator[slice]:
    """So many views, at most `size` at a time."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def bands_of_rows() -> int:
    """How many for this process's threads."""
    threads = torch.get_num_threads()
    return 1 if threads == 1 else BANDS * threads


@cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """numpy's word for torch's."""
    return torch.empty(0, dtype=dtype).numpy().dtype
