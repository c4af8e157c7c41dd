"""ptymesh inspect: contents of a data set, and whether they are sound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ptymesh.io.prepare.inspection import InspectionReport

FIGURES = (".png", ".pdf", ".svg", ".jpg")
Lines = Iterator[tuple[str, str]]


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Data set, or a recipe that names one.")],
    figure: Annotated[
        Path | None, typer.Option(metavar="OUT.png", help="Draw patterns, mask, scan, intensity.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="data.KEY=VALUE or positions.KEY=VALUE.")
    ] = None,
    template: Annotated[
        bool, typer.Option("--template", help="Print a recipe with what the file says, and what it does not say.")
    ] = False,
) -> None:
    """Tell geometry, sampling, overlap, dose and bad pixels of a data set, and what is suspicious."""
    from ptymesh.cli.dataset import load_dataset
    from ptymesh.errors import BadInput
    from ptymesh.io.prepare.inspection import summarise

    if figure is not None and figure.suffix.lower() not in FIGURES:
        raise BadInput(f"--figure {figure} has an unknown ending; it should be one of {' '.join(FIGURES)}.")
    if template:
        from ptymesh.cli.template import recipe_template

        typer.echo(recipe_template(file, set_ or ()), nl=False)
        return
    measurement = load_dataset(file, set_ or ())
    summary = summarise(measurement)
    if json:
        from json import dumps

        typer.echo(dumps(summary.as_json(), indent=2))
    else:
        _print(summary)
    if figure is not None:
        from ptymesh.plot.inspection import ShownPatterns, ShownScan, inspection_figure
        from ptymesh.plot.saving import save_figure

        drawing = inspection_figure(
            f"{summary.name}: {summary.views} views",
            ShownPatterns(summary.mean_pattern, summary.example_pattern, summary.odd),
            ShownScan(
                measurement.positions,
                summary.totals,
                summary.object_pixel_m,
                summary.probe_diameter_px,
                summary.window,
            ),
        )
        save_figure(drawing, figure, dpi=110, bbox_inches="tight")


def _print(s: InspectionReport) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from ptymesh.run_folder.terminal import Terminal

    console = Terminal(highlight=False)
    console.print(Text(f"{s.name}  ({s.path})", style="bold"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in (*_optics(s), *_scan(s), *_counts(s)):
        table.add_row(name, Text(value))
    console.print(Padding(table, (1, 0)))
    for note in s.notes:
        console.print(Text(f"Note: {note}"))
    for sentence in s.suspicious:
        console.print(Text(f"Suspicious: {sentence}", style="yellow"))
    if not s.suspicious:
        console.print(Text("Nothing suspicious.", style="green"))


def _optics(s: InspectionReport) -> Lines:
    yield "views", f"{s.views}, windows of {s.window[0]} x {s.window[1]} pixels, {s.dtype}"
    beam = {"photon": "X-ray", "electron": "electron", None: "unknown radiation"}[s.radiation]
    energy = "" if s.energy_eV is None else f", {s.energy_eV / 1e3:.6g} keV"
    wavelength = "unknown wavelength" if s.wavelength_m is None else f"wavelength {_length(s.wavelength_m)}"
    yield "beam", f"{beam}{energy}, {wavelength}"
    words = [s.propagation.replace("_", " ")]
    if s.distance_m is not None:
        words.append(f"detector at {_length(s.distance_m)}")
    if s.focus_distance_m is not None:
        words.append(f"focus {_length(s.focus_distance_m)} before the sample")
    if s.detector_pixel_m is not None:
        words.append(f"pixel {_pair(s.detector_pixel_m)}")
    yield "detector", ", ".join(words)
    yield "object pixel", "unknown (pixel units)" if s.object_pixel_m is None else _pair(s.object_pixel_m)


def _scan(s: InspectionReport) -> Lines:
    def size(pixels: float) -> str:
        metres = "" if s.object_pixel_m is None else f" ({_length(pixels * math.prod(s.object_pixel_m) ** 0.5)})"
        return f"{pixels:.3g} px{metres}"

    extent = f"{s.extent_px[0]:.4g} x {s.extent_px[1]:.4g} px"
    if s.field_of_view_m is not None:
        extent += f" ({_length(s.field_of_view_m[0])} x {_length(s.field_of_view_m[1])})"
    yield "scan", f"{extent}, step {size(s.step_px)}" if s.views > 1 else "a single view"
    if not s.probe_diameter_px > 0:  # without counts nothing follows from the diameter
        yield "probe diameter", "not known: neither the file nor the patterns tell it"
        return
    origin = {"file": "probe in the file", "speckle": "estimated from the speckles", "window": "whole window lit"}
    modes = f", {s.probe_modes} mode{'s' * (s.probe_modes > 1)}" if s.probe_modes else ""
    yield "probe diameter", f"{size(s.probe_diameter_px)}, {origin[s.probe_diameter_from]}{modes}"
    yield "overlap", f"{s.overlap:.0%} of the diameter, {s.views_per_point:.3g} views on each point"
    if s.propagation == "far_field":
        yield "oversampling", f"{s.oversampling:.3g} (window / probe diameter; 2 samples well)"


def _counts(s: InspectionReport) -> Lines:
    note = "" if s.whole_counts else ", not whole numbers"
    yield "counts", f"{s.counts_per_view:.5g} per view, {s.counts_per_pixel:.3g} per pixel{note}"
    if s.e_per_A2 is not None:
        yield "dose", f"{s.e_per_A2:.3g} e/A^2"
    elif s.counts_per_m2 is not None:
        yield "fluence", f"{s.counts_per_m2 * 1e-12:.3g} counts/um^2"
    yield (
        "range",
        f"0 to {s.peak_counts:.6g} ({s.values_at_peak} x), {s.zeros:.0%} zeros"
        + (f", {s.missing:.2%} missing" if s.missing else ""),
    )
    odd = ", ".join(f"{len(pixels)} {kind}" for kind, pixels in (("hot", s.hot), ("dead", s.dead), ("stuck", s.stuck)))
    yield "pixels", f"{s.masked} masked; unmasked but odd: {odd}"
    if s.counts_per_view > 0:
        yield "intensity", f"spread {s.intensity_rms:.1%} rms, drift {s.intensity_drift:+.1%} over the scan"
    if s.beam_offset_px is not None:
        yield "beam centre", f"{s.beam_offset_px[0]:+d}, {s.beam_offset_px[1]:+d} px off the middle (y, x)"


def _length(metres: float) -> str:
    """Format a length with the prefix that leaves one to three digits before the point, pm at the least."""
    for factor, unit in ((1.0, "m"), (1e-3, "mm"), (1e-6, "um"), (1e-9, "nm")):
        if abs(metres) >= factor:
            return f"{metres / factor:.4g} {unit}"
    return f"{metres / 1e-12:.4g} pm"


def _pair(pair: tuple[float, float]) -> str:
    y, x = pair
    return _length(y) if math.isclose(y, x, rel_tol=1e-6) else f"{_length(y)} x {_length(x)} (y, x)"
