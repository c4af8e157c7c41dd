"""Memory and messages of a run on several ranks, for both layouts of the object, without running.

N, B, R    views, views of a batch, ranks
L, M       slices, modes;  h, w  window;  b = BLOCK

Owners, parts and batches are those of a real run, so what travels is counted, not estimated: per batch and rank,
Replicated   an all-reduce of the blocks that the batch touches (object's sum and weight), and of the probe's sums
Panels       the same layout where ranks share memory: the touched blocks of a rank's panel, which are written there
Tiled        the touched blocks that two ranks hold, to each neighbour, or read there where ranks share memory; an
             all-reduce of the probe's sums
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.exact import HIGHEST, LOWEST
from ptymesh.distributed.layouts.boxes import Blocks
from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.layouts.panels import Panels
from ptymesh.distributed.layouts.tiled import Tiled
from ptymesh.distributed.tiles import Rect
from ptymesh.distributed.world import World
from ptymesh.engines import Engine
from ptymesh.estimate import BLOCK, REACH, Estimate
from ptymesh.files import size
from ptymesh.limits import check_room
from ptymesh.measurement import Measurement, evenly_spread
from ptymesh.physics.detector.pieces import binning_of
from ptymesh.physics.model import Subpixel, reach_of
from ptymesh.physics.object_models import TRANSMISSION, object_model_of
from ptymesh.physics.operators import Piece, fan_out_of
from ptymesh.planning.batches import balance, draw
from ptymesh.planning.cost_model import EpochSize
from ptymesh.problem import CHUNK_BYTES
from ptymesh.problem.tiled_sums import PARTS
from ptymesh.recipe.initial import frame
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions
from ptymesh.types import Precision

LayoutName = Literal["replicated", "tiled"]

#: Batches, and ranks, that are looked at; of more, evenly chosen ones.
BATCHES, RANKS = 8, 24
#: Working arrays of a chunk, in arrays of its waves; and bytes per view of what every rank knows of all views.
CHUNK_ARRAYS, VIEW_BYTES = 10, 160
#: Bytes of the tables of the plan itself for each block of the object, rounded up from what was measured.
_BLOCK_BYTES = 24
#: Share of the memory of a device or host that a run may fill before another layout is taken.
FULL = 0.8


@dataclass(frozen=True)
class PlannedScan:
    """Numbers of a scan and a recipe that a plan depends on.

    Attributes:
        positions: (N, 2), object pixels.
        window: (h, w) pixels.
        extent: (H, W) pixels of the object.
        origin: of the object, (y, x) pixels.
        modes, slices, opr_modes: numbers of them.
        pattern_bytes: of a pixel of a pattern.
        real_bytes: of a real number, 4 or 8.
        reach: pixels that views reach beyond their windows.
        kept_bytes: of a real number of waves that are kept, 0 for `real_bytes`.
        near: True if the detector is in the near field.
        fan_out: waves on the detector that the model makes of each mode.
        value_numbers: real numbers of each pixel from which the transmission follows, 1 of a potential; 0 without any.
        object_modes: incoherent modes of the object, each of so many slices.
        tiled_numbers: real numbers of each pixel of the object that tiled unknowns of the optics have.
    """

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
    fan_out: int = 1
    value_numbers: int = 0
    object_modes: int = 1
    tiled_numbers: int = 0

    @property
    def planes(self) -> int:
        """Slices of all object modes."""
        return self.slices * self.object_modes

    @property
    def dtype(self) -> torch.dtype:
        """Type of waves."""
        return torch.complex128 if self.real_bytes == 8 else torch.complex64

    @property
    def anchors(self) -> np.ndarray:
        """Window corners, (N, 2) int64, object pixels."""
        return np.floor(self.positions + np.array(self.origin) + 0.5).astype(np.int64)


@dataclass(frozen=True)
class LayoutPlan:
    """Memory and messages of a layout on so many ranks.

    Attributes:
        layout: whole object on every rank, or tiles.
        ranks: number of ranks.
        memory: bytes of the fullest rank, all of it.
        patterns: bytes of patterns in it.
        object: bytes of the object's arrays in it.
        chunk: bytes of the waves of one chunk of views.
        bytes_sent: bytes that the busiest rank sends to neighbours per batch, mean over batches.
        messages: messages that these make.
        bytes_reduced: bytes of all-reduces per batch.
        reductions: all-reduces per batch.
        balance: share of the speed of equal shares of a batch that its owners leave (batches.balance).
        epoch: views and object pixels of the busiest rank in an epoch.
    """

    layout: LayoutName
    ranks: int
    memory: int
    patterns: int
    object: int
    chunk: int
    bytes_sent: float
    messages: float
    bytes_reduced: float
    reductions: int
    balance: float
    epoch: EpochSize

    @property
    def bytes_per_batch(self) -> float:
        """Bytes that a rank hands over per batch, sent or reduced."""
        return self.bytes_sent + self.bytes_reduced


#: Bytes of a number that is summed exactly (distributed/exact.py), in its limbs.
NUMBER_BYTES = 8 * (1 + HIGHEST - LOWEST)


class _Rank(World):
    """A rank of a world that is planned, not started."""

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
    optics: Sequence[Piece] = (),
) -> PlannedScan:
    """Return what a plan depends on, of a data set and the keys of a recipe; no pattern is read.

    Args:
        measurement: the data set.
        object: keys `object` of the recipe.
        probe: keys `probe` of the recipe.
        subpixel: how windows lie between pixels.
        precision: of waves and object.
        margin_px: pixels around the outermost windows.
        optics: pieces of the model.

    Raises:
        BadInput: the tables of the object's blocks would not fit into memory.
    """
    window = measurement.geometry.binned(1 / binning_of(optics)).shape
    origin, extent = frame(measurement.positions, window, max(margin_px, REACH))
    modes = 1 if measurement.probe is None else len(measurement.probe)
    height, width = extent
    check_room(
        _BLOCK_BYTES * (height // BLOCK) * (width // BLOCK),
        f"Planning an object of {height} x {width} pixels",
        "check positions.unit and the object pixel",
    )
    return PlannedScan(
        measurement.positions,
        window,
        extent,
        (float(origin[0]), float(origin[1])),
        probe.modes or modes,
        object.slices,
        probe.opr_modes,
        np.dtype(measurement.patterns.dtype).itemsize * measurement.mask.size,
        8 if precision == "double" else 4,
        reach_of(subpixel),
        {"single": 4, "mixed": 2, "double": 8}[precision],
        measurement.geometry.propagation != "far_field",
        fan_out_of(optics) * object.modes,
        _value_numbers(object.kind),
        object.modes,
        _tiled_numbers(optics, object.slices * object.modes, window),
    )


def _tiled_numbers(optics: Iterable[Piece], planes: int, window: tuple[int, int]) -> int:
    """Return the real numbers of each pixel of the object that tiled unknowns of these pieces have."""
    count = 0
    for piece in optics:
        sizes = {"L": planes, "H": 1, "W": 1} | piece.axes(window)
        tiled = [one for one in piece.unknowns if one.scope == "tiled"]
        count += sum(math.prod(one.shape(sizes)) * (2 if one.complex else 1) for one in tiled)
    return count


def _value_numbers(kind: str) -> int:
    """Return the real numbers of each pixel from which the transmission of an object of this kind follows."""
    if kind == TRANSMISSION:
        return 0
    return 2 if object_model_of(kind).is_complex else 1


def plan_layouts(
    scan: PlannedScan, engine: Engine, seed: int, ranks: int, device: str = "cpu", *, shares_memory: bool = False
) -> dict[LayoutName, LayoutPlan]:
    """Return the plans of both layouts for the first epoch of a stage.

    Args:
        scan: what memory and messages depend on.
        engine: the stage.
        seed: the recipe's, from which batches are drawn.
        ranks: number of ranks.
        device: kind of device, on which the size of chunks depends.
        shares_memory: True if the ranks are processes of one machine's CPUs, which read each other's memory.
    """
    epoch_batches = draw(scan.positions, engine.batch, seed, 0, engine.order)
    world = _Rank(0, ranks, shares_memory and ranks > 1)
    compact = engine.order == "compact"
    layout: Replicated | Tiled = Replicated(world, scan.positions, compact)
    if shares_memory and scan.extent[0] // BLOCK >= ranks > 1:
        layout = Panels(world, scan.positions, scan.window, compact)
    tiled = Tiled(world, scan.positions, scan.window)
    return {
        "replicated": _plan("replicated", layout, world, scan, engine, epoch_batches, device),
        "tiled": _plan("tiled", tiled, world, scan, engine, epoch_batches, device),
    }


def why_tiles(plans: dict[LayoutName, LayoutPlan], memory: float) -> str:
    """Return why the whole object does not fit into FULL of a rank's memory (bytes); "" if it does, or on one rank."""
    replicated, tiled = plans["replicated"], plans["tiled"]
    if replicated.ranks == 1 or replicated.memory <= FULL * memory:
        return ""
    return f"the whole object would make {size(replicated.memory)} per rank, tiles make {size(tiled.memory)}"


