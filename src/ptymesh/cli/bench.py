"""ptymesh bench: speed of engines on this machine, relative to a bound measured beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ptymesh.run.bench import Speed


def command(
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="Data set or recipe. [default: simulated scans]")
    ] = None,
    engines: Annotated[str, typer.Option(metavar="A,B", help="Engines.")] = "rpie,lsqml,adam",
    modes: Annotated[str, typer.Option(metavar="N,N", help="Probe modes.")] = "1,4",
    batches: Annotated[str, typer.Option(metavar="N,N", help="Views per batch.")] = "64",
    subpixel: Annotated[str, typer.Option(metavar="A,B", help="none, fourier, bilinear.")] = "none,fourier",
    windows: Annotated[
        str | None, typer.Option(metavar="N,N", help="Windows of the simulated scans, px. [default: 128]")
    ] = None,
    views: Annotated[int | None, typer.Option(help="Views of the simulated scans. [default: 512]")] = None,
    objects: Annotated[
        str | None, typer.Option(metavar="N,N", help="Spread the scan over objects of these sides, px.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs that are timed, after one to warm up.")] = 5,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Threads of the CPU. [default: as torch decides]")] = None,
    precision: Annotated[str, typer.Option(help="single or double.")] = "single",
    turns: Annotated[
        bool, typer.Option("--turns", help="Epoch by epoch in turns, not one case after the other: for ratios.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="OUT.json", help="Write all numbers as JSON.")] = None,
    busy_ok: Annotated[bool, typer.Option("--busy-ok", help="Measure although other processes run.")] = False,
) -> None:
    """Measure views per second of engines, and which part of the floor they reach.

    The floor is what the Fourier transforms of a batch (on a GPU: its memory traffic) take by themselves, measured
    between the epochs. Every combination of the options is run, as users run it.
    """

    from ptymesh.cli.dataset import load_dataset
    from ptymesh.distributed.rank_info import world
    from ptymesh.errors import BadInput
    from ptymesh.run.bench import Plan, bench, save
    from ptymesh.run.terminal import Terminal

    if world().size > 1:
        raise BadInput("The benchmark is of one rank; run `ptymesh bench` without torchrun.")
    if path is not None and (windows or views):
        raise BadInput("--windows and --views are of simulated scans; leave them out, or leave out the data set.")
    if out is not None and not out.absolute().parent.is_dir():
        raise BadInput(f"The folder of --out {out} does not exist; make it first.")
    plan = Plan(
        engines=_words(engines),
        modes=_numbers("modes", modes),
        batches=_numbers("batches", batches),
        subpixel=_words(subpixel),  # type: ignore[arg-type]  # checked by Plan
        windows=_numbers("windows", windows or "128"),
        sides=_numbers("objects", objects) if objects else (),
        epochs=epochs,
        views=512 if views is None else views,
        device=device,
        precision=precision,  # type: ignore[arg-type]  # so is this
        threads=threads,
        turns=turns,
    )
    scan = None if path is None else load_dataset(path, [])
    console, about = Terminal(), {}
    speeds: list[Speed] = []
    for found in bench(plan, scan, busy_ok=busy_ok):
        if isinstance(found, dict):
            about = {**found, "data": "simulated" if scan is None else scan.name}
            console.print(_machine(about), highlight=False)
            continue
        speeds.append(found)
        typer.echo(f"{len(speeds)}: {found.engine}, {found.view_modes_per_s:.0f} view-modes/s", err=True)
        if out is not None:
            save(out, about, speeds)
    console.print(table(speeds))
    if out is not None:
        console.print(str(out), highlight=False)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def _numbers(name: str, text: str) -> tuple[int, ...]:
    from ptymesh.errors import BadInput

    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise BadInput(f"--{name} is {text!r}; give whole numbers with commas between them, like 1,4.") from error


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
    made = Table(
        title=", ".join(f"{name} {of[0]}" for name, of in sizes.items() if name not in vary) or None,
        caption="Medians of the epochs after the first. Floor: the Fourier transforms (GPU: memory traffic) alone.",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    left = ("engine", "sub-\npixel")
    numbers = ("views/s", "view-\nmodes/s", "floor", "of\nfloor", "GB")
    for name in ("engine", *vary, "modes", "batch", "sub-\npixel", *numbers):
        made.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for index, speed in enumerate(speeds):
        made.add_row(
            speed.engine,
            *(sizes[name][index] for name in vary),
            str(speed.modes),
            str(speed.batch),
            speed.subpixel,
            f"{speed.views_per_s:.0f}",
            f"{speed.view_modes_per_s:.0f}",
            f"{speed.floor_view_modes_per_s:.0f}",
            f"{speed.fraction:.0%}",
            f"{speed.peak_bytes / 1e9:.2f}",
        )
    return made
