"""Reader of HDF5 files that may be damaged, or made to do harm: whatever goes wrong becomes one sentence.

A damaged file makes h5py raise nearly every exception that Python knows: OSError from the library, RuntimeError and
KeyError for broken groups and links, ValueError and TypeError for broken types, MemoryError for sizes that no file has.
Besides, HDF5 opens any file that another one names, in links, as raw storage, or as a part of a virtual dataset. So
links are followed here by hand, and what they name is opened only if it is a regular file in the first file's folder.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io.hdf5.damage import ChunkCheck, check_heaps
from ptymesh.limits import check_files, check_room

#: HDF5's chunk cache per dataset: neighbouring reads of one chunk then decompress it once.
CACHE_BYTES = 64 << 20
#: Largest number of links on the way to one object.
HOPS = 64
#: Largest number of sources of a virtual dataset.
SOURCES = 100_000
#: Largest depth of virtual datasets that are made of virtual ones.
DEPTH = 8
#: Largest number of values in an attribute.
ATTRIBUTE_VALUES = 10_000
#: Share of the free memory that one dataset, read whole, may take.
READ_SHARE = 0.5
#: Share of the free memory that one chunk may take.
CHUNK_SHARE = 0.25
#: Largest number of objects that a listing looks at.
LISTED = 10_000

#: What h5py raises of damaged files. Nothing but calls of h5py stands where these are caught.
DAMAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SystemError,
    TypeError,
    ValueError,
)
#: HDF5's words about a file that is shorter than it says.
TRUNCATED = re.compile(r"truncated file: eof = (\d+), sblock->base_addr = 0, stored_eof = (\d+)")
#: What the system refuses for reasons that are not the file's, and what helps.
SYSTEM = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs, or have the machine's limit of open files raised",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EAGAIN: "another program has it open for writing; wait until that is done",
    errno.EIO: "the disk, or the way to it, fails; try again, or copy the file to another disk",
    errno.ENOMEM: "free some memory, or take a larger machine",
}
#: How deep datasets are virtual, by their file and name.
Checked = dict[tuple[Path, str], int]
#: Kinds of numpy's dtypes in words.
KINDS = {"buif": "numbers", "bui": "whole numbers", "iuf": "numbers", "buifc": "numbers"}


@contextmanager
def reading(subject: str, remedy: str = "copy the file again") -> Iterator[None]:
    """Turn what calls of h5py raise into a BadInput, such as "SUBJECT is truncated or damaged (...): REMEDY."."""
    try:
        yield
    except PtymeshError:
        raise
    except DAMAGE as error:
        raise unreadable(subject, error, remedy) from error


def unreadable(subject: str, error: BaseException, remedy: str = "copy the file again") -> BadInput:
    """Return the error for what h5py raised: the system's own reason if the system refused, else damage.

    Args:
        subject: words for the object that was read.
        error: what h5py raised.
        remedy: what a person should do about damage.
    """
    if isinstance(error, MemoryError):
        return BadInput(f"{subject} needs more memory than there is: free some, or, if it is small, {remedy}.")
    number = error.errno if isinstance(error, OSError) else None
    if number in SYSTEM:
        return BadInput(f"{subject} cannot be read ({os.strerror(number)}): {SYSTEM[number]}.")
    cut = TRUNCATED.search(str(error))
    if cut is not None:
        return BadInput(f"{subject} is truncated (it has {cut[1]} of its {cut[2]} bytes): {remedy}.")
    return BadInput(f"{subject} is truncated or damaged ({first_line(error)}): {remedy}.")


class Hdf5File(h5py.File):
    """A file open for reading, and the open files that its links have led to.

    Args:
        path: the file.
        cache: bytes of HDF5's chunk cache for each dataset.
        roots: folders, with links resolved, in which files that it refers to may lie.
        checked: depth of each source of virtual datasets that was checked, by file and name. Files that this one leads
            to share it.
    """

    def __init__(self, path: Path, cache: int, roots: Sequence[Path], checked: Checked | None = None) -> None:
        self.path, self.cache, self.roots = path, cache, tuple(roots)
        self.others: dict[Path, Hdf5File] = {}
        self.checked: Checked = {} if checked is None else checked
        super().__init__(path, "r", rdcc_nbytes=cache, locking="best-effort")

    def close(self) -> None:
        """Close the files that links led to, and this one."""
        for other in self.others.values():
            other.close()
        super().close()

    def other(self, name: bytes | str) -> Hdf5File:
        """Return the file that this one refers to by name, open; raise BadInput if it must not be opened."""
        path = self.named(name)
        if path not in self.others:
            self.others[path] = self.opened(path)
        return self.others[path]

    def opened(self, path: Path) -> Hdf5File:
        """Open another file, which the caller closes."""
        return _opened(path, self.cache, self.roots, self.checked)

    def place(self, name: bytes | str) -> Path | None:
        """Return the path of a file by name, looked for as HDF5 does; None if there is none."""
        relative = Path(os.fsdecode(name))
        places = [self.path.absolute().parent, self.path.resolve().parent, Path.cwd()]
        candidates = [place / relative for place in places]
        if relative.is_absolute():  # it may have been moved together with this one
            candidates = [relative, *(place / relative.name for place in places)]
        return next((path for path in candidates if path.exists()), None)

    def named(self, name: bytes | str) -> Path:
        """Return the path of a file that this one refers to; raise BadInput if it must not be opened."""
        path = self.place(name)
        if path is None:
            raise BadInput(
                f"{self.path} refers to {os.fsdecode(name)!r}, which is not there: copy it to "
                f"{self.path.absolute().parent}."
            )
        real = path.resolve()
        if not any(real.is_relative_to(root) for root in self.roots):
            raise BadInput(
                f"{self.path} refers to {real}, which is not in its own folder: copy it there, or, if you trust the "
                f"file, allow {real.parent} by data.follow."
            )
        if not real.is_file():
            raise BadInput(f"{self.path} refers to {real}, which is no regular file: put the file itself there.")
        return path


def open_hdf5(path: Path, cache: int = CACHE_BYTES, follow: Sequence[Path] = ()) -> Hdf5File:
    """Open a file for reading.

    Args:
        path: the file.
        cache: bytes of HDF5's chunk cache for each dataset.
        follow: folders, besides the file's own, in which files that it refers to may lie.

    Raises:
        BadInput: it is no regular file, or it is truncated or damaged.
    """
    return _opened(path, cache, [path.resolve().parent, *(folder.resolve() for folder in follow)])


def _opened(path: Path, cache: int, roots: Sequence[Path], checked: Checked | None = None) -> Hdf5File:
    if not path.is_file():
        raise BadInput(f"{path} is no regular file; give the path of one.")
    with reading(str(path), "copy it again"):
        return Hdf5File(path, cache, roots, checked)


def names_in(group: h5py.Group, most: int = LISTED) -> list[str]:
    """Return the names in a group, the first so many of them.

    Raises:
        BadInput: the group is damaged.
    """
    with reading(f"{group.name} in {group.file.filename}"):
        return [str(name) for name in itertools.islice(group, most)]


def is_hdf5(path: Path) -> bool:
    """Return True if a path is a regular file that begins as HDF5 files do."""
    try:
        return path.is_file() and bool(h5py.is_hdf5(path))
    except DAMAGE:
        return False


def has(file: Hdf5File, name: str) -> bool:
    """Return True if the file has an object of this name."""
    return item_of(file, name) is not None


def item_of(file: Hdf5File, name: str) -> Any:
    """Return the group or dataset of this name, or None; a dataset is not checked for reading yet (`dataset_of`)."""
    with reading(f"{name} in {file.filename}"):
        _, identifier = _find(file, name)
        wrapped = {h5py.h5g.GroupID: h5py.Group, h5py.h5d.DatasetID: h5py.Dataset, h5py.h5t.TypeID: h5py.Datatype}
        return next((make(identifier) for kind, make in wrapped.items() if isinstance(identifier, kind)), None)


def dataset_of(file: Hdf5File, name: str) -> h5py.Dataset:
    """Return the dataset of this name, checked for reading, with the plugin loaded that its compression needs.

    Raises:
        BadInput: it is missing or empty, or its values lie where they must not be read from.
    """
    return _dataset(file, name, ())[0]


def read_dataset(file: Hdf5File, name: str, most: int | None = None, kinds: str | None = None) -> np.ndarray:
    """Return a whole small dataset in this machine's number formats.

    Args:
        file: open file.
        name: of the dataset.
        most: largest number of values that it may have; None: any.
        kinds: numpy's letters of dtypes that it may have; None: any.

    Raises:
        BadInput: it is missing, damaged, too large, or of another kind.
    """
    data = dataset_of(file, name)
    subject = f"{name} in {file.filename}"
    with reading(subject):
        check_kind(data.dtype, kinds, subject)
        check_count(data.shape, most, subject)
        needed = math.prod(data.shape) * data.dtype.itemsize
        check_room(
            needed, f"{subject} of shape {data.shape}", "the file is damaged, or wants a larger machine", READ_SHARE
        )
        if data.dtype.kind == "O":
            check_heaps(Path(data.file.filename))
        _look_at_chunks(data)
        return native(np.asarray(data[()]))


def _look_at_chunks(data: h5py.Dataset) -> None:
    ChunkCheck(data).check_part(data, tuple(slice(0, side) for side in data.shape))


def check_kind(dtype: np.dtype, kinds: str | None, subject: str) -> None:
    """Raise BadInput if a type is not of the wanted kinds.

    Args:
        dtype: type of the values.
        kinds: numpy's letters of wanted kinds; None: any.
        subject: words for the array.
    """
    if kinds is not None and dtype.kind not in kinds:
        raise BadInput(f"{subject} holds {str(dtype)[:60]} values; they must be {KINDS[kinds]}.")


def check_count(shape: tuple[int, ...], most: int | None, subject: str) -> None:
    """Raise BadInput if an array has more values than can be needed.

    Args:
        shape: of the array.
        most: largest number of values; None: any.
        subject: words for the array.
    """
    if most is not None and math.prod(shape) > most:
        raise BadInput(f"{subject} has shape {shape}, more values than the {most} that this scan can need: correct it.")


def native(array: np.ndarray) -> np.ndarray:
    """Return numbers in this machine's byte order; halves as single, more than double as double precision."""
    dtype = array.dtype
    if dtype.kind in "fc":
        least, most = (("f4", "f8"), ("c8", "c16"))[dtype.kind == "c"]
        target = least if dtype.itemsize < np.dtype(least).itemsize else most
        if not np.dtype(least).itemsize <= dtype.itemsize <= np.dtype(most).itemsize:
            with np.errstate(over="ignore", invalid="ignore"):  # callers look for NaN and infinities
                return array.astype(target)
    return array.astype(dtype.newbyteorder("="), copy=False) if dtype.kind in "iufc" else array


