"""Arguments of numba's kernels: memory of tensors, how windows are transformed, threads, bands and panels of views."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels.arrays import Array, IntArray, RealArray, Tables
from ptymesh.kernels.cpu.compiled import column_panels
from ptymesh.physics import background, fidelity

#: Bands of rows of an object or window for each thread; several, so that threads end at the same time.
BANDS = 4
#: Bytes of the largest array that one pass over a strip of views writes and the next one reads; it must fit a cache.
PANEL_BYTES = 4 << 20


@dataclass(frozen=True)
class Transform:
    """The transform of windows: constants of the kernels, plan and twiddles (see compiled/column_panels.py)."""

    constants: RealArray
    plan: IntArray
    twiddles: RealArray

    @property
    def known(self) -> bool:
        """True if there is such a transform; if not, the kernels leave waves as they are."""
        return bool(self.plan[0, 0])

    @property
    def tables(self) -> Tables:
        """Constants, plan and twiddles, as kernels take them."""
        return self.constants, self.plan, self.twiddles


@lru_cache
def transform_for(window: tuple[int, int], real: torch.dtype) -> Transform:
    """Return the transform of windows in this precision."""
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
    """Return the transform of windows that stay as they are."""
    return Transform(
        constants_of(real, 1.0, window[0] * window[1]), np.zeros((2, 1), np.int64), np.zeros((2, 1), numpy_dtype(real))
    )


def constants_of(real: torch.dtype, scale: float, pixels: int = 1) -> RealArray:
    """Return the numbers that kernels cannot name in their precision.

    Args:
        real: float32 or float64.
        scale: of an orthonormal transform.
        pixels: pixels of a window.
    """
    numbers = [0, 1, fidelity.DARK, fidelity.DARK**0.5, fidelity.BRIGHTEST_RATIO, fidelity.NEWTON_STEPS, scale]
    numbers += [fidelity.UNLIT / pixels, background.FAINT / pixels, background.FAINTEST]
    return np.array(numbers, dtype=numpy_dtype(real))


def arrays_of(*tensors: Tensor) -> tuple[Array, ...]:
    """Return the memory of tensors for numba, which wants it contiguous."""
    return tuple([array_of(t) for t in tensors])


def array_of(t: Tensor) -> Array:
    """Return the memory of a tensor for numba."""
    if t.is_contiguous():
        try:
            return t.numpy()
        except RuntimeError:  # it has a gradient, or a conjugation that is still to be done
            pass
    return t.detach().resolve_conj().contiguous().numpy()


@lru_cache(maxsize=1)
def places_of(rows: Tensor, columns: Tensor) -> IntArray:
    """Return blocks (1, 2, n) as kernels want them, the same in every field; not to be written to.

    The last ones are cached: a batch asks for its own several times.
    """
    places = np.empty((1, 2, rows.shape[0]), dtype=np.int64)
    places[0, 0], places[0, 1] = rows.numpy(), columns.numpy()
    return places


def threads_for(views: int) -> int:
    """Return how many threads can share so many views."""
    return max(1, min(torch.get_num_threads(), views))


def views_of_strip(wave: Tensor) -> int:
    """Return how many views a strip has, where each has such a wave."""
    return max(1, PANEL_BYTES // (wave.numel() * wave.element_size()))


def strips_of(count: int, size: int) -> Iterator[slice]:
    """Return slices of so many views, at most `size` at a time."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def bands_of_rows() -> int:
    """Return the number of bands of rows for this process's threads."""
    threads = torch.get_num_threads()
    return 1 if threads == 1 else BANDS * threads


@cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """Return numpy's dtype for torch's."""
    return torch.empty(0, dtype=dtype).numpy().dtype
