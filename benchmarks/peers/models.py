"""ptymesh's models beside CDTools' on the same arrays: intensities and gradients of one evaluation.

    python benchmarks/peers/models.py --venv DIR [--out F]

DIR is an environment that holds CDTools, as compare.py makes one. Object, probe, positions and counts are those of a
simulated scan, and the models are evaluated where a reconstruction would begin: an object of noise, and a disturbed
probe. ptymesh computes in double precision, CDTools in single.

Rows are CDTools' options: dm_rank (`mode_mixing`), saturation (`detector_saturation` with `everywhere`), qe_mask
(`detector_efficiency`), phase_only (`parametrisation: phase`); and Bragg2DPtycho (`surface_propagation`, and with
correct_tilt `tilted_waves`). Numbers are ||ours - theirs|| / ||theirs||, of the intensities (largest of all views) and
of the gradients of sum (sqrt I - sqrt y)^2 by object, probe and mixtures.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ptymesh as pm
from compare import python_of
from ptymesh.engines import Adam
from ptymesh.engines.autodiff_function import intensities
from ptymesh.measurement import ArraySource
from ptymesh.physics.detector.surface import Grid, seen_areas
from ptymesh.problem import Batch
from ptymesh.simulate import simulate

HERE = Path(__file__).parent
VIEWS, WINDOW, MODES, RANK, BACKGROUND = 24, 48, 3, 2, 0.5
#: Largest differences that the issue allows.
ALLOWED = {"intensities": 1e-5, "object": 1e-4, "probe": 1e-4, "mixing": 1e-4}


@dataclass(frozen=True)
class Case:
    """One row.

    Attributes:
        name: of CDTools' options.
        mixing: True for mixtures of the modes in each view.
        saturated: True for counts and intensities that end at a level.
        uneven: True for pixels of uneven efficiency.
        phase_only: True for an object of phases.
        leaning: True for a surface that leans, and a stage that moves across the beam.
        tilted: True for waves between the points of the transform, as the detector sees such a surface.
    """

    name: str
    mixing: bool = False
    saturated: bool = False
    uneven: bool = False
    phase_only: bool = False
    leaning: bool = False
    tilted: bool = False

    @property
    def window(self) -> int:
        """Side of the window: CDTools counts a tilt from the middle, which is a pixel in odd windows alone."""
        return WINDOW + self.tilted


CASES = (
    Case("plain"),
    Case("dm_rank", mixing=True),
    Case("saturation", saturated=True),
    Case("qe_mask", uneven=True),
    Case("phase_only", phase_only=True),
    Case("dm_rank, saturation, qe_mask", mixing=True, saturated=True, uneven=True),
    Case("Bragg2D", leaning=True),
    Case("Bragg2D, correct_tilt", leaning=True, tilted=True),
)
#: A surface at 40 degrees at 13.5 nm, whose stage moves across the beam.
LEANING = {"energy_eV": 92, "pixel_m": 3e-7, "detector_pixel_m": 1e-5, "surface_deg": (0.0, 40.0)}
BRAGG = {"surface_propagation": True}


def arrays_of(case: Case) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return what both programs are given, and what ptymesh computes of it."""
    rng = np.random.default_rng(1)
    lengths: dict[str, Any] = LEANING if case.leaning else {}
    made = simulate(
        views=VIEWS, window=case.window, modes=MODES, photons_per_view=1e5, probe_guess="true", seed=2, **lengths
    )
    # fractions of whole sixteenths below a half, which single precision holds, and all programs round alike
    positions = np.floor(made.measurement.positions) + rng.integers(0, 8, (VIEWS, 2)) / 16
    positions += 1 / 32 if case.leaning else 0  # which comes to CDTools in metres, never quite a whole pixel
    counts = made.measurement.patterns.read(np.arange(VIEWS)).astype(np.float32)
    level = float(np.quantile(counts, 0.98)) if case.saturated else 0.0
    efficiency = (
        rng.uniform(0.5, 1.5, (case.window, case.window)) if case.uneven else np.ones((case.window, case.window))
    )
    scan = replace(
        made.measurement,
        positions=positions,
        patterns=ArraySource(np.minimum(counts, level) if level else counts),
        background=np.full((case.window, case.window), BACKGROUND),
        efficiency=efficiency / efficiency.mean(),
        checks=pm.measurement.NO_CHECKS,
    )
    optics: dict[str, Any] = {"mode_mixing": {"rank": RANK}} if case.mixing else {}
    optics |= BRAGG if case.leaning else {}
    optics |= {"tilted_waves": {"finer": 1}} if case.tilted else {}
    optics |= {"detector_efficiency": True} if case.uneven else {}
    optics |= {"detector_saturation": {"level": level, "everywhere": True}} if level else {}
    recon = pm.Reconstruction(scan, optics=optics, precision="double", probe={"modes": MODES}, device="cpu", seed=1)
    problem, e = recon.problem, recon.state.estimate
    phase = torch.from_numpy(rng.uniform(-0.5, 0.5, e.object.shape))
    amplitude = 1.0 if case.phase_only else torch.from_numpy(rng.uniform(0.7, 1.0, e.object.shape))
    e.object.copy_(amplitude * torch.exp(1j * phase))
    disturbed = 1 + 0.3 * (rng.standard_normal(e.probe.shape) + 1j * rng.standard_normal(e.probe.shape))
    e.probe.mul_(torch.from_numpy(disturbed))
    for name in ("object", "probe"):  # what single precision holds
        e[name].copy_(e[name].to(torch.complex64))
    wanted = {"object", "probe"}
    if case.mixing:
        change = 0.3 * (rng.standard_normal((VIEWS, RANK, MODES)) + 1j * rng.standard_normal((VIEWS, RANK, MODES)))
        e.others["mixing"] += torch.from_numpy(change.astype(np.complex64))
        wanted.add("mixing")
    problem.begin_epoch(e)
    (chunk,) = problem.loader.chunks(e, np.arange(VIEWS), waves="used")
    I = intensities(problem.model, chunk, e.object, e.probe, background=e.background)
    geometry = made.measurement.geometry
    engine = Adam(parametrisation="phase" if case.phase_only else "complex")
    found = engine.gradient(problem, e, Batch(np.arange(VIEWS)), wanted)
    total = float(chunk.data.y.sum())
    slopes = {name: part.slope.numpy() * total for name, part in found.parts.items() if name in wanted}
    given = {
        "object": e.object[0].numpy(),
        "probe": e.probe.numpy(),
        "positions": e.positions.numpy(),
        "patterns": chunk.patterns.numpy(),
        "background": scan.background,
        "efficiency": scan.efficiency,
        "efficient": np.array(case.uneven),
        "level": np.array(level),
        "mixing": e.others["mixing"].numpy() if case.mixing else np.zeros(0),
        "phase_only": np.array(case.phase_only),
        "mask": np.asarray(scan.mask),
        "wavelength": np.array(geometry.wavelength_m),
        "pixel_m": np.array(geometry.object_pixel_m),
        "sine": np.array(-np.sin(np.radians(geometry.surface_deg[1]))),
        "tilted": np.array(case.tilted),
        "distance": np.array(geometry.distance_m or 0.0),
        "detector_pixel": np.array(geometry.detector_pixel_m or (0.0, 0.0)),
        "areas": seen_areas(Grid.of_geometry(geometry), geometry.surface_deg[1]) if case.tilted else np.zeros(0),
        "along_beam": e.others["along_beam"].numpy() if case.leaning else np.zeros(0),
    }
    complexes = {n: s if case.phase_only and n == "object" else s[..., 0] + 1j * s[..., 1] for n, s in slopes.items()}
    return given, {"intensities": I.numpy(), **complexes}


