"""Damage that knows nothing of formats: bits, zeros, cuts, repeats; and files that are no files."""

from __future__ import annotations

import os
from pathlib import Path

from fuzz.arrays import Dice

#: Numbers that formats keep in few bytes: sizes, counts, addresses.
TELLING = (b"\x00" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80", b"\x01", b"\xff" * 2, b"\x00" * 64)


def damage(content: bytes, dice: Dice) -> tuple[bytes, str]:
    """Other bytes, and in words what was done; half of the places lie in the first 2 KiB, where headers are."""
    if not content:
        return b"\x00", "a byte in an empty file"
    data = bytearray(content)

    def place() -> int:
        return dice.randrange(min(len(data), 2048) if dice.random() < 0.5 else len(data))

    kind = dice.choice(
        ("bit", "bits", "byte", "bytes", "zeros", "telling", "cut", "insert", "remove", "repeat", "swap")
    )
    at = place()
    if kind in ("bit", "bits"):
        for _ in range(1 if kind == "bit" else dice.randint(2, 40)):
            data[place()] ^= 1 << dice.randrange(8)
    elif kind in ("byte", "bytes"):
        for _ in range(1 if kind == "byte" else dice.randint(2, 200)):
            data[place()] = dice.randrange(256)
    elif kind == "zeros":
        length = min(dice.choice((1, 4, 8, 64, 512, 4096)), len(data) - at)
        data[at : at + length] = bytes(length)
    elif kind == "telling":
        what = dice.choice(TELLING)
        data[at : at + len(what)] = what
    elif kind == "cut":
        del data[at:]
    elif kind == "insert":
        data[at:at] = bytes(dice.randrange(256) for _ in range(dice.choice((1, 3, 8, 32))))
    elif kind == "remove":
        del data[at : at + dice.choice((1, 2, 8, 100))]
    elif kind == "repeat":
        data[at:at] = data[at : at + dice.choice((8, 100, 1000))]
    else:
        other, length = place(), dice.choice((1, 8, 64))
        data[at : at + length], data[other : other + length] = data[other : other + length], data[at : at + length]
    return bytes(data), f"{kind} at {at}"


def no_file(path: Path, dice: Dice) -> str:
    """In a file's place: nothing, a folder, an empty file, a link to nowhere or itself, a pipe, a device, text."""
    path.unlink()
    kind = dice.choice(("missing", "folder", "empty", "dangling", "loop", "pipe", "zero", "full", "text", "sparse"))
    if kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("zero", "full"):
        path.symlink_to(f"/dev/{kind}")
    elif kind == "text":
        path.write_text("data: here\n\tand: there\n" * 3, encoding="utf-8")
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    return f"in its place: {kind}"
