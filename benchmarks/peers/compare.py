"""ptymesh beside Pty-Chi, CDTools and PtyRAD on the Siemens star, in one session, in turns.

    python benchmarks/peers/compare.py STAR.npz.bz2 --venv DIR [--threads 2] [--out peers.json]
    python benchmarks/peers/compare.py STAR.npz.bz2 --site DIR --peers ptychi ptyrad      # without a network

Run it with the Python that has ptymesh. DIR is an environment of the peers' own; it is made, and the peers installed
from PyPI, where it does not exist. --site names a folder that `pip install --target` has filled, for this Python.

All programs get the same patterns, positions (fixed), starting probe modes, batch size and threads, in single
precision. A turn is as many whole epochs as make a second, at least one and at most fifty: the first epoch after
another program had the processor is slower than those that follow, and an epoch may take a tenth of a second. The very
first epoch of each is not counted; speeds are those of the median epoch.

With --peers ptyrad, --slices 8, --positions and --inner 64 compare several slices, refined positions, smaller windows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import torch
from turns import add_several

from ptymesh.distributed.devices import device_for
from ptymesh.errors import PtymeshError
from ptymesh.run import machine

HERE = Path(__file__).parent
PEERS = ("ptychi==2.2.0", "cdtools-py==0.3.2", "ptyrad==1.0.0")
#: Views of the star.
VIEWS = 516
#: A turn: seconds, at least, unless these are so many epochs.
TURN_S, MOST = 1.0, 50
#: (script, its engine); ptymesh's engine of the same name runs beside it.
RUNS = (
    ("ptychi_run.py", "rpie"),
    ("ptychi_run.py", "lsqml"),
    ("ptychi_run.py", "adam"),
    ("ptychi_run.py", "bh"),
    ("cdtools_run.py", "adam"),
    ("ptyrad_run.py", "adam"),
)


def install(venv: Path) -> Path:
    """The peers' Python; makes the environment, or completes it, where they are not there."""
    python = venv / ("Scripts" if os.name == "nt" else "bin") / "python"
    names = [peer.partition("==")[0] for peer in PEERS]
    look = f"from importlib.metadata import version; [version(name) for name in {names}]"
    if not python.exists() or subprocess.run([python, "-c", look], capture_output=True).returncode:
        print(f"Installing {', '.join(PEERS)} into {venv}; this takes minutes.", flush=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        # with the torch that ptymesh runs with, so that none is fetched that is newer, or for another device
        pip = [python, "-m", "pip", "install", "--quiet", f"torch=={torch.__version__.partition('+')[0]}"]
        subprocess.run([*pip, *PEERS], check=True)
    mend_ptyrad(venv)
    return python


def python_of(folder: Path) -> Path:
    """The Python of an environment; this one's where the folder holds packages alone (pip install --target)."""
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    return python if python.exists() else Path(sys.executable)


def mend_ptyrad(venv: Path) -> None:
    """PtyRAD 1.0.0 writes quotes within quotes in one f-string, which Python before 3.12 cannot read: other quotes."""
    folder = Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))
    file = folder / "ptyrad" / "plotting" / "basic.py"
    text = file.read_text(encoding="utf-8")
    mended = text.replace("{lr_iters['niter'][-1]}'", '{lr_iters["niter"][-1]}\'')
    if mended != text:
        file.write_text(mended, encoding="utf-8")


