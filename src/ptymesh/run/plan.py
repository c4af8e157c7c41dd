"""What a run will need on so many ranks: memory, messages, time, for both layouts; and which layout to take.

N, B, R    views, views of a batch, ranks
L, M       slices, modes;  h, w  window;  b = BLOCK

Owners, parts and batches are those of a real run, so what travels is counted, not estimated: per batch and rank,
Replicated   an all-reduce of the blocks that the batch touches (object's sum and weight), and of the probe's sums
Panels       the same layout where ranks share memory: the touched blocks of a rank's panel, which are written there
Tiled        the touched blocks that two ranks hold, to each neighbour, or read there where ranks share memory; an
             all-reduce of the probe's sums

Times are a model: what the busiest rank computes at this machine's pace (device_pace.py), by the costs of engine and
model (cost_model.py): its views, the engine's step on what it has of the object, and what every rank does again for
each batch; latency and bandwidth of one link per rank, all-reduces as rings for their bytes and as trees for their
latency.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import psutil
import torch
from torch import Tensor

from ptymesh.distributed.boxes import Blocks
from ptymesh.distributed.devices import KINDS
from ptymesh.distributed.exact import HIGHEST, LOWEST
from ptymesh.distributed.layout import Replicated
from ptymesh.distributed.panels import Panels
from ptymesh.distributed.tiled import Tiled
from ptymesh.distributed.tiles import Rect
from ptymesh.distributed.world import World
from ptymesh.engines import Engine
from ptymesh.engines.descent import LADDER
from ptymesh.engines.elementwise import Elementwise
from ptymesh.estimate import BLOCK, REACH, Estimate
from ptymesh.files import size
from ptymesh.limits import check_room
from ptymesh.measurement import Measurement
from ptymesh.physics.model import Subpixel, reach_of
from ptymesh.problem import CHUNK_BYTES
from ptymesh.run.batches import balance, draw
from ptymesh.run.cost_model import EpochSize, cost_of_stage
from ptymesh.run.device_pace import DevicePace, measure_pace
from ptymesh.run.initial import frame
from ptymesh.run.starts import ObjectOptions, ProbeOptions
from ptymesh.types import Precision

LayoutName = Literal["replicated", "tiled"]

#: Batches, and ranks, that are looked at; of more, evenly chosen ones.
BATCHES, RANKS = 8, 24
#: Fraction of the speed of the Fourier transforms alone that is taken as a reconstruction's.
OF_FLOOR = 0.4
#: Working arrays of a chunk, in arrays of its waves; and bytes per view of what every rank knows of all views.
CHUNK_ARRAYS, VIEW_BYTES = 10, 160
#: Of the tables of the plan itself, for each block of the object, rounded up from what was measured.
_BLOCK_BYTES = 24
#: Share of the memory of a device or host that a run may fill before another layout is taken.
FULL = 0.8
#: Tiled is taken for speed alone where it is expected to be faster by more than this.
GAIN = 1.25


@dataclass(frozen=True)
class Scan:
    """What a plan depends on: positions (N, 2), window, frame of the object, modes, slices, bytes of a pattern and of a
    real number, pixels that views reach beyond their windows, bytes of a real number of waves that are kept (0: as of
    any), and whether the detector is in the near field."""

    positions: np.ndarray
    window: tuple[int, int]
    extent: tuple[int, int]
    origin: tuple[float, float]
    modes: int
    slices: int
    opr_modes: int
    pattern_bytes: int
    real_bytes: int
    reach: int
    kept_bytes: int = 0
    near: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Of waves."""
        return torch.complex128 if self.real_bytes == 8 else torch.complex64

    @property
    def anchors(self) -> np.ndarray:
        """(N, 2) int64, object pixels."""
        return np.floor(self.positions + np.array(self.origin) + 0.5).astype(np.int64)


@dataclass(frozen=True)
class Machine:
    """Bandwidth (B/s) and latency (s) between ranks, views that one thread sweeps per second and what a batch takes
    besides (s), as device_pace.py measures them, bytes of a rank's memory (None: unknown), its kind of device (cpu,
    cuda, xpu), on which the size of chunks depends, whether ranks share memory, and threads of a rank."""

    link: float
    latency: float
    rate: float
    memory: float | None = None
    device: str = "cpu"
    shared: bool = False
    batch_s: float = 0.0
    threads: int = 1


