"""All figures of a result, written to a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ptymesh import plot
from ptymesh.compare import illumination
from ptymesh.files import writing
from ptymesh.io.results import Result
from ptymesh.run.patterns import Patterns


def write_figures(
    result: Result,
    folder: Path,
    *,
    prefix: str = "",
    suffix: str = "png",
    patterns: Patterns | None = None,
    before_each: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Write every figure that the result has something for; `prefix` goes before their names.

    Args:
        suffix: png, pdf or svg.
        patterns: of `compared_patterns`; None: no such figure.
        before_each: called before each file is written; may raise.

    Returns the paths written. Raises BadInput where the folder cannot be written to, or a name is taken by what is no
    file, PtymeshError where the disk refuses.
    """
    height, width = result.object.shape[-2:]
    light = illumination((height, width), result.probe, result.positions_px, result.weights)
    written = []
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in _figures(result, light, patterns):
            path = folder / f"{prefix}{name}.{suffix}"
            before_each()
            plot.save_figure(figure, path)
            written.append(path)
    return written


def _figures(result: Result, light: np.ndarray, patterns: Patterns | None) -> Iterator[tuple[str, Figure]]:
    """Name and figure, one after the other."""
    pixel, title = result.pixel_size_m, title_of(result)
    final = result.attrs.get("final_residual")
    stages = str(result.attrs["engine"]).split("+") if "engine" in result.attrs else None
    yield (
        "overview",
        plot.overview_figure(
            result.object, result.probe, result.positions_px, light, result.history, pixel, final, stages, title
        ),
    )
    yield "object", plot.object_figure(result.object, pixel, light, title)
    if len(result.object) > 1:
        yield "slices", plot.slices_figure(result.object, pixel, light, result.slice_spacing_m)
    yield "probe", plot.probe_figure(result.probe, pixel)
    centres = result.positions_px + (np.array(result.probe.shape[-2:]) - 1) / 2
    yield "coverage", plot.coverage_figure(light, centres, pixel)
    yield "positions", plot.positions_figure(result.positions_px, result.nominal_px, pixel)
    for name, images in result.unknowns.items():
        if np.iscomplexobj(images) and images.ndim == 3:  # of every view
            (h, w), (n, m) = result.probe.shape[-2:], images.shape[-2:]
            larger = pixel and (pixel[0] * h / n, pixel[1] * w / m)
            yield name, plot.object_figure(images[0], larger, None, f"{name} of view 1 of {len(images)}")
    if {"loss", "residual"} & result.history.keys():
        floor, said = result.attrs.get("noise_floor"), result.attrs.get("verdict")
        yield "history", plot.history_figure(result.history, final, stages, None, floor, said)
    if patterns is not None:
        yield "patterns", plot.patterns_figure(patterns.pairs, patterns.mask, patterns.far_field)


def title_of(result: Result) -> str:
    """Name of the data, engines and final residual, as far as the result knows them."""
    attrs = result.attrs
    words = [Path(str(attrs["data_path"])).name] if attrs.get("data_path") else []
    words += [f"{len(result.positions_px)} views"]
    words += [str(attrs["engine"])] if attrs.get("engine") else []
    words += [f"final residual {attrs['final_residual']:.4g}"] if attrs.get("final_residual") is not None else []
    return ", ".join(words)
