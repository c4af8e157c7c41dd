"""Which freedoms of a fly scan cost accuracy: modes, OPR modes and positions, alone and together, and more epochs.

    python benchmarks/fly_freedoms.py --seed 1 --out F

Simulated rasters of 6 x 6 views of 64 px, 8 px apart, 10^6 photons each, by Adam with batches of 8. The fly scan counts
over the whole step, 32 points of it in the truth and 8 in the model; the scan that stops has the same dose and the same
errors. Both are reconstructed with the freedoms that a row names. Rows `from_truth` start at the true object, probe and
positions and take small steps: what is then off is what the noise of the counts leaves, not what epochs would mend.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import about, write

import ptymesh as pm
from ptymesh.compare import compare_results
from ptymesh.engines import Adam
from ptymesh.simulate import Simulated, Truth, simulate

WINDOW, STEP_PX, VIEWS, PHOTONS, TRUE_POINTS, POINTS = 64, 8, 36, 1e6, 32, 8
#: Learning rate of rows that start at the truth.
SMALL_RATE = 0.01


@dataclass(frozen=True)
class Row:
    """A reconstruction of both scans.

    Attributes:
        epochs: of each reconstruction.
        modes: probe modes, in the truth and in the model.
        opr_modes: in the model; beams of the truth do not vary.
        positions: True for positions that are up to 1 px off and refined.
        from_truth: True to start at the truth.
    """

    epochs: int
    modes: int = 1
    opr_modes: int = 0
    positions: bool = False
    from_truth: bool = False


ROWS = (
    Row(60, modes=3, opr_modes=2, positions=True),
    Row(180, modes=3, opr_modes=2, positions=True),
    Row(20, modes=3, opr_modes=2, positions=True, from_truth=True),
    Row(60),
    Row(60, positions=True),
    Row(180, positions=True),
    Row(20, positions=True, from_truth=True),
    Row(60, modes=3),
    Row(60, opr_modes=2),
    Row(60, modes=3, positions=True),
    Row(60, opr_modes=2, positions=True),
    Row(60, modes=3, opr_modes=2),
)


def scan(row: Row, points: int, seed: int) -> Simulated:
    """Simulate a scan that counts while it moves, over so many points, or for 0 one that stops.

    Args:
        row: modes and errors of positions.
        points: of the path of each view.
        seed: of the object, the errors and the counts.
    """
    return simulate(
        scan="raster",
        window=WINDOW,
        overlap=1 - STEP_PX / (0.35 * WINDOW),
        views=VIEWS,
        photons_per_view=PHOTONS,
        modes=row.modes,
        position_error_px=1.0 if row.positions else 0.0,
        optics={"fly_scan": {"points": points}} if points else {},
        seed=seed,
    )


def solve(row: Row, made: Simulated, optics: dict[str, Any] | None, seed: int) -> dict[str, float]:
    """Reconstruct a scan and return the errors of object, positions (px) and probe, and the running residual.

    Args:
        row: freedoms and epochs.
        made: the scan and its truth.
        optics: of the reconstruction.
        seed: of the reconstruction.
    """
    truth, probe = made.truth, {"modes": row.modes, "opr_modes": row.opr_modes}
    recon = pm.Reconstruction(made.measurement, optics=optics, probe=probe, seed=seed)
    options: dict[str, Any] = {"epochs": row.epochs, "batch": 8}
    if row.positions:
        options["positions"] = {"start": 1 if row.from_truth else 5}
    if row.from_truth:
        start_at_truth(recon, truth)
        options["lr"] = SMALL_RATE
    *_, last = (report.residual for report in recon.run(Adam(**options)))
    found = compare_results(recon.result(), truth)
    return {
        "nrmse": float(found.nrmse),
        "positions_px": float(found.position_mean_px or 0.0),
        "probe_nrmse": float(found.probe_nrmse),
        "residual": float(last),
    }


def start_at_truth(recon: pm.Reconstruction, truth: Truth) -> None:
    """Set object, probe and positions of a reconstruction to the true ones, in its own frame."""
    estimate = recon.state.estimate
    offset = np.array(estimate.origin) - np.array(truth.origin)
    (y, x), (height, width) = offset.astype(int), truth.object.shape[1:]
    estimate.object[:, y : y + height, x : x + width] = torch.from_numpy(truth.object)
    estimate.probe.copy_(torch.from_numpy(truth.probe))
    estimate.positions.copy_(torch.from_numpy(truth.positions + offset))


def main() -> None:
    """Run all rows, and write what was found after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file that the numbers are written to, as JSON")
    parser.add_argument("--seed", type=int, default=1, help="of scans and reconstructions")
    parser.add_argument("--rows", type=int, nargs="+", default=range(len(ROWS)), help="numbers of rows, from 0")
    arguments = parser.parse_args()
    found: dict[str, Any] = {**about(), "seed": arguments.seed, "rows": []}
    fly = {"fly_scan": {"points": POINTS}}
    for row in (ROWS[number] for number in arguments.rows):
        ends = {
            name: solve(row, scan(row, points, arguments.seed), optics, arguments.seed)
            for name, points, optics in (("step", 0, None), ("fly", TRUE_POINTS, fly))
        }
        found["rows"].append({**asdict(row), **ends})
        print(row, ends, flush=True)
        write(arguments.out, found)


if __name__ == "__main__":
    main()
