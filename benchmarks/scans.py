"""How good an object two scans give together, beside either alone and a single scan of the same total dose.

    python benchmarks/scans.py --out F

One simulated object, and two scans of it with probes of different defocus. The second scan lies elsewhere than its
positions say, by a shift and half a degree about its middle. Each starts from a probe whose defocus is 10 % off. The
single scan has the views of both where they say that they are, all with the probe of the first scan and as many photons
in all. Shifts are those between the centres of mass of both probes, as a shift of a probe in its window and one of its
scan change no pattern.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from record import about, write

import ptymesh as pm
from ptymesh.compare import compare_results
from ptymesh.measurement import Measurement
from ptymesh.simulate import Simulation, Truth, simulate_scans

WINDOW, VIEWS, BATCH = 64, 100, 20
SHIFT_PX, ROTATION_DEG = (1.6, -1.2), 0.5
#: Further defocus of the second probe.
DEFOCUS_M = 50e-6
TERMS = {"scan_shift": {"terms": ["shift", "rotation"]}}


@dataclass(frozen=True)
class Scans:
    """Simulated scans.

    Attributes:
        scans: both, with the positions and probes that a reconstruction gets.
        single: two that lie where they say, with one probe: a single scan with the views of both.
        truth: true values of the first.
        shift_px: (2,) float64, true shift of the second scan between the centres of the probes, y and x.
    """

    scans: list[Measurement]
    single: list[Measurement]
    truth: Truth
    shift_px: np.ndarray


def simulated(photons: float, seed: int) -> Scans:
    """Return the scans with so many photons per view."""
    options = Simulation(views=VIEWS, window=WINDOW, overlap=0.6, photons_per_view=photons, seed=seed)
    other = {"overlap": 0.63}
    moved = {"shift_px": SHIFT_PX, "rotation_deg": ROTATION_DEG, "defocus_m": DEFOCUS_M}
    first, second = simulate_scans(options, further_scans=[{**other, **moved}])
    scans = [replace(one.measurement, name=name) for one, name in ((first, "first"), (second, "second"))]
    single = [one.measurement for one in simulate_scans(options, further_scans=[other])]
    shift = np.array(SHIFT_PX) + off_centre(second.truth.probe) - off_centre(first.truth.probe)
    return Scans(scans, single, first.truth, shift)


def off_centre(probe: np.ndarray) -> np.ndarray:
    """Return by how much (y, x) the centre of mass of a probe (M, h, w) is away from the middle of its window."""
    power = (np.abs(probe) ** 2).sum(axis=0)
    axes = np.indices(power.shape)
    return np.array([(power * r).sum() / power.sum() - n // 2 for r, n in zip(axes, power.shape, strict=True)])


def stages(epochs: tuple[int, int], **options: Any) -> list[Any]:
    """Return both stages, of so many epochs."""
    return [pm.RPIE(epochs=epochs[0], batch=BATCH, **options), pm.Adam(epochs=epochs[1], batch=BATCH, **options)]


def compared(made: Scans, epochs: tuple[int, int], seed: int) -> dict[str, Any]:
    """Return errors of the object of all reconstructions, and those of shift and rotation."""
    first = made.truth
    centred = {"probe": {"centre": True}}
    together = pm.reconstruct(made.scans, stages(epochs, models=TERMS, **centred), probe={"scans": "own"}, seed=seed)
    results = {
        "together": together,
        "first": pm.reconstruct(made.scans[0], stages(epochs, **centred), seed=seed),
        "second": pm.reconstruct(made.scans[1], stages(epochs, **centred), seed=seed),
        "single": pm.reconstruct(made.single, stages(epochs, **centred), seed=seed),
    }
    numbers = together.parameters["scan_shift"]
    error = np.array([numbers["y1"], numbers["x1"]]) - made.shift_px
    nrmse = {name: float(compare_results(one, first).nrmse) for name, one in results.items()}
    return {
        "nrmse": nrmse,
        "residual": {name: float(one.attrs["final_residual"]) for name, one in results.items()},
        "noise_floor": {name: float(one.attrs["noise_floor"]) for name, one in results.items()},
        "together_over_best_alone": nrmse["together"] / min(nrmse["first"], nrmse["second"]),
        "together_over_single": nrmse["together"] / nrmse["single"],
        "shift_error_px": error.tolist(),
        "rotation_error_deg": float(np.rad2deg(numbers["rotation1"]) - ROTATION_DEG),
    }


def main() -> None:
    """Run all doses and seeds, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file that the numbers are written to, as JSON")
    parser.add_argument("--photons", type=float, nargs="+", default=[1e5, 1e6], help="per view")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, nargs=2, default=[15, 40], help="of rPIE and of Adam")
    arguments = parser.parse_args()
    found: dict[str, Any] = {
        **about(),
        "window": WINDOW,
        "views_per_scan": VIEWS,
        "epochs": arguments.epochs,
        "shift_px": SHIFT_PX,
        "rotation_deg": ROTATION_DEG,
        "cases": [],
    }
    for photons in arguments.photons:
        for seed in arguments.seeds:
            row = {"photons_per_view": photons, "seed": seed}
            row |= compared(simulated(photons, seed), tuple(arguments.epochs), seed)
            found["cases"].append(row)
            print(row, flush=True)
            write(arguments.out, found)


if __name__ == "__main__":
    main()
