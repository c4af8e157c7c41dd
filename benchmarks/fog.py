"""Does a run know when its picture is fog? Simulated scans, right and wrong in many ways, and what the program says.

    python benchmarks/fog.py --out benchmarks/results/DATE-fog.json [--held-back] [--processes 2]
    python benchmarks/fog.py --quick

Every kind of fault has five levels, from barely to grossly. Each scan is run as its file and recipe say, and with the
right model. It is poor by definition, not by intention, where the object's error against the truth (after global
phase, scale, phase ramp, shift, and the twin where it is exact) is more than 1.5 times that of the right model on the
same data. Kinds that are held back are left out unless `--held-back` asks for them: they are for judging, not for
choosing thresholds. Forty scans are also run by `ptymesh run FILE`.

Every row is written as it is done (OUT with .jsonl), and a command that is begun again goes on from there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: one thread for each process

import numpy as np
from fog_faults import FAULTS
from fog_healthy import HEALTHY
from fog_runs import command_of_recipe, run_case
from fog_scans import Setup
from fog_setups import Case
from fog_table import lines, totals

#: Seeds of each healthy kind; as many as levels of each fault.
SEEDS = 5
#: Of these faults, at the third level, and of the first seed of all healthy kinds, a file alone is run as well.
BY_AUTO = (
    "orientation",
    "rotation",
    "scale",
    "stretch",
    "lag",
    "serpentine",
    "scatter",
    "drift",
    "gaps",
    "hot pixels",
    "saturation",
    "background",
    "blank",
    "mad",
    "flicker",
    "descan",
    "one mode",
    "fly scan",
    "defocus",
    "single slice",
)
AUTO_LEVEL = 2
#: Level of which `ptymesh diagnose` is asked as well, with its trials; a run names its first cause without them.
DIAGNOSED_LEVEL = 2
#: Kinds, levels and ways of `--quick`.
QUICK = (
    ("spiral path", 0, "recipe"),
    ("thin electrons", 0, "recipe"),
    ("near field", 0, "recipe"),
    ("faint", 0, "recipe"),
    ("rotation", 3, "recipe"),
    ("gaps", 4, "recipe"),
    ("one mode", 4, "recipe"),
    ("defocus", 3, "recipe"),
    ("single slice", 4, "recipe"),
    ("jittered path", 0, "auto"),
)


@dataclass(frozen=True, order=True)
class Task:
    """One scan and the way in which it is run: `recipe` or `auto`."""

    kind: str
    level: int
    way: str

    @property
    def is_healthy(self) -> bool:
        """Whether its file and recipe say what is true."""
        return self.kind in HEALTHY

    @property
    def seed(self) -> list[int]:
        """What its random numbers come from."""
        return [crc32(self.kind.encode()), self.level]

    def make(self) -> tuple[Setup, Case, Case]:
        """Return the experiment, the case that is judged, and the right one (of healthy scans the same)."""
        rng = np.random.default_rng(self.seed)
        if self.is_healthy:
            setup, case = HEALTHY[self.kind](rng)
            return setup, case, case
        kind = FAULTS[self.kind]
        return kind.make(rng, kind.levels[self.level])


def all_tasks(*, held_back: bool) -> list[Task]:
    """Return all scans, the kinds in turns, so that whatever is done first is of all kinds."""
    faults = {name: kind for name, kind in FAULTS.items() if held_back or not kind.held_back}
    found = []
    for level in (3, 1, 4, 0, 2):
        found += [Task(name, level, "recipe") for name in HEALTHY]
        found += [Task(name, level, "recipe") for name, kind in faults.items() if level < len(kind.levels)]
        if level == AUTO_LEVEL:
            found += [Task(name, 0, "auto") for name in HEALTHY]
            found += [Task(name, AUTO_LEVEL, "auto") for name in BY_AUTO]
    return found


def judge(task: Task) -> dict[str, Any]:
    """Make a scan, run it in its way and with the right model, and return all that is known of both."""
    began = time.perf_counter()
    setup, wrong, right = task.make()
    row: dict[str, Any] = {"kind": task.kind, "level": task.level, "way": task.way, "healthy": task.is_healthy}
    row |= {"views": len(wrong.scan.patterns), "window": setup.window, "dose": round(setup.dose, 1)}
    if not task.is_healthy:
        kind = FAULTS[task.kind]
        row |= {"value": kind.levels[task.level], "causes": kind.causes, "words": kind.words}
        row |= {"apart": kind.apart, "held_back": kind.held_back}
    with tempfile.TemporaryDirectory(prefix="fog-") as folder:
        place = Path(folder)
        row["simulation_s"] = round(time.perf_counter() - began, 2)
        diagnosed = task.level == DIAGNOSED_LEVEL
        row["run"] = run_case(setup, wrong, place / "judged", task.way, diagnosed)
        if not (task.is_healthy and task.way == "recipe"):
            row["right"] = run_case(setup, right, place / "right", "recipe", diagnosed=False)
    row["seconds"] = round(time.perf_counter() - began, 2)
    return row


def judged(tasks: list[Task], processes: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of all tasks as they are done; each process has one thread."""
    if processes == 1:
        yield from map(judge, tasks)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        for done in as_completed([pool.submit(judge, task) for task in tasks]):
            yield done.result()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows that are done; a line that was cut off is not."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row["kind"] in FAULTS:  # what is the right cause may have been said more exactly since
            row |= {"causes": FAULTS[row["kind"]].causes, "words": FAULTS[row["kind"]].words}
        found.append(row)
    return found


def main() -> None:
    """Run what is not done, print the table and totals, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file; rows go beside it, with .jsonl")
    parser.add_argument("--held-back", action="store_true", help="also the kinds that thresholds were not chosen on")
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} scans")
    parser.add_argument("--only", nargs="*", metavar="KIND", help="these kinds")
    parser.add_argument("--levels", nargs="*", type=int, metavar="LEVEL", help="these levels or seeds, 0 to 4")
    parser.add_argument("--way", choices=["recipe", "auto"], help="only by recipe, or only by file")
    parser.add_argument("--most", type=int, help="stop after so many scans")
    parser.add_argument("--processes", type=int, default=2, help="of one thread each")
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    from record import about, write

    tasks = [Task(*one) for one in QUICK] if given.quick else all_tasks(held_back=given.held_back)
    tasks = [
        task
        for task in tasks
        if (given.only is None or task.kind in given.only)
        and (given.levels is None or task.level in given.levels)
        and given.way in (None, task.way)
    ]
    store = given.out.with_suffix(".jsonl") if given.out else None
    rows = read_rows(store) if store else []
    done = {(row["kind"], row["level"], row["way"]) for row in rows}
    todo = [task for task in tasks if (task.kind, task.level, task.way) not in done][: given.most]
    began, machine = time.monotonic(), about(threads=1)
    command_of_recipe()  # what every run imports, once
    for count, row in enumerate(judged(todo, given.processes), 1):
        rows.append(row)
        print(f"{count}/{len(todo)} {' | '.join(lines([row])[2].strip('| ').split(' | '))}", flush=True)
        if store:
            with store.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    print("\n".join(lines(rows)))
    summary = totals(rows)
    print("\n".join(f"{name}: {value}" for name, value in summary.items()))
    seconds = round(time.monotonic() - began)
    print(f"{len(todo)} scans in {seconds / 60:.0f} minutes; {len(rows)} of {len(tasks)} are done")
    write(given.out, machine | {"seconds": seconds, "scans": len(tasks), "totals": summary, "rows": rows})


if __name__ == "__main__":
    main()
