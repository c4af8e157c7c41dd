"""Many tries: `python tests/fuzz/campaign.py --tries 20000 --seed 1 --processes 2 --out fuzz`, or `make fuzz`.

Each case follows from seed and number alone (`--only NUMBER` plays one again). The report, OUT/report.json, counts
tries by format, command and status; of each violation the first cases are kept in OUT/violations, with their inputs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing.connection
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from fuzz import cases, judge, originals, tries  # noqa: E402
from fuzz.sandbox import Ended, Limits  # noqa: E402
from warm import context  # noqa: E402

#: Cases of one signature that are kept.
KEPT = 3
#: A case that takes too long is tried again with so much more time: others may have kept the processor busy.
PATIENT = Limits(seconds=25.0)

#: Nothing takes longer to make; what does ends the process, and the case is lost.
MAKING_S = 30
#: Compiles the kernels, should they not be on disk yet: a try has no time for it.
READY = "import torch, ptymesh.kernels.cpu.ready as r; r.make_ready(torch.complex64); r.make_ready(torch.complex128)"


class Sources:
    """The originals, made in a folder of this process in memory where there is such a place; and a folder for cases."""

    def __init__(self, folder: Path | None = None, compiled: bool = False) -> None:
        """compiled: some runs are to use the compiled kernels, which are on disk."""
        self.compiled = compiled
        shared = Path("/dev/shm")
        self.root = folder or Path(tempfile.mkdtemp(prefix="ptymesh-fuzz-", dir=shared if shared.is_dir() else None))
        self.originals = self.root / "originals"
        os.environ["PTYMESH_KERNELS"] = "torch"  # compiled kernels start threads, and who has some must not fork
        originals.make(self.originals)
        originals.recover(self.originals)
        tries.warm_up(self.originals)

    def case(self, dice: random.Random) -> cases.Case:
        """A case in the folder, where the one before is removed."""
        folder = self.root / "case"
        shutil.rmtree(folder, ignore_errors=True)
        signal.alarm(MAKING_S)
        case = cases.draw(dice, folder, self.originals)
        signal.alarm(0)
        case.compiled &= self.compiled
        return case


def dice_of(seed: int, number: int) -> random.Random:
    """What a case is drawn with."""
    return random.Random(f"{seed}/{number}")


def play(sources: Sources, seed: int, number: int) -> dict[str, Any]:
    """One case from beginning to end, as it stands in the report."""
    began = _processor_seconds()
    case = sources.case(dice_of(seed, number))
    ended, found = tries.attempt(case)
    if ended.late and not ended.stopped:
        case = sources.case(dice_of(seed, number))
        ended, found = tries.attempt(case, PATIENT)
    if any(violation.kind in ("status", "traceback") for violation in found):
        again, _ = tries.attempt(sources.case(dice_of(seed, number)), environment={"PTYMESH_DEBUG": "1"})
        where = judge.place(again.err[: again.err.rfind("\nptymesh: ") + 1], last=True)
        found = [replace(violation, where=where) for violation in found]
    return {
        "number": number,
        "format": case.format,
        "command": case.command,
        "status": status_of(ended),
        "seconds": round(ended.seconds, 3),
        "processor_seconds": round(_processor_seconds() - began, 3),
        "warned": "Warning:" in ended.err,
        "words": case.words,
        "arguments": case.arguments,
        "said": judge.last_line(ended.err),
        "violations": [{"kind": v.kind, "what": v.what, "signature": v.signature} for v in found],
    }


def _processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def status_of(ended: Ended) -> str:
    """For counting."""
    if ended.late:
        return "75" if ended.status == 75 else "hang"
    if ended.status is None:
        return f"signal {ended.signal}"
    return "unsound" if ended.note else str(ended.status)


def _work(pipe: Connection, seed: int, numbers: list[int], until: float, compiled: bool) -> None:
    """A process of the campaign: plays, and tells."""
    folder: Path | None = None
    try:
        with tries._quiet():
            sources = Sources(compiled=compiled)
        folder = sources.root
        for number in numbers:
            if time.time() > until:
                break
            told = play(sources, seed, number)
            if told["violations"]:
                sources.case(dice_of(seed, number))
                told["inputs"] = str(folder / f"kept-{number}")
                shutil.copytree(folder / "case" / "in", told["inputs"], symlinks=True, ignore=_no_pipes)
            pipe.send(told)
            if told["violations"]:
                pipe.recv()  # the inputs have been looked at
                shutil.rmtree(told["inputs"], ignore_errors=True)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # who started this may be gone
            pipe.send(None)


def _no_pipes(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_fifo() or _sparse(Path(folder, name))]


def _sparse(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 1 << 30


class Report:
    """What came of a campaign, so far."""

    def __init__(self, out: Path, seed: int) -> None:
        self.out, self.seed = out, seed
        self.counts: dict[str, dict[str, Counter[str]]] = {}
        self.found: dict[str, dict[str, Any]] = {}
        self.tries = self.warned = 0
        self.processor_seconds = 0.0
        self.lost: list[int] = []
        self.slowest: list[tuple[float, int]] = []
        self.began = time.monotonic()
        out.mkdir(parents=True, exist_ok=True)

    def add(self, told: dict[str, Any]) -> None:
        """A case that was played."""
        self.tries += 1
        self.warned += told["warned"]
        self.processor_seconds += told["processor_seconds"]
        by = self.counts.setdefault(told["format"], {}).setdefault(told["command"], Counter())
        by[told["status"]] += 1
        self.slowest = sorted([*self.slowest, (told["seconds"], told["number"])], reverse=True)[:10]
        for violation in told["violations"]:
            entry = self.found.setdefault(
                violation["signature"], {"kind": violation["kind"], "count": 0, "cases": [], "examples": []}
            )
            entry["count"] += 1
            if len(entry["cases"]) < KEPT:
                self._keep(entry, told, violation)

    def _keep(self, entry: dict[str, Any], told: dict[str, Any], violation: dict[str, str]) -> None:
        name = f"{violation['kind']}-{told['number']}"
        target = self.out / "violations" / name
        if not target.exists() and "inputs" in told:
            shutil.copytree(told["inputs"], target / "in", symlinks=True)
            about = {key: told[key] for key in ("number", "format", "command", "status", "words", "arguments", "said")}
            (target / "case.json").write_text(json.dumps({"seed": self.seed, **about, **violation}, indent=1))
        entry["cases"].append(told["number"])
        entry["examples"].append(
            {
                "format": told["format"],
                "command": " ".join(["ptymesh", *told["arguments"]]),
                "changed": "; ".join(told["words"])[:300],
                "status": told["status"],
                "what": violation["what"][:500],
            }
        )

    def write(self) -> Path:
        """OUT/report.json."""
        seconds = time.monotonic() - self.began
        path = self.out / "report.json"
        content = {
            "seed": self.seed,
            "tries": self.tries,
            "seconds": round(seconds, 1),
            "tries_per_s": round(self.tries / seconds, 2),
            "tries_per_processor_second": round(self.tries / max(self.processor_seconds, 1e-9), 2),
            "violations": sum(entry["count"] for entry in self.found.values()),
            "kinds_of_violations": len(self.found),
            "tries_with_warnings": self.warned,
            "statuses": dict(sum((c for by in self.counts.values() for c in by.values()), Counter())),
            "counts": {f: {c: dict(n) for c, n in sorted(by.items())} for f, by in sorted(self.counts.items())},
            "slowest": self.slowest,
            "cases_that_could_not_be_made": self.lost,
            "found": dict(sorted(self.found.items(), key=lambda item: -item[1]["count"])),
        }
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
        return path


def campaign(
    seed: int, count: int, processes: int, out: Path, minutes: float, first: int = 0, compiled: bool = True
) -> Report:
    """Plays cases first to first + count of a seed on so many processes. compiled: some with the compiled kernels."""
    report = Report(out, seed)
    if compiled:
        subprocess.run([sys.executable, "-c", READY], check=True)
    until = time.time() + 60 * minutes
    left = [list(range(first + part, first + count, processes)) for part in range(processes)]
    pipes = {_start(seed, numbers, until, compiled): numbers for numbers in left}
    shown = time.monotonic()
    while pipes:
        for pipe in multiprocessing.connection.wait(list(pipes)):
            numbers = pipes[pipe]
            try:
                told = pipe.recv()
            except EOFError:  # a library crashed under it, while it made a case
                pipes.pop(pipe)
                report.lost += numbers[:1]
                if numbers[1:]:
                    pipes[_start(seed, numbers[1:], until, compiled)] = numbers[1:]
                continue
            if told is None:
                pipes.pop(pipe)
                continue
            del numbers[0]
            report.add(told)
            if told["violations"]:
                pipe.send("looked at")
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            report.write()
            print(f"{report.tries} tries, {len(report.found)} kinds of violations", flush=True)
    return report


def _start(seed: int, numbers: list[int], until: float, compiled: bool) -> Connection:
    """A process that plays these cases, and what it tells comes from."""
    ours, theirs = multiprocessing.connection.Pipe()
    context().Process(target=_work, args=(theirs, seed, list(numbers), until, compiled), daemon=True).start()
    theirs.close()
    return ours


def main() -> int:
    """The command line; status 1 where there were violations, or not all was tried for another reason than time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, help="play this number alone, and say all")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--torch", action="store_true", help="with torch's passes alone, as nothing is compiled")
    parser.add_argument("--out", type=Path, default=Path("fuzz"))
    given = parser.parse_args()
    if given.only is not None:
        given.first, given.tries, given.processes = given.only, 1, 1
    report = campaign(given.seed, given.tries, given.processes, given.out, given.minutes, given.first, not given.torch)
    path = report.write()
    content = json.loads(path.read_text())
    print(json.dumps({key: content[key] for key in list(content)[:9]}, indent=1))
    for signature, entry in content["found"].items():
        print(f"{entry['count']:5d}  {signature}  (cases {entry['cases']})")
    print(path)
    return int(bool(report.found or report.lost) or not report.tries)


if __name__ == "__main__":
    raise SystemExit(main())
