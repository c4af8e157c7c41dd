"""How good an object two scans give together, beside either alone and a single scan of the same total dose.

    python benchmarks/scans.py --out F

One simulated object, and two scans of it with probes of different defocus. The second scan lies elsewhere than its
positions say, by a shift and half a degree about its middle. Each starts from a probe whose defocus is 10 % off. The
single scan has the views of both at their true positions, all with the probe of the first scan and as many photons in
all. Shifts are those between the centres of mass of both probes, as a shift of a probe in its window and one of its
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
from ptymesh.simulate.simulation import Simulation, Truth, patterns, truth

WINDOW, VIEWS, BATCH = 64, 100, 20
SHIFT_PX, ROTATION_DEG = (1.6, -1.2), 0.5
#: Phase of the second probe's additional defocus at the corner of the spectrum, rad.
DEFOCUS_RAD = 30.0
#: Error of the defocus of the probes that the reconstructions start from.
PROBE_ERROR = 0.1
TERMS = {"scan_shift": {"terms": ["shift", "rotation"]}}


@dataclass(frozen=True)
class Scans:
    """Simulated scans.

    Attributes:
        scans: both, with the positions and probes that a reconstruction gets.
        single: one scan with the views of both.
        truths: true values of both.
        shift_px: (2,) float64, true shift of the second scan between the centres of the probes, y and x.
    """

    scans: tuple[Measurement, Measurement]
    single: Measurement
    truths: tuple[Truth, Truth]
    shift_px: np.ndarray


def simulated(photons: float, seed: int) -> Scans:
    """Return the scans with so many photons per view."""
    options = Simulation(views=VIEWS, window=WINDOW, overlap=0.6, photons_per_view=photons, seed=seed)
    first = truth(options)
    centre = first.nominal.mean(axis=0)
    turned = (first.nominal - centre)[:, ::-1] * np.array([0.93, -0.93]) + centre
    middle, angle = turned.mean(axis=0), np.deg2rad(ROTATION_DEG)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    moved = (turned - middle) @ rotation.T + middle + np.array(SHIFT_PX)
    second = replace(
        first,
        options=options.model_copy(update={"seed": seed + 1}),
        nominal=turned,
        positions=moved,
        probe=defocused(first.probe, DEFOCUS_RAD),
    )
    every = np.concatenate([first.positions, moved])
    twice = options.model_copy(update={"seed": seed + 2, "views": 2 * VIEWS})
    single = replace(first, options=twice, nominal=every, positions=every)
    guess = first.guess()
    assert guess is not None, "of the design"
    starts = (guess, defocused(guess, (1 + PROBE_ERROR) * DEFOCUS_RAD))
    made = [one.measurement(np.concatenate(list(patterns(one)))) for one in (first, second, single)]
    named = [replace(one, name=name, fingerprint=name) for one, name in zip(made[:2], ("first", "second"), strict=True)]
    left, right = (replace(one, probe=start) for one, start in zip(named, starts, strict=True))
    shift = np.array(SHIFT_PX) + off_centre(second.probe) - off_centre(first.probe)
    return Scans((left, right), made[2], (first, second), shift)


def defocused(probe: np.ndarray, phase_rad: float) -> np.ndarray:
    """Return the probe (M, h, w) with a further phase in its spectrum, a parabola of so many radians at the corner."""
    fy, fx = np.meshgrid(*(np.fft.fftfreq(n) for n in probe.shape[-2:]), indexing="ij")
    return np.fft.ifft2(np.fft.fft2(probe) * np.exp(-2j * phase_rad * (fy**2 + fx**2)))


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
    first = made.truths[0]
    centred = {"probe": {"centre": True}}
    together = pm.reconstruct(
        list(made.scans), stages(epochs, models=TERMS, **centred), probe={"scans": "own"}, seed=seed
    )
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
