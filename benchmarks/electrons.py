"""Two crystals turned against each other, from a scan that is told wrongly: how much of it is found.

    python benchmarks/electrons.py [--seeds 1 2 3] [--doses 1e6 5e4] [--side 32] [--only refined] --out F

Silicon of 11.7 nm along [110] at 300 kV by the multislice of `ptymesh simulate --kind crystal`, each seed at angles of
its own: 8 frozen configurations, pixels that integrate, a source of 0.2 Angstrom, scan noise. Reconstructions are told
the thickness and six slices; the scan's rotation is wrong by 1 degree, the defocus by 2 nm, astigmatism is not told. 25
epochs each. Per recipe, dose (e/A^2) and seed:

sum, single         correlation with the truth of the sum of slices and of single ones on average
rms                 of each slice over that of the truth
interface_nm        10 to 90 % width of the step from one lattice to the other, an error function through all slices
rotation_deg        left of the error of the scan
C10_nm, C12_nm      error of the beam's where it enters, C12 as the length of a vector
positions_A         rms after the common translation
residual            frozen, beside that of the truth in the same slices with the true beam, pixels and source
cpu_seconds         processor time of the 25 epochs, on one thread
result_cpu_seconds  of the result: final residual and verdict

The truth is the potential of each slab averaged over displacements, low-passed to the resolution of the reconstruction
(1/2-bit of the Fourier ring correlation), without mean and slope, where beams have been.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import ptymesh as pm  # before torch, so that both use the same threads

# isort: split
import torch
from record import about, write
from scipy import ndimage
from scipy.optimize import curve_fit
from scipy.special import erf

from ptymesh.calibrate.recipe import (
    THICK_OPTICS,
    begin_coarse,
    move_positions_late,
    parts_of_slice,
    smooth_thin_slices,
    turn_in_slice,
)
from ptymesh.compare import compare_results
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.models import OPTICS, named
from ptymesh.models.aberrations import Aberrations
from ptymesh.physics.beam import probes
from ptymesh.physics.model import Model, SliceStack
from ptymesh.physics.operators import Views, ViewValues
from ptymesh.recipe.depth import depth_shares, potential_by_shares
from ptymesh.recipe.schema import default_stages, engine_of
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions
from ptymesh.run.simulate_file import truth_result
from ptymesh.simulate import Truth, checked, patterns, truth

SLICES, THICKNESS_M, SEMIANGLE_RAD, SOURCE_M = 6, 11.7e-9, 20e-3, 2e-11
C10_M, C12_M = -15e-9, 1.5e-9
#: What is told wrongly.
ROTATION_DEG, DEFOCUS_M = 1.0, 2e-9
LENS = {"kind": "electron", "semiangle_rad": SEMIANGLE_RAD, "aberrations_m": {"C10": C10_M + DEFOCUS_M}}
PIXELS = {"detector_transfer": {"pixel_side": 1}}


def recipes() -> dict[str, dict[str, Any]]:
    """Return options of a reconstruction, by name: none, modes for a source of some size, a potential, and its pixels.

    All have the default stages, which for a potential let the rotation follow the patterns; `potential` is what
    `ptymesh calibrate --set object.slices=6` writes: thinner slices, a coarse beginning, pixels that integrate, and
    single positions that move in the end.
    """
    return {
        "default": {},
        "modes": {"modes": 3},
        "potential": {"object": {"kind": "potential"}, "modes": 3, "calibrated": True, "optics": THICK_OPTICS},
        "refined": {"object": {"kind": "potential"}, "modes": 3, "optics": PIXELS},
    }


def crystal(seed: int, side: int) -> Truth:
    """Return the truth of a scan of side x side views, with true rotation and lens; no noise."""
    rng = np.random.default_rng(seed)
    return truth(
        checked(
            kind="crystal",
            scan="raster",
            views=side * side,
            window=64,
            slices=SLICES,
            noise=False,
            position_error_px=0.15,
            seed=seed,
            crystal={
                "structure": "silicon",
                "zone": (1, 1, 0),
                "thickness_m": THICKNESS_M,
                "rotation_deg": float(rng.uniform(0, 90)),
                "twist_deg": float(rng.uniform(6, 15)),
                "semiangle_rad": SEMIANGLE_RAD,
                "aberrations_m": {"C10": C10_M, "C12": (C12_M, float(rng.uniform(0, math.pi)))},
                "source_m": SOURCE_M,
                "extent": 2,
            },
        )
    )


def told(made: Truth, expected: np.ndarray, dose: float) -> Measurement:
    """Return the scan as it is told, with counts of a dose in e/A^2."""
    crystal = made.options.crystal
    assert crystal is not None
    scale = dose * (crystal.step_m * 1e10) ** 2 / float((np.abs(made.probe) ** 2).sum())
    counts = np.random.default_rng([made.options.seed, int(dose)]).poisson(expected * scale).astype(np.uint16)
    given = made.measurement(counts)
    angle = math.radians(ROTATION_DEG)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    pixel, wavelength = made.geometry.object_pixel_m, made.geometry.wavelength_m
    assert pixel is not None and wavelength is not None
    lens = {"C10": C10_M + DEFOCUS_M}
    start = probes.aberrated(made.geometry.shape, pixel, wavelength, SEMIANGLE_RAD, lens)[None].numpy()
    return replace(given, patterns=ArraySource(counts), positions=given.positions @ turn.T, probe=start)


def frozen_residual(made: Truth, scan: Measurement) -> float:
    """Return the residual of the truth in its slabs, with true beam, positions, pixels and source."""
    pixel = made.geometry.object_pixel_m
    assert pixel is not None
    pieces = named(
        {**PIXELS, "source_size": {"points": 5, "start": {"source_width": SOURCE_M / pixel[0]}}}, OPTICS, "optics"
    )
    stack = SliceStack(SLICES, made.slice_spacing_m, (0.0, 0.0))
    model = Model.for_geometry(made.geometry, slices=stack, optics=tuple(pieces.values()), dtype=torch.complex128)
    estimate, counts = made.estimate(), scan.patterns.read(np.arange(scan.views)).astype(float)
    width = torch.tensor(SOURCE_M / pixel[0], dtype=torch.float64)
    power = counts.sum() / float((np.abs(made.probe) ** 2).sum()) / scan.views
    left = 0.0
    for start in range(0, scan.views, 16):
        views = torch.arange(start, min(start + 16, scan.views))
        fractions = estimate.fractions(views)
        values = ViewValues({"source_width": width}, Views(estimate.positions[views], fractions, fractions, views))
        found = model.intensity(
            estimate.object, estimate.probe, estimate.anchors[views], fractions, values=values
        ).numpy()
        left += float(((np.sqrt(found * power) - np.sqrt(counts[start : start + 16])) ** 2).sum())
    return left / float(counts.sum())


def flattened(slices: np.ndarray) -> np.ndarray:
    """Return slices (L, H, W) without mean and slope."""
    y, x = np.indices(slices.shape[1:])
    columns = np.stack([np.ones(y.size), y.ravel(), x.ravel()], axis=1)
    flat = slices.reshape(len(slices), -1).T
    return np.asarray((flat - columns @ np.linalg.lstsq(columns, flat, rcond=None)[0]).T.reshape(slices.shape))


def in_slabs(result: pm.Result) -> pm.Result:
    """Return a result whose slices are as thick as those of the truth; thinner ones add up."""
    if len(result.object) == SLICES:
        return result
    phase = potential_by_shares(np.asarray(result.phase, float), depth_shares(len(result.object), SLICES))
    return replace(result, object=np.exp(1j * phase), potential=phase, slice_spacing_m=THICKNESS_M / SLICES)


def judged(made: Truth, result: pm.Result) -> dict[str, Any]:
    """Return what the object of a result is worth."""
    result = in_slabs(result)
    compared = compare_results(result, truth_result(made))
    pixel = made.geometry.object_pixel_m
    assert pixel is not None
    finest = compared.rings.resolution or 2 * pixel[0]
    true = made.potential
    assert true is not None
    k = np.hypot(np.fft.fftfreq(true.shape[1], pixel[0])[:, None], np.fft.fftfreq(true.shape[2], pixel[1]))
    true = np.fft.ifft2(np.fft.fft2(true) * (k < 1 / finest)).real
    shift = compared.alignment.shift
    found = np.stack([ndimage.shift(one, shift, order=3) for one in np.asarray(result.phase, float)])
    # where beams have been centred
    low, high = (np.array(made.geometry.shape) // 2 + f(made.positions, axis=0) for f in (np.min, np.max))
    inner = tuple(slice(math.ceil(a) + 2, math.floor(b) - 2) for a, b in zip(low, high, strict=True))
    found, true = flattened(found[(slice(None), *inner)]), flattened(true[(slice(None), *inner)])

    def correlation(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])

    half = SLICES // 2
    lattices = np.stack([true[:half].mean(0).ravel(), true[half:].mean(0).ravel()], axis=1)
    parts = np.linalg.lstsq(lattices, found.reshape(SLICES, -1).T, rcond=None)[0]
    share, depth = parts[1] / parts.sum(axis=0), (np.arange(SLICES) + 0.5) * THICKNESS_M * 1e9 / SLICES

    def step(z: np.ndarray, middle: float, width: float) -> np.ndarray:
        return np.asarray(0.5 * (1 + erf((z - middle) / (math.sqrt(2) * width))))

    (middle, width), _ = curve_fit(step, depth, share, p0=(depth.mean(), 1.0), maxfev=10000)
    return {
        "sum": correlation(found.sum(0), true.sum(0)),
        "single": float(np.mean([correlation(*pair) for pair in zip(found, true, strict=True)])),
        "slices": [correlation(*pair) for pair in zip(found, true, strict=True)],
        "rms": [float(a.std() / b.std()) for a, b in zip(found, true, strict=True)],
        "interface_nm": float(2 * 1.2816 * abs(width)),
        "interface_at_nm": float(middle),
        "share_of_second": share.tolist(),
        "resolution_nm": float(finest * 1e9),
    }


def geometry_errors(made: Truth, result: pm.Result, scan: Measurement) -> dict[str, float]:
    """Return what is left of the errors of scan and lens."""
    pixel = made.geometry.object_pixel_m
    assert pixel is not None and scan.probe is not None and made.options.crystal is not None
    true = made.positions - made.positions.mean(axis=0)
    found = result.positions_px - result.positions_px.mean(axis=0)
    matrix = np.linalg.lstsq(true, found, rcond=None)[0].T
    lens = Aberrations(terms=["C10", "C12", "C21", "C30"])
    start, now = (torch.from_numpy(np.asarray(one, complex)) for one in (scan.probe, result.probe))
    change = lens.read(made.geometry, start[:1], now, torch.zeros(len(lens.units()), dtype=torch.float64))
    there = dict(zip(lens.units(), change.tolist(), strict=True))
    size, angle = made.options.crystal.aberrations_m["C12"]  # type: ignore[misc]
    astigmatism = np.array([there["C12a"], there["C12b"]]) - size * np.array([math.cos(2 * angle), math.sin(2 * angle)])
    entrance = C10_M + DEFOCUS_M + there["C10"] - THICKNESS_M / len(result.object) / 2
    return {
        "rotation_deg": math.degrees(math.atan2(matrix[1, 0] - matrix[0, 1], matrix[0, 0] + matrix[1, 1])),
        "C10_nm": (entrance - C10_M) * 1e9,
        "C12_nm": float(np.hypot(*astigmatism)) * 1e9,
        "positions_A": float(np.sqrt(((found - true) ** 2).sum(axis=1).mean())) * pixel[0] * 1e10,
    }


def run(made: Truth, scan: Measurement, options: dict[str, Any], seed: int) -> tuple[pm.Result, dict[str, float]]:
    """Return the result of a recipe, and its seconds of processor time: of the epochs, and of the result."""
    wavelength = made.geometry.wavelength_m
    assert wavelength is not None and made.slice_spacing_m is not None
    thin = options.get("calibrated", False)
    parts = parts_of_slice(turn_in_slice(made.slice_spacing_m, wavelength, SEMIANGLE_RAD)) if thin else 1
    obj = {"slices": SLICES * parts, "slice_spacing_m": made.slice_spacing_m / parts, **options.get("object", {})}
    probe = {"modes": options.get("modes", 1), "start": LENS}
    recon = pm.Reconstruction(scan, object=obj, probe=probe, optics=options.get("optics"), seed=seed)
    stages = default_stages(ObjectOptions.parse(obj, "object"), ProbeOptions.parse(probe, "probe"))
    if thin:
        stages = move_positions_late(begin_coarse(smooth_thin_slices(stages, parts)))
    began = time.process_time()
    recon.stages.extend(engine_of(f"stages.{index}", stage) for index, stage in enumerate(stages))
    for _ in recon.loop().epochs():
        pass
    ended = time.process_time()
    result = recon.result()
    return result, {"cpu_seconds": ended - began, "result_cpu_seconds": time.process_time() - ended}


def patterns_without_noise(made: Truth, work: Path | None, name: str) -> np.ndarray:
    """Return the patterns (N, h, w) of a crystal without noise; with a folder, they are kept there and taken from it.

    Args:
        made: the crystal and its scan.
        work: folder; None to keep nothing.
        name: of the file.
    """
    if work and (work / name).exists():
        return np.load(work / name)
    found = np.concatenate(list(patterns(made)))
    if work:
        np.save(work / name, found)
    return found


def main() -> None:
    """One line a run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--doses", type=float, nargs="+", default=[1e6, 5e4])
    parser.add_argument("--side", type=int, default=32, help="views along a side of the scan")
    parser.add_argument("--only", nargs="+", choices=list(recipes()), default=list(recipes()))
    parser.add_argument("--work", type=Path, help="folder in which patterns without noise are kept")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for seed in given.seeds:
        made = crystal(seed, given.side)
        expected = patterns_without_noise(made, given.work, f"crystal-{seed}-{given.side}.npy")
        for dose in given.doses:
            scan = told(made, expected, dose)
            floor = frozen_residual(made, scan)
            for name in given.only:
                result, seconds = run(made, scan, recipes()[name], seed)
                residual = float(result.attrs["final_residual"])  # type: ignore[arg-type]
                row: dict[str, Any] = {"recipe": name, "dose": dose, "seed": seed, **judged(made, result)}
                row |= {**geometry_errors(made, result, scan), "residual": residual, "truth_residual": floor}
                rows.append(row | seconds)
                print(shown(row), flush=True)
                write(given.out, {**about(), "side": given.side, "runs": rows})


def shown(row: dict[str, Any]) -> str:
    """Return a row as a line."""
    numbers = {key: f"{row[key]:.3f}" for key in ("sum", "single", "interface_nm", "rotation_deg", "C10_nm", "C12_nm")}
    numbers |= {"positions_A": f"{row['positions_A']:.3f}", "rms": " ".join(f"{one:.2f}" for one in row["rms"])}
    numbers["residual"] = f"{row['residual']:.5f} of {row['truth_residual']:.5f}"
    return f"{row['recipe']} {row['dose']:g} {row['seed']}: " + ", ".join(f"{a} {b}" for a, b in numbers.items())


if __name__ == "__main__":
    main()
