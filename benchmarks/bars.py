"""The bars on the Siemens star: every engine's frozen residual, seconds, and held-out residual.

    python benchmarks/bars.py path/to/siemens-star-small.npz.bz2 [--only NAME ...] [--hold-out 0.05] [--out bars.json]
    ... --hold-out 0.05 --candidates --only "3 modes: rpie" "3 modes: adam"

Starts from the file's own probe (rescaled; extra modes of 2 % each) and an object of ones, batch 64. Prints a line as
each is done. With --hold-out a fraction of the views is left out of the reconstruction, and their residual is given.
Processor seconds, which other work on the machine disturbs less, are of all threads together; OMP_NUM_THREADS=1 makes
them those of one. What others ran before stays in the file of --out.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import ptymesh as pm  # before torch, so that both use the same threads

# isort: split
from record import about, write

from ptymesh.engines import ENGINES
from ptymesh.recipe.schema import DEFAULT_STAGES

POSITIONS = {"positions": {"start": 10}, "momentum": True}

#: name: (modes, stages, {epoch: bar, or None to look without one})
BARS: dict[str, tuple[int, list[dict], dict[int, float | None]]] = {
    "rpie": (1, [dict(engine="rpie", epochs=50)], {50: 0.0131}),
    "lsqml": (1, [dict(engine="lsqml", epochs=100)], {50: 0.0123, 100: 0.0121}),
    "lsqml, positions, momentum": (1, [dict(engine="lsqml", epochs=100, **POSITIONS)], {50: 0.0118, 100: 0.0116}),
    "lsqml, 3 modes": (3, [dict(engine="lsqml", epochs=100)], {50: 0.0092, 100: 0.0089}),
    "lsqml, 3 modes, positions, momentum": (
        3,
        [dict(engine="lsqml", epochs=100, **POSITIONS)],
        {50: 0.0087, 100: 0.0085},
    ),
    "dm 30 + ap 20": (1, [dict(engine="dm", epochs=30), dict(engine="ap", epochs=20)], {50: 0.0130}),
    "raar, beta 0.75": (1, [dict(engine="raar", epochs=200, beta=0.75)], {200: 0.0155}),
    "cg": (1, [dict(engine="cg", epochs=60)], {60: 0.0120}),
    "bh": (1, [dict(engine="bh", epochs=60)], {60: 0.0120}),
    "l-bfgs": (1, [dict(engine="lbfgs", epochs=60)], {60: None}),
    "adam": (1, [dict(engine="adam", epochs=100)], {100: 0.0130}),
}
#: Candidates for the default, for --hold-out: three modes, with positions refined from the tenth epoch, and without.
MARKS: dict[int, float | None] = dict.fromkeys((10, 20, 24, 30, 50, 75, 100))
MOVING = {"positions": {"start": 10}}
CANDIDATES: dict[str, tuple[int, list[dict], dict[int, float | None]]] = {
    f"{modes} modes: {name}": (modes, [dict(epochs=100, **stage)], MARKS)
    for modes in (1, 3)
    for name, stage in {
        "rpie": dict(engine="rpie"),
        "rpie, positions": dict(engine="rpie", **MOVING),
        "lsqml": dict(engine="lsqml"),
        "lsqml, momentum": dict(engine="lsqml", momentum=True),
        "lsqml, positions": dict(engine="lsqml", **MOVING),
        "lsqml, positions, momentum": dict(engine="lsqml", **POSITIONS),
        "adam": dict(engine="adam"),
        "adam, positions": dict(engine="adam", **MOVING),
    }.items()
}
#: The default itself, and how far it would come in the end.
MARKS |= {25: None, 40: None, 185: None}
for modes in (1, 3):
    CANDIDATES[f"{modes} modes: default"] = (modes, DEFAULT_STAGES, MARKS)
    further = [*DEFAULT_STAGES[:-1], {**DEFAULT_STAGES[-1], "epochs": 180}]
    CANDIDATES[f"{modes} modes: default, further"] = (modes, further, MARKS)


def run(path: Path, modes: int, stages: list[dict], marks: dict[int, float | None], hold_out: float) -> dict:
    """Frozen residual, seconds (of the epochs and the views held out) at the marks; held-out residuals by epoch."""
    recon = pm.Reconstruction(pm.load(path), probe_modes=modes)
    for stage in stages:
        recon.stages.append(ENGINES[stage["engine"]](**{k: v for k, v in stage.items() if k != "engine"}))
    reports, at, seconds, worked, began = [], {}, 0.0, 0.0, 0.0
    for report in recon.loop(hold_out=hold_out).epochs():
        reports.append(report)
        seconds += report.seconds
        if len(reports) > 1:  # the first one loads the kernels
            worked += time.process_time() - began
        if report.done_epochs in marks:
            residual = recon.problem.residual(recon.state.estimate)[0]
            spent = {"seconds": seconds, "processor_s": worked}
            at[report.done_epochs] = {"residual": residual, "held_out": report.held_out, **spent}
        began = time.process_time()
    return {"at": at, "held_out": [r.held_out for r in reports], "seconds": [r.seconds for r in reports]}


def main() -> None:
    """Runs the bars that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--candidates", action="store_true", help="for the default, instead of the bars")
    parser.add_argument("--hold-out", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    known = CANDIDATES if arguments.candidates else BARS
    if unknown := set(arguments.only or ()) - set(known):
        parser.error(f"{sorted(unknown)[0]!r} is none of {', '.join(map(repr, known))}")
    before = json.loads(arguments.out.read_text()) if arguments.out and arguments.out.exists() else {}
    found: dict = before | about() | {"hold_out": arguments.hold_out}
    for name in arguments.only or known:
        modes, stages, marks = known[name]
        found[name] = run(arguments.path, modes, stages, marks, arguments.hold_out)
        for epoch, got in found[name]["at"].items():
            bar = marks[epoch]
            verdict = "" if bar is None else f"  bar {bar:.4f} {'reached' if got['residual'] <= bar else 'MISSED'}"
            held = "" if got["held_out"] is None else f"  held out {got['held_out']:.5f}"
            print(
                f"{name:36s} {epoch:4d} epochs  {got['residual']:.5f}{held}  {got['seconds']:6.1f} s, "
                f"of the processor {got['processor_s']:.1f} s{verdict}",
                flush=True,
            )
        write(arguments.out, found)


if __name__ == "__main__":
    main()
