"""abTEM: a beam through atoms at rest, in abTEM's own environment: python abtem_run.py IN.npz OUT.npy.

IN holds what `crystals.py` has sent its own beam through. Whoever compares turns y and x into abTEM's x and y.
"""

import sys

import abtem
import ase
import numpy as np

given = np.load(sys.argv[1])
side, field, thickness = int(given["side"]), float(given["field_m"]) * 1e10, float(given["thickness_m"]) * 1e10
slices = int(given["slices"])
places = given["places_m"] * 1e10
# each atom in the middle of its slice, so that rounding moves none to another
depth = (np.floor(places[:, 2] * slices / thickness) + 0.5) * thickness / slices
cell = [field, field, thickness]
atoms = ase.Atoms(list(given["elements"]), positions=np.column_stack([places[:, :2], depth]), cell=cell, pbc=True)
potential = abtem.Potential(
    atoms, gpts=side, slice_thickness=thickness / slices, parametrization="lobato", projection="infinite"
)
probe = abtem.Probe(
    energy=float(given["energy_eV"]),
    semiangle_cutoff=float(given["semiangle_rad"]) * 1e3,
    gpts=side,
    extent=field,
    soft=False,
    C10=float(given["C10"]) * 1e10,
    C12=float(given["C12"]) * 1e10,
    phi12=np.pi / 2,  # along our x, which is the second axis
)
place = (side // 2) * field / side + given["beam_m"] * 1e10
exits = probe.build(scan=abtem.CustomScan([place]), lazy=False).multislice(potential)
np.save(sys.argv[2], np.abs(np.fft.fft2(np.asarray(exits.array).reshape(side, side))) ** 2)
print(abtem.__version__)
