"""Shift, rotation and scale of each scan against the first one, of several scans of one object (`scans`).

p_j     = c_k + (1 + scale_k) R_k (p_0j - c_k) + s_k for the views j of scan k; y before x
c_k     mean of the nominal positions of scan k;  R_k its rotation [[cos r, -sin r], [sin r, cos r]];  s_k its shift
s_0     = 0, R_0 = 1, scale_0 = 0, as what all scans have in common moves the object alone

The steps of all views of a scan are added up, so that the whole scan moves where single positions hardly would.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.geometry import Geometry
from ptymesh.models.base import Parametrisation
from ptymesh.physics.elementwise import means

Term = Literal["shift", "rotation", "scale"]
#: Names of the numbers of each term, with their units.
UNITS: dict[Term, dict[str, str]] = {
    "shift": {"y": "px", "x": "px"},
    "rotation": {"rotation": "rad"},
    "scale": {"scale": "1"},
}


class ScanShift(Parametrisation):
    """Shift (y, x) of each scan but the first, in object pixels, and rotation and scale if asked, of `scans`."""

    name: ClassVar[str] = "scan_shift"
    of: ClassVar[Literal["probe", "positions"]] = "positions"

    lr: float = Field(0.1, gt=0, le=1, description=Parametrisation.model_fields["lr"].description)
    scans: int = Field(2, ge=2, le=100, description="number of scans of the recipe; the first one stays where it is")
    terms: list[Term] = Field(
        ["shift"],
        min_length=1,
        description="what is refined of each scan: shift, rotation about its middle (rad), scale",
    )

    @field_validator("terms")
    @classmethod
    def _refuse_doubles(cls, terms: list[Term]) -> list[Term]:
        if len(set(terms)) < len(terms):
            raise ValueError(f"terms names one twice: {', '.join(terms)}; name each once")
        return terms

    @classmethod
    def term_of(cls, number: str) -> str:
        """Return what is moved of a scan by a number: y of y1."""
        return number.rstrip("0123456789")

    @property
    def _units_of_scan(self) -> dict[str, str]:
        """Names of the numbers of one scan, in order, and their units."""
        return {name: unit for term in self.terms for name, unit in UNITS[term].items()}

    def units(self) -> dict[str, str]:
        """Return the names of the numbers, `y1`, `x1` for the second scan and so on, with their unit."""
        return {f"{name}{scan}": unit for scan in range(1, self.scans) for name, unit in self._units_of_scan.items()}

    def check_scans(self, scans: int) -> None:
        """Check that there are as many scans as this is for.

        Raises:
            BadInput: there is another number of scans.
        """
        if scans == 1:
            raise BadInput("models.scan_shift moves scans against each other, and there is one; give several as scans.")
        if scans != self.scans:
            raise BadInput(f"models.scan_shift.scans is {self.scans}, and there are {scans} scans; give {scans}.")

    def directions(self, geometry: Geometry, estimate: Estimate) -> Tensor:
        """Return J, (n (S - 1), N, 2) float64: the moves of the views of one scan, 0 for the others."""
        assert estimate.scan_index is not None, "checked"
        directions = []
        for scan in range(1, self.scans):
            is_of_scan = estimate.scan_index == scan
            y, x = (estimate.nominal - means(estimate.nominal[is_of_scan])).unbind(1)
            one, none = torch.ones_like(y), torch.zeros_like(y)
            by_unit = {"y": (one, none), "x": (none, one), "rotation": (-x, y), "scale": (y, x)}
            directions += [torch.stack(by_unit[name], dim=1) * is_of_scan[:, None] for name in self._units_of_scan]
        return torch.stack(directions)

    def moved(self, geometry: Geometry, estimate: Estimate, x: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Return c + A(after) A(before)^-1 (x - c - s(before)) + s(after) for each scan, A = (1 + scale) R.

        Args:
            geometry: not used.
            estimate: the scan of each view; its nominal positions give c.
            x: (N, 2) float64, positions in pixels.
            before: (n,) float64 on the host.
            after: (n,) float64 on the host.
        """
        assert estimate.scan_index is not None, "checked"
        return self.place_scans(x, estimate.nominal, estimate.scan_index, before, after)

    def place_scans(self, x: Tensor, nominal: Tensor, scan_index: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Return positions (N, 2) as `moved` does.

        Args:
            x: (N, 2) float64, positions in pixels.
            nominal: (N, 2) float64, those before; their mean is the middle of a scan.
            scan_index: (N,) int64, scan of each view.
            before: (n,) float64 on the host, numbers that `x` has moved by.
            after: (n,) float64 on the host, those to move by.
        """
        placed = x.clone()
        of_scans = zip(before.reshape(self.scans - 1, -1), after.reshape(self.scans - 1, -1), strict=True)
        for scan, (old, new) in enumerate(of_scans, 1):
            is_of_scan = scan_index == scan
            centre = means(nominal[is_of_scan])
            (matrix, shift), (matrix_then, shift_then) = self._map(new), self._map(old)
            (a, b), (c, d) = (matrix @ torch.linalg.inv(matrix_then)).tolist()
            v, u = (x[is_of_scan] - centre - shift_then.to(x)).unbind(1)
            placed[is_of_scan] = torch.stack((a * v + b * u, c * v + d * u), dim=1) + centre + shift.to(x)
        return placed

    def _map(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return A (2, 2) and s (2,) of one scan's numbers, float64 on the host."""
        values = {"y": 0.0, "x": 0.0, "rotation": 0.0, "scale": 0.0}
        values |= dict(zip(self._units_of_scan, theta.tolist(), strict=True))
        cosine, sine = math.cos(values["rotation"]), math.sin(values["rotation"])
        matrix = (1 + values["scale"]) * torch.tensor([[cosine, -sine], [sine, cosine]], dtype=torch.float64)
        return matrix, torch.tensor([values["y"], values["x"]], dtype=torch.float64)
