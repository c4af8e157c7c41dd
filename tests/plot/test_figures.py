"""Every figure is drawn without a warning, with nothing cut off and no text over another."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from ptymesh import plot
from ptymesh.compare import align, illuminated, moves_apart, power_spectrum, ring_correlation
from ptymesh.physics.beam.caustic import caustic_of
from ptymesh.physics.beam.probes import aberrated, kb_mirror
from ptymesh.physics.beam.pupil import fit_lens, pupil_mask, pupil_of
from ptymesh.plot import style
from ptymesh.plot.patterns import radial_means


def texts(figure: Figure) -> list[tuple[str, Bbox]]:
    """All text that is seen, with its place on the canvas."""
    FigureCanvasAgg(figure).draw()  # once, as `save_figure` does; savefig would do so twice, first for the layout
    hidden: set[int] = set()
    for axes in figure.findobj(Axes):
        frame = axes.get_window_extent()
        for axis, low, high in ((axes.xaxis, frame.x0, frame.x1), (axes.yaxis, frame.y0, frame.y1)):
            ticks = axis.get_ticklabels(which="both")
            for tick in ticks:
                box = tick.get_window_extent()
                middle = (box.x0 + box.x1) / 2 if axis is axes.xaxis else (box.y0 + box.y1) / 2
                if not axes.axison or not low - 1 <= middle <= high + 1:
                    hidden.add(id(tick))
    shown = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    return [(text.get_text(), text.get_window_extent()) for text in shown if id(text) not in hidden]


def check(figure: Figure) -> None:
    """Nothing cut off, no text over another."""
    width, height = figure.canvas.get_width_height()
    found = texts(figure)
    for name, box in found:
        inside = box.x0 > -2 and box.y0 > -2 and box.x1 < width + 2 and box.y1 < height + 2
        assert inside, f"{name!r} is cut off"
    for (one, first), (other, second) in combinations(found, 2):
        overlap = Bbox.intersection(first, second)
        assert overlap is None or min(overlap.width, overlap.height) < 2, f"{one!r} lies over {other!r}"


def patterns() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    y, x = np.indices((24, 32))
    model = 300 * np.exp(-((y - 12) ** 2 + (x - 16) ** 2) / 20)
    names = ("typical of 1024: view 123, residual 0.0111", "worst of 1024: view 999, residual 0.094")
    return {name: (np.fft.ifftshift(rng.poisson(model)).astype(float), np.fft.ifftshift(model)) for name in names}


def mean_of_patterns() -> tuple[np.ndarray, np.ndarray]:
    measured, model = (np.mean(one, axis=0) for one in zip(*patterns().values(), strict=True))
    measured[3, 5:9] = np.nan
    return measured, model


def mean_pattern(step_rad: tuple[float, float] | None, is_electron: bool = False) -> Figure:
    return plot.mean_pattern_figure(*mean_of_patterns(), 256, step_rad, is_electron=is_electron)


def vectors(e: Any, axes: Any, pixel: tuple[float, float] | None = None) -> Figure:
    return plot.view_vectors_figure(e.positions_px * axes, e.positions_px - e.nominal_px, pixel, "descan")


def comparison(e: Any, **options: Any) -> Figure:
    rng = np.random.default_rng(0)
    noisy = e.object[0] * (1 + 0.3 * rng.normal(size=e.object[0].shape))
    found = align(noisy, e.object[0], illuminated(e.illumination))
    pixel = options.get("pixel_size_m")
    rings = ring_correlation(found.aligned, found.reference, found.region, pixel)
    return plot.comparison_figure(found.aligned, found.reference, found.region, rings, **options)


@dataclass(frozen=True)
class Transfer:
    """A transfer function that falls below 1/e in pixel units or in metres."""

    unit: str
    frequency: np.ndarray
    value: np.ndarray
    resolution: float
    at_limit: bool = False


def resolution(e: Any, **options: Any) -> Figure:
    """Two noisy copies of an object, with a transfer function."""
    rng = np.random.default_rng(1)
    shape = e.object[0].shape
    one, other = (e.object[0] + 0.3 * (rng.normal(size=shape) + 1j * rng.normal(size=shape)) for _ in range(2))
    rings = ring_correlation(one, other, None, options.get("pixel_size_m"))
    value = np.exp(-3 * rings.frequency / rings.frequency[-1])
    transfer = Transfer(rings.unit, rings.frequency, value, float(3 / rings.frequency[-1]))
    region = np.ones(shape, dtype=bool)
    return plot.resolution_figure(one, other, region, rings, transfer, names=("half 1", "half 2"), **options)


def caustic(e: Any, focus_m: tuple[float, float], title: str | None = None) -> Figure:
    probe = kb_mirror((64, 64), (1e-8, 1e-8), 1.5e-10, (1e-4, 2e-4), (0.05, 0.05), focus_m)
    return plot.caustic_figure(caustic_of(probe[None], (1e-8, 1e-8), 1.5e-10), title)


def moves(recorded: np.ndarray, refined: np.ndarray, pixel: tuple[float, float] | None = None) -> Figure:
    return plot.moves_figure(recorded, refined, moves_apart(recorded, refined), pixel)


def spectrum(e: Any, pixel: tuple[float, float] | None, flat: bool = False) -> Figure:
    phase = 0.0 * e.object[0].real if flat else plot.unwrapped_phase(e.object[0])
    return plot.spectrum_figure(power_spectrum(phase, None, pixel), "power spectrum")


def sections(e: Any, share: tuple[float, float], spacing_m: float, title: str | None = None) -> Figure:
    """Of five slices, of which a part of the height and of the width are shown."""
    height, width = (int(n * part) for n, part in zip(e.object.shape[-2:], share, strict=True))
    slices = np.repeat(e.object[:, :height, :width], 5, axis=0)
    return plot.sections_figure(plot.sections_of(slices), (2e-11, 2e-11), spacing_m, title=title)


def pupil(wave: np.ndarray, pixel: tuple[float, float], *, is_electron: bool = False) -> Figure:
    found = pupil_of(wave)
    lens = fit_lens(found, pixel, 1.97e-12)
    return plot.pupil_figure(found, lens.inside, pixel, 1.97e-12, lens, is_electron=is_electron)


def lens() -> np.ndarray:
    aberrations = {"C10": -15e-9, "C12": [4e-9, 0.5], "C21": [50e-9, -0.7], "C30": 2e-6}
    return aberrated((96, 96), (2e-11, 2e-11), 1.97e-12, 0.025, aberrations).numpy()


def overview(e: Any, **options: Any) -> Figure:
    return plot.overview_figure(e.object, e.probe, e.positions_px, e.illumination, e.history, **options)


FIGURES: dict[str, Callable[[Any], Figure]] = {
    "object": lambda e: plot.object_figure(e.object, e.pixel_size_m, e.illumination, "star, 60 views"),
    "object in pixels": lambda e: plot.object_figure(e.object),
    "wide object": lambda e: plot.object_figure(e.object[0, :30]),
    "tall object": lambda e: plot.object_figure(e.object[0, :, :30], (5e-11, 5e-11)),
    "oblong pixels": lambda e: plot.object_figure(e.object, (1e-8, 3e-8)),
    "probe": lambda e: plot.probe_figure(e.probe, e.pixel_size_m),
    "many modes": lambda e: plot.probe_figure(np.concatenate([e.probe] * 5)),
    "one mode": lambda e: plot.probe_figure(e.probe[:1]),
    "dark probe": lambda e: plot.probe_figure(0 * e.probe),
    "coverage": lambda e: plot.coverage_figure(e.illumination, e.positions_px + 15.5, e.pixel_size_m, "coverage"),
    "moved": lambda e: plot.positions_figure(e.positions_px, e.nominal_px, e.pixel_size_m),
    "unmoved": lambda e: plot.positions_figure(e.positions_px, e.positions_px + 5),
    "a line scan": lambda e: plot.positions_figure(e.positions_px * [0, 1], e.nominal_px * [0, 1]),
    "one view": lambda e: plot.positions_figure(e.positions_px[:1]),
    "moves": lambda e: moves(e.nominal_px, e.positions_px, e.pixel_size_m),
    "moves of a line scan": lambda e: moves(e.nominal_px * [0, 1], e.positions_px * [0, 1]),
    "moves of all together": lambda e: moves(e.nominal_px, e.nominal_px + 5),
    "history": lambda e: plot.history_figure(e.history, 0.013, title="history"),
    "one epoch": lambda e: plot.history_figure({"loss": np.array([3.0])}),
    "losses below zero": lambda e: plot.history_figure({"loss": np.array([3.0, -1.0, np.nan])}),
    "no history": lambda e: plot.history_figure({}),
    "patterns": lambda e: plot.patterns_figure(patterns(), np.arange(24 * 32).reshape(24, 32) > 50, title="patterns"),
    "dark patterns": lambda e: plot.patterns_figure({"dark": (np.zeros((8, 8)), np.zeros((8, 8)))}),
    "masked patterns": lambda e: plot.patterns_figure({"bad": (np.full((8, 8), -1.0), np.ones((8, 8)))}),
    "comparison": lambda e: comparison(e, pixel_size_m=e.pixel_size_m, names=("a.h5", "b.h5"), title="a and b"),
    "comparison in pixels": lambda e: comparison(e),
    "resolution": lambda e: resolution(e, pixel_size_m=e.pixel_size_m, title="two halves"),
    "resolution in pixels": lambda e: resolution(e),
    "caustic": lambda e: caustic(e, (40e-6, -60e-6), title="a beam"),
    "caustic at its waist": lambda e: caustic(e, (0.0, 0.0)),
    "spectrum": lambda e: spectrum(e, (1.2e-11, 1.2e-11)),
    "spectrum in pixels": lambda e: spectrum(e, None),
    "spectrum of nothing": lambda e: spectrum(e, e.pixel_size_m, flat=True),
    "sections": lambda e: sections(e, (1, 0.6), 1e-10, "a stack"),
    "thin sections": lambda e: sections(e, (1, 1), 1e-11),
    "sections of a thick and narrow stack": lambda e: sections(e, (1, 0.4), 5e-9),
    "sections in slices": lambda e: plot.sections_figure(plot.sections_of(np.repeat(e.object, 20, axis=0))),
    "pupil of electrons": lambda e: pupil(lens(), (2e-11, 2e-11), is_electron=True),
    "pupil of light": lambda e: pupil(lens(), (2e-11, 2e-11)),
    "pupil that is no lens": lambda e: pupil(np.random.default_rng(0).normal(size=(48, 48)) + 0j, (2e-11, 2e-11)),
    "pupil in pixels": lambda e: plot.pupil_figure(pupil_of(e.probe[0]), pupil_mask(pupil_of(e.probe[0]))),
    "mean pattern": lambda e: mean_pattern((1.5e-3, 1.2e-3)),
    "mean pattern of elongated pixels": lambda e: mean_pattern((1.5e-3, 1.5e-7)),
    "mean pattern of a near field": lambda e: plot.mean_pattern_figure(*mean_of_patterns(), 16, None, shift=False),
    "mean pattern without light": lambda e: plot.mean_pattern_figure(np.zeros((8, 8)), np.zeros((8, 8)), 3),
    "vectors": lambda e: vectors(e, 1, e.pixel_size_m),
    "vectors of a line scan": lambda e: vectors(e, [0, 1]),
    "vectors that are none": lambda e: plot.view_vectors_figure(e.positions_px, 0 * e.positions_px, None, "descan"),
    "overview": lambda e: overview(e, pixel_size_m=e.pixel_size_m, final_residual=0.0131, title="overview"),
    "overview in pixels": lambda e: overview(e, title="overview"),
}


def test_the_check_itself() -> None:
    """It sees titles that run into each other, and one that leaves the canvas."""
    for title, complaint in (("a title that is much too long for it", "lies over"), ("long " * 60, "cut off")):
        figure = plot.probe_figure(np.ones((4, 8, 8), complex))
        for axes in figure.axes[1:3]:
            axes.set_title(title)
        with pytest.raises(AssertionError, match=complaint):
            check(figure)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", FIGURES)
def test_figure_is_readable(name: str, example: Any) -> None:
    check(FIGURES[name](example))


def test_a_poor_verdict_is_red(example: Any) -> None:
    figure = overview(example, verdict="poor", reason="12 times what counting leaves")
    (word,) = (text for text in figure.texts if text.get_text() == "POOR")
    red, green, blue = to_rgb(word.get_color())
    assert red > 0.6 > 0.3 > max(green, blue)
    assert figure.get_supxlabel() == "poor: 12 times what counting leaves"
    assert not [text for text in overview(example, verdict="good").texts if text.get_text() == "GOOD"]


def test_slices(stack: Any) -> None:
    figure = plot.slices_figure(stack.object, stack.pixel_size_m, stack.illumination, 2e-6)
    check(figure)
    titles = [text for text, _ in texts(figure) if text.startswith("slice")]
    assert titles[:2] == ["slice 1 of 5, met first", "slice 2 of 5 at 2 µm"] and len(titles) == 5
    check(plot.object_figure(stack.object, stack.pixel_size_m, stack.illumination))
    many = np.concatenate([stack.object] * 5)
    assert "slice 25 of 25" in [text for text, _ in texts(plot.slices_figure(many))]


def test_numbers_on_pixels_are_drawn_part_by_part() -> None:
    light = np.ones((12, 16))
    light[:3] = 0
    planes = np.stack([np.full((12, 16), 1 + 2j), np.full((12, 16), 3 - 4j)])
    figure = plot.field_figure(planes, None, light, "change")
    panels = [axes for axes in figure.axes if axes.get_images()]
    assert [axes.get_title() for axes in panels] == 2 * ["real part", "imaginary part"]
    shown = [np.asarray(axes.get_images()[0].get_array()) for axes in panels]
    assert [image.shape for image in shown] == 4 * [(9, 16)]
    assert [float(image[0, 0]) for image in shown] == [1, 2, 3, -4]
    assert len([axes for axes in plot.field_figure(planes.real).axes if axes.get_images()]) == 2


def test_powers_are_said(example: Any) -> None:
    """Gaussian modes x f, y f of these factors: 92, 6 and 2 %."""
    powers = plot.powers_percent(example.probe)
    assert powers.sum() == pytest.approx(100)
    names = [text for text, _ in texts(plot.probe_figure(example.probe))]
    assert f"mode 2: {powers[1]:.3g} %" in names


def test_colours_of_waves() -> None:
    """Positive real is red, and dark is dark."""
    red, cyan, black = style.colour_of(np.array([1.0 + 0j, -1.0, 0.0]))
    np.testing.assert_allclose(red, [1, 0, 0], atol=1e-9)
    np.testing.assert_allclose(cyan, [0, 1, 1], atol=1e-9)
    np.testing.assert_allclose(black, 0)


def test_stages_are_named(example: Any) -> None:
    numbered = {**example.history, "stage": np.repeat([0, 1], [20, 30]), "epoch": np.r_[1:21, 1:31]}
    named = [text for text, _ in texts(plot.history_figure(numbered, stage_names=["rpie", "mpie"]))]
    assert named.count("rpie") == named.count("mpie") == 2
    unnamed = [text for text, _ in texts(plot.history_figure(numbered))]
    assert unnamed.count("stage 2") == 2
    axes = plot.history_figure(numbered).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), np.arange(1, 51))


def test_the_pupil_has_its_coefficients_in_a_table() -> None:
    """With units and degrees; where low orders explain nothing there is a sentence instead. Axes: mrad or 1/um."""
    figure = pupil(lens(), (2e-11, 2e-11), is_electron=True)
    (table,) = (axes.tables[0] for axes in figure.axes if axes.tables)
    cells = [[table[row, column].get_text().get_text() for column in range(3)] for row in range(1, 5)]
    assert cells == [
        ["C10 (minus the defocus)", "-15 nm", ""],
        ["C12 (astigmatism)", "4 nm", "28.6°"],
        ["C21 (coma)", "50 nm", "-40.1°"],
        ["C30 (Cs)", "2 µm", ""],
    ]
    shown = figure.axes[0]
    assert shown.get_xlabel() == "x (mrad)" and 25 < shown.get_xlim()[1] < 35
    light = pupil(lens(), (2e-11, 2e-11)).axes[0]
    assert light.get_xlabel() == "x (1/µm)" and light.get_xlim()[1] == pytest.approx(
        shown.get_xlim()[1] / 1.97e-12 * 1e-9
    )
    noise = pupil(np.random.default_rng(0).normal(size=(48, 48)) + 0j, (2e-11, 2e-11))
    assert not any(axes.tables for axes in noise.axes)
    assert any("low orders leave" in text for text, _ in texts(noise))


def test_the_information_limit_is_a_circle(example: Any) -> None:
    """Frequencies of 12 pm pixels are in 1/Angstrom, and so is the period in the title."""
    found = power_spectrum(plot.unwrapped_phase(example.object[0]), None, (1.2e-11, 1.2e-11))
    left, right = plot.spectrum_figure(found).axes[:2]
    (circle,) = left.patches
    assert found.limit is not None and circle.get_radius() == pytest.approx(found.limit * 1e-10)
    assert left.get_xlabel() == "x (1/Å)" and right.get_title() == f"information limit {1e10 / found.limit:.3g} Å"
    assert left.images[0].get_extent()[1] == pytest.approx(59.5 / 120 / 0.12)


def test_radial_means_are_those_of_rings() -> None:
    """A cone of r + 1 on oblong pixels is r + 1, up to what a ring's width makes of it; blank pixels do not count."""
    y, x = (np.indices((40, 60)) - np.array([20, 30])[:, None, None]) * np.array([2.0, 1.0])[:, None, None]
    image = np.hypot(y, x) + 1
    image[:, 30:33] = np.nan
    radius, mean = radial_means(image, (2.0, 1.0))
    np.testing.assert_array_equal(radius, np.arange(0, 31, 2))
    assert mean[0] == pytest.approx(2, abs=0.1), "left of the blank pixels there is one at a distance of 1"
    np.testing.assert_allclose(mean[2:], radius[2:] + 1, atol=0.3)
    assert np.isnan(radial_means(np.where(np.hypot(y, x) < 5, np.nan, 1.0), (2.0, 1.0))[1][:2]).all()


