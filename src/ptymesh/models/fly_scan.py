"""A fly scan: the stage moves while the detector counts, so that a pattern is a sum over the path of its exposure.

v_j        path of the exposure of view j, from one end to the other, in object pixels, y x
b_jk       bend of the path: place k less that on the straight line, likewise
a          factor of the length of all paths
c_k, w_k   places along the path, and shares of the exposure, k = 1 ... K, sum_k w_k = 1
T_d        shift of a wave by d pixels (physics/window_shifts.py);  d_jk = a (c_k v_j + b_jk)

    P_jm -> sqrt(w_k) T_{d_jk} P_jm     M modes become M K, mode by mode;  I_j = sum_mk |D(O_j sqrt(w_k) T P_jm)|^2

A path is cut into K equal parts, each of which is represented by its middle (Pelz et al., Appl. Phys. Lett. 105,
251101, 2014; Deng et al., Opt. Express 23, 5438, 2015). In object pixels the beam moves and the object stays; in the
far field the same pattern is seen where the object moves.

K is large enough where neighbouring places differ by little: intensities follow the place with fringes no finer than
1 / (2 q), q the largest frequency of the beam, so that three places for each of these are taken, or one for each pixel,
which no beam on these pixels needs more of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.measurement import Measurement
from ptymesh.physics import window_shifts
from ptymesh.physics.model import inner
from ptymesh.physics.operators import Place, ShiftedCopies, Tables, Values, WaveOperator
from ptymesh.units import LENGTH, read_quantity
from ptymesh.unknowns import Unknown

#: Where the measured position lies on the path, as a share of it.
ORIGINS = {"start": 0.0, "middle": 0.5, "end": 1.0}
#: Points along a path.
FEWEST_POINTS, MOST_POINTS = 2, 64
#: Points for each of the finest fringes along a path; share of the beam's power within its largest frequency; share of
#: the paths that are no longer than the one for which points are chosen.
POINTS_PER_FRINGE, BAND, LONGEST = 3, 0.99, 0.95


class FlyScan(ShiftedCopies, WaveOperator):
    """Motion of the beam along a path (`fly_path`, px) during each exposure, longer by a factor `fly_length` for all.

    `fly_bend` (px) is by how much its points lie off the straight line. All stay as they start unless a stage has
    `unknowns: {fly_length: true}`, or `fly_path` or `fly_bend` for a path of each view.
    """

    name: ClassVar[str] = "fly_scan"
    at: ClassVar[Place] = "probe"
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("fly_length", start=1.0, least=0.0, largest=100.0, may_rest=True),
        Unknown("fly_path", ("N", "2"), "view", unit="px", largest=1e4, may_rest=True),
        Unknown("fly_bend", ("N", "points", "2"), "view", unit="px", largest=1e4, may_rest=True),
    )

    points: Annotated[int, Field(ge=FEWEST_POINTS, le=MOST_POINTS)] | Literal["auto"] = Field(
        "auto",
        description="points along the path, each as costly as a probe mode; `auto`: as many as the path and the beam "
        "in the file ask for, a pixel apart where the file has no beam, and those of the file with `path: file`",
    )
    path: Literal["line", "file"] | tuple[float, float] = Field(
        "line",
        description="path of an exposure: `line` from a position towards the next one of its row (at the end of a row "
        "as far as from the last one), `file` along the places that the file has (`positions.per_view`), or a vector "
        "(y, x) in metres for all views",
    )
    duty: float = Field(1.0, gt=0, le=1, description="share of the step to the next position over which is counted")
    position_at: Literal["start", "middle", "end"] = Field(
        "middle", description="part of the path at which the positions of the file were measured"
    )
    weights: list[Annotated[float, Field(ge=0)]] | None = Field(
        None, description="relative exposures of the points, where the path is not passed evenly"
    )

    @field_validator("path", mode="before")
    @classmethod
    def _in_metres(cls, path: object) -> object:
        return [read_quantity("path", one, LENGTH) for one in path] if isinstance(path, list | tuple) else path

    @model_validator(mode="after")
    def _consistent(self) -> FlyScan:
        many = len(self.weights or []) if self.points == "auto" else self.points
        if self.weights is not None and (
            not FEWEST_POINTS <= len(self.weights) == many <= MOST_POINTS or sum(self.weights) <= 0
        ):
            raise ValueError(
                f"weights has {len(self.weights)} numbers of sum {sum(self.weights):g} for {self.points} points; give "
                "one for each, not all 0"
            )
        if self.path != "line" and self.duty != 1:
            raise ValueError(f"duty is {self.duty:g}, and is of path: line alone; give the path that is counted over")
        if self.path == "file" and self.position_at != "middle":
            raise ValueError(f"position_at is {self.position_at}, and path: file says it by itself; leave it out")
        return self

    @property
    def fan_out(self) -> int:
        """Number of waves that each mode becomes, K."""
        if self.points == "auto":
            raise BadInput("optics.fly_scan.points is auto, and no scan is there to choose it from; give a number.")
        return self.points

    @property
    def needs_whole_scan(self) -> bool:
        """True unless points and path are given as numbers, or the path as places in the file."""
        return self.path == "line" or self.points == "auto"

    def axes(self, window: tuple[int, int]) -> dict[str, int]:
        """Return the number of points; window is not used."""
        return {"points": self.fan_out}

    def check(self, geometry: Geometry) -> None:
        """Check that the geometry allows the sum.

        Raises:
            BadInput: a near field, whose images stay on the detector while the sample moves; or a path in metres and no
                object pixel.
        """
        if geometry.propagation != "far_field":
            raise BadInput("optics.fly_scan is for far-field scans, and this one is in the near field; leave it out.")
        if not isinstance(self.path, str) and geometry.object_pixel_m is None:
            raise BadInput(
                "optics.fly_scan.path is in metres, and the object pixel of this data set is not known; give "
                "data.energy_eV (or wavelength_m), the distance and the detector's pixel, or path: line."
            )

    def for_scan(self, measurement: Measurement) -> tuple[FlyScan, str]:
        """Return the piece with a number of points, and a sentence on how it was chosen.

        Args:
            measurement: the scan.

        Raises:
            BadInput: there are no paths, or the longest ones have more points than there may be.
        """
        if self.points != "auto":
            return self, ""
        self.check(measurement.geometry)
        if self.weights is not None:
            return self.model_copy(update={"points": len(self.weights)}), ""
        if self.path == "file":
            points = _file_paths(measurement).shape[1]
            return self.model_copy(update={"points": max(FEWEST_POINTS, points)}), ""
        paths = self._straight_paths(measurement)
        length = float(np.quantile(np.linalg.norm(paths, axis=1), LONGEST))
        spacing, why = _spacing(measurement.probe)
        points_needed = math.ceil(length / spacing - 1e-6)
        if points_needed > MOST_POINTS:
            raise BadInput(
                f"optics.fly_scan would need {points_needed} points for a path of {length:.3g} px; give points, "
                f"{MOST_POINTS} at most, or correct path or positions."
            )
        points = max(FEWEST_POINTS, points_needed)
        sentence = f"optics.fly_scan takes {points} points along a path of {length:.3g} px, {why}."
        return self.model_copy(update={"points": points}), sentence

    def start_values(self, measurement: Measurement) -> Mapping[str, float | np.ndarray]:
        """Return the paths of all views, (N, 2) px, their bends, (N, K, 2) px, and what the recipe says.

        Args:
            measurement: the scan.

        Raises:
            BadInput: fewer than half of the positions lie on lines, or the file has no paths.
        """
        if self.path != "file":
            return {"fly_path": self._straight_paths(measurement), **super().start_values(measurement)}
        places = _resampled(_file_paths(measurement), self.fan_out)
        at = self._places().numpy()
        straight = np.einsum("k,nki->ni", at / (at**2).sum(), places)
        bends = places - at[:, None] * straight[:, None]
        return {"fly_path": straight, "fly_bend": bends, **super().start_values(measurement)}

    def _straight_paths(self, measurement: Measurement) -> np.ndarray:
        """Return the paths (N, 2) px, lines or as given. Raises BadInput."""
        if not isinstance(self.path, str):
            pixels = measurement.geometry.object_pixel_m
            assert pixels is not None, "checked"
            return np.tile(np.array(self.path) / np.array(pixels), (measurement.views, 1))
        steps = measurement.line_steps
        if len(steps) != measurement.views:
            raise BadInput(f"The scan has {measurement.views} views and {len(steps)} steps; give one step for each.")
        still = int((steps == 0).all(axis=1).sum())
        if 2 * still > len(steps):
            raise BadInput(
                f"optics.fly_scan finds no line at {still} of {len(steps)} positions, in the order of the file; "
                "give path: [y, x], the path of an exposure in metres."
            )
        return np.asarray(self.duty * steps)

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """Return a change of length, a tenth, and one of a path or a bend, a pixel, that patterns show."""
        return {"fly_length": 0.1, "fly_path": 1.0, "fly_bend": 1.0}

    def _places(self) -> Tensor:
        """Return c_k, (K,) float64."""
        return (torch.arange(self.fan_out, dtype=torch.float64) + 0.5) / self.fan_out - ORIGINS[self.position_at]

    def tables(self, geometry: Geometry) -> Tables:
        """Return c_k and sqrt(w_k), (K,) each."""
        weights = torch.tensor(self.weights or [1.0] * self.fan_out, dtype=torch.float64)
        return self._places(), (weights / weights.sum()).sqrt()

    def copies(self, values: Values, tables: Tables) -> tuple[Tensor, Tensor]:
        """Return d_jk, (B, K, 2), and sqrt(w_k), (K,).

        Args:
            values: `fly_length` 0-d, `fly_path` (B, 2) px and `fly_bend` (B, K, 2) px.
            tables: c_k and sqrt(w_k).
        """
        return _offsets(values, tables, values["fly_length"]), tables[1]

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return slopes and norms by the length, (B,), by the paths, (B, 2), and by their bends, (B, K, 2).

        d/d d_jk is -T' of wave k alone; d d_jk is a c_k dv, a db_k, and (c_k v + b_k) da.

        Args:
            psi: (B, M, h, w) complex, where the operator begins.
            values: as for `forward`.
            tables: c_k and sqrt(w_k).
            back: (B, M K, h, w) complex, wave taken back to where it ends.
        """
        waves, length, points = self.forward(psi, values, tables), values["fly_length"], self.fan_out
        moved = [-window_shifts.derivative(waves, axis) for axis in (0, 1)]
        places = _offsets(values, tables, 1.0).repeat(1, psi.shape[1], 1)[..., None, None]
        along = places[:, :, 0] * moved[0] + places[:, :, 1] * moved[1]
        at = tables[0].repeat(psi.shape[1])[:, None, None]
        by_path = [one * at for one in moved]

        def of_points(one: Tensor, other: Tensor) -> Tensor:
            """Return the product of the waves of each point, (B, K)."""
            pairs = (w.unflatten(1, (-1, points)).unbind(2) for w in (one, other))
            return torch.stack([inner(a, b) for a, b in zip(*pairs, strict=True)], dim=1)

        return {
            "fly_length": (inner(along, back), inner(along, along)),
            "fly_path": (
                length * torch.stack([inner(one, back) for one in by_path], dim=1),
                length**2 * torch.stack([inner(one, one) for one in by_path], dim=1),
            ),
            "fly_bend": (
                length * torch.stack([of_points(one, back) for one in moved], dim=2),
                length**2 * torch.stack([of_points(one, one) for one in moved], dim=2),
            ),
        }


