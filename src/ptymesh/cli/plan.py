"""ptymesh plan: memory, messages and time on given numbers of ranks, without running."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ptymesh.run.plan import Cost, Machine

#: Units of quantities in options, and their values in bytes or seconds.
UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
#: Largest number of ranks that is accepted.
MOST_RANKS = 10**6


def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="What would be done with which data.")],
    ranks: Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of ranks.")] = "1,2,4,8,16,64",
    stage: Annotated[int, typer.Option(metavar="N", help="Stage of the recipe, the first is 1.")] = 1,
    device_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of a rank, e.g. 80GB: marks what does not fit.")
    ] = None,
    link: Annotated[str, typer.Option(metavar="SPEED", help="Bandwidth of a rank's link, e.g. 50GB/s.")] = "10GB/s",
    latency: Annotated[str, typer.Option(metavar="TIME", help="Of a message between ranks, e.g. 10us.")] = "20us",
    rate: Annotated[
        float | None,
        typer.Option(metavar="N", help="Views a second of one rank with rPIE and one mode; else measured here."),
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="KIND", help="What a rank computes on: auto (as here), cpu, cuda, xpu.")
    ] = "auto",
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Memory, messages and time on so many ranks, for both layouts of the object, without running."""
    from ptymesh.errors import BadInput
    from ptymesh.io import load_measurement
    from ptymesh.launcher.launch import cores
    from ptymesh.run.floor import pairs
    from ptymesh.run.outlook import lines, outlook
    from ptymesh.run.plan import Machine, choose, costs, machine_of, scan_of, shared_by
    from ptymesh.run.recipe import load_recipe
    from ptymesh.run.reconstruction import MARGIN_PX

    loaded = load_recipe(recipe, set_ or ())
    if not 1 <= stage <= len(loaded.stages):
        raise BadInput(f"--stage is {stage}, the recipe has {len(loaded.stages)}; give 1 to {len(loaded.stages)}.")
    if rate is not None and not rate > 0:
        raise BadInput(f"--rate is {rate}; give views a second, above 0.")
    kind, measure_on = kind_of(device, rate)
    measurement = load_measurement(loaded.data, loaded.positions)
    scan = scan_of(measurement, loaded.object, loaded.probe, loaded.positions.subpixel, loaded.precision, MARGIN_PX)
    links = quantity("--link", link.removesuffix("/s")), quantity("--latency", latency)
    memory = None if device_memory is None else quantity("--device-memory", device_memory)
    here = cores() if kind == "cpu" else 0
    if rate is None:
        machine = machine_of(scan, measure_on, here, *links, memory)
    else:
        machine = Machine(*links, rate, memory, kind)
    engine = loaded.stages[stage - 1]
    found = [costs(scan, engine, loaded.seed, count, shared_by(machine, count, here)) for count in counts(ranks)]
    rows = [cost for both in found for cost in both.values()]
    ahead = outlook(scan, engine, pairs(measurement.geometry.propagation, loaded.positions.subpixel))
    if as_json:
        told = {"machine": asdict(machine), "costs": [asdict(cost) for cost in rows]}
        told["outlook"] = [{**asdict(one), "efficiency": one.efficiency, "fault": one.fault} for one in ahead]
        typer.echo(json.dumps(told, indent=1))
        return
    height, width = scan.extent
    batch = engine.batch or "all views"
    typer.echo(
        f"{len(scan.positions)} views of {scan.window[0]} x {scan.window[1]}, "
        f"object {scan.slices} x {height} x {width}, "
        f"{engine.name}, batch {batch}"
    )
    a = "thread" if rate is None and kind == "cpu" else "rank"
    typer.echo(f"{machine.rate:,.0f} views/s per {a} with rPIE and one mode, link {link}, latency {latency}")
    _print(rows, machine)
    for both in found:
        name, why = choose(both, machine)
        typer.echo(f"{both['tiled'].ranks} ranks: {name}; {why}.")
    for line in lines(ahead):
        typer.echo(line)


def kind_of(device: str, rate: float | None) -> tuple[str, str]:
    """Return the kind of device to plan for, and the device here on which to measure a rate.

    Raises:
        BadInput: the kind is unknown, or there is no such device here and no rate is given.
    """
    from ptymesh.distributed.devices import device_for
    from ptymesh.errors import BadInput

    if device not in ("auto", "cpu", "cuda", "xpu"):
        raise BadInput(f"--device is {device!r}; give auto, cpu, cuda or xpu.")
    if device != "auto" and rate is not None:
        return device, "cpu"
    try:
        here = device_for(device, 0)
    except BadInput as error:
        raise BadInput(f"--device is {device}, and none is here to measure on; give its --rate as well.") from error
    return here.type, str(here)


def counts(ranks: str) -> list[int]:
    """Parse numbers of ranks such as "1,8,64".

    Raises:
        BadInput: they are no numbers, or out of range.
    """
    from ptymesh.errors import BadInput

    try:
        found = [int(part) for part in ranks.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1 or max(found) > MOST_RANKS:
        raise BadInput(
            f"--ranks is {ranks!r}; give numbers from 1 to {MOST_RANKS} with commas between them, such as 1,8,64."
        )
    return found


def quantity(option: str, text: str) -> float:
    """Parse a positive number with a unit of UNITS; return it in bytes or seconds.

    Raises:
        BadInput: it is no such number.
    """
    from ptymesh.errors import BadInput

    number = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    try:
        value = float(number) * UNITS[text[len(number) :].strip()]
    except (ValueError, KeyError):
        value = 0.0
    if not 0 < value < math.inf:
        raise BadInput(f"{option} is {text!r}; give a number with a unit, such as 80GB, 50GB/s or 10us.")
    return value


def _print(rows: list[Cost], machine: Machine) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from ptymesh.files import size
    from ptymesh.run.terminal import Terminal

    names = ("ranks", "object", "memory", "patterns", "a batch", "messages", "balance", "s/epoch", "used")
    table = Table(*names, box=SIMPLE, padding=0)
    for column in table.columns[2:]:
        column.justify = "right"
        column.no_wrap = True
    for cost in rows:
        over = " !" if machine.memory is not None and cost.memory > machine.memory else ""
        table.add_row(
            str(cost.ranks),
            cost.layout,
            size(cost.memory) + over,
            size(cost.patterns),
            size(cost.bytes_per_batch),
            f"{cost.messages + cost.reductions:.1f}",
            f"{cost.balance:.2f}",
            f"{cost.epoch_s:.3g}",
            f"{100 * cost.efficiency:.0f} %",
        )
    Terminal().print(table)
    typer.echo("memory: of the fullest rank, patterns included; a batch: bytes and messages that a rank hands over;")
    typer.echo("balance: how much of the speed of equal shares of a batch its owners leave, at most 1.")
    if machine.memory is not None and any(cost.memory > machine.memory for cost in rows):
        typer.echo("! is more than the memory of a device; give --memory-budget to the run, or take more ranks.")
