"""How fast ptymesh is on a GPU: against goals, the card's copy rate, the host, and peers on the same card.

    python benchmarks/gpu.py --out FOLDER --seconds 150 [--peers [FOLDER]] [--quick]
    python benchmarks/gpu.py --out FOLDER --stand-in       # without a GPU: tiny rows on the CPU, to try the program

Rows are measured in the order of what they say (gpu_rows.py): goals, peers, where the time goes and what Triton,
graphs and chunks are worth, then engines, sub-pixel methods, batches, modes, slices and windows. FOLDER/gpu.json and
gpu.md are written after each, so that a run that is killed leaves what it had measured; rows for which --seconds left
no time are counted. Rows are measured by a process of their own (gpu_measure.py, gpu-log.txt has what it says): one
that runs out of memory fails alone, and one that takes longer than its limit, or takes the device down, is followed by
a new process.

--peers takes an environment's folder, or one that `pip install --target` has filled; without a folder, peers are looked
for in this Python. One rank, one GPU, single precision; scans are made up; numba is not needed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Protocol

from gpu_rows import AXES, Goal, Row, ordered, reached

Found = dict[str, Any]
#: Seconds that a row may take: of ptymesh, whose first one compiles kernels, and beside a peer.
LIMITS_S = {"speed": 60.0, "profile": 60.0, "peer": 90.0}
#: A row that would have fewer seconds is left.
LEAST_S = 4.0
#: Status where there is no GPU.
NO_GPU = 2
COLUMNS = (
    *("engine", "sub-pixel", "modes", "slices", "window", "batch", "how", "views/s", "view-modes/s"),
    *("within epochs, views/s", "ms a batch", "host", "device, ms", "of the floor", "of the copy rate", "GB", "goal"),
)
#: Columns that hold words.
WORDS = {"engine", "sub-pixel", "how", "goal"}


class RowFailed(Exception):
    """The process that measures has not answered."""


class Measurer(Protocol):
    """Something that measures rows."""

    def ask(self, asked: dict[str, Any], limit_s: float) -> Found:
        """What was found. Raises RowFailed where nothing came within the limit."""

    def stop(self) -> None:
        """Ends it."""


class Process:
    """gpu_measure.py in a session of its own, which ends with all that it has started.

    Args:
        device: as ptymesh calls it.
        peers: folder of the peers.
        environment: of the process.
        log: where what it prints goes.
    """

    def __init__(self, device: str, peers: str, environment: dict[str, str], log: Path) -> None:
        script = str(Path(__file__).with_name("gpu_measure.py"))
        with log.open("a", encoding="utf-8") as said:
            self.process = subprocess.Popen(
                [sys.executable, script, "--device", device, "--peers-in", peers],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in _pipe(self.process.stdout):
            self._answers.put(line)
        self._answers.put("")

    def ask(self, asked: dict[str, Any], limit_s: float) -> Found:
        """See `Measurer`."""
        try:
            _pipe(self.process.stdin).write(json.dumps(asked) + "\n")
            _pipe(self.process.stdin).flush()
            line = self._answers.get(timeout=limit_s)
        except queue.Empty:
            raise RowFailed(f"it took longer than its limit of {limit_s:.0f} s") from None
        except OSError as error:
            raise RowFailed(f"the process was gone ({error})") from None
        if not line:
            raise RowFailed(f"the process ended with status {self.process.wait()}")
        return dict(json.loads(line))

    def stop(self) -> None:
        """See `Measurer`."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            _pipe(pipe).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def measure(
    rows: list[Row], start: Callable[[], Measurer], until: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[Row, Found]]:
    """Each row with what was found, or why it failed, until the time is over.

    start: another process, where there is none or the one before was lost; until: by this clock.
    """
    measurer: Measurer | None = None
    try:
        for row in rows:
            left_s = until - clock()
            if left_s < LEAST_S:
                return
            began = clock()
            lost = False
            try:
                measurer = measurer or start()
                found = measurer.ask(row.written, min(LIMITS_S[row.kind], left_s))
                lost = "CUDA error" in found.get("failed", "")  # which all that comes after it would meet again
            except RowFailed as error:
                found, lost = {"failed": str(error)}, True
            if lost and measurer:
                measurer.stop()
                measurer = None
            yield row, {**found, "took_s": round(clock() - began, 2)}
    finally:
        if measurer:
            measurer.stop()


