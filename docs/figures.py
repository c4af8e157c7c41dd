"""Draws the pictures of the documentation: python docs/figures.py NAME [FILE]

    cryo-4dstem, siemens-star   FILE is the result.h5 of the recipe of that name in examples/
    speed, solution, live       FILE is what benchmarks/peers/compare.py, solution.py, or benchmarks/live.py wrote; left
                                out: the newest

Written to docs/figures/NAME.png, small enough for a repository.
"""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, ScalarFormatter
from PIL import Image
from scipy import ndimage

from ptymesh.compare import illumination
from ptymesh.io.results import Result
from ptymesh.physics.phase import unwrapped_phase
from ptymesh.plot.objects import prepared
from ptymesh.plot.style import ColourScale, bounds, image_panel, new_figure

FOLDER = Path(__file__).with_name("figures")
MEASURED = Path(__file__).parents[1] / "benchmarks" / "results"
ENGINES = {"rpie": "rPIE", "lsqml": "LSQML", "adam": "Adam", "bh": "BH"}
PEERS = {"ptychi": ("Pty-Chi", "#b9a06a"), "cdtools": ("CDTools", "#8fa58b"), "ptyrad": ("PtyRAD", "#a78fa5")}
OURS = ("ptymesh", "#14557b")
#: In object pixels from the middle of the scan, y x; tests/real/test_cryo.py finds them.
BEADS, RING, RING_RADIUS = [(-100, -104), (17, -61), (-80, 90), (-38, 13)], (-94, -20), 57


def cryo_4dstem(result: Result) -> Figure:
    """Phase as reconstructed, and averaged over a few pixels, with what is in it marked."""
    phase, region, pixel, origin = phase_of(result, 0.2)
    figure = new_figure(9.6, 4.9)
    left, right = figure.subplots(1, 2)
    panel(left, phase, "phase", pixel, bounds(phase))
    filled = np.where(region, phase, 0)
    weight = np.maximum(ndimage.gaussian_filter(region.astype(float), 3), 1e-3)
    smooth = np.where(region, ndimage.gaussian_filter(filled, 3) / weight, np.nan)
    panel(right, smooth, "phase, averaged over 7 px (3 nm)", pixel, (-0.08, 0.1))
    for (y, x), radius, colour in [*((bead, 14, "tab:orange") for bead in BEADS), (RING, RING_RADIUS, "tab:cyan")]:
        right.add_patch(Circle((x + origin[1], y + origin[0]), radius, fill=False, color=colour, linewidth=1.2))
    return figure


def siemens_star(result: Result) -> Figure:
    """Phase, and amplitude."""
    phase, region, pixel, _ = phase_of(result, 0.05)
    light = illumination(result.object.shape[1:], result.probe, result.positions_px, result.weights)
    image, _, _ = prepared(result.object, result.pixel_size_m, np.where(light > 0.05 * light.max(), light, 0))
    amplitude = np.where(region, np.abs(image), np.nan)
    figure = new_figure(9.6, 4.9)
    left, right = figure.subplots(1, 2)
    panel(left, phase, "phase", pixel, bounds(phase))
    panel(right, amplitude, "amplitude", pixel, bounds(amplitude))
    return figure