@dataclass(frozen=True)
class Cost:
    """What a layout costs on so many ranks.

    memory, patterns, object: bytes of the fullest rank, all of it, and of patterns and of the object's arrays in it;
    bytes_sent, messages: of the busiest rank, mean over batches; bytes_reduced, reductions: all-reduces per batch.
    compute_s, epoch_s: predicted; efficiency: against one rank.
    balance: how much of the speed of equal shares the batches of an epoch leave (batches.balance).
    """

    layout: LayoutName
    ranks: int
    memory: int
    patterns: int
    object: int
    bytes_sent: float
    messages: float
    bytes_reduced: float
    reductions: int
    compute_s: float
    epoch_s: float
    efficiency: float
    balance: float

    @property
    def bytes_per_batch(self) -> float:
        """Everything that a rank hands over per batch."""
        return self.bytes_sent + self.bytes_reduced


@dataclass(frozen=True)
class _Traits:
    """What a step of an engine does besides one sweep of its batch.

    sweeps: sums over the batch; objects, probes: how many of them have the object's, the probe's; parts: that sums have
    in single precision; maxima: of touched fields, over tiles; dots: inner products over tiles, asked: so many
    times, in two messages; numbers, later: further sums of numbers, with the others and after them; per_view: doubles
    for each view; arrays: of the object's size and precision that it keeps or needs on the way; waves: for each own
    view, of all modes, that it keeps; swept: for each own view of a batch.
    """

    sweeps: int = 1
    objects: int = 1
    probes: int = 1
    parts: int = 1
    maxima: int = 1
    dots: int = 0
    asked: int = 0
    numbers: int = 0
    later: int = 0
    per_view: int = 0
    arrays: float = 0.0
    waves: int = 0
    swept: int = 0


#: Of a number that is summed exactly (distributed/exact.py), in its limbs.
NUMBER_BYTES = 8 * (1 + HIGHEST - LOWEST)
_DESCENT = _Traits(parts=2, numbers=3, later=len(LADDER) + 1, dots=3, asked=3, arrays=3)
#: By name; a user's own engine is taken for one like rPIE, another torch optimiser for one like Adam.
_TRAITS = {
    "mpie": _Traits(arrays=2),
    "lsqml": _Traits(maxima=0, per_view=5, arrays=1.5, swept=2),
    "dm": _Traits(sweeps=2, parts=2, waves=1),
    "raar": _Traits(sweeps=2, parts=2, waves=2),
    "ap": _Traits(sweeps=2, parts=2, waves=1),
    "cg": _DESCENT,
    "bh": replace(_DESCENT, later=6, dots=0, asked=0),
    "lbfgs": _Traits(sweeps=2, objects=2, probes=2, maxima=2, numbers=6, dots=65, asked=2, arrays=24),
}


def _traits(engine: Engine) -> _Traits:
    like_adam = _Traits(numbers=3, arrays=7) if isinstance(engine, Elementwise) else _Traits()
    return _TRAITS.get(engine.name, like_adam)


def sweeps_of(engine: Engine) -> int:
    """Sums over its batch that a step of this engine makes."""
    return _traits(engine).sweeps


def sum_bytes_of(scan: Scan, engine: Engine) -> int:
    """Of a real number in sums over views of this engine."""
    return _sum_bytes(scan, _traits(engine))


def reductions_of(engine: Engine) -> int:
    """All-reduces of a step, where no maxima have to be compared."""
    traits = _traits(engine)
    return traits.sweeps + bool(traits.later + traits.per_view)


class _Rank(World):
    """A place in a world that is only thought of."""

    def __init__(self, rank: int, size: int, shares_memory: bool) -> None:
        super().__init__()
        self.rank, self.size, self.shares_memory = rank, size, shares_memory


