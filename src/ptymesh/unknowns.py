"""What can be solved for, declared once: every unknown by name, with its axes, who holds it, and its unit.

Files, checkpoints, copies and engines go through these declarations; an unknown that a piece of the forward model adds
(physics/operators.py) is declared in the same way, and needs no other line.

N, M, K, L      views; probe modes; variable-probe modes; slices
H, W, h, w      object pixels; window pixels
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Of no object, probe or counts: single precision could not hold the squares' sums.
LARGEST = 1e15

Scope = Literal["tiled", "shared", "view"]


@dataclass(frozen=True)
class Unknown:
    """One unknown.

    Fields:
        name: as engines, recipes and files call it.
        axes: of its array, by the letters above; none for a number.
        scope: tiled, cut with the object; shared, the same on every rank; view, a row per view, which its owner moves.
        unit: of its values; "" for none.
        complex: whether it holds complex numbers.
        outside: its value where the object grows.
        start: its value where nothing else is known.
        dataset: where it stands in a result file; empty where the result says it in another way.
        largest: no run can have come to more than this.
        common_to: of a row per view, the unknown that takes what all views have in common; where both are refined,
            views move against each other alone.
    """

    name: str
    axes: tuple[str, ...] = ()
    scope: Scope = "shared"
    unit: str = ""
    complex: bool = False
    outside: float = 0.0
    start: float = 0.0
    dataset: str = ""
    largest: float = LARGEST
    common_to: str = ""

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """Of its array, where the axes are so long."""
        return tuple(sizes[axis] if axis in sizes else int(axis) for axis in self.axes)


#: What every reconstruction solves for, or may.
BUILT_IN = (
    Unknown("object", ("L", "H", "W"), "tiled", complex=True, outside=1.0, start=1.0, dataset="object"),
    Unknown("probe", ("M", "h", "w"), unit="sqrt(counts)", complex=True, dataset="probe"),
    Unknown("opr", ("K", "h", "w"), unit="sqrt(counts)", complex=True, dataset="opr/modes"),
    Unknown("background", ("h", "w"), unit="counts", dataset="background"),
    Unknown("positions", ("N", "2"), "view", unit="px", dataset="positions_px"),
    Unknown("weights", ("N", "1+K"), "view", start=1.0, dataset="opr/weights"),
)


#: The same by name.
DECLARED = {one.name: one for one in BUILT_IN}


def of_scope(*scopes: Scope) -> tuple[str, ...]:
    """Names of the built-in unknowns of these scopes."""
    return tuple(one.name for one in BUILT_IN if one.scope in scopes)
