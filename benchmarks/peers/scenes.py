"""What solution.py measures: the star, a simulated crystal of several slices, a simulated near field.

Simulated scans are on the grid and by the propagators that all programs fit with.
"""

from __future__ import annotations

import bz2
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.geometry import Geometry
from ptymesh.simulate import checked, patterns, truth

Options = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    """A scan, and what is tried on it.

    simulated: options of the simulation; of the star there are none.
    whole: whether positions are rounded to whole pixels before patterns are made.
    candidates: what the search tries, by peer: engine, batch and rate.
    found: what it found with one mode; ptymesh's is the default recipe.
    more_modes: what it found with so many, by peer, where that is something else.
    """

    candidates: dict[str, list[Options]]
    found: dict[str, Options]
    more_modes: dict[int, dict[str, Options]] = field(default_factory=dict)
    simulated: Options = field(default_factory=dict)
    whole: bool = False

    def best(self, name: str, modes: int) -> Options:
        """What the search found for a program."""
        return self.more_modes.get(modes, {}).get(name, self.found[name])

    @cached_property
    def geometry(self) -> Geometry:
        """Of a simulated scan."""
        return truth(checked(**{**self.simulated, "views": 1})).geometry

    @property
    def _near(self) -> bool:
        return self.simulated.get("kind") == "near"

    @property
    def lengths(self) -> Options:
        """What the file does not say, for `pm.load`."""
        if not self.simulated:
            return {}
        geometry = self.geometry
        if not self._near:
            return {"wavelength_m": geometry.wavelength_m, "object_pixel_m": geometry.object_pixel_m}
        detector = {"distance_m": geometry.distance_m, "detector_pixel_m": geometry.detector_pixel_m}
        return {"propagation": "angular_spectrum", "wavelength_m": geometry.wavelength_m, **detector}

    @property
    def object(self) -> Options:
        """Slices of the object, for `pm.Reconstruction`."""
        slices = ("slices", "slice_spacing_m")
        return {key: self.simulated[key] for key in slices} if "slices" in self.simulated else {}

    @property
    def words(self) -> Options:
        """The same as options of the runs; lengths in Angstrom, but for the distance."""
        if not self.simulated:
            return {}
        geometry = self.geometry
        assert geometry.wavelength_m is not None and geometry.object_pixel_m is not None
        found: Options = {
            "pixel": round(1e10 * geometry.object_pixel_m[0], 6),
            "wavelength": 1e10 * geometry.wavelength_m,
        }
        if self._near:
            return found | {"distance": geometry.distance_m}
        spacing, kilovolts = self.simulated["slice_spacing_m"], 1e-3 * self.simulated["energy_eV"]
        return found | {
            "slices": self.simulated["slices"],
            "spacing": round(1e10 * spacing, 6),
            "kilovolts": kilovolts,
        }

    def write(self, path: Path) -> None:
        """Simulates the scan into a file like the star's."""
        made = truth(checked(**self.simulated))
        if self.whole:
            at = np.rint(made.positions)
            made = replace(made, positions=at, nominal=at)
        scan = made.measurement(np.concatenate(list(patterns(made))))
        counts = scan.patterns.read(np.arange(scan.views))
        corners = scan.positions - scan.positions.min(axis=0) if self.whole else scan.positions
        assert scan.probe is not None
        with bz2.open(path, "wb") as packed:
            np.savez(
                packed,
                data=counts[None].astype(np.float32),
                scan=corners[None].astype(np.float32),
                probe=scan.probe[None, None, None].astype(np.complex64),
            )


STAR = Scene(
    candidates={
        "ptychi": [
            {"engine": "adam", "batch": 32, "rate": 0.02},
            {"engine": "lsqml", "batch": 32},
            {"engine": "adam", "batch": 32, "rate": 0.01},
            {"engine": "adam", "batch": 64, "rate": 0.02},
            {"engine": "lsqml", "batch": 64, "momentum": 0.5},
            {"engine": "adam", "batch": 64, "rate": 0.05},
            {"engine": "rpie", "batch": 16, "rate": 0.3},
            {"engine": "adam", "batch": 128, "rate": 0.02},
            {"engine": "adam", "batch": 128, "rate": 0.05},
        ],
        "cdtools": [
            {"engine": "adam", "batch": 30, "rate": 0.01},
            {"engine": "adam", "batch": 30, "rate": 0.02},
            {"engine": "adam", "batch": 15, "rate": 0.005},
            {"engine": "adam", "batch": 64, "rate": 0.02},
            {"engine": "adam", "batch": 15, "rate": 0.01},
            {"engine": "adam", "batch": 64, "rate": 0.05},
            {"engine": "adam", "batch": 128, "rate": 0.02},
            {"engine": "adam", "batch": 128, "rate": 0.05},
        ],
        "ptyrad": [
            {"engine": "adam", "batch": 32, "rate": 0.005, "unblurred": True},
            {"engine": "adam", "batch": 32, "rate": 0.01, "unblurred": True},
            {"engine": "adam", "batch": 16, "rate": 0.005, "unblurred": True},
            {"engine": "adam", "batch": 32, "rate": 0.01},
            {"engine": "adam", "batch": 64, "rate": 0.01, "unblurred": True},
            {"engine": "adam", "batch": 16, "rate": 0.002, "unblurred": True},
            {"engine": "adam", "batch": 128, "rate": 0.01, "unblurred": True},
            {"engine": "adam", "batch": 128, "rate": 0.02, "unblurred": True},
        ],
    },
    found={
        "ptymesh": {"engine": "default"},
        "ptychi": {"engine": "adam", "batch": 128, "rate": 0.05},
        "cdtools": {"engine": "adam", "batch": 128, "rate": 0.05},
        "ptyrad": {"engine": "adam", "batch": 64, "rate": 0.01, "unblurred": True},
    },
    more_modes={
        3: {
            "cdtools": {"engine": "adam", "batch": 128, "rate": 0.02},
            "ptyrad": {"engine": "adam", "batch": 16, "rate": 0.002, "unblurred": True},
        }
    },
)

