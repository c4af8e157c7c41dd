"""A fly scan: the stage moves while the detector counts, so that a pattern is a sum over the path of its exposure.

v_j        path of the exposure of view j, in object pixels, y x;  a  a factor of the length of all paths
c_k, w_k   places along the path, and shares of the exposure, k = 1 ... K, sum_k w_k = 1
T_d        shift of a wave by d pixels (physics/views.py)

    P_jm -> sqrt(w_k) T_{a c_k v_j} P_jm     M modes become M K, mode by mode;  I_j = sum_mk |D(O_j sqrt(w_k) T P_jm)|^2

A path is cut into K equal parts, each of which is represented by its middle (Pelz et al., Appl. Phys. Lett. 105,
251101, 2014; Deng et al., Opt. Express 23, 5438, 2015). In object pixels the beam moves and the object stays; in the
far field the same pattern is seen where the object moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.measurement import Measurement
from ptymesh.physics import views
from ptymesh.physics.elementwise import times
from ptymesh.physics.model import inner
from ptymesh.physics.operators import Place, Tables, Values, WaveOperator
from ptymesh.physics.propagate import fft, ifft
from ptymesh.unknowns import Unknown

#: Largest difference of two steps of a line, as a share of the shorter one.
SAME_STEP = 0.5
#: Where the measured position lies on the path, as a share of it.
ORIGINS = {"start": 0.0, "middle": 0.5, "end": 1.0}


class FlyScan(WaveOperator):
    """Motion of the beam along a path (`fly_path`, px) during each exposure, longer by a factor `fly_length` for all.

    Both stay as they start unless a stage has `unknowns: {fly_length: true}`, or `fly_path` for a path of each view.
    """

    name: ClassVar[str] = "fly_scan"
    at: ClassVar[Place] = "probe"
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("fly_length", start=1.0, least=0.0, largest=100.0, may_rest=True),
        Unknown("fly_path", ("N", "2"), "view", unit="px", largest=1e4, may_rest=True),
    )

    points: int = Field(8, ge=2, le=64, description="points along the path, each as costly as a probe mode")
    path: Literal["line"] | tuple[float, float] = Field(
        "line",
        description="path of an exposure: `line` from a position towards the next one of its row (at the end of a row "
        "as far as from the last one), or a vector (y, x) in metres for all views",
    )
    duty: float = Field(1.0, gt=0, le=1, description="share of the step to the next position over which is counted")
    position_at: Literal["start", "middle", "end"] = Field(
        "middle", description="part of the path at which the positions of the file were measured"
    )
    weights: list[Annotated[float, Field(ge=0)]] | None = Field(
        None, description="relative exposures of the points, where the path is not passed evenly"
    )

    @model_validator(mode="after")
    def _consistent(self) -> FlyScan:
        if self.weights is not None and (len(self.weights) != self.points or sum(self.weights) <= 0):
            raise ValueError(
                f"weights has {len(self.weights)} numbers of sum {sum(self.weights):g} for {self.points} points; give "
                "one for each, not all 0"
            )
        if self.path != "line" and self.duty != 1:
            raise ValueError(f"duty is {self.duty:g}, and path is given in metres; give the path that is counted over")
        return self

    @property
    def fan_out(self) -> int:
        """Number of waves that each mode becomes, K."""
        return self.points

    def check(self, geometry: Geometry) -> None:
        """Check that the geometry allows the sum.

        Raises:
            BadInput: a near field, whose images stay on the detector while the sample moves; or a path in metres and no
                object pixel.
        """
        if geometry.propagation != "far_field":
            raise BadInput("optics.fly_scan is for far-field scans, and this one is in the near field; leave it out.")
        if self.path != "line" and geometry.object_pixel_m is None:
            raise BadInput(
                "optics.fly_scan.path is in metres, and the object pixel of this data set is not known; give "
                "data.energy_eV (or wavelength_m), the distance and the detector's pixel, or path: line."
            )

    def start_values(self, measurement: Measurement) -> Mapping[str, float | np.ndarray]:
        """Return the paths of all views, (N, 2) px, and what the recipe says.

        Args:
            measurement: the scan.

        Raises:
            BadInput: fewer than half of the positions lie on lines.
        """
        if self.path == "line":
            paths = self.duty * steps_along_lines(measurement.positions)
            still = int((paths == 0).all(axis=1).sum())
            if 2 * still > len(paths):
                raise BadInput(
                    f"optics.fly_scan finds no line at {still} of {len(paths)} positions, in the order of the file; "
                    "give path: [y, x], the path of an exposure in metres."
                )
        else:
            pixels = measurement.geometry.object_pixel_m
            assert pixels is not None, "checked"
            paths = np.tile(np.array(self.path) / np.array(pixels), (measurement.views, 1))
        return {"fly_path": paths, **super().start_values(measurement)}

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """Return a change of length, a tenth, and one of a path, a pixel, that patterns show."""
        return {"fly_length": 0.1, "fly_path": 1.0}

    def tables(self, geometry: Geometry) -> Tables:
        """Return c_k and sqrt(w_k), (K,) each."""
        at = (torch.arange(self.points, dtype=torch.float64) + 0.5) / self.points - ORIGINS[self.position_at]
        weights = torch.tensor(self.weights or [1.0] * self.points, dtype=torch.float64)
        return at, (weights / weights.sum()).sqrt()

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return sqrt(w_k) T_{a c_k v} psi.

        Args:
            psi: (B, M, h, w) complex.
            values: `fly_length` 0-d, `fly_path` (B, 2).
            tables: c_k and sqrt(w_k).

        Returns:
            (B, M K, h, w), the K waves of a mode beside each other.
        """
        ramps = _ramps(values, tables, psi) * tables[1][:, None, None]
        return ifft(times(fft(psi)[:, :, None], ramps[:, None])).flatten(1, 2)

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return sum_k sqrt(w_k) T_{-a c_k v} psi_k.

        Args:
            psi: (B, M K, h, w) complex.
            values: `fly_length` 0-d, `fly_path` (B, 2).
            tables: c_k and sqrt(w_k).
        """
        ramps = (_ramps(values, tables, psi) * tables[1][:, None, None]).conj_physical()
        total: Tensor | None = None
        # One by one: the order of the sum must not depend on how many views there are.
        for one, ramp in zip(fft(psi).unflatten(1, (-1, self.points)).unbind(2), ramps.unbind(1), strict=True):
            term = times(one, ramp[:, None])
            total = term if total is None else total + term
        assert total is not None, "there are two points at least"
        return ifft(total)

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return slopes and norms by the length, (B,), and by the paths, (B, 2).

        d/dv_a is -a c_k d_a of each wave, and d/da its sum with v_a / a.

        Args:
            psi: (B, M, h, w) complex, where the operator begins.
            values: `fly_length` 0-d, `fly_path` (B, 2).
            tables: c_k and sqrt(w_k).
            back: (B, M K, h, w) complex, wave taken back to where it ends.
        """
        waves = self.forward(psi, values, tables)
        at = -tables[0].repeat(psi.shape[1])[:, None, None]
        moved = [views.derivative(waves, axis) * at for axis in (0, 1)]
        path, length = values["fly_path"], values["fly_length"]
        y, x = (path[:, axis, None, None, None] for axis in (0, 1))
        along = y * moved[0] + x * moved[1]
        slopes = torch.stack([inner(one, back) for one in moved], dim=1)
        norms = torch.stack([inner(one, one) for one in moved], dim=1)
        return {
            "fly_length": (inner(along, back), inner(along, along)),
            "fly_path": (length * slopes, length**2 * norms),
        }


