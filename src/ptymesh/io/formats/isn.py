"""APS ISN (19-ID): a master whose group `PTYCHO` links to the files of the detector, in the order of their names.

`configs` holds numbers of the beam: `det_dist_mm`, which is in metres in spite of its name, `pix_size_y` and
`pix_size_x` in metres, `photon_energy_eV`. Positions are in EPICS' file of the scan (.mda).

Source: what Ptychodus reads of such files.
"""

from __future__ import annotations

from pathlib import Path

import h5py

from ptymesh.errors import BadInput
from ptymesh.io.formats.contents import is_hdf5_with
from ptymesh.io.hdf5.reading import DAMAGE, Hdf5File, item_of, open_hdf5
from ptymesh.io.options import DataOptions
from ptymesh.io.quantities import holds_numbers, read_first_positive
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.staging import join_sliceable, open_alike_sources

NAME = "APS ISN (PTYCHO, configs)"
LINKS, CONFIGS, FRAMES = "/PTYCHO", "/configs", "entry/data/data"
#: Files of a scan that a master may link to.
MOST_FILES = 10_000


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for HDF5 with links to patterns and numbers of the beam where ISN keeps them."""
    return is_hdf5_with(path, data, lambda file: holds_numbers(file, f"{CONFIGS}/photon_energy_eV") and _links(file))


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a master and the files that it links to.

    Raises:
        BadInput: a file is missing, or holds frames of another shape.
    """
    with open_hdf5(path, follow=data.follow) as file:
        names = [_frames(file, path, link) for link in _links(file)]
        sources = open_alike_sources(path, names, data.follow, ": they are of different acquisitions")
        energy, distance, y, x = (
            read_first_positive(file, f"{CONFIGS}/{name}")
            for name in ("photon_energy_eV", "det_dist_mm", "pix_size_y", "pix_size_x")
        )
    return RawScan(
        patterns=join_sliceable(sources),
        optics=Optics(
            radiation=data.radiation or "photon",
            energy_eV=None if data.energy_eV or data.wavelength_m else energy,
            distance_m=distance,
            detector_pixel_m=(y, x) if y and x else None,
        ),
        name=path.stem,
        notes=("Positions are in the scan's .mda: name it in data.keys, such as {positions: scan.mda}.",),
    )


def _links(file: Hdf5File) -> list[str]:
    """Return the names of what the master links to, in order."""
    group = item_of(file, LINKS)
    try:
        return sorted(group)[:MOST_FILES] if isinstance(group, h5py.Group) else []
    except DAMAGE:
        return []


def _frames(file: Hdf5File, path: Path, link: str) -> str:
    """Return the name of the frames behind a link to them, or to the root of the file that has them."""
    for name in (f"{LINKS}/{link}", f"{LINKS}/{link}/{FRAMES}"):
        if isinstance(item_of(file, name), h5py.Dataset):
            return name
    raise BadInput(f"{LINKS}/{link} in {path} leads to no frames; copy the detector's files beside it.")
