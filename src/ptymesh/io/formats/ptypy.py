"""ptypy's prepared data (.ptyd): `/chunks/K` with patterns, positions, weights; `/meta` with the numbers of the beam.

What is missing is the text `None`. Energy is in keV, lengths are in metres, positions (M, 2) axis 0 first.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Pair, Propagation
from ptymesh.io.formats.changed_source import is_positive
from ptymesh.io.formats.contents import is_hdf5_with
from ptymesh.io.hdf5.reading import Hdf5File, dataset_of, item_of, names_in, open_hdf5, read_dataset, text_of
from ptymesh.io.options import DataOptions
from ptymesh.io.quantities import holds_numbers
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source, SlabSource
from ptymesh.io.staging import join_sliceable, open_alike_sources

NAME = "ptypy (.ptyd)"
CHUNKS = "/chunks"


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for HDF5 with ptypy's chunks."""
    return is_hdf5_with(path, data, lambda file: item_of(file, "/meta") is not None and _chunks(file))


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of all chunks, in the order of their numbers.

    Raises:
        BadInput: chunks do not fit together, or one has not a position for each pattern.
    """
    with open_hdf5(path, follow=data.follow) as file:
        names = _chunks(file)
        sources = open_alike_sources(path, [f"{name}/data" for name in names], data.follow, "; write the file anew")
        positions = [_positions(file, name, source.shape[0]) for name, source in zip(names, sources, strict=True)]
        placed = [one for one in positions if one is not None]
        source = join_sliceable(sources)
        count = source.shape[0]
        mask, view_mask = _weights(file, path, names, source.shape, data)
        notes = []
        stated_count = _meta(file, "num_frames")
        if stated_count is not None and int(stated_count[0]) != count:
            notes.append(f"The file says {int(stated_count[0])} frames, and its {len(names)} chunks hold {count}.")
        energy, distance, pixel = (_meta(file, name) for name in ("energy", "distance", "psize"))
        return RawScan(
            patterns=source,
            optics=Optics(
                propagation=_propagation(file),
                radiation=data.radiation or "photon",
                energy_eV=None if energy is None else 1e3 * energy[0],
                distance_m=None if distance is None else distance[0],
                detector_pixel_m=None if pixel is None else _pair(pixel),
            ),
            positions=np.concatenate(placed) if len(placed) == len(names) else None,
            mask=mask,
            view_mask=view_mask,
            name=path.stem,
            notes=tuple(notes),
        )


def _chunks(file: Hdf5File) -> list[str]:
    """Return the names of the chunks that have patterns, by their numbers."""
    group = item_of(file, CHUNKS)
    if not isinstance(group, h5py.Group):
        return []
    numbers = sorted(int(name) for name in names_in(group) if name.isdecimal())
    names = [f"{CHUNKS}/{number}" for number in numbers]
    return [name for name in names if isinstance(item_of(file, f"{name}/data"), h5py.Dataset)]


def _positions(file: Hdf5File, name: str, count: int) -> np.ndarray | None:
    """Return the positions (M, 2) of a chunk, y x, metres; None where it has none."""
    if not holds_numbers(file, f"{name}/positions"):
        return None
    stored = read_dataset(file, f"{name}/positions", 2 * count + 1000, "iuf").astype(np.float64)
    if not stored.size:
        return None
    if stored.shape != (count, 2):
        raise BadInput(
            f"{name}/positions in {file.filename} has shape {stored.shape}, and the chunk has {count} patterns; it "
            f"must be ({count}, 2)."
        )
    return stored


def _meta(file: Hdf5File, name: str) -> list[float] | None:
    """Return positive numbers of `/meta`; None where it says none."""
    if not holds_numbers(file, f"/meta/{name}"):
        return None
    values = read_dataset(file, f"/meta/{name}", 1000, "iuf").reshape(-1).astype(np.float64)
    return values.tolist() if len(values) and np.isfinite(values).all() and (values > 0).all() else None


def _pair(values: list[float]) -> Pair:
    return values[0], values[-1]


def _propagation(file: Hdf5File) -> Propagation:
    """Return near or far field, as the file says; far where it says nothing."""
    if not isinstance(item_of(file, "/meta/propagation"), h5py.Dataset):
        return "far_field"
    text = text_of(dataset_of(file, "/meta/propagation")[()], 60) or ""
    return "angular_spectrum" if text.lower().startswith("near") else "far_field"


def _weights(
    file: Hdf5File, path: Path, names: list[str], shape: tuple[int, int, int], data: DataOptions
) -> tuple[np.ndarray | None, SlabSource | None]:
    """Return the mask of all views, (H, W) bool, or that of each view; (None, None) where there are no weights."""
    weights = [item_of(file, f"{name}/weights") for name in names]
    stacks = [one is not None and isinstance(one, h5py.Dataset) and one.ndim == 3 and one.size for one in weights]
    if all(stacks):
        of_views = join_sliceable([Hdf5Source(path, f"{name}/weights", "nyx", data.follow) for name in names])
        if of_views.shape == shape:
            return None, is_positive(of_views)
        raise BadInput(f"Weights in {path} are {of_views.shape}, and its patterns {shape}; write the file anew.")
    flat = [name for name in (f"{name}/weights" for name in names) if _is_mask(file, name, shape[1:])]
    flat = flat or [name for name in ("/meta/weight2d",) if _is_mask(file, name, shape[1:])]
    if not flat:
        return None, None
    return np.all([read_dataset(file, name) > 0 for name in flat], axis=0), None


def _is_mask(file: Hdf5File, name: str, window: tuple[int, ...]) -> bool:
    item = item_of(file, name)
    return isinstance(item, h5py.Dataset) and item.shape == window and item.dtype.kind in "buif"