def _ramps(values: Values, tables: Tables, psi: Tensor) -> Tensor:
    """Return exp(-2 pi i k.(a c_k v)), (B, K, h, w) complex."""
    path = values["fly_path"] * values["fly_length"]
    offsets = path[:, None] * tables[0][:, None]
    ramps = views.ramps(offsets.flatten(0, 1), (psi.shape[-2], psi.shape[-1]))
    return ramps.unflatten(0, (len(path), -1))


def steps_along_lines(positions: np.ndarray) -> np.ndarray:
    """Return the step from each position to the next of its line, (N, 2).

    A step belongs to a line if it is like the one before or after it. A position whose next one lies elsewhere, at the
    end of a row or before one that is missing, has the step that led to it; one off all lines has none, 0.

    Args:
        positions: (N, 2), in the order in which they were measured.
    """
    steps = np.diff(positions, axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    apart = np.linalg.norm(np.diff(steps, axis=0), axis=1)
    alike = apart < SAME_STEP * np.minimum(lengths[1:], lengths[:-1])
    on_line = np.zeros(len(steps), bool)
    on_line[1:] |= alike
    on_line[:-1] |= alike
    found = np.zeros(positions.shape)
    found[1:][on_line] = steps[on_line]
    found[:-1][on_line] = steps[on_line]
    return found
