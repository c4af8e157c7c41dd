"""How well causes of a poor result are told apart: simulated instances of each, and healthy ones.

    python benchmarks/diagnose.py --seeds 200-209 --healthy 200-219 --out benchmarks/results/DATE-diagnose.json

Prints the confusion matrix. Seeds up to 119 were used to choose thresholds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from ptymesh.diagnosis import CAUSES
from ptymesh.diagnosis.report import report
from ptymesh.io import load_measurement
from ptymesh.io.results import Result
from ptymesh.measurement import NO_CHECKS, ArraySource, Measurement
from ptymesh.recipe.python_arguments import stages_of
from ptymesh.recipe.schema import Recipe
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.session import run_recipe
from ptymesh.run.simulate_file import write as write_scan
from ptymesh.simulate import Simulated, Simulation, checked, simulate

WINDOW, VIEWS = 48, 110
Instance = tuple[Measurement, Result]


def scan(rng: np.random.Generator, seed: int, **changes: Any) -> Simulated:
    """A sound one: spiral or jittered raster, 3e5 to 3e6 photons per view."""
    options: dict[str, Any] = {
        "window": WINDOW,
        "views": VIEWS,
        "scan": str(rng.choice(["fermat", "jitter"])),
        "photons_per_view": float(10 ** rng.uniform(5.5, 6.5)),
        "seed": seed,
    }
    return simulate(**{**options, **changes})


def run(
    measured: Measurement,
    seed: int,
    epochs: int = 40,
    tamper: Callable[[Reconstruction], None] = lambda recon: None,
    modes: int = 1,
    hold_out: float = 0.0,
    **stage: Any,
) -> Instance:
    """Return the scan and its result: rPIE in batches of 16, and this share of the views held out."""
    measured = replace(measured, checks=NO_CHECKS)  # a run would mask hot pixels, which are to be named
    recon = Reconstruction(measured, probe_modes=modes, seed=seed)
    tamper(recon)
    recon.stages = stages_of({"engine": "rpie", "epochs": epochs, "batch": 16, **stage})
    recon.loop(hold_out=hold_out).run()
    return measured, recon.result()


def counts(made: Simulated) -> np.ndarray:
    """Patterns (N, h, w)."""
    return made.measurement.patterns.read(np.arange(made.measurement.views)).astype(np.int64)


def with_counts(made: Simulated, patterns: np.ndarray) -> Measurement:
    return replace(made.measurement, patterns=ArraySource(np.ascontiguousarray(patterns).astype(np.uint32)))


def moved(made: Simulated, positions: np.ndarray) -> Measurement:
    return replace(made.measurement, positions=positions)


def healthy(rng: np.random.Generator, seed: int) -> Instance:
    near = {"kind": "near"} if seed % 5 == 4 else {}
    return run(scan(rng, seed, **near).measurement, seed)


def orientation(rng: np.random.Generator, seed: int) -> Instance:
    """Detector transposed, or one of its axes reversed, about the zero frequency."""
    made = scan(rng, seed)
    patterns = counts(made)
    kind = seed % 4
    if kind in (0, 3):
        patterns = patterns.transpose(0, 2, 1)
    if kind in (1, 3):
        patterns = np.roll(patterns[:, ::-1], 1, axis=1)
    if kind == 2:
        patterns = np.roll(patterns[:, :, ::-1], 1, axis=2)
    return run(with_counts(made, patterns), seed)


def geometry(rng: np.random.Generator, seed: int) -> Instance:
    """Scan scaled by 6 to 10 %, or rotated by 5 to 10 degrees."""
    made = scan(rng, seed)
    p = made.measurement.positions
    if seed % 2:
        return run(moved(made, p * (1 + rng.choice([-1, 1]) * rng.uniform(0.06, 0.1))), seed)
    angle = np.deg2rad(rng.choice([-1, 1]) * rng.uniform(5, 10))
    c, s = np.cos(angle), np.sin(angle)
    return run(moved(made, p @ np.array([[c, -s], [s, c]]).T), seed)


def drift(rng: np.random.Generator, seed: int) -> Instance:
    """3 to 6 px from the first view to the last, along a curve."""
    made = scan(rng, seed)
    t = np.linspace(-1, 1, VIEWS)[:, None]
    angle = rng.uniform(0, 2 * np.pi)
    along, across = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
    size = rng.uniform(3, 6)
    return run(moved(made, made.measurement.positions + size * (0.5 * t * along + 0.4 * (t**2 - 1 / 3) * across)), seed)


def vibration(rng: np.random.Generator, seed: int) -> Instance:
    """Each view elsewhere by up to 1.5 to 2.5 px."""
    return run(scan(rng, seed, position_error_px=float(rng.uniform(1.5, 2.5))).measurement, seed)


def few_modes(rng: np.random.Generator, seed: int) -> Instance:
    """Three modes, the first with 55 to 75 % of the power, fitted by one."""
    first = float(rng.uniform(0.55, 0.75))
    powers = (first, 0.65 * (1 - first), 0.35 * (1 - first))
    return run(scan(rng, seed, modes=3, mode_powers=powers).measurement, seed)


def many_modes(rng: np.random.Generator, seed: int) -> Instance:
    """One mode, fitted by four to six."""
    return run(scan(rng, seed).measurement, seed, modes=int(rng.integers(4, 7)))


def distance(rng: np.random.Generator, seed: int) -> Instance:
    """Near field: 20 to 40 % too long or too short."""
    made = scan(rng, seed, kind="near")
    geometry = made.measurement.geometry
    assert geometry.distance_m is not None
    factor = float(rng.uniform(1.2, 1.4)) ** rng.choice([-1, 1])
    return run(replace(made.measurement, geometry=replace(geometry, distance_m=geometry.distance_m * factor)), seed)


def background(rng: np.random.Generator, seed: int) -> Instance:
    """An even background of 10 to 30 % of the light, of which nothing is said."""
    photons = float(10 ** rng.uniform(5.5, 6.5))
    share = float(rng.uniform(0.1, 0.3))
    made = scan(rng, seed, photons_per_view=photons, background_counts=share * photons / WINDOW**2)
    return run(replace(made.measurement, background=None), seed)


def saturation(rng: np.random.Generator, seed: int) -> Instance:
    """A detector that counts to 15 to 35 % of what comes."""
    made = scan(rng, seed)
    patterns = counts(made)
    return run(with_counts(made, np.minimum(patterns, int(rng.uniform(0.15, 0.35) * patterns.max()))), seed)


def hot_pixels(rng: np.random.Generator, seed: int) -> Instance:
    """3 to 8 pixels count on their own, 5 to 30 % of the brightest pixel."""
    made = scan(rng, seed)
    patterns = counts(made)
    for _ in range(int(rng.integers(3, 9))):
        level = rng.uniform(0.05, 0.3) * patterns.mean(axis=0).max()
        patterns[:, rng.integers(WINDOW), rng.integers(WINDOW)] += rng.poisson(level, VIEWS)
    return run(with_counts(made, patterns), seed)


def intensity(rng: np.random.Generator, seed: int) -> Instance:
    """The beam loses up to 25 to 50 % at random from view to view."""
    made = scan(rng, seed)
    kept = 1 - rng.uniform(0, rng.uniform(0.25, 0.5), (VIEWS, 1, 1))
    return run(with_counts(made, rng.binomial(counts(made), kept)), seed)


def overlap(rng: np.random.Generator, seed: int) -> Instance:
    """Steps of 85 to 110 % of the beam's width."""
    return run(scan(rng, seed, overlap=max(0.0, float(rng.uniform(-0.1, 0.15)))).measurement, seed)


