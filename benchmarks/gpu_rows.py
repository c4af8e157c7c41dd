"""What benchmarks/gpu.py measures, in which order, and what arithmetic says of it.

M, B, L     probe modes, views of a batch, slices
h, w        window pixels
pass        reading or writing a wave of 8 bytes a pixel once, from or to the card's memory
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

#: Bytes of a pixel of a wave, complex64.
PIXEL = 8
#: Passes of a pair of transforms that nothing is fused with: rows and columns, forward and back, each read and written.
PASSES_OF_A_PAIR = 8
#: Patterns (uint16) of a row take at most so many bytes.
PATTERN_BYTES = 2 << 30
#: Views of a row, and batches of an epoch, that are aimed at, so that what an epoch does once counts for little.
VIEWS, BATCHES = 4096, 8
#: Views of a comparison with a peer, which may need seconds for an epoch of them.
PEER_VIEWS = 512


@dataclass(frozen=True)
class Goal:
    """A speed to reach; unit: view-modes/s, views/s, or times (as fast as a peer)."""

    unit: Literal["view-modes/s", "views/s", "times"]
    value: float


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        kind: `speed` of ptymesh, `profile` of its kernels, or `peer` beside it, in turns.
        engine, modes, slices, window, batch, subpixel: what is run, on windows of so many pixels a side.
        kernels: what PTYMESH_KERNELS says: auto, launched (no graphs) or torch (no Triton).
        chunk_mib: size of a chunk's waves in MiB; None: ptymesh's own.
        peer: script in benchmarks/peers, of rows of that kind.
        views: of the scan; 0: as many as suit batch and window.
        goal: what is to be reached.
    """

    kind: Literal["speed", "profile", "peer"] = "speed"
    engine: str = "rpie"
    modes: int = 4
    slices: int = 1
    window: int = 128
    batch: int = 256
    subpixel: str = "none"
    kernels: str = "auto"
    chunk_mib: int | None = None
    peer: str = ""
    views: int = 0
    goal: Goal | None = None

    @classmethod
    def read(cls, values: dict[str, Any]) -> Row:
        """The row that `asdict` wrote."""
        return cls(**{**values, "goal": Goal(**values["goal"]) if values["goal"] else None})

    @property
    def written(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self)

    def scan_views(self) -> int:
        """Views of the scan: whole batches."""
        if self.views:
            return self.views
        most = PATTERN_BYTES // (2 * self.window**2)
        return max(1, min(max(VIEWS, BATCHES * self.batch), most) // self.batch) * self.batch


def transform_pairs(row: Row) -> float:
    """Pairs of transforms per view-mode that a batch cannot do without.

    One to the detector and back; with Fourier sub-pixel positions one to shift the probe and what comes back to it; two
    for each gap between slices, there and back. LSQML shifts its direction of the probe for each view, which is half a
    pair, and carries both directions through the gaps.
    """
    from floor import pairs  # with torch, which gpu.py does without: its seconds count from the start

    gaps = row.slices - 1
    found: float = pairs("far_field", row.subpixel) + 2 * gaps
    return found + (row.subpixel == "fourier") / 2 + 2 * gaps if row.engine == "lsqml" else found


def least_bytes(row: Row) -> float:
    """Bytes per view-mode that unfused transforms alone move."""
    return PASSES_OF_A_PAIR * PIXEL * transform_pairs(row) * row.window**2


def moved_bytes(row: Row) -> float | None:
    """Bytes per view-mode that ptymesh's passes on a GPU move; None of LSQML through several slices, whose second sweep
    is torch's.

    With whole pixels: the exit wave is written (1), transformed (4), compared (read twice, written once: 3),
    transformed back (4), read for the object and for the probe (2). Fourier positions write the probe's shifted
    spectrum and transform it (5), read the shifted probe twice (2), and write what goes back to it, read it and
    transform it (6). A gap between slices makes an exit wave of another wave (2), transforms it, multiplies it and
    transforms it back (10), and does the same on the way back (12), where the object reads two waves (2). LSQML's
    systems read chi, and with Fourier positions the probe and its direction, which is shifted before (8 in all).
    """
    gaps, shifted = row.slices - 1, row.subpixel == "fourier"
    if row.engine == "lsqml" and gaps:
        return None
    passes = 14 + 13 * shifted + 26 * gaps
    if row.engine == "lsqml":
        passes += 8 if shifted else 1
    return PIXEL * float(passes) * row.window**2


# --- which rows there are ---

MILLION_AND_A_HALF = Goal("view-modes/s", 1.5e6)
GOALS = (
    Row(goal=MILLION_AND_A_HALF),
    Row(modes=1, batch=64, goal=Goal("views/s", 60_000)),
    Row(modes=12, slices=6, goal=Goal("views/s", 15_000)),
    Row(modes=1, batch=1024, goal=MILLION_AND_A_HALF),
    Row(modes=12, goal=MILLION_AND_A_HALF),
    Row(modes=1, goal=MILLION_AND_A_HALF),
    Row(modes=12, slices=6, batch=64, goal=Goal("views/s", 15_000)),
)
_TEN_TIMES = Row(kind="peer", subpixel="fourier", modes=1, batch=64, views=PEER_VIEWS, goal=Goal("times", 10))
PEERS = (
    replace(_TEN_TIMES, engine="rpie", peer="ptychi"),
    replace(_TEN_TIMES, engine="adam", peer="ptyrad"),
    replace(_TEN_TIMES, engine="lsqml", peer="ptychi"),
    replace(_TEN_TIMES, engine="adam", peer="ptyrad", modes=12, slices=6),
    replace(_TEN_TIMES, engine="adam", peer="ptychi"),
    replace(_TEN_TIMES, engine="lsqml", peer="ptychi", modes=4, batch=256),
    replace(_TEN_TIMES, engine="adam", peer="ptyrad", modes=4, batch=256),
)
#: Where the time goes, whether Triton and graphs are worth it, and which chunk suits the card's cache.
LOOKS = (
    Row(kind="profile"),
    Row(kind="profile", modes=12, slices=6, batch=64),
    Row(kernels="torch"),
    Row(kernels="launched"),
    Row(kernels="torch", modes=1, batch=64),
    Row(kernels="launched", modes=1, batch=64),
    Row(kind="profile", engine="lsqml", subpixel="fourier"),
    Row(kernels="torch", modes=12, slices=6, batch=64),
    *(Row(batch=1024, chunk_mib=size) for size in (8, 16, 32, 64)),
    Row(kernels="torch", engine="lsqml", subpixel="fourier"),
)
#: Values of each axis; the first is that of the row from which others depart.
AXES: dict[str, tuple[Any, ...]] = {
    "engine": ("rpie", "lsqml", "adam"),
    "subpixel": ("none", "fourier"),
    "batch": (256, 64, 1024, 16, 2048),
    "modes": (4, 1, 12),
    "slices": (1, 6),
    "window": (128, 256, 512),
}


def others() -> Iterator[Row]:
    """Yield all combinations of the axes, those that keep most of the first values first."""
    firsts = [values[0] for values in AXES.values()]

    def departures(values: tuple[Any, ...]) -> tuple[int, list[bool]]:
        kept = [value == first for value, first in zip(values, firsts, strict=True)]
        return -sum(kept), kept

    for values in sorted(itertools.product(*AXES.values()), key=departures):
        yield Row(**dict(zip(AXES, values, strict=True)))


def small(row: Row) -> Row:
    """Return the same row on a scan that a CPU sweeps in milliseconds with torch's passes, to try the program."""
    tiny = replace(row, modes=min(row.modes, 2), slices=min(row.slices, 2), window=16, batch=4, views=8, chunk_mib=None)
    return replace(tiny, kernels="torch")


def ordered(*, peers: bool, quick: bool, stand_in: bool) -> list[Row]:
    """Rows in the order of what they say; quick: goals alone, with peers if these are wanted; no row twice."""
    rows = [*GOALS, *(PEERS if peers else ())]
    if not quick:
        rows += [*LOOKS, *others()]
    if stand_in:
        rows = [small(row) for row in rows if row.kind != "peer"] + [small(row) for row in PEERS[:1] * peers]
    kept: dict[Row, Row] = {}
    for row in rows:
        kept.setdefault(replace(row, goal=None), row)
    return list(kept.values())


def reached(row: Row, found: dict[str, Any]) -> float | None:
    """What was measured over the goal; None without a goal, or without a measurement."""
    if row.goal is None or "failed" in found:
        return None
    name = {"view-modes/s": "view_modes_per_s", "views/s": "views_per_s", "times": "ratio"}[row.goal.unit]
    return float(found[name]) / row.goal.value
