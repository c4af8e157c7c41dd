"""Options of where a reconstruction starts (recipe keys `object` and `probe`); initial.py makes the estimate of them.

N, M, L, K  views, probe modes, slices, variable-probe modes
H, W; h, w  object and window pixels
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ptymesh.io.options import ArrayRef, Number, Options, Positive, PositivePair
from ptymesh.options import Reference

#: Beyond a quarter of a radian, slices along a tilted axis are no longer seen face on.
Tilt = Annotated[float, Field(ge=-0.25, le=0.25)]


class ObjectOptions(Options):
    """Recipe key `object`: where the object starts.

    Fields:
        slices: L; slice_spacing_m: distance between neighbours, needed for more than one; tilt_rad: (y, x) by which the
            axis along which they are stacked leans against the beam, default 0 or, with a result, the result's.
        initial: `ones`; or an earlier result (.h5), moved and resampled onto this scan's pixels (a single slice is
            split evenly over several); or an array (.npy, .npz:name, .h5:/path) of (H, W) or (L, H, W), whose centre
            is put on the scan's and which is surrounded by ones or cropped.
        result_positions: with a result, take its refined positions instead of the scan's.
    """

    slices: int = Field(1, ge=1, le=10_000)
    slice_spacing_m: Positive | None = None
    tilt_rad: tuple[Tilt, Tilt] | None = None
    initial: Reference = "ones"
    result_positions: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> ObjectOptions:
        if self.slices > 1 and self.slice_spacing_m is None:
            raise ValueError(f"{self.slices} slices need slice_spacing_m, the distance between neighbours in metres")
        if self.slices == 1 and self.slice_spacing_m is not None:
            raise ValueError("slice_spacing_m has no meaning for a single slice; ask for slices: 2 or more")
        if self.slices == 1 and self.tilt_rad is not None:
            raise ValueError("tilt_rad has no meaning for a single slice; ask for slices: 2 or more")
        if self.result_positions and not self.from_result:
            raise ValueError(f"result_positions needs an earlier result as initial, not {self.initial!r}")
        return self

    @property
    def from_result(self) -> bool:
        """Whether `initial` names a result file."""
        return self.initial.lower().endswith((".h5", ".hdf5"))


class AutoStart(Options):
    """The file's own probe if it has one, else from the data."""

    kind: Literal["auto"] = "auto"


class FileStart(Options):
    """The probe that the data set holds."""

    kind: Literal["file"]


class DataStart(Options):
    """Square root of the mean pattern, propagated back to the sample, then to `defocus_m` (C10 = -defocus)."""

    kind: Literal["data"]
    defocus_m: Number = 0.0


Aberration = Number | tuple[Number, Number]


class ElectronStart(Options):
    """Round lens with a hard aperture: see `probes.aberrated`. `defocus_m` adds to C10 with the opposite sign."""

    kind: Literal["electron"]
    semiangle_rad: Positive
    defocus_m: Number = 0.0
    aberrations_m: dict[str, Aberration] = Field(default_factory=dict)


class ZonePlateStart(Options):
    """Focus of a Fresnel zone plate: see `probes.zone_plate`."""

    kind: Literal["zone_plate"]
    outer_zone_m: Positive
    diameter_m: Positive
    central_stop_m: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    defocus_m: Number = 0.0


class KbStart(Options):
    """Focus of a pair of mirrors: see `probes.kb_mirror`. Pairs are [y, x]; one number stands for both."""

    kind: Literal["kb"]
    aperture_m: PositivePair
    focal_length_m: PositivePair
    defocus_m: Number | tuple[Number, Number] = 0.0


class PinholeStart(Options):
    """Round hole, `distance_m` upstream of the sample: see `probes.pinhole`."""

    kind: Literal["pinhole"]
    diameter_m: Positive
    distance_m: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class ResultStart(Options):
    """Probe of an earlier result (.h5), resampled onto this scan's pixels."""

    kind: Literal["result"]
    path: Reference


class ArrayStart(Options):
    """Complex array (h, w) or (M, h, w), optical axis at (h//2, w//2): `file.npy`, `file.npz:name`, `file.h5:/path`."""

    kind: Literal["array"]
    path: ArrayRef


def _named(value: Any) -> Any:
    """`start: data` is short for `start: {kind: data}`."""
    return {"kind": value} if isinstance(value, str) else value


Start = Annotated[
    AutoStart
    | FileStart
    | DataStart
    | ElectronStart
    | ZonePlateStart
    | KbStart
    | PinholeStart
    | ResultStart
    | ArrayStart,
    Field(discriminator="kind"),
]


class ProbeOptions(Options):
    """Recipe key `probe`: where the probe starts.

    Fields:
        modes: M incoherent modes. Missing ones are made from the first (see `probes.extra_modes`), superfluous ones
            dropped; None keeps as many as the start has.
        mode_powers: M fractions of the total power, with sum 1; default 2 % for each mode that was made.
        opr_modes: K variable-probe (OPR) modes, of which each view has its own share; they start as Hermite-like
            modes of the first, shares at 0.
        start: where the probe comes from. It is rescaled to the counts of the mean pattern, except when object and
            probe come from the same result.
    """

    modes: int | None = Field(None, ge=1, le=10_000)
    mode_powers: tuple[Positive, ...] | None = None
    opr_modes: int = Field(0, ge=0, le=20)
    start: Annotated[Start, BeforeValidator(_named)] = Field(default_factory=AutoStart)
