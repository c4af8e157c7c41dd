"""All figures of a result, written to a folder."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from ptymesh import plot
from ptymesh.compare import illumination
from ptymesh.distributed.child import end_with
from ptymesh.distributed.processes import cores
from ptymesh.files import writing
from ptymesh.io.results import Result

if TYPE_CHECKING:
    from ptymesh.run.pairs import Patterns

#: Processes that draw at the same time, at most.
MOST_PROCESSES = 4

#: Makes a figure.
Make = Callable[[], Figure]
#: What processes that share the work draw: they are copies of the one that has it all. Name -> draws it, to this path.
_shared: dict[str, Callable[[], Path]] = {}


def write_figures(
    result: Result,
    folder: Path,
    *,
    prefix: str = "",
    suffix: str = "png",
    patterns: Patterns | None = None,
    before_each: Callable[[], None] = lambda: None,
    processes: int = 1,
) -> list[Path]:
    """Write every figure that the result has something for; `prefix` goes before their names.

    Args:
        suffix: png, pdf or svg.
        patterns: of `compared_patterns`; None: no such figure.
        before_each: called before each file is written; may raise.
        processes: that draw at the same time (Linux).

    Returns the paths written. Raises BadInput where the folder cannot be written to, or a name is taken by what is no
    file, PtymeshError where the disk refuses.
    """
    height, width = result.object.shape[-2:]
    light = illumination((height, width), result.probe, result.positions_px, result.weights)

    def draw(path: Path, make: Make) -> Path:
        figure = make()
        before_each()
        plot.save_figure(figure, path)
        return path

    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        draws = {
            name: partial(draw, folder / f"{prefix}{name}.{suffix}", make)
            for name, make in _figures(result, light, patterns)
        }
        if processes > 1 and sys.platform == "linux":
            return _by_several(draws, processes)
        return [one() for one in draws.values()]


def processes_here() -> int:
    """As many as draw at the same time where nothing else is going on."""
    return min(cores(), MOST_PROCESSES)


def _by_several(draws: Mapping[str, Callable[[], Path]], processes: int) -> list[Path]:
    """The paths that were drawn, by processes that share the work, and end with this one."""
    _shared.clear()
    _shared.update(draws)
    try:
        fork = multiprocessing.get_context("fork")  # a copy has the result, and all that was imported
        with ProcessPoolExecutor(processes, fork, initializer=end_with, initargs=(os.getpid(),)) as pool:
            return list(pool.map(_draw_shared, draws))
    finally:
        _shared.clear()


def _draw_shared(name: str) -> Path:
    return _shared[name]()


def _figures(result: Result, light: np.ndarray, patterns: Patterns | None) -> Iterator[tuple[str, Make]]:
    """Names, and what makes the figures; those that take long come first."""
    pixel, title = result.pixel_size_m, title_of(result)
    final = result.attrs.get("final_residual")
    stages = str(result.attrs["engine"]).split("+") if "engine" in result.attrs else None
    words = result.verdict, str(result.attrs.get("verdict_sentence", ""))
    yield (
        "overview",
        lambda: plot.overview_figure(
            result.object, result.probe, result.positions_px, light, result.history, pixel, final, stages, title, *words
        ),
    )
    if patterns is not None:
        yield "patterns", partial(plot.patterns_figure, patterns.pairs, patterns.mask, patterns.far_field)
    if {"loss", "residual"} & result.history.keys():
        floor, said = result.attrs.get("noise_floor"), result.convergence
        yield "history", lambda: plot.history_figure(result.history, final, stages, None, floor, said)
    yield "object", lambda: plot.object_figure(result.object, pixel, light, title)
    if len(result.object) > 1:
        yield "slices", lambda: plot.slices_figure(result.object, pixel, light, result.slice_spacing_m)
    centres = result.positions_px + (np.array(result.probe.shape[-2:]) - 1) / 2
    yield "coverage", lambda: plot.coverage_figure(light, centres, pixel)
    yield "probe", lambda: plot.probe_figure(result.probe, pixel)
    yield "positions", lambda: plot.positions_figure(result.positions_px, result.nominal_px, pixel)
    for name, images in result.unknowns.items():
        if np.iscomplexobj(images) and images.ndim == 3:  # of every view
            (h, w), (n, m) = result.probe.shape[-2:], images.shape[-2:]
            larger = pixel and (pixel[0] * h / n, pixel[1] * w / m)
            about = f"{name} of view 1 of {len(images)}"
            yield name, partial(plot.object_figure, images[0], larger, None, about)


def title_of(result: Result) -> str:
    """Name of the data, engines and final residual, as far as the result knows them."""
    attrs = result.attrs
    words = [Path(str(attrs["data_path"])).name] if attrs.get("data_path") else []
    words += [f"{len(result.positions_px)} views"]
    words += [str(attrs["engine"])] if attrs.get("engine") else []
    words += [f"final residual {attrs['final_residual']:.4g}"] if attrs.get("final_residual") is not None else []
    return ", ".join(words)
