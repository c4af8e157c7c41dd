"""The bars on the Siemens star: every engine's frozen residual, seconds, and held-out residual.

    python benchmarks/bars.py path/to/siemens-star-small.npz.bz2 [--only NAME ...] [--hold-out 0.05] [--out bars.json]

Starts from the file's own probe (rescaled; extra modes of 2 % each) and an object of ones, batch 64. Prints a line as
each is done. With --hold-out a fraction of the views is left out of the reconstruction, and their residual is given.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch

import ptymesh as pm
from ptymesh.engines import ENGINES

POSITIONS = {"positions": {"start": 10}, "momentum": True}

#: name: (modes, stages, bar of ALGORITHMS.md or None)
BARS: dict[str, tuple[int, list[dict], float | None]] = {
    "rpie, 50": (1, [dict(engine="rpie", epochs=50)], 0.0131),
    "lsqml, 50": (1, [dict(engine="lsqml", epochs=50)], 0.0123),
    "lsqml, 100": (1, [dict(engine="lsqml", epochs=100)], 0.0121),
    "lsqml, positions and momentum, 50": (1, [dict(engine="lsqml", epochs=50, **POSITIONS)], 0.0118),
    "lsqml, positions and momentum, 100": (1, [dict(engine="lsqml", epochs=100, **POSITIONS)], 0.0116),
    "lsqml, 3 modes, 50": (3, [dict(engine="lsqml", epochs=50)], 0.0092),
    "lsqml, 3 modes, 100": (3, [dict(engine="lsqml", epochs=100)], 0.0089),
    "lsqml, 3 modes, positions and momentum, 50": (3, [dict(engine="lsqml", epochs=50, **POSITIONS)], 0.0087),
    "lsqml, 3 modes, positions and momentum, 100": (3, [dict(engine="lsqml", epochs=100, **POSITIONS)], 0.0085),
    "dm 30 + ap 20": (1, [dict(engine="dm", epochs=30), dict(engine="ap", epochs=20)], 0.0130),
    "raar 0.75, 200": (1, [dict(engine="raar", epochs=200, beta=0.75)], 0.0155),
    "cg, 60": (1, [dict(engine="cg", epochs=60)], 0.0120),
    "bh, 60": (1, [dict(engine="bh", epochs=60)], 0.0120),
    "adam, 100": (1, [dict(engine="adam", epochs=100)], 0.0130),
}


def run(path: Path, modes: int, stages: list[dict], hold_out: float) -> dict:
    """Frozen residual, seconds of the epochs alone, and the held-out residual."""
    recon = pm.Reconstruction(pm.load(path), probe_modes=modes)
    recon.stages = []
    for stage in stages:
        options = {key: value for key, value in stage.items() if key != "engine"}
        recon.stages.append(ENGINES[stage["engine"]](**options))
    began, reports = time.perf_counter(), []
    for report in recon.loop(hold_out=hold_out).epochs():
        reports.append(report)
    seconds = time.perf_counter() - began
    return {
        "residual": recon.problem.residual(recon.state.estimate)[0],
        "seconds": seconds,
        "held_out": reports[-1].held_out,
        "held_out_by_epoch": [report.held_out for report in reports],
        "seconds_by_epoch": [report.seconds for report in reports],
    }


def main() -> None:
    """Runs the bars that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--only", nargs="*", default=list(BARS))
    parser.add_argument("--hold-out", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = {"machine": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    for name in arguments.only:
        modes, stages, bar = BARS[name]
        got = found[name] = run(arguments.path, modes, stages, arguments.hold_out)
        verdict = "" if bar is None else f"  bar {bar:.4f} {'reached' if got['residual'] <= bar else 'MISSED'}"
        held = "" if got["held_out"] is None else f"  held out {got['held_out']:.5f}"
        print(f"{name:46s} {got['residual']:.5f}{held}  {got['seconds']:6.1f} s{verdict}", flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