def test_the_mean_pattern_is_over_angles(example: Any) -> None:
    """Its curves reach to the nearer edge, and the title has the residual of the mean."""
    figure = mean_pattern((1.5e-3, 1.2e-3), is_electron=True)
    (curves,) = (axes for axes in figure.axes if axes.get_xlabel() == "angle (mrad)")
    assert curves.lines[0].get_xdata()[-1] == pytest.approx(18, abs=1.5)
    measured, model = mean_of_patterns()
    good = np.isfinite(measured)
    residual = ((np.sqrt(model) - np.sqrt(measured))[good] ** 2).sum() / measured[good].sum()
    assert figure.get_suptitle() == f"position-averaged pattern (PACBED) of 256 views, residual {residual:.3g}"
    assert mean_pattern(None).get_suptitle() == f"mean pattern of 256 views, residual {residual:.3g}", "of X-rays"


@pytest.mark.parametrize("lowest", [0.1, 30.0, 400.0])
def test_colour_bars_of_counts_have_labels(lowest: float) -> None:
    """Within a decade powers of ten are none, or one: the ticks between them are labelled then."""
    counts = np.geomspace(lowest, 900.0, 64).reshape(8, 8)
    figure = plot.mean_pattern_figure(counts, counts, 9)
    figure.canvas.draw()
    bar = next(axes for axes in figure.axes if axes.get_ylabel() == "counts")
    low, high = bar.get_ylim()
    labels = zip(bar.yaxis.get_ticklocs(), bar.yaxis.get_ticklabels(), strict=True)
    minor = zip(bar.yaxis.get_minorticklocs(), bar.yaxis.get_ticklabels(minor=True), strict=True)
    assert sum(low <= place <= high and bool(label.get_text()) for place, label in [*labels, *minor]) >= 2


