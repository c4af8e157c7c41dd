"""Sections of a stack: which pixels they show, at which depths, and to which scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ptymesh import plot


def columns() -> np.ndarray:
    """A potential (4, 40, 60) of one atomic column that is displaced along x by a pixel with each slice."""
    found = np.zeros((4, 40, 60))
    for depth in range(4):
        found[depth, 18, 30 + depth] = 1.0 + depth
    return found


def panels(figure: Figure) -> dict[str, Axes]:
    """The panels by the first word of their titles."""
    return {axes.get_title().split()[0]: axes for axes in figure.axes if axes.get_title()}


def inches(axes: Axes) -> tuple[float, float]:
    """Width and height of a panel."""
    box = axes.get_position()
    width, height = axes.figure.get_size_inches()
    return box.width * width, box.height * height


def test_cuts_go_through_the_strongest_pixel() -> None:
    found = plot.sections_of(columns())
    assert found.through == (18, 33)
    np.testing.assert_array_equal(found.total, columns().sum(axis=0))
    np.testing.assert_array_equal(found.along_x, columns()[:, 18])
    np.testing.assert_array_equal(found.along_y, columns()[:, :, 33])
    np.testing.assert_allclose(found.powers, 100 * np.array([1, 4, 9, 16]) / 30)


def test_cuts_go_through_a_pixel_that_is_given() -> None:
    """Pixels count from the whole object's corner, and are those of its averaged blocks where it is large."""
    light = np.zeros((40, 60))
    light[10:, 20:] = 1
    found = plot.sections_of(columns(), light, (18, 31))
    assert found.corner == (10, 20) and found.through == (8, 11)
    np.testing.assert_array_equal(found.along_x, columns()[:, 18, 20:])
    large = np.repeat(np.repeat(columns()[:2], 12, axis=1), 12, axis=2)
    blocks = plot.sections_of(large, None, (18 * 12, 31 * 12))
    assert blocks.side == 2 and blocks.through == (18 * 6, 31 * 6)
    assert blocks.along_y.max(axis=1).tolist() == [0, 2]


def test_phases_are_unwrapped_slice_by_slice() -> None:
    """A bump of 9 rad beside a ramp of 20 is drawn as such; a dark corner is blank."""
    y, x = np.indices((48, 48))
    bump = 9 * np.exp(-((y - 20) ** 2 + (x - 26) ** 2) / 40)
    slices = np.exp(1j * np.stack([bump + 20 * x / 48, 0.1 * bump]))
    light = np.ones((48, 48))
    light[:4, :4] = 0
    found = plot.sections_of(slices, light)
    assert found.through == (20, 26)
    assert found.along_x[0].max() - np.median(found.along_x[0]) > 8.5
    assert found.powers == pytest.approx([100 / 1.01, 1 / 1.01], rel=0.02)
    assert np.isnan(found.total[0, 0]) and np.isfinite(found.total[4:, 4:]).all()


@pytest.mark.parametrize(
    ("spacing", "stretch"), [(10e-10, 1.0), (0.5e-10, 5.0), (300e-10, 1 / 20)], ids=["to scale", "thin", "thick"]
)
def test_depth_has_the_scale_of_the_sum(spacing: float, stretch: float) -> None:
    """60 x 40 pixels of 0.5 Angstrom: 3 x 2 nm; the titles say by how much the depth is longer or shorter."""
    figure = plot.sections_figure(plot.sections_of(columns()), (0.5e-10, 0.5e-10), spacing)
    found = panels(figure)
    wide, high = inches(found["sum"])
    assert wide / high == pytest.approx(1.5)
    deep = inches(found["x-z"])[1]
    assert deep / wide == pytest.approx(4 * spacing * stretch / 3e-9)
    assert inches(found["x-z"])[0] == pytest.approx(wide) and inches(found["y-z"]) == pytest.approx((deep, high))
    words = {1.0: "", 5.0: "5 times longer", 1 / 20: "20 times shorter"}[stretch]
    for name in ("x-z", "y-z"):
        assert found[name].get_title().endswith(words) and ("times" in found[name].get_title()) is bool(words)


def test_axes_are_those_of_the_object() -> None:
    """Edges and cuts are in nm from the object's corner; slices lie around their depths, as in `slices_figure`."""
    light = np.zeros((40, 60))
    light[10:, 20:] = 1
    found = panels(plot.sections_figure(plot.sections_of(columns(), light), (0.5e-10, 0.5e-10), 10e-10))
    assert found["sum"].images[0].get_extent() == pytest.approx([1.0, 3.0, 2.0, 0.5])
    assert found["x-z"].images[0].get_extent() == pytest.approx([1.0, 3.0, 3.5, -0.5])
    assert found["y-z"].images[0].get_extent() == pytest.approx([-0.5, 3.5, 2.0, 0.5])
    assert found["x-z"].get_title() == "x-z at y = 0.925 nm" and found["y-z"].get_title() == "y-z at x = 1.675 nm"
    image = np.asarray(found["y-z"].images[0].get_array())
    assert image.shape == (30, 4) and image[8].tolist() == [0, 0, 0, 4]
    bars = found["power"].patches
    assert [bar.get_y() + bar.get_height() / 2 for bar in bars] == pytest.approx([0, 1, 2, 3])


def test_without_units_depth_is_in_slices(stack: Any) -> None:
    found = panels(plot.sections_figure(plot.sections_of(stack.object, stack.illumination)))
    assert found["x-z"].get_ylabel() == "z (slices)" and found["x-z"].get_xlabel() == "x (px)"
    assert found["x-z"].get_ylim() == (5.5, 0.5) and "times" not in found["x-z"].get_title()
