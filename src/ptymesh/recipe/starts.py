"""Starts of a reconstruction (recipe keys `object` and `probe`), and the probes that they make.

initial.py makes the estimate of both.

N, M, L, K  views, probe modes, slices, variable-probe modes
H, W; h, w  object and window pixels
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator, model_validator
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.io.options import ArrayRef, FrozenOptions, Number, Positive, PositivePair
from ptymesh.io.results import Result
from ptymesh.measurement import Measurement
from ptymesh.models.aberrations import LensAberrations
from ptymesh.models.binned_detector import BinnedDetector
from ptymesh.options import Reference
from ptymesh.physics.beam import probes
from ptymesh.physics.object_models import OBJECT_MODELS, TRANSMISSION, object_model_of
from ptymesh.physics.operators import NOTHING
from ptymesh.physics.propagate import angular_spectrum_kernel, apply_kernel_adjoint, fresnel_kernel
from ptymesh.recipe.beam_image import mean_image
from ptymesh.recipe.resampling import load_complex_array, pixel_ratio, resample_images
from ptymesh.registry import Registry, subclass_of, with_article
from ptymesh.sentences import unknown_word

#: Beyond a quarter of a radian, slices along a tilted axis are no longer seen face on.
Tilt = Annotated[float, Field(ge=-0.25, le=0.25)]


class ObjectOptions(FrozenOptions):
    """Recipe key `object`: where the object starts.

    Fields:
        slices: L; slice_spacing_m: distance between neighbours, needed for more than one; tilt_rad: (y, x) by which the
            axis along which they are stacked leans against the beam, default 0 or, with a result, the result's.
        modes: Q, incoherent states of the object, such as frozen phonons, each of so many slices; they start apart by
            small random phases, unless `initial` is a result with as many.
        initial: `ones`; or an earlier result (.h5), moved and resampled onto this scan's pixels, its whole thickness
            spread over the slices that are asked for; or an array (.npy, .npz:name, .h5:/path) of (H, W) or (L, H, W),
            whose centre is put on the scan's and which is surrounded by ones or cropped.
        initial_depth_m: with a result of several slices, keep their thickness, and put the surface on which the beam
            falls so far below that of the slices that are asked for: vacuum fills the rest, and what is beyond is cut.
        result_positions: with a result, take its refined positions instead of the scan's.
        kind: transmission, complex numbers; or an object model with one value V per pixel (physics/object_models), such
            as potential, O = exp((i - absorption) V), V real, or amplitude_phase, O = exp(i V), V complex: a complex
            start is unwrapped, slice by slice.
        absorption: of a potential, -log amplitude over phase; of other models as they say.
        scans: of several scans, whether they share the object, or each has its own: then these lie side by side.
    """

    slices: int = Field(1, ge=1, le=10_000)
    modes: int = Field(1, ge=1, le=256)
    slice_spacing_m: Positive | None = None
    tilt_rad: tuple[Tilt, Tilt] | None = None
    initial: Reference = "ones"
    initial_depth_m: Annotated[float, Field(ge=-1, le=1)] | None = None
    result_positions: bool = False
    kind: str = TRANSMISSION
    absorption: float = Field(0.0, ge=0, le=10)
    scans: Literal["shared", "own"] = "shared"

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str) -> str:
        if kind != TRANSMISSION:
            OBJECT_MODELS[kind]
        return kind

    @model_validator(mode="after")
    def _consistent(self) -> ObjectOptions:
        if self.absorption and (self.kind == TRANSMISSION or not object_model_of(self.kind).has_absorption):
            raise ValueError(f"absorption is not of {with_article(self.kind)}; use kind: potential, or remove it")
        if self.slices > 1 and self.slice_spacing_m is None:
            raise ValueError(f"{self.slices} slices need slice_spacing_m, the distance between neighbours in metres")
        if self.slices == 1 and self.slice_spacing_m is not None:
            raise ValueError("slice_spacing_m has no meaning for a single slice; ask for slices: 2 or more")
        if self.slices == 1 and self.tilt_rad is not None:
            raise ValueError("tilt_rad has no meaning for a single slice; ask for slices: 2 or more")
        if self.scans == "own" and self.initial != "ones":
            raise ValueError("scans is own, and initial is a single object; leave initial out, or use scans: shared")
        if self.initial_depth_m is not None and (not self.from_result or self.slices == 1):
            raise ValueError("initial_depth_m is of a result with several slices, as initial, put into several slices")
        if self.result_positions and not self.from_result:
            raise ValueError(f"result_positions needs an earlier result as initial, not {self.initial!r}")
        return self

    @property
    def middle_m(self) -> float:
        """Depth of the middle of all slices below the first one, which the probe is the wave at."""
        return (self.slices - 1) * (self.slice_spacing_m or 0.0) / 2

    @property
    def from_result(self) -> bool:
        """True if `initial` names a result file."""
        return self.initial.lower().endswith((".h5", ".hdf5"))


# --- probe ----------------------------------------------------------------------------------------------------------


class ProbeStart(FrozenOptions):
    """Start of the probe: `probe: {start: {kind: NAME, ...}}` in a recipe. Its options are fields.

    A subclass says its name as `kind: Literal["NAME"] = "NAME"`. One of another package is found by an entry point of
    that name in the group `ptymesh.probe_starts`. An option called `path` is relative to the recipe, as a file's is.
    """

    kind: str

    def make(self, measurement: Measurement, mean_pattern: np.ndarray) -> Tensor | np.ndarray:
        """Return the probe, (h, w) or (M, h, w) complex, of any power: it is scaled to the counts of the mean pattern.

        The optical axis is at (h//2, w//2), in the plane where the wave meets the object. Every rank makes it for
        itself, so the same arguments must give the same bits: no clock, and random numbers from a fixed seed alone.

        Args:
            measurement: the scan. `measurement.geometry` has shape (h, w), wavelength_m and object_pixel_m (y, x) in
                metres (None where the data set does not tell), and the propagation; `probe` is that of the file, if
                any. The patterns are not to be read: a rank has its own share of them.
            mean_pattern: (h, w) counts over all views of all ranks, laid out as the patterns (far field: DC at [0, 0]).

        Raises:
            BadInput: the scan does not allow it.
        """
        raise NotImplementedError

    def parameters(self) -> dict[str, dict[str, float]]:
        """Return the known numbers that make up the probe, by the name of their model (ptymesh.models)."""
        return {}


def _is_start(thing: object) -> bool:
    return subclass_of(ProbeStart)(thing) and thing is not ProbeStart


PROBE_STARTS: Registry[type[ProbeStart]] = Registry(
    "probe start", "ptymesh.probe_starts", _is_start, "make it a subclass of ptymesh.recipe.starts.ProbeStart"
)


@PROBE_STARTS.register("auto")
class AutoStart(ProbeStart):
    """The file's own probe if it has one, else that of the lens of which the file tells, else from the data."""

    kind: Literal["auto"] = "auto"

    def make(self, measurement: Measurement, mean_pattern: np.ndarray) -> Tensor | np.ndarray:
        """Return the file's own probe, that of the lens, or one from the data."""
        return _start_of(measurement).make(measurement, mean_pattern)


def _start_of(measurement: Measurement) -> ProbeStart:
    """Return the start that is made of what is known of the beam; a lens only where the window samples all of it."""
    geometry, beam = measurement.geometry, measurement.beam
    if measurement.probe is not None:
        return FileStart(kind="file")
    pixel, wavelength = geometry.object_pixel_m, geometry.wavelength_m
    if beam is None or pixel is None or wavelength is None or geometry.propagation != "far_field":
        return DataStart(kind="data")
    if probes.is_pupil_sampled(beam.semiangle_rad, geometry.shape, pixel, wavelength):
        return ElectronStart(kind="electron", semiangle_rad=beam.semiangle_rad, defocus_m=beam.defocus_m)
    return DataStart(kind="data")


@PROBE_STARTS.register("file")
class FileStart(ProbeStart):
    """The probe that the data set holds."""

    kind: Literal["file"]

    def make(self, measurement: Measurement, mean_pattern: np.ndarray) -> Tensor:
        """Return the probe that the data set holds. Raises BadInput where it holds none."""
        if measurement.probe is None:
            raise BadInput(f"{measurement.name} holds no probe; use another probe.start, such as data.")
        return torch.from_numpy(np.asarray(measurement.probe, np.complex128))


@PROBE_STARTS.register("data")
class DataStart(ProbeStart):
    """Square root of the mean pattern, propagated back to the sample, then to `defocus_m` (C10 = -defocus)."""

    kind: Literal["data"]
    defocus_m: Number = 0.0

    def make(self, measurement: Measurement, mean_pattern: np.ndarray) -> Tensor:
        """Return the square root of the mean pattern, propagated back to the sample and to the defocus."""
        geometry = measurement.geometry
        background = measurement.mean_background
        counts = mean_pattern if background is None else mean_pattern - background
        probe = _taken_to_sample(counts, measurement.mask, geometry, self)
        if self.defocus_m == 0:
            return probe
        return probes.defocused(probe, *_pixel_and_wavelength(geometry, self), -self.defocus_m)


def _with_defocus(aberrations_m: LensAberrations, defocus_m: float) -> LensAberrations:
    """Return aberrations with the defocus among them. Raises BadInput where C10 is no number."""
    c10 = aberrations_m.get("C10", 0.0)
    if not isinstance(c10, float | int):
        raise BadInput(f"Aberration C10 is {c10}; give metres.")
    return {**aberrations_m, "C10": c10 - defocus_m}


@PROBE_STARTS.register("electron")
class ElectronStart(ProbeStart):
    """Round lens with a hard aperture: see `probes.aberrated`. `defocus_m` adds to C10 with the opposite sign."""

    kind: Literal["electron"]
    semiangle_rad: Positive
    defocus_m: Number = 0.0
    aberrations_m: LensAberrations = Field(default_factory=dict)

    def at_depth(self, depth_m: float) -> ElectronStart:
        """Return the lens as it is so far along the beam, in vacuum, where C10 is larger by as much."""
        return self.model_copy(update={"defocus_m": self.defocus_m - depth_m})

    def make(self, measurement: Measurement, mean_pattern: np.ndarray) -> Tensor:
        """Return the probe of the lens."""
        geometry = measurement.geometry
        return probes.aberrated(
            geometry.shape, *_pixel_and_wavelength(geometry, self), self.semiangle_rad, self.of_the_lens()
        )

    def parameters(self) -> dict[str, dict[str, float]]:
        """Return the lens's aberrations in metres, the defocus among them."""
        return {"aberrations": probes.aberration_parts(self.of_the_lens())}

    def of_the_lens(self) -> LensAberrations:
        """Return the lens's aberrations, the defocus among them. Raises BadInput where C10 is no number."""
        return _with_defocus(self.aberrations_m, self.defocus_m)


@PROBE_STARTS.register("empty_beam")
class EmptyBeamStart(ProbeStart):
    """Square root of an image of the beam without a sample, taken back to where that lies, with a lens's phase.

    `path` names an image (H, W) or several (K, H, W), whose mean is taken, or a data set, of which all patterns are:
    they lie on the detector as the scan's patterns are stored, and are prepared as these are. An image as large as the
    window has its optical axis at (h//2, w//2).
    """

    kind: Literal["empty_beam"]
    path: ArrayRef
    defocus_m: Number = 0.0
    aberrations_m: LensAberrations = Field(default_factory=dict)

    def make(self, measurement: Measurement, mean_pattern: np.ndarray) -> Tensor:
        """Return the wave at the sample."""
        geometry = measurement.geometry
        counts, good = mean_image(self.path, "probe.start.path", measurement)
        probe = _taken_to_sample(counts, good, geometry, self)
        lens = self.of_the_lens()
        if not any(probes.aberration_parts(lens).values()):
            return probe
        return probes.with_aberrations(probe, *_pixel_and_wavelength(geometry, self), lens)

    def parameters(self) -> dict[str, dict[str, float]]:
        """Return the lens's aberrations in metres, the defocus among them."""
        return {"aberrations": probes.aberration_parts(self.of_the_lens())}

    def of_the_lens(self) -> LensAberrations:
        """Return the lens's aberrations, the defocus among them. Raises BadInput where C10 is no number."""
        return _with_defocus(self.aberrations_m, self.defocus_m)


@PROBE_STARTS.register("zone_plate")
class ZonePlateStart(ProbeStart):
    """Focus of a Fresnel zone plate: see `probes.zone_plate`."""

    kind: Literal["zone_plate"]
    outer_zone_m: Positive
    diameter_m: Positive
    central_stop_m: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    defocus_m: Number = 0.0

    def make(self, measurement: Measurement, mean_pattern: np.ndarray) -> Tensor:
        """Return the focus of the zone plate."""
        geometry = measurement.geometry
        return probes.zone_plate(
            geometry.shape, *_pixel_and_wavelength(geometry, self), **self.model_dump(exclude={"kind"})
        )


@PROBE_STARTS.register("kb")
class KbStart(ProbeStart):
    """Focus of a pair of mirrors: see `probes.kb_mirror`. Pairs are [y, x]; one number stands for both."""

    kind: Literal["kb"]
    aperture_m: PositivePair
    focal_length_m: PositivePair
    defocus_m: Number | tuple[Number, Number] = 0.0

    def make(self, measurement: Measurement, mean_pattern: np.ndarray) -> Tensor:
        """Return the focus of the mirrors."""
        geometry = measurement.geometry
        return probes.kb_mirror(
            geometry.shape, *_pixel_and_wavelength(geometry, self), **self.model_dump(exclude={"kind"})
        )


@PROBE_STARTS.register("pinhole")
class PinholeStart(ProbeStart):
    """Round hole, `distance_m` upstream of the sample: see `probes.pinhole`."""

    kind: Literal["pinhole"]
    diameter_m: Positive
    distance_m: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    def make(self, measurement: Measurement, mean_pattern: np.ndarray) -> Tensor:
        """Return the wave at the sample."""
        geometry = measurement.geometry
        return probes.pinhole(
            geometry.shape, *_pixel_and_wavelength(geometry, self), **self.model_dump(exclude={"kind"})
        )


@PROBE_STARTS.register("result")
class ResultStart(ProbeStart):
    """Probe of an earlier result (.h5), resampled onto this scan's pixels."""

    kind: Literal["result"]
    path: Reference

    def make(self, measurement: Measurement, mean_pattern: np.ndarray) -> Tensor:
        """Return the probe of the result; the axis stays on the axis, and every mode keeps its power."""
        geometry, result = measurement.geometry, Result.load(self.path)
        ratio = pixel_ratio(result, geometry, self.path)
        corner = np.array(geometry.shape) // 2 - ratio * (np.array(result.probe.shape[-2:]) // 2)
        moved = resample_images(result.probe, ratio, corner, geometry.shape, outside=0.0)
        powers = [(np.abs(array) ** 2).sum(axis=(1, 2), keepdims=True) for array in (result.probe, moved)]
        return torch.from_numpy(moved * np.sqrt(powers[0] / np.maximum(powers[1], np.finfo(np.float64).tiny)))


@PROBE_STARTS.register("array")
class ArrayStart(ProbeStart):
    """Complex array (h, w) or (M, h, w), optical axis at (h//2, w//2): `file.npy`, `file.npz:name`, `file.h5:/path`."""

    kind: Literal["array"]
    path: ArrayRef

    def make(self, measurement: Measurement, mean_pattern: np.ndarray) -> Tensor:
        """Return the array."""
        return torch.from_numpy(load_complex_array(self.path, "probe.start", measurement.geometry.shape))


def _taken_to_sample(counts: np.ndarray, good: np.ndarray, geometry: Geometry, start: ProbeStart) -> Tensor:
    """Return the wave (h, w) at the sample that is the root of counts, without a phase, at the detector.

    Args:
        counts: (h, w), laid out as the patterns.
        good: (h, w) bool, True where there are counts; the other pixels are filled from these.
        geometry: of the scan.
        start: for messages.
    """
    filled = torch.from_numpy(_fill_bad_pixels(counts, good, geometry.propagation == "far_field"))
    if filled.shape != geometry.shape:  # the model's pixels are finer
        filled = BinnedDetector(factor=geometry.shape[0] // len(filled)).adjoint(filled, NOTHING, ())
    if geometry.propagation == "far_field":
        return probes.from_mean_pattern(filled)
    make = angular_spectrum_kernel if geometry.propagation == "angular_spectrum" else fresnel_kernel
    kernel = make(geometry.shape, *_pixel_and_wavelength(geometry, start), geometry.effective_distance_m)
    return apply_kernel_adjoint(filled.clamp(min=0).sqrt().to(torch.complex128), kernel)


def _fill_bad_pixels(image: np.ndarray, good: np.ndarray, periodic: bool) -> np.ndarray:
    """Return the image with bad pixels replaced by a mean of good ones near by (of any, where none is near)."""
    from scipy import ndimage

    out = np.where(good, image, image[good].mean())
    todo = ~good
    mode = "wrap" if periodic else "nearest"
    for sigma in (1.0, 2.0, 4.0, 8.0):
        weight = ndimage.gaussian_filter(good.astype(np.float64), sigma, mode=mode)
        near = todo & (weight > 0.1)
        smooth = ndimage.gaussian_filter(np.where(good, image, 0.0), sigma, mode=mode)
        out[near] = smooth[near] / weight[near]
        todo &= ~near
    return out


def _pixel_and_wavelength(geometry: Geometry, start: ProbeStart) -> tuple[tuple[float, float], float]:
    if geometry.object_pixel_m is None or geometry.wavelength_m is None:
        raise BadInput(
            f"A probe of kind {start.kind} needs the wavelength and the object pixel in metres, which "
            f"this data set does not tell; give data.energy_eV and data.object_pixel_m, or start from file or data."
        )
    return geometry.object_pixel_m, geometry.wavelength_m


def _find_start(value: object) -> object:
    """Return the start that a recipe names; `start: data` is short for `start: {kind: data}`. Raises BadInput."""
    options = {"kind": value} if isinstance(value, str) else value
    if not isinstance(options, dict):
        return value
    kind = options.get("kind")
    start = PROBE_STARTS.find(kind) if isinstance(kind, str) else None
    if start is None:
        key = "probe.start" if isinstance(value, str) else "probe.start.kind"
        raise BadInput(unknown_word(key, kind, PROBE_STARTS.names()))
    return start.parse(options, "probe.start")


#: No beam is so incoherent that more modes would be of use.
MOST_MODES = 500


class ProbeOptions(FrozenOptions):
    """Recipe key `probe`: where the probe starts.

    Fields:
        modes: M incoherent modes. Missing ones are made from the first (see `probes.extra_modes`), superfluous ones
            dropped; None keeps as many as the start has.
        mode_powers: M fractions of the total power, with sum 1; default 2 % for each mode that was made.
        opr_modes: K variable-probe (OPR) modes, of which each view has its own share; they start as Hermite-like
            modes of the first, shares at 0.
        scans: whether several scans share the probe, or each has its own, of so many modes.
        start: where the probe comes from. It is rescaled to the counts of the mean pattern, except when object and
            probe come from the same result.
    """

    modes: int | None = Field(None, ge=1, le=MOST_MODES)
    mode_powers: tuple[Positive, ...] | None = None
    opr_modes: int = Field(0, ge=0, le=20)
    scans: Literal["shared", "own"] = "shared"
    start: Annotated[SerializeAsAny[ProbeStart], BeforeValidator(_find_start)] = Field(default_factory=AutoStart)
