"""The multislice of `ptymesh simulate --kind crystal` beside abTEM's: one beam through the same atoms at rest.

    python benchmarks/peers/crystals.py --python ABTEM/bin/python --out F

Each crystal is periodic over the field. `difference` is the sum of |I - I'| over the sum of I, both normalised;
`dark_field` is that beyond the disc alone, `in_disc` the share within it, of ours and theirs.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import ptymesh as pm  # noqa: F401  (before torch, so that both use the same threads)

# isort: split
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import about, write

from ptymesh.geometry import electron_interaction, electron_wavelength_m
from ptymesh.physics.beam import probes
from ptymesh.physics.propagate import fft, frequencies, fresnel_kernel, ifft
from ptymesh.simulate.crystal import STRUCTURES, Atoms, Crystal, arrange_atoms
from ptymesh.simulate.multislice import BAND, project, transmit

ENERGY_EV, SEMIANGLE_RAD, C10_M, C12_M = 300e3, 20e-3, -10e-9, 3e-9
#: Pixels and cells along the field, and where the beam lies from its middle pixel (m).
SIDE, CELLS, BEAM_M = 192, 6, (0.37e-10, 0.81e-10)
#: Structure, cells along the beam, slices in each.
CASES = (("silicon", 4, 4), ("strontium_titanate", 5, 2), ("strontium_titanate", 30, 2), ("gold", 5, 2))


def periodic_atoms(crystal: Crystal, field_m: float) -> Atoms:
    """Atoms of a field whose opposite borders are the same, each once."""
    atoms = arrange_atoms(crystal, (field_m, field_m))
    places = atoms.places_m.copy()
    places[:, :2] = np.abs((places[:, :2] + 1e-13) % field_m - 1e-13)
    _, first = np.unique(places.round(13), axis=0, return_index=True)
    return Atoms(atoms.elements[first], places[first])


def compare(python: Path, folder: Path, case: tuple[str, int, int]) -> dict[str, Any]:
    """One crystal by both."""
    structure, cells, slices = case[0], case[1], case[1] * case[2]
    cell_m = STRUCTURES[structure].sides_m[0]
    field_m, thickness_m = CELLS * cell_m, cells * cell_m
    pixel, shape = (field_m / SIDE, field_m / SIDE), (SIDE, SIDE)
    atoms = periodic_atoms(Crystal(structure=structure, thickness_m=thickness_m, displacement_m=0), field_m)
    wavelength_m = electron_wavelength_m(ENERGY_EV)
    y, x = frequencies(shape, pixel)
    band = torch.hypot(y, x) < BAND * 0.5 / pixel[0]
    phases = project(atoms, shape, pixel[0], (slices, thickness_m / slices)) * electron_interaction(wavelength_m)
    waves = torch.stack([ifft(fft(torch.polar(torch.ones_like(one), one)) * band) for one in phases])
    beam = probes.aberrated(shape, pixel, wavelength_m, SEMIANGLE_RAD, {"C10": C10_M, "C12": [C12_M, 0.0]})
    ramp = -2 * math.pi * (y * BEAM_M[0] + x * BEAM_M[1])
    beam = ifft(fft(beam) * torch.polar(torch.ones_like(ramp), ramp))
    kernel = fresnel_kernel(shape, pixel, wavelength_m, thickness_m / slices) * band
    ours = fft(transmit(beam[None], waves, kernel, np.zeros((1, 2), int)))[0].abs().square().numpy()
    given = {"places_m": atoms.places_m, "elements": atoms.elements, "field_m": field_m, "thickness_m": thickness_m}
    given |= {"slices": slices, "side": SIDE, "energy_eV": ENERGY_EV, "semiangle_rad": SEMIANGLE_RAD}
    np.savez(folder / "in.npz", **given, C10=C10_M, C12=C12_M, beam_m=BEAM_M)
    command = [str(python), str(Path(__file__).with_name("abtem_run.py")), "in.npz", "out.npy"]
    said = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout
    theirs = np.load(folder / "out.npy")
    ours, theirs = ours / ours.sum(), theirs / theirs.sum()
    dark = torch.hypot(y, x).numpy() * wavelength_m > SEMIANGLE_RAD
    return {
        "structure": structure,
        "thickness_m": thickness_m,
        "difference": float(np.abs(ours - theirs).sum()),
        "dark_field": float(np.abs(ours - theirs)[dark].sum() / ours[dark].sum()),
        "in_disc": [float(one[~dark].sum()) for one in (ours, theirs)],
        "abtem": said.split()[-1],
    }


def main() -> None:
    """One line a crystal."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, help="of an environment that has abTEM")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            found.append(compare(given.python.absolute(), Path(folder), case))
            print(found[-1], flush=True)
    write(given.out, {**about(), "crystals": found})


if __name__ == "__main__":
    main()
