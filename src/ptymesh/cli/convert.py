"""ptymesh convert: a data set as CXI; a result as other programs' files and back; their settings as a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ptymesh.io.exchange.result_format import ResultFormat


def command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="Result of ptymesh or another program; data set, or a recipe; settings of PtyRAD, Pty-Chi.",
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; of a result, its ending says which.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="FORMAT", help="Format of a result, where the ending does not say it.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="data.KEY or positions.KEY; any key of a recipe."),
    ] = None,
    uncompressed: Annotated[bool, typer.Option("--uncompressed", help="One plain chunk per pattern: faster.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
) -> None:
    """Write a result in another program's format, or another program's result as ptymesh's; or a data set as CXI.

    Settings of PtyRAD or Pty-Chi become a recipe (OUT.yaml). What has no counterpart is said, one line each.
    `--uncompressed` is for data sets, `--set` for those and for recipes, of which any key may be set.
    """
    from ptymesh.errors import BadInput
    from ptymesh.io.exchange.convert import format_of

    if target.exists() and not force:
        raise BadInput(f"{target} exists; choose another name, or replace it with --force.")
    if target.exists() and source.exists() and target.samefile(source):
        raise BadInput(f"{target} is the file to convert itself; choose another name.")
    if target.suffix.lower() in (".yaml", ".yml"):
        _convert_settings(source, target, set_ or [], to is not None or uncompressed)
        return
    source_format = format_of(source)
    if source_format is None:
        _convert_data_set(source, target, to, set_ or (), uncompressed)
        return
    if set_ or uncompressed:
        raise BadInput(
            f"{source} is a result ({source_format.name}), and --set and --uncompressed are for data sets; "
            "leave them out."
        )
    _convert_result(source, target, source_format, to)


def _convert_settings(source: Path, target: Path, settings: list[str], with_options: bool) -> None:
    """Write another program's settings as a recipe, and say what had no counterpart."""
    from ptymesh.errors import BadInput
    from ptymesh.files import replacing
    from ptymesh.recipe.from_ptychi import convert_ptychi, is_ptychi
    from ptymesh.recipe.from_ptyrad import convert_ptyrad, is_ptyrad
    from ptymesh.recipe.schema import Recipe, anchor, apply_overrides
    from ptymesh.recipe.yaml_text import parsed, text_of

    if with_options:
        raise BadInput("--to and --uncompressed are for results and data sets; leave them out.")
    try:
        values = parsed(text_of(source, "file of settings"), str(source))
    except UnicodeDecodeError as error:
        raise BadInput(f"{source} is no text; a recipe is made of settings of PtyRAD or Pty-Chi.") from error
    if isinstance(values, dict) and is_ptyrad(values):
        conversion = convert_ptyrad(values, str(source))
    elif isinstance(values, dict) and is_ptychi(values):
        conversion = convert_ptychi(values, str(source))
    else:
        raise BadInput(
            f"{source} has neither PtyRAD's init_params and recon_params nor Pty-Chi's reconstructor_options, "
            "object_options, probe_options and probe_position_options; a recipe is made of one or the other."
        )
    if settings:
        anchor(conversion.recipe, target.parent)
        conversion.recipe = apply_overrides(conversion.recipe, settings)
    data = conversion.recipe.get("data")
    if not isinstance(data, dict) or "path" not in data:
        raise BadInput(f"{source} does not name the file of the patterns; add --set data.path=FILE.")
    Recipe.parse(conversion.recipe)
    with replacing(target) as temporary:
        temporary.write_text(conversion.to_yaml(source.name), encoding="utf-8")
    count = len(conversion.unmatched)
    typer.echo(
        f"{target}: a recipe of {conversion.program}'s settings, "
        f"{count} setting{'s' * (count != 1)} without a counterpart"
    )
    for line in conversion.report():
        typer.echo(line)


def _convert_result(source: Path, target: Path, source_format: ResultFormat, to: str | None) -> None:
    """Write a result in the format that `to` or the target's ending names."""
    from ptymesh.io.exchange.convert import read_result, target_format, write_result

    wanted_format = target_format(target, source_format, to)
    result, _, notes = read_result(source)
    notes += write_result(result, target, wanted_format)
    slices, height, width = result.object.shape
    typer.echo(
        f"{target}: {wanted_format.name}, object of {slices} x {height} x {width} pixels, {len(result.probe)} probe "
        f"mode{'s' * (len(result.probe) != 1)}, {len(result.positions_px)} views"
    )
    for note in notes:
        typer.echo(note)


def _convert_data_set(
    source: Path, target: Path, to: str | None, settings: list[str] | tuple[()], uncompressed: bool
) -> None:
    """Write a data set, prepared as the settings say, as CXI 1.6."""
    from ptymesh.cli.dataset import load_dataset
    from ptymesh.errors import BadInput
    from ptymesh.io.exchange.convert import FORMATS
    from ptymesh.io.formats.cxi import write_measurement

    ending = target.suffix.lower()
    result_endings = {ending_of_format for one in FORMATS.values() for ending_of_format in one.endings} - {
        ".h5",
        ".hdf5",
        ".cxi",
    }
    if source.is_file() and (to is not None or ending in result_endings):
        option = f"--to {to}" if to is not None else ending
        raise BadInput(
            f"{source} is no result that ptymesh knows, and {option} is for results; of a data set, write a .cxi file."
        )
    measurement = load_dataset(source, settings)
    write_measurement(measurement, target, compression=None if uncompressed else "gzip")
    h, w = measurement.window
    typer.echo(f"{target}: {measurement.views} views of {h} x {w} pixels ({measurement.patterns.dtype})")
    if measurement.geometry.object_pixel_m is None:
        typer.echo(
            "The positions are in pixels, which only ptymesh finds in this file; for other programs set "
            "data.object_pixel_m, or the energy, data.distance_m and data.detector_pixel_m."
        )
