"""What numba's kernels keep from batch to batch, so that it is not asked for, made or allocated anew each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels import panels
from ptymesh.kernels.arguments import array_of, numpy_dtype


class Arrays:
    """Memory of tensors that stay from batch to batch, by name: each is asked for it once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Tensor, np.ndarray[Any, Any]]] = {}

    def __call__(self, name: str, tensor: Tensor) -> np.ndarray[Any, Any]:
        """`array_of` a tensor."""
        known = self._known.get(name)
        if known is not None and known[0] is tensor:
            return known[1]
        array = array_of(tensor)
        if tensor.is_contiguous() and not tensor.is_conj():  # it is the same memory, and stays so
            self._known[name] = tensor, array
        return array


class Rooms:
    """Arrays to work in, by name; torch's memory, as numpy's begins anywhere in a line of the cache."""

    def __init__(self) -> None:
        self._kept: dict[str, np.ndarray[Any, Any]] = {}
        self._given_back: dict[str, tuple[np.ndarray[Any, Any], ...]] = {}

    def __call__(self, name: str, count: int, shape: tuple[int, ...], dtype: torch.dtype) -> np.ndarray[Any, Any]:
        """An array (count, *shape), until the next one of its name is asked for."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < count or kept.shape[1:] != shape:
            kept = self._kept[name] = torch.empty((count, *shape), dtype=dtype).numpy()
        return kept[:count]

    def take(self, name: str, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> tuple[Any, ...]:
        """Arrays of these shapes that are the caller's; those that were given back last, if they have them."""
        given_back = self._given_back.pop(name, ())
        if tuple(array.shape for array in given_back) == shapes:
            return given_back
        return tuple(torch.empty(shape, dtype=dtype).numpy() for shape in shapes)

    def give_back(self, name: str, arrays: tuple[np.ndarray[Any, Any], ...]) -> None:
        """The caller has done with these."""
        self._given_back[name] = arrays

    def forget(self) -> None:
        """Lets go of all of them; whoever has one keeps it."""
        self._kept, self._given_back = {}, {}


class Planes:
    """Mask and background as the detector's kernel reads them; each made anew when it has changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Tensor, int, np.ndarray[Any, Any], bool]] = {}

    def __call__(self, mask: Tensor, background: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], bool]:
        """Both, panel after panel and in the background's precision, and whether there is any background."""
        real = background.numpy().dtype
        good, _ = self._plane("mask", mask, real)
        light, lit = self._plane("background", background, real)
        return good, light, lit

    def _plane(self, name: str, plane: Tensor, real: np.dtype[Any]) -> tuple[np.ndarray[Any, Any], bool]:
        known = self._known.get(name)
        if known is None or known[0] is not plane or known[1] != plane._version or known[2].dtype != real:
            made = panels.in_panels(plane.numpy()).astype(real, copy=False)
            known = self._known[name] = plane, plane._version, made, bool(made.any())
        return known[2], known[3]


class Kernels:
    """Transfer functions as kernels read them (propagation.py), by name; made anew when there are others."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Tensor, np.ndarray[Any, Any]]] = {}

    def __call__(self, name: str, kernel: Tensor | None, real: torch.dtype) -> np.ndarray[Any, Any]:
        """A transfer function (h, w) with the scale of two transforms, panel after panel; None has no numbers."""
        if kernel is None:
            return np.zeros(0, numpy_dtype(real))
        known = self._made.get(name)
        if known is None or known[0] is not kernel:
            scaled = kernel.resolve_conj().to(torch.complex128).numpy() / kernel.numel()
            known = self._made[name] = kernel, panels.waves_in_panels(scaled[None]).astype(numpy_dtype(real))
        return known[1]
