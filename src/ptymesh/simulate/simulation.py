"""Simulated measurements with known truth.

N, M, L     views, probe modes, slices
H, W; h, w  object and window pixels
d           object pixel (m)

Random numbers are seeded by (seed, purpose) or (seed, purpose, view), and intensities are computed in chunks that start
at multiples of CHUNK: the counts of a view do not depend on how many views are computed together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import ConfigDict, Field, SerializeAsAny, field_validator, model_validator
from torch import Tensor

from ptymesh.distributed.devices import free_bytes
from ptymesh.errors import BadInput
from ptymesh.estimate import BLOCK, Estimate
from ptymesh.files import size
from ptymesh.geometry import (
    STEEPEST_DEG,
    Geometry,
    Radiation,
    electron_wavelength_m,
    far_field,
    near_field,
    photon_wavelength_m,
)
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.models import OPTICS, Piece, named
from ptymesh.options import Options
from ptymesh.physics.beam import probes
from ptymesh.physics.detector.surface import seen_pixels
from ptymesh.physics.model import Model, SliceStack
from ptymesh.physics.operators import Views, ViewValues, pieces_for_scan
from ptymesh.simulate import phantoms, scans

Kind = Literal["xray", "near", "electron"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Range = tuple[float, float]
Lean = Annotated[float, Field(ge=-STEEPEST_DEG, le=STEEPEST_DEG)]
Tilt = Annotated[float, Field(ge=-0.25, le=0.25)]

#: Views whose intensities are computed together.
CHUNK = 16
#: Object pixels kept free around the outermost windows, beyond the position error.
MARGIN_PX = 3


class Simulation(Options):
    """Options of a simulation. Lengths in metres, angles in rad; None takes the default of the kind.

    Fields:
        kind: `xray` (far field, zone plate, test chart), `near` (X-ray near field, structured beam, powder) or
            `electron` (far field, aberrated lens, multislice crystal).
        views: N.
        window: side in pixels.
        scan: pattern (`scans.scan`).
        overlap: of neighbouring beams; step = (1 - overlap) * width of the beam.
        density_ratio: views per area at the right edge over those at the left edge.
        object_px: instead of overlap: the scan covers an object of this side (to a whole number of blocks).
        photons_per_view: incident photons or electrons.
        noise: Poisson; without it patterns are float32 intensities.
        position_error_px: true positions differ from the nominal ones by up to this, uniformly, on either axis.
        modes: number of incoherent probe modes (partial coherence).
        mode_powers: fractions of the power of each mode.
        background_counts: added to every pixel of every view; known to the reconstruction.
        defect: masked fault of the detector: a beamstop over the centre, a dead module, or hot pixels.
        slices: number of object slices.
        slice_spacing_m: distance between neighbouring slices.
        tilt_rad: (y, x) by which the axis along which slices are stacked leans against the beam.
        amplitude, phase_rad: ranges (low, high) of the transmission, (0.6, 1) and (-1.2, 0.2) for X-rays; electrons are
            not absorbed, and every slice has phase (0, 0.6).
        energy_eV: of the photons or electrons.
        pixel_m: object pixel.
        detector_pixel_m: detector pixel.
        surface_deg: (y, x) angle by which a surface leans from the beam that it reflects; far field only.
        focus_distance_m: near field only: the beam diverges from a focus this far upstream of the sample.
        probe_guess: probe in the data set: none, the design's (one mode, defocus 10 % off; smoothed in the near field),
            or the true one.
        optics: operators between probe and detector, as in a recipe; their unknowns have the values at which they
            start (`start`, or what the operator reads from positions and geometry).
        unknown_errors: true values of these unknowns differ from that by up to this, uniformly, in their units.
        seed: of all random numbers.
    """

    model_config = ConfigDict(frozen=True)

    kind: Kind = "xray"
    views: int = Field(default=400, ge=1, le=10**7)
    window: int = Field(default=128, ge=16, le=2**15)
    scan: scans.Scan = "fermat"
    overlap: float | None = Field(default=None, ge=0, lt=1)
    object_px: int | None = Field(default=None, ge=1, le=2**20)
    density_ratio: float = Field(default=1.0, ge=1e-3, le=1e3)
    photons_per_view: float | None = Field(default=None, gt=0, le=2e9)
    noise: bool = True
    position_error_px: float = Field(default=0.0, ge=0, le=2**15)
    modes: int = Field(default=1, ge=1, le=10_000)
    mode_powers: tuple[float, ...] | None = None
    background_counts: float = Field(default=0.0, ge=0, le=1e9)
    defect: Literal["none", "beamstop", "module", "hot"] = "none"
    slices: int | None = Field(default=None, ge=1, le=10_000)
    slice_spacing_m: Positive | None = None
    tilt_rad: tuple[Tilt, Tilt] = (0.0, 0.0)
    amplitude: Range | None = None
    phase_rad: Range | None = None
    energy_eV: Positive | None = None
    pixel_m: Positive | None = None
    detector_pixel_m: Positive | None = None
    surface_deg: tuple[Lean, Lean] = (0.0, 0.0)
    focus_distance_m: Positive | None = None
    probe_guess: Literal["none", "design", "true"] = "design"
    optics: dict[str, SerializeAsAny[Piece]] = Field(default_factory=dict)
    unknown_errors: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    seed: int = Field(default=0, ge=0, lt=2**63)

    @field_validator("optics", mode="before")
    @classmethod
    def _operators(cls, given: Any) -> Any:
        return named(given, OPTICS, "optics")

    @model_validator(mode="after")
    def _known_unknowns(self) -> Simulation:
        known = [one.name for operator in self.optics.values() for one in operator.unknowns]
        for name in self.unknown_errors:
            if name not in known:
                there = f"these have {', '.join(known)}" if known else "there are none"
                raise ValueError(f"no operator of optics declares {name}, which unknown_errors names; {there}")
        return self

    def as_json(self) -> str:
        """Return all options as JSON; without the keys of operators where there are none, as before there were any."""
        newer = set() if self.optics else {"optics", "unknown_errors"}
        return self.model_dump_json(exclude=newer if any(self.surface_deg) else newer | {"surface_deg"})


@dataclass(frozen=True)
class _Defaults:
    """Values of a kind for options that are None.

    Attributes:
        width: of the beam as a fraction of the window; the others are named as in `Simulation`.
    """

    energy_eV: float
    pixel_m: float
    detector_pixel_m: float
    overlap: float
    width: float
    photons: float
    phase_rad: Range


_DEFAULTS: dict[Kind, _Defaults] = {
    "xray": _Defaults(8.0e3, 20e-9, 75e-6, 0.72, 0.35, 1e6, (-1.2, 0.2)),
    "near": _Defaults(17.0e3, 100e-9, 100e-9, 0.9, 0.7, 2e7, (-1.2, 0.2)),
    "electron": _Defaults(200.0e3, 0.25e-10, 150e-6, 0.75, 0.35, 1e5, (0.0, 0.6)),
}


@dataclass(frozen=True)
class Truth:
    """True values of a simulated measurement: everything except the counts.

    Attributes:
        options: of the simulation.
        geometry: of the window.
        object: (L, H, W) complex128.
        probe: (M, h, w) complex128; sum |P|^2 is the number of photons per view.
        positions, nominal: (N, 2) float64, true and nominal positions in object pixels.
        origin: object pixel at which the scan's coordinates (centred on the scan) have their zero.
        mask: (h, w) bool, True for good pixels, laid out as the patterns (far field: DC at the corner).
        background: (h, w) float64 counts, laid out as the patterns.
        slice_spacing_m: distance between neighbouring slices; 0 for one slice.
        unknowns: true values of the operators' unknowns, by name, float64 or complex128.
    """

    options: Simulation
    geometry: Geometry
    object: np.ndarray
    probe: np.ndarray
    positions: np.ndarray
    nominal: np.ndarray
    origin: tuple[float, float]
    mask: np.ndarray
    background: np.ndarray
    slice_spacing_m: float
    unknowns: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the patterns: the smallest unsigned integer that cannot overflow, or float32 without noise."""
        if not self.options.noise:
            return np.dtype(np.float32)
        photons = _photons(self.options)
        # no pixel can hold more than all photons of its view
        largest = photons + 12 * math.sqrt(photons) + 2 * self.options.background_counts + 100
        return np.dtype(np.uint16 if largest < 2**16 else np.uint32)

    def measurement(self, patterns: np.ndarray) -> Measurement:
        """Return the measurement that a reconstruction gets.

        Its positions are the nominal ones relative to the scan's centre.

        Args:
            patterns: (N, h, w) counts.
        """
        options = self.options
        return Measurement(
            patterns=ArraySource(patterns),
            positions=self.nominal - np.array(self.origin),
            geometry=self.geometry,
            mask=self.mask,
            background=self.background if options.background_counts else None,
            probe=self.guess(),
            name=f"simulated-{options.kind}",
            fingerprint=f"simulation {options.as_json()}",
        )

    def guess(self) -> np.ndarray | None:
        """Return the probe (1 or M, h, w) of the data set (`Simulation.probe_guess`); None if it has none."""
        if self.options.probe_guess == "none":
            return None
        if self.options.probe_guess == "true":
            return self.probe
        return _probe(self.options, self.geometry, error=0.1)[None].numpy()

    def estimate(
        self, dtype: torch.dtype = torch.complex128, device: torch.device | str = "cpu", *, nominal: bool = False
    ) -> Estimate:
        """Return the truth as an estimate.

        Args:
            dtype: complex dtype of object and probe.
            device: of the tensors.
            nominal: True for the nominal instead of the true positions.
        """
        positions = torch.from_numpy(self.nominal if nominal else self.positions).to(device)
        real = torch.zeros((), dtype=dtype).real.dtype
        return Estimate(
            object=torch.from_numpy(self.object).to(device, dtype),
            probe=torch.from_numpy(self.probe).to(device, dtype),
            positions=positions.clone(),
            anchors=torch.floor(positions + 0.5).to(torch.int64),
            nominal=torch.from_numpy(self.nominal).to(device),
            weights=torch.ones((len(positions), 1), dtype=real, device=device),
            background=torch.from_numpy(self.background).to(device, real),
            slice_spacing_m=self.slice_spacing_m,
            tilt_rad=self.options.tilt_rad,
            origin=self.origin,
            others={
                name: torch.from_numpy(values).to(device, dtype if np.iscomplexobj(values) else real)
                for name, values in self.unknowns.items()
            },
        )


