"""Selection of the views of a file: a range, without some by number, mask, row or column; and the middle of a scan."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.arrays import load_array
from ptymesh.io.options import DataOptions


def selected_views(count: int, raster: tuple[int, int] | None, data: DataOptions, without: Sequence[int]) -> np.ndarray:
    """Return the views (n,) of the file that are used, before `central`.

    Args:
        count: views of the file.
        raster: (rows, columns) in which they lie; None: they lie in none.
        data: of the recipe.
        without: further views that are left out.

    Raises:
        BadInput: a view, row or column is named that is not there, a mask has another length, or none is left.
    """
    views = data.views
    selected = np.arange(count)[views.start : views.stop : views.step]
    if missing_views := [view for view in views.without if view >= count]:
        raise BadInput(
            f"data.views.without names view {missing_views[0]}, and {data.path} has {count}, counted from 0; "
            "remove that one."
        )
    selected = np.setdiff1d(selected, [*views.without, *without])
    if views.mask is not None:
        mask = load_array(views.mask, "data.views.mask", most=count + 1000, follow=data.follow).reshape(-1)
        if len(mask) != count:
            raise BadInput(f"data.views.mask has {len(mask)} values, and {data.path} has {count} views; give one each.")
        selected = selected[mask[selected] != 0]
    for axis, name, lines in ((0, "row", views.without_rows), (1, "column", views.without_columns)):
        if not lines:
            continue
        if raster is None or math.prod(raster) != count:
            raise BadInput(
                f"data.views.without_{name}s counts {name}s of a raster, and the {count} views of {data.path} lie in "
                f"{raster or 'none'}; set data.frames.shape, or name views in data.views.without."
            )
        if max(lines) >= raster[axis]:
            raise BadInput(f"data.views.without_{name}s names {name} {max(lines)}, and there are {raster[axis]}.")
        selected = selected[~np.isin(np.divmod(selected, raster[1])[axis], lines)]
    if not len(selected):
        raise BadInput(f"data.views leaves none of the {count} views of {data.path}; check start, stop and without.")
    return selected


def central(positions: np.ndarray, selected: np.ndarray, count: int | None) -> np.ndarray:
    """Return the selected views that lie nearest to the middle of the selected ones.

    Args:
        positions: (N, 2) of all views, as stored, so that the choice does not depend on how a recipe turns the scan.
        selected: (n,) int64, ascending.
        count: number of views that are returned; None: all.
    """
    if count is None or count >= len(selected):
        return selected
    places = positions[selected]
    squared = ((places - places.mean(axis=0)) ** 2).sum(axis=1)
    nearest = np.argsort(squared, kind="stable")[:count]
    return selected[np.sort(nearest)]
