"""Declarations of all unknowns: name, axes, distribution over ranks, and unit.

Files, checkpoints, copies and engines use these declarations; an unknown that an operator of the forward model adds
(physics/operators.py) is declared in the same way, and needs no further code.

N, M, K, L      views; probe modes; variable-probe modes; slices
H, W, h, w      object pixels; window pixels
v, u            detector pixels along y and x, as many as the window's unless the model's are finer
S               scans that the views are of, 1 of a single one
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Largest magnitude of objects, probes and counts: beyond it, single precision could not hold sums of squares.
LARGEST = 1e15

#: Prefix of the names of operators' unknowns, among the arrays of a checkpoint and the fields of a result.
OTHERS = "unknown/"

Scope = Literal["tiled", "shared", "view"]


@dataclass(frozen=True)
class Unknown:
    """Declaration of one unknown.

    Attributes:
        name: in engines, recipes and files.
        axes: of its array, by the letters above; empty for a number. An operator's unknown whose first axis is S is
            shared, and the operator is given the rows of its views' scans, as of one with a row per view. Those of a
            tiled one end with H, W, before which there is one axis; H, W alone stand for 1, H, W.
        scope: tiled, distributed as the object; shared, the same on every rank; view, one row per view, updated by the
            view's owner.
        unit: of its values; "" for none.
        complex: True if its values are complex.
        outside: its value where the object grows.
        start: its value where nothing else is known.
        dataset: its place in a result file; empty where the result stores it in another form.
        largest: largest magnitude of a valid value.
        least: least valid value of a real unknown, at which engines hold it; None for none.
        common_to: of a row per view, the unknown that takes the part common to all views; where both are refined, views
            change only relative to each other.
        is_fixed: True if it is known, and no engine moves it.
        may_rest: True if its start is what a user knows, so that an engine that cannot move it is no mistake.
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
    least: float | None = None
    common_to: str = ""
    may_rest: bool = False
    is_fixed: bool = False

    def __post_init__(self) -> None:
        if self.scope == "tiled":
            if self.axes[-2:] != ("H", "W") or len(self.axes) > 3:
                raise ValueError(f"axes of {self.name} are {', '.join(self.axes)}; a tiled unknown has C, H, W or H, W")
            if len(self.axes) == 2:  # as all fields of the object, it has planes
                object.__setattr__(self, "axes", ("1", *self.axes))
        if self.least is not None and (self.complex or not self.least <= self.start <= self.largest):
            raise ValueError(f"least of {self.name} is {self.least:g}; it needs a real unknown that starts no lower")

    @property
    def is_per_scan(self) -> bool:
        """True if it has a row for each scan."""
        return self.axes[:1] == ("S",)

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """Return the shape of its array, given the lengths of the axes."""
        return tuple(sizes[axis] if axis in sizes else int(axis) for axis in self.axes)


#: Unknowns of every reconstruction.
BUILT_IN = (
    Unknown("object", ("L", "H", "W"), "tiled", complex=True, outside=1.0, start=1.0, dataset="object"),
    Unknown("probe", ("M", "h", "w"), unit="sqrt(counts)", complex=True, dataset="probe"),
    Unknown("opr", ("K", "h", "w"), unit="sqrt(counts)", complex=True, dataset="opr/modes"),
    Unknown("background", ("v", "u"), unit="counts", dataset="background", least=0.0),
    Unknown("positions", ("N", "2"), "view", unit="px", dataset="positions_px"),
    Unknown("weights", ("N", "1+K"), "view", start=1.0, dataset="opr/weights"),
)


#: Built-in unknowns by name.
DECLARED = {one.name: one for one in BUILT_IN}


def of_scope(*scopes: Scope) -> tuple[str, ...]:
    """Return the names of the built-in unknowns of these scopes."""
    return tuple(one.name for one in BUILT_IN if one.scope in scopes)
