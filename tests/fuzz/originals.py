"""The sound inputs that tries begin from: a scan of nine views in every format, a result, a checkpoint.

They are made anew in each campaign, by code, and are the same every time but for the folder's name, which result and
checkpoint hold. Nothing is drawn at random but from the seed that is written here.
"""

from __future__ import annotations

import bz2
import os
import signal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tifffile
import yaml

SIDE = 3
VIEWS, WINDOW = SIDE * SIDE, (16, 16)
WAVELENGTH_M, DISTANCE_M, PIXEL_M = 1.24e-10, 2.0, 3.1e-4
STEP_M = 150e-9

#: Data sets by the name of their format, with what the recipe's `data` and `positions` must say of them.
DATA: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "cxi": ("own.cxi", {}, {}),
    "cxi-others": ("others.cxi", {}, {}),
    "cxi-4d": ("raster.cxi", {}, {"raster": {"step_px": 3.0}}),
    "hdf5": (
        "scan.h5",
        {
            "radiation": "photon",
            "keys": {
                "patterns": "frames",
                "positions_y": "scan/y",
                "positions_x": "scan/x",
                "mask": "good",
                "energy_eV": "optics/energy",
                "distance_m": "optics/distance",
                "detector_pixel_m": "optics/pixel",
                "probe": "probe",
                "dark": "dark",
                "intensity": "current",
            },
        },
        {"unit": "um"},
    ),
    "npz": (
        "scan.npz",
        {"keys": {"patterns": "frames", "positions": "xy", "position_order": "xy", "mask": "good", "probe": "probe"}},
        {"unit": "px"},
    ),
    "tike": ("tike.npz", {}, {}),
    "tike-deflated": ("tike-deflated.npz", {}, {}),
    "tike-bz2": ("tike.npz.bz2", {}, {}),
}

#: Arrays that options of `data` name.
ARRAYS = {
    "mask": "mask.npy",
    "dark": "dark.tif",
    "flat": "arrays.npz:flat",
    "gain": "gain.npy",
    "background": "arrays.h5:/background",
    "intensity": "intensity.npy",
}

STAGES: tuple[dict[str, Any], ...] = (
    {"engine": "rpie", "epochs": 1, "batch": 4},
    {"engine": "adam", "epochs": 1, "batch": 4, "positions": True},
    {"engine": "lsqml", "epochs": 1, "batch": 5, "positions": {"start": 1, "limit_px": 0.5}},
    {"engine": "dm", "epochs": 1},
    {"engine": "bh", "epochs": 1},
    {"engine": "lbfgs", "epochs": 1, "regularisers": [{"kind": "tv", "weight": 1e-3}]},
)


def recipe(format_: str = "cxi", stage: int = 0, folder: Path = Path()) -> dict[str, Any]:
    """A recipe for the data set of this format, as plain dicts."""
    name, data, positions = DATA[format_]
    return {
        "data": {"path": str(folder / name), **data},
        "positions": dict(positions),
        "stages": [dict(STAGES[stage])],
        "output": {"figures": False},
    }


def rich_recipe(stage: int = 0) -> dict[str, Any]:
    """A recipe that says more than it must, for there is more to get wrong."""
    made = recipe("cxi", stage)
    made["data"] |= {"views": {"start": 0, "step": 1}, "crop": 14, "pad": [16, 16], "invalid": "missing", "bin": 1}
    made["positions"] |= {"subpixel": "fourier", "rotation_deg": 1.0, "affine": [[1.0, 0.0], [0.01, 1.0]]}
    slices = {} if made["stages"][0]["engine"] == "dm" else {"slices": 2, "slice_spacing_m": 1e-6}
    return {
        **made,
        "seed": 3,
        "precision": "single",
        "hold_out": 0.2,
        "layout": "auto",
        "memory_budget": "500MB",
        "object": slices,
        "probe": {"modes": 2, "mode_powers": [0.9, 0.1], "start": {"kind": "data", "defocus_m": 1e-6}},
        "output": {"figures": False, "checkpoint_every": 1, "checkpoint_minutes": 1.0},
    }


