"""ptymesh resolution: to which resolution two halves of a scan agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ptymesh.cli.launching import Device, Settings, folder
from ptymesh.printable import finite

if TYPE_CHECKING:
    from ptymesh.compare import Comparison
    from ptymesh.io.results import Result
    from ptymesh.recipe.schema import Recipe
    from ptymesh.run_folder.transfer import TransferFunction

#: Name of the figure.
FIGURE = "resolution.png"


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="RECIPE|RESULT.h5 [RESULT.h5]", help="A recipe or a result, or two results to compare."),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", parser=folder, help="Folder for both halves and the figure.")
    ] = Path("resolution"),
    set_: Settings = None,
    ranks: Annotated[int, typer.Option("--ranks", "-n", metavar="N", help="Processes of each half.")] = 1,
    device: Device = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Tell to which resolution two independent halves of a scan agree, by their Fourier ring correlation.

    Every second view is reconstructed by itself, and the others by themselves, as the recipe (or that of the result)
    says. Of two results, nothing is run. The same command goes on where it was stopped.
    """
    from ptymesh.compare import compare_results
    from ptymesh.errors import BadInput
    from ptymesh.io.results import Result

    if len(sources) > 2:
        raise BadInput(f"{len(sources)} files were given; give one recipe, one result, or two results.")
    if len(sources) == 2:
        if set_:
            raise BadInput("--set changes a recipe, and two results are compared as they are; leave it out.")
        paths, names = sources, (str(sources[0]), str(sources[1]))
        out.mkdir(parents=True, exist_ok=True)
    else:
        paths, names = _halves(sources[0], out, set_ or [], ranks, device, quiet=json), ("half 1", "half 2")
    first, second = (Result.load(path) for path in paths)
    comparison = compare_results(first, second)
    transfer, why = _transfer(first)
    notes = [*comparison.notes, *_shared(first, second, split=len(sources) == 1), *([why] if why else [])]
    if json:
        from json import dumps

        typer.echo(dumps(_summary(paths, comparison, transfer, notes), indent=2))
    else:
        for name, value in _lines(comparison, transfer):
            typer.echo(f"{name:<13} {value}")
        for note in notes:
            typer.echo(f"Note: {note}")
    _draw(comparison, transfer, out / FIGURE, names)


def _halves(source: Path, out: Path, settings: list[str], ranks: int, device: str, *, quiet: bool) -> list[Path]:
    """Reconstruct both halves and return the paths of their results."""
    from ptymesh.beamtime import SplitScan
    from ptymesh.cli.running import check_folder, holding_output_folder
    from ptymesh.run_folder.signals import StopSignal

    check_folder(out)
    split = SplitScan(_recipe(source, settings), out, ["--ranks", str(ranks), "--device", device])
    out.mkdir(parents=True, exist_ok=True)
    with holding_output_folder(out), StopSignal() as stop:
        split.run(stop=lambda: stop.requested, say=lambda line: typer.echo(line, err=quiet))
    return split.results()


def _recipe(source: Path, settings: list[str]) -> Recipe:
    """Return the recipe in a YAML file, or that of a result.

    Raises:
        BadInput: the result holds none.
    """
    from ptymesh.errors import BadInput
    from ptymesh.io.results import Result
    from ptymesh.recipe.schema import Recipe, load_recipe

    if source.suffix.lower() in (".yaml", ".yml"):
        return load_recipe(source, settings)
    text = Result.load(source).recipe
    if not text:
        raise BadInput(f"{source} holds no recipe, by which its halves could be reconstructed; give a recipe.")
    return Recipe.from_yaml(text, settings)


def _transfer(result: Result) -> tuple[TransferFunction | None, str]:
    """Return the transfer function of a result; or None, and a sentence that says why."""
    from ptymesh.cli.diagnose import data_of
    from ptymesh.errors import PtymeshError
    from ptymesh.run_folder.transfer import transfer_function

    try:
        return transfer_function(result, data_of(result)), ""
    except PtymeshError as error:
        return None, f"No phase-retrieval transfer function: {error}"


def _shared(first: Result, second: Result, *, split: bool) -> Iterator[str]:
    """Yield sentences on what makes both alike, or what makes one of them poor."""
    from ptymesh.recipe.yaml_text import parsed

    if split:
        recipe = parsed(first.recipe, "The recipe of the first half")
        start = recipe.get("object", {}).get("initial", "ones") if isinstance(recipe, dict) else "ones"
        if start != "ones":
            yield f"Both halves start from the object {start}, and agree where neither has left it."
    elif first.attrs.get("data_fingerprint") and first.attrs.get("data_fingerprint") == second.attrs.get(
        "data_fingerprint"
    ):
        yield from _same_views(first, second)
    for name, result in (("first", first), ("second", second)):
        if result.verdict in ("poor", "failed"):
            yield f"The {name} is {result.verdict}: {result.attrs.get('verdict_sentence', '')}."