def plane(rng: np.random.Generator, seed: int) -> Instance:
    """A beam out of focus, of which nothing is known: the probe starts in focus."""
    return run(replace(scan(rng, seed).measurement, probe=None), seed)


def raster(rng: np.random.Generator, seed: int) -> Instance:
    """A regular grid whose period object and probe have traded: a factor of 15 to 30 % that no pattern can tell."""
    made = scan(rng, seed, scan="raster", overlap=float(rng.uniform(0.5, 0.65)), views=100)
    step = float(np.ptp(made.measurement.positions[:, 0]) / 9)
    size = float(rng.uniform(0.15, 0.3))

    def wave(rows: int, columns: int) -> torch.Tensor:
        y, x = torch.arange(rows)[:, None], torch.arange(columns)[None]
        return torch.exp(size * (torch.cos(2 * np.pi * y / step) + torch.cos(2 * np.pi * x / step)))

    def tamper(recon: Reconstruction) -> None:
        estimate = recon.state.estimate
        corner = estimate.positions[0]
        estimate.object *= wave(*estimate.object.shape[-2:])
        h, w = estimate.probe.shape[-2:]
        there = wave(h + 2 * round(step) + 2, w + 2 * round(step) + 2)
        top, left = (round(float(c % step)) for c in corner)
        estimate.probe /= there[top : top + h, left : left + w]

    return run(made.measurement, seed, tamper=tamper)