# --- what is written ---


def table(about: Found, done: list[tuple[Row, Found]], left: int) -> str:
    """All that was measured as Markdown."""
    machine, rate = about["machine"], about["copy_bytes_per_s"]
    odd = [window for window, even in about["even_transforms"].items() if not even]
    lines = [
        "# ptymesh on a GPU",
        "",
        f"{machine['gpu'] or machine['cpu']}, torch {machine['torch']}, Triton {machine['triton']}, Python "
        f"{machine['python']}, ptymesh {machine['ptymesh']}, {about['started']}. A copy on the device reads and writes "
        f"{rate / 1e9:,.0f} GB/s. "
        + (f"Transforms go in groups for windows of {', '.join(odd)} pixels." if odd else "Transforms are even."),
        "",
        f"{len(done)} rows measured, {sum('failed' in found for _, found in done)} of them failed, {left} left.",
        "",
        _joined(list(COLUMNS)),
        _joined(["---" if name in WORDS else "--:" for name in COLUMNS]),
    ]
    lines += [_speed_line(row, found, rate) for row, found in done if row.kind == "speed"]
    peers = [(row, found) for row, found in done if row.kind == "peer"]
    if peers:
        head = "| engine | modes | slices | batch | peer | its views/s | ptymesh | ratio | goal |"
        lines += ["", "## Beside peers, in turns", "", head, "|---|--:|--:|--:|---|--:|--:|--:|---|"]
        lines += [_peer_line(row, found) for row, found in peers]
    for row, found in done:
        if row.kind == "profile":
            lines += [
                "",
                f"## Where a batch goes: {row.engine}, {row.subpixel}, {row.modes} modes, {row.slices} slices",
            ]
            lines += ["", *_profile_lines(found)]
    lines += [
        "",
        "Floor: transforms alone, unfused, at the copy rate (64 bytes a pixel and pair). Copy rate: bytes that the "
        "passes move by arithmetic. Host: share of a batch's time in which the host was busy with it; device: time "
        "from the end of a batch to that of the next in the device's queue. Speeds are of whole epochs (medians), but "
        "for those within epochs.",
        "",
    ]
    return "\n".join(lines)


def _speed_line(row: Row, found: Found, rate: float) -> str:
    how = row.kernels + (f", {row.chunk_mib} MiB" if row.chunk_mib else "")
    cells = [row.engine, row.subpixel, row.modes, row.slices, row.window, row.batch, how]
    if "failed" in found:
        return _joined([*cells, f"failed: {found['failed']}", *[""] * 8, _goal(row, found)])
    per_s, moved = found["view_modes_per_s"], found["moved_bytes"]
    cells += [f"{found['views_per_s']:,.0f}", f"{per_s:,.0f}", _number(found.get("views_per_s_within"), ",.0f")]
    cells += [_number(found.get("batch_s"), ".2f", 1e3), _number(found.get("host_share"), ".0%")]
    cells += [_number(found.get("device_s"), ".2f", 1e3), f"{per_s * found['least_bytes'] / rate:.0%}"]
    cells += [_number(moved and per_s * moved / rate, ".0%"), f"{found['peak_bytes'] / 1e9:.2f}"]
    return _joined([*cells, _goal(row, found)])


def _peer_line(row: Row, found: Found) -> str:
    cells = [row.engine, row.modes, row.slices, row.batch]
    if "failed" in found:
        return _joined([*cells, row.peer, f"failed: {found['failed']}", "", "", _goal(row, found)])
    speeds = [f"{found[name]:,.0f}" for name in ("peer_views_per_s", "views_per_s")]
    return _joined([*cells, found["peer"], *speeds, f"{found['ratio']:.1f}", _goal(row, found)])


