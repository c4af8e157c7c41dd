"""Time to solution beside Pty-Chi, CDTools and PtyRAD: held-out residual against seconds from the start of a process.

    python benchmarks/peers/solution.py STAR.npz.bz2 --venv DIR [--modes 1 3] [--seconds 60] [--out solution.json]
    python benchmarks/peers/solution.py STAR.npz.bz2 --venv DIR --search ptychi --modes 1 --seconds 50 --clock cpu
    python benchmarks/peers/solution.py crystal.npz.bz2 --venv DIR --scene crystal [--modes 1] [--search ptyrad]

Run it with the Python that has ptymesh; DIR is an environment of the peers' own (compare.py). Every program runs by
itself, from the start of its process until its time is over, without 5 % of the views, and saves object and probe as it
goes. The seconds of what was saved are those of a process that ends there: imports, reading, and its own saving count,
what was saved before does not. Afterwards ptymesh's model gives the residual of the views that were held out, and of
the others, for what every program has saved, whatever its conventions (`READERS`).

Other scenes than the star (scenes.py) are simulated into the file where it is not there yet. Peers run with what was
`found` for the scene, the best of its `candidates` by --search, which holds out other views (seed 1); ptymesh runs a
recipe that says nothing of stages. A program is run once, ptymesh three times (medians), after a short run of each that
is not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ptymesh as pm  # before torch, so that both use the same threads

# isort: split
import numpy as np
import torch
from arrivals import arrivals
from scenes import SCENES, STAR, Options, Scene
from turns import load

from compare import HERE, install
from ptymesh.distributed.devices import device_for
from ptymesh.errors import PtymeshError
from ptymesh.estimate import BLOCK
from ptymesh.planning.batches import hold_out
from ptymesh.run import machine

HOLD_OUT = 0.05
#: Seeds of the views that are held out: of what is reported, and of the search.
REPORTED, SEARCHED = 0, 1
#: Runs of ptymesh, whose medians count.
REPEATS = 3

# --- what was saved -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """Object (L, H, W); probe (M, h, w), |probe|^2 in counts, optical axis at (h//2, w//2); corners (N, 2).

    corners: y x, object pixel under a window's first one, of all views or of those that the program saw.
    """

    object: np.ndarray
    probe: np.ndarray
    corners: np.ndarray


def read_ptymesh(saved: dict[str, np.ndarray]) -> Found:
    """Its own conventions."""
    return Found(saved["object"], saved["probe"], saved["positions"])


def read_ptychi(saved: dict[str, np.ndarray]) -> Found:
    """Pixel (i, j) lies at (i, j), windows around origin + position; its far field is not normalised."""
    probe = saved["probe"][0]
    h, w = probe.shape[-2:]
    middles = saved["probe_positions"].astype(float) + saved["origin"]
    return Found(saved["object"], probe * float(saved["unit"]), middles - (np.array([h, w]) - 1) / 2)


def read_cdtools(saved: dict[str, np.ndarray]) -> Found:
    """The object without slices where there is one; the probe in units of `probe_norm`."""
    obj = saved["obj"].reshape(-1, *saved["obj"].shape[-2:])
    return Found(obj, saved["probe"] * saved["probe_norm"], saved["positions"].astype(float))


def read_ptyrad(saved: dict[str, np.ndarray]) -> Found:
    """Amplitude and phase of the object, (object modes, L, H, W), of which there is one here; counts over `scale`."""
    obj = saved["obja"][0] * np.exp(1j * saved["objp"][0])
    return Found(obj, saved["probe"] * math.sqrt(saved["scale"]), saved["positions"].astype(float))


READERS: dict[str, Callable[[dict[str, np.ndarray]], Found]] = {
    "ptymesh": read_ptymesh,
    "ptychi": read_ptychi,
    "cdtools": read_cdtools,
    "ptyrad": read_ptyrad,
}


class Judge:
    """ptymesh's residual of what any program has found on this scan.

    held_out: indices of the views that programs do not see; `training` has the others.
    mean_count, mean_root: of a pixel of these others, and of its root.
    """

    def __init__(self, path: Path, seed: int, scene: Scene = STAR) -> None:
        recon = pm.Reconstruction(pm.load(path, **scene.lengths), object=scene.object)
        self.problem, self.estimate, self.positions = recon.problem, recon.state.estimate, recon.scan.positions
        self.held_out = hold_out(self.problem.unturned, HOLD_OUT, seed)
        self.training = np.setdiff1d(np.arange(self.problem.views), self.held_out)
        seen = load(path).patterns[self.training]
        self.mean_count, self.mean_root = float(seen.mean(dtype=float)), float(np.sqrt(seen).mean(dtype=float))

    def own(self, name: str, loss: float) -> float:
        """The residual that a program's own loss of an epoch stands for: gathered while the estimate moved.

        Pty-Chi and CDTools have the mean squared difference of amplitudes, PtyRAD its root over the mean amplitude.
        """
        if name == "ptymesh":
            return loss
        return (loss * self.mean_root) ** 2 / self.mean_count if name == "ptyrad" else loss / self.mean_count

    def residual(self, found: Found, views: np.ndarray) -> float:
        """Frozen, of these views; infinite where what was found holds what is no number."""
        if not (np.isfinite(found.object).all() and np.isfinite(found.probe).all()):
            return math.inf
        obj, corners = self._framed(found)
        at = torch.from_numpy(corners)
        estimate = replace(
            self.estimate,
            object=torch.from_numpy(obj),
            probe=torch.from_numpy(found.probe.astype(np.complex64)),
            positions=at,
            anchors=torch.floor(at + 0.5).to(torch.int64),
            nominal=at,
            opr=torch.zeros((0, *found.probe.shape[1:]), dtype=torch.complex64),
            extent=obj.shape[-2:],
        )
        return self.problem.residual(estimate, views)[0]

    def _framed(self, found: Found) -> tuple[np.ndarray, np.ndarray]:
        """The object with ones around it, so that all windows lie inside, and the corners of all views there."""
        positions = self.positions
        known = positions if len(found.corners) == len(positions) else positions[self.training]
        moved = (found.corners - known).mean(axis=0)
        apart = float(np.abs(found.corners - known - moved).max())
        if apart > 0.01:
            raise PtymeshError(f"saved positions differ by up to {apart:.3g} px from those of the scan")
        sides = [-(-n // BLOCK) * BLOCK + 2 * BLOCK for n in found.object.shape[-2:]]
        framed = np.ones((len(found.object), *sides), dtype=np.complex64)
        height, width = found.object.shape[-2:]
        framed[:, BLOCK : BLOCK + height, BLOCK : BLOCK + width] = found.object
        return framed, positions + moved + BLOCK


# --- runs -----------------------------------------------------------------------------------------------------------


def run(
    python: Path, name: str, options: Options, modes: int, held: Path, into: Path, given: argparse.Namespace
) -> None:
    """One program, from the start of its process until its time is over; snapshots in the folder `into`."""
    words = [str(given.star), "--modes", str(modes), "--threads", str(given.threads), "--clock", given.clock]
    words += ["--seconds", str(given.seconds), "--held-out", str(held), "--snapshots", str(into), "--epochs", "100000"]
    for key, value in {**SCENES[given.scene].words, **options}.items():
        words += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    threads = {f"{library}_NUM_THREADS": str(given.threads) for library in ("OMP", "MKL")}
    into.mkdir()
    command = [python, HERE / f"{name}_run.py", *words, "--began", str(time.monotonic())]
    done = subprocess.run(command, env={**os.environ, **threads}, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise PtymeshError(f"{name} stopped: {said[-1] if said else 'without a word'}")


def judged(name: str, folder: Path, judge: Judge) -> dict[str, Any]:
    """What a program saved: epochs, seconds and held-out residuals; at the end the residual of the views that it saw,
    and what it thought of that itself."""
    lines = [json.loads(line) for line in (folder / "snapshots.jsonl").read_text(encoding="utf-8").splitlines()]
    curve = []
    for line in lines:
        with np.load(folder / f"{line['epoch']}.npz") as saved:
            found = READERS[name](dict(saved))
        held = judge.residual(found, judge.held_out)
        curve.append({"epoch": line["epoch"], "seconds": round(line["seconds"], 3), "held_out": held})
    training = judge.residual(found, judge.training)
    own = judge.own(name, lines[-1]["loss"])
    return {"about": lines[-1]["about"], "curve": curve, "training": training, "own_training": own}


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One of several runs that do the same, as far as all have come, with the medians of their seconds."""
    first, *others = sorted(runs, key=lambda one: len(one["curve"]))
    for i, point in enumerate(first["curve"]):
        point["seconds"] = statistics.median([point["seconds"], *(one["curve"][i]["seconds"] for one in others)])
    return first


def search(name: str, python: Path, judge: Judge, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All candidates of a program."""
    for modes in given.modes:
        for options in SCENES[given.scene].candidates[name]:
            with tempfile.TemporaryDirectory() as place:
                held = _noted(judge, Path(place))
                run(python, name, options, modes, held, Path(place) / "run", given)
                yield {"program": name, "modes": modes, "options": options} | judged(name, Path(place) / "run", judge)


def race(peers: Path, judge: Judge, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All programs as they were found best; ptymesh between the peers, so that it sees what they see of the machine."""
    scene = SCENES[given.scene]
    others = [name for name in scene.found if name != "ptymesh" and name in given.programs]
    with tempfile.TemporaryDirectory() as place:
        held = _noted(judge, Path(place))

        def once(name: str, modes: int, turn: int, limits: argparse.Namespace) -> Path:
            folder = Path(place) / f"{name}-{modes}-{turn}"
            python, options = Path(sys.executable) if name == "ptymesh" else peers, scene.best(name, modes)
            run(python, name, options, modes, held, folder, limits)
            return folder

        short = argparse.Namespace(**{**vars(given), "seconds": 0.001})
        for name in ("ptymesh", *others):
            once(name, given.modes[0], -1, short)
        for modes in given.modes:
            folders: dict[str, list[Path]] = {"ptymesh": []}
            for turn in range(max(REPEATS, len(others))):
                if turn < REPEATS:
                    folders["ptymesh"].append(once("ptymesh", modes, turn, given))
                if turn < len(others):
                    folders[others[turn]] = [once(others[turn], modes, turn, given)]
            for name, runs in folders.items():
                case = {"program": name, "modes": modes, "options": scene.best(name, modes)}
                yield case | medians([judged(name, folder, judge) for folder in runs])


def _noted(judge: Judge, folder: Path) -> Path:
    np.save(folder / "held.npy", judge.held_out)
    return folder / "held.npy"


def main() -> None:
    """A line for every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("star", type=Path)
    parser.add_argument("--scene", choices=tuple(SCENES), default="star", help="what the file is, or becomes")
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--search", choices=tuple(STAR.candidates))
    parser.add_argument("--programs", nargs="+", default=list(STAR.candidates), choices=tuple(STAR.candidates))
    parser.add_argument("--modes", nargs="+", type=int, default=[1, 3])
    parser.add_argument("--seconds", type=float, default=60.0, help="that every run has")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--busy-ok", action="store_true", help="measure although other processes run")
    given = parser.parse_args()
    scene = SCENES[given.scene]
    if given.search and given.search not in scene.candidates:
        parser.error(f"{given.search} is not run on the scene {given.scene}; search {' or '.join(scene.candidates)}")
    others = machine.load_of_others()[0] if given.busy_ok else machine.refuse_if_busy()
    about = machine.describe(device_for("cpu", 0), given.threads) | {"cores_busy_with_others": round(others, 2)}
    seed = SEARCHED if given.search else REPORTED
    written = {"machine": about, "started": datetime.now(UTC).isoformat(timespec="seconds"), "clock": given.clock}
    written |= {"hold_out": HOLD_OUT, "seed": seed, "seconds": given.seconds}
    if scene.simulated and not given.star.exists():
        scene.write(given.star)
    python, judge = install(given.venv), Judge(given.star, seed, scene)
    cases: list[dict[str, Any]] = []
    for case in search(given.search, python, judge, given) if given.search else race(python, judge, given):
        cases.append(case)
        best = min(case["curve"], key=lambda point: float(point["held_out"]))
        said = " ".join(f"{key} {value}" for key, value in case["options"].items())
        print(
            f"{case['modes']} modes  {case['about']:16s} {said:44s} lowest {best['held_out']:.6f} in epoch "
            f"{best['epoch']} at {best['seconds']:.1f} s; trained to {case['training']:.6f}, by its own loss "
            f"{case['own_training']:.6f}",
            flush=True,
        )
        if given.out:
            given.out.write_text(json.dumps(written | {"cases": cases}, indent=1) + "\n", encoding="utf-8")
    for one in [] if given.search else arrivals(cases):
        ours = "is never there" if one.ratio is None else f"took {one.ours:.1f} s, ratio {one.ratio:.1f}"
        print(
            f"{one.case['modes']} modes  {one.case['about']:16s} within 1 % of {one.lowest:.6f} after "
            f"{one.seconds:.1f} s; ptymesh {ours}"
        )


if __name__ == "__main__":
    try:
        main()
    except PtymeshError as error:
        sys.exit(f"solution: {error}")
