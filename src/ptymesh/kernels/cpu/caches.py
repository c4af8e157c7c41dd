"""Caches of what numba's kernels use in every batch, so that it is not made or allocated anew each time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels.arrays import Array, RealArray
from ptymesh.kernels.cpu import panels
from ptymesh.kernels.cpu.arguments import array_of, numpy_dtype


class Arrays:
    """Memory of tensors that stay from batch to batch, by name."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Tensor, Array]] = {}

    def __call__(self, name: str, tensor: Tensor) -> Array:
        """Return `array_of` a tensor."""
        entry = self._known.get(name)
        if entry is not None and entry[0] is tensor:
            return entry[1]
        array = array_of(tensor)
        if tensor.is_contiguous() and not tensor.is_conj():  # it is the same memory, and stays so
            self._known[name] = tensor, array
        return array


class Workspace:
    """Arrays to work in, by name. They are torch's memory, as numpy's may begin anywhere in a line of the cache."""

    def __init__(self) -> None:
        self._kept: dict[str, Array] = {}
        self._given_back: dict[str, tuple[Array, ...]] = {}

    def __call__(self, name: str, count: int, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
        """Return an array (count, *shape) that is the caller's until the next one of its name is asked for.

        Args:
            name: key of the array.
            count: length of the first axis.
            shape: of the other axes.
            dtype: of the numbers.
        """
        array = self._kept.get(name)
        if array is None or len(array) < count or array.shape[1:] != shape:
            array = self._kept[name] = torch.empty((count, *shape), dtype=dtype).numpy()
        return array[:count]

    def take(self, name: str, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> tuple[Array, ...]:
        """Return arrays that are the caller's until they are given back.

        Args:
            name: key of the arrays.
            shapes: of the arrays.
            dtype: of the numbers.
        """
        given_back = self._given_back.pop(name, ())
        if tuple(array.shape for array in given_back) == shapes:
            return given_back
        return tuple(torch.empty(shape, dtype=dtype).numpy() for shape in shapes)

    def give_back(self, name: str, arrays: tuple[Array, ...]) -> None:
        """Take back the arrays of a name."""
        self._given_back[name] = arrays

    def free(self) -> None:
        """Free all arrays; callers keep those they have."""
        self._kept, self._given_back = {}, {}


class Planes:
    """Mask and background as the detector's kernel reads them; each is made anew when it has changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Tensor, int, RealArray]] = {}

    def __call__(self, mask: Tensor, background: Tensor) -> tuple[RealArray, RealArray]:
        """Return both, panel after panel and in the background's precision."""
        real = background.numpy().dtype
        return self._plane("mask", mask, real), self._plane("background", background, real)

    def _plane(self, name: str, plane: Tensor, real: np.dtype) -> RealArray:
        entry = self._known.get(name)
        if entry is None or entry[0] is not plane or entry[1] != plane._version or entry[2].dtype != real:
            in_panels = panels.in_panels(plane.numpy()).astype(real, copy=False)
            entry = self._known[name] = plane, plane._version, in_panels
        return entry[2]


class Kernels:
    """Transfer functions as kernels read them (compiled/propagation.py), by name; made anew when there is another."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Tensor, RealArray]] = {}

    def __call__(self, name: str, kernel: Tensor | None, real: torch.dtype) -> RealArray:
        """Return a transfer function with the scale of two transforms, panel after panel.

        Args:
            name: key of the transfer function.
            kernel: (h, w) complex; None for no numbers.
            real: float32 or float64.
        """
        if kernel is None:
            return np.zeros(0, numpy_dtype(real))
        entry = self._made.get(name)
        if entry is None or entry[0] is not kernel:
            scaled = kernel.resolve_conj().to(torch.complex128).numpy() / kernel.numel()
            entry = self._made[name] = kernel, panels.waves_in_panels(scaled[None]).astype(numpy_dtype(real))
        return entry[1]