def _profile_lines(found: Found) -> list[str]:
    if "failed" in found:
        return [f"failed: {found['failed']}"]
    busy = found["busy_s"] / found["epoch_s"][0]
    lines = [f"The device was busy in {busy:.0%} of an epoch of {found['batches']} batches.", ""]
    lines += ["| kernel | times a batch | us a batch | share |", "|---|--:|--:|--:|"]
    return lines + [
        _joined([f"`{k['name']}`", f"{k['per_batch']:.1f}", f"{k['us_per_batch']:.1f}", f"{k['share']:.0%}"])
        for k in found["kernels"]
    ]


def _goal(row: Row, found: Found) -> str:
    if row.goal is None:
        return ""
    part = reached(row, found)
    return f"{_named(row.goal)}: " + ("not measured" if part is None else f"{_verdict(part)} ({part:.2f} of it)")


def _verdict(part: float) -> str:
    return "reached" if part >= 1 else "missed"


def _named(goal: Goal) -> str:
    return f"{goal.value:,.0f} {goal.unit}"


def _number(value: float | None, style: str, times: float = 1.0) -> str:
    return "" if value is None else format(value * times, style)


def _joined(cells: list[Any]) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def write(folder: Path, about: Found, done: list[tuple[Row, Found]], left: int) -> None:
    """gpu.json and gpu.md, each replaced as a whole."""
    rows = [{**row.written, **found, "of_goal": reached(row, found)} for row, found in done]
    texts = {
        "gpu.json": json.dumps({**about, "left": left, "rows": rows}, indent=1) + "\n",
        "gpu.md": table(about, done, left),
    }
    for name, text in texts.items():
        temporary = folder / f"{name}.part"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / name)


def main(arguments: list[str] | None = None) -> int:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of gpu.json, gpu.md and gpu-log.txt")
    parser.add_argument("--seconds", type=float, default=150.0, help="for all rows together")
    parser.add_argument("--stand-in", action="store_true", help="tiny rows on the CPU, with torch's passes")
    parser.add_argument("--peers", nargs="?", const="", help="Pty-Chi and PtyRAD too, from this folder")
    parser.add_argument("--quick", action="store_true", help="the goals alone")
    given = parser.parse_args(arguments)
    until = time.monotonic() + given.seconds
    given.out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **({"OMP_NUM_THREADS": "1"} if given.stand_in else {})}
    log = given.out / "gpu-log.txt"
    log.unlink(missing_ok=True)
    peers = str(Path(given.peers).resolve()) if given.peers else ""

    def start() -> Process:
        return Process("cpu" if given.stand_in else "cuda", peers, environment, log)

    asked = start()
    try:
        windows = [16] if given.stand_in else list(AXES["window"])
        about = asked.ask({"card": windows}, min(LIMITS_S["speed"], given.seconds))
    except RowFailed as error:
        about = {"failed": str(error)}
    if "failed" in about:
        asked.stop()
        print(f"gpu.py: {about['failed']}; {log} has what was said.", file=sys.stderr)
        return NO_GPU
    about["started"] = datetime.now(UTC).isoformat(timespec="seconds")
    ready: list[Process] = [asked]
    rows = ordered(peers=given.peers is not None, quick=given.quick, stand_in=given.stand_in)
    done: list[tuple[Row, Found]] = []
    write(given.out, about, done, len(rows))
    for row, found in measure(rows, lambda: ready.pop() if ready else start(), until):
        done.append((row, found))
        write(given.out, about, done, len(rows) - len(done))
        print(_line(row, found), flush=True)
    for process in ready:  # no time was left for a row
        process.stop()
    return 0


def _line(row: Row, found: Found) -> str:
    what = f"{row.kind} {row.peer} {row.engine} {row.subpixel} M{row.modes} L{row.slices} {row.window} B{row.batch}"
    if "failed" in found:
        return f"{what} {row.kernels}: failed, {found['failed']} ({found['took_s']:.1f} s)"
    speed = f"{found['views_per_s']:,.0f} views/s" if "views_per_s" in found else f"{len(found['kernels'])} kernels"
    goal = f"; {_goal(row, found)}" if row.goal else ""
    return f"{what} {row.kernels}: {speed}{goal} ({found['took_s']:.1f} s)"


if __name__ == "__main__":
    sys.exit(main())
