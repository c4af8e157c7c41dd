"""ptymesh live: reconstruct while frames arrive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ptymesh.cli.launching import Settings, Strict, folder

if TYPE_CHECKING:
    from ptymesh.live import LiveOutcome
    from ptymesh.measurement import Measurement
    from ptymesh.recipe.schema import Recipe

#: Name of the data set that is made of the frames once all are there.
SCAN = "scan.cxi"


def command(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="Recipe; data.path is not read, its first stage makes the updates.")
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="SOURCE", help="tcp://HOST:PORT, dectris://HOST:PORT, or an HDF5 file that grows."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", parser=folder, help="Output folder.")],
    set_: Settings = None,
    patterns: Annotated[
        str, typer.Option(metavar="DATASET", help="Of a file that grows: patterns (N, H, W).")
    ] = "/patterns",
    positions: Annotated[
        str, typer.Option(metavar="DATASET", help="Of a file that grows: positions (N, 2), y x in metres.")
    ] = "/positions",
    positions_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Positions that come apart: a growing HDF5 file, or text, a line each."),
    ] = None,
    uses: Annotated[int, typer.Option(help="Least number of updates that see each view.")] = 3,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds that the source may be silent. [default: any]")
    ] = None,
    polish: Annotated[bool, typer.Option(help="Run the recipe's stages from there once all frames have come.")] = True,
    strict: Strict = False,
) -> None:
    """Reconstruct while frames arrive; every frame is kept, and the recipe's stages follow once all have come.

    Stopped or killed, the same command goes on with the frames that DIR/spool holds.
    """
    from ptymesh.cli.running import check_folder, owned, refuse_to_overwrite
    from ptymesh.distributed.rank_info import world
    from ptymesh.errors import BadInput
    from ptymesh.live import LiveOptions, open_positions, open_source, reconstruct_live
    from ptymesh.run_folder.signals import StopSignal

    if uses < 1:
        raise BadInput(f"--uses is {uses}; give 1 or more.")
    if timeout is not None and not timeout > 0:
        raise BadInput(f"--timeout is {timeout:g}; give a number of seconds above 0.")
    if world().size > 1:
        raise BadInput(
            f"`ptymesh live` is one process, and here are {world().size} ranks; start it without a launcher."
        )
    loaded = _loaded(recipe, set_ or [], out)
    check_folder(out)
    if not (out / "spool").is_dir():
        refuse_to_overwrite(out, force=False)
    with owned(out), StopSignal() as stop:
        outcome, scan = reconstruct_live(
            loaded,
            open_source(source, patterns, positions if positions_from is None else None),
            out,
            LiveOptions(uses, timeout),
            positions=None if positions_from is None else open_positions(positions_from, positions),
            stop=lambda: stop.requested,
            say=typer.echo,
        )
        typer.echo(_describe_outcome(outcome, out))
        if polish:
            _polish(loaded, scan, out, strict)


def _loaded(recipe: Path, settings: list[str], out: Path) -> Recipe:
    """Return the recipe of the live part: the data set is the one that is made of the frames."""
    from ptymesh.recipe.schema import load_recipe

    return load_recipe(recipe, [*settings, f"data.path={(out / SCAN).absolute()}"], out)


def _describe_outcome(outcome: LiveOutcome, out: Path) -> str:
    """Return what came out, in a line."""
    import numpy as np

    late = outcome.latencies_s
    waited = f", used {np.median(late):.2f} s after they arrived (median)" if len(late) else ""
    return (
        f"{outcome.views} frames{waited}, each {outcome.uses.min()} to {outcome.uses.max()} times, "
        f"{outcome.updates_per_s:.0f} views/s, done {outcome.after_s:.2f} s after the last: {out / 'live.h5'}"
    )


def _polish(recipe: Recipe, scan: Measurement, out: Path, strict: bool) -> None:
    """Write the frames as a data set, and run the recipe's stages on it from the live object and probe.

    Args:
        recipe: of the live part.
        scan: all frames, prepared as the recipe says.
        out: output folder.
        strict: True to end with status 4 where the result is not good.
    """
    from ptymesh.cli.launching import LaunchOptions
    from ptymesh.cli.running import StageFinder, execute
    from ptymesh.io.formats.cxi import write_measurement
    from ptymesh.io.options import DataOptions, PositionOptions
    from ptymesh.recipe.starts import ResultStart

    write_measurement(scan, out / SCAN, compression=None)
    live = str((out / "live.h5").absolute())
    # what the recipe does to data and positions has been done to the frames that were written
    polishing = recipe.model_copy(
        update={
            "data": DataOptions(path=(out / SCAN).absolute()),
            "positions": PositionOptions(subpixel=recipe.positions.subpixel),
            "object": recipe.object.model_copy(update={"initial": live}),
            "probe": recipe.probe.model_copy(update={"start": ResultStart(kind="result", path=live)}),
        }
    )
    execute(polishing, ["run"], LaunchOptions(), resume=False, finder=StageFinder(), strict=strict)
