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

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from ptymesh.distributed.devices import free_bytes
from ptymesh.errors import BadInput
from ptymesh.estimate import BLOCK, Estimate
from ptymesh.files import size
from ptymesh.geometry import (
    Geometry,
)
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.physics.beam import probes
from ptymesh.physics.detector.pieces import binning_of
from ptymesh.physics.detector.surface import seen_pixels
from ptymesh.physics.model import Model, SliceStack
from ptymesh.physics.object_modes import with_object_modes
from ptymesh.physics.operators import Views, ViewValues, ViewWindows, pieces_for_scan, values_for_views
from ptymesh.physics.scan_energies import interaction_ratio
from ptymesh.simulate import phantoms, scans
from ptymesh.simulate.beams import default_spacing_m, designed_probe, geometry_of, sampling_of
from ptymesh.simulate.multislice import Specimen
from ptymesh.simulate.options import (
    DEFAULTS,
    SLICES,
    FurtherScan,
    Simulation,
    incident_power,
    options_by_scan,
    with_crystal,
)

#: Views whose intensities are computed together.
CHUNK = 16
#: Object pixels kept free around the outermost windows, beyond the position error.
MARGIN_PX = 3


@dataclass(frozen=True)
class Truth:
    """True values of a simulated measurement: everything except the counts.

    Attributes:
        options: of the simulation; where it has several scans, those of this one.
        geometry: of the window.
        object: (L, H, W) complex128.
        probe: (M, h, w) complex128; sum |P|^2 is the number of photons per view.
        positions, nominal: (N, 2) float64, true and nominal positions in object pixels.
        origin: object pixel at which the scan's coordinates (centred on the scan) have their zero.
        mask: (h, w) bool, True for good pixels, laid out as the patterns (far field: DC at the corner).
        background: (h, w) float64 counts, laid out as the patterns.
        slice_spacing_m: distance between neighbouring slices; 0 for one slice.
        unknowns: true values of the operators' unknowns, by name, float64 or complex128.
        potential: (L, H, W) float64, of a crystal the phase of the object without wraps, in rad.
        object_modes: (Q, L, H, W) complex128, incoherent states of the object, of which `object` is the mean; None for
            a single one.
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
    potential: np.ndarray | None = None
    object_modes: np.ndarray | None = None

    @property
    def of_detector(self) -> Geometry:
        """Geometry of the patterns: that of the window, unless the model's pixels are finer than the detector's."""
        return self.geometry.binned(binning_of(self.options.optics.values()))

    @property
    def positions_px(self) -> np.ndarray:
        """The true positions, (N, 2), by the name that results have for them (`compare.compare_results`)."""
        return self.positions

    @property
    def pixel_size_m(self) -> tuple[float, float] | None:
        """Object pixel, (y, x) in metres."""
        return self.geometry.object_pixel_m

    @property
    def weights(self) -> None:
        """None, as in results whose views have no weights."""
        return None

    @property
    def planes(self) -> np.ndarray:
        """All states of the object as one stack of planes, (Q L, H, W)."""
        return self.object if self.object_modes is None else self.object_modes.reshape(-1, *self.object.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the patterns: the smallest unsigned integer that cannot overflow, or float32 without noise."""
        if not self.options.noise:
            return np.dtype(np.float32)
        incident = incident_power(self.options)
        # no pixel can hold more than all photons of its view
        largest = incident + 12 * math.sqrt(incident) + 2 * self.options.background_counts + 100
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
            geometry=self.of_detector,
            mask=self.mask,
            background=self.background if options.background_counts else None,
            probe=self.guess(),
            name=f"simulated-{options.kind}",
            fingerprint=f"simulation {options.as_json()}",
        )

    def guess(self) -> np.ndarray | None:
        """Return the probe (1 or M, v, u) of the data set (`Simulation.probe_guess`); None if it has none."""
        if self.options.probe_guess == "none":
            return None
        if self.options.probe_guess == "true":
            probe = self.probe
        else:
            probe = designed_probe(self.options, self.geometry, error=0.1)[None].numpy()
        sides = self.of_detector.shape
        y, x = (n // 2 - side // 2 for n, side in zip(self.geometry.shape, sides, strict=True))
        return np.ascontiguousarray(probe[:, y : y + sides[0], x : x + sides[1]])

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
            object=torch.from_numpy(self.planes).to(device, dtype),
            probe=torch.from_numpy(self.probe).to(device, dtype),
            positions=positions.clone(),
            anchors=torch.floor(positions + 0.5).to(torch.int64),
            nominal=torch.from_numpy(self.nominal).to(device),
            weights=torch.ones((len(positions), 1), dtype=real, device=device),
            background=torch.from_numpy(self.background).to(device, real),
            slice_spacing_m=self.slice_spacing_m,
            tilt_rad=self.options.tilt_rad,
            origin=self.origin,
            object_modes=self.options.object_modes,
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
    checked_options = checked(options, **changes)
    if checked_options.further_scans:
        raise BadInput("further_scans ask for several scans; call simulate_scans, which returns each of them.")
    return simulate_scans(checked_options)[0]


def simulate_scans(options: Simulation | None = None, **changes: object) -> list[Simulated]:
    """Simulate all scans of one object (`Simulation.further_scans`) in memory, as `simulate` does one.

    Args:
        options: of the simulation.
        changes: options that replace those.

    Raises:
        BadInput: options that contradict each other or that the window cannot sample.
    """
    simulations = truths(checked(options, **changes))
    return [Simulated(one.measurement(np.concatenate(list(patterns(one)))), one) for one in simulations]


def checked(options: Simulation | None = None, **changes: object) -> Simulation:
    """Return the options with some of them changed.

    Raises:
        BadInput: a value that cannot be used.
    """
    if not isinstance(options, Simulation | None):
        raise BadInput(f"The options of a simulation are of type {type(options).__name__}; give a Simulation.")
    values = {} if options is None else options.model_dump()
    return Simulation.parse({**values, **changes})


def truth(options: Simulation) -> Truth:
    """Return object, probe, positions and detector of a simulation, of its first scan, without the counts.

    Raises:
        BadInput: options that contradict each other or that the window cannot sample.
    """
    return truths(options)[0]


def truths(options: Simulation) -> list[Truth]:
    """Return the truth of each scan of a simulation, which all have the pixels of one object.

    Raises:
        BadInput: options that contradict each other or that the window cannot sample.
    """
    further_scans = options.further_scans
    if further_scans and (options.crystal is not None or options.kind == "crystal" or options.optics):
        raise BadInput("further_scans are for simulations without a crystal and without optics; remove one of the two.")
    if options.kind == "crystal":
        if options.object_modes > 1:
            raise BadInput(
                f"object_modes is {options.object_modes} for a crystal, whose atoms vibrate by crystal.configurations; "
                "leave it out."
            )
        options = with_crystal(options)
    elif options.crystal is not None:
        raise BadInput(f"crystal is given for kind {options.kind}; it is for kind crystal alone.")
    geometry = geometry_of(options)
    for operator in options.optics.values():
        operator.check(geometry)
    geometry = geometry.binned(1 / binning_of(options.optics.values()))
    window = geometry.shape[0]
    slices = options.slices or SLICES[options.kind]
    spacing_m = 0.0 if slices == 1 else options.slice_spacing_m or default_spacing_m(geometry)
    if slices == 1 and options.slice_spacing_m is not None:
        raise BadInput(f"slice_spacing_m is {options.slice_spacing_m} for a single slice; ask for slices=2 or more.")
    if slices == 1 and options.tilt_rad != (0.0, 0.0):
        raise BadInput(f"tilt_rad is {options.tilt_rad} for a single slice; ask for slices=2 or more.")
    width_px = DEFAULTS[options.kind].width * options.window
    every = options_by_scan(options)
    margin = MARGIN_PX + math.ceil(max(one.position_error_px for one in every))
    scans_told = [_scan(one, width_px, margin) for one in every]
    placed = scans.place_scans(scans_told, [one.move for one in further_scans])
    reach = np.ceil(np.abs(np.concatenate([*scans_told, *placed])).max(axis=0)).astype(int)
    sides = [-(-(2 * int(r) + window + 2 * margin) // BLOCK) * BLOCK for r in reach]
    origin = (float((sides[0] - window) // 2), float((sides[1] - window) // 2))
    _check_memory(slices * options.object_modes * sides[0] * sides[1] + (1 + CHUNK) * options.modes * window**2)
    nominal, options = scans_told[0] + np.array(origin), every[0]
    error = _position_errors(options)
    if options.crystal is not None:
        return [_crystal_truth(options, geometry, (sides[0], sides[1]), nominal, error, origin)]
    modes = probes.extra_modes(designed_probe(options, geometry), options.modes, options.mode_powers, options.seed)
    lit_extent = (int(2 * reach[0] + width_px), int(2 * reach[1] + width_px))
    obj = _object(options, geometry, (sides[0], sides[1]), lit_extent, slices)
    states = None
    if options.object_modes > 1:
        seeds = [options.seed + 1000 * state for state in range(options.object_modes)]
        states = np.stack([phantoms.deformed(obj, options.displacement_px, seed) for seed in seeds])
    first_truth = Truth(
        options=options,
        geometry=geometry,
        object=obj if states is None else states.mean(axis=0),
        object_modes=states,
        probe=probes.rescaled(modes, incident_power(options)).numpy(),
        positions=nominal + error,
        nominal=nominal,
        origin=origin,
        mask=_mask(options) & seen_pixels(geometry_of(options)),
        background=np.full((options.window, options.window), options.background_counts),
        slice_spacing_m=spacing_m,
    )
    if any("object" in operator.replaces for operator in options.optics.values()):
        if states is not None:
            raise BadInput("object_modes asks for several objects, whose part a piece of optics takes; remove one.")
        first_truth.object[:] = 1  # an operator's unknowns are in its place
    if not options.optics:
        further_placed = zip(further_scans, every[1:], scans_told[1:], placed[1:], strict=True)
        return [first_truth, *(_further_truth(first_truth, modes, *one) for one in further_placed)]
    pieces, _ = pieces_for_scan(options.optics.values(), _blank(first_truth))
    chosen = options.model_copy(update={"optics": {one.name: one for one in pieces}})
    first_truth = replace(first_truth, options=chosen)
    return [replace(first_truth, unknowns=_unknowns(first_truth))]


def _position_errors(options: Simulation) -> np.ndarray:
    """Return by how much true positions of a scan differ from nominal ones, (N, 2) pixels."""
    errors = np.random.default_rng([options.seed, 7]).uniform(-1, 1, (options.views, 2))
    return np.asarray(errors * options.position_error_px)


def _further_truth(
    first: Truth, modes: Tensor, scan: FurtherScan, options: Simulation, positions_told: np.ndarray, placed: np.ndarray
) -> Truth:
    """Return the truth of a further scan.

    Args:
        first: the truth of the first scan.
        modes: (M, h, w) its probe, of power 1.
        scan: what differs.
        options: of this scan by itself.
        positions_told: (N, 2) pixels, positions about the middle of the first scan that the data have.
        placed: (N, 2) pixels, those at which the scan lies.

    Raises:
        BadInput: a distance in the far field or behind a focus, another energy in the near field, or a probe that
            leaves its window.
    """
    geometry = geometry_of(options)
    if options.kind == "near" and geometry.wavelength_m != first.geometry.wavelength_m:
        # near fields of several energies cannot be reconstructed together: `join_measurements` refuses them
        raise BadInput("further_scans of another energy are for far fields; leave energy_eV out of them.")
    if scan.distance_ratio != 1:
        if options.kind != "near" or options.focus_distance_m is not None:
            raise BadInput("distance_ratio is for near fields of a parallel beam; leave it out.")
        assert geometry.distance_m is not None
        geometry = replace(geometry, distance_m=scan.distance_ratio * geometry.distance_m)
    pixel, wavelength = sampling_of(geometry)
    scan_probe = probes.defocused(modes, pixel, wavelength, scan.defocus_m) if scan.defocus_m else modes
    # the phase of a potential, and what it absorbs, with the energy
    ratio = interaction_ratio(geometry, first.geometry) if scan.energy_eV else 1.0
    origin = np.array(first.origin)
    return replace(
        first,
        options=options,
        geometry=geometry,
        probe=probes.rescaled(scan_probe, incident_power(options)).numpy(),
        positions=placed + _position_errors(options) + origin,
        nominal=positions_told + origin,
        mask=_mask(options) & seen_pixels(geometry),
        background=np.full_like(first.background, options.background_counts),
        object=first.object**ratio,
        object_modes=None if first.object_modes is None else first.object_modes**ratio,
    )


def _specimen(options: Simulation, geometry: Geometry, sides: tuple[int, int]) -> Specimen:
    """Return the crystal on the simulation's pixels, for an object of these sides (H, W).

    Raises:
        BadInput: its slices do not fit into the free memory.
    """
    assert options.crystal is not None
    specimen = Specimen(options.crystal, geometry, sides, options.slices or SLICES["crystal"], options.seed)
    _check_memory(
        specimen.slices * math.prod(specimen.field) * (1 + options.crystal.configurations // 2)
        + specimen.side**2 * CHUNK
    )
    return specimen


def _crystal_truth(
    options: Simulation,
    geometry: Geometry,
    sides: tuple[int, int],
    nominal: np.ndarray,
    error: np.ndarray,
    origin: tuple[float, float],
) -> Truth:
    """Return the truth of a crystal: slabs of its mean potential, and the beam in the middle of the first slab.

    Args:
        options: of the simulation.
        geometry: of the window.
        sides: (H, W) of the object.
        nominal: (N, 2) pixels, nominal positions.
        error: (N, 2) pixels, by how much the true ones differ.
        origin: pixel of the scan's centre.
    """
    specimen, crystal = _specimen(options, geometry, sides), options.crystal
    assert crystal is not None
    phases = specimen.slab_phases()
    return Truth(
        options=options,
        geometry=geometry,
        object=np.exp(1j * phases),
        potential=phases,
        probe=(specimen.slab_probe()[None] * math.sqrt(incident_power(options))).numpy(),
        positions=nominal + error,
        nominal=nominal,
        origin=origin,
        mask=_mask(options),
        background=np.full(geometry.shape, options.background_counts),
        slice_spacing_m=0.0 if specimen.slabs == 1 else crystal.thickness_m / specimen.slabs,
    )


def _blank(truth: Truth) -> Measurement:
    """Return the scan of a truth, without light."""
    views = truth.options.views
    return truth.measurement(np.broadcast_to(np.zeros((), truth.dtype), (views, *truth.mask.shape)))


def _unknowns(truth: Truth) -> dict[str, np.ndarray]:
    """Return the true values of the operators' unknowns, within the bounds that they declare.

    Args:
        truth: the truth without them.

    Raises:
        BadInput: the geometry does not have what an operator needs.
    """
    options, estimate = truth.options, truth.estimate()
    by_name: dict[str, np.ndarray] = {}
    measurement = _blank(truth)
    for operator in options.optics.values():
        starts = operator.starts(estimate.sizes(), "cpu", torch.float64)
        told_starts = operator.start_values(measurement)
        for one in operator.unknowns:
            start = starts[one.name].numpy()
            rng = np.random.default_rng([options.seed, 11, len(by_name)])  # operators do not share their errors
            noise = rng.uniform(-1, 1, (2, *start.shape))
            noise = _smoothed(noise, truth.options.window) if one.scope == "tiled" else noise
            real, imaginary = noise * options.unknown_errors.get(one.name, 0.0)
            values = told_starts.get(one.name, start) + (real + 1j * imaginary if one.complex else real)
            by_name[one.name] = np.asarray(values if one.complex else np.clip(values, one.least, one.largest))
    return by_name


def _smoothed(fields: np.ndarray, window: int) -> np.ndarray:
    """Return random fields (2, C, H, W) without details finer than an eighth of a window, of magnitudes up to 1.

    Args:
        fields: random numbers.
        window: side of the window in pixels.
    """
    smooth = ndimage.gaussian_filter(fields, (0, 0, window / 8, window / 8), mode="wrap")
    normalised: np.ndarray = smooth / abs(smooth).max()
    return normalised


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

    if options.crystal is not None:
        return steps(options.crystal.step_m / (options.pixel_m or DEFAULTS["crystal"].pixel_m))
    if options.object_px is None:
        overlap = DEFAULTS[options.kind].overlap if options.overlap is None else options.overlap
        return steps((1 - overlap) * width_px)
    if options.overlap is not None:
        raise BadInput(f"overlap is {options.overlap} and object_px {options.object_px}; give one of the two.")
    window = options.window * binning_of(options.optics.values())
    room = options.object_px - window - 2 * margin - 2
    if room <= 0:
        raise BadInput(
            f"object_px is {options.object_px}, which leaves no room to move a window of {window}; give at "
            f"least {window + 2 * margin + 3}."
        )
    step_px = room / max(float(np.ptp(steps(1.0), axis=0).max()), 1e-9)
    if options.views > 1 and step_px > width_px:
        raise BadInput(
            f"{options.views} views over an object of {options.object_px} px lie {step_px:.3g} px apart, and the beam "
            f"is {width_px:.3g} px wide; give more views or a smaller object."
        )
    return steps(step_px)


def patterns(truth: Truth) -> Iterator[np.ndarray]:
    """Yield the counts of up to CHUNK views (n, h, w) at a time, in scan order, laid out as in `Measurement`."""
    options, estimate = truth.options, truth.estimate()
    if options.crystal is not None:
        height, width = truth.object.shape[1:]
        power = incident_power(options)
        intensities = _specimen(options, truth.geometry, (height, width)).intensities(truth.positions, CHUNK)
        for index, intensity in enumerate(intensities):
            yield _counts(truth, index * CHUNK, intensity * power + torch.from_numpy(truth.background))
        return
    model = Model.for_geometry(
        truth.geometry,
        slices=SliceStack(len(truth.object), truth.slice_spacing_m, options.tilt_rad),
        optics=with_object_modes(tuple(options.optics.values()), options.object_modes),
        dtype=torch.complex128,
    )
    scan = estimate.nominal - torch.tensor(truth.origin, dtype=torch.float64)
    for start in range(0, options.views, CHUNK):
        views = torch.arange(start, min(start + CHUNK, options.views))
        fractions = estimate.fractions(views)
        windows = ViewWindows(views, estimate.anchors[views], estimate.window)
        rows = {one.name: values_for_views(one, estimate[one.name], windows, None) for one in model.unknowns}
        intensity = model.intensity(
            estimate.object,
            estimate.probe,
            estimate.anchors[views],
            fractions,
            background=estimate.background,
            values=ViewValues(rows, Views(estimate.positions[views], fractions, scan[views], views)),
        )
        counts = _counts(truth, start, intensity)
        yield counts if model.saturation is None else np.minimum(counts, counts.dtype.type(model.saturation.level))


def _counts(truth: Truth, start: int, intensity: Tensor) -> np.ndarray:
    """Return the counts (n, h, w) of views from `start` on, from their expected intensities."""
    options, dtype = truth.options, truth.dtype
    if not options.noise:
        counts = intensity.numpy().astype(dtype)
    else:
        counts = np.empty(intensity.shape, dtype)
        for row, expected in enumerate(intensity.numpy()):
            counts[row] = np.random.default_rng([options.seed, 8, start + row]).poisson(expected)
    # masked pixels must not matter: dead ones read 0, hot ones the largest number of the dtype
    counts[:, ~truth.mask] = np.iinfo(dtype).max if options.defect == "hot" and dtype.kind == "u" else 0
    return counts


def _object(
    options: Simulation, geometry: Geometry, shape: tuple[int, int], lit_extent: tuple[int, int], slices: int
) -> np.ndarray:
    """Return the phantom (L, H, W); `lit_extent` is the central part that the beam reaches."""
    amplitude = options.amplitude or (0.6, 1.0)
    if options.kind == "electron" and options.amplitude is not None:
        raise BadInput(f"amplitude is {options.amplitude} for electrons, which atoms do not absorb; leave it out.")
    if not 0 <= amplitude[0] <= amplitude[1] <= 1:
        raise BadInput(f"The amplitude range is {amplitude}; give (low, high) with 0 <= low <= high <= 1.")
    phase = options.phase_rad or DEFAULTS[options.kind].phase_rad
    if not phase[0] <= phase[1]:
        raise BadInput(f"The phase range is {phase}; give (low, high).")
    if options.kind == "electron":
        atoms_drawn = phantoms.atoms(shape, slices, sampling_of(geometry)[0], options.seed, phase[1] - phase[0])
        return np.asarray(atoms_drawn * np.exp(1j * phase[0]))
    seeds = [options.seed + 1000 * level for level in range(slices)]
    if options.kind == "near":
        return np.concatenate([phantoms.powder(shape, seed, amplitude, phase) for seed in seeds])
    return np.concatenate([phantoms.chart(shape, seed, amplitude, phase, lit_extent) for seed in seeds])


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
