"""ptymesh plan: memory and messages on given numbers of ranks, without running."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ptymesh.cli.launching import Settings, parse_numbers

if TYPE_CHECKING:
    from ptymesh.planning.plan import LayoutName, LayoutPlan

#: Largest number of ranks that is accepted.
MOST_RANKS = 10**6


def refuse_speed(option: typer.CallbackParam, value: str | None) -> None:
    """Raise BadInput if an option is given by which earlier versions predicted times.

    Args:
        option: such as --link.
        value: that was given; None for none.
    """
    from ptymesh.errors import BadInput

    if value is not None:
        raise BadInput(
            f"{option.opts[0]} {value!r} was for times, which a plan no longer predicts; leave it out, and measure "
            "them with `ptymesh bench RECIPE.yaml --ranks 1,2`."
        )


Removed = Annotated[str | None, typer.Option(hidden=True, callback=refuse_speed)]


def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="What would be done with which data.")],
    ranks: Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of ranks.")] = "1,2,4,8,16,64",
    stage: Annotated[int, typer.Option(metavar="N", help="Stage of the recipe, the first is 1.")] = 1,
    device_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of a rank, e.g. 80GB: marks what does not fit.")
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="KIND", help="What a rank computes on: auto (as here), cpu, cuda, xpu.")
    ] = "auto",
    set_: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    link: Removed = None,
    latency: Removed = None,
    rate: Removed = None,
) -> None:
    """Memory and messages on so many ranks, for both layouts of the object, without running."""
    from ptymesh.errors import BadInput
    from ptymesh.launcher.rank_processes import cores
    from ptymesh.physics.operators import pieces_for_scan
    from ptymesh.planning.plan import plan_layouts, scan_of
    from ptymesh.recipe.initial import MARGIN_PX
    from ptymesh.recipe.scans import load_scan
    from ptymesh.recipe.schema import load_recipe

    loaded = load_recipe(recipe, set_ or ())
    if not 1 <= stage <= len(loaded.stages):
        raise BadInput(f"--stage is {stage}, the recipe has {len(loaded.stages)}; give 1 to {len(loaded.stages)}.")
    numbers = parse_numbers("--ranks", ranks, MOST_RANKS)
    kind, memory = kind_of(device), None if device_memory is None else memory_size(device_memory)
    measurement = load_scan(loaded)
    asked_of_scan = loaded.object, loaded.probe, loaded.positions.subpixel, loaded.precision, MARGIN_PX
    scan = scan_of(measurement, *asked_of_scan, pieces_for_scan(loaded.optics.values(), measurement)[0])
    engine = loaded.stages[stage - 1]
    local_cores = cores() if kind == "cpu" else 0
    plans = [
        plan_layouts(scan, engine, loaded.seed, count, kind, shares_memory=count <= local_cores) for count in numbers
    ]
    rows = [plan for by_layout in plans for plan in by_layout.values()]
    if as_json:
        typer.echo(json.dumps({"device": kind, "memory": memory, "plans": [asdict(plan) for plan in rows]}, indent=1))
        return
    height, width = scan.extent
    typer.echo(
        f"{len(scan.positions)} views of {scan.window[0]} x {scan.window[1]}, "
        f"object {f'{scan.object_modes} modes of ' * (scan.object_modes > 1)}{scan.slices} x {height} x {width}, "
        f"{engine.name}, batch {engine.batch or 'all views'}"
    )
    _print(rows, memory)
    if memory is not None:
        for by_layout in plans:
            typer.echo(f"{by_layout['tiled'].ranks} ranks: {fitting(by_layout, memory)}.")


def fitting(plans: dict[LayoutName, LayoutPlan], memory: float) -> str:
    """Return in words which layouts fit into this memory of a rank (bytes), and which a run takes."""
    from ptymesh.planning.plan import why_tiles

    if plans["tiled"].ranks == 1:
        return "replicated; one rank holds all of the object"
    if why := why_tiles(plans, memory):
        return f"tiled; {why}"
    return "either layout fits; a run takes the faster one over the links that it measures"


def kind_of(device: str) -> str:
    """Return the kind of device to plan for.

    Raises:
        BadInput: the kind is unknown.
    """
    from ptymesh.distributed.devices import device_for
    from ptymesh.errors import BadInput

    if device not in ("auto", "cpu", "cuda", "xpu"):
        raise BadInput(f"--device is {device!r}; give auto, cpu, cuda or xpu.")
    return device_for("auto", 0).type if device == "auto" else device


def memory_size(text: str) -> int:
    """Return the bytes of a size with a unit, such as 80GB, as a recipe's memory_budget takes it.

    Raises:
        BadInput: it is no such size.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from ptymesh.errors import BadInput

    with suppress(ValidationError):
        if text[-1:].isalpha() and (size := TypeAdapter(ByteSize).validate_python(text)) > 0:
            return int(size)
    raise BadInput(f"--device-memory is {text!r}; give a size with a unit, such as 80GB.")


def _print(rows: list[LayoutPlan], memory: float | None) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from ptymesh.files import size
    from ptymesh.run_folder.terminal import Terminal

    names = ("ranks", "object", "memory", "patterns", "chunk", "a batch", "messages", "balance")
    table = Table(*names, box=SIMPLE, padding=0)
    for column in table.columns[2:]:
        column.justify = "right"
        column.no_wrap = True
    for plan in rows:
        over = " !" if memory is not None and plan.memory > memory else ""
        table.add_row(
            str(plan.ranks),
            plan.layout,
            size(plan.memory) + over,
            size(plan.patterns),
            size(plan.chunk),
            size(plan.bytes_per_batch),
            f"{plan.messages + plan.reductions:.1f}",
            f"{plan.balance:.2f}",
        )
    Terminal().print(table)
    typer.echo("memory: of the fullest rank, patterns included; chunk: waves of the views that it sweeps at a time;")
    typer.echo("a batch: bytes and messages that a rank hands over;")
    typer.echo("balance: how much of the speed of equal shares of a batch its owners leave, at most 1.")
    if memory is not None and any(plan.memory > memory for plan in rows):
        typer.echo("! is more than the memory of a device; give --memory-budget to the run, or take more ranks.")
