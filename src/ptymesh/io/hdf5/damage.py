"""Damage that HDF5 does not notice, and at which it hangs, kills the process or returns what lay in memory.

This process checks before HDF5 reads. A child that reads first could not take the place of these checks: for a short
chunk with shuffle, HDF5 2.0 returns what lies in memory and no error; bitshuffle may die at any chunk, so the child
would have to unpack all of them; and its start (0.3 to 0.4 s of a core) takes longer than to read a small scan or a
result.

Global heaps, which hold strings: HDF5 steps over an object of length zero for ever.
Chunks: HDF5 reads beyond the end of one that is shorter than its values, or than the checksum behind them.
Chunks of bitshuffle: the plugin believes lengths that they and its options hold, and reads or writes beyond their ends.
"""

from __future__ import annotations

import functools
import itertools
import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import h5py

from ptymesh.errors import BadInput

#: First bytes of a global heap.
HEAP = b"GCOL\1\0\0\0"
#: Bytes at the start and at the end of a file that are searched for heaps.
SEARCHED_BYTES = 64 << 20
#: HDF5's numbers of filters. The first, and the last without a compression, keep a chunk's length; fletcher32 appends
#: a checksum.
SHUFFLE, FLETCHER32, BITSHUFFLE = 2, 3, 32008
CHECKSUM_BYTES = 4
#: Bytes before the first block of a chunk that bitshuffle compressed: its unpacked length (8), and that of a block (4).
BITSHUFFLE_HEADER_BYTES = 12
#: Length of a block where a chunk does not name one; the number of elements in a block is a multiple of this.
BLOCK_BYTES, BLOCK_MULTIPLE = 8192, 8
#: No writer makes larger blocks than this.
MAX_BLOCK_BYTES = 1 << 24


def check_heaps(path: Path) -> None:
    """Raise BadInput if a global heap is damaged; heaps in the middle of a file above 128 MiB are not checked."""
    state = path.stat()
    if not _heaps_are_sound(path, state.st_size, state.st_mtime_ns, state.st_ino):
        raise BadInput(f"{path} is truncated or damaged (in a heap of strings): copy the file again.")


@functools.lru_cache(64)
def _heaps_are_sound(path: Path, size: int, *_identity: int) -> bool:
    if size == 0:
        return True
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        is_short = size <= 2 * SEARCHED_BYTES
        parts = [(0, size)] if is_short else [(0, SEARCHED_BYTES), (size - SEARCHED_BYTES, size)]
        return all(_heap_is_sound(content, at, size) for part in parts for at in _find_heaps(content, *part))


def _find_heaps(content: mmap.mmap, start: int, stop: int) -> Iterator[int]:
    at = content.find(HEAP, start, stop)
    while at >= 0:
        yield at
        at = content.find(HEAP, at + 1, stop)


def _heap_is_sound(content: mmap.mmap, at: int, size: int) -> bool:
    """Return True if the objects of a heap follow each other to its end.

    A heap has 16 bytes of header, the last 8 of which are its length; each object has 16 more, the last 8 of which are
    the length of its content. Every writer makes lengths of 8 bytes.
    """
    if at + 16 > size:
        return True
    stop = at + struct.unpack_from("<Q", content, at + 8)[0]
    if stop > size:
        return False
    at += 16
    while at + 16 <= stop:
        index, length = struct.unpack_from("<H6xQ", content, at)
        step = 16 + (length + 7) // 8 * 8 if index else length  # index 0: free space, header included
        if step == 0 or step > stop - at:
            return False
        at += step
    return True