def confused(rng: np.random.Generator, seed: int) -> Instance:
    """Object and probe have traded a shift of 5 to 9 px, or a phase ramp of 2 to 4 detector pixels."""
    made = scan(rng, seed)
    size = rng.uniform(5, 9) if seed % 2 else rng.uniform(2, 4)
    angle = rng.uniform(0, 2 * np.pi)
    dy, dx = size * np.cos(angle), size * np.sin(angle)

    def ramp(shape: torch.Size) -> torch.Tensor:
        y, x = (torch.arange(n) for n in shape[-2:])
        return torch.exp(2j * np.pi * (y[:, None] * dy + x[None, :] * dx) / WINDOW)

    def tamper(recon: Reconstruction) -> None:
        estimate = recon.state.estimate
        if seed % 2:
            estimate.probe.copy_(torch.roll(estimate.probe, (round(dy), round(dx)), (-2, -1)))
        else:
            estimate.probe *= ramp(estimate.probe.shape)
            estimate.object *= ramp(estimate.object.shape).conj()

    return run(made.measurement, seed, tamper=tamper)


def vortices(rng: np.random.Generator, seed: int) -> Instance:
    """The object starts with 4 to 8 of them under the scan, ten epochs ago, all of one sign, for those of opposite
    signs meet and are gone."""
    made = scan(rng, seed)
    count, sign = int(rng.integers(4, 9)), 1 - 2 * (seed % 2)

    def tamper(recon: Reconstruction) -> None:
        obj = recon.state.estimate.object
        h, w = obj.shape[-2:]
        y, x = torch.arange(h)[:, None], torch.arange(w)[None]
        for _ in range(count):
            cy, cx = h * rng.uniform(0.38, 0.62), w * rng.uniform(0.38, 0.62)
            obj *= torch.exp(1j * sign * torch.atan2(y - cy, x - cx))

    return run(made.measurement, seed, epochs=10, tamper=tamper)