def scan_of(
    measurement: Measurement,
    object: ObjectOptions,
    probe: ProbeOptions,
    subpixel: Subpixel,
    precision: Precision,
    margin_px: int,
) -> Scan:
    """What a plan depends on, of a data set and the keys of a recipe; no pattern is read.

    Raises BadInput where the tables of the object's blocks would not fit into memory.
    """
    origin, extent = frame(measurement.positions, measurement.window, max(margin_px, REACH))
    found = 1 if measurement.probe is None else len(measurement.probe)
    h, w = measurement.window
    height, width = extent
    check_room(
        _BLOCK_BYTES * (height // BLOCK) * (width // BLOCK),
        f"Planning an object of {height} x {width} pixels",
        "check positions.unit and the object pixel",
    )
    return Scan(
        measurement.positions,
        (h, w),
        extent,
        (float(origin[0]), float(origin[1])),
        probe.modes or found,
        object.slices,
        probe.opr_modes,
        np.dtype(measurement.patterns.dtype).itemsize * h * w,
        8 if precision == "double" else 4,
        reach_of(subpixel),
        {"single": 4, "mixed": 2, "double": 8}[precision],
        measurement.geometry.propagation != "far_field",
    )


#: Between ranks, where nobody says: bandwidth (B/s) and latency (s).
LINK, LATENCY = 10e9, 20e-6


def machine_of(
    scan: Scan,
    device: torch.device | str,
    threads: int,
    link: float = LINK,
    latency: float = LATENCY,
    memory: float | None = None,
) -> Machine:
    """A machine of this device, or of so many threads, whose pace is measured here."""
    pace, kind = measure_pace(scan.window, device, scan.dtype, threads), torch.device(device).type
    return Machine(link, latency, pace.rate, memory, kind, False, pace.batch_s, threads if kind == "cpu" else 1)


def shared_by(machine: Machine, ranks: int, cores: int) -> Machine:
    """What each of so many ranks has of a machine: up to as many as it has cores they share it, more have one each."""
    if ranks > cores:
        return machine
    return replace(machine, shared=True, threads=max(1, machine.threads // ranks))


#: The choice of a rank without others, and why.
ALONE: tuple[LayoutName, str] = ("replicated", "one rank holds all of the object")


def decide(world: World, scan: Scan, engine: Engine, seed: int) -> tuple[LayoutName, str]:
    """The layout for these ranks, the same on all of them, and why. Collective: links are tried for some 0.1 s."""
    if world.size == 1:
        return ALONE
    own = machine_of(scan, world.device, torch.get_num_threads(), *measured_link(world), memory_of(world.device))
    assert own.memory is not None
    here = torch.tensor([-own.rate, own.batch_s, -own.memory], dtype=torch.float64)
    slowest, batch_s, least = world.max(here.to(world.device))[0].tolist()
    machine = replace(own, rate=-slowest, batch_s=batch_s, memory=-least, shared=world.shares_memory)
    return choose(costs(scan, engine, seed, world.size, machine), machine)


def memory_of(device: torch.device) -> float:
    """Bytes that a rank may count on: its device's, or its share of what is free on this host."""
    if device.type in KINDS:
        return float(torch.get_device_module(device).get_device_properties(device).total_memory)
    return psutil.virtual_memory().available / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def costs(scan: Scan, engine: Engine, seed: int, ranks: int, machine: Machine) -> dict[LayoutName, Cost]:
    """Costs of both layouts on `ranks` ranks, for the first epoch of a stage."""
    drawn = draw(scan.positions, engine.batch, seed, 0, engine.order)
    some = _spread(len(drawn), BATCHES)
    world = _Rank(0, ranks, machine.shared and ranks > 1)
    compact = engine.order == "compact"
    whole: Replicated | Tiled = Replicated(world, scan.positions, compact)
    if machine.shared and scan.extent[0] // BLOCK >= ranks > 1:
        whole = Panels(world, scan.positions, scan.window, compact)
    tiled = Tiled(world, scan.positions, scan.window)
    alone = _Rank(0, 1, False)
    one = _cost("replicated", Replicated(alone, scan.positions), alone, scan, engine, drawn, some, machine).epoch_s
    found: dict[LayoutName, Cost] = {
        "replicated": _cost("replicated", whole, world, scan, engine, drawn, some, machine),
        "tiled": _cost("tiled", tiled, world, scan, engine, drawn, some, machine),
    }
    return {name: replace(cost, efficiency=one / (ranks * cost.epoch_s)) for name, cost in found.items()}


def choose(found: dict[LayoutName, Cost], machine: Machine) -> tuple[LayoutName, str]:
    """The layout to take, and why, in words."""
    whole, tiled = found["replicated"], found["tiled"]
    if whole.ranks == 1:
        return "replicated", "one rank holds all of the object"
    limit = None if machine.memory is None else FULL * machine.memory
    if limit is not None and whole.memory > limit:
        return "tiled", f"the whole object would make {size(whole.memory)} per rank, tiles make {size(tiled.memory)}"
    gain = whole.epoch_s / tiled.epoch_s
    if gain > GAIN:
        return "tiled", f"an epoch is expected to be {gain:.1f} times faster than with the whole object on every rank"
    return "replicated", f"tiles would be {gain:.2f} times as fast, and the whole object fits on every rank"


def _cost(
    name: LayoutName,
    layout: Replicated | Tiled,
    world: _Rank,
    scan: Scan,
    engine: Engine,
    drawn: list[np.ndarray],
    some: list[int],
    machine: Machine,
) -> Cost:
    """Of all batches that are drawn; what travels is counted for some of them. Efficiency is not known yet."""
    layout.place(scan.extent, scan.origin, scan.anchors)
    looked_at = _spread(world.size, RANKS) if isinstance(layout, Tiled) else [0]
    traffic, objects, stepped, held = [], [], [], []
    price = cost_of_stage(engine, scan.near, scan.slices, scan.modes, scan.opr_modes)
    for rank in looked_at:
        world.rank = rank
        if isinstance(layout, Tiled):
            layout.set_parts(layout.tiles, layout.parts)
        part = layout.parts[rank] if isinstance(layout, Tiled) else Rect(0, 0, *scan.extent)
        here = [_blocks(layout, scan, part, drawn[i]) for i in some]
        sizes = [len(drawn[i]) for i in some]
        traffic.append([_traffic(layout, scan, engine, blocks, n) for blocks, n in zip(here, sizes, strict=True)])
        objects.append(_object_bytes(scan, engine, layout, part, max(len(blocks.rows) for blocks in here)))
        touched = BLOCK**2 * float(np.mean([len(blocks.rows) for blocks in here]))
        held.append(math.prod(part.shape))
        stepped.append(held[-1] if price.engine_cost.whole else touched)
    world.rank = 0
    sent, messages, reduced = np.array(traffic).mean(1).max(0)
    owned = int(np.bincount(layout.owner, minlength=world.size).max())
    patterns, obj = owned * scan.pattern_bytes, max(objects)
    shares = [int(np.bincount(layout.owner[batch], minlength=world.size).max()) for batch in drawn]
    each = EpochSize(sum(shares), math.prod(scan.window), len(drawn), max(stepped), max(held))
    compute = DevicePace(machine.rate, machine.batch_s).epoch_seconds(price, each, machine.threads)
    reductions = _reductions(layout, engine) if world.size > 1 else 0
    steps = math.ceil(math.log2(world.size)) if world.size > 1 else 0
    if world.size == 1:
        sent = messages = reduced = 0.0
    talk = (
        messages * machine.latency
        + sent / machine.link
        + reductions * 2 * steps * machine.latency
        + 2 * (1 - 1 / world.size) * reduced / machine.link
    )
    epoch = compute + len(drawn) * talk
    return Cost(
        name,
        world.size,
        patterns + obj + _waves(scan, engine, owned, max(shares), machine.device) + VIEW_BYTES * len(scan.positions),
        patterns,
        obj,
        float(sent),
        float(messages),
        float(reduced),
        reductions,
        float(compute),
        float(epoch),
        1.0,
        balance(layout.owner, drawn, world.size),
    )


def _blocks(layout: Replicated | Tiled, scan: Scan, part: Rect, batch: np.ndarray) -> Blocks:
    """As the run's layout finds them, on an object of which no pixel is kept."""
    pixel = torch.empty((scan.slices, *part.shape), dtype=torch.complex64, device="meta")
    probe = torch.empty((scan.modes, *scan.window), dtype=torch.complex64, device="meta")
    nothing: Tensor = torch.zeros(0, 2)
    estimate = Estimate(
        pixel, probe, nothing, nothing, nothing, nothing, nothing, opr=probe[:0], corner=part.corner, extent=scan.extent
    )
    return layout.touched_blocks(layout.window_boxes(estimate, torch.as_tensor(scan.anchors), scan.reach), batch)


def _traffic(
    layout: Replicated | Tiled, scan: Scan, engine: Engine, blocks: Blocks, views: int
) -> tuple[float, float, float]:
    """Bytes and messages sent to neighbours, bytes of all-reduces, of one rank and batch."""
    traits = _traits(engine)
    real = _sum_bytes(scan, traits)
    block = 3 * real * scan.slices * BLOCK * BLOCK  # complex sum and real weight
    pixels = scan.window[0] * scan.window[1]
    weights = traits.sweeps * (pixels * (1 + 3 * scan.opr_modes) * real + 2 * 8)
    probe = traits.probes * pixels * 2 * scan.modes * real + weights
    others = probe + NUMBER_BYTES * (traits.numbers + traits.later) + 8 * traits.per_view * views
    if not isinstance(layout, Tiled):
        return 0.0, 0.0, traits.objects * block * len(blocks.rows) + others
    if isinstance(layout, Panels):
        handed = traits.objects * block * len(blocks.rows)
        seen = 2 * scan.real_bytes * scan.slices * BLOCK * BLOCK * len(blocks.rows)
        return 0.0, 0.0, handed + seen + others + traits.maxima * scan.slices * scan.real_bytes
    sent = (
        traits.objects
        * block
        * sum(len(places) for way in (blocks.sums_sent, blocks.totals_sent) for places in way.values())
    )
    dots = 8 * (1 + (2 if scan.real_bytes == 8 else 1)) * traits.dots  # how large terms are, and their sums
    over_tiles = traits.maxima * scan.slices * scan.real_bytes + dots
    if layout.in_memory:
        return 0.0, 0.0, traits.objects * block * (blocks.counted or 0) + others + over_tiles
    return float(sent), float(traits.objects * (len(blocks.sums_sent) + len(blocks.totals_sent))), others + over_tiles


def _sum_bytes(scan: Scan, traits: _Traits) -> int:
    """Of a real number in a sum over views, of all its parts."""
    return 8 * (2 if scan.real_bytes == 8 else traits.parts)


def _reductions(layout: Replicated | Tiled, engine: Engine) -> int:
    """All-reduces per batch."""
    traits = _traits(engine)
    shared = traits.sweeps + bool(traits.later + traits.per_view)
    return shared + (traits.maxima + 2 * traits.asked if isinstance(layout, Tiled) else 0)


def _object_bytes(scan: Scan, engine: Engine, layout: Replicated | Tiled, part: Rect, touched: int) -> int:
    """Estimate, accumulators, what a first step begins with, what the engine remembers, a batch's sums in blocks; in
    panels, sums of the whole object, and this rank's share of what all see of it."""
    traits, pixels = _traits(engine), part.shape[0] * part.shape[1]
    arrays = 2 + 2 + 1 + 2 + 2 * traits.arrays
    sums = 3 * _sum_bytes(scan, traits)
    if isinstance(layout, Panels):
        whole = scan.extent[0] * scan.extent[1]
        return int(scan.slices * ((arrays + 2) * scan.real_bytes * pixels + sums * whole))
    return int(scan.slices * ((arrays * scan.real_bytes + sums) * pixels + 2 * sums * touched * BLOCK * BLOCK))


def _waves(scan: Scan, engine: Engine, owned: int, share: int, device: str) -> int:
    """Bytes of waves: of a chunk, and those that the engine keeps of its `owned` views and of `share` in a batch."""
    wave = 2 * scan.real_bytes * scan.modes * scan.window[0] * scan.window[1]
    chunk = max(wave, min(wave * share, CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"])))
    traits = _traits(engine)
    kept = wave * (scan.kept_bytes or scan.real_bytes) // scan.real_bytes
    return CHUNK_ARRAYS * chunk + 12 * wave + (traits.waves * owned + traits.swept * share) * kept


def _spread(count: int, most: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, most)).round()})


# --- what is measured at the start ---


def measured_link(world: World) -> tuple[float, float]:
    """Bandwidth (B/s) and latency (s) of all-reduces, the slowest rank's. Collective, takes some 0.1 s."""
    if world.size == 1:
        return math.inf, 0.0
    steps = 2 * math.ceil(math.log2(world.size))
    small, large = torch.zeros(1, device=world.device), torch.zeros(1 << 20, device=world.device)
    seconds = []
    for tensor, times in ((small, 8), (large, 3)):
        world.sum(tensor)
        began = time.perf_counter()
        for _ in range(times):
            float(world.sum(tensor)[0][0])
        seconds.append((time.perf_counter() - began) / times)
    latency, transfer = world.max(torch.tensor(seconds, dtype=torch.float64, device=world.device))[0].tolist()
    payload = 2 * (1 - 1 / world.size) * large.numel() * large.element_size()
    return payload / max(transfer - latency, 1e-6), latency / steps