#: CDTools moves the wave by the fraction of a pixel in every slice anew: there are whole pixels alone.
CRYSTAL = Scene(
    simulated={
        "kind": "electron",
        "slices": 4,
        "slice_spacing_m": 22.5e-10,
        "views": 400,
        "window": 64,
        "pixel_m": 0.25e-10,
        "energy_eV": 200e3,
        "seed": 1,
    },
    whole=True,
    candidates={
        "ptychi": [
            {"engine": "adam", "batch": 32, "rate": 0.02},
            {"engine": "adam", "batch": 32, "rate": 0.005},
            {"engine": "adam", "batch": 64, "rate": 0.02},
            {"engine": "lsqml", "batch": 32},
            {"engine": "lsqml", "batch": 64, "momentum": 0.5},
            {"engine": "adam", "batch": 32, "rate": 0.002},
            {"engine": "adam", "batch": 64, "rate": 0.005},
        ],
        "cdtools": [
            {"engine": "adam", "batch": 30, "rate": 0.02},
            {"engine": "adam", "batch": 30, "rate": 0.01},
            {"engine": "adam", "batch": 30, "rate": 0.005},
            {"engine": "adam", "batch": 30, "rate": 0.002},
            {"engine": "adam", "batch": 64, "rate": 0.005},
            {"engine": "adam", "batch": 64, "rate": 0.01},
            {"engine": "adam", "batch": 15, "rate": 0.005},
        ],
        "ptyrad": [
            {"engine": "adam", "batch": 32, "rate": 0.005, "unblurred": True},
            {"engine": "adam", "batch": 32, "rate": 0.01, "unblurred": True},
            {"engine": "adam", "batch": 16, "rate": 0.002, "unblurred": True},
            {"engine": "adam", "batch": 64, "rate": 0.01, "unblurred": True},
            {"engine": "adam", "batch": 32, "rate": 0.005},
            {"engine": "adam", "batch": 32, "rate": 0.002, "unblurred": True},
            {"engine": "adam", "batch": 64, "rate": 0.005, "unblurred": True},
        ],
    },
    found={
        "ptymesh": {"engine": "default"},
        "ptychi": {"engine": "lsqml", "batch": 64, "momentum": 0.5},
        "cdtools": {"engine": "adam", "batch": 64, "rate": 0.005},
        "ptyrad": {"engine": "adam", "batch": 64, "rate": 0.005, "unblurred": True},
    },
)

#: PtyRAD has no near field. Pty-Chi shifts the probe by what is left of a position beside whole pixels, and the wave
#: on the detector with it, which stands still in truth: so there is nothing left.
NEAR = Scene(
    simulated={"kind": "near", "views": 400, "window": 128, "seed": 1},
    whole=True,
    candidates={
        "ptychi": [
            {"engine": "adam", "batch": 32, "rate": 0.02},
            {"engine": "lsqml", "batch": 32},
            {"engine": "adam", "batch": 32, "rate": 0.005},
            {"engine": "lsqml", "batch": 64, "momentum": 0.5},
            {"engine": "adam", "batch": 64, "rate": 0.01},
            {"engine": "adam", "batch": 16, "rate": 0.005},
            {"engine": "rpie", "batch": 16, "rate": 0.3},
            {"engine": "lsqml", "batch": 16},
            {"engine": "adam", "batch": 32, "rate": 0.05},
            {"engine": "adam", "batch": 16, "rate": 0.05},
            {"engine": "adam", "batch": 32, "rate": 0.1},
        ],
        "cdtools": [
            {"engine": "adam", "batch": 30, "rate": 0.01},
            {"engine": "adam", "batch": 30, "rate": 0.02},
            {"engine": "adam", "batch": 15, "rate": 0.005},
            {"engine": "adam", "batch": 64, "rate": 0.02},
            {"engine": "adam", "batch": 30, "rate": 0.005},
            {"engine": "adam", "batch": 15, "rate": 0.01},
            {"engine": "adam", "batch": 30, "rate": 0.05},
            {"engine": "adam", "batch": 15, "rate": 0.02},
            {"engine": "adam", "batch": 15, "rate": 0.05},
        ],
    },
    found={
        "ptymesh": {"engine": "default"},
        "ptychi": {"engine": "adam", "batch": 32, "rate": 0.05},
        "cdtools": {"engine": "adam", "batch": 15, "rate": 0.02},
    },
)

SCENES = {"star": STAR, "crystal": CRYSTAL, "near": NEAR}
