"""Patterns from arrays of any kind: strided, one after the other, and read when they are sliced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.errors import BadInput
from ptymesh.measurement import ArraySource, SlicedSource
from ptymesh.simulate import simulate


class Lazy:
    """An array that notes what is read of it, and gives it as something that is no array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype, self.spans = array, array.shape, array.dtype, []  # type: ignore[var-annotated]

    def __getitem__(self, index: slice) -> list[np.ndarray]:
        self.spans.append((index.start, index.stop))
        return list(self.array[index])


def counts(views: int = 12) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 900, (views, 6, 8)).astype(np.uint16)


def test_neighbours_are_read_by_one_slice_in_any_order() -> None:
    first, second = Lazy(counts()[:7]), Lazy(counts()[7:])
    source = SlicedSource(first, second)  # type: ignore[arg-type]
    views = np.array([8, 2, 11, 1, 6, 7, 2])
    assert source.shape == (12, 6, 8) and source.dtype == np.uint16
    assert np.array_equal(source.read(views), counts()[views])
    assert first.spans == [(1, 3), (6, 7)] and second.spans == [(0, 2), (4, 5)]
    assert source.read(views[:0]).shape == (0, 6, 8)


def test_strided_arrays_are_read_as_they_are() -> None:
    wide = np.zeros((8, 6, 24), np.uint16)
    wide[:, :, ::2] = counts().transpose(2, 1, 0)
    strided = wide[:, :, ::2].transpose(2, 1, 0)
    assert not strided.flags.c_contiguous
    for source in (ArraySource(strided), SlicedSource(strided)):
        found = source.read(np.array([3, 0, 5]))
        assert np.array_equal(found, counts()[[3, 0, 5]]) and found.flags.c_contiguous


def test_a_scan_in_a_dataset_is_reconstructed_as_one_in_memory(tmp_path: Path) -> None:
    scan = simulate(views=16, window=16).measurement
    whole = scan.patterns.read(np.arange(16))
    with h5py.File(tmp_path / "patterns.h5", "w") as file:
        stored = file.create_dataset("frames", data=whole)
        objects = []
        for patterns in (whole, stored, SlicedSource(stored, whole[:0])):
            recon = pm.Reconstruction(replace(scan, patterns=patterns), device="cpu")
            list(recon.run(pm.RPIE(epochs=2, batch=8)))
            objects.append(recon.object)
    assert np.array_equal(objects[0], objects[1]) and np.array_equal(objects[0], objects[2])


def test_what_is_no_stack_of_patterns_is_refused() -> None:
    scan = simulate(views=9, window=16).measurement
    with pytest.raises(BadInput, match=r"Array 0 of the patterns is uint16 \(6, 8\); give real numbers, \(N, h, w\)"):
        SlicedSource(counts()[0])
    with pytest.raises(BadInput, match=r"Array 1 of the patterns is float32 .*the first one is uint16"):
        SlicedSource(counts(), counts().astype(np.float32))
    with pytest.raises(BadInput, match=r"of type Tensor with a dtype that numpy does not know \(torch\.float32\)"):
        replace(scan, patterns=torch.zeros(9, 16, 16))