def differences(case: Case, python: Path) -> dict[str, float]:
    """Return the relative differences by name."""
    given, ours = arrays_of(case)
    with tempfile.TemporaryDirectory() as folder:
        written, read = Path(folder, "in.npz"), Path(folder, "out.npz")
        np.savez(written, **given)
        script = "cdtools_bragg_run.py" if case.leaning else "cdtools_models_run.py"
        subprocess.run([python, HERE / script, written, read], check=True, capture_output=True)
        theirs = dict(np.load(read, allow_pickle=False))
    found = {name: norm(ours[name].reshape(theirs[name].shape), theirs[name]) for name in ours if name != "intensities"}
    pairs = zip(ours["intensities"], theirs["intensities"], strict=True)
    return {"intensities": max(norm(a, b) for a, b in pairs), **found}


def norm(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return ||ours - theirs|| / ||theirs||."""
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def main() -> None:
    """Compare all cases; exit with 1 where a difference is larger than allowed."""
    sys.path.insert(0, str(HERE.parent))
    from record import about, write

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, required=True, help="environment with CDTools")
    parser.add_argument("--out", type=Path, help="file that the numbers are written to, as JSON")
    arguments = parser.parse_args()
    rows = {case.name: differences(case, python_of(arguments.venv)) for case in CASES}
    look = "from importlib.metadata import version; print(version('cdtools-py'))"
    told = subprocess.run([python_of(arguments.venv), "-c", look], check=True, capture_output=True, text=True)
    for name, row in rows.items():
        print(name, {what: f"{value:.1e}" for what, value in row.items()})
    write(arguments.out, {**about(), "cdtools": told.stdout.strip(), "allowed": ALLOWED, "differences": rows})
    beyond = [f"{name}: {what}" for name, row in rows.items() for what in row if row[what] > ALLOWED[what]]
    if beyond:
        raise SystemExit(f"Larger than allowed: {', '.join(beyond)}.")


if __name__ == "__main__":
    main()