def speed(found: dict[str, Any]) -> Figure:
    """Views per second of ptymesh and of each peer, by engine and number of modes."""
    figure = new_figure(9.6, 3.6)
    for axes, modes in zip(figure.subplots(1, 2), (1, 4), strict=True):
        place, ticks = 0.0, {}
        for engine, label in ENGINES.items():
            beside = [one for one in found["comparisons"] if (one["engine"], one["modes"]) == (engine, modes)]
            ours = sorted(one["ptymesh_views_per_s"] for one in beside)[len(beside) // 2]
            bars = [(*OURS, ours)] + [
                (*PEERS[one["peer"].split()[0]], one["peer_views_per_s"])
                for one in sorted(beside, key=lambda one: -float(one["peer_views_per_s"]))
            ]
            ticks[place - (len(bars) - 1) / 2] = label
            for name, colour, value in bars:
                axes.barh(place, value, 0.86, color=colour, label=name)
                axes.text(value, place, f" {value:,.0f}", va="center", fontsize=8)
                place -= 1
            place -= 0.7
        axes.set_title(f"{modes} probe mode{'s' if modes > 1 else ''}: views per second", fontsize=10)
        axes.set_yticks(list(ticks), list(ticks.values()))
        axes.set_xlim(0, axes.get_xlim()[1] * 1.1)
        axes.spines[["top", "right"]].set_visible(False)
    drawn, names = axes.get_legend_handles_labels()
    first = dict(reversed(list(zip(names, drawn, strict=True))))
    order = [OURS[0], *(name for name, _ in PEERS.values())]
    axes.legend([first[name] for name in order], order, loc="lower right", frameon=False, fontsize=9)
    return figure


def solution(found: dict[str, Any]) -> Figure:
    """Held-out residual against seconds from the start of a process, of ptymesh and of each peer."""
    figure = new_figure(9.6, 3.8)
    lowest = min(point["held_out"] for case in found["cases"] for point in case["curve"])
    panels = figure.subplots(1, 2, sharey=True)
    for axes, modes in zip(panels, (1, 3), strict=True):
        for case in [one for one in found["cases"] if one["modes"] == modes]:
            name, colour = {**PEERS, "ptymesh": OURS}[case["program"]]
            points = [(point["seconds"], point["held_out"]) for point in case["curve"]]
            seconds, held = zip(*[point for point in points if math.isfinite(point[1])], strict=True)
            axes.plot(seconds, held, ".-", color=colour, label=name, linewidth=1.4, markersize=3)
        axes.set_title(f"{modes} probe mode{'s' if modes > 1 else ''}", fontsize=10)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(lowest * 0.95, lowest * 6)
        axes.set_xlabel("seconds from the start of the process")
        axes.xaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100]))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            axis(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("residual of the views held out")
    panels[0].legend(frameon=False, fontsize=9)
    return figure


def live(found: dict[str, Any]) -> Figure:
    """Error of the object against seconds from the first frame, of streams at several rates."""
    figure = new_figure(7.2, 3.8)
    axes = figure.subplots()
    streams = [one for one in found["streams"] if not one["killed"] and one["bits"] == 32]
    for stream, colour in zip(streams, ("#14557b", "#b9a06a", "#a78fa5"), strict=False):
        frames_per_s = found["views"] / stream["last_frame_s"]
        points = [(point["seconds"], point["error"]) for point in stream["pictures"]]
        points = [*(one for one in points if one[0] < stream["seconds"]), (stream["seconds"], stream["error_live"])]
        seconds, errors = zip(*points, strict=True)
        axes.plot(seconds, errors, ".-", color=colour, label=f"{frames_per_s:,.0f} frames/s came", linewidth=1.4)
        last = stream["last_frame_s"]
        axes.plot(last, np.interp(last, seconds, errors), "o", color=colour, markersize=8, fillstyle="none")
    alone = found["offline"]["error"]
    label = "all frames from the start, three uses of each"
    axes.axhline(alone, color="#888888", linewidth=1, linestyle="--", label=label)
    axes.plot([], [], "o", color="#444444", markersize=8, fillstyle="none", label="the last frame has come")
    axes.set_xlabel("seconds from the first frame")
    axes.set_ylabel("error of the object")
    axes.set_ylim(0, None)
    axes.set_xlim(0, None)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    return figure


def phase_of(result: Result, dim: float) -> tuple[np.ndarray, np.ndarray, tuple[float, float] | None, np.ndarray]:
    """Unwrapped phase of what is lit, which pixels those are, their size, and where the middle of the scan is."""
    light = illumination(result.object.shape[1:], result.probe, result.positions_px, result.weights)
    light = np.where(light > dim * light.max(), light, 0)
    image, region, pixel = prepared(result.object, result.pixel_size_m, light)
    corner = np.array([np.flatnonzero(light.any(axis=1))[0], np.flatnonzero(light.any(axis=0))[0]])
    middle = result.positions_px.mean(axis=0) + np.array(result.probe.shape[1:]) // 2
    return unwrapped_phase(image, region), region, pixel, middle - corner


def panel(
    axes: Axes, image: np.ndarray, title: str, pixel: tuple[float, float] | None, limits: tuple[float, float]
) -> None:
    """A grey picture with a scale bar."""
    label = "rad" if title.startswith("phase") else "|O|"
    image_panel(axes, image, title, ColourScale("gray", limits, label), pixel)


def write(figure: Figure, path: Path) -> None:
    """As PNG with a palette, at 90 dots per inch."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=90)
    path.parent.mkdir(exist_ok=True)
    picture = Image.open(drawn).convert("RGB")
    picture.quantize(200, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
    sys.stdout.write(f"{path}: {path.stat().st_size // 1000} kB\n")


if __name__ == "__main__":
    name, *given = sys.argv[1:]
    measured = {"speed": (speed, "peers"), "solution": (solution, "solution"), "live": (live, "live")}
    if name in measured:
        draw, written = measured[name]
        file = Path(given[0]) if given else max(MEASURED.glob(f"*-{written}.json"))
        write(draw(json.loads(file.read_text(encoding="utf-8"))), FOLDER / f"{name}.png")
    else:
        pictures = {"cryo-4dstem": cryo_4dstem, "siemens-star": siemens_star}
        write(pictures[name](Result.load(given[0])), FOLDER / f"{name}.png")
