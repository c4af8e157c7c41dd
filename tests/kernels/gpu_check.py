"""All that a machine with a GPU can tell, in slices: `make gpu-check`, `./run.sh gpu-check` of a kit, or

    python tests/kernels/gpu_check.py --out DIR [--minutes 6] [--star STAR.npz.bz2] [--peers DIR]
    python tests/kernels/gpu_check.py --out DIR --only failed     # what failed in the last report, or was left
    python tests/kernels/gpu_check.py --list                      # the checks and their limits
    python tests/kernels/gpu_check.py --out DIR --stand-in        # no GPU: the pretended device, Triton's interpreter

Every check has processes and a hard limit of its own, so that one that brings the device down, or hangs, is a line in
the report like any other: passed, failed, not possible here, or left (the time was over), with the reason. A line is
written as its check ends (DIR/report.md, report.json); DIR/logs has all that was said, and DIR/failures what is needed
to mend what failed: the traceback with Triton's error, inputs, PTX, versions. DIR/all.tar.gz has all of it in one file.

Minutes count from PTYMESH_STARTED (seconds since 1970), which run.sh sets, so that installing counts as well. Ends with
0 where all that was asked is done, 1 where something failed, 2 where there is no GPU, 75 where something was left.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import gpu_failures
import gpu_slices
from gpu_slices import CHECKS, FAILED, IMPOSSIBLE, LEFT, PASSED, Check, Site

NO_GPU = (
    "gpu-check: this Python sees no GPU; run it on a machine with one, with a torch that is built for it "
    "(`make gpu-check BIN=DIR` takes the environment whose python is in DIR)."
)
#: When gpu-check began, in seconds since 1970.
STARTED = "PTYMESH_STARTED"
#: Minutes on a GPU and on the stand-in, unless others are asked for.
MINUTES = {"cuda": 10.0, "stand-in": 120.0}
#: Seconds before the end in which no check begins, and those in which the last ones are killed.
TOO_LATE_S, RESERVE_S = 5.0, 6.0
#: File with all of the report.
ARCHIVE = "all.tar.gz"
#: Characters of a failed check's log that are printed.
SHOWN = 2000
#: Of several logs of a check, those with these words are printed.
ERROR_WORDS = ("Error", "error:", "assert", "FAILED")


@dataclass(frozen=True)
class Line:
    """A line of the report."""

    check: str
    status: str
    said: str
    seconds: float
    limit_s: float
    at: str


class Report:
    """The lines of this run and of those before, written as they come.

    Args:
        folder: where it goes.
        about: the machine, in words, by what they are of.
        kind: "cuda" or "stand-in".
    """

    def __init__(self, folder: Path, about: dict[str, str], kind: str) -> None:
        self.folder, self.about, self.kind = folder, about, kind
        self.lines = {line.check: line for line in read_lines(folder)}
        self._lock = threading.Lock()

    def add(self, line: Line) -> None:
        """Print a line, and write the report with it."""
        with self._lock:
            self.lines[line.check] = line
            took = f"{line.seconds:.0f} of {line.limit_s:.0f} s"
            print(f"{line.status:18} {line.check}: {line.said} ({took})", flush=True)
            self.write()

    def write(self) -> None:
        """Write report.md and report.json."""
        lines = self.in_order()
        found = {"about": self.about, "checks": [asdict(line) for line in lines]}
        replace_text(self.folder / "report.json", json.dumps(found, indent=1) + "\n")
        cells = [(line.status, line.check, line.said, f"{line.seconds:.0f}", f"{line.limit_s:.0f}") for line in lines]
        rows = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells]
        head = ["# gpu-check", "", *(f"- {name}: {value}" for name, value in self.about.items()), ""]
        table = ["| | check | | s | limit, s |", "|---|---|---|---|---|", *rows]
        replace_text(self.folder / "report.md", "\n".join([*head, *table, "", self.summary(), ""]))

    def in_order(self) -> list[Line]:
        """Return the lines in the order of the checks."""
        return [self.lines[check.name] for check in CHECKS if check.name in self.lines]

    def names(self, *statuses: str) -> list[str]:
        """Return the checks with one of these statuses."""
        return [line.check for line in self.in_order() if line.status in statuses]

    def summary(self) -> str:
        """Return how many did what, and how to go on."""
        counts = [f"{len(self.names(status))} {status}" for status in (PASSED, FAILED, IMPOSSIBLE, LEFT)]
        again = self.names(FAILED, LEFT)
        more = f" `--only failed` does again what failed or was left: {', '.join(again)}." if again else ""
        return f"{', '.join(counts)}.{more}"


def replace_text(path: Path, text: str) -> None:
    """Write a file that nobody ever sees half of."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def read_lines(folder: Path) -> list[Line]:
    """Return the lines of the last report in a folder; none where there is none that can be read."""
    try:
        return [Line(**line) for line in json.loads((folder / "report.json").read_text(encoding="utf-8"))["checks"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def look_at_gpus() -> tuple[int, str]:
    """Return how many GPUs this Python sees, and what they are, in words; asked of another process."""
    look = (
        "import torch; p = torch.cuda.get_device_properties(0); print(torch.cuda.device_count(), p.name, "
        "'%.0f GiB' % (p.total_memory / 2**30), 'CUDA' if torch.version.cuda else 'ROCm', "
        "torch.version.cuda or torch.version.hip)"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    count, _, about = done.stdout.strip().partition(" ")
    return (int(count), about) if done.returncode == 0 and count.isdigit() else (0, "")


def choose(words: str, folder: Path) -> tuple[list[Check], list[str]]:
    """Return the checks that `--only` names, and what it names that is none; all where it names nothing.

    "failed" stands for what the last report says has failed or was left, or does not have.
    """
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    lines = {line.check: line.status for line in read_lines(folder)}
    names = {check.name for check in CHECKS}
    chosen = {word for word in wanted if word in names}
    if "failed" in wanted:
        chosen |= {name for name in names if lines.get(name, LEFT) in (FAILED, LEFT)}
    unknown = [word for word in wanted if word not in names and word != "failed"]
    return [check for check in CHECKS if not wanted or check.name in chosen], unknown


def perform(check: Check, site: Site, report: Report) -> None:
    """Do a check, if there is time, and report it; print the end of its log if it failed."""
    began, at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    verdict = (LEFT, "the time was over") if site.until - began < TOO_LATE_S else check.perform(site)
    report.add(Line(check.name, *verdict, time.monotonic() - began, check.limit_on(site.kind), at))
    if verdict[0] == FAILED:
        print(end_of_logs(site.out / "logs", check.name), flush=True)


def end_of_logs(folder: Path, name: str) -> str:
    """Return the end of what a check's processes said, indented."""
    logs = [path for path in (folder / f"{name}.txt", *sorted(folder.glob(f"{name}-*.txt"))) if path.exists()]
    said = ""
    for path in logs:
        text = path.read_text(encoding="utf-8", errors="replace")
        if len(logs) == 1 or any(word in text for word in ERROR_WORDS):
            said += f"--- {path.name}\n{text[-SHOWN // min(len(logs), 3) :]}\n"
    return "\n".join(f"    {line}" for line in said.splitlines())


def perform_all(checks: Sequence[Check], site: Site, report: Report, at_once: int) -> None:
    """Do the checks in their order, several at once but for those that must be alone."""
    with ThreadPoolExecutor(at_once) as pool:
        jobs = []
        for number, check in enumerate(checks):
            # the first one fills Triton's caches, and says whether it works at all
            if check.is_alone or number == 0:
                for job in jobs:
                    job.result()
                jobs = []
                perform(check, site, report)
            else:
                jobs.append(pool.submit(perform, check, site, report))
        for job in jobs:
            job.result()


def clear(folder: Path, checks: Iterable[Check], is_all: bool) -> None:
    """Make the folder of the report, and remove what runs before left of these checks."""
    folder.mkdir(parents=True, exist_ok=True)
    if is_all:
        for name in ("logs", "failures", "report.md", "report.json"):
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    (folder / "logs").mkdir(exist_ok=True)
    for check in checks:
        shutil.rmtree(folder / "failures" / check.name, ignore_errors=True)
        for path in (folder / "logs" / f"{check.name}.txt", *(folder / "logs").glob(f"{check.name}-[0-9]*.txt")):
            path.unlink(missing_ok=True)


def pack(folder: Path) -> None:
    """Write all of the report's folder to one file, to be sent."""
    archive = folder / ARCHIVE
    part = archive.with_suffix(".part")
    with tarfile.open(part, "w:gz") as packed:
        for path in sorted(folder.iterdir()):
            if path not in (archive, part):
                packed.add(path, f"{folder.name}/{path.name}")
    part.replace(archive)


def list_checks(kind: str) -> str:
    """Return the checks and their limits, a line each."""
    rows = [f"{check.name:16}{check.limit_on(kind):6.0f} s  {check.says}" for check in CHECKS]
    return "\n".join([*rows, f"{'':16}{sum(check.limit_on(kind) for check in CHECKS):6.0f} s  one after the other"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="All that a machine with a GPU can tell, in slices.")
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help="folder of the report (gpu-check)")
    parser.add_argument("--minutes", type=float, help="after which all is over (10; with --stand-in 120)")
    parser.add_argument("--only", default="", help="names of checks, with commas; failed: what failed or was left")
    parser.add_argument("--list", action="store_true", help="print the checks and their limits")
    parser.add_argument("--star", type=Path, help="the Siemens star, for the peers; the kit's own if there is one")
    parser.add_argument("--peers", type=Path, help="the peers' wheels (kit-peers), or an environment that has them")
    parser.add_argument("--stand-in", action="store_true", help="without a GPU, on the pretended device")
    parser.add_argument("--at-once", type=int, help="checks at once; those that measure are alone (4, of few cores 1)")
    return parser.parse_args()


def beside(folder: Path, *names: str) -> Path | None:
    """Return the first of these that is there."""
    return next((folder / name for name in names if (folder / name).exists()), None)


def main() -> int:
    given = parse()
    kind = "stand-in" if given.stand_in else "cuda"
    if given.list:
        print(list_checks(kind))
        return 0
    started = float(os.environ.get(STARTED) or time.time())
    until = time.monotonic() + 60 * (given.minutes or MINUTES[kind]) - (time.time() - started) - RESERVE_S
    checks, unknown = choose(given.only, given.out)
    if unknown:
        print(f"gpu-check: there is no check {', '.join(unknown)}; --list names them.")
        return 2
    gpus, gpu = (0, "stand-in: no GPU, values on the host") if given.stand_in else look_at_gpus()
    if not gpus and not given.stand_in:
        print(NO_GPU)
        return 2
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # processes that hang are asked where by SIGABRT
    clear(given.out, checks, is_all=not given.only)
    at = datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds")
    about = {"device": gpu, "started": at, "cores": str(os.cpu_count()), **gpu_failures.versions()}
    report = Report(given.out.resolve(), about, kind)
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as scratch:
        star = given.star or beside(gpu_slices.ROOT, "siemens-star-small.npz.bz2")
        peers = given.peers or beside(gpu_slices.ROOT.parent, "kit-peers") or beside(gpu_slices.ROOT, ".peers")
        star, peers = (path.resolve() if path else None for path in (star, peers))
        site = Site(kind, gpus, report.folder, star, peers, Path(scratch), until)

        def stop(number: int, frame: FrameType | None) -> None:
            site.processes.end()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        perform_all(checks, site, report, given.at_once or max(1, min(4, cores // 3)))
    pack(report.folder)
    print(report.summary(), flush=True)
    asked = [report.lines[check.name].status for check in checks]
    return 1 if FAILED in asked else 75 if LEFT in asked else 0


if __name__ == "__main__":
    sys.exit(main())
