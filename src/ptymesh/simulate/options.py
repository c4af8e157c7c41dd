"""Options of simulations, and what each kind takes for those that are left out.

N, M, L     views, probe modes, slices
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SerializeAsAny, field_validator, model_validator

from ptymesh.errors import BadInput
from ptymesh.geometry import STEEPEST_DEG
from ptymesh.models import OPTICS, Piece, named
from ptymesh.options import Options
from ptymesh.simulate import scans
from ptymesh.simulate.crystal import Crystal

Kind = Literal["xray", "near", "electron", "crystal"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Range = tuple[float, float]
Lean = Annotated[float, Field(ge=-STEEPEST_DEG, le=STEEPEST_DEG)]
Shift = Annotated[float, Field(ge=-(2**15), le=2**15)]
Tilt = Annotated[float, Field(ge=-0.25, le=0.25)]


class FurtherScan(Options):
    """A further scan of the same object, by what differs from the first one.

    Fields:
        views, scan, overlap, photons_per_view, position_error_px, background_counts: as in `Simulation`.
        energy_eV: the phase of the object follows the interaction, as that of a potential.
        shift_px: (y, x) by which it lies elsewhere than its positions say.
        rotation_deg, scale: by which it is turned and longer about its middle than they say.
        defocus_m: by which its sample lies further down the beam, which makes its probe another one.
        distance_ratio: near field only: its distance to the detector over that of the first scan.
    """

    views: int | None = Field(default=None, ge=1, le=10**7)
    scan: scans.ScanPattern | None = None
    overlap: float | None = Field(default=None, ge=0, lt=1)
    photons_per_view: float | None = Field(default=None, gt=0, le=2e9)
    position_error_px: float | None = Field(default=None, ge=0, le=2**15)
    background_counts: float | None = Field(default=None, ge=0, le=1e9)
    energy_eV: Positive | None = None
    shift_px: tuple[Shift, Shift] = (0.0, 0.0)
    rotation_deg: float = Field(default=0.0, ge=-360, le=360)
    scale: float = Field(default=0.0, ge=-0.5, le=0.5)
    defocus_m: float = 0.0
    distance_ratio: float = Field(default=1.0, gt=0, le=1e3)

    @property
    def move(self) -> tuple[float, float, float, float]:
        """Shift (y, x) in pixels, rotation in rad and scale, as `models.scan_shift` refines them."""
        return (*self.shift_px, math.radians(self.rotation_deg), self.scale)


class Simulation(Options):
    """Options of a simulation. Lengths in metres, angles in rad; None takes the default of the kind.

    Fields:
        kind: `xray` (far field, zone plate, test chart), `near` (X-ray near field, structured beam, powder),
            `electron` (far field, aberrated lens, slices of atoms by the model of reconstructions) or `crystal` (far
            field, aberrated lens, atoms through which the beam goes by a multislice of their own).
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
        crystal: of kind `crystal` only: the crystal and its beam.
        slices: number of object slices; of a crystal, of the slabs in which its truth is written.
        slice_spacing_m: distance between neighbouring slices.
        object_modes: number of incoherent states that the object takes during an exposure, all equally likely: in each
            it is deformed otherwise, as atoms that vibrate.
        displacement_px: root-mean-square displacement of a pixel along either axis in these states.
        tilt_rad: (y, x) by which the axis along which slices are stacked leans against the beam.
        amplitude, phase_rad: ranges (low, high) of the transmission, (0.6, 1) and (-1.2, 0.2) for X-rays; electrons are
            not absorbed, and every slice has phase (0, 0.6).
        energy_eV: of the photons or electrons.
        pixel_m: object pixel.
        detector_pixel_m: detector pixel.
        surface_deg: (y, x) angle by which a surface leans from the beam that it reflects; far field only.
        focus_distance_m: near field only: the beam diverges from a focus this far upstream of the sample.
        defocus_m: by which the sample lies further down the beam than the design of the optics has it.
        further_scans: of the same object; the seed of each is one higher than that of the scan before.
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
    scan: scans.ScanPattern = "fermat"
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
    crystal: Crystal | None = None
    slices: int | None = Field(default=None, ge=1, le=10_000)
    slice_spacing_m: Positive | None = None
    object_modes: int = Field(default=1, ge=1, le=256)
    displacement_px: float = Field(default=1.0, gt=0, le=100)
    tilt_rad: tuple[Tilt, Tilt] = (0.0, 0.0)
    amplitude: Range | None = None
    phase_rad: Range | None = None
    energy_eV: Positive | None = None
    pixel_m: Positive | None = None
    detector_pixel_m: Positive | None = None
    surface_deg: tuple[Lean, Lean] = (0.0, 0.0)
    focus_distance_m: Positive | None = None
    defocus_m: float = 0.0
    further_scans: tuple[FurtherScan, ...] = Field(default=(), max_length=99)
    probe_guess: Literal["none", "design", "true"] = "design"
    optics: dict[str, SerializeAsAny[Piece]] = Field(default_factory=dict)
    unknown_errors: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    seed: int = Field(default=0, ge=0, lt=2**63)

    @field_validator("optics", mode="before")
    @classmethod
    def _operators(cls, values: Any) -> Any:
        return named(values, OPTICS, "optics")

    @model_validator(mode="after")
    def _known_unknowns(self) -> Simulation:
        unknown_names = [one.name for operator in self.optics.values() for one in operator.unknowns]
        for name in self.unknown_errors:
            if name not in unknown_names:
                alternatives = f"these have {', '.join(unknown_names)}" if unknown_names else "there are none"
                raise ValueError(f"no operator of optics declares {name}, which unknown_errors names; {alternatives}")
        return self

    def as_json(self) -> str:
        """Return all options as JSON; without the keys of operators where there are none, as before there were any."""
        newer = set() if self.optics else {"optics", "unknown_errors"}
        newer |= set() if self.crystal else {"crystal"}
        newer |= set() if self.object_modes > 1 else {"object_modes", "displacement_px"}
        newer |= {name for name in ("defocus_m", "further_scans") if not getattr(self, name)}
        return self.model_dump_json(exclude=newer if any(self.surface_deg) else newer | {"surface_deg"})


