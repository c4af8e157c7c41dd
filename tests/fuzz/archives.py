"""What can be wrong with npy, npz and packed files: headers, members, ways to pack, sizes that are not so."""

from __future__ import annotations

import bz2
import io
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from fuzz import arrays, raw
from fuzz.arrays import Dice

Members = dict[str, bytes]
#: Texts in place of the header of an npy.
HEADERS = (
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000, 1000000), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 16, 16), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (9, 16, 16.5), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 16, 16), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': 9, }",
    "{'descr': '<f4', 'fortran_order': 1, 'shape': (9, 16, 16), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (9, 16, 16), }",
    "{'descr': '<U8', 'fortran_order': False, 'shape': (9,), }",
    "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (9, 2), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (9, 16, 16), }",
    "{'descr': '<f0', 'fortran_order': False, 'shape': (9, 16, 16), }",
    "{'descr': [('a', '<f4'), ('b', '<i2')], 'fortran_order': False, 'shape': (9, 2), }",
    "{'descr': '<f4', 'shape': (9, 16, 16), }",
    "{'descr': 5, 'fortran_order': False, 'shape': (9, 16, 16), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 2), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 16, 16), }",
    "[1, 2, 3]",
    "(" * 3000,
    "{" + "'a': 1, " * 9000 + "}",
    "__import__('os').getcwd()",
    "é",
    "",
)


def npy(content: bytes, dice: Dice) -> tuple[bytes, str]:
    """Another npy in place of this one."""
    kind = dice.choice(("array", "array", "array", "header", "objects", "version", "bytes", "length"))
    array = np.load(io.BytesIO(content))
    if kind == "array":
        array, words = arrays.changed(array, dice)
        return _packed(array), words
    if kind == "objects":
        return _packed(np.array([None, "a", 1.0], dtype=object)), "an array of objects"
    if kind == "header":
        text = dice.choice(HEADERS)
        return _with_header(text) + array.tobytes(), f"header {text[:60]!r}"
    if kind == "version":
        return content[:6] + bytes((dice.choice((0, 2, 3, 4, 255)), dice.choice((0, 1)))) + content[8:], "version"
    if kind == "length":
        return content[:8] + struct.pack("<H", dice.choice((0, 1, 65535))) + content[10:], "length of the header"
    return raw.damage(content, dice)


def _packed(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def _with_header(text: str) -> bytes:
    header = text.encode("utf-8")
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header


def npz(path: Path, dice: Dice) -> str:
    """Another npz in place of the file; in words, what was done."""
    with zipfile.ZipFile(path) as archive:
        members: Members = {info.filename: archive.read(info) for info in archive.infolist()}
        method = archive.infolist()[0].compress_type
    words = dice.choice(DEEDS)(members, dice)
    if words.startswith("packed as"):
        method = {"bzip2": zipfile.ZIP_BZIP2, "lzma": zipfile.ZIP_LZMA}.get(words.split()[-1], zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    if words.startswith("directory"):
        words += ": " + _spoil_directory(path, dice)
    if dice.random() < 0.15:
        damaged, more = raw.damage(path.read_bytes(), dice)
        path.write_bytes(damaged)
        words += f", {more}"
    return words


def _member(members: Members, dice: Dice) -> str:
    name = dice.choice(sorted(members))
    members[name], words = npy(members[name], dice)
    return f"{name}: {words}"


def _remove(members: Members, dice: Dice) -> str:
    name = dice.choice(sorted(members))
    del members[name]
    return f"{name} removed"


def _rename(members: Members, dice: Dice) -> str:
    name = dice.choice(sorted(members))
    new = dice.choice((f"inner/{name}", f"../{name}", name.upper(), name.removesuffix(".npy"), "é.npy", "a" * 300, ""))
    members[new] = members.pop(name)
    return f"{name} renamed to {new[:40]}"


def _more(members: Members, dice: Dice) -> str:
    name, content = dice.choice((("folder/", b""), ("text.npy", b"hello"), ("empty.npy", b""), ("note.txt", b"hello")))
    members[name] = content
    return f"{name} added"


def _packing(members: Members, dice: Dice) -> str:
    return f"packed as {dice.choice(('deflated', 'bzip2', 'lzma'))}"


def _directory(members: Members, dice: Dice) -> str:
    return "directory"


def _cut(members: Members, dice: Dice) -> str:
    name = dice.choice(sorted(members))
    at = dice.randrange(len(members[name]))
    members[name] = members[name][:at]
    return f"{name} cut after {at} bytes"


DEEDS: tuple[Callable[[Members, Dice], str], ...] = (
    _member,
    _member,
    _member,
    _member,
    _remove,
    _rename,
    _more,
    _packing,
    _directory,
    _cut,
)


def _spoil_directory(path: Path, dice: Dice) -> str:
    """Fields of the zip's own headers: flags (encrypted), method, sums, sizes, offsets."""
    data = bytearray(path.read_bytes())
    fields = {"flags": (8, 6, 2), "method": (10, 8, 2), "crc": (16, 14, 4), "packed": (20, 18, 4), "size": (24, 22, 4)}
    field = dice.choice((*fields, "offset"))
    value = dice.choice((0, 1, 9, 12, 14, 97, 0xFFFF, 0xFFFFFFFF, 0x7FFFFFFF))
    central = data.find(b"PK\x01\x02")
    if field == "offset":
        struct.pack_into("<I", data, central + 42, value)
    else:
        at, local, width = fields[field]
        for start in (central + at, local):
            struct.pack_into("<H" if width == 2 else "<I", data, start, value & (0xFFFF if width == 2 else 0xFFFFFFFF))
    path.write_bytes(bytes(data))
    return f"{field} {value:#x}"


#: Bytes beyond which nothing is unpacked here.
MOST = 32 << 20


@cache
def _bomb() -> bytes:
    """Streams of zeros, one after the other: 1.2 GB in a kilobyte."""
    return bz2.compress(bytes(40 << 20)) * 30


def packed(path: Path, dice: Dice) -> str:
    """Another bz2 in place of the file."""
    unpacking = bz2.BZ2Decompressor()
    content = unpacking.decompress(path.read_bytes(), MOST)
    if not unpacking.eof or unpacking.unused_data:
        return "a bomb already"
    kind = dice.choice(("inside", "inside", "bytes", "bomb", "tail", "twice", "other", "inner bytes"))
    if kind == "inside":
        path.write_bytes(content)
        words = npz(path, dice)
        path.write_bytes(bz2.compress(path.read_bytes()))
        return f"inside {words}"
    if kind == "inner bytes":
        changed, words = raw.damage(content, dice)
        path.write_bytes(bz2.compress(changed))
        return f"inside {words}"
    if kind == "bytes":
        changed, words = raw.damage(path.read_bytes(), dice)
        path.write_bytes(changed)
        return words
    made = {
        "bomb": _bomb,
        "tail": lambda: path.read_bytes() + b"more",
        "twice": lambda: bz2.compress(path.read_bytes()),
        "other": lambda: bz2.compress(b"data: {path: x}\n"),
    }[kind]()
    path.write_bytes(made)
    return kind
