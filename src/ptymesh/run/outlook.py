"""What to expect of machines that are not here: a model of one batch with 32 views for each GPU.

R          ranks, a GPU each;  v  views of each in a batch, v R in all
h, w       window pixels;  M, L  modes, slices;  a  pixels of the object for each view, as dense as this scan

The scan is thought of as larger with R, equally dense, and each rank as having views of its own alone in the batch: the
worst case. A batch takes, on one rank and on R,

sweep      v views' memory traffic: the floor's 96 bytes a pixel and view-mode (floor.py), at OF_FLOOR of the bandwidth
object     the engine's step, STEP_BYTES a touched pixel: of all views replicated, of a rank's part in tiles
sums       replicated, an all-reduce of the object's touched pixels in double precision (24 bytes, or twice that);
           in tiles, the pixels that windows reach beyond a rank's tile, to their owners
probe      an all-reduce of the probe's sums
latency    of as many steps as a tree of R ranks has, there and back, for each all-reduce; of each neighbour in tiles
launches   of kernels, as many as were counted on a pretended device, each LAUNCH_S; on one rank as on many

Nothing travels while ranks compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ptymesh.engines import Engine
from ptymesh.run.floor import BYTES_PER_PIXEL
from ptymesh.run.plan import NUMBER_BYTES, OF_FLOOR, Scan, reductions_of, sum_bytes_of, sweeps_of

#: Views of a rank in a batch.
VIEWS = 32
#: Bytes that an engine's step reads and writes for each touched pixel, roughly: sums, object, two arrays of memory.
STEP_BYTES = 60
#: Of one kernel, seconds; of a batch, by engine, without those within a graph (tests/kernels), and of another engine.
LAUNCH_S, LAUNCHES, OTHERS = 4e-6, {"epie": 126, "rpie": 126, "mpie": 126, "lsqml": 212}, 329
#: Below this efficiency it is said what is at fault.
ENOUGH = 0.8

LayoutName = Literal["replicated", "tiled"]


@dataclass(frozen=True)
class Cluster:
    """So many GPUs: bandwidth of each one's memory and link (B/s, one way), latency of a step of a collective (s)."""

    name: str
    ranks: int
    memory: float
    link: float
    latency: float


#: Round numbers of their makers, none of them measured here.
CLUSTERS = (
    Cluster("8 GPUs on NVLink", 8, 3.3e12, 450e9, 3e-6),
    Cluster("64 GPUs on InfiniBand", 64, 3.3e12, 50e9, 5e-6),
    Cluster("4,096 GPUs on InfiniBand", 4096, 3.3e12, 50e9, 5e-6),
)

#: What helps against each term, by layout.
REMEDIES: dict[tuple[LayoutName, str], str] = {
    ("replicated", "sums"): "layout: tiled sends borders alone",
    ("replicated", "object"): "layout: tiled, in which a rank steps its own part alone",
    ("tiled", "sums"): "fewer ranks or a larger batch, as windows are wider than what a rank owns",
    ("tiled", "object"): "fewer ranks or a larger batch, as windows are wider than what a rank owns",
    ("replicated", "latency"): "a larger batch",
    ("tiled", "latency"): "a larger batch, or fewer ranks, whose parts have fewer neighbours",
    ("replicated", "probe"): "a larger batch, or fewer probe modes",
    ("tiled", "probe"): "a larger batch, or fewer probe modes",
}


@dataclass(frozen=True)
class Outlook:
    """Of one machine in its better layout: seconds of a batch by term, of one rank and of all; efficiency."""

    cluster: Cluster
    layout: LayoutName
    alone: dict[str, float]
    terms: dict[str, float]

    @property
    def efficiency(self) -> float:
        """Of ranks with as many views each as the one."""
        return sum(self.alone.values()) / sum(self.terms.values())

    @property
    def fault(self) -> str:
        """The term that has grown most."""
        return max(self.terms, key=lambda name: self.terms[name] - self.alone.get(name, 0.0))

    @property
    def sentence(self) -> str:
        """For people."""
        said = f"{self.cluster.name}: {self.efficiency:.0%} ({self.layout})"
        if self.efficiency >= ENOUGH:
            return f"{said}."
        share = self.terms[self.fault] / sum(self.terms.values())
        remedy = REMEDIES[self.layout, self.fault]
        return f"{said}; {_NAMES[self.fault]} take {share:.0%} of a batch. What helps: {remedy}."


