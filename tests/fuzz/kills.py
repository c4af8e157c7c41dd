"""Runs are killed at random moments, and resumed: in every phase, by every signal, one rank, the launcher or all.

    python tests/fuzz/kills.py [--tries 200] [--seed N] [--report kills.json]

The disturbed run ends soon and as promised, leaves no process, and a checkpoint that is sound, if any; going on from
it, now and then on another number of ranks, ends with the bits and the files of a run that nothing disturbed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import judged  # noqa: E402
from judged import Scene  # noqa: E402
from numba.core.caching import _CacheLocator  # noqa: E402
from programs import Programs  # noqa: E402

from ptymesh.kernels.cpu import compiled  # noqa: E402

EPOCHS = 8
RECIPE = f"""
data: {{path: scan.cxi}}
stages: [{{engine: rpie, epochs: {EPOCHS}, batch: 5, positions: true}}]
output: {{figures: FIGURES, checkpoint_every: 1}}
"""
#: import: the programs start anew, without what warm.py has imported.
PHASES = ("start", "batch", "save", "plot", "end", "compile", "import")
#: STOP: it is stopped and killed a little later.
SIGNALS = ("TERM", "INT", "USR1", "HUP", "KILL", "STOP")
#: Seconds that one kernel takes, about.
COMPILING_S = 1.5
#: Seconds in which a run ends after any of them, all its processes included; on a machine that others use.
ENDS_S = 30.0
#: Seconds after which Python's own beginning, in which nobody can handle a signal, is over.
PYTHON_S = 1.0
DEATHS = ("KILL", "STOP")


@dataclass(frozen=True)
class Kill:
    """phase: when; part: how far into it (0 to 1); victim: "launcher" (or the only process), "all", or a rank."""

    ranks: int
    phase: str
    part: float
    victim: str
    signal: str
    then: int

    @property
    def statuses(self) -> tuple[int, ...]:
        """What it may end with: 0 where the signal came too late."""
        whole = self.ranks == 1 or self.victim in ("launcher", "all")
        if self.signal in DEATHS:
            return (0, -signal.SIGKILL) if whole else (0, 1)
        return (0, 75) if whole else (0, 1, 75)


@dataclass
class Outcome:
    """What came of it; seconds: from the signal until all had ended."""

    kill: Kill
    outcome: str
    status: int | None
    seconds: float
    wrong: list[str]
    said: str


def draw(rng: random.Random, number: int, phases: tuple[str, ...] = PHASES) -> Kill:
    """Phases and signals take turns; the rest is random."""
    ranks, phase = rng.choice((1, 2, 2, 3)), phases[number % len(phases)]
    name = SIGNALS[number // len(phases) % len(SIGNALS)]
    victims = ["launcher", "all", *map(str, range(ranks))] if ranks > 1 else ["launcher"]
    if name == "INT" and "all" in victims:
        victims.remove("all")  # ranks have sessions of their own: a terminal's Ctrl-C never reaches all of them
    return Kill(ranks, phase, rng.random(), rng.choice(victims), name, rng.choice((ranks, ranks, 1, 2)))


class Ground:
    """Where runs are killed: servers of programs, and the small problem with figures and without.

    compiling: whether there are kernels to compile, in a cache of their own.
    """

    def __init__(self, folder: Path, compiling: bool = False) -> None:
        self.scenes: dict[bool, Scene] = {}
        for figures in (False, True):
            (folder / f"{figures}").mkdir()
            recipe = RECIPE.replace("FIGURES", str(figures).lower())
            self.scenes[figures] = judged.scene(folder / f"{figures}", recipe)
        self.programs, self.cache = Programs(), folder / "cache"
        self.compiling = Programs(variables={"NUMBA_CACHE_DIR": str(self.cache)}) if compiling else None
        self._lengths: dict[tuple[int, str], float] = {}
        if self.compiling:
            self._fill_cache(self.compiling)

    def close(self) -> None:
        """The servers end."""
        self.programs.close()
        if self.compiling:
            self.compiling.close()

    def attempt(self, kill: Kill) -> Outcome:
        """A run that is killed, and the one that goes on from there."""
        scene = self.scenes[kill.phase in ("plot", "end")]
        programs = self.compiling if kill.phase == "compile" and self.compiling else self.programs
        for ranks in {kill.ranks, kill.then}:
            scene.learn(self.programs, ranks)
        length = self._length(kill, scene)
        folder = scene.fresh()
        try:
            if kill.phase == "compile":
                self._forget_a_kernel(kill.part)
            self._start(programs, folder, kill)
            reached = self._wait_for(programs, folder, kill.phase, kill.part)
            if reached:
                time.sleep(length * kill.part)
                self._strike(kill)
            ended = programs.wait(ENDS_S + 30, grace=ENDS_S)
            wrong = judged.judge_end(ended, statuses=kill.statuses)
            if ended.status is not None and ended.status < 0:
                wrong = [fault for fault in wrong if fault != "no sentence"]
            if reached and ended.seconds > ENDS_S:
                wrong.append(f"it ended after {ended.seconds:.0f} s")
            wrong += judged.judge_checkpoint(folder / "out", scene, kill.ranks)
            judged.judge_litter(programs)  # what is killed cannot tidy; the next run need not either
            outcome = "too late"
            if ended.status == 0:
                exact = kill.phase != "compile"  # ranks then have something to say
                drawn = "Stopped before all figures were drawn" not in ended.err
                wrong += judged.judge_result(folder, scene, kill.ranks, exact, drawn)
            else:
                exact = kill.then == kill.ranks and kill.phase != "compile"
                outcome, more = judged.go_on(programs, folder, scene, kill.then, exact)
                wrong += more
            said = ended.err[-1500:]
            return Outcome(kill, "violation" if wrong else outcome, ended.status, ended.seconds, wrong, said)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self, programs: Programs, folder: Path, kill: Kill) -> None:
        arguments, cold = judged.command(kill.ranks, "run", "recipe.yaml"), kill.phase == "import"
        self._pid = programs.start(arguments, folder, spares=0 if cold else judged.spares(kill.ranks), cold=cold)

    def _length(self, kill: Kill, scene: Scene) -> float:
        """Seconds that a phase takes, of an undisturbed run; learned once."""
        key = kill.ranks, kill.phase
        if key not in self._lengths:
            if kill.phase == "compile":
                return COMPILING_S
            folder = scene.fresh()
            self._start(self.programs, folder, kill)
            self._wait_for(self.programs, folder, kill.phase, 0.0)
            entered = time.monotonic()
            if kill.phase in ("start", "import"):
                self._until(lambda: (folder / "out" / "log.txt").exists())
                self._lengths[key] = time.monotonic() - entered
                self.programs.wait()
            else:
                self.programs.wait()
                left = time.monotonic() - entered
                self._lengths[key] = {"batch": left, "save": min(0.03, left), "plot": left, "end": left}[kill.phase]
            shutil.rmtree(folder)
        return self._lengths[key]

    def _wait_for(self, programs: Programs, folder: Path, phase: str, part: float) -> bool:
        """The phase has begun; False where the run ended before."""
        out = folder / "out"
        marks: dict[str, Callable[[], bool]] = {
            "start": lambda: True,
            "batch": (out / "log.txt").exists,
            "save": lambda: judged.lines(out / "metrics.jsonl") >= 1 + int(part * (EPOCHS - 1)),
            "plot": (out / "result.h5").exists,
            "end": (out / "overview.png").exists,
            "compile": lambda: "Compiling" in programs.said_on("err"),
        }
        if phase == "import":
            time.sleep(PYTHON_S)
            return True
        return self._until(marks[phase])

    def _until(self, reached: Callable[[], bool]) -> bool:
        end = time.monotonic() + 60
        while not reached():
            if not self._runs() or time.monotonic() > end:
                return reached()
            time.sleep(0.001)
        return True

    def _runs(self) -> bool:
        """Whether the program has not ended."""
        try:
            return Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def _ranks(self) -> list[int]:
        """Children of the launcher that have become ranks: those lead sessions of their own."""
        found = []
        for path in Path(f"/proc/{self._pid}/task").glob("*/children"):
            for pid in map(int, path.read_text().split()):
                try:
                    if os.getsid(pid) == pid:
                        found.append(pid)
                except ProcessLookupError:
                    continue
        return sorted(found)

    def _strike(self, kill: Kill) -> None:
        """The signal is sent; to a rank, as soon as there are ranks."""
        if kill.ranks > 1 and kill.victim != "launcher":
            self._until(lambda: len(self._ranks()) == kill.ranks)
        ranks = self._ranks()
        if kill.victim in ("launcher", "all") or not ranks:
            pids = [self._pid, *(ranks if kill.victim == "all" else [])]
        else:
            pids = [ranks[int(kill.victim) % len(ranks)]]
        for pid in pids:
            self._send(pid, getattr(signal, f"SIG{kill.signal}"))
        if kill.signal == "STOP":
            time.sleep(1.5 * kill.part)
            for pid in pids:
                self._send(pid, signal.SIGKILL)

    @staticmethod
    def _send(pid: int, number: int) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return

    def _fill_cache(self, compiling: Programs) -> None:
        """What is compiled already is copied from where numba keeps it, so that the rest is soon done."""
        self.scenes[False].learn(self.programs, 1)
        kept = Path(compiled.__file__).parent
        there = self.cache / _CacheLocator.get_suitable_cache_subpath(str(kept / "windows.py"))
        there.mkdir(parents=True, exist_ok=True)
        for path in (kept / "__pycache__").glob("*.nb[ic]"):
            shutil.copy(path, there)
        ended = judged.run(compiling, self.scenes[False].fresh(), 1, "run", "recipe.yaml", seconds=judged.COMPILING_S)
        assert ended.status == 0, ended

    def _forget_a_kernel(self, part: float) -> None:
        indices = sorted(self.cache.rglob("*.nbi"))
        indices[int(part * len(indices))].unlink()


def main() -> int:
    """The campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--report", type=Path, default=Path("kills.json"))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    rng, began, outcomes = random.Random(given.seed), time.monotonic(), []
    phases = tuple(given.phases.split(","))
    with tempfile.TemporaryDirectory(prefix="ptymesh-kills-") as name:
        ground = Ground(Path(name), compiling="compile" in phases)
        for number in range(given.tries):
            outcome = ground.attempt(draw(rng, number, phases))
            outcomes.append(outcome)
            print(
                f"{number + 1} {outcome.kill}: {outcome.outcome}, status {outcome.status}, {outcome.seconds:.1f} s",
                flush=True,
            )
            if outcome.wrong:
                print(f"VIOLATION {'; '.join(outcome.wrong)} | {outcome.said}", flush=True)
        ground.close()
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        for key in (outcome.kill.phase, outcome.kill.signal, f"{outcome.kill.ranks} ranks"):
            counts.setdefault(key, Counter())[outcome.outcome] += 1
    bad, seconds = [asdict(outcome) for outcome in outcomes if outcome.wrong], time.monotonic() - began
    report = {"seed": given.seed, "kills": len(outcomes), "seconds": round(seconds), "violations": len(bad)}
    content = {**report, "counts": {key: dict(row) for key, row in counts.items()}, "violating": bad}
    given.report.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{len(outcomes)} kills in {seconds:.0f} s, {len(bad)} violations; report in {given.report}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