def _plan(
    name: LayoutName,
    layout: Replicated | Tiled,
    world: _Rank,
    scan: PlannedScan,
    engine: Engine,
    epoch_batches: list[np.ndarray],
    device: str,
) -> LayoutPlan:
    """Return the plan of a layout for the batches of an epoch; messages are counted for some of them, on some ranks."""
    layout.place(scan.extent, scan.origin, scan.anchors)
    batches = [epoch_batches[i] for i in evenly_spread(len(epoch_batches), BATCHES).tolist()]
    traffic, objects, stepped, views_held = [], [], [], []
    for rank in evenly_spread(world.size, RANKS).tolist() if isinstance(layout, Tiled) else [0]:
        world.rank = rank
        if isinstance(layout, Tiled):
            layout.set_parts(layout.tiles, layout.parts)
        part = layout.parts[rank] if isinstance(layout, Tiled) else Rect(0, 0, *scan.extent)
        touched = [_blocks(layout, scan, part, batch) for batch in batches]
        counts = [len(blocks.rows) for blocks in touched]
        traffic.append([_traffic(layout, scan, engine, b, len(v)) for b, v in zip(touched, batches, strict=True)])
        objects.append(_object_bytes(scan, engine, layout, part, max(counts)))
        views_held.append(math.prod(part.shape))
        stepped.append(views_held[-1] if engine.cost.whole else BLOCK**2 * float(np.mean(counts)))
    world.rank = 0
    is_single = world.size == 1
    busiest = np.zeros(3) if is_single else np.array(traffic).mean(1).max(0)
    sent, messages, reduced = busiest.tolist()
    owned = int(np.bincount(layout.owner, minlength=world.size).max())
    shares = [int(np.bincount(layout.owner[batch], minlength=world.size).max()) for batch in epoch_batches]
    chunk = _chunk_bytes(scan, max(shares), device)
    waves = _wave_bytes(scan, engine, owned, max(shares))
    patterns, obj = owned * scan.pattern_bytes, max(objects) + _constraint_bytes(scan, engine)
    return LayoutPlan(
        layout=name,
        ranks=world.size,
        memory=patterns + obj + CHUNK_ARRAYS * chunk + waves + VIEW_BYTES * len(scan.positions),
        patterns=patterns,
        object=obj,
        chunk=chunk,
        bytes_sent=sent,
        messages=messages,
        bytes_reduced=reduced,
        reductions=0 if is_single else _reductions(layout, engine),
        balance=balance(layout.owner, epoch_batches, world.size),
        epoch=EpochSize(sum(shares), math.prod(scan.window), len(epoch_batches), max(stepped), max(views_held)),
    )


