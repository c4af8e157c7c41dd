"""EPICS scans (`.mda`): positions that stages were read back at, of a scan along one axis or along two.

All is big-endian, as XDR: int32, float32, float64, and text that is two lengths and bytes padded to four. A file is its
version (float32), number, rank and dimensions, whether it is regular, and where further values lie; then the outermost
scan. A scan is its rank, points asked for and points taken, of rank above 1 where the scan within each point lies, its
name and time, how many positioners, detectors and triggers it has, what each is, and their values.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput

VERSIONS = (1.2, 1.3, 1.4)
#: Points of a scan along one axis, axes, and positioners that a file can reasonably have; characters of a text.
MOST_POINTS, MOST_AXES, MOST_TEXT = 10**6, 4, 4096


@dataclass(frozen=True)
class StageScan:
    """A scan along one axis.

    Attributes:
        places: (positioners, points taken) read back.
        units: of each positioner.
        within: where the scans within its points lie in the file.
    """

    places: np.ndarray
    units: tuple[str, ...]
    within: tuple[int, ...]


class _Xdr:
    """Values of a file, one after the other.

    Args:
        content: of the file.
        subject: names it, for messages.
    """

    def __init__(self, content: bytes, subject: str) -> None:
        self._content, self._subject = content, subject
        self.at = 0

    def take(self, form: str) -> tuple[float, ...]:
        """Return the next values; BadInput where the file ends before them."""
        size = struct.calcsize(form)
        if self.at < 0 or self.at + size > len(self._content):
            raise BadInput(f"{self._subject} ends within its scan; it is truncated: copy it again.")
        values = struct.unpack_from(form, self._content, self.at)
        self.at += size
        return values

    def count(self, most: int, name: str) -> int:
        """Return the next whole number; BadInput if it cannot be."""
        (number,) = self.take(">i")
        if not 0 <= number <= most:
            raise BadInput(f"{self._subject} says {number:g} {name}, which cannot be; it is damaged: copy it again.")
        return int(number)

    def text(self) -> str:
        """Return the next text."""
        if not self.count(MOST_TEXT, "characters"):
            return ""
        length = self.count(MOST_TEXT, "characters")
        start, self.at = self.at, self.at + (length + 3) // 4 * 4
        return self._content[start : start + length].decode("latin-1")

    def scan(self, rank: int) -> StageScan:
        """Return the scan that begins here; BadInput if it is of another rank."""
        own_rank = self.count(MOST_AXES, "axes")
        if own_rank != rank:
            raise BadInput(
                f"{self._subject} has a scan of {own_rank} axes where one of {rank} should be; it is damaged."
            )
        points, points_taken = self.count(MOST_POINTS, "points"), self.count(MOST_POINTS, "points")
        within = [self.count(len(self._content), "bytes") for _ in range(points)] if rank > 1 else []
        self.text(), self.text()
        counts = [self.count(10**4, "parts") for _ in range(3)]
        units = []
        for _ in range(counts[0]):
            self.take(">i")
            words = [self.text() for _ in range(7)]
            units.append(words[6] or words[3])
        for _ in range(counts[1]):
            self.take(">i")
            self.text(), self.text(), self.text()
        for _ in range(counts[2]):
            self.take(">i")
            self.text()
            self.take(">f")
        places = np.array([self.take(f">{points}d") for _ in range(counts[0])]).reshape(counts[0], points)
        self.take(f">{counts[1] * points}f")
        return StageScan(places[:, : min(points_taken, points)], tuple(units), tuple(within[:points_taken]))


def is_mda(path: Path) -> bool:
    """Return True for a file that begins as EPICS scans do."""
    with path.open("rb") as file:
        start = file.read(16)
    if len(start) < 16:
        return False
    version, _, rank, first = struct.unpack(">fiii", start)
    return any(abs(version - one) < 1e-3 for one in VERSIONS) and 1 <= rank <= MOST_AXES and 0 < first <= MOST_POINTS


def read_mda(path: Path, columns: str, subject: str) -> tuple[np.ndarray, str]:
    """Return positions of an EPICS scan, and their unit; empty where the file says none.

    Args:
        path: the file.
        columns: numbers of positioners of the innermost scan, separated by commas; empty: of a scan along two axes the
            first positioner of the outer one (y) and of the inner one (x), of one axis its second and its first.
        subject: names the reference, for messages.

    Returns:
        (N, 2) or (N, columns) float64, in the order in which points were taken.

    Raises:
        BadInput: the file is damaged, or has no such positioners.
    """
    content = _Xdr(path.read_bytes(), subject)
    content.take(">fi")
    rank = content.count(MOST_AXES, "axes")
    for _ in range(rank):
        content.count(MOST_POINTS, "points")
    content.take(">ii")
    outer = content.scan(rank)
    if rank > 2:
        raise BadInput(f"{subject} is a scan of {rank} axes; positions are read of one and of two: save them as CSV.")
    if rank == 1:
        chosen = [_number(one, outer, subject) for one in columns.split(",")] if columns else [1, 0]
        return _chosen_positions(outer, chosen, subject).T, _unit(outer, chosen)
    inner = []
    for start in outer.within:
        content.at = start
        inner.append(content.scan(1))
    if not inner or not len(outer.places):
        raise BadInput(f"{subject} has no points that were taken; give another file.")
    if columns:
        chosen = [_number(one, inner[0], subject) for one in columns.split(",")]
        return np.concatenate([_chosen_positions(one, chosen, subject).T for one in inner]), _unit(inner[0], chosen)
    if outer.units[:1] != inner[0].units[:1]:
        raise BadInput(
            f"{subject} says y in {outer.units[:1]} and x in {inner[0].units[:1]}; save them in one unit as CSV."
        )
    rows = []
    for k, one in enumerate(inner):
        x = _chosen_positions(one, [0], subject)[0]
        rows.append(np.stack([np.full(len(x), outer.places[0, k]), x], axis=1))
    return np.concatenate(rows), outer.units[0]


def _number(text: str, scan: StageScan, subject: str) -> int:
    if not text.strip().isdecimal() or int(text) >= len(scan.places):
        raise BadInput(f"{subject} has no positioner {text!r}; there are 0 to {len(scan.places) - 1}.")
    return int(text)


def _chosen_positions(scan: StageScan, chosen: list[int], subject: str) -> np.ndarray:
    if max(chosen) >= len(scan.places):
        raise BadInput(f"{subject} has {len(scan.places)} positioners, and a pair of positions is asked for.")
    return np.asarray(scan.places[chosen], np.float64)


def _unit(scan: StageScan, chosen: list[int]) -> str:
    units = {scan.units[k] for k in chosen}
    return units.pop() if len(units) == 1 else ""