def _offsets(values: Values, tables: Tables, length: Tensor | float) -> Tensor:
    """Return d_jk for a factor `length`, (B, K, 2)."""
    return length * (values["fly_path"][:, None] * tables[0][:, None] + values["fly_bend"])


def _file_paths(measurement: Measurement) -> np.ndarray:
    """Return the places (N, S, 2) px that the file has for each view. Raises BadInput where it has none."""
    if measurement.paths is None or len(measurement.paths) != measurement.views:
        raise BadInput(
            "optics.fly_scan.path is file, and there is one position for each view; set positions.per_view, or path."
        )
    return measurement.paths


def _resampled(places: np.ndarray, points: int) -> np.ndarray:
    """Return the places (N, K, 2) in the middles of K equal parts of the time in which (N, S, 2) were passed.

    Between two places the beam moves evenly; before the first and behind the last it goes on as next to them.
    """
    several = places.shape[1]
    if several in (1, points):
        return np.broadcast_to(places, (len(places), points, 2)) if several == 1 else places
    at = (np.arange(points) + 0.5) / points * several - 0.5
    first = np.clip(np.floor(at).astype(int), 0, several - 2)
    share = (at - first)[:, None]
    return np.asarray((1 - share) * places[:, first] + share * places[:, first + 1])


def _spacing(probe: np.ndarray | None) -> tuple[float, str]:
    """Return how far, px, the points of a path lie apart at most, and why.

    Args:
        probe: (M, h, w) complex, beam of the file, or None.
    """
    if probe is None or not np.any(probe):
        return 1.0, "a pixel apart, as the file has no beam"
    power = (np.abs(np.fft.fft2(probe)) ** 2).sum(axis=0)
    largest = max(*(_band(power.sum(axis=axis)) for axis in (0, 1)), 1 / max(probe.shape))
    spacing = max(1.0, 1 / (2 * POINTS_PER_FRINGE * largest))
    finest = f"the beam in the file has details down to {0.5 / largest:.2g} px"
    return spacing, f"{spacing:.2g} px apart at most, as {finest}"


def _band(power: np.ndarray) -> float:
    """Return the frequency, cycles per pixel, within which most of a spectrum (n,) lies."""
    frequency = np.abs(np.fft.fftfreq(len(power)))
    order = np.argsort(frequency, kind="stable")
    share = np.cumsum(power[order]) / max(float(power.sum()), np.finfo(float).tiny)
    return float(frequency[order][min(int(np.searchsorted(share, BAND)), len(power) - 1)])