class ChunkCheck:
    """Checks of the chunks of one dataset, each chunk once.

    Attributes:
        needed: True if a chunk of this dataset can be damaged in a way that is known here.
    """

    def __init__(self, data: h5py.Dataset) -> None:
        properties = data.id.get_create_plist()
        filters = [properties.get_filter(index) for index in range(properties.get_nfilters())]
        #: Number and options of each filter, in the order in which a chunk went through them when it was written.
        self._filters = [(number, tuple(options)) for number, _, options, _ in filters]
        self._chunks = data.chunks or ()
        self._chunk_bytes = math.prod(self._chunks) * data.dtype.itemsize
        checked_filters = {SHUFFLE, FLETCHER32, BITSHUFFLE}
        numbers = {number for number, _ in self._filters}
        self.needed = data.chunks is not None and (
            numbers <= checked_filters or bool(numbers & {FLETCHER32, BITSHUFFLE})
        )
        self._checked: set[tuple[int, ...]] = set()
        self._stored: dict[tuple[int, ...], tuple[int, int]] | None = None

    def check_part(self, data: h5py.Dataset, part: tuple[int | slice, ...]) -> None:
        """Raise ValueError if a chunk of a part of the dataset is damaged.

        Args:
            data: the dataset.
            part: an index or a slice with start and stop for each axis.
        """
        if not self.needed:
            return
        for corner in _corners(part, self._chunks):
            if corner not in self._checked:
                self._checked.add(corner)
                self._check_chunk(data, corner)

    def _check_chunk(self, data: h5py.Dataset, corner: tuple[int, ...]) -> None:
        if self._stored is None:
            self._stored = _stored_chunks(data)
        if corner not in self._stored:  # nothing was ever written there
            return
        size, skipped = self._stored[corner]
        # what the filters so far made of the chunk: bytes at least, and whether it has as many
        least, is_exact = self._chunk_bytes, True
        blocks: tuple[int, int] | None = None  # bytes and element of what lies in bitshuffle's blocks
        appended = 0  # bytes after these blocks
        for place, (number, options) in enumerate(self._filters):
            if skipped >> place & 1:
                continue
            if number == FLETCHER32:
                least, appended = least + CHECKSUM_BYTES, appended + CHECKSUM_BYTES
                continue
            element = options[2] if number == BITSHUFFLE and len(options) > 2 else 0
            if number == BITSHUFFLE and element == 0:  # bitshuffle divides by it
                raise ValueError("its filter bitshuffle has elements of no size")
            if number == BITSHUFFLE and len(options) > 4 and options[4] != 0:  # with a compression
                blocks = (least, element) if is_exact else None
                least, is_exact, appended = BITSHUFFLE_HEADER_BYTES, False, 0
                continue
            blocks = None
            if number not in (SHUFFLE, BITSHUFFLE):  # these keep the length
                least, is_exact = 0, False
        if size < least:
            raise ValueError("a chunk of it is shorter than what it should hold")
        if blocks is not None:
            content = data.id.read_direct_chunk(corner)[1]
            check_bitshuffle_blocks(content[: len(content) - appended], *blocks)


def check_bitshuffle_blocks(content: bytes, unpacked: int, element: int) -> None:
    """Raise ValueError if lengths in a chunk that bitshuffle compressed do not fit it.

    Args:
        content: the chunk as stored.
        unpacked: length in bytes of what was compressed.
        element: length in bytes of one of its elements.
    """
    if len(content) < BITSHUFFLE_HEADER_BYTES:
        raise ValueError("a chunk of it ends too early")
    length, block_bytes = struct.unpack_from(">QI", content)
    if length != unpacked:
        raise ValueError("a chunk of it says that it has another size")
    block = block_bytes // element or BLOCK_BYTES // element
    if block <= 0 or block % BLOCK_MULTIPLE or block * element > max(unpacked, MAX_BLOCK_BYTES):
        raise ValueError("a chunk of it has blocks of an impossible size")
    count = unpacked // element
    at = BITSHUFFLE_HEADER_BYTES
    for _ in range(count // block + (count % block >= BLOCK_MULTIPLE)):
        if at + 4 > len(content):
            raise ValueError("a chunk of it ends too early")
        at += 4 + struct.unpack_from(">I", content, at)[0]
    if at + count % BLOCK_MULTIPLE * element > len(content):
        raise ValueError("a chunk of it ends too early")


def _stored_chunks(data: h5py.Dataset) -> dict[tuple[int, ...], tuple[int, int]]:
    """Return length and filter mask of all chunks by first element; HDF5 walks through all to describe one."""
    chunks: dict[tuple[int, ...], tuple[int, int]] = {}
    data.id.chunk_iter(lambda chunk: chunks.__setitem__(tuple(chunk.chunk_offset), (chunk.size, chunk.filter_mask)))
    return chunks


def _corners(part: tuple[int | slice, ...], chunks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Return the first elements of the chunks that hold a part."""
    bounds = [(one, one + 1) if isinstance(one, int) else (one.start, one.stop) for one in part]
    axes = [range(start // side * side, stop, side) for (start, stop), side in zip(bounds, chunks, strict=True)]
    return itertools.product(*axes)
