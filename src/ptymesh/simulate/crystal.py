"""Crystals by their atoms: structures, their orientation against the beam, two halves turned against each other.

J       atoms
y x z   axes of places: z along the beam from the surface that it enters by, y and x as those of the scan

A lattice is turned so that its zone axis lies along the beam, then about the beam, then leant. Of two halves, each
begins with the same plane of its lattice, above the middle of the field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator
from scipy.spatial.transform import Rotation

from ptymesh.models.aberrations import LensAberrations
from ptymesh.options import Options
from ptymesh.simulate.scattering import ELEMENTS

Length = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Angle = Annotated[float, Field(ge=-360, le=360)]
Lean = Annotated[float, Field(ge=-0.3, le=0.3)]
Site = tuple[str, float, float, float]
Structure = Literal["aluminium", "gallium_arsenide", "gold", "molybdenum_disulfide", "silicon", "strontium_titanate"]

_FACES = ((0.0, 0.0, 0.0), (0.0, 0.5, 0.5), (0.5, 0.0, 0.5), (0.5, 0.5, 0.0))


@dataclass(frozen=True)
class Cell:
    """Unit cell of a lattice.

    Attributes:
        sides_m: lengths of the three vectors.
        angles_deg: alpha, beta and gamma between them.
        sites: (element, three fractions of the vectors) of each atom.
    """

    sides_m: tuple[float, float, float]
    angles_deg: tuple[float, float, float]
    sites: tuple[Site, ...]

    @property
    def vectors_m(self) -> np.ndarray:
        """The vectors as rows (3, 3), x y z; the first along x, the second in the plane of x and y."""
        alpha, beta, gamma = np.deg2rad(self.angles_deg)
        x, y = math.cos(beta), (math.cos(alpha) - math.cos(beta) * math.cos(gamma)) / math.sin(gamma)
        unit = np.array(
            [[1, 0, 0], [math.cos(gamma), math.sin(gamma), 0], [x, y, math.sqrt(max(1 - x * x - y * y, 0.0))]]
        )
        return np.asarray(unit * np.array(self.sides_m)[:, None])


def _cubic(side_m: float, *sites: Site) -> Cell:
    """Return a cubic cell."""
    return Cell((side_m,) * 3, (90.0, 90.0, 90.0), sites)


def _faces(element: str, shift: float = 0.0) -> tuple[Site, ...]:
    """Return the sites of a face-centred lattice, moved by a share of the cell's diagonal."""
    return tuple((element, a + shift, b + shift, c + shift) for a, b, c in _FACES)


#: Lattice constants as in Wyckoff, Crystal Structures (1963), rounded; molybdenum disulfide is 2H.
STRUCTURES: Mapping[str, Cell] = {
    "aluminium": _cubic(4.05e-10, *_faces("Al")),
    "gallium_arsenide": _cubic(5.653e-10, *_faces("Ga"), *_faces("As", 0.25)),
    "gold": _cubic(4.078e-10, *_faces("Au")),
    "molybdenum_disulfide": Cell(
        (3.16e-10, 3.16e-10, 12.29e-10),
        (90.0, 90.0, 120.0),
        (
            ("Mo", 1 / 3, 2 / 3, 0.25),
            ("S", 2 / 3, 1 / 3, 0.121),
            ("S", 2 / 3, 1 / 3, 0.379),
            ("Mo", 2 / 3, 1 / 3, 0.75),
            ("S", 1 / 3, 2 / 3, 0.621),
            ("S", 1 / 3, 2 / 3, 0.879),
        ),
    ),
    "silicon": _cubic(5.431e-10, *_faces("Si"), *_faces("Si", 0.25)),
    "strontium_titanate": _cubic(
        3.905e-10,
        ("Sr", 0.0, 0.0, 0.0),
        ("Ti", 0.5, 0.5, 0.5),
        ("O", 0.5, 0.5, 0.0),
        ("O", 0.5, 0.0, 0.5),
        ("O", 0.0, 0.5, 0.5),
    ),
}


