"""What smoothness along the beam does to single slices of two crystals turned against each other.

    python benchmarks/depth_prior.py

Mean correlation of the phase of single slices, rms of the first and last one over the truth's, correlation of the sum,
held-out residual (a tenth of the views), of the default stages. The truth is made by the same multislice model.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np

import ptymesh as pm  # before torch, so that both use the same threads

# isort: split
from ptymesh.recipe.python_arguments import stages_of
from ptymesh.recipe.schema import DEFAULT_STAGES
from ptymesh.simulate.simulation import Simulated, Simulation, patterns, truth

#: Slices, seeds, weights (0 for none).
CASES = ((6, (11, 12, 13), (0, 1, 10)), (8, (14, 15, 16), (0, 0.3, 1, 3)))
#: Lattice constant, standard deviation of an atom and of its displacements, in pixels.
LATTICE_PX, ATOM_PX, DISPLACEMENT_PX = 9.0, 1.4, 0.25


def crystal(shape: tuple[int, int, int], seed: int) -> np.ndarray:
    """Phase (L, H, W) of slices: the first half of one lattice, the others of one turned by 12 degrees."""
    slices, height, width = shape
    rng, phase = np.random.default_rng(seed), np.zeros(shape)
    rows, columns = np.mgrid[:height, :width]
    reach = int(max(height, width) / LATTICE_PX) + 3
    for index in range(slices):
        first = index < slices // 2
        angle, offset = math.radians(5 if first else -7), (0.0, 0.0) if first else (3.1, 1.7)
        c, s = math.cos(angle), math.sin(angle)
        for i, j in product(range(-reach, reach), repeat=2):
            y = LATTICE_PX * (i * c - j * s) + height / 2 + offset[0] + DISPLACEMENT_PX * rng.normal()
            x = LATTICE_PX * (i * s + j * c) + width / 2 + offset[1] + DISPLACEMENT_PX * rng.normal()
            if -6 < y < height + 6 and -6 < x < width + 6:
                near = tuple(slice(max(0, int(p) - 6), max(0, int(p) + 8)) for p in (y, x))
                distance = (rows[near] - y) ** 2 + (columns[near] - x) ** 2
                phase[(index, *near)] += (0.6 if (i + j) % 2 else 0.36) * np.exp(-distance / (2 * ATOM_PX**2))
    return phase


def scan(slices: int, seed: int) -> Simulated:
    """The crystal, measured."""
    made = truth(Simulation(kind="electron", views=144, window=64, slices=slices, seed=seed, photons_per_view=1e5))
    made = replace(made, object=np.exp(1j * crystal(made.object.shape, seed)).astype(made.object.dtype))
    return Simulated(made.measurement(np.concatenate(list(patterns(made)))), made)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation of two maps."""
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def judged(found: np.ndarray, true: np.ndarray) -> tuple[float, float, float, float]:
    """Single slices, first and last rms, and sum in the middle 48 pixels, at the best shift by whole pixels."""
    height, width = true.shape[1:]
    inner = (slice(None), slice(height // 2 - 24, height // 2 + 24), slice(width // 2 - 24, width // 2 + 24))
    b, best = np.angle(true)[inner], (0.0, 0.0, 0.0, -1.0)
    for shift in product(range(-3, 4), repeat=2):
        a = np.angle(np.roll(found, shift, (1, 2)))[inner]
        total = correlation(a.sum(0), b.sum(0))
        if total > best[3]:
            single = float(np.mean([correlation(*pair) for pair in zip(a, b, strict=True)]))
            best = (single, float(a[0].std() / b[0].std()), float(a[-1].std() / b[-1].std()), total)
    return best


def main() -> None:
    """A table in markdown."""
    print("| slices | seed | weight | single slices | first rms | last rms | sum | held out |")
    print("|---|---|---|---|---|---|---|---|")
    for slices, seeds, weights in CASES:
        for seed, weight in product(seeds, weights):
            made = scan(slices, seed)
            spacing = made.truth.slice_spacing_m
            recon = pm.Reconstruction(made.measurement, object={"slices": slices, "slice_spacing_m": spacing})
            prior = {"constraints": {"depth_smoothness": {"weight": weight}}} if weight else {}
            recon.stages.extend(stages_of([{**stage, **prior} for stage in DEFAULT_STAGES]))
            held = [report.held_out for report in recon.loop(hold_out=0.1).epochs()][-1]
            single, first, last, total = judged(recon.state.estimate.object.numpy(), made.truth.object)
            quality = f"{single:.3f} | {first:.2f} | {last:.2f} | {total:.3f}"
            print(f"| {slices} | {seed} | {weight:g} | {quality} | {held:.4f} |", flush=True)


if __name__ == "__main__":
    main()
