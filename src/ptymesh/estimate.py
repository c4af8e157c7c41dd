"""Unknowns of a reconstruction and their current values.

N       views
M       incoherent probe modes
L       object slices
Q       incoherent object modes
H, W    object pixels (multiples of BLOCK)
K       variable-probe (OPR) modes
h, w    window pixels
v, u    detector pixels, as many as the window's unless the model's are finer

p_j = n_j + f_j: a position is an integer anchor n_j, re-chosen only between epochs, plus the rest f_j.

Positions count from the first pixel of the whole object, of which `object` may be a part
(distributed/layouts/tiled.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from ptymesh.errors import BadInput
from ptymesh.types import Anchors, Object, Positions, Probe, Weights
from ptymesh.unknowns import BUILT_IN

#: Side of the square blocks in which object updates are stored and sent; the object's sides are multiples of it.
BLOCK = 32
#: Pixels that a view may reach beyond its window on each side: for bilinear interpolation at a position that has moved
#: by up to a pixel (per epoch) from where |f_j| was at most 1. Other models do not exceed the window (`Model.reach`).
REACH = 2

#: Names of the unknowns that every estimate has.
NAMES = tuple(one.name for one in BUILT_IN)


@dataclass
class Estimate:
    """Current values of the unknowns, updated in place within an epoch.

    Attributes:
        object: (Q L, H, W) complex, the whole object or the part that this rank holds; the slices of one object mode
            after the other's.
        probe: (M, h, w) complex, optical axis at (h//2, w//2); |probe|^2 in counts. Where each of S scans has its own,
            (S M, h, w), one scan's modes after the other's.
        positions: (N, 2) float64, y x: object pixel under the window's top-left corner.
        anchors: (N, 2) int64, integer parts of the positions, at which windows are cut.
        nominal: (N, 2) float64, positions at the start of the stage, from which batches are drawn.
        weights: (N, 1 + K) float: w_j0, amplitude of the incident beam per view (1 where it was constant), then the
            view's shares w_jk of the OPR modes.
        background: (v, u) float counts added to every intensity (0 where there is none); where each of S scans has its
            own, (S, v, u).
        slice_spacing_m: distance between neighbouring slices (0 for a single slice).
        tilt_rad: (y, x) by which the axis along which slices are stacked leans against the beam: from one slice to the
            next, the same pixel is displaced by slice_spacing_m tan(tilt_rad).
        origin: (2,) float64, object pixel at which the scan's own coordinates have their zero.
        opr: (K, h, w) complex, variable-probe modes; K is 0 unless the recipe enables them.
        parameters: numbers from which probe or positions are computed, by parametrisation and name (ptymesh.models).
        initial_parameters: the same numbers at the start of the run, 0 where they have none; priors are about them.
        others: unknowns of the model's operators by name, of the shapes that they declare (unknowns.py).
        moving: True if positions change within an epoch. None of them is then treated as a whole number of pixels,
            since ranks would see this change at different times.
        corner: (2,) pixel of the whole object at which `object` starts.
        extent: (2,) sides of the whole object (default: those of `object`).
        scan_index: (N,) int64, number of the scan that each view is of; None for a single scan.
        probe_count: number of probes, that of the scans where each has its own.
        object_kind: name of the object's model (physics/object_models); `transmission` for one without values.
        object_values: (Q L, H, W) real or complex, of a model with values, such as a potential: `object` is then the
            transmission that follows from them. None elsewhere.
        absorption: of an object whose model has one; of a potential -log amplitude over phase.
        object_modes: Q, number of incoherent modes of the object.
    """

    object: Object
    probe: Probe
    positions: Positions
    anchors: Anchors
    nominal: Positions
    weights: Weights
    background: torch.Tensor
    slice_spacing_m: float = 0.0
    tilt_rad: tuple[float, float] = (0.0, 0.0)
    origin: tuple[float, float] = (0.0, 0.0)
    parameters: dict[str, dict[str, float]] = field(default_factory=dict)
    initial_parameters: dict[str, dict[str, float]] = field(default_factory=dict)
    others: dict[str, torch.Tensor] = field(default_factory=dict)
    opr: torch.Tensor = None  # type: ignore[assignment]  # default (0, h, w)
    moving: bool = False
    corner: tuple[int, int] = (0, 0)
    extent: tuple[int, int] = None  # type: ignore[assignment]  # default: sides of `object`
    scan_index: torch.Tensor | None = None
    probe_count: int = 1
    object_kind: str = "transmission"
    object_values: torch.Tensor | None = None
    absorption: float = 0.0
    object_modes: int = 1

    def __post_init__(self) -> None:
        self._probes: tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None = None
        # kernels need C-contiguous arrays; arrays from files may be column-major
        self.object, self.probe = self.object.contiguous(), self.probe.contiguous()
        if self.extent is None:
            self.extent = (self.object.shape[-2], self.object.shape[-1])
        if self.opr is None:
            self.opr = self.probe[:0].clone()

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return the array of an unknown by its declared name.

        Raises:
            KeyError: there is no such unknown.
        """
        if name in self.others:
            return self.others[name]
        if name not in NAMES:
            raise KeyError(f"{name} is no unknown of this estimate; there are {', '.join((*NAMES, *self.others))}")
        values: torch.Tensor = getattr(self, name)
        return values

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all unknowns that are arrays."""
        return iter((*NAMES, *self.others))

    def sizes(self) -> dict[str, int]:
        """Return the lengths of the axes by which unknowns are declared."""
        (slices, height, width), (modes, h, w), count = self.object.shape, self.probe.shape, len(self.opr)
        named = {"N": len(self.positions), "L": slices, "H": height, "W": width, "M": modes, "h": h, "w": w}
        scans = 1 if self.scan_index is None else int(self.scan_index.max()) + 1
        v, u = self.background.shape[-2:]
        return named | {"K": count, "1+K": 1 + count, "S": scans, "v": v, "u": u}

    @property
    def probes(self) -> tuple[torch.Tensor, ...]:
        """The probes (M, h, w) of which `probe` consists, in the same memory."""
        if self.probe_count == 1:
            return (self.probe,)
        # kept, as backends recognise by the tensor itself what they have computed of it
        if self._probes is None or self._probes[0] is not self.probe:
            self._probes = self.probe, self.probe.chunk(self.probe_count)
        return self._probes[1]

    def probe_of(self, setting: int) -> torch.Tensor:
        """Return the probe (M, h, w) of the views of a scan, which may be that of all scans."""
        return self.probes[setting if self.probe_count > 1 else 0]

    @property
    def has_own_backgrounds(self) -> bool:
        """True if each scan has a background of its own."""
        return self.background.ndim == 3

    def terms_of_background(self, terms: torch.Tensor, setting: int) -> torch.Tensor:
        """Return terms of the background by views of one scan, 0 for the backgrounds of others.

        Args:
            terms: (B, ..., v, u).
            setting: number of the scan.

        Returns:
            (B, ..., S, v, u) where each scan has a background of its own, else `terms`.
        """
        if not self.has_own_backgrounds:
            return terms
        sums = terms.new_zeros((*terms.shape[:-2], *self.background.shape))
        sums[..., setting, :, :] = terms
        return sums

    @property
    def slices(self) -> int:
        """Number of slices of each object mode."""
        return len(self.object) // self.object_modes

    def by_object_mode(self) -> Iterator[Estimate]:
        """Yield an estimate for each object mode, whose object is that mode, in the same memory."""
        modes, stored = self.object_modes, self.object_values
        values = [None] * modes if stored is None else stored.chunk(modes)
        for obj, of_mode in zip(self.object.chunk(modes), values, strict=True):
            yield replace(self, object=obj, object_values=of_mode, object_modes=1)

    @property
    def vacuum(self) -> float:
        """Value of vacuum in what a constraint is given as the object: the transmission, or its values."""
        return 1.0 if self.object_values is None else 0.0

    @property
    def window(self) -> tuple[int, int]:
        """Sides of the window, (h, w)."""
        return self.probe.shape[-2], self.probe.shape[-1]

    def relative_anchors(self, anchors: torch.Tensor) -> torch.Tensor:
        """Return anchors (B, 2) relative to the first pixel of `object`."""
        if not any(self.corner):
            return anchors
        y, x = self.corner  # Python numbers: a tensor would have to be copied to the device
        return torch.stack((anchors[..., 0] - y, anchors[..., 1] - x), dim=-1)

    def fractions(self, views: torch.Tensor) -> torch.Tensor:
        """Return f_j = p_j - n_j of these views, (B, 2) in the probe's real dtype."""
        return (self.positions[views] - self.anchors[views]).to(self.probe.real.dtype)


def refuse_windows_outside(estimate: Estimate) -> None:
    """Raise BadInput if a window, interpolation pixels included, reaches beyond the object."""
    shape, window = estimate.extent, estimate.window
    for sides in (shape, estimate.object.shape[-2:]):
        assert all(n % BLOCK == 0 for n in sides), f"the object's sides {tuple(sides)} must be multiples of {BLOCK}"
    for axis, name in enumerate(("y", "x")):
        low, high = int(estimate.anchors[:, axis].min()), int(estimate.anchors[:, axis].max())
        if low < REACH or high + window[axis] + REACH > shape[axis]:
            raise BadInput(
                f"Windows span {name} = {low} to {high + window[axis]} px but the object has {shape[axis]}; "
                "check the positions, or start from an object that holds the whole scan."
            )
