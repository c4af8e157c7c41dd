"""Interface of the formats of other programs' results, with the description of each for the reference.

L, M, K     object slices, probe modes, variable-probe (OPR) modes
N           views
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import yaml

from ptymesh.errors import BadInput
from ptymesh.files import replacing
from ptymesh.io.hdf5.writing import new_hdf5
from ptymesh.io.results import Result


@dataclass(frozen=True)
class ResultFormat:
    """A file format that results are written to, and read from where it holds object, probe and positions.

    Attributes:
        name: for `--to`.
        endings: of file names, with the dot, which choose this format.
        program: whose files these are.
        holds: names of those PARTS that its files hold.
        write: writes a result to a path.
        recognises: returns True if a file is of this format, by its content; None where it cannot be read back.
        read: returns the result in a file, and sentences about what was assumed or left out.
        needs_metres: True if it cannot hold a result in pixel units.
        remarks: returns sentences about what is written in place of what is not known, or means less than it does here.
    """

    name: str
    endings: tuple[str, ...]
    program: str
    holds: frozenset[str]
    write: Callable[[Result, Path], None]
    recognises: Callable[[Path], bool] | None = None
    read: Callable[[Path], tuple[Result, list[str]]] | None = None
    needs_metres: bool = True
    remarks: Callable[[Result], list[str]] = lambda _: []

    def losses(self, result: Result) -> list[str]:
        """Return one sentence for each part of the result that this format does not hold, and its remarks."""
        without = self.holds | (frozenset() if "probe" in self.holds else OF_PROBE)
        lost = [sentence for name, say in PARTS.items() if name not in without and (sentence := say(result))]
        return lost + self.remarks(result)


def _modes(result: Result) -> str:
    return f"Of {len(result.probe)} probe modes the strongest is written." if len(result.probe) > 1 else ""


def _slices(result: Result) -> str:
    return f"The product of {len(result.object)} slices is written." if len(result.object) > 1 else ""


def _object_modes(result: Result) -> str:
    return "" if result.object_modes is None else f"The mean of {len(result.object_modes)} object modes is written."


def _tilt(result: Result) -> str:
    return "The tilt of the slices is left out." if len(result.object) > 1 and any(result.tilt_rad) else ""


def _opr(result: Result) -> str:
    return "" if result.opr is None else f"{len(result.opr)} variable-probe (OPR) modes and their shares are left out."


def _intensities(result: Result) -> str:
    if result.weights is None or (result.weights[:, 0] == 1).all():
        return ""
    return "The beam's amplitude in each view is left out."


def _unknowns(result: Result) -> str:
    names = [*result.unknowns, *(f"{group}/{term}" for group, terms in result.parameters.items() for term in terms)]
    return f"Left out: {', '.join(sorted(names)[:8])}{', ...' if len(names) > 8 else ''}." if names else ""


#: Parts that a format may not hold, each with a function that returns a sentence about the loss, "" where the result
#: has no such part.
PARTS: dict[str, Callable[[Result], str]] = {
    "probe": lambda _: "The probe is left out.",
    "modes": _modes,
    "slices": _slices,
    "object modes": _object_modes,
    "tilt": _tilt,
    "positions": lambda _: "The positions are left out.",
    "opr": _opr,
    "intensities": _intensities,
    "background": lambda result: "" if result.background is None else "The background is left out.",
    "nominal": lambda result: "" if result.nominal_px is None else "The positions before refinement are left out.",
    "unknowns": _unknowns,
    "history": lambda result: "The history of the run is left out." if result.history else "",
    "recipe": lambda result: "The recipe is left out." if result.recipe else "",
}


ANGSTROM_M = 1e-10
#: Parts of the probe, of which nothing more is said where it is left out as a whole.
OF_PROBE = frozenset({"modes", "opr", "intensities"})


def pixel_size_of(result: Result) -> tuple[float, float]:
    """Return the object pixel (y, x) in metres; raise BadInput for a result in pixel units."""
    if result.pixel_size_m is None:
        raise BadInput(
            "The result is in pixel units, and this format has lengths: run again with data.object_pixel_m, or with "
            "the energy, data.distance_m and data.detector_pixel_m."
        )
    return result.pixel_size_m


def setting_of(result: Result, name: str) -> Any:
    """Return `energy_eV`, `radiation` or `distance_m`: as the result says, else as its recipe does, else None."""
    if result.attrs.get(name) is not None:
        return result.attrs[name]
    try:
        data = (yaml.safe_load(result.recipe) or {}).get("data") or {}
        return data.get(name)
    except (yaml.YAMLError, AttributeError):  # a recipe that is no mapping
        return None


def number_of(result: Result, name: str) -> float | None:
    """Return `energy_eV` or `distance_m`, None where neither the result nor its recipe says a number."""
    value = setting_of(result, name)
    try:
        return float(value) if value is not None else None
    except (TypeError, ValueError):
        return None


def unit_of(result: Result, unknown: float) -> tuple[float, list[str]]:
    """Return metres per unit of length in formats that have angstrom for electrons and metres for X-rays.

    Args:
        result: whose radiation counts.
        unknown: unit where it is not known, ANGSTROM_M or 1.

    Returns:
        The unit, and a sentence where it had to be chosen.
    """
    radiation = setting_of(result, "radiation")
    if radiation in ("photon", "electron"):
        return (ANGSTROM_M if radiation == "electron" else 1.0), []
    return unknown, [f"The radiation is not known: lengths are in {'metres' if unknown == 1 else 'angstrom'}."]


@contextmanager
def new_file(result: Result, path: Path) -> Iterator[h5py.File]:
    """Yield a new HDF5 file that takes the place of `path` when this ends."""
    needed = result.object.nbytes + result.probe.nbytes + result.positions_px.nbytes
    with replacing(path, needed) as temporary, new_hdf5(temporary) as file:
        yield file