def _blocks(layout: Replicated | Tiled, scan: PlannedScan, part: Rect, batch: np.ndarray) -> Blocks:
    """Return the blocks that a batch touches as the run's layout finds them; no pixel of the object is allocated."""
    pixel = torch.empty((scan.planes, *part.shape), dtype=torch.complex64, device="meta")
    probe = torch.empty((scan.modes, *scan.window), dtype=torch.complex64, device="meta")
    nothing: Tensor = torch.zeros(0, 2)
    estimate = Estimate(
        pixel, probe, nothing, nothing, nothing, nothing, nothing, opr=probe[:0], corner=part.corner, extent=scan.extent
    )
    return layout.touched_blocks(layout.window_boxes(estimate, torch.as_tensor(scan.anchors), scan.reach), batch)


def _traffic(
    layout: Replicated | Tiled, scan: PlannedScan, engine: Engine, blocks: Blocks, views: int
) -> tuple[float, float, float]:
    """Return bytes and messages sent to neighbours, and bytes of all-reduces, of one rank and batch."""
    needs = engine.step_needs
    real = _sum_bytes(scan, engine)
    # complex sum and real weight; and two sums, in two parts, of each number of tiled unknowns
    block = (3 * real * scan.planes + 2 * PARTS * 8 * scan.tiled_numbers) * BLOCK * BLOCK
    pixels = scan.window[0] * scan.window[1]
    weights = needs.sums * (pixels * (1 + 3 * scan.opr_modes) * real + 2 * 8)
    probe = needs.probe_sums * pixels * 2 * scan.modes * real + weights
    numbers = NUMBER_BYTES * (needs.numbers + needs.later_numbers)
    reduced = probe + numbers + 8 * needs.doubles_per_view * views
    touched = needs.object_sums * block * len(blocks.rows)
    maxima = needs.maxima * scan.planes * scan.real_bytes
    if not isinstance(layout, Tiled):
        return 0.0, 0.0, touched + reduced
    if isinstance(layout, Panels):
        block_bytes = 2 * scan.real_bytes * scan.planes * BLOCK * BLOCK * len(blocks.rows)
        return 0.0, 0.0, touched + block_bytes + reduced + maxima
    # how large terms are, and their sums
    inner_products = 8 * (1 + (2 if scan.real_bytes == 8 else 1)) * needs.inner_products
    if layout.in_memory:
        return 0.0, 0.0, needs.object_sums * block * (blocks.counted or 0) + reduced + maxima + inner_products
    blocks_sent = sum(len(places) for way in (blocks.sums_sent, blocks.totals_sent) for places in way.values())
    messages = needs.object_sums * (len(blocks.sums_sent) + len(blocks.totals_sent))
    return float(needs.object_sums * block * blocks_sent), float(messages), reduced + maxima + inner_products