class Crystal(Options):
    """Options of a crystal, of the beam that goes through it and of what blurs its patterns; metres and degrees.

    Fields:
        structure: a built-in one.
        cell_m, cell_angles_deg, sites: instead of it, a cell: sides, angles alpha, beta, gamma, and `[element, a, b,
            c]` of each atom with its place as shares of the sides.
        zone: direction [u, v, w] of the lattice that lies along the beam.
        rotation_deg: of the lattice about the beam, from x towards y.
        twist_deg: by which the half that the beam leaves by is turned further.
        tilt_rad: (y, x) by which the zone axis leans from the beam.
        thickness_m: of the whole crystal.
        slice_m: largest thickness of a slice of the simulation.
        displacement_m: of each atom by heat, root of the mean square along y and along x each (Einstein's model).
        configurations: of frozen displacements whose patterns are summed.
        semiangle_rad: of the aperture.
        aberrations_m: of the beam where it enters the crystal, as those of an electron probe.
        step_m: between views.
        dose_e_per_A2: electrons on a square Angstrom, instead of `photons_per_view`.
        source_m: standard deviation of the source's image along y and x; each configuration is seen from another
            point of the source.
        integrating: detector pixels count over their area, not at their centre.
        extent: side of the field in which a beam is simulated, in windows.
        refine: pixels of the simulation along each side of an object pixel.
    """

    structure: Structure = "strontium_titanate"
    cell_m: tuple[Length, Length, Length] | None = None
    cell_angles_deg: tuple[float, float, float] = (90.0, 90.0, 90.0)
    sites: tuple[Site, ...] = ()
    zone: tuple[int, int, int] = (0, 0, 1)
    rotation_deg: Angle = 0.0
    twist_deg: Angle = 0.0
    tilt_rad: tuple[Lean, Lean] = (0.0, 0.0)
    thickness_m: float = Field(default=10e-9, gt=0, le=1e-6)
    slice_m: float = Field(default=2e-10, ge=2e-11, le=1e-8)
    displacement_m: float = Field(default=8e-12, ge=0, le=1e-10)
    configurations: int = Field(default=8, ge=1, le=10_000)
    semiangle_rad: float = Field(default=20e-3, gt=0, lt=0.3)
    aberrations_m: LensAberrations = Field(default={"C10": -15e-9})
    step_m: Length = 0.8e-10
    dose_e_per_A2: Length | None = None
    source_m: float = Field(default=0.0, ge=0, le=1e-8)
    integrating: bool = True
    extent: int = Field(default=1, ge=1, le=8)
    refine: int = Field(default=1, ge=1, le=8)

    @model_validator(mode="after")
    def _consistent(self) -> Crystal:
        if (self.cell_m is None) != (not self.sites):
            raise ValueError("a crystal of one's own needs cell_m and sites; give both, or a structure")
        for element, *_ in self.sites:
            if element not in ELEMENTS:
                raise ValueError(
                    f"sites names the element {element!r}; those with parameters are {', '.join(ELEMENTS)}"
                )
        if self.zone == (0, 0, 0):
            raise ValueError("zone is [0, 0, 0], which is no direction; give for instance [0, 0, 1]")
        if self.cell_m is not None:
            vectors = self.cell.vectors_m
            if not np.isfinite(vectors).all() or abs(np.linalg.det(vectors)) < 1e-3 * math.prod(self.cell_m):
                raise ValueError(f"cell_angles_deg {list(self.cell_angles_deg)} span no volume; give those of a cell")
        if self.source_m and self.configurations < 3:
            raise ValueError(
                f"source_m is {self.source_m:g} with configurations {self.configurations}, each of which is seen from "
                "one point of the source; take 3 or more"
            )
        return self

    @property
    def cell(self) -> Cell:
        """The unit cell."""
        if self.cell_m is None:
            return STRUCTURES[self.structure]
        return Cell(self.cell_m, self.cell_angles_deg, self.sites)


@dataclass(frozen=True)
class Atoms:
    """Atoms in a box.

    Attributes:
        elements: (J,) symbols.
        places_m: (J, 3) float64, y x z, from the corner of the field and the surface that the beam enters by.
    """

    elements: np.ndarray
    places_m: np.ndarray


def arrange_atoms(crystal: Crystal, field_m: tuple[float, float]) -> Atoms:
    """Return the atoms of a crystal that fills a field.

    Args:
        crystal: its structure, orientation and thickness.
        field_m: sides of the field (y, x).
    """
    middle = crystal.thickness_m / 2
    parts = [(0.0, 2 * middle, 0.0)]
    if crystal.twist_deg:
        parts = [(0.0, middle, 0.0), (middle, 2 * middle, crystal.twist_deg)]
    atoms = [_fill(crystal, field_m, (top, bottom), turn) for top, bottom, turn in parts]
    return Atoms(np.concatenate([one.elements for one in atoms]), np.concatenate([one.places_m for one in atoms]))


def _fill(crystal: Crystal, field_m: tuple[float, float], depth_m: tuple[float, float], turn_deg: float) -> Atoms:
    """Return the atoms of one lattice between two depths, turned by `turn_deg` more."""
    vectors = _turned(crystal, turn_deg)
    # the first plane a tenth of an Angstrom below the surface, so that rounding puts no atom outside
    origin = np.array([field_m[0] / 2, field_m[1] / 2, depth_m[0] + 1e-11])
    low, high = np.array([0.0, 0.0, depth_m[0]]), np.array([*field_m, depth_m[1]])
    corners = np.stack(np.meshgrid(*np.stack((low, high), axis=1), indexing="ij"), axis=-1).reshape(-1, 3)
    shares = (corners - origin) @ np.linalg.inv(vectors)
    first, last = np.floor(shares.min(axis=0)).astype(int) - 1, np.ceil(shares.max(axis=0)).astype(int) + 1
    axes = [np.arange(a, b + 1) for a, b in zip(first, last, strict=True)]
    cells = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    elements, places = [], []
    for element, *site in crystal.cell.sites:
        positions = (cells + np.array(site)) @ vectors + origin
        positions = positions[((positions >= low) & (positions < high)).all(axis=1)]
        places.append(positions)
        elements.append(np.full(len(positions), element))
    return Atoms(np.concatenate(elements), np.concatenate(places))


def _turned(crystal: Crystal, turn_deg: float) -> np.ndarray:
    """Return the lattice's vectors as rows (3, 3), y x z, after zone axis, rotation and tilt."""
    vectors = crystal.cell.vectors_m
    along = np.array(crystal.zone) @ vectors
    along /= np.linalg.norm(along)
    axis, cosine = np.cross(along, [0.0, 0.0, 1.0]), along[2]
    sine = float(np.linalg.norm(axis))
    axis = axis / sine if sine > 1e-12 else np.array([1.0, 0.0, 0.0])
    to_beam = Rotation.from_rotvec(axis * math.atan2(sine, cosine))
    about = Rotation.from_rotvec([0.0, 0.0, math.radians(crystal.rotation_deg + turn_deg)])
    # the axis leans towards y by a rotation about x, and towards x by one about y
    lean = Rotation.from_rotvec([-crystal.tilt_rad[0], crystal.tilt_rad[1], 0.0])
    return np.asarray((lean * about * to_beam).apply(vectors)[:, [1, 0, 2]])
