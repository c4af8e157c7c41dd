"""ptymesh batch: one recipe over many scans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ptymesh.cli.launching import Device, Settings, folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ptymesh.beamtime import ScanOutcome

#: Figure with a picture of each scan.
SHEET = "batch.png"


def command(
    scans: Annotated[
        list[str],
        typer.Argument(metavar="SCAN...", help="Data sets (files, zarr stores, folders of TIFF), or 'scans/*.cxi'."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", parser=folder, help="Folder with a folder for each scan.")],
    recipe: Annotated[
        Path | None, typer.Option(metavar="RECIPE", help="Of all scans. [default: one is found for each]")
    ] = None,
    set_: Settings = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Scans that run at the same time.")] = 1,
    hand_on: Annotated[
        bool, typer.Option("--hand-on/--no-hand-on", help="Start from the probe of the first scan that comes out good.")
    ] = True,
    hand_on_orientation: Annotated[
        bool, typer.Option("--hand-on-orientation", help="Take flips and rotation from that scan's result, too.")
    ] = False,
    ranks: Annotated[int, typer.Option("--ranks", "-n", metavar="N", help="Processes (GPUs) for each scan.")] = 1,
    device: Device = "auto",
    strict: Annotated[
        bool, typer.Option("--strict", help="End with status 4 where the verdict on a scan is poor or failed.")
    ] = False,
) -> None:
    """Reconstruct many scans with one recipe: a folder for each, one table and one sheet of pictures of all.

    The same command goes on where it was stopped or killed, and runs what is new, changed or has failed. A scan that
    fails does not stop the others; the status is then that of the first one that failed.
    """
    from ptymesh.beamtime import BatchOptions, ScanBatch
    from ptymesh.beamtime.batch import TABLE
    from ptymesh.beamtime.scan_files import files_of_scan
    from ptymesh.beamtime.table import summary
    from ptymesh.cli.running import holding_output_folder
    from ptymesh.errors import BadInput, Poor
    from ptymesh.recipe.schema import load_recipe
    from ptymesh.run_folder.signals import StopSignal

    if jobs < 1:
        raise BadInput(f"--jobs is {jobs}; give 1 or more.")
    scan_paths = _find_scans(scans)
    if recipe is not None:
        load_recipe(
            recipe, [f"data.path={files_of_scan(scan_paths[0])[0]}", *(set_ or ())]
        )  # one message instead of one a scan
    options = BatchOptions(jobs, hand_on, hand_on_orientation, ranks, device)
    batch = ScanBatch(scan_paths, out, recipe, set_ or (), options)
    out.mkdir(parents=True, exist_ok=True)
    with holding_output_folder(out), StopSignal() as stop:
        outcomes = batch.run(stop=lambda: stop.requested, say=typer.echo)
        _draw(outcomes, out / SHEET)
    typer.echo(f"{summary(outcomes)}: {out / TABLE}, {out / SHEET}")
    for outcome in outcomes:
        if outcome.status not in (0, 4):
            raise typer.Exit(outcome.status if outcome.status > 0 else 1)
    bad = [Path(outcome.folder).name for outcome in outcomes if outcome.verdict in ("poor", "failed")]
    if strict and bad:
        raise Poor(f"The verdict on {', '.join(bad[:5])}{' and others' * (len(bad) > 5)} is not good (--strict).")


def _find_scans(words: Sequence[str]) -> list[Path]:
    """Return the data sets that paths and patterns name, in natural order, each once.

    Raises:
        BadInput: a pattern or path names none.
    """
    from glob import glob

    from ptymesh.beamtime.batch import natural_order
    from ptymesh.beamtime.scan_files import is_scan
    from ptymesh.errors import BadInput
    from ptymesh.paths import usable

    ordered: dict[Path, None] = {}
    for word in words:
        path = usable(word, "The data set")
        paths = [path] if path.exists() else [Path(one) for one in glob(str(path))]
        scans = [one for one in paths if is_scan(one)]
        if path.suffix.lower() in (".yaml", ".yml"):
            raise BadInput(f"{word} is a recipe, and no scan; give it with --recipe {word}.")
        if not scans and len(paths) == 1 and paths[0].is_dir():
            raise BadInput(f"{word} is a folder, but no data set; give those in it, such as '{paths[0] / '*.cxi'}'.")
        if not scans:
            raise BadInput(f"There is no file {word}; give data sets, or a pattern such as 'scans/*.cxi'.")
        ordered |= dict.fromkeys(scans)
    return sorted(ordered, key=natural_order)


def _draw(outcomes: Sequence[ScanOutcome], path: Path) -> None:
    """Draw the sheet of pictures."""
    from ptymesh.plot.saving import save_figure

    save_figure(_sheet(outcomes), path)


def _sheet(outcomes: Sequence[ScanOutcome]) -> Figure:
    """Return the sheet of pictures."""
    from ptymesh.compare import illumination
    from ptymesh.io.results import Result
    from ptymesh.plot.contact_sheet import SheetPicture, contact_sheet

    pictures = []
    for outcome in outcomes:
        name = Path(outcome.folder).name
        if not outcome.verdict:
            pictures.append(SheetPicture(f"{name}: status {outcome.status}", is_good=False))
            continue
        result = Result.load(Path(outcome.folder) / "result.h5")
        height, width = result.object.shape[-2:]
        light = illumination((height, width), result.probe, result.positions_px, result.weights)
        title, good = f"{name}: {outcome.verdict}", outcome.verdict not in ("poor", "failed")
        pictures.append(SheetPicture(title, result.object, light, result.pixel_size_m, good))
    return contact_sheet(pictures)
