"""Every fault point of a short run: the n-th write, fsync, rename, ... fails, for every n, on one and on two ranks.

    python tests/fuzz/faults.py [--ranks 1,2] [--kinds write,sync] [--workers 2] [--report faults.json]

The preloaded library of shim.c lets one call fail in one process. Whatever becomes of the run, it says so in a
sentence, the checkpoint is sound or absent, and going on from it ends with the bits and the files of a run that nothing
disturbed. Each series (a kind of call, an error, a process) goes on until its n-th call does not occur any more.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import judged  # noqa: E402
from judged import Scene  # noqa: E402
from programs import Ended, Programs, compile_shim  # noqa: E402

#: As in shim.c.
KINDS = ("write", "sync", "rename", "map", "send", "said", "open", "truncate")
MODES = ("once", "always", "short")
FAULT = "PTYMESH_TEST_FAULT"
RECIPE = """
data: {path: scan.cxi}
stages: [{engine: rpie, epochs: 3, batch: 5, positions: true}]
output: {figures: false, checkpoint_every: 1}
"""
#: Of each kind, what is tried. A call that was interrupted, and one that did half, are repeated by who made it.
TRIED: dict[str, tuple[tuple[str, str], ...]] = {
    "write": (("ENOSPC", "once"), ("ENOSPC", "always"), ("EIO", "once"), ("EINTR", "once"), ("0", "short")),
    "sync": (("EIO", "once"), ("EDQUOT", "always"), ("EINTR", "once")),
    "rename": (("EIO", "once"), ("EACCES", "always")),
    "map": (("ENOMEM", "once"), ("ENOMEM", "always")),
    "send": (("ECONNRESET", "once"), ("EPIPE", "always"), ("EINTR", "once"), ("0", "short")),
    "said": (("ENOSPC", "once"), ("EPIPE", "always"), ("EINTR", "once"), ("0", "short")),
    "open": (("ENOSPC", "once"), ("EACCES", "always"), ("EMFILE", "once")),
    "truncate": (("ENOSPC", "once"), ("EIO", "always")),
}
#: Faults that do no harm: the run ends as if nothing had been.
HARMLESS = ("EINTR", "0")
#: A series ends after so many points in a row that were not reached: how often ranks tell each other something varies.
UNREACHED = 3


@dataclass(frozen=True)
class Point:
    """One fault: in which process (a rank, or "launcher") of how many ranks, and which call of which kind."""

    ranks: int
    who: str
    kind: str
    error: str
    mode: str
    at: int = 1

    def __str__(self) -> str:
        return f"{self.ranks} ranks, in {self.who}: {self.kind} {self.at}, {self.error} {self.mode}"

    def environment(self, region: Path) -> dict[str, str]:
        """For server.py."""
        error = 0 if self.error == "0" else getattr(errno, self.error)
        kind = KINDS.index(self.kind) if self.kind in KINDS else -1
        fault = {"who": self.who, "region": str(region), "kind": kind, "at": self.at}
        return {FAULT: json.dumps({**fault, "error": error, "mode": MODES.index(self.mode)})}


@dataclass
class Outcome:
    """What came of it. outcome: not reached, harmless, resumed, anew or violation."""

    point: Point
    outcome: str
    status: int | None
    what: str
    wrong: list[str]
    said: str
    seconds: float


@dataclass(frozen=True)
class Counted:
    """What the shim has told: calls of each kind, how many failed, and the first of those."""

    calls: dict[str, int]
    failed: int
    what: str

    @classmethod
    def read(cls, region: Path) -> Counted:
        """Nothing, where the process was never there."""
        content = region.read_bytes() if region.exists() else b""
        content = content.ljust(8 * (len(KINDS) + 1) + 512, b"\0")
        *calls, failed = struct.unpack_from(f"{len(KINDS) + 1}q", content)
        what = content[8 * (len(KINDS) + 1) :].split(b"\0")[0].decode(errors="replace")
        return cls(dict(zip(KINDS, calls, strict=True)), failed, what)


class Bench:
    """Where points are tried, one at a time: a server of programs with the shim in it, and the small problem."""

    def __init__(self, scene: Scene, shim: Path) -> None:
        self.scene, self.programs = scene, Programs(shim)
        self.region = self.programs.home / "region"
        self._counts: dict[tuple[int, str], dict[str, int]] = {}

    def close(self) -> None:
        """All of it goes."""
        self.programs.close()

    def count(self, ranks: int, who: str) -> dict[str, int]:
        """Calls of each kind in one process of an undisturbed run; counted once."""
        if (ranks, who) not in self._counts:
            folder = self.scene.fresh()
            status, counted, _ = self.disturbed(Point(ranks, who, "", "0", "once", 0), folder)
            shutil.rmtree(folder)
            assert status.status == 0 and not counted.failed, status
            self._counts[ranks, who] = counted.calls
        return self._counts[ranks, who]

    def attempt(self, point: Point) -> Outcome:
        """A run with this fault, and the run that goes on from there."""
        began = time.monotonic()
        self.scene.learn(self.programs, point.ranks)
        folder = self.scene.fresh()
        try:
            ended, counted, wrong = self.disturbed(point, folder)
            said = ended.err[-1500:]
            if ended.status is None:
                said = "\n".join([ended.err[-6000:], *judged.heard(folder)])
            outcome = "harmless" if counted.failed else "not reached"
            name = counted.what.rpartition("/")[2]
            reason = "" if point.error == "0" else os.strerror(getattr(errno, point.error))
            names = ("Rank ", reason, name) if point.ranks > 1 else (reason, name)
            wrong += judged.judge_end(ended, names=tuple(filter(None, names)))
            wrong += judged.judge_checkpoint(folder / "out", self.scene, point.ranks)
            if ended.status == 0:
                wrong += judged.judge_result(folder, self.scene, point.ranks)
            elif not counted.failed:
                wrong.append("it failed though no call did")
            elif point.error in HARMLESS or point.kind == "said":
                wrong.append("the run was harmed")
            if ended.status != 0:
                outcome, more = judged.go_on(self.programs, folder, self.scene, point.ranks)
                wrong += more
            what = counted.what.replace(str(folder) + "/", "")
            return Outcome(
                point, "violation" if wrong else outcome, ended.status, what, wrong, said, time.monotonic() - began
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def disturbed(self, point: Point, folder: Path) -> tuple[Ended, Counted, list[str]]:
        """How the run ended, what the shim has told, and what lies about."""
        self.region.unlink(missing_ok=True)
        arguments = judged.command(point.ranks, "run", "recipe.yaml")
        environment = point.environment(self.region)
        ended = self.programs.run(arguments, folder, environment, judged.spares(point.ranks))
        return ended, Counted.read(self.region), judged.judge_litter(self.programs)

    def series(self, first: Point) -> Iterator[Outcome]:
        """Every call of this kind in turn, until there are no more."""
        unreached, at = 0, 0
        while unreached < UNREACHED:
            at += 1
            outcome = self.attempt(replace(first, at=at))
            unreached = unreached + 1 if outcome.outcome == "not reached" else 0
            yield outcome


def all_series(ranks: tuple[int, ...], kinds: tuple[str, ...]) -> list[Point]:
    """The first point of each."""
    return [
        Point(count, who, kind, error, mode)
        for count in ranks
        for who in (*map(str, range(count)), *(["launcher"] if count > 1 else []))
        for kind in kinds
        for error, mode in TRIED[kind]
    ]


def sweep(scene: Scene, shim: Path, series: list[Point], workers: int, most_s: float) -> list[Outcome]:
    """All points of all series, by several workers; violations are told as they come."""
    waiting, outcomes, lock, end = list(series), [], threading.Lock(), time.monotonic() + most_s

    def work() -> None:
        bench = Bench(scene, shim)
        try:
            while True:
                with lock:
                    if not waiting or time.monotonic() > end:
                        return
                    first = waiting.pop(0)
                began, count = time.monotonic(), 0
                for outcome in bench.series(first):
                    count += 1
                    with lock:
                        outcomes.append(outcome)
                    if outcome.wrong:
                        print(f"VIOLATION {outcome.point} ({outcome.what}): {'; '.join(outcome.wrong)}", flush=True)
                    if time.monotonic() > end:
                        break
                print(f"{replace(first, at=count)}: {time.monotonic() - began:.0f} s", flush=True)
        finally:
            bench.close()

    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work) for _ in range(workers)]:
            done.result()
    return outcomes


def table(outcomes: list[Outcome]) -> dict[str, dict[str, int]]:
    """Counts of outcomes by ranks and kind."""
    rows: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        rows.setdefault(f"{outcome.point.ranks} {outcome.point.kind}", Counter())[outcome.outcome] += 1
    return {name: dict(row) for name, row in rows.items()}


def main() -> int:
    """The campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--report", type=Path, default=Path("faults.json"))
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ptymesh-faults-") as name:
        folder = Path(name)
        scene, shim = judged.scene(folder, RECIPE), compile_shim(folder)
        ranks = tuple(map(int, given.ranks.split(",")))
        bench = Bench(scene, shim)
        for count in ranks:
            scene.learn(bench.programs, count)
        bench.close()
        outcomes = sweep(scene, shim, all_series(ranks, tuple(given.kinds.split(","))), given.workers, given.seconds)
    seconds = time.monotonic() - began
    counts, bad = table(outcomes), [outcome for outcome in outcomes if outcome.wrong]
    reached = sum(outcome.outcome != "not reached" for outcome in outcomes)
    report = {
        "points": reached,
        "seconds": round(seconds),
        "violations": len(bad),
        "counts": counts,
        "violating": [asdict(outcome) for outcome in bad],
    }
    given.report.write_text(json.dumps(report, indent=1) + "\n")
    for row, found in counts.items():
        print(f"{row:12}", "  ".join(f"{name} {count}" for name, count in sorted(found.items())))
    print(f"{reached} fault points in {seconds:.0f} s, {len(bad)} violations; report in {given.report}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