def test_vectors_point_the_right_way() -> None:
    """Down and right is positive y and x; a mean that all have in common is drawn, too."""
    place = np.stack(np.meshgrid(np.arange(5.0), np.arange(5.0), indexing="ij"), axis=-1).reshape(-1, 2) * 10
    vectors = np.full((25, 2), [0.3, 0.4])
    axes = plot.view_vectors_figure(place, vectors, (1e-9, 1e-9), "descan").axes[0]
    arrows = axes.collections[0]
    assert set(arrows.V) == {0.3} and set(arrows.U) == {0.4} and axes.yaxis_inverted()
    assert axes.get_title() == "descan of 25 views: 0.5 px rms, at most 0.5 px"
    assert 0.5 / arrows.scale == pytest.approx(1.2 * 8), "arrows are about as long as views are apart, 8 nm on average"


def test_what_is_not_lit_is_blank(example: Any) -> None:
    image = plot.object_figure(example.object, None, example.illumination).axes[0].images[0].get_array()
    assert np.ma.getmaskarray(np.ma.masked_invalid(image)).any()


def test_scan_that_only_shifted_did_not_move(example: Any) -> None:
    """A common translation of all positions is not a refinement."""
    axes = plot.positions_figure(example.positions_px, example.positions_px - 7.5).axes[0]
    assert axes.get_title() == "60 views, as given"


