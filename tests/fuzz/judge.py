"""What is allowed of a try: status 0 with a sound result, or 2 or 3 with one sentence, and nothing touched but what was
asked for. Everything else is a violation, of one of these kinds."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from fuzz.sandbox import FAULT, Ended, Limits, State

#: What a try may leave beside what it was asked for: the cache and its locks, the lock of the kernels' compiler.
ALWAYS = ("cache/*", "tmp/ptymesh-kernels-*.lock")
#: With status 1: how a run ends whose object takes what a try may not.
NO_ROOM = ("cannot be written (File too large: ", "ptymesh: memory ran out (", " ran out of memory (")
#: What a file that could not be written needs.
TOO_LARGE = re.compile(r"File too large: ([\d.]+) (kB|MB|GB|TB) needed")
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
#: Bytes of a pixel of the object, and so many arrays of its size a run has at least.
PIXEL, FIELDS = 8, 8
#: What nobody may leave anywhere.
NEVER = ("*.tmp", "*.new")


@dataclass(frozen=True)
class Violation:
    """kind: hang, crash, status, traceback, words, unsound, touched, left, disk; what: in words; where: in the code."""

    kind: str
    what: str
    where: str = ""

    @property
    def signature(self) -> str:
        """Without names and numbers: violations that share it have, most likely, one cause."""
        text = re.sub(r"(The traceback is|Run it again).*", "", self.what)
        text = re.sub(r"/[^\s'\"():;,]*", "/...", text)
        text = re.sub(r"0x[0-9a-f]+|[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "#", text)
        if self.where and self.kind == "status":
            text = " ".join(text.split()[:4]).rstrip(":")
        return f"{self.kind}: {text[:160]}{self.where and ' in '}{self.where}"


def violations(
    ended: Ended,
    before: State,
    after: State,
    asked: Sequence[str],
    limits: Limits,
    taken: int,
) -> list[Violation]:
    """All that is wrong with a try.

    before, after: states of its folder; asked: patterns of the names that it may make or change; taken: bytes of disk.
    """
    found = list(_ending(ended, limits))
    if ended.left:
        found.append(Violation("left", "a process outlived the command"))
    if taken > limits.disk:
        found.append(Violation("disk", f"{taken} bytes of disk were taken"))
    refused = ended.status in (2, 3)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) == after.get(name):
            continue
        deed = "changed" if name in before and name in after else "made" if name in after else "removed"
        if any(fnmatch(name, pattern) for pattern in NEVER) and name in after:
            if ended.status is not None:  # who is killed cannot clear up
                found.append(Violation("left", f"{name} was left behind with status {ended.status}"))
        elif not any(fnmatch(name, pattern) for pattern in (*ALWAYS, *asked)):
            found.append(Violation("touched", f"{name} was {deed} with status {ended.status}"))
        elif refused and name.endswith(("result.h5", ".cxi")):
            found.append(Violation("touched", f"{name} was {deed} although the status is {ended.status}"))
    return found


def _ending(ended: Ended, limits: Limits) -> list[Violation]:
    said = last_line(ended.err)
    if ended.late and not ended.stopped:
        return [Violation("hang", f"in {place(ended.stack)}, still there after {limits.seconds:g} s: {said}")]
    if ended.stopped and ended.status != 75:
        return [Violation("hang", f"told to stop, it ended with status {ended.status}, signal {ended.signal}: {said}")]
    if ended.signal:
        return [Violation("crash", f"{signal.Signals(ended.signal).name} in {place(ended.stack)}: {said}")]
    if ended.status == FAULT:
        return [Violation("unsound", ended.note)]
    if "Traceback (most recent call last)" in ended.err + ended.out:
        return [Violation("traceback", said)]
    if ended.status == 1 and _wants_more(ended, limits):
        return []
    if ended.status not in (0, 2, 3) and not ended.stopped:
        return [Violation("status", f"{ended.status}: {said}")]
    if ended.status in (2, 3):
        lines = ended.err.strip().splitlines()
        if len(lines) != 1 or not lines[0].startswith("ptymesh: ") or lines[0].startswith("ptymesh: unexpected "):
            return [Violation("words", f"status {ended.status} with {len(lines)} lines: {' | '.join(lines)[:600]}")]
    return []


def _wants_more(ended: Ended, limits: Limits) -> bool:
    """Whether it says in sentences that there was no room, and a file that is to be written is larger than a try may
    write, or its positions do ask for an object of such a size: the machine has more than a try may take."""
    spoken = all(line.startswith("ptymesh: ") for line in ended.err.strip().splitlines())
    file = TOO_LARGE.search(last_line(ended.err))
    if spoken and file and float(file[1]) * UNITS[file[2]] > limits.disk:
        return True
    found = re.search(r"^\d+ views of .* object (\d+) x (\d+)", ended.out, re.MULTILINE)
    if not spoken or not found or not any(words in last_line(ended.err) for words in NO_ROOM):
        return False
    size = PIXEL * int(found[1]) * int(found[2])
    return size > limits.disk or FIELDS * size > limits.memory


def last_line(text: str) -> str:
    """The last line, shortened."""
    lines = text.strip().splitlines()
    return lines[-1][:400] if lines else ""


def place(stack: str, last: bool = False) -> str:
    """Of a traceback: the innermost function of the package, or of whatever there is. last: it stands at the end, as
    Python writes it; faulthandler writes it first."""
    stack = stack.rpartition("Current thread")[2]
    frames = re.findall(r'File "(.*)", line (\d+),? in (\S+)', stack)
    own = [frame for frame in frames if "/ptymesh/" in frame[0]]
    file, _, function = (own or frames or [("nowhere", "", "?")])[-1 if last else 0]
    return f"{file.rpartition('/')[2]} {function}"
