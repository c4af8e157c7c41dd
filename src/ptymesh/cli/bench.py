"""ptymesh bench: speed of engines on this machine, or of a recipe on several numbers of ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ptymesh.cli.launching import Backend, Device, LaunchOptions, Settings, parse_numbers, refuse_ranks

if TYPE_CHECKING:
    from rich.table import Table

    from ptymesh.run.speed.bench import Speed

#: Options that only one of the two comparisons has, by the names of their parameters.
OF_ENGINES = frozenset(
    (
        "engines",
        "modes",
        "batches",
        "subpixel",
        "windows",
        "views",
        "objects",
        "epochs",
        "precision",
        "turns",
        "busy_ok",
    )
)
OF_RANKS = frozenset(("trials", "also", "backend", "set_"))
#: Folder for what is compared of ranks.
FOLDER = Path("scaling")

Trials = Annotated[int, typer.Option(metavar="N", help="Runs on each number of ranks.")]
Also = Annotated[
    str,
    typer.Option(
        metavar="KIND,...",
        help="What is timed beside ranks: threads (one rank with those of all), weak (views in proportion), none.",
    ),
]


def command(
    context: typer.Context,
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="Data set or recipe. [default: simulated scans]")
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", "-n", metavar="N,N,...", help="Compare a recipe's runs on so many ranks, rising."),
    ] = None,
    trials: Trials = 3,
    also: Also = "threads,weak",
    backend: Backend = "auto",
    set_: Settings = None,
    engines: Annotated[str, typer.Option(metavar="A,B", help="Engines.")] = "rpie,lsqml,adam",
    modes: Annotated[str, typer.Option(metavar="N,N", help="Probe modes.")] = "1,4",
    batches: Annotated[str, typer.Option(metavar="N,N", help="Views per batch.")] = "64",
    subpixel: Annotated[str, typer.Option(metavar="A,B", help="none, fourier, bilinear.")] = "none,fourier",
    windows: Annotated[str, typer.Option(metavar="N,N", help="Windows of the simulated scans, px.")] = "128",
    views: Annotated[int, typer.Option(help="Views of the simulated scans.")] = 512,
    objects: Annotated[
        str | None, typer.Option(metavar="N,N", help="Spread the scan over objects of these sides, px.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs that are timed, after one to warm up.")] = 5,
    device: Device = "auto",
    threads: Annotated[
        int | None,
        typer.Option(help="Threads of the CPU, of each rank. [default: as torch decides; cores over the most ranks]"),
    ] = None,
    precision: Annotated[str, typer.Option(help="single or double.")] = "single",
    turns: Annotated[
        bool, typer.Option("--turns", help="Epoch by epoch in turns, not one case after the other: for ratios.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Write all numbers to this JSON file; of ranks, to this folder [scaling]."),
    ] = None,
    busy_ok: Annotated[bool, typer.Option("--busy-ok", help="Measure although other processes run.")] = False,
) -> None:
    """Compare views per second of engines, batches and modes; with --ranks, a recipe's runs on numbers of ranks.

    Every combination of the options is run, as users run it. With --ranks a recipe is run several times on each number
    of ranks: seconds per epoch, what is lost, whether bits differ (then the status is 1).
    """
    from ptymesh.errors import BadInput

    options = _options(context)
    if odd := [option for name, option in options.items() if name in (OF_RANKS if ranks is None else OF_ENGINES)]:
        raise BadInput(
            f"{odd[0]} is of runs on several ranks; give --ranks 1,2 as well, or leave it out."
            if ranks is None
            else f"{odd[0]} does not go with --ranks, which runs a recipe as it is; leave it out, and say in the "
            "recipe or by --set what is run."
        )
    if ranks is not None:
        if path is None:
            raise BadInput(f"--ranks {ranks} needs a recipe; give `ptymesh bench RECIPE.yaml --ranks {ranks}`.")
        how = LaunchOptions(None, device, backend)
        compare_ranks(path, ranks, trials, how, threads, also, set_ or [], FOLDER if out is None else out)
        return
    if path is not None and {"windows", "views"} & options.keys():
        raise BadInput("--windows and --views are of simulated scans; leave them out, or leave out the data set.")
    compare_engines(
        path,
        out,
        busy_ok,
        engines=_words(engines),
        modes=tuple(parse_numbers("--modes", modes)),
        batches=tuple(parse_numbers("--batches", batches)),
        subpixel=_words(subpixel),
        windows=tuple(parse_numbers("--windows", windows)),
        sides=tuple(parse_numbers("--objects", objects)) if objects else (),
        epochs=epochs,
        views=views,
        device=device,
        precision=precision,
        threads=threads,
        turns=turns,
    )


def _options(context: typer.Context) -> dict[str, str]:
    """Return the options that the command line gives: how they are written, by the name of their parameter."""
    options = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name and source is not None and source.name == "COMMANDLINE":
            options[parameter.name] = parameter.opts[0]
    return options


def compare_ranks(
    recipe: Path,
    ranks: str,
    trials: int,
    how: LaunchOptions,
    threads: int | None,
    also: str,
    settings: list[str],
    out: Path,
) -> None:
    """Run a recipe several times on several numbers of ranks, and print how they compare.

    Args:
        recipe: path of the recipe.
        ranks: numbers of ranks, such as "1,2,4".
        trials: runs on each number.
        how: device and backend.
        threads: of each rank; None for the cores over the largest number of ranks.
        also: what is timed beside ranks, such as "threads,weak", or none.
        settings: KEY=VALUE of the recipe.
        out: folder of scaling.json and scaling.png.

    Raises:
        typer.Exit: with status 1, if the final results do not have the same bits.
    """
    from ptymesh.cli.running import check_folder, refuse_to_overwrite
    from ptymesh.errors import BadInput
    from ptymesh.recipe.scans import load_scan
    from ptymesh.recipe.schema import load_recipe
    from ptymesh.run.speed.scaling import THREADS, WEAK, RepeatedRun, save, scale, table

    counts = parse_numbers("--ranks", ranks)
    beside = [] if also == "none" else also.split(",")
    if odd := [kind for kind in beside if kind not in (THREADS, WEAK)]:
        raise BadInput(f"--also is {also!r}, and there is no {odd[0]!r}; give threads, weak, both or none.")
    how = replace(how, ranks=max(counts))
    how.check()
    loaded = load_recipe(recipe, settings, out)
    check_folder(out / "run")
    refuse_to_overwrite(out / "run", force=False)
    views, batches = load_scan(loaded).views, [stage.batch for stage in loaded.stages]
    run = RepeatedRun(recipe, settings, how.device, how.environment, views, batches)
    measured = scale(
        run, counts, trials, out, threads=threads, also=beside, tell=lambda line: typer.echo(line, err=True)
    )
    for line in table(measured):
        typer.echo(line)
    typer.echo(" ".join(str(path) for path in save(measured, out)))
    if not measured["same_bits"]:
        raise typer.Exit(1)


def compare_engines(path: Path | None, out: Path | None, busy_ok: bool, **options: Any) -> None:
    """Measure views per second of engines, and print them.

    Args:
        path: data set or recipe; None for simulated scans.
        out: JSON file of all numbers, or None.
        busy_ok: True to measure although other processes run.
        options: fields of ptymesh.run.speed.bench.Plan.
    """
    from ptymesh.cli.dataset import load_dataset
    from ptymesh.errors import BadInput
    from ptymesh.run.speed.bench import Plan, bench, save
    from ptymesh.run_folder.terminal import Terminal

    refuse_ranks("bench")
    if out is not None and not out.absolute().parent.is_dir():
        raise BadInput(f"The folder of --out {out} does not exist; make it first.")
    plan = Plan(**options)
    scan = None if path is None else load_dataset(path, [])
    console, about = Terminal(), {}
    speeds: list[Speed] = []
    for measured in bench(plan, scan, busy_ok=busy_ok):
        if isinstance(measured, dict):
            about = {**measured, "data": "simulated" if scan is None else scan.name}
            console.print(_machine(about), highlight=False)
            continue
        speeds.append(measured)
        typer.echo(f"{len(speeds)}: {measured.engine}, {measured.view_modes_per_s:.0f} view-modes/s", err=True)
        if out is not None:
            save(out, about, speeds)
    console.print(table(speeds))
    if out is not None:
        console.print(str(out), highlight=False)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def _machine(about: dict[str, Any]) -> str:
    """Return sentences about the machine and the data."""
    machine = about["machine"]
    busy = machine["cores_busy_with_others"]
    lines = [
        f"{machine['gpu'] or machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, "
        f"torch {machine['torch']}, numba {machine['numba']}",
        f"Data: {about['data']}",
    ]
    if busy > 0.25:
        lines.append(f"Others keep {busy:.1f} cores busy: these are not the numbers of an idle machine.")
    return "\n".join(lines)


def _size(sides: tuple[int, int]) -> str:
    return "x".join(str(n) for n in sides)


def table(speeds: list[Speed]) -> Table:
    """Return a table of the measurements, one row per case; sizes that all cases share are in its title."""
    from rich import box
    from rich.table import Table

    sizes = {
        name: ["x".join(str(n) for n in getattr(speed, name)) for speed in speeds] for name in ("window", "object")
    }
    vary = [name for name, of in sizes.items() if len(set(of)) > 1]
    speeds_table = Table(
        title=", ".join(f"{name} {of[0]}" for name, of in sizes.items() if name not in vary) or None,
        caption="Medians of the epochs after the first.",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    left_aligned = ("engine", "sub-\npixel")
    numbers = ("views/s", "view-\nmodes/s", "GB")
    for name in ("engine", *vary, "modes", "batch", "sub-\npixel", *numbers):
        speeds_table.add_column(name, justify="left" if name in left_aligned else "right", no_wrap=True)
    for index, speed in enumerate(speeds):
        speeds_table.add_row(
            speed.engine,
            *(sizes[name][index] for name in vary),
            str(speed.modes),
            str(speed.batch),
            speed.subpixel,
            f"{speed.views_per_s:.0f}",
            f"{speed.view_modes_per_s:.0f}",
            f"{speed.peak_bytes / 1e9:.2f}",
        )
    return speeds_table
