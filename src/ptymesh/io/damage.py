"""Damage that HDF5 does not notice, and at which it hangs or the process dies: looked for before HDF5 comes upon it.

Global heaps, in which strings lie: an object of length zero there is stepped over for ever. They are looked for in a
file's first and last 64 MiB; heaps in the middle of a file above 128 MiB are not seen.
Chunks: what is shorter than its pixels, or than the checksum behind them, is read beyond its end.
Bitshuffle's chunks: lengths in them are believed, and bytes beyond the chunk read or written.
"""

from __future__ import annotations

import functools
import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import h5py

from ptymesh.errors import BadInput

#: A heap begins so; how much of a file's ends is looked through for them.
HEAP, LOOKED_THROUGH = b"GCOL\1\0\0\0", 64 << 20
#: HDF5's numbers of filters that leave a chunk as long as it was, and of one that puts 4 bytes behind it.
SHUFFLE, FLETCHER32, CHECKSUM_BYTES, BITSHUFFLE = 2, 3, 4, 32008
#: Bytes of a block that bitshuffle takes where nothing is said, and what its elements come in multiples of.
BLOCK_BYTES, MULTIPLE = 8192, 8
#: No writer makes larger blocks than this.
MOST_BLOCK_BYTES = 1 << 24


def check_heaps(path: Path) -> None:
    """Raises BadInput where a global heap is damaged, in a file's first and last `LOOKED_THROUGH` bytes."""
    state = path.stat()
    if not _sound(path, state.st_size, state.st_mtime_ns, state.st_ino):
        raise BadInput(f"{path} is truncated or damaged (in a heap of strings): copy the file again.")


@functools.lru_cache(64)
def _sound(path: Path, size: int, *_: int) -> bool:
    if size == 0:
        return True
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        parts = [(0, size)] if size <= 2 * LOOKED_THROUGH else [(0, LOOKED_THROUGH), (size - LOOKED_THROUGH, size)]
        return all(_heap_is_sound(content, at, size) for start, stop in parts for at in _found(content, start, stop))


def _found(content: mmap.mmap, start: int, stop: int) -> Iterator[int]:
    at = content.find(HEAP, start, stop)
    while at >= 0:
        yield at
        at = content.find(HEAP, at + 1, stop)


def _heap_is_sound(content: mmap.mmap, at: int, size: int) -> bool:
    """Heaps with lengths of 8 bytes, as every writer makes them: 16 bytes, then objects of 16 bytes and a content."""
    if at + 16 > size:
        return True
    stop = at + struct.unpack_from("<Q", content, at + 8)[0]
    if stop > size:
        return False
    at += 16
    while at + 16 <= stop:
        index, length = struct.unpack_from("<H6xQ", content, at)
        step = 16 + (length + 7) // 8 * 8 if index else length
        if step == 0 or step > stop - at:
            return False
        at += step
    return True


class ChunkCheck:
    """Looks through chunks of a dataset before they are unpacked; once each."""

    def __init__(self, data: h5py.Dataset) -> None:
        plan = data.id.get_create_plist()
        filters = [plan.get_filter(index) for index in range(plan.get_nfilters())]
        self._kinds = [kind for kind, *_ in filters]
        self._packed = bool(filters) and filters[-1][0] == BITSHUFFLE and len(filters[-1][2]) > 4
        self._packed = self._packed and filters[-1][2][4] != 0
        self.needed = data.chunks is not None and (self._packed or not set(self._kinds) - {SHUFFLE, FLETCHER32})
        self.needed |= data.chunks is not None and FLETCHER32 in self._kinds
        self._seen: set[tuple[int, ...]] = set()
        self._element, self._chunks = data.dtype.itemsize, data.chunks or ()
        self._stored: dict[tuple[int, ...], tuple[int, int]] | None = None

    def look(self, data: h5py.Dataset, where: tuple[int | slice, ...]) -> None:
        """Raises ValueError where a chunk of this part is damaged. Slices have start and stop."""
        if not self.needed:
            return
        part = tuple(slice(one, one + 1) if isinstance(one, int) else one for one in where)
        for corner in _corners(part, self._chunks):
            if corner not in self._seen:
                self._seen.add(corner)
                self._look(data, corner)

    def _look(self, data: h5py.Dataset, corner: tuple[int, ...]) -> None:
        if self._stored is None:
            self._stored = _stored(data)
        if corner not in self._stored:  # nothing was ever written there
            return
        size, mask = self._stored[corner]
        element, expected = self._element, math.prod(self._chunks) * self._element
        done = [kind for place, kind in enumerate(self._kinds) if not mask >> place & 1]
        least = CHECKSUM_BYTES * done.count(FLETCHER32)
        if not set(done) - {SHUFFLE, FLETCHER32}:
            least += expected
        if size < least:
            raise ValueError("a chunk of it is shorter than what it should hold")
        if self._packed and BITSHUFFLE in done:
            self._look_within(data.id.read_direct_chunk(corner)[1], element, expected)

    @staticmethod
    def _look_within(content: bytes, element: int, expected: int) -> None:
        """A chunk of bitshuffle's with a compression."""
        if len(content) < 12 or struct.unpack_from(">Q", content)[0] != expected:
            raise ValueError("a chunk of it says that it has another size")
        block = struct.unpack_from(">I", content, 8)[0] // element or BLOCK_BYTES // element
        if block <= 0 or block % MULTIPLE or block * element > max(expected, MOST_BLOCK_BYTES):
            raise ValueError("a chunk of it has blocks of an impossible size")
        count = expected // element
        blocks = count // block + (count % block >= MULTIPLE)
        at = 12
        for _ in range(blocks):
            if at + 4 > len(content):
                raise ValueError("a chunk of it ends too early")
            at += 4 + struct.unpack_from(">I", content, at)[0]
        if at + count % MULTIPLE * element > len(content):
            raise ValueError("a chunk of it ends too early")


def _stored(data: h5py.Dataset) -> dict[tuple[int, ...], tuple[int, int]]:
    """Length and filter mask of every chunk by its first element. HDF5 goes through all of them to tell of one."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    data.id.chunk_iter(lambda chunk: found.__setitem__(tuple(chunk.chunk_offset), (chunk.size, chunk.filter_mask)))
    return found


def _corners(part: tuple[slice, ...], chunks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """First elements of the chunks that hold this part."""
    if not part:
        yield ()
        return
    first = part[0].start // chunks[0] * chunks[0]
    for start in range(first, part[0].stop, chunks[0]):
        for rest in _corners(part[1:], chunks[1:]):
            yield (start, *rest)
