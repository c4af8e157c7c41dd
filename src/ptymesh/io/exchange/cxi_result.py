"""Results as CXI 1.6: the object as an image in real space, the probe as the source's illumination.

L, M    object slices, probe modes
N       views

    /entry_1/image_1/{data (L, H, W) or (H, W) complex, data_space "real", image_size, dimensionality, is_fft_shifted}
    /entry_1/image_1/{x_pixel_size, y_pixel_size}           of our own, as others add them
    /entry_1/instrument_1/source_1/{illumination (M, h, w), energy (J), wavelength}
    /entry_1/sample_1/geometry_1/translation (N, 3)         x y z, metres
    /entry_1/data_1/data                                    link to the image, an NXdata group

The translation is of the sample's origin, its object's middle ((H - 1)/2, (W - 1)/2), and has the sign that CXI's
default basis vectors give it: the optical axis, pixel h//2 of the window, lies translation / pixel from the middle.
image_size is width, height and depth. Source: Maia 2012 and the description of CXI 1.6, classes Image and Geometry.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

import ptymesh
from ptymesh import constants
from ptymesh.errors import BadInput
from ptymesh.geometry import electron_wavelength_m, photon_wavelength_m
from ptymesh.io.exchange.building import build_result, file_has, number_in
from ptymesh.io.exchange.result_format import ResultFormat, new_file, number_of, pixel_size_of, setting_of
from ptymesh.io.hdf5.reading import attribute, has, item_of, open_hdf5, read_dataset
from ptymesh.io.results import Result

IMAGE = "/entry_1/image_1"
ILLUMINATION = "/entry_1/instrument_1/source_1/illumination"
TRANSLATION = "/entry_1/sample_1/geometry_1/translation"
OWN = "/entry_1/ptymesh"


def write(result: Result, path: Path) -> None:
    """Write object, probe and positions.

    Raises:
        BadInput: the result is in pixel units, or the path cannot be a file.
    """
    pixel = np.array(pixel_size_of(result))
    extent, window = (np.array(array.shape[-2:]) for array in (result.object, result.probe))
    offset = (result.positions_px + window // 2 - (extent - 1) / 2) * pixel
    translation = np.zeros((len(offset), 3))
    translation[:, :2] = offset[:, ::-1]
    slices, spacing = len(result.object), result.slice_spacing_m
    with new_file(result, path) as file:
        file["cxi_version"] = 160
        file.attrs["default"] = "entry_1"
        entry = file.create_group("entry_1")
        entry.attrs["NX_class"], entry.attrs["default"] = "NXentry", "data_1"
        entry["program_name"] = f"ptymesh {ptymesh.__version__}"
        image = file.create_group(IMAGE)
        image["data"] = result.object[0] if slices == 1 else result.object
        image["data_space"], image["is_fft_shifted"], image["dimensionality"] = "real", 0, 2 if slices == 1 else 3
        image["image_size"] = np.array([extent[1] * pixel[1], extent[0] * pixel[0], slices * spacing])
        image["y_pixel_size"], image["x_pixel_size"] = pixel
        image["title"] = "object"
        file[ILLUMINATION] = result.probe
        _write_source(file, result)
        file[TRANSLATION] = translation
        data = entry.create_group("data_1")
        data.attrs["NX_class"], data.attrs["signal"], data.attrs["interpretation"] = "NXdata", "data", "image"
        data["data"], data["translation"] = h5py.SoftLink(f"{IMAGE}/data"), h5py.SoftLink(TRANSLATION)
        ptymesh_group = file.create_group(OWN)
        ptymesh_group.attrs["origin_px"], ptymesh_group.attrs["slice_spacing_m"] = np.array(result.origin_px), spacing


def _write_source(file: h5py.File, result: Result) -> None:
    """Write energy and wavelength, where they are known."""
    energy = number_of(result, "energy_eV")
    if energy is None:
        return
    source = file["/entry_1/instrument_1/source_1"]
    source["energy"] = energy * constants.e
    source["energy"].attrs["units"] = "J"
    is_electron = setting_of(result, "radiation") == "electron"
    source["wavelength"] = electron_wavelength_m(energy) if is_electron else photon_wavelength_m(energy)


def recognises(path: Path) -> bool:
    """Return True for CXI with an image, an illumination and translations, and without patterns."""
    needed = "cxi_version", f"{IMAGE}/data", ILLUMINATION, TRANSLATION
    return file_has(path, *needed) and not file_has(path, "/entry_1/instrument_1/detector_1/data")


def read(path: Path) -> tuple[Result, list[str]]:
    """Return the result in a CXI file.

    Raises:
        BadInput: its arrays do not fit together, or it lacks the size of the image.
    """
    notes = []
    with open_hdf5(path) as file:
        obj, probe = (read_dataset(file, name, None, "buifc") for name in (f"{IMAGE}/data", ILLUMINATION))
        translation = read_dataset(file, TRANSLATION, None, "iuf").astype(np.float64)
        if obj.ndim not in (2, 3) or probe.ndim not in (2, 3) or translation.ndim != 2 or translation.shape[1] < 2:
            raise BadInput(
                f"{path} has an image {obj.shape}, an illumination {probe.shape} and translations {translation.shape}, "
                "which are not those of a result."
            )
        extent, window = np.array(obj.shape[-2:]), np.array(probe.shape[-2:])
        if has(file, f"{IMAGE}/x_pixel_size"):
            pixel = np.array([number_in(file, f"{IMAGE}/{axis}_pixel_size") for axis in "yx"])
        else:
            size = read_dataset(file, f"{IMAGE}/image_size", 3, "iuf").reshape(-1)
            if len(size) < 2:
                raise BadInput(f"image_size in {path} is {size}; it should be width and height.")
            pixel = size[1::-1] / extent
        ptymesh_group = item_of(file, OWN)
        origin = None if ptymesh_group is None else attribute(ptymesh_group, "origin_px")
        spacing = 0.0 if ptymesh_group is None else attribute(ptymesh_group, "slice_spacing_m")
    if not (pixel > 0).all():
        raise BadInput(f"The pixels of the image in {path} are {pixel} m; they should be positive.")
    if obj.ndim == 3 and len(obj) > 1 and not spacing:
        notes.append("CXI has no distance between slices: it is taken as 0.")
    positions = translation[:, 1::-1] / pixel - window // 2 + (extent - 1) / 2
    result = build_result(
        path,
        FORMAT.program,
        object=obj,
        probe=probe,
        positions_px=positions,
        pixel_size_m=(float(pixel[0]), float(pixel[1])),
        origin_px=(extent - 1) / 2 - window // 2 if origin is None else np.asarray(origin, dtype=np.float64).reshape(2),
        slice_spacing_m=float(spacing or 0.0),
    )
    return result, notes


FORMAT = ResultFormat(
    name="cxi",
    endings=(".cxi",),
    program="programs that read CXI",
    holds=frozenset({"probe", "modes", "slices", "positions"}),
    write=write,
    recognises=recognises,
    read=read,
)