class Run:
    """One program on one engine, which does an epoch when it is told to."""

    def __init__(
        self, python: Path, script: str, options: list[str], threads: int, more: Mapping[str, str] | None = None
    ) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **(more or {})}
        self.name = Path(script).name.removesuffix("_run.py")
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # a pipe that nobody reads would fill up
        self.process = subprocess.Popen(
            [python, HERE / script, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
            env=environment,
        )
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def ready(self) -> None:
        """Waits until data and model are there."""
        self.about = self._answer()["ready"]

    def turn(self) -> None:
        """Epochs of a second, or one that takes longer; the very first by itself."""
        first = len(self.seconds)
        self.epoch()
        while first and sum(self.seconds[first:]) < TURN_S and len(self.seconds) < first + MOST:
            self.epoch()

    def epoch(self) -> None:
        """One epoch; its seconds and loss are noted."""
        _pipe(self.process.stdin).write("go\n")
        _pipe(self.process.stdin).flush()
        answer = self._answer()
        self.seconds.append(answer["seconds"])
        self.losses.append(answer["loss"])

    def _answer(self) -> dict[str, Any]:
        line = _pipe(self.process.stdout).readline()
        if not line:
            self.said.seek(0)
            said = self.said.read().strip().splitlines()
            raise PtymeshError(f"{self.name} stopped: {said[-1] if said else 'without a word'}")
        return dict(json.loads(line))

    def stop(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.communicate()
        self.said.close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def side_by_side(
    python: Path,
    script: str,
    engine: str,
    modes: int,
    given: argparse.Namespace,
    views: int = VIEWS,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A peer and ptymesh in turns, the first epoch of each not counted.

    Args:
        python: of the peer; script: that runs it.
        engine, modes: of both.
        given: options of the command line; views: of the scan.
        environment: variables that the peer needs besides this process's own.
    """
    options = [str(given.star), "--engine", engine, "--modes", str(modes), "--batch", str(given.batch)]
    options += ["--epochs", str(1 + MOST * given.turns), "--threads", str(given.threads), "--device", given.device]
    options += ["--clock", given.clock, "--slices", str(given.slices)] + ["--positions"] * given.positions
    options += ["--inner", str(given.inner)] if given.inner else []
    ours = Path(sys.executable)
    with contextlib.ExitStack() as stack:
        runs = [
            Run(python, script, options, given.threads, environment),
            Run(ours, "ptymesh_run.py", [*options, "--subpixel", given.subpixel], given.threads),
        ]
        for run in runs:
            stack.callback(run.stop)
        for run in runs:
            run.ready()
        for _ in range(given.turns + 1):
            for run in runs:
                run.turn()
        speeds = [views / statistics.median(run.seconds[1:]) for run in runs]
        return {
            "engine": engine,
            "modes": modes,
            "batch": given.batch,
            "peer": runs[0].about,
            "peer_views_per_s": speeds[0],
            "ptymesh_views_per_s": speeds[1],
            "ratio": speeds[1] / speeds[0],
            "seconds": {run.name: run.seconds for run in runs},
            "losses": {run.name: run.losses for run in runs},
        }


def compare(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All comparisons that were asked for, as they are done."""
    if given.site:
        python = Path(sys.executable)
        paths = [os.environ.get("PYTHONPATH"), str(given.site.resolve())]  # what this Python has goes before
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    else:
        python = install(given.venv)
    for modes in given.modes:
        for script, engine in RUNS:
            if engine in given.engines and script.removesuffix("_run.py") in given.peers:
                yield side_by_side(python, script, engine, modes, given)


def main() -> None:
    """Prints a line per comparison, and writes JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("star", type=Path)
    environment = parser.add_mutually_exclusive_group(required=True)
    environment.add_argument("--venv", type=Path, help="the peers' environment, made where it does not exist")
    environment.add_argument("--site", type=Path, help="a folder with the peers, for this Python")
    parser.add_argument("--engines", nargs="+", default=["rpie", "lsqml", "adam", "bh"])
    parser.add_argument("--peers", nargs="+", default=["ptychi", "cdtools", "ptyrad"])
    parser.add_argument("--modes", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5, help="that are counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--subpixel", default="fourier", help="ptymesh's; Pty-Chi and CDTools shift by Fourier too")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu, on cores that others keep busy")
    add_several(parser)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--busy-ok", action="store_true", help="measure although other processes run")
    given = parser.parse_args()
    if (given.slices > 1 or given.positions or given.inner) and set(given.peers) - {"ptyrad"}:
        parser.error("--slices, --positions and --inner are PtyRAD's and ptymesh's; add --peers ptyrad")
    if given.turns < 1:
        parser.error(f"--turns is {given.turns}; give 1 or more")
    others = machine.load_of_others()[0] if given.busy_ok else machine.refuse_if_busy()
    about = machine.describe(device_for(given.device, 0), given.threads) | {"cores_busy_with_others": round(others, 2)}
    started = datetime.now(UTC).isoformat(timespec="seconds")
    found: list[dict[str, Any]] = []
    if given.out and given.out.exists():  # comparisons that were made before stay
        found = json.loads(given.out.read_text())["comparisons"]
    print(f"{about['gpu'] or about['cpu']}, {given.threads} threads; others keep {others:.1f} cores busy")
    print(f"{'engine':8s}{'modes':>6s}  {'peer':16s}{'views/s':>9s}{'ptymesh':>9s}{'ratio':>8s}  losses of the peer")
    for line in compare(given):
        found = [one for one in found if any(one[key] != line[key] for key in ("engine", "modes", "peer"))] + [line]
        losses = line["losses"][line["peer"].split()[0]]
        print(
            f"{line['engine']:8s}{line['modes']:6d}  {line['peer']:16s}{line['peer_views_per_s']:9.0f}"
            f"{line['ptymesh_views_per_s']:9.0f}{line['ratio']:8.1f}  {losses[0]:.4g} -> {losses[-1]:.4g}",
            flush=True,
        )
        if given.out:
            written = {"machine": about, "started": started, "comparisons": found}
            given.out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except PtymeshError as error:
        sys.exit(f"compare: {error}")
