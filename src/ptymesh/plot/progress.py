"""Figures of loss and residual against the epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ptymesh.plot.style import BLUE, GREEN, GREY, ORANGE, PURPLE, legend, logarithmic, new_figure, plain_axes

#: Colours of the lines of several unknowns.
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)


def history_figure(
    history: Mapping[str, np.ndarray],
    final_residual: float | None = None,
    stage_names: Sequence[str] | None = None,
    title: str | None = None,
    noise_floor: float | None = None,
    convergence: str | None = None,
) -> Figure:
    """Return a figure of residual and loss of every epoch, by stages, and of the change of each unknown per epoch.

    Args:
        history: columns `epoch`, `stage` (from 0), `loss`, `residual`, `held_out`, `change_*`, one value per epoch; any
            may be missing.
        final_residual: of the finished, frozen estimate; drawn beside the running one, which is summed while the
            estimate changes.
        stage_names: names of the stages; None: stage 1, stage 2 ...
        title: of the figure.
        noise_floor: smallest residual that counting noise allows.
        convergence: state of convergence in words.
    """
    columns = [name for name in ("residual", "loss") if name in history]
    moved = [name for name in history if name.startswith("change_") and np.nanmax([0, *history[name]]) > 0]
    rows = max(len(columns) + bool(moved), 1)
    figure = new_figure(7.0, 3.0 * rows, title)
    panels = np.atleast_1d(figure.subplots(rows, 1))
    for axes, name in zip(panels, columns, strict=False):
        of_residual = (final_residual, noise_floor) if name == "residual" else (None, None)
        curve_panel(axes, history, name, of_residual[0], stage_names, of_residual[1])
        if convergence and name == columns[0]:
            axes.set_title(convergence, fontsize=9, color=GREY, loc="left")
    if moved:
        _changes_panel(panels[-1], history, moved, stage_names)
    return figure


def curve_panel(
    axes: Axes,
    history: Mapping[str, np.ndarray],
    name: str,
    final_residual: float | None = None,
    stage_names: Sequence[str] | None = None,
    noise_floor: float | None = None,
) -> None:
    """Draw one column of the history against the epoch, with the stages marked.

    The residual is drawn together with that of the held-out views.

    Args:
        axes: to draw on.
        history: columns, one value per epoch.
        name: of the column.
        final_residual: of the frozen estimate, drawn at the last epoch.
        stage_names: names of the stages.
        noise_floor: smallest residual that counting noise allows.
    """
    values = np.asarray(history[name], dtype=float)
    epochs = _epochs(history, len(values))
    plain_axes(axes, "epoch", name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.plot(epochs, values, "-", color=BLUE, marker="o" if len(values) < 40 else "", markersize=3, label="running")
    held_out = np.asarray(history.get("held_out", ()), dtype=float)
    if name == "residual" and len(held_out) == len(values) and np.isfinite(held_out).any():
        axes.plot(epochs, held_out, "-", color=GREEN, linewidth=1, label="held-out views, frozen")
    if noise_floor is not None:
        axes.axhline(noise_floor, color=GREY, linewidth=0.8, linestyle=":", label=f"noise floor: {noise_floor:.4g}")
    finite = values[np.isfinite(values)]
    if finite.size and finite.min() > 0 and finite.max() > 5 * finite.min():
        logarithmic(axes)
    if final_residual is not None and len(epochs):
        axes.plot(
            epochs[-1:], [final_residual], "D", color=ORANGE, markersize=5, label=f"final, frozen: {final_residual:.4g}"
        )
    if len(axes.get_lines()) > 1:
        legend(axes, loc="upper right")
    _mark_stages(axes, epochs, np.asarray(history.get("stage", ())), stage_names)


def _changes_panel(
    axes: Axes, history: Mapping[str, np.ndarray], columns: Sequence[str], stage_names: Sequence[str] | None
) -> None:
    """Draw the change of unknowns per epoch, on one logarithmic axis."""
    epochs = _epochs(history, len(history[columns[0]]))
    plain_axes(axes, "epoch", "change per epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for name, colour in zip(columns, cycle(COLOURS), strict=False):
        values = np.asarray(history[name], dtype=float)
        label = name.removeprefix("change_").replace("_px", " (px)")
        axes.plot(epochs, np.where(values > 0, values, np.nan), "-", color=colour, linewidth=1.2, label=label)
    axes.set_yscale("log")
    legend(axes, loc="upper right")
    _mark_stages(axes, epochs, np.asarray(history.get("stage", ())), stage_names)


def _epochs(history: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    """Return the epochs, numbered through where the numbers restart in every stage."""
    epochs = np.asarray(history.get("epoch", ()))
    return epochs if len(epochs) == count and (np.diff(epochs) > 0).all() else np.arange(1, count + 1)


def _mark_stages(axes: Axes, epochs: np.ndarray, stages: np.ndarray, names: Sequence[str] | None) -> None:
    """Draw a line and a name where a new stage starts."""
    if len(stages) != len(epochs) or len(epochs) == 0:
        return
    starts = np.flatnonzero(np.append(True, stages[1:] != stages[:-1]))
    if len(starts) < 2:
        return
    # Leave space for the names below the curve.
    axes.margins(y=0.12)
    for start in starts:
        if start > 0:
            axes.axvline((epochs[start - 1] + epochs[start]) / 2, color=GREY, linewidth=0.8, linestyle="--")
        name = str(stages[start]) if stages.dtype.kind in "UO" else _stage_name(int(stages[start]), names)
        axes.annotate(
            name, (epochs[start], 0.02), xycoords=("data", "axes fraction"), fontsize=8, color=GREY,
            xytext=(2, 2), textcoords="offset points",
        )  # fmt: skip


def _stage_name(stage: int, names: Sequence[str] | None) -> str:
    return names[stage] if names is not None and 0 <= stage < len(names) else f"stage {stage + 1}"
