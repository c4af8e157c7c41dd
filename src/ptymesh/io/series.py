"""A scan in several files of one format: their views follow each other."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.scan import RawScan
from ptymesh.io.source import JoinedSource

#: Files of one scan, at most: each is opened once to see what it holds.
MOST_FILES = 100_000


def files_of(first: Path, further: Sequence[Path]) -> list[Path]:
    """Return the files of a scan in their order: the first, and those that the others name.

    A name with `*` or `?` stands for all files that it matches, but for the first one, by the numbers in their names.

    Raises:
        BadInput: A name with `*` matches no file, or there are too many.
    """
    paths = [first]
    for path in further:
        if not any(mark in path.name for mark in "*?"):
            paths.append(path)
            continue
        matching = sorted(path.parent.glob(path.name), key=lambda one: numbered_key(one.name))
        if not matching:
            raise BadInput(f"No file matches {path}, which data.further names; check its path.")
        paths += [one for one in matching if one.absolute() != first.absolute()]
    if len(paths) > MOST_FILES:
        raise BadInput(f"data.further names {len(paths)} files, more than {MOST_FILES}; join them into fewer.")
    return paths


def numbered_key(name: str) -> list[tuple[int, str]]:
    """Return a key by which `scan_10` comes after `scan_9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def join_raw_scans(scans: Sequence[RawScan], paths: Sequence[Path]) -> RawScan:
    """Return one scan with the views of all.

    Optics, mask, dark and probe are the first one's. Its positions are those of all files if they are as many as all
    patterns; else each file has its own. Places within rasters of several files are unknown, and asked for.

    Raises:
        BadInput: Patterns differ in shape or type, or some files have positions and others none.
    """
    first = scans[0]
    for scan, path in zip(scans, paths, strict=True):
        if scan.patterns.shape[1:] != first.patterns.shape[1:] or scan.patterns.dtype != first.patterns.dtype:
            raise BadInput(
                f"{path} holds patterns of {scan.patterns.shape[1:]} {scan.patterns.dtype}, and {paths[0]} of "
                f"{first.patterns.shape[1:]} {first.patterns.dtype}; name files of one scan in data.further."
            )
    counts = [scan.patterns.shape[0] for scan in scans]
    masks = [scan.view_mask for scan in scans if scan.view_mask is not None]
    if masks and len(masks) < len(scans):
        raise BadInput(f"Some of the files of {paths[0]} have a mask for each view, and others none; give data.mask.")
    return replace(
        first,
        patterns=JoinedSource([scan.patterns for scan in scans]),
        positions=_positions(scans, counts, paths),
        raster=None,
        view_mask=JoinedSource(masks) if masks else None,
        intensity=_intensity(scans, counts),
        notes=(*first.notes, f"{len(scans)} files are joined, of {sum(counts)} views."),
    )


def _positions(scans: Sequence[RawScan], counts: Sequence[int], paths: Sequence[Path]) -> np.ndarray | None:
    first = scans[0]
    if any(scan.raster is not None and math.prod(scan.raster) == scan.patterns.shape[0] for scan in scans):
        return None
    if first.positions is not None and len(first.positions) == sum(counts):
        return first.positions
    having = [scan.positions for scan in scans if scan.positions is not None]
    if not having:
        return None
    if len(having) < len(scans) or len({scan.unit for scan in scans}) > 1:
        lacking = next((p for scan, p in zip(scans, paths, strict=True) if scan.positions is None), paths[-1])
        raise BadInput(f"{lacking} has no positions, or another unit of them, than {paths[0]}; name all in data.keys.")
    return np.concatenate(having)


def _intensity(scans: Sequence[RawScan], counts: Sequence[int]) -> np.ndarray | None:
    first = scans[0].intensity
    if first is not None and len(first) == sum(counts):
        return first
    having = [scan.intensity for scan in scans if scan.intensity is not None]
    return np.concatenate(having) if len(having) == len(scans) else None