def _same_views(first: Result, second: Result) -> Iterator[str]:
    """Yield a sentence if both were made from the same views, whose noise they then have in common."""
    from ptymesh.recipe.yaml_text import parsed

    views = []
    for result in (first, second):
        recipe = parsed(result.recipe, "The recipe of a result") if result.recipe else None
        views.append(recipe.get("data", {}).get("views") if isinstance(recipe, dict) else None)
    if views[0] == views[1]:
        yield "Both are of the same views: their noise is the same too, and the resolution is too good."


def _lines(comparison: Comparison, transfer: TransferFunction | None) -> Iterator[tuple[str, str]]:
    """Yield subject and text of each printed line."""
    rings = comparison.rings
    for name, value, at_limit in (
        ("1/2 bit", rings.resolution, rings.at_limit),
        ("1 bit", rings.one_bit_resolution, rings.one_bit_at_limit),
    ):
        if rings.is_too_small:
            yield name, "unknown: the common field is so small that chance alone correlates as much"
        elif value is None:
            finest = rings.finest_agreement
            but = (
                ""
                if finest is None
                else f"; single bands exceed it down to {_period(finest, rings.unit)}, see the curve"
            )
            yield name, f"none: the Fourier ring correlation is below the threshold from its first rings on{but}"
        else:
            better = " or better: the correlation stays above up to the pixels" if at_limit else ""
            yield name, f"{_period(value, rings.unit)} (full period){better}"
    if transfer is not None:
        if transfer.resolution is None:
            yield "transfer", "below 1/e from the start"
        else:
            better = ", the edge of the detector" if transfer.at_limit else ""
            yield "transfer", f"above 1/e down to {_period(transfer.resolution, transfer.unit)} (full period){better}"
    rows, columns = comparison.alignment.region.any(axis=1).sum(), comparison.alignment.region.any(axis=0).sum()
    pixel = comparison.pixel_size_m
    size = "" if pixel is None else f", {rows * pixel[0] * 1e6:.3g} x {columns * pixel[1] * 1e6:.3g} µm"
    yield "field", f"{rows} x {columns} px{size}, {len(rings.frequency)} rings"
    yield "object", f"NRMSE of the two {comparison.nrmse:.4g}"


def _period(value: float, unit: str) -> str:
    return f"{value:.3g} px" if unit == "px" else f"{value * 1e9:.4g} nm"


def _summary(
    paths: list[Path], comparison: Comparison, transfer: TransferFunction | None, notes: list[str]
) -> dict[str, object]:
    """Return everything as plain Python objects; numbers that are not finite are None."""
    rings = comparison.rings

    return {
        "a": str(paths[0]),
        "b": str(paths[1]),
        "unit": rings.unit,
        "half_bit_resolution": rings.resolution,
        "half_bit_at_pixel_limit": rings.at_limit,
        "one_bit_resolution": rings.one_bit_resolution,
        "one_bit_at_pixel_limit": rings.one_bit_at_limit,
        "half_bit_finest_agreement": rings.finest_agreement,
        "field_too_small": rings.is_too_small,
        "field_px": [int(comparison.alignment.region.any(axis=axis).sum()) for axis in (1, 0)],
        "pixel_size_m": None if comparison.pixel_size_m is None else list(comparison.pixel_size_m),
        "nrmse": comparison.nrmse,
        "frequency": finite(rings.frequency.tolist()),
        "correlation": finite(rings.correlation.tolist()),
        "half_bit_threshold": finite(rings.threshold.tolist()),
        "one_bit_threshold": finite(rings.one_bit.tolist()),
        "snr": finite(rings.snr.tolist()),
        "transfer": None
        if transfer is None
        else {
            "frequency": finite(transfer.frequency.tolist()),
            "value": finite(transfer.value.tolist()),
            "resolution": transfer.resolution,
            "at_detector_edge": transfer.at_limit,
        },
        "notes": notes,
    }


def _draw(comparison: Comparison, transfer: TransferFunction | None, path: Path, names: tuple[str, str]) -> None:
    """Draw the figure and say where it is."""
    from ptymesh.plot import resolution_figure, save_figure

    moved = comparison.alignment
    figure = resolution_figure(
        moved.aligned, moved.reference, moved.region, comparison.rings, transfer, comparison.pixel_size_m, names
    )
    save_figure(figure, path)
    typer.echo(str(path), err=True)