def test_displacements_point_the_right_way() -> None:
    """Down and right is positive y and x."""
    nominal = np.stack(np.meshgrid(np.arange(5.0), np.arange(5.0), indexing="ij"), axis=-1).reshape(-1, 2) * 10
    refined = nominal.copy()
    refined[0] += [0.5, 0.25]
    axes = plot.positions_figure(refined, nominal).axes[0]
    arrows = axes.collections[0]
    moved = [0.5 * 24 / 25, 0.25 * 24 / 25]
    gain = arrows.V[0] / moved[0]
    np.testing.assert_allclose([arrows.U[0], arrows.V[0]], [moved[1] * gain, moved[0] * gain])
    assert gain >= 1 and axes.yaxis_inverted()


@pytest.mark.parametrize(
    ("length", "rounded", "name"),
    [(3.4e-7, 2e-7, "200 nm"), (9.9e-7, 5e-7, "500 nm"), (1.2e-6, 1e-6, "1 µm"), (7e-11, 5e-11, "0.05 nm"),
     (2.6e-3, 2e-3, "2 mm"), (1e-6, 1e-6, "1 µm")],
)  # fmt: skip
def test_scale_bars_are_round(length: float, rounded: float, name: str) -> None:
    assert style.round_length(length) == pytest.approx(rounded)
    assert style.length_name(style.round_length(length)) == name


def test_large_images_are_averaged() -> None:
    image = np.arange(24.0).reshape(4, 6)
    small, side = style.blocks(image, 3)
    assert side == 2
    np.testing.assert_allclose(small, [[3.5, 5.5, 7.5], [15.5, 17.5, 19.5]])
    assert style.scaled((1e-9, 2e-9), side) == (2e-9, 4e-9)


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_formats(suffix: str, example: Any) -> None:
    file = io.BytesIO()
    plot.probe_figure(example.probe[:1]).savefig(file, format=suffix)
    assert len(file.getvalue()) > 1000