def border(rng: np.random.Generator, seed: int) -> Instance:
    """Detector pixels so large that the beam does not fit into the window."""
    made = scan(rng, seed, window=2 * WINDOW, views=VIEWS)
    centred = np.fft.fftshift(counts(made), axes=(1, 2))
    n = WINDOW
    binned = centred.reshape(VIEWS, n, 2, n, 2).sum(axis=(2, 4))
    patterns = np.fft.ifftshift(binned, axes=(1, 2))
    scan_ = made.measurement
    small = replace(
        scan_,
        patterns=ArraySource(patterns.astype(np.uint32)),
        geometry=scan_.geometry.rewindowed((n, n), 2),
        mask=np.ones((n, n), bool),
        probe=None if scan_.probe is None else scan_.probe[:, n // 2 : -(n // 2), n // 2 : -(n // 2)],
    )
    return run(small, seed)


def over_fitting(rng: np.random.Generator, seed: int) -> Instance:
    """300 to 1000 photons per view, fitted by three modes; a tenth of the views is held out."""
    made = scan(rng, seed, photons_per_view=float(rng.uniform(300, 1000)))
    return run(made.measurement, seed, modes=3, alpha=0.1, hold_out=0.1)


def twin(rng: np.random.Generator, seed: int) -> Instance:
    """A crystal of 5 to 9 nm behind the opposite lens, the scan turned by half a turn; two slices and more."""
    thickness = float(rng.uniform(5e-9, 9e-9))
    crystal = {
        "structure": str(rng.choice(["aluminium", "silicon", "strontium_titanate"])),
        "thickness_m": thickness,
        "rotation_deg": float(rng.uniform(2, 12)),
        "aberrations_m": {"C10": float(rng.uniform(-14e-9, -8e-9))},
        "configurations": 4,
    }
    photons = float(10 ** rng.uniform(4.5, 5.5))
    raw = {"kind": "crystal", "scan": "raster", "views": 144, "window": WINDOW, "seed": seed}
    slices = round(thickness / 2e-9)
    with TemporaryDirectory() as folder:
        options = checked(Simulation.parse({**raw, "photons_per_view": photons, "crystal": crystal}))
        path, _ = write_scan(options, Path(folder) / "scan.cxi")
        lens = {"C10": -crystal["aberrations_m"]["C10"]}
        recipe = Recipe.parse(
            {
                "data": {"path": str(path)},
                "positions": {"rotation_deg": 180.0},
                "object": {"kind": "potential", "slices": slices, "slice_spacing_m": thickness / slices},
                "probe": {
                    "modes": 2,
                    "start": {"kind": "electron", "semiangle_rad": 20e-3, "aberrations_m": lens},
                },
                "output": {"dir": str(Path(folder) / "out"), "figures": False},
            }
        )
        result = Result.load(run_recipe(recipe).path)
        scan_ = load_measurement(recipe.data, recipe.positions)
        patterns = scan_.patterns.read(np.arange(scan_.views))
        return replace(scan_, patterns=ArraySource(patterns)), result


#: Of each cause, and what makes an instance of it.
MAKERS: dict[str, Callable[[np.random.Generator, int], Instance]] = {
    "orientation": orientation,
    "geometry": geometry,
    "drift": drift,
    "vibration": vibration,
    "few_modes": few_modes,
    "many_modes": many_modes,
    "distance": distance,
    "background": background,
    "saturation": saturation,
    "hot_pixels": hot_pixels,
    "intensity": intensity,
    "overlap": overlap,
    "plane": plane,
    "raster": raster,
    "confused": confused,
    "vortices": vortices,
    "border": border,
    "over_fitting": over_fitting,
    "twin": twin,
}
HEALTHY = "healthy"
#: Name of what is no cause, but may be said first of a run that ends too early.
UNFINISHED = "unfinished"


def matrix(rows: list[dict[str, Any]]) -> list[str]:
    """The confusion matrix as a table in markdown: how often each was named first; empty cells are 0."""
    found = [*MAKERS, UNFINISHED, HEALTHY]
    lines = ["| simulated | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    for truth in (*MAKERS, HEALTHY):
        named = [row["named"] for row in rows if row["truth"] == truth]
        cells = [str(named.count(name) or "") for name in found]
        lines.append(f"| {truth} ({len(named)}) | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Makes the instances, one after the other, diagnoses them, and prints and writes what was named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="200-209", metavar="A-B", help="of each cause")
    parser.add_argument("--healthy", default="200-219", metavar="A-B", help="of what has none")
    parser.add_argument("--only", nargs="*", default=[*MAKERS, HEALTHY], metavar="CAUSE")
    parser.add_argument("--out", type=Path, help="JSON file for every instance's evidence")
    given = parser.parse_args()
    from record import about, write  # of this folder; the tests take this file without it

    torch.set_num_threads(1)
    here = about()
    began, rows = time.process_time(), []
    todo = [(seed, truth) for truth in MAKERS for seed in _range(given.seeds)]
    todo += [(seed, HEALTHY) for seed in _range(given.healthy)]
    for seed, truth in sorted(todo, key=lambda one: one[0]):
        if truth not in given.only:
            continue
        rows.append(diagnosed(truth, seed))
        print(f"{truth} {seed}: {', '.join([rows[-1]['named'], *rows[-1]['also']])}", flush=True)
        if given.out:
            seconds = round(time.process_time() - began)
            what = {"seeds": given.seeds, "healthy": given.healthy, "cpu_seconds": seconds}
            thresholds = {cause.name: cause.threshold for cause in CAUSES}
            write(given.out, here | what | {"thresholds": thresholds, "instances": rows})
    print("\n".join(matrix(rows)))


def diagnosed(truth: str, seed: int) -> dict[str, Any]:
    """One instance, and what is said of it."""
    measured, result = {**MAKERS, HEALTHY: healthy}[truth](np.random.default_rng([seed, 77]), seed)
    found = report(result, measured)
    named = [one.cause for one in found.findings]
    numbers = {name: float(f"{number:.4g}") for name, (number, _) in found.numbers.items() if number == number}
    row = {"truth": truth, "seed": seed, "named": (named or [HEALTHY])[0], "also": named[1:]}
    return {**row, "times_noise_floor": found.times and round(found.times, 3), "numbers": numbers}


def _range(text: str) -> range:
    first, last = (int(n) for n in text.split("-"))
    return range(first, last + 1)


if __name__ == "__main__":
    main()