@dataclass(frozen=True)
class Defaults:
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


DEFAULTS: dict[Kind, Defaults] = {
    "xray": Defaults(8.0e3, 20e-9, 75e-6, 0.72, 0.35, 1e6, (-1.2, 0.2)),
    "near": Defaults(17.0e3, 100e-9, 100e-9, 0.9, 0.7, 2e7, (-1.2, 0.2)),
    "electron": Defaults(200.0e3, 0.25e-10, 150e-6, 0.75, 0.35, 1e5, (0.0, 0.6)),
    "crystal": Defaults(300.0e3, 0.2e-10, 150e-6, 0.75, 0.35, 1e5, (0.0, 0.6)),
}
#: Slices of the object of each kind.
SLICES: dict[Kind, int] = {"xray": 1, "near": 1, "electron": 2, "crystal": 6}
#: Options that a crystal has in other words, or does not have.
_NOT_OF_CRYSTALS = ("overlap", "object_px", "slice_spacing_m", "amplitude", "phase_rad", "mode_powers")


def with_crystal(options: Simulation) -> Simulation:
    """Return options of kind crystal with their crystal.

    Raises:
        BadInput: options that a crystal does not have.
    """
    for name in _NOT_OF_CRYSTALS:
        if getattr(options, name) is not None:
            raise BadInput(
                f"{name} is {getattr(options, name)} for kind crystal, which has none; give options of crystal."
            )
    if options.modes > 1 or options.optics or any(options.tilt_rad) or any(options.surface_deg):
        raise BadInput(
            "modes, optics, tilt_rad and surface_deg are not for kind crystal; source_m, integrating and tilt_rad of "
            "crystal are."
        )
    crystal = options.crystal or Crystal()
    if crystal.dose_e_per_A2 is not None and options.photons_per_view is not None:
        raise BadInput(
            f"dose_e_per_A2 is {crystal.dose_e_per_A2:g} and photons_per_view {options.photons_per_view:g}; give one "
            "of the two."
        )
    return options.model_copy(update={"crystal": crystal})


def options_by_scan(options: Simulation) -> list[Simulation]:
    """Return the options of each scan by itself, the first one's first."""
    by_scan = [options.model_copy(update={"further_scans": ()})]
    for number, one in enumerate(options.further_scans, 1):
        scan_values = {name: value for name, value in one if name in Simulation.model_fields and value is not None}
        scan_values |= {"seed": options.seed + number, "defocus_m": options.defocus_m + one.defocus_m}
        by_scan.append(
            by_scan[0].model_copy(update=scan_values if one.overlap is None else scan_values | {"object_px": None})
        )
    return by_scan


def incident_power(options: Simulation) -> float:
    """Return the photons or electrons of a view."""
    if options.crystal is not None and options.crystal.dose_e_per_A2 is not None:
        return options.crystal.dose_e_per_A2 * (options.crystal.step_m * 1e10) ** 2
    return options.photons_per_view or DEFAULTS[options.kind].photons