def make(folder: Path) -> None:
    """All data sets, arrays and recipes. `recover` makes result and checkpoint of them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(11)
    y, x = np.mgrid[:16, :16] - 8
    blob = np.exp(-(y**2 + x**2) / 30.0)
    patterns = rng.poisson(200 * blob * rng.uniform(0.3, 1.7, (VIEWS, *WINDOW))).astype(np.uint16)
    probe = (blob * np.exp(0.02j * (y**2 + 1.5 * x**2)))[None].astype(np.complex64)
    grid = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), -1).reshape(-1, 2)
    positions_px = 3.0 * grid + rng.uniform(-0.4, 0.4, grid.shape)
    mask = np.ones(WINDOW, dtype=bool)
    mask[3, 4] = False
    _own(folder / "own.cxi", patterns, positions_px * 50e-9, mask, probe)
    _others(folder / "others.cxi", patterns, positions_px * 50e-9, mask, probe)
    _raster(folder / "raster.cxi", patterns)
    _hdf5(folder / "scan.h5", patterns, positions_px * 50e-3, mask, probe)
    np.savez(folder / "scan.npz", frames=patterns, xy=positions_px[:, ::-1], good=mask, probe=probe)
    tike = {
        "data": np.fft.ifftshift(patterns, axes=(-2, -1))[None].astype(np.float32),
        "scan": positions_px[None].astype(np.float32),
        "probe": probe[None, None, None],
    }
    np.savez(folder / "tike.npz", **tike)
    np.savez_compressed(folder / "tike-deflated.npz", **tike)
    (folder / "tike.npz.bz2").write_bytes(bz2.compress((folder / "tike.npz").read_bytes()))
    _arrays(folder, mask, rng)
    for name, content in {"recipe.yaml": recipe(), "rich.yaml": rich_recipe()}.items():
        (folder / name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def _own(path: Path, patterns: np.ndarray, positions_m: np.ndarray, mask: np.ndarray, probe: np.ndarray) -> None:
    from ptymesh.geometry import far_field
    from ptymesh.io.formats.cxi import write_cxi

    write_cxi(
        path,
        patterns=[patterns],
        count=VIEWS,
        dtype=patterns.dtype,
        geometry=far_field(WINDOW, WAVELENGTH_M, DISTANCE_M, (PIXEL_M, PIXEL_M)),
        positions_m=positions_m,
        mask=mask,
        probe=probe,
        background=np.full(WINDOW, 0.1),
        intensity=np.linspace(0.9, 1.1, VIEWS),
        attributes={"name": "a scan", "notes": ["one", "two"], "negative_is_missing": True},
    )


def _others(path: Path, patterns: np.ndarray, positions_m: np.ndarray, mask: np.ndarray, probe: np.ndarray) -> None:
    """As beamlines write it: energy in keV, basis vectors, a mask per view, frames of the dark."""
    with h5py.File(path, "w") as file:
        file["cxi_version"] = 150
        detector, source = (file.create_group(f"entry_1/instrument_1/{name}") for name in ("detector_1", "source_1"))
        file["entry_1/instrument_1/beam_1/incident_beam_energy"] = 10.0
        file["entry_1/instrument_1/beam_1/incident_beam_energy"].attrs["units"] = "keV"
        detector.create_dataset(
            "data", data=patterns, chunks=(4, 8, 16), compression="gzip", shuffle=True, fletcher32=True
        )
        detector["mask"] = np.broadcast_to(np.where(mask, 0, 2).astype(np.uint32), patterns.shape)
        detector["data_dark"] = np.zeros((2, *WINDOW), dtype=np.float32)
        detector["distance"] = 2000.0
        detector["distance"].attrs["units"] = np.bytes_("mm")
        detector["basis_vectors"] = np.array([[0.0, -PIXEL_M], [-PIXEL_M, 0.0], [0.0, 0.0]])
        detector["corner_position"] = np.array([8.5 * PIXEL_M, 8.5 * PIXEL_M, DISTANCE_M])
        source["illumination"] = probe
        file["entry_1/sample_1/geometry_1/translation"] = np.concatenate(
            [positions_m[:, ::-1], np.zeros((VIEWS, 1))], axis=1
        )
        file["entry_1/data_1/data"] = h5py.SoftLink("/entry_1/instrument_1/detector_1/data")


def _raster(path: Path, patterns: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file["entry_1/data_1/data"] = patterns.reshape(SIDE, SIDE, *WINDOW)
        file["entry_1/instrument_1/source_1/energy"] = 1.6e-15
        file["entry_1/instrument_1/detector_1/distance"] = DISTANCE_M
        for axis in "yx":
            file[f"entry_1/instrument_1/detector_1/{axis}_pixel_size"] = PIXEL_M


def _hdf5(path: Path, patterns: np.ndarray, positions_um: np.ndarray, mask: np.ndarray, probe: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("frames", data=patterns.astype(np.float32), chunks=(1, *WINDOW), compression="gzip")
        file["scan/y"], file["scan/x"] = positions_um.T
        file["good"], file["probe"] = mask, probe
        file["dark"], file["current"] = np.zeros(WINDOW), np.ones(VIEWS)
        file["optics/energy"], file["optics/distance"], file["optics/pixel"] = 1e4, DISTANCE_M, [PIXEL_M, PIXEL_M]


def _arrays(folder: Path, mask: np.ndarray, rng: np.random.Generator) -> None:
    np.save(folder / "mask.npy", mask)
    np.save(folder / "gain.npy", rng.uniform(0.9, 1.1, WINDOW))
    np.save(folder / "intensity.npy", np.linspace(0.9, 1.1, VIEWS))
    np.save(folder / "object.npy", np.exp(1j * rng.uniform(0, 0.1, (30, 30))))
    np.save(folder / "probe.npy", rng.uniform(0.1, 1, (2, *WINDOW)).astype(np.complex64))
    tifffile.imwrite(folder / "dark.tif", np.full(WINDOW, 0.2, dtype=np.float32))
    np.savez(folder / "arrays.npz", flat=rng.uniform(0.9, 1.1, WINDOW), other=np.ones(3))
    with h5py.File(folder / "arrays.h5", "w") as file:
        file["background"] = np.full(WINDOW, 0.1)


def recover(folder: Path) -> None:
    """The result of a run, and another, stopped in its third epoch, in `checkpoint`, both of own.cxi."""
    from ptymesh.recipe.schema import Recipe
    from ptymesh.run.session import run_recipe
    from ptymesh.run_folder.callbacks import FreshStart
    from ptymesh.run_folder.reports import Callback, EpochReport

    class Stop(Callback):
        def epoch(self, report: EpochReport) -> None:
            if report.done_epochs == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    raw = recipe("cxi", 2, folder)
    raw["probe"], raw["stages"][0]["epochs"] = {"modes": 2, "opr_modes": 1}, 2
    run_recipe(Recipe.parse(raw).with_output(folder / "done"), device="cpu", callbacks=[FreshStart()])
    (folder / "done" / "result.h5").rename(folder / "result.h5")
    raw["seed"] = 5
    raw["stages"][0]["epochs"], raw["output"]["checkpoint_every"] = 3, 1
    run_recipe(Recipe.parse(raw).with_output(folder / "other"), device="cpu")
    (folder / "other" / "result.h5").rename(folder / "other.h5")
    from ptymesh.errors import Interrupted

    try:
        run_recipe(Recipe.parse(raw).with_output(folder / "stopped"), device="cpu", callbacks=[Stop()])
    except Interrupted:
        return
    raise AssertionError("the run was to be stopped")
