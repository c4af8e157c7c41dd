"""Shift of each scan against the first one, where several scans of one object are reconstructed together (`scans`).

p_j     = p_0j + s_k for the views j of scan k; s_0 = 0, as a shift of all scans moves the object alone

The steps of all views of a scan are added up, so that the whole scan moves where single positions hardly would.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.geometry import Geometry
from ptymesh.models.base import Parametrisation


class ScanShift(Parametrisation):
    """Shift (y, x) of each scan but the first, in object pixels, of a recipe with `scans`."""

    name: ClassVar[str] = "scan_shift"
    of: ClassVar[Literal["probe", "positions"]] = "positions"

    lr: float = Field(0.1, gt=0, le=1, description=Parametrisation.model_fields["lr"].description)
    scans: int = Field(2, ge=2, le=100, description="number of scans of the recipe; the first one stays where it is")

    def units(self) -> dict[str, str]:
        """Return the names of the numbers, `y1`, `x1` for the second scan and so on, with their unit."""
        return {f"{axis}{scan}": "px" for scan in range(1, self.scans) for axis in "yx"}

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
        """Return J, (2 (S - 1), N, 2) float64: 1 for the views of one scan along one axis."""
        assert estimate.scan_index is not None, "checked"
        moved = [(estimate.scan_index == scan).to(torch.float64) for scan in range(1, self.scans)]
        still = torch.zeros_like(moved[0])
        return torch.stack(
            [torch.stack(pair, dim=1) for of_scan in moved for pair in ((of_scan, still), (still, of_scan))]
        )

    def moved(self, geometry: Geometry, estimate: Estimate, x: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Return the positions, displaced by the change of their scans' shifts.

        Args:
            geometry: not used.
            estimate: the scan of each view.
            x: (N, 2) float64, positions in pixels.
            before: (n,) float64 on the host.
            after: (n,) float64 on the host.
        """
        assert estimate.scan_index is not None, "checked"
        change = torch.cat((torch.zeros(1, 2, dtype=x.dtype), (after - before).to(x.dtype).reshape(-1, 2)))
        return x + change.to(x.device)[estimate.scan_index]
