"""Views per second through several slices and in the near field, against the floor and beside torch's own passes.

    python benchmarks/slices.py --slices 8 --modes 3 --window 64 --threads 1
    python benchmarks/slices.py --slices 8 --modes 3 --window 64 --threads 1 --positions
    python benchmarks/slices.py --slices 8 --modes 3 --window 64 --threads 1 --gaps --engines adam
    python benchmarks/slices.py --slices 1 --modes 3 --window 64 --threads 1 --near

Simulated scans with Fourier positions; batches of 64. The passes with kernels and those of PTYMESH_KERNELS=torch take
turns, epoch by epoch, and the floor is measured in between: torch's transforms alone, a pair of them per view-mode for

  the far field, or two for a near one; the shift of the probe and of what comes back to it; each gap between slices on
  the way there and on the way back; of LSQML, besides, each gap for both of its directions, and the shift of one; where
  positions, which are then half a pixel wrong, are refined, the shift of the probe's derivatives along both axes, and
  in the near field derivatives of probe and wave, there and back along one axis each; where distance and tilt of the
  slices are (--gaps), each gap for the wave and its three derivatives.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from typing import Any

import torch
from floor import Floor
from floor import pairs as pairs_of

from ptymesh.distributed.world import Solo
from ptymesh.engines import ENGINES
from ptymesh.kernels import VARIABLE
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.simulate import Simulated, simulate

TIMED = ("rpie", "lsqml", "adam")
BATCH, EPOCHS = 64, 6


def pairs(engine: str, slices: int, near: bool, positions: bool, gaps: bool) -> float:
    """Pairs of transforms per view-mode."""
    found = pairs_of("angular_spectrum" if near else "far_field", "fourier") + 2 * (slices - 1)
    found += (2 if near and slices == 1 else 1) * positions + 4 * (slices - 1) * gaps
    return found + 2 * (slices - 1) + 0.5 if engine == "lsqml" else found


def started(made: Simulated, engine: str, modes: int, kernels: str, stage: dict[str, Any]) -> Any:
    """Epochs of a reconstruction with these passes."""
    os.environ[VARIABLE] = kernels
    slices, spacing = len(made.truth.object), made.truth.slice_spacing_m
    obj = {"slices": slices, "slice_spacing_m": spacing} if slices > 1 else {}
    recon = Reconstruction(made.measurement, probe_modes=modes, object=obj, device=Solo(torch.device("cpu")))
    return recon.run(ENGINES[engine](epochs=EPOCHS, batch=BATCH, **stage))


def measure(made: Simulated, engine: str, floor: Floor, given: argparse.Namespace) -> None:
    """Prints views per second of the median epoch after the first, of either kind of passes."""
    stage = {"positions": True} if given.positions else {}
    stage |= {"unknowns": {"slice_spacing": True, "tilt": True}} if given.gaps else {}
    epochs = {kernels: started(made, engine, given.modes, kernels, stage) for kernels in ("auto", "torch")}
    seconds: dict[str, list[float]] = {kernels: [] for kernels in epochs}
    samples = []
    for _, kernels in itertools.product(range(EPOCHS), epochs):
        seconds[kernels].append(next(epochs[kernels]).seconds)
        samples.append(floor.sample())
    views, slices = made.measurement.views, len(made.truth.object)
    speed = {kernels: views / statistics.median(times[1:]) for kernels, times in seconds.items()}
    pairs_of_views = given.modes * pairs(engine, slices, given.near, given.positions, given.gaps)
    limit = statistics.median(samples) / pairs_of_views
    print(
        f"{engine}: {speed['auto']:.0f} views/s, {speed['auto'] / limit:.0%} of the floor of {limit:.0f}; "
        f"torch's passes {speed['torch']:.0f}, {speed['torch'] / limit:.0%}",
        flush=True,
    )


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("slices", 8), ("modes", 3), ("window", 64), ("views", 128), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("near", "positions", "gaps"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--engines", default=",".join(TIMED))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    kind = {"kind": "near"} if given.near else {}
    sizes = {"window": given.window, "views": given.views, "modes": given.modes, "slices": given.slices}
    wrong = {"position_error_px": 0.5} if given.positions else {}
    made, floor = simulate(**kind, **wrong, **sizes), Floor((given.window, given.window), torch.device("cpu"))
    for engine in given.engines.split(","):
        measure(made, engine, floor, given)


if __name__ == "__main__":
    main()