def in_other_files(data: h5py.Dataset) -> bool:
    """Return True if a dataset's values lie in other files: it is virtual, or its storage is external."""
    with reading(f"{data.name} in {data.file.filename}"):
        return bool(data.is_virtual or data.id.get_create_plist().get_external_count() > 0)


def attribute(item: Any, name: str) -> Any:
    """Return the value of an attribute, None if it is missing or empty; raise BadInput if it is damaged."""
    with reading(f"Attribute {name} of {item.name} in {item.file.filename}"):
        if name not in item.attrs:
            return None
        identifier = item.attrs.get_id(name)
        check_count(identifier.shape or (), ATTRIBUTE_VALUES, f"Attribute {name} of {item.name}")
        if identifier.dtype.kind == "O":  # strings and the like, which lie in a heap
            check_heaps(Path(item.file.filename))
        value = item.attrs[name]
        return None if isinstance(value, h5py.Empty) else value


def text_of(value: Any, most: int = 1000) -> str | None:
    """Return the text of an attribute's value on one line; None if it is no text."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        return None
    return " ".join(value.encode("utf-8", "replace").decode("utf-8").split())[:most]


def listing(file: Hdf5File, most: int = 8) -> str:
    """Return the names and shapes of a file's datasets, largest first, for error messages."""
    sized_names: list[tuple[int, str]] = []
    visits = itertools.count(1)

    def visit(name: str, item: Any) -> bool | None:
        if isinstance(item, h5py.Dataset):
            sized_names.append((math.prod(item.shape or (0,)), f"/{text_of(name)} {item.shape}"))
        return True if next(visits) >= LISTED else None

    with reading(f"{file.filename}"):
        file.visititems(visit)
    names = [text for _, text in sorted(sized_names, reverse=True)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) + more) or "none at all"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 160 characters; its class if it has no message."""
    message = str(error).strip()
    return message.splitlines()[0][:160] if message else type(error).__name__


# --- where names lead ---


def _find(file: Hdf5File, name: str) -> tuple[Hdf5File, Any]:
    """Return the file that an object lies in, and the object (h5py's low-level identifier) or None."""
    subject, item = f"{name} in {file.filename}", _root_group(file)
    parts_left, hops = deque(_path_parts(name.encode())), 0
    while parts_left:
        part = parts_left.popleft()
        if not isinstance(item, h5py.h5g.GroupID) or not item.links.exists(part):
            return file, None
        kind = item.links.get_info(part).type
        if kind == h5py.h5l.TYPE_HARD:
            item = _opened_object(item, part)
            continue
        hops += 1
        if hops > HOPS:
            raise BadInput(f"{subject} is a link that leads in circles: mend the link, or copy the file again.")
        if kind == h5py.h5l.TYPE_SOFT:
            path = item.links.get_val(part)
            item = _root_group(file) if path.startswith(b"/") else item
        elif kind == h5py.h5l.TYPE_EXTERNAL:
            other_name, path = item.links.get_val(part)
            file = file.other(other_name)
            item = _root_group(file)
        else:
            raise BadInput(f"{subject} is a link of a kind that is not known: copy what it stands for into the file.")
        parts_left.extendleft(reversed(_path_parts(path)))
    return file, item


def _root_group(file: Hdf5File) -> Any:
    return h5py.h5g.open(file.id, b"/")


def _path_parts(name: bytes) -> list[bytes]:
    """Return the parts of a path between slashes."""
    return [part for part in name.split(b"/") if part not in (b"", b".")]


def _dataset(file: Hdf5File, name: str, parents: tuple[tuple[Path, str], ...]) -> tuple[h5py.Dataset, int]:
    """Return the dataset and its depth (0: not virtual); `parents`: virtual datasets that it is a part of."""
    depth, subject = 0, f"{name} in {file.filename}"
    with reading(subject):
        home, identifier = _find(file, name)
        if not isinstance(identifier, h5py.h5d.DatasetID):
            raise BadInput(f"{file.filename} has no dataset {name}; it has {listing(file)}.")
        if identifier.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            raise BadInput(f"{subject} is empty (it has no values at all): write it, or leave it out.")
        plan = identifier.get_create_plist()
        if plan.get_external_count():
            identifier = _open_external_storage(home, identifier, plan)
        if plan.get_layout() == h5py.h5d.VIRTUAL:
            depth = _check_sources(home, name, plan, parents)
        if plan.get_layout() == h5py.h5d.CHUNKED:
            chunk = math.prod(plan.get_chunk()) * identifier.get_type().get_size()
            check_room(chunk, f"One chunk of {subject}", "the file is damaged, or wants smaller chunks", CHUNK_SHARE)
        if any(plan.get_filter(i)[0] >= 256 for i in range(plan.get_nfilters())):  # 256: first registered plugin
            _load_filters(subject)
        return h5py.Dataset(identifier), depth


def _load_filters(subject: str) -> None:
    """Let HDF5 find the registered filters, which are for compressed data alone and 46 MB.

    Raises:
        BadInput: They are not installed.
    """
    try:
        import hdf5plugin  # noqa: F401
    except ImportError as error:
        raise BadInput(
            f"{subject} is compressed by a filter of hdf5plugin, which cannot be imported ({error}): pip install "
            "hdf5plugin, or write the file without compression."
        ) from error


def _opened_object(group: Any, part: bytes) -> Any:
    try:
        return h5py.h5o.open(group, part)
    except KeyError:
        if group.links.exists(part) and h5py.h5o.get_info(group, part).type == h5py.h5o.TYPE_DATASET:
            return h5py.h5d.open(
                group, part, _access_beside_file()
            )  # it is open with this option elsewhere in the process
        raise


def _access_beside_file() -> Any:
    """Return access options by which external storage is looked for beside the file, not in the working folder."""
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_efile_prefix(b"${ORIGIN}")
    return access


def _open_external_storage(home: Hdf5File, identifier: Any, plan: Any) -> Any:
    """Return a dataset with external storage, opened so that HDF5 reads the files that are checked here."""
    for index in range(plan.get_external_count()):
        storage_name = os.fsdecode(plan.get_external(index)[0])
        if home.named(storage_name) != home.path.absolute().parent / storage_name:  # an absolute name stays as it is
            raise BadInput(
                f"{home.path} refers to {storage_name!r}, which is not there: copy it to {home.path.absolute().parent}."
            )
    name = h5py.h5i.get_name(identifier)
    identifier._close()  # HDF5 keeps the options with which a dataset was opened first
    return h5py.h5d.open(home.id, name, _access_beside_file())


def _check_sources(home: Hdf5File, name: str, plan: Any, parents: tuple[tuple[Path, str], ...]) -> int:
    """Return the depth of a virtual dataset; raise BadInput if a source is missing or must not be read.

    Without this check HDF5 would take the values of a file that it cannot open to be zero. It keeps files that it reads
    open, so their number is checked, too.
    """
    chain = (*parents, (home.path.resolve(), name))
    if len(chain) > DEPTH or len(set(chain)) < len(chain):
        raise _made_of_itself(home, name)
    count = plan.get_virtual_count()
    if count > SOURCES:
        raise BadInput(
            f"{name} in {home.path} has {count} sources, more than {SOURCES}: copy its values into one file."
        )
    pairs = {(plan.get_virtual_filename(index), plan.get_virtual_dsetname(index)) for index in range(count)}
    height, sources = 0, _Sources(home)
    try:
        for file_name, dataset_name in sorted(pairs):
            height = max(height, _check_source(sources, file_name, dataset_name, chain))
    finally:
        sources.close()
    if not parents:
        check_files(len({path for path, _ in home.checked}), f"{name} in {home.path}")
    return height + 1


class _Sources:
    """Files that one file refers to by name, of which only the last is open."""

    def __init__(self, home: Hdf5File) -> None:
        self.home, self._file, self._paths = home, home, {".": home.path}

    def path(self, name: str) -> Path:
        """Return the path of a file by name; raise BadInput if it must not be opened."""
        if name not in self._paths:
            self._paths[name] = self.home.named(name)
        return self._paths[name]

    def file(self, name: str) -> Hdf5File:
        """Return a file by name, which stays open until the next is asked for."""
        path = self.path(name)
        if path != self._file.path:
            self.close()
            self._file = self.home if name == "." else self.home.opened(path)
        return self._file

    def close(self) -> None:
        """Close the last file, unless it is the one that refers to the others."""
        if self._file is not self.home:
            self._file.close()
        self._file = self.home


def _check_source(sources: _Sources, file_name: str, dataset_name: str, chain: tuple[tuple[Path, str], ...]) -> int:
    """Check a source, or all that there are if its name counts blocks (%b), and return its depth."""
    is_numbered, height = "%b" in file_name or "%b" in dataset_name, 0
    for block in range(SOURCES if is_numbered else 1):
        path, inside = (name.replace("%b", str(block)).replace("%%", "%") for name in (file_name, dataset_name))
        if is_numbered and block and not _is_there(sources, path, inside):
            break
        key, checked = (sources.path(path).resolve(), inside), sources.home.checked
        if key not in checked:
            data, depth = _dataset(sources.file(path), inside, chain)
            checked[Path(data.file.filename).resolve(), str(data.name)] = checked[key] = depth
        if len(chain) + checked[key] > DEPTH:
            raise _made_of_itself(sources.home, chain[-1][1])
        height = max(height, checked[key])
    return height


def _is_there(sources: _Sources, path: str, inside: str) -> bool:
    if path != "." and sources.home.place(path) is None:
        return False
    return has(sources.file(path), inside)


def _made_of_itself(home: Hdf5File, name: str) -> BadInput:
    return BadInput(f"{name} in {home.path} is virtual, and made of itself or of too many others: copy its values.")
