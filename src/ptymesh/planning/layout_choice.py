"""Choice of the layout of the object: what fits, or what is expected to be faster over the links that it measures.

An epoch is expected to take what the busiest rank computes (its views, the engine's step on what it has of the object,
and what every rank does again for each batch) by the prices of engine and model (cost_model.py) at the pace measured
here (device_pace.py), and its messages over one link per rank: all-reduces as rings for their bytes, as trees for
their latency.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass

import psutil
import torch

from ptymesh.distributed.devices import KINDS
from ptymesh.distributed.world import World
from ptymesh.engines import Engine
from ptymesh.planning.cost_model import cost_of_stage
from ptymesh.planning.device_pace import DevicePace, measure_pace
from ptymesh.planning.plan import LayoutName, LayoutPlan, PlannedScan, plan_layouts, why_tiles

#: Tiles are taken for speed alone where they are expected to be faster by more than this.
GAIN = 1.25
#: The choice of a rank without others, and why.
ALONE: tuple[LayoutName, str] = ("replicated", "one rank holds all of the object")


@dataclass(frozen=True)
class RankSpeed:
    """Speed of one rank and its link.

    Attributes:
        link: bandwidth, bytes per second.
        latency: of a message, seconds.
        pace: of one thread with rPIE, or of a GPU.
        threads: of the rank.
    """

    link: float
    latency: float
    pace: DevicePace
    threads: int = 1


def choose_layout(world: World, scan: PlannedScan, engine: Engine, seed: int) -> tuple[LayoutName, str]:
    """Return the layout for these ranks, the same on all of them, and why. Collective.

    Links are tried for some 0.1 s.

    Args:
        world: the ranks.
        scan: what memory and messages depend on.
        engine: the first stage.
        seed: the recipe's.
    """
    if world.size == 1:
        return ALONE
    threads, kind = torch.get_num_threads(), world.device.type
    link, latency = measured_link(world)
    pace = measure_pace(scan.window, world.device, scan.dtype, threads)
    local_pace = torch.tensor([-pace.rate, pace.batch_s, -memory_of_device(world.device)], dtype=torch.float64)
    slowest, batch_s, least = world.max(local_pace.to(world.device))[0].tolist()
    speed = RankSpeed(link, latency, DevicePace(-slowest, batch_s), threads if kind == "cpu" else 1)
    plans = plan_layouts(scan, engine, seed, world.size, kind, shares_memory=world.shares_memory)
    return choose_by_plans(
        plans, {name: epoch_seconds(plan, scan, engine, speed) for name, plan in plans.items()}, -least
    )


def choose_by_plans(
    plans: dict[LayoutName, LayoutPlan], seconds: dict[LayoutName, float], memory: float
) -> tuple[LayoutName, str]:
    """Return the layout to take, and why, in words.

    Args:
        plans: of both layouts.
        seconds: expected of an epoch in either.
        memory: bytes of a rank.
    """
    if why := why_tiles(plans, memory):
        return "tiled", why
    gain = seconds["replicated"] / seconds["tiled"]
    if gain > GAIN:
        return "tiled", f"an epoch is expected to be {gain:.1f} times faster than with the whole object on every rank"
    return "replicated", f"tiles would be {gain:.2f} times as fast, and the whole object fits on every rank"


def epoch_seconds(plan: LayoutPlan, scan: PlannedScan, engine: Engine, speed: RankSpeed) -> float:
    """Return the seconds that an epoch is expected to take.

    Args:
        plan: of the layout.
        scan: its modes, slices and detector.
        engine: the stage.
        speed: of the slowest rank.
    """
    price = cost_of_stage(engine, scan.near, scan.slices, scan.modes * scan.fan_out, scan.opr_modes)
    compute = speed.pace.epoch_seconds(price, plan.epoch, speed.threads)
    talk = (
        plan.messages * speed.latency
        + plan.bytes_sent / speed.link
        + plan.reductions * 2 * math.ceil(math.log2(plan.ranks)) * speed.latency
        + 2 * (1 - 1 / plan.ranks) * plan.bytes_reduced / speed.link
    )
    return compute + plan.epoch.batches * talk


def memory_of_device(device: torch.device) -> float:
    """Return the bytes that a rank may count on: its device's, or its share of what is free on this host."""
    if device.type in KINDS:
        return float(torch.get_device_module(device).get_device_properties(device).total_memory)
    return psutil.virtual_memory().available / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def measured_link(world: World) -> tuple[float, float]:
    """Return bandwidth (B/s) and latency (s) of all-reduces, the slowest rank's. Collective, takes some 0.1 s."""
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
