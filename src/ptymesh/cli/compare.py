"""ptymesh compare: how far two results agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ptymesh.cli.launching import result_file

if TYPE_CHECKING:
    from ptymesh.compare import Comparison

FIGURES = (".png", ".pdf", ".svg")


def command(
    a: Annotated[Path, typer.Argument(metavar="A.h5", parser=result_file, help="Result, or a run's folder.")],
    b: Annotated[
        Path, typer.Argument(metavar="B.h5", parser=result_file, help="Result (or truth) that A is held against.")
    ],
    figure: Annotated[
        Path | None, typer.Option(metavar="OUT.png", help="Draw both objects, their difference and the correlation.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Tell how two results differ once phase, scale, ramp and shift are removed, and to which resolution they agree.

    The resolution is where the Fourier ring correlation falls below the 1/2-bit threshold. Where A turns out to be
    the twin of B (turned by 180 degrees and conjugated), that is said, and the twin is compared.
    """
    from ptymesh.compare import compare_results
    from ptymesh.errors import BadInput
    from ptymesh.files import target_of
    from ptymesh.io.results import Result

    if figure is not None:
        target_of(figure)
    if figure is not None and figure.suffix.lower() not in FIGURES:
        raise BadInput(f"--figure {figure} has an unknown ending; it should be one of {' '.join(FIGURES)}.")
    comparison = compare_results(Result.load(a), Result.load(b))
    if json:
        from json import dumps

        typer.echo(dumps({"a": str(a), "b": str(b), **comparison.summary()}, indent=2))
    else:
        for name, value in _lines(comparison):
            typer.echo(f"{name:<11} {value}")
        for note in comparison.notes:
            typer.echo(f"Note: {note}")
    if figure is not None:
        names = (a.name, b.name) if a.name != b.name else (str(a), str(b))
        draw_comparison(comparison, figure, names)
        typer.echo(str(figure), err=True)


def _lines(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield subject and text of each printed line."""
    moved = comparison.alignment
    yield "object", f"NRMSE {comparison.nrmse:.4g} over {moved.region.sum()} pixels"
    yield (
        "",
        (
            f"A was moved by {moved.shift[0]:.4g}, {moved.shift[1]:.4g} px (y, x), "
            f"tilted by {moved.ramp[0]:.3g}, {moved.ramp[1]:.3g} rad/px, scaled by {abs(moved.factor):.4g}"
        ),
    )
    if comparison.similarity is not None:
        yield "similarity", f"SSIM of the phases {comparison.similarity:.4g}"
    if comparison.slice_nrmse:
        yield "slices", "NRMSE " + ", ".join(f"{error:.4g}" for error in comparison.slice_nrmse)
    if comparison.twin:
        yield "twin", "A is the twin of B, turned by 180 degrees and conjugated; all numbers are for its twin"
    else:
        yield "twin", f"no: turned by 180 degrees and conjugated, A has NRMSE {comparison.twin_nrmse:.4g}"
    yield "resolution", _resolution(comparison)
    powers = " and ".join(" ".join(f"{power:.3g}" for power in side) for side in comparison.powers)
    yield "probe", f"NRMSE {comparison.probe_nrmse:.4g}; powers of the modes {powers} %"
    if comparison.position_mean_px is not None and comparison.position_p95_px is not None:
        yield (
            "positions",
            (
                f"differ by {_length(comparison.position_mean_px, comparison)} on average, "
                f"95 % of them by less than {_length(comparison.position_p95_px, comparison)}"
            ),
        )


def _resolution(comparison: Comparison) -> str:
    rings = comparison.rings
    if rings.is_too_small:
        return "unknown: the common field is so small that chance alone correlates as much"
    if rings.resolution is None:
        return "none: the Fourier ring correlation is below the 1/2-bit threshold from the start"
    value = f"{rings.resolution:.3g} px" if rings.unit == "px" else f"{rings.resolution * 1e9:.4g} nm"
    if rings.at_limit:
        return f"{value} (full period) or better: the correlation stays above the 1/2-bit threshold up to the pixels"
    return f"{value} (full period, 1/2-bit threshold of the Fourier ring correlation)"


def _length(pixels: float, comparison: Comparison) -> str:
    if comparison.pixel_size_m is None:
        return f"{pixels:.3g} px"
    y, x = comparison.pixel_size_m
    return f"{pixels:.3g} px ({pixels * (y * x) ** 0.5 * 1e9:.3g} nm)"


def draw_comparison(comparison: Comparison, path: Path, names: tuple[str, str]) -> None:
    """Draw both objects, their difference and the correlation.

    Args:
        comparison: the comparison.
        path: of the figure.
        names: of A and B.
    """
    from ptymesh.plot import comparison_figure, save_figure

    moved = comparison.alignment
    title = f"{names[0]} and {names[1]}: NRMSE {comparison.nrmse:.3g}" + (", twin" if comparison.twin else "")
    drawing = comparison_figure(
        moved.aligned, moved.reference, moved.region, comparison.rings, comparison.pixel_size_m, names, title
    )
    save_figure(drawing, path)