@dataclass(frozen=True)
class Simulated:
    """Simulated measurement.

    Attributes:
        measurement: patterns in memory and nominal positions.
        truth: true values.
    """

    measurement: Measurement
    truth: Truth


def simulate(options: Simulation | None = None, **changes: object) -> Simulated:
    """Simulate a whole measurement in memory: `simulate(views=64, window=32)` or `simulate(Simulation(...))`.

    Args:
        options: of the simulation.
        changes: options that replace those.

    Raises:
        BadInput: options that contradict each other or that the window cannot sample.
    """
    made = truth(checked(options, **changes))
    return Simulated(made.measurement(np.concatenate(list(patterns(made)))), made)


def checked(options: Simulation | None = None, **changes: object) -> Simulation:
    """Return the options with some of them changed.

    Raises:
        BadInput: a value that cannot be used.
    """
    if not isinstance(options, Simulation | None):
        raise BadInput(f"The options of a simulation are of type {type(options).__name__}; give a Simulation.")
    known = {} if options is None else options.model_dump()
    return Simulation.parse({**known, **changes})


def truth(options: Simulation) -> Truth:
    """Return object, probe, positions and detector of a simulation, without the counts.

    Raises:
        BadInput: options that contradict each other or that the window cannot sample.
    """
    geometry = _geometry(options)
    slices = options.slices or (2 if options.kind == "electron" else 1)
    spacing_m = 0.0 if slices == 1 else options.slice_spacing_m or _default_spacing_m(geometry)
    if slices == 1 and options.slice_spacing_m is not None:
        raise BadInput(f"slice_spacing_m is {options.slice_spacing_m} for a single slice; ask for slices=2 or more.")
    if slices == 1 and options.tilt_rad != (0.0, 0.0):
        raise BadInput(f"tilt_rad is {options.tilt_rad} for a single slice; ask for slices=2 or more.")
    width_px = _DEFAULTS[options.kind].width * options.window
    margin = MARGIN_PX + math.ceil(options.position_error_px)
    centred = _scan(options, width_px, margin)
    reach = np.ceil(np.abs(centred).max(axis=0)).astype(int)
    sides = [-(-(2 * int(r) + options.window + 2 * margin) // BLOCK) * BLOCK for r in reach]
    origin = (float((sides[0] - options.window) // 2), float((sides[1] - options.window) // 2))
    _check_memory(slices * sides[0] * sides[1] + (1 + CHUNK) * options.modes * options.window**2)
    nominal = centred + np.array(origin)
    error = np.random.default_rng([options.seed, 7]).uniform(-1, 1, nominal.shape) * options.position_error_px
    modes = probes.extra_modes(_probe(options, geometry), options.modes, options.mode_powers, options.seed)
    lit = (int(2 * reach[0] + width_px), int(2 * reach[1] + width_px))
    made = Truth(
        options=options,
        geometry=geometry,
        object=_object(options, geometry, (sides[0], sides[1]), lit, slices),
        probe=probes.rescaled(modes, _photons(options)).numpy(),
        positions=nominal + error,
        nominal=nominal,
        origin=origin,
        mask=_mask(options) & seen_pixels(geometry),
        background=np.full(geometry.shape, options.background_counts),
        slice_spacing_m=spacing_m,
    )
    if any("object" in operator.replaces for operator in options.optics.values()):
        made.object[:] = 1  # an operator's unknowns are in its place
    if not options.optics:
        return made
    pieces, _ = pieces_for_scan(options.optics.values(), _blank(made))
    chosen = options.model_copy(update={"optics": {one.name: one for one in pieces}})
    made = replace(made, options=chosen)
    return replace(made, unknowns=_unknowns(made))


def _blank(made: Truth) -> Measurement:
    """Return the scan of a truth, without light."""
    views = made.options.views
    return made.measurement(np.broadcast_to(np.zeros((), made.dtype), (views, *made.geometry.shape)))


def _unknowns(made: Truth) -> dict[str, np.ndarray]:
    """Return the true values of the operators' unknowns, within the bounds that they declare.

    Args:
        made: the truth without them.

    Raises:
        BadInput: the geometry does not have what an operator needs.
    """
    options, estimate = made.options, made.estimate()
    found: dict[str, np.ndarray] = {}
    measurement = _blank(made)
    for operator in options.optics.values():
        operator.check(made.geometry)
        starts = operator.starts(estimate.sizes(), "cpu", torch.float64)
        told = operator.start_values(measurement)
        for one in operator.unknowns:
            start = starts[one.name].numpy()
            rng = np.random.default_rng([options.seed, 11, len(found)])  # operators do not share their errors
            real, imaginary = rng.uniform(-1, 1, (2, *start.shape)) * options.unknown_errors.get(one.name, 0.0)
            values = told.get(one.name, start) + (real + 1j * imaginary if one.complex else real)
            found[one.name] = np.asarray(values if one.complex else np.clip(values, one.least, one.largest))
    return found


def _check_memory(numbers: int) -> None:
    """Raise BadInput if `numbers` complex numbers (object, probe and the waves of a chunk) exceed the free memory."""
    free, needed = free_bytes(torch.device("cpu")), 16 * numbers
    if needed > free:
        raise BadInput(
            f"The simulation needs at least {size(needed)} of memory and {size(free)} are free; take a smaller window, "
            "or fewer views, modes or slices."
        )


def _scan(options: Simulation, width_px: float, margin: int) -> np.ndarray:
    """Return positions (N, 2) about the scan's centre.

    Args:
        options: of the simulation.
        width_px: width of the beam.
        margin: distance of the windows from the object's border in pixels.
    """

    def steps(step_px: float) -> np.ndarray:
        return scans.scan(options.scan, options.views, step_px, density_ratio=options.density_ratio, seed=options.seed)

    if options.object_px is None:
        overlap = _DEFAULTS[options.kind].overlap if options.overlap is None else options.overlap
        return steps((1 - overlap) * width_px)
    if options.overlap is not None:
        raise BadInput(f"overlap is {options.overlap} and object_px {options.object_px}; give one of the two.")
    room = options.object_px - options.window - 2 * margin - 2
    if room <= 0:
        raise BadInput(
            f"object_px is {options.object_px}, which leaves no room to move a window of {options.window}; give at "
            f"least {options.window + 2 * margin + 3}."
        )
    step_px = room / max(float(np.ptp(steps(1.0), axis=0).max()), 1e-9)
    if options.views > 1 and step_px > width_px:
        raise BadInput(
            f"{options.views} views over an object of {options.object_px} px lie {step_px:.3g} px apart, and the beam "
            f"is {width_px:.3g} px wide; give more views or a smaller object."
        )
    return steps(step_px)


def patterns(made: Truth) -> Iterator[np.ndarray]:
    """Yield the counts of up to CHUNK views (n, h, w) at a time, in scan order, laid out as in `Measurement`."""
    options, estimate = made.options, made.estimate()
    model = Model.for_geometry(
        made.geometry,
        slices=SliceStack(len(made.object), made.slice_spacing_m, options.tilt_rad),
        optics=tuple(options.optics.values()),
        dtype=torch.complex128,
    )
    scan = estimate.nominal - torch.tensor(made.origin, dtype=torch.float64)
    for start in range(0, options.views, CHUNK):
        views = torch.arange(start, min(start + CHUNK, options.views))
        fractions = estimate.fractions(views)
        rows = {one.name: estimate[one.name] for one in model.unknowns}
        rows |= {one.name: rows[one.name][views] for one in model.unknowns if one.scope == "view"}
        intensity = model.intensity(
            estimate.object,
            estimate.probe,
            estimate.anchors[views],
            fractions,
            background=estimate.background,
            values=ViewValues(rows, Views(estimate.positions[views], fractions, scan[views], views)),
        )
        counts = _counts(made, start, intensity)
        yield counts if model.saturation is None else np.minimum(counts, counts.dtype.type(model.saturation.level))


def _counts(made: Truth, start: int, intensity: Tensor) -> np.ndarray:
    """Return the counts (n, h, w) of views from `start` on, from their expected intensities."""
    options, dtype = made.options, made.dtype
    if not options.noise:
        counts = intensity.numpy().astype(dtype)
    else:
        counts = np.empty(intensity.shape, dtype)
        for row, expected in enumerate(intensity.numpy()):
            counts[row] = np.random.default_rng([options.seed, 8, start + row]).poisson(expected)
    # masked pixels must not matter: dead ones read 0, hot ones the largest number of the dtype
    counts[:, ~made.mask] = np.iinfo(dtype).max if options.defect == "hot" and dtype.kind == "u" else 0
    return counts


def _photons(options: Simulation) -> float:
    return options.photons_per_view or _DEFAULTS[options.kind].photons


def _geometry(options: Simulation) -> Geometry:
    """Return the geometry of the window, for which the object pixel is as in the options."""
    default = _DEFAULTS[options.kind]
    energy = options.energy_eV or default.energy_eV
    pixel = options.pixel_m or default.pixel_m
    shape = (options.window, options.window)
    if options.kind == "near":
        if any(options.surface_deg):
            raise BadInput("surface_deg is for far fields alone; leave it out for kind near.")
        if options.detector_pixel_m is not None:
            raise BadInput(
                f"detector_pixel_m is {options.detector_pixel_m} for a near field, where it follows from pixel_m and "
                f"focus_distance_m; give those."
            )
        wavelength = photon_wavelength_m(energy)
        # diffraction over this distance spreads a point by sqrt(window / 2) pixels, less than the margin of the beam
        effective_m = 0.5 * options.window * pixel**2 / wavelength
        if options.focus_distance_m is None:
            return near_field(shape, wavelength, effective_m, (pixel, pixel))
        focus = options.focus_distance_m
        if effective_m >= focus:
            raise BadInput(
                f"focus_distance_m is {focus} m, and diffraction must act over {effective_m:.3g} m of parallel beam; "
                f"give a focus farther away than that."
            )
        # z2 / Mag = effective distance with Mag = (z1 + z2) / z1
        distance = effective_m * focus / (focus - effective_m)
        magnified = pixel * (focus + distance) / focus
        return near_field(shape, wavelength, distance, (magnified, magnified), focus)
    if options.focus_distance_m is not None:
        raise BadInput(f"focus_distance_m is {options.focus_distance_m} for kind {options.kind}; it is for near only.")
    electrons = options.kind == "electron"
    wavelength = electron_wavelength_m(energy) if electrons else photon_wavelength_m(energy)
    detector = options.detector_pixel_m or default.detector_pixel_m
    distance = pixel * options.window * detector / wavelength
    radiation: Radiation = "electron" if electrons else "photon"
    return far_field(shape, wavelength, distance, (detector, detector), radiation, options.surface_deg)


def _optics(geometry: Geometry) -> tuple[tuple[float, float], float]:
    assert geometry.object_pixel_m is not None and geometry.wavelength_m is not None
    return geometry.object_pixel_m, geometry.wavelength_m


def _default_spacing_m(geometry: Geometry) -> float:
    """Return the distance over which waves of a third of the largest angle separate by a pixel and a half.

    Slices so far apart can be told from each other.
    """
    (pixel, _), wavelength = _optics(geometry)
    return 1.5 * pixel / (wavelength / (6 * pixel))


def _probe(options: Simulation, geometry: Geometry, error: float = 0.0) -> Tensor:
    """Return the first probe mode (h, w), sum |P|^2 = 1; `error` is the relative error of the design's defocus."""
    pixel, wavelength = _optics(geometry)
    width_m = _DEFAULTS[options.kind].width * options.window * pixel[0]
    if options.kind == "near":
        return _structured_beam(options, smoothed=error > 0)
    semiangle = 0.35 * wavelength / (2 * pixel[0])
    blur_m = width_m / (2 * semiangle) * (1 - error)
    if options.kind == "xray":
        outer, diameter = wavelength / (2 * semiangle), 150e-6
        return probes.zone_plate(geometry.shape, pixel, wavelength, outer, diameter, diameter / 4, -blur_m)
    aberrations: dict[str, float | list[float]] = {
        "C10": -blur_m,
        "C12": [0.05 * blur_m, 0.4],
        "C30": 0.1 * blur_m / semiangle**2,
    }
    return probes.aberrated(geometry.shape, pixel, wavelength, semiangle, aberrations)


def _structured_beam(options: Simulation, smoothed: bool) -> Tensor:
    """Return a beam behind a diffuser: smooth rim, speckle-like amplitude and phase; without speckle if `smoothed`."""
    n = options.window
    axis = (torch.arange(n, dtype=torch.float64) - n // 2) / (_DEFAULTS["near"].width * n / 2)
    envelope = torch.exp(-((axis[:, None] ** 2 + axis[None, :] ** 2) ** 4))
    if smoothed:
        return probes.rescaled(envelope.to(torch.complex128), 1.0)
    rng = np.random.default_rng([options.seed, 9])
    k = torch.fft.fftfreq(n, dtype=torch.float64)
    grain = torch.exp(-((k[:, None] ** 2 + k[None, :] ** 2) * (math.pi * 3.0) ** 2))
    noise = torch.from_numpy(rng.standard_normal((2, n, n)))
    rough = torch.fft.ifft2(torch.fft.fft2(noise) * grain).real
    rough = rough / rough.std()
    wave = envelope * (1 + 0.15 * rough[0].clamp(-3, 3)) * torch.exp(1j * 0.8 * rough[1])
    return probes.rescaled(wave, 1.0)


def _object(
    options: Simulation, geometry: Geometry, shape: tuple[int, int], lit: tuple[int, int], slices: int
) -> np.ndarray:
    """Return the phantom (L, H, W); `lit` is the central part that the beam reaches."""
    amplitude = options.amplitude or (0.6, 1.0)
    if options.kind == "electron" and options.amplitude is not None:
        raise BadInput(f"amplitude is {options.amplitude} for electrons, which atoms do not absorb; leave it out.")
    if not 0 <= amplitude[0] <= amplitude[1] <= 1:
        raise BadInput(f"The amplitude range is {amplitude}; give (low, high) with 0 <= low <= high <= 1.")
    phase = options.phase_rad or _DEFAULTS[options.kind].phase_rad
    if not phase[0] <= phase[1]:
        raise BadInput(f"The phase range is {phase}; give (low, high).")
    if options.kind == "electron":
        drawn = phantoms.atoms(shape, slices, _optics(geometry)[0], options.seed, phase[1] - phase[0])
        return np.asarray(drawn * np.exp(1j * phase[0]))
    seeds = [options.seed + 1000 * level for level in range(slices)]
    if options.kind == "near":
        return np.concatenate([phantoms.powder(shape, seed, amplitude, phase) for seed in seeds])
    return np.concatenate([phantoms.chart(shape, seed, amplitude, phase, lit) for seed in seeds])


def _mask(options: Simulation) -> np.ndarray:
    """Return the good detector pixels (h, w) bool, laid out as the patterns."""
    n = options.window
    good = np.ones((n, n), bool)
    if options.defect == "beamstop":
        y, x = np.ogrid[:n, :n]
        good &= np.hypot(y - n // 2, x - n // 2) > 0.04 * n
    elif options.defect == "module":
        good[round(0.62 * n) : round(0.62 * n) + max(2, n // 24)] = False
        good[: n // 4, : n // 5] = False
    elif options.defect == "hot":
        count = max(3, n * n // 500)
        good.ravel()[np.random.default_rng([options.seed, 10]).choice(n * n, count, replace=False)] = False
    return good if options.kind == "near" else np.fft.ifftshift(good)
