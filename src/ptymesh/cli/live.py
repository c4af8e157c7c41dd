"""ptymesh live: reconstruct while frames arrive."""

from __future__ import annotations

import math
import os
import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ptymesh.cli.launching import LaunchOptions, Settings, Strict, expand_groups, folder
from ptymesh.cli.page import PageOptions

if TYPE_CHECKING:
    from ptymesh.live import ApartStream, FrameSource, LiveOptions, LiveOutcome
    from ptymesh.recipe.schema import Recipe

#: Name of the data set that is made of the frames once all are there.
SCAN = "scan.cxi"


@expand_groups
def command(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="Recipe; data.path is not read, its first stage makes the updates.")
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="tcp://HOST:PORT, dectris://HOST:PORT, a growing HDF5 file, or a folder of files or of a live run.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", parser=folder, help="Output folder.")],
    page: PageOptions,
    set_: Settings = None,
    patterns: Annotated[str, typer.Option(metavar="DATASET", help="Of HDF5 files: patterns (N, H, W).")] = "/patterns",
    positions: Annotated[
        str, typer.Option(metavar="DATASET", help="Of HDF5 files: positions (N, 2), y x in metres.")
    ] = "/positions",
    positions_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Positions that come apart: a growing HDF5 file, or text, a line each."),
    ] = None,
    frame_start: Annotated[
        float, typer.Option(metavar="S", help="Time of the first frame on the clock of positions that have times.")
    ] = 0.0,
    frame_period: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds from frame to frame. [default: as the source says]")
    ] = None,
    exposure: Annotated[
        float | None,
        typer.Option(metavar="S", help="Seconds over which such positions are averaged. [default: as the source says]"),
    ] = None,
    uses: Annotated[int, typer.Option(help="Least number of updates that see each view.")] = 3,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds that the source may be silent. [default: any]")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", "-n", metavar="N", help="Processes to start on this machine.")
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(metavar="K", help="Start ranks that failed again, up to K times, from live.h5 and the spool.")
    ] = 0,
    polish: Annotated[bool, typer.Option(help="Run the recipe's stages from there once all frames have come.")] = True,
    strict: Strict = False,
) -> None:
    """Reconstruct while frames arrive; every frame is kept, and the recipe's stages follow once all have come.

    Stopped or killed, the same command goes on with the frames that DIR/spool holds, from the object in DIR/live.h5.
    """
    from ptymesh.cli.running import check_folder, refuse_to_overwrite, start_ranks
    from ptymesh.distributed.rank_info import world
    from ptymesh.errors import BadInput
    from ptymesh.live import LiveOptions
    from ptymesh.run_folder.status import end_silent

    if uses < 1:
        raise BadInput(f"--uses is {uses}; give 1 or more.")
    if not math.isfinite(frame_start):
        raise BadInput(f"--frame-start is {frame_start:g}; give a number of seconds.")
    for name, seconds in (("timeout", timeout), ("frame-period", frame_period)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise BadInput(f"--{name} is {seconds:g}; give a number of seconds above 0.")
    if exposure is not None and not 0 <= exposure < math.inf:
        raise BadInput(f"--exposure is {exposure:g}; give a number of seconds, 0 for none.")
    if Path(source).is_dir() and Path(source).resolve() == out.resolve():
        raise BadInput(f"--from and --out are both {out}; replay a run into another folder.")
    loaded = _loaded(recipe, set_ or [], out)
    if world().size == 1:
        check_folder(out)
        if not (out / "spool").is_dir():
            refuse_to_overwrite(out, force=False)
        how = LaunchOptions(ranks=ranks, device="cpu", max_restarts=max_restarts)
        how.check()
        if ranks is not None and ranks > 1:
            arguments = ["live", str(recipe), "--from", source, "--out", str(out), "--uses", str(uses)]
            arguments += ["--patterns", patterns, "--positions", positions]
            arguments += [part for setting in set_ or () for part in ("--set", setting)]
            arguments += [] if positions_from is None else ["--positions-from", str(positions_from)]
            arguments += [] if timeout is None else ["--timeout", str(timeout)]
            arguments += ["--frame-start", str(frame_start)]
            arguments += [] if frame_period is None else ["--frame-period", str(frame_period)]
            arguments += [] if exposure is None else ["--exposure", str(exposure)]
            arguments += [*([] if polish else ["--no-polish"]), *(["--strict"] if strict else [])]
            with page.beside(out):
                status = start_ranks(arguments, how, out)
            if status:
                end_silent(out, f"The ranks have ended with status {status}; see ranks/.")
                raise typer.Exit(status)
            return
    elif ranks is not None and ranks != world().size:
        raise BadInput(f"--ranks is {ranks} inside a world of {world().size} ranks; leave --ranks out.")
    place = StreamPlace(source, patterns, positions, positions_from, (frame_start, frame_period, exposure))
    with page.beside(out):
        command = f"cd {shlex.quote(os.getcwd())} && {shlex.join(['ptymesh', *sys.argv[1:]])}"
        _reconstruct(loaded, place, out, LiveOptions(uses, timeout, followed=polish, command=command))
        if polish:
            _polish(loaded, out, strict)


class StreamPlace(NamedTuple):
    """Place where frames and positions come from, as on the command line.

    Attributes:
        source: address or path.
        patterns: dataset of the patterns, of a file.
        positions: dataset of the positions, of a file.
        positions_from: file of positions that come apart.
        clock: time of the first frame, seconds from frame to frame, and of an exposure.
    """

    source: str
    patterns: str
    positions: str
    positions_from: Path | None
    clock: tuple[float, float | None, float | None]


def _reconstruct(loaded: Recipe, place: StreamPlace, out: Path, options: LiveOptions) -> None:
    """Reconstruct on the ranks that this process belongs to until all frames have been used.

    Args:
        loaded: recipe.
        place: where frames and positions come from.
        out: output folder.
        options: of the live part; where a run follows, the frames are written as its data set.
    """
    from ptymesh.distributed.joining import join
    from ptymesh.io.formats.cxi import write_measurement
    from ptymesh.live import SpooledStream, reconstruct_live
    from ptymesh.run.session import take_output_folder
    from ptymesh.run_folder.signals import StopSignal

    with ExitStack() as stack, StopSignal() as stop, join("cpu") as ranks:
        take_output_folder(ranks, out, stack)

        def opened() -> tuple[FrameSource | ApartStream | None, LiveOptions]:
            stream = _open_stream(place) if ranks.rank == 0 else None
            if isinstance(stream, SpooledStream):
                return stream, replace(options, admissions=stream.admissions(options.uses))
            return stream, options

        stream, options = ranks.on_all_ranks(opened, "opening the source")
        outcome, scan = reconstruct_live(
            loaded,
            stream,
            out,
            options,
            world=ranks,
            stop=lambda: stop.requested,
            say=typer.echo,
        )
        if ranks.rank == 0:
            typer.echo(_describe_outcome(outcome, out))
            with ranks.heartbeat.doing("save"):
                if options.followed:
                    write_measurement(scan, out / SCAN, compression=None)


def _open_stream(place: StreamPlace) -> FrameSource | ApartStream:
    """Return the source that the options name."""
    from ptymesh.live import ApartStream, SpooledStream, open_positions, open_source
    from ptymesh.live.frames import FrameClock

    apart = place.positions_from is not None
    frames = open_source(place.source, place.patterns, None if apart else place.positions)
    if isinstance(frames, SpooledStream) and not apart:
        return frames
    positions = open_positions(place.positions_from, place.positions) if place.positions_from else None
    return ApartStream(frames, positions, FrameClock(*place.clock))


def _loaded(recipe: Path, settings: list[str], out: Path) -> Recipe:
    """Return the recipe of the live part: the data set is the one that is made of the frames."""
    from ptymesh.recipe.schema import load_recipe

    return load_recipe(recipe, [*settings, f"data.path={(out / SCAN).absolute()}"], out)


def _describe_outcome(outcome: LiveOutcome, out: Path) -> str:
    """Return what came out, in a line."""
    import numpy as np

    latencies_s = outcome.latencies_s
    waited = f", used {np.median(latencies_s):.2f} s after they arrived (median)" if len(latencies_s) else ""
    return (
        f"{outcome.views} frames{waited}, each {outcome.uses.min()} to {outcome.uses.max()} times, "
        f"{outcome.updates_per_s:.0f} views/s, done {outcome.after_s:.2f} s after the last: {out / 'live.h5'}"
    )


def _polish(recipe: Recipe, out: Path, strict: bool) -> None:
    """Run the recipe's stages on the frames, which are a data set now, from the live object and probe.

    Args:
        recipe: of the live part.
        out: output folder.
        strict: True to end with status 4 where the result is not good.
    """
    from ptymesh.cli.running import StageFinder, execute
    from ptymesh.errors import PtymeshError
    from ptymesh.io.options import DataOptions, PositionOptions
    from ptymesh.recipe.starts import ResultStart
    from ptymesh.run_folder.status import end_silent

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
    try:
        execute(polishing, ["run"], LaunchOptions(), resume=False, finder=StageFinder(), strict=strict)
    except PtymeshError as error:  # a run that is refused leaves the status as it was: that frames are saved
        end_silent(out, str(error))
        raise
