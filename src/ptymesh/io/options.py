"""Options of a recipe about data and positions (keys `data` and `positions`).

Lengths are in metres, angles in degrees, pairs are [y, x]; a single number stands for both. Everything that concerns
detector pixels (centre, crop, flips, pixel sizes) is in the axes in which the file stores them.

Arrays are given as `file.npy`, `file.tif`, `file.npz:name` or `file.h5:/path`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from ptymesh import options
from ptymesh.geometry import Propagation, Radiation
from ptymesh.options import FilePath, Reference

#: Positions of the file for one view.
MOST_PER_VIEW = 64
#: Longer lists of bad pixels belong into a mask.
MOST_BAD_PIXELS = 200
#: A recipe holds no more values than a text of YAML may (run.yaml_text).
MOST_WITHOUT, MOST_REGIONS = 20_000, 2_000


def _as_pair(value: Any) -> Any:
    """Return a pair for one number; text is one, too, because YAML reads 1e-8 as text, which pydantic converts."""
    return (value, value) if isinstance(value, int | float | str) and not isinstance(value, bool) else value


def _as_tuple(value: Any) -> Any:
    """Return one path as a tuple, or a list of paths as it is."""
    return (value,) if isinstance(value, str | Path) else value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)]
PositivePair = Annotated[tuple[Positive, Positive], BeforeValidator(_as_pair)]
Step = Annotated[tuple[Number, Number], BeforeValidator(_as_pair)]
Size = Annotated[tuple[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]], BeforeValidator(_as_pair)]
Pixel = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]
Index = Annotated[int, Field(ge=0)]
#: [row, end, column, end], ends excluded.
Region = tuple[Index, Index, Index, Index]
CheckMode = Annotated[
    Literal["auto", "warn", "off"],
    # YAML reads `off` as a truth value
    BeforeValidator(lambda value: {True: "auto", False: "off"}[value] if isinstance(value, bool) else value),
]
ArrayRef = Annotated[Reference, Field(min_length=1)]
Unit = Literal["m", "mm", "um", "nm", "A", "px"]


class FrozenOptions(options.Options):
    """Base of options that cannot be changed; unknown keys are refused."""

    model_config = ConfigDict(frozen=True)


def _check_axes(name: str, axes: str | None) -> None:
    if axes is not None and sorted(axes) not in (sorted("nyx"), sorted("rcyx"), sorted("yx")):
        raise ValueError(
            f"{name} is {axes!r}; order the letters n y x (r c y x, or y x of one pattern a file), each once"
        )


class KeyMap(FrozenOptions):
    """Names of the datasets in a generic HDF5 or npz file, or, without `patterns`, of what a known format lacks.

    `pattern_axes` names the axes of the patterns as stored: n view, y x detector, r c rows and columns of a raster
    (`nyx` for three axes, `rcyx` for four, if nothing is said; `nxy`, `yxn` ... otherwise).
    Positions are one dataset, (N, 2) or (2, N), in `position_order`, or two (N,) datasets.
    Scalars (energy, wavelength, distance, pixel) are in the unit that the dataset says, else in eV and metres.
    A name of which the file has no dataset may name another file: `file.h5:/path`, `file.csv:y,x`, relative to the
    recipe or to the data file.
    """

    patterns: str | None = None
    pattern_axes: str | None = None
    positions: str | None = None
    positions_y: str | None = None
    positions_x: str | None = None
    position_order: Literal["yx", "xy"] = "yx"
    probe: str | None = None
    mask: str | None = None
    dark: str | None = None
    intensity: str | None = None
    energy_eV: str | None = None
    wavelength_m: str | None = None
    distance_m: str | None = None
    detector_pixel_m: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> KeyMap:
        _check_axes("pattern_axes", self.pattern_axes)
        if self.patterns is None and self.pattern_axes is not None:
            raise ValueError("pattern_axes are those of patterns, which is missing; name the dataset of the patterns")
        if (self.positions_y is None) != (self.positions_x is None):
            raise ValueError("positions_y and positions_x belong together; give both")
        if self.positions is not None and self.positions_y is not None:
            raise ValueError("positions are named twice; give either positions, or positions_y and positions_x")
        return self


class ViewRange(FrozenOptions):
    """Views start, start + step ... before stop, in the order of the file; as in a Python slice.

    `without`: but not these, counted as in the file; `mask`: an array of one value for each view of the file, zero
    where it is left out; `without_rows`, `without_columns`: of a raster, counted from 0. `central`: of what is left,
    only so many, the nearest to the middle of the scan, in the same order.
    """

    start: int | None = None
    stop: int | None = None
    step: int = Field(1, gt=0)
    without: Annotated[tuple[Index, ...], Field(max_length=MOST_WITHOUT)] = ()
    mask: ArrayRef | None = None
    without_rows: Annotated[tuple[Index, ...], Field(max_length=MOST_REGIONS)] = ()
    without_columns: Annotated[tuple[Index, ...], Field(max_length=MOST_REGIONS)] = ()
    central: int | None = Field(None, gt=0)


class FrameOptions(FrozenOptions):
    """Recipe key `data.frames`: how a list of frames makes a raster.

    Fields:
        shape: [rows, columns] of the scan.
        skip: frames in front that belong to no view.
        flyback: frames after each row that belong to no view.
        axes: of an array that does not say them (DigitalMicrograph without units, .npy, TIFF), slowest first, as
            `pattern_axes`; of MATLAB in the order of `size`.
    """

    axes: str | None = None
    shape: Size | None = None
    skip: int = Field(0, ge=0)
    flyback: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> FrameOptions:
        _check_axes("axes", self.axes)
        if self.flyback and self.shape is None:
            raise ValueError("flyback frames come after each row; give shape too, the rows and columns of the scan")
        return self


class RawLayout(FrozenOptions):
    """Recipe key `data.raw`: raw frames without a header that says what they are.

    Fields:
        pixels: [rows, columns] of a frame. dtype: of its numbers, little-endian unless `big_endian`.
        offset: bytes before the first frame. gap: bytes between two of them.
    """

    pixels: Size
    dtype: Literal["uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64"]
    big_endian: bool = False
    offset: int = Field(0, ge=0, lt=1 << 40)
    gap: int = Field(0, ge=0, lt=1 << 31)


class CheckOptions(FrozenOptions):
    """Recipe key `data.checks`: what is done about data that look wrong, before a reconstruction believes them.

    One word stands for all three. Each is `auto` (act, and say so), `warn` (say it, change nothing) or `off`.

    Fields:
        views: leave out views without counts, with next to none, or far too bright, and those far from all others.
        pixels: mask regions without counts beside bright ones, markers of missing data, and hot, dead, stuck pixels.
        scan: refuse positions and units that cannot be.
    """

    views: CheckMode = "auto"
    pixels: CheckMode = "auto"
    scan: CheckMode = "auto"


class CheckedData(FrozenOptions):
    """Recipe key `data.checked`: what checks have decided about one file. A run writes it; other files ignore it.

    Fields:
        fingerprint: of that file; none: any.
        without: views that are left out, counted as in the file.
        regions: [row, end, column, end] of detector pixels that are masked, as stored, ends excluded.
    """

    fingerprint: str | None = None
    without: Annotated[tuple[Index, ...], Field(max_length=MOST_WITHOUT)] = ()
    regions: Annotated[tuple[Region, ...], Field(max_length=MOST_REGIONS)] = ()


def _as_checks(value: Any) -> Any:
    """Return one word as the value of all checks."""
    return dict.fromkeys(CheckOptions.model_fields, value) if isinstance(value, str | bool) else value


class DataOptions(FrozenOptions):
    """Recipe key `data`: a file, its geometry where the file is silent or wrong, and how patterns are prepared.

    Applied in this order: view selection, saturation, dark, flat, gain, flips, centre, crop, bin, pad, transposition.

    Fields:
        path: of the data set, whose format is found by content; or `sample:NAME`, which is fetched (`ptymesh.fetch`).
        further: files of the same format whose views follow; `*` in a name stands for a numbered series.
        keys: dataset names of a generic HDF5 or npz file.
        follow: folders, besides the file's own, in which other files may lie that an HDF5 file refers to (external
            links, raw storage, sources of virtual datasets).
        frames: how a list of frames makes a raster, and which of them belong to no view.
        raw: pixels and type of raw frames.
        dc: where the file keeps the zero frequency of far-field patterns, if the format's own rule is wrong.
        radiation ... object_pixel_m: override the file. `energy_eV` is the photon or kinetic electron energy;
            `object_pixel_m` that of the whole stored pattern (cropping and padding change it).
        surface_deg: [y, x] angle by which the normal of a surface leans from the beam that it reflects, along one of
            the detector's axes; object pixels and positions are then on the surface.
        views: which views to use.
        flip_y, flip_x, transpose: turn the detector into the frame of the scan: rows, columns reversed (about the
            zero frequency in the far field), then axes exchanged. Masks, darks and the file's probe follow.
        centre: detector pixel of the direct beam, `find` (centroid of the mean pattern), or none: as stored.
        crop: detector pixels kept around the centre. bin: pixels summed along y and x.
        pad: size of the window after binning; new pixels are masked.
        mask: array, combined with the file's own; `mask_true` says what non-zero means there.
        bad_pixels: [row, column] of detector pixels that hold no data, besides those of masks.
        saturation: stored value from which on a pixel holds no data in that view.
        amplitudes: stored values are square roots of detector values, which are squared before all else is done.
        dark: number or array subtracted (clipped at zero). flat: array that divides, relative to its mean.
        gain: detector units per count, number or array.
        background: array of counts that add to every pattern and stay in the model (better than `dark` for photons).
        efficiency: array of the share of the light that each pixel counts, relative to the mean; stays in the model.
        intensity: (N,) array of incident intensities, any unit.
        invalid: what to do with NaN and negative counts on good pixels: refuse the file, treat them as missing in
            that view, or take negative ones as zero (and NaN as missing).
        checks: what is done about data that look wrong; checked: what was found so in this file before.
    """

    path: FilePath
    further: Annotated[tuple[FilePath, ...], BeforeValidator(_as_tuple)] = ()
    keys: KeyMap | None = None
    follow: Annotated[tuple[FilePath, ...], BeforeValidator(_as_tuple)] = ()
    frames: FrameOptions | None = None
    raw: RawLayout | None = None
    dc: Literal["centre", "corner"] | None = None

    radiation: Radiation | None = None
    energy_eV: Positive | None = None
    wavelength_m: Positive | None = None
    propagation: Propagation | None = None
    distance_m: Positive | None = None
    focus_distance_m: Positive | None = None
    detector_pixel_m: PositivePair | None = None
    object_pixel_m: PositivePair | None = None
    surface_deg: tuple[Number, Number] | None = None

    views: ViewRange = ViewRange(step=1)
    flip_y: bool = False
    flip_x: bool = False
    transpose: bool = False
    centre: Annotated[tuple[Number, Number], Field()] | Literal["find"] | None = None
    crop: Size | None = None
    bin: int = Field(1, gt=0)
    pad: Size | None = None

    mask: ArrayRef | None = None
    mask_true: Literal["good", "bad"] = "good"
    bad_pixels: Annotated[tuple[Pixel, ...], Field(max_length=MOST_BAD_PIXELS)] = ()
    saturation: Positive | None = None
    amplitudes: bool = False
    dark: Number | ArrayRef | None = None
    flat: ArrayRef | None = None
    gain: Positive | ArrayRef | None = None
    background: ArrayRef | None = None
    efficiency: ArrayRef | None = None
    intensity: ArrayRef | None = None
    invalid: Literal["refuse", "missing", "zero"] = "refuse"
    checks: Annotated[CheckOptions, BeforeValidator(_as_checks)] = CheckOptions()
    checked: CheckedData | None = None

    @model_validator(mode="before")
    @classmethod
    def _none_as_word(cls, value: Any) -> Any:
        """Replace the word in `centre: none` by None, and refuse a path in place of the options."""
        if isinstance(value, str):
            raise ValueError(f"the file belongs under path; write data: {{path: {value}}}")
        if isinstance(value, dict) and value.get("centre") == "none":
            value = {**value, "centre": None}
        return value

    @model_validator(mode="after")
    def _consistent(self) -> DataOptions:
        if self.energy_eV is not None and self.wavelength_m is not None:
            raise ValueError("energy_eV and wavelength_m say the same thing; give one of them")
        return self


class Raster(FrozenOptions):
    """A raster: rows along y, columns along x (fast). `shape` may be left out where the patterns are 4-D.

    `step_px` counts object pixels of the whole stored pattern, before cropping, binning or padding.
    """

    shape: Size | None = None
    step_m: Step | None = None
    step_px: Step | None = None

    @model_validator(mode="after")
    def _one_step(self) -> Raster:
        if (self.step_m is None) == (self.step_px is None):
            raise ValueError("a raster needs its step once; give either step_m or step_px")
        return self


class PositionOptions(FrozenOptions):
    """Recipe key `positions`: how windows are placed, and how the scan lies to the detector.

    Applied in this order: lag, rows that are reversed, exchange of axes, flips, affine matrix, rotation.

    Fields:
        lag: pattern j was taken at position j - lag; the first ones take the last positions.
        serpentine: of a raster, positions of every second row are taken from its end to its start.
        subpixel: how fractions of a pixel are modelled.
        raster: positions of a raster scan, instead of the file's.
        per_view: the file has so many positions for each view, places of the beam during its exposure (a fly scan). A
            view lies at their mean; `optics: {fly_scan: {path: file}}` takes the beam along them.
        unit: of the positions in the file, where it does not say so itself.
        transpose, flip_y, flip_x: exchange y and x, then reverse them.
        affine: [[yy, yx], [xy, xx]], (y, x) -> A (y, x).
        rotation_deg: y' = y cos - x sin, x' = y sin + x cos.
    """

    subpixel: Literal["fourier", "bilinear", "none"] = "fourier"
    raster: Raster | None = None
    per_view: int = Field(1, ge=1, le=MOST_PER_VIEW)
    unit: Unit | None = None
    lag: int = Field(0, gt=-(10**6), lt=10**6)
    serpentine: bool = False
    transpose: bool = False
    flip_y: bool = False
    flip_x: bool = False
    affine: tuple[tuple[Number, Number], tuple[Number, Number]] = ((1.0, 0.0), (0.0, 1.0))
    rotation_deg: Number = 0.0

    @model_validator(mode="after")
    def _invertible(self) -> PositionOptions:
        if self.raster is not None and self.per_view > 1:
            raise ValueError(
                f"per_view is {self.per_view}, and a raster has one position for each view; give one of them"
            )
        (a, b), (c, d) = self.affine
        if a * d - b * c == 0:
            raise ValueError(f"the affine matrix {self.affine} is singular; check its entries")
        return self
