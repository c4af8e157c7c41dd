"""ptymesh doctor: inventory and test of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    json_: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder whose disk is timed, such as that of the output.")
    ] = Path("."),
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds after which a backend hangs.")] = 60.0,
    ranks: Annotated[int, typer.Option(metavar="N", help="Ranks of the test on the CPU.")] = 2,
) -> None:
    """Look at devices, backends, collectives and disk. Status 1 where a backend does not work."""
    from ptymesh.errors import BadInput
    from ptymesh.launcher.doctor import examine
    from ptymesh.launcher.rank_processes import MOST_RANKS

    if not timeout > 0:
        raise BadInput(f"--timeout is {timeout}; give a number of seconds above 0.")
    if not 2 <= ranks <= MOST_RANKS:
        raise BadInput(f"--ranks is {ranks}; give 2 to {MOST_RANKS}, as one rank needs no backend.")
    if not folder.is_dir():
        raise BadInput(f"There is no folder {folder}; give an existing one with --dir.")
    facts = examine(folder, timeout, ranks)
    facts["kernels"] = kernels()
    if not facts["kernels"]:
        facts["advice"].append(
            "The kernels of CPUs are off, as numba cannot be imported, and CPUs are slower for it: install a numba "
            "that goes with this numpy."
        )
    elif not all(facts["kernels"].values()):
        facts["advice"].append(
            "`ptymesh warm` compiles the kernels for this processor now; otherwise the first run does, which takes it "
            "a minute or two."
        )
    if json_:
        import json

        typer.echo(json.dumps(facts, indent=1))
    else:
        for line in lines(facts):
            typer.echo(line)
    if not all(tried["works"] for tried in facts["backends"]):
        raise typer.Exit(1)


def kernels() -> dict[str, bool]:
    """Return for each precision whether the kernels for the CPU are compiled; empty without a compiler."""
    from ptymesh.kernels import can_compile

    if not can_compile():
        return {}
    from ptymesh.kernels.cpu import compiling

    return {name: not compiling.missing(waves) for name, waves in (("single", "complex64"), ("double", "complex128"))}


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the results of `examine` as lines of text."""
    system = facts["system"]
    yield f"ptymesh {system['ptymesh']}, torch {system['torch']}, Python {system['python']}, {system['platform']}"
    more = {"CUDA": system["cuda"], "ROCm": system["hip"], "driver": system["driver"], "triton": system["triton"]}
    yield ", ".join([f"{name} {value}" for name, value in more.items() if value] + [f"numba {system['numba']}"])
    nodes = f" on {len(system['numa_nodes'])} NUMA nodes" if len(system["numa_nodes"]) > 1 else ""
    yield (
        f"{system['host']}: {system['cores']} cores{nodes}, "
        f"{_gib(system['memory_free_bytes'])} of {_gib(system['memory_bytes'])} free, "
        f"network {' '.join(system['interfaces'])}, backends {' '.join(system['backends'])}"
    )
    for device in facts["devices"]:
        memory = f", {_gib(device['memory_free_bytes'])} of {_gib(device['memory_bytes'])} free" * (
            "memory_bytes" in device
        )
        yield f"{device['kind']}:{device['index']}  {device['name']}{memory}{' (MIG slice)' * device['slice']}"
    for name, value in facts["environment"].items():
        yield f"{name}={value}"
    for tried in facts["backends"]:
        yield f"{tried['backend']}, {tried['ranks']} {tried['device']} ranks: " + (
            "works" if tried["works"] else "hangs" if tried["hangs"] else "fails"
        )
        for row in tried["allreduce"]:
            size, microseconds = _size(row["bytes"]), row["seconds"] * 1e6
            yield f"  all-reduce of {size:>8}  {microseconds:10.0f} us  {row['GB_per_s']:8.3f} GB/s"
    for row in facts["peers"]:
        direct = {True: "direct", False: "through the host", None: "does not arrive"}[row["direct"]]
        latency = "" if row["latency_us"] is None else f"  {row['latency_us']:.0f} us"
        yield f"cuda:{row['from']} -> cuda:{row['to']}  {row['GB_per_s']:.1f} GB/s{latency}  {direct}"
    ready = [name for name, is_ready in facts["kernels"].items() if is_ready]
    yield f"kernels for this processor: {'compiled for ' + ' and '.join(ready) + ' precision' if ready else 'none yet'}"
    disk = facts["disk"]
    yield (
        f"disk of {disk['folder']}: write {disk['write_MB_per_s']:.0f} MB/s, read {disk['read_MB_per_s']:.0f} MB/s, "
        f"{_gib(disk['free_bytes'])} free"
    )
    yield from (f"* {sentence}" for sentence in facts["advice"])


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