def _sum_bytes(scan: PlannedScan, engine: Engine) -> int:
    """Return the bytes of a real number in a sum over views, all its parts."""
    return 8 * (2 if scan.real_bytes == 8 else engine.step_needs.parts)


def _reductions(layout: Replicated | Tiled, engine: Engine) -> int:
    """Return the number of all-reduces per batch."""
    needs = engine.step_needs
    shared = needs.sums + bool(needs.later_numbers + needs.doubles_per_view)
    return shared + (needs.maxima + 2 * needs.inner_product_rounds if isinstance(layout, Tiled) else 0)


def _object_bytes(scan: PlannedScan, engine: Engine, layout: Replicated | Tiled, part: Rect, touched: int) -> int:
    """Return the bytes of the object's arrays on a rank whose batches touch so many blocks.

    These are the estimate, accumulators, what a first step begins with, what the engine remembers, and a batch's sums
    in blocks; in panels sums of the whole object, and this rank's share of what all see of it. Values of an
    object come beside the transmission, and once more at the end of an epoch.
    """
    pixels = part.shape[0] * part.shape[1]
    arrays = 2 + 2 + 1 + 2 + 2 * engine.step_needs.object_arrays + 2 * scan.value_numbers
    # a tiled unknown: itself, what a first step begins with, what the engine remembers, and its accumulators
    tiled = scan.tiled_numbers * (2 + engine.step_needs.object_arrays) * scan.real_bytes
    sums, tiled_sums = 3 * _sum_bytes(scan, engine), 2 * PARTS * 8 * scan.tiled_numbers
    if isinstance(layout, Panels):
        object_pixels = scan.extent[0] * scan.extent[1]
        tiled += scan.tiled_numbers * scan.real_bytes
        return int(
            (scan.planes * (arrays + 2) * scan.real_bytes + tiled) * pixels
            + (scan.planes * sums + tiled_sums) * object_pixels
        )
    blocks = touched * BLOCK * BLOCK
    of_object = scan.planes * ((arrays * scan.real_bytes + sums) * pixels + 2 * sums * blocks)
    return int(of_object + (tiled + tiled_sums) * pixels + 2 * tiled_sums * blocks)


def _constraint_bytes(scan: PlannedScan, engine: Engine) -> int:
    """Return the bytes of whole planes of the object that a constraint of the stage holds, the most of any."""
    planes = max((constraint.whole_planes for constraint in engine.all_constraints()), default=0)
    return planes * 2 * scan.real_bytes * math.prod(scan.extent)


def _chunk_bytes(scan: PlannedScan, share: int, device: str) -> int:
    """Return the bytes of the waves of a chunk, of a rank with `share` views of a batch."""
    wave = _view_wave_bytes(scan)
    return max(wave, min(wave * share, CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"])))


def _wave_bytes(scan: PlannedScan, engine: Engine, owned: int, share: int) -> int:
    """Return the bytes of waves besides chunks: those that the engine keeps of its `owned` views, and of a batch."""
    wave, needs = _view_wave_bytes(scan), engine.step_needs
    kept_bytes = wave * (scan.kept_bytes or scan.real_bytes) // scan.real_bytes
    return 12 * wave + (needs.waves_per_view * owned + needs.waves_per_batch_view * share) * kept_bytes


def _view_wave_bytes(scan: PlannedScan) -> int:
    """Return the bytes of the exit waves of one view, all modes."""
    return 2 * scan.real_bytes * scan.modes * scan.fan_out * scan.window[0] * scan.window[1]
