"""Figures of the loss and the residual, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ptymesh.plot.style import BLUE, GREY, ORANGE, legend, logarithmic, new_figure, plain_axes


def history_figure(
    history: Mapping[str, np.ndarray],
    final_residual: float | None = None,
    stage_names: Sequence[str] | None = None,
    title: str | None = None,
) -> Figure:
    """Residual and loss of every epoch, stage by stage.

    Args:
        history: columns `epoch`, `stage` (from 0), `loss`, `residual`, one value per epoch (those that there are).
        final_residual: of the finished estimate, frozen: drawn beside the running one, which is gathered on the way.
        stage_names: what the stages are called; None: stage 1, stage 2 ...
    """
    columns = [name for name in ("residual", "loss") if name in history]
    figure = new_figure(7.0, 3.0 * max(len(columns), 1), title)
    for axes, name in zip(np.atleast_1d(figure.subplots(max(len(columns), 1), 1)), columns, strict=False):
        curve_panel(axes, history, name, final_residual if name == "residual" else None, stage_names)
    return figure


def curve_panel(
    axes: Axes,
    history: Mapping[str, np.ndarray],
    name: str,
    final_residual: float | None = None,
    stage_names: Sequence[str] | None = None,
) -> None:
    """One column of the history against the epoch, with the stages marked."""
    values = np.asarray(history[name], dtype=float)
    # Epochs may be counted anew in every stage: then they are counted through.
    given = np.asarray(history.get("epoch", ()))
    epochs = given if len(given) == len(values) and (np.diff(given) > 0).all() else np.arange(1, len(values) + 1)
    plain_axes(axes, "epoch", name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.plot(epochs, values, "-", color=BLUE, marker="o" if len(values) < 40 else "", markersize=3, label="running")
    finite = values[np.isfinite(values)]
    if finite.size and finite.min() > 0 and finite.max() > 5 * finite.min():
        logarithmic(axes)
    if final_residual is not None and len(epochs):
        axes.plot(
            epochs[-1:], [final_residual], "D", color=ORANGE, markersize=5, label=f"final, frozen: {final_residual:.4g}"
        )
        legend(axes, loc="upper right")
    _mark_stages(axes, epochs, np.asarray(history.get("stage", ())), stage_names)


def _mark_stages(axes: Axes, epochs: np.ndarray, stages: np.ndarray, names: Sequence[str] | None) -> None:
    """A line and a name where a new stage begins."""
    if len(stages) != len(epochs) or len(epochs) == 0:
        return
    starts = np.flatnonzero(np.append(True, stages[1:] != stages[:-1]))
    if len(starts) < 2:
        return
    # Room for the names below the curve.
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