_NAMES = {
    "sums": "sums of the object",
    "object": "steps of the object",
    "probe": "sums of the probe",
    "latency": "latencies",
}


def outlook(scan: Scan, engine: Engine, pairs: int) -> list[Outlook]:
    """What to expect of each of CLUSTERS with VIEWS views for each rank in a batch of this engine.

    pairs: of Fourier transforms for each view-mode (floor.pairs).
    """
    return [_better(cluster, scan, engine, pairs) for cluster in CLUSTERS]


def _better(cluster: Cluster, scan: Scan, engine: Engine, pairs: int) -> Outlook:
    alone = {name: t for name, t in _terms("replicated", 1, cluster, scan, engine, pairs).items() if t}
    layouts: tuple[LayoutName, ...] = ("replicated", "tiled")
    both = [Outlook(cluster, n, alone, _terms(n, cluster.ranks, cluster, scan, engine, pairs)) for n in layouts]
    return max(both, key=lambda one: one.efficiency)


def _terms(
    layout: LayoutName, ranks: int, cluster: Cluster, scan: Scan, engine: Engine, pairs: int
) -> dict[str, float]:
    """Seconds of a batch, by term."""
    h, w = scan.window
    wave = BYTES_PER_PIXEL * h * w * scan.modes * scan.slices * scan.real_bytes / 4
    sweep = sweeps_of(engine) * VIEWS * pairs * wave / (OF_FLOOR * cluster.memory)
    side = math.sqrt(VIEWS * _area(scan))
    part, touched = (side + h) * (side + w), (side * math.sqrt(ranks) + h) * (side * math.sqrt(ranks) + w)
    mine = touched if layout == "replicated" else min(part, touched)
    step = STEP_BYTES * scan.real_bytes / 4 * scan.slices * mine / cluster.memory
    launches = LAUNCH_S * LAUNCHES.get(engine.name, OTHERS)
    if ranks == 1:
        return {"sweep": sweep, "object": step, "sums": 0.0, "probe": 0.0, "latency": 0.0, "launches": launches}
    of_sums, collectives = sum_bytes_of(scan, engine), reductions_of(engine)
    again, steps = 2 * (1 - 1 / ranks), 2 * math.ceil(math.log2(ranks))
    probe = again * (of_sums * h * w * (2 * scan.modes + 1) + NUMBER_BYTES) / cluster.link
    if layout == "replicated":
        sums, neighbours = again * 3 * of_sums * scan.slices * touched / cluster.link, 0
    else:
        around = (2 * math.ceil(h / side) + 1) * (2 * math.ceil(w / side) + 1) - 1
        neighbours = min(around, ranks - 1)
        shared = min(part - side * side, touched)
        overlap = max(1.0, min(part / side**2, ranks) / 2)  # a pixel is held by so many more, or goes to one and back
        sums = 3 * of_sums * scan.slices * shared * min(overlap, 2.0) / cluster.link
    latency = cluster.latency * (steps * collectives + neighbours)
    terms = {"sweep": sweep, "object": step, "sums": sums, "probe": probe, "latency": latency}
    return terms | {"launches": launches}


def _area(scan: Scan) -> float:
    """Object pixels for each view: of the rectangle of positions, as if another view stood at its far edges."""
    count = len(scan.positions)
    y, x = np.ptp(scan.positions, axis=0)
    step = math.sqrt(max(y * x, 1.0) / max(count, 1))
    return float((y + step) * (x + step) / count)


def lines(found: list[Outlook]) -> list[str]:
    """To be read."""
    said = (
        f"Expected of GPUs that are not here: efficiency with {VIEWS} views for each in a batch, by a model. None of",
        f"it has been measured. A sweep takes its memory traffic at {OF_FLOOR:.0%} of 3.3 TB/s, a kernel "
        f"{LAUNCH_S * 1e6:.0f} us to launch;",
        "ranks wait for messages, at 450 GB/s and 3 us a step on NVLink, 50 GB/s and 5 us on InfiniBand.",
    )
    return [*said, *(f"  {one.sentence}" for one in found)]
