"""What can be wrong with an HDF5 file whose bytes are sound: attributes, types, shapes, links, storage, filters."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fuzz import arrays
from fuzz.arrays import Dice

WORDS = (
    "",
    "photon",
    "electron",
    "sideways",
    "far_field",
    "near",
    "keV",
    "furlong",
    "1e-10",
    "a" * 70000,
    "é\x00b",
    "nan",
)


def mutate(path: Path, dice: Dice) -> str:
    """Changes one thing in the file; in words, what. What HDF5 itself refuses to write is left out."""
    with h5py.File(path, "r+", track_order=False) as file:
        deed = dice.choice(DEEDS)
        try:
            return deed(file, dice)
        except (ValueError, TypeError, KeyError, OSError, RuntimeError, OverflowError, AttributeError) as error:
            return f"{deed.__name__} could not be done ({type(error).__name__})"


def names(file: h5py.File, kind: type | tuple[type, ...] = (h5py.Dataset, h5py.Group)) -> list[str]:
    """Of all datasets and groups."""
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, kind) else None)
    return sorted(found)


def _dataset(file: h5py.File, dice: Dice) -> tuple[str, Any]:
    """The name of one, and what it holds: of those that this process can read without harm after earlier changes."""
    name = dice.choice([name for name in names(file, h5py.Dataset) if harmless(file[name])])
    return name, file[name][()]


def harmless(data: h5py.Dataset) -> bool:
    """Whether what it holds lies in the file, and is little."""
    elsewhere = data.is_virtual or data.id.get_create_plist().get_external_count() > 0
    return not elsewhere and (data.size or 0) < 1 << 20


def _replace(file: h5py.File, name: str, *what: Any, **how: Any) -> None:
    """The dataset anew, with the attributes that it had."""
    attributes = dict(file[name].attrs)
    del file[name]
    made = file.create_dataset(name, *what, **how)
    for key, value in attributes.items():
        made.attrs[key] = value


def attribute(file: h5py.File, dice: Dice) -> str:
    with_any = [name for name in ["/", *names(file)] if len(file[name].attrs)]
    if with_any and dice.random() < 0.8:
        item = file[dice.choice(with_any)]
        key = dice.choice(sorted(item.attrs))
        if dice.random() < 0.2:
            del item.attrs[key]
            return f"attribute {key} of {item.name} removed"
    else:
        item = file[dice.choice(["/", *names(file)])]
        key = dice.choice(("units", "axes", "propagation", "corner", "pixel_size_m", "notes", "name", "radiation"))
    value = _attribute_value(item.attrs.get(key), dice)
    item.attrs[key] = value
    return f"attribute {key} of {item.name}: {str(value)[:60]!r}"


def _attribute_value(old: Any, dice: Dice) -> Any:
    if isinstance(old, np.ndarray | np.number) and np.asarray(old).dtype.kind in "buifc" and dice.random() < 0.6:
        return arrays.changed(np.asarray(old), dice)[0]
    deeds: tuple[Callable[[], Any], ...] = (
        lambda: dice.choice(WORDS[:-3]),
        lambda: dice.choice(WORDS[:-3]).encode(),
        lambda: dice.choice(arrays.FLOATS),
        lambda: np.array([dice.choice(arrays.FLOATS) for _ in range(dice.choice((0, 1, 2, 3, 100)))]),
        lambda: np.array([dice.choice(WORDS[:-3]) for _ in range(2)], dtype=h5py.string_dtype()),
        lambda: h5py.Empty("f4"),
        lambda: True,
        lambda: 3 + 4j,
        lambda: np.zeros((), dtype=[("a", "<f4"), ("b", "<i2")]),
        lambda: b"\xff\xfe",
        lambda: np.longdouble(3),
    )
    return dice.choice(deeds)()


def values(file: h5py.File, dice: Dice) -> str:
    name, data = _dataset(file, dice)
    data, words = arrays.values(np.asarray(data), dice)
    file[name][...] = data
    return f"{name}: {words}"


def remake(file: h5py.File, dice: Dice) -> str:
    name, data = _dataset(file, dice)
    data, words = arrays.changed(np.asarray(data), dice)
    _replace(file, name, data=data)
    return f"{name}: {words}"


def odd_type(file: h5py.File, dice: Dice) -> str:
    name, old = _dataset(file, dice)
    data, dtype, words = arrays.odd_types(np.asarray(old), dice)
    if data is None:
        _replace(file, name, np.shape(old), dtype=dtype)
    else:
        _replace(file, name, data=data, dtype=dtype)
    return f"{name}: type {words}"


def null(file: h5py.File, dice: Dice) -> str:
    name, _ = _dataset(file, dice)
    _replace(file, name, data=h5py.Empty(dice.choice(("f4", "u2", "c8"))))
    return f"{name}: NULL"


def huge(file: h5py.File, dice: Dice) -> str:
    """Declared large, in chunks that were never written."""
    name, old = _dataset(file, dice)
    old = np.asarray(old)
    shape = list(old.shape or (1,))
    axes = [dice.randrange(len(shape))] if dice.random() < 0.7 else range(len(shape))
    for axis in axes:
        shape[axis] = dice.choice((10**5, 10**8, 2**31, 2**40, 2**62))
    chunks = tuple(min(n, dice.choice((1, 16, 1024))) for n in shape)
    _replace(file, name, tuple(shape), dtype=old.dtype if old.dtype.kind in "buifc" else "f4", chunks=chunks)
    return f"{name}: declared {shape} in chunks of {chunks}"


def remove(file: h5py.File, dice: Dice) -> str:
    name = dice.choice(names(file))
    del file[name]
    return f"{name} removed"


def rename(file: h5py.File, dice: Dice) -> str:
    known = names(file)
    old = dice.choice(known)
    new = dice.choice([f"{old}_", *(f"{name}_2" for name in known[:3]), "entry_1/odd\nname", "a" * 300, "é"])
    file.move(old, new)
    return f"{old} renamed to {new[:40]!r}"


def exchange(file: h5py.File, dice: Dice) -> str:
    known = names(file)
    one, other = dice.choice(known), dice.choice(known)
    file.move(one, "in-between")
    file.move(other, one)
    file.move("in-between", other)
    return f"{one} and {other} exchanged"


def relink(file: h5py.File, dice: Dice) -> str:
    """A link in place of a group or dataset."""
    known = names(file)
    name = dice.choice(known)
    folder = Path(file.filename).parent
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
    targets: dict[str, Any] = {
        "soft to nowhere": h5py.SoftLink("/nowhere/at/all"),
        "soft to itself": h5py.SoftLink("/" + name),
        "soft to the root": h5py.SoftLink("/"),
        "soft to another": h5py.SoftLink("/" + dice.choice(known)),
        "soft, empty": h5py.SoftLink(""),
        "external, missing": h5py.ExternalLink("nowhere.h5", "/" + name),
        "external to itself": h5py.ExternalLink(Path(file.filename).name, "/" + name),
        "external to a pipe": h5py.ExternalLink("pipe", "/" + name),
        "external to a device": h5py.ExternalLink("/dev/zero", "/" + name),
        "external to a folder": h5py.ExternalLink(".", "/" + name),
        "external, upwards": h5py.ExternalLink("../../originals/own.cxi", "/" + name),
    }
    kind = dice.choice(tuple(targets))
    del file[name]
    file[name] = targets[kind]
    return f"{name}: link {kind}"


def cycle(file: h5py.File, dice: Dice) -> str:
    """A group that is in itself, by a hard link."""
    groups = ["/", *names(file, h5py.Group)]
    inner, outer = dice.choice(groups), dice.choice(groups)
    name = dice.choice(("again", "data_1", "data", "object", "per_view"))
    if name in file[inner]:
        del file[inner][name]
    file[inner][name] = file[outer]
    return f"{outer} is also {inner}/{name}"


def to_group(file: h5py.File, dice: Dice) -> str:
    name = dice.choice(names(file, h5py.Dataset))
    del file[name]
    file.create_group(name)["inside"] = 1.0
    return f"{name}: a group"


def to_dataset(file: h5py.File, dice: Dice) -> str:
    name = dice.choice(names(file, h5py.Group) or ["new"])
    if name in file:
        del file[name]
    file[name] = dice.choice((1.0, "text", 7))
    return f"{name}: a dataset"


def to_type(file: h5py.File, dice: Dice) -> str:
    name = dice.choice(names(file))
    del file[name]
    file[name] = np.dtype("<f8")
    return f"{name}: a named type"


def external_storage(file: h5py.File, dice: Dice) -> str:
    """Numbers that lie in another file."""
    name, old = _dataset(file, dice)
    old = np.asarray(old)
    folder = Path(file.filename).parent
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
    where = dice.choice(("/etc/hostname", "missing.bin", "/dev/zero", "pipe", Path(file.filename).name))
    _replace(file, name, old.shape, dtype=old.dtype, external=[(where, 0, max(old.nbytes, 1))])
    return f"{name}: stored in {where}"


def virtual(file: h5py.File, dice: Dice) -> str:
    """A virtual dataset, of another one, of itself, or of nothing."""
    name, old = _dataset(file, dice)
    old = np.asarray(old)
    source = dice.choice((".", "missing.h5", Path(file.filename).name, "/dev/zero"))
    layout = h5py.VirtualLayout(old.shape, dtype=old.dtype)
    layout[...] = h5py.VirtualSource(source, dice.choice(names(file, h5py.Dataset)), shape=old.shape)
    del file[name]
    file.create_virtual_dataset(name, layout)
    return f"{name}: virtual, from {source}"


def filtered(file: h5py.File, dice: Dice) -> str:
    """Stored in chunks through a filter, and then with other bytes in a chunk."""
    name, old = _dataset(file, dice)
    old = np.asarray(old)
    kinds: dict[str, dict[str, Any]] = {
        "gzip": {"compression": "gzip"},
        "lzf": {"compression": "lzf"},
        "fletcher32": {"fletcher32": True},
        "shuffle": {"shuffle": True, "compression": "gzip"},
        "scaleoffset": {"scaleoffset": 2},
        "unknown": {"compression": 257},
        "plugin": {"compression": 32008, "compression_opts": (0, 2)},
    }
    kind = dice.choice(tuple(kinds))
    _replace(file, name, data=old, chunks=tuple(min(n, 8) for n in old.shape), **kinds[kind])
    made = file[name]
    if dice.random() < 0.6:
        junk = bytes(dice.randrange(256) for _ in range(dice.choice((0, 1, 16, 200))))
        made.id.write_direct_chunk((0,) * old.ndim, junk, filter_mask=0)
        kind += f", {len(junk)} bytes of junk in a chunk"
    return f"{name}: {kind}"


def nested(file: h5py.File, dice: Dice) -> str:
    """Deep groups, or many."""
    depth = dice.choice((50, 400))
    if dice.random() < 0.5:
        file.create_group("/".join(f"g{n}" for n in range(depth)))["end"] = 1.0
        return f"{depth} groups in each other"
    for n in range(depth):
        file[f"many/d{n}"] = n
    return f"{depth} datasets more"


DEEDS: tuple[Callable[[h5py.File, Dice], str], ...] = (
    attribute,
    attribute,
    attribute,
    values,
    values,
    values,
    remake,
    remake,
    remake,
    odd_type,
    odd_type,
    null,
    huge,
    remove,
    remove,
    rename,
    exchange,
    relink,
    relink,
    cycle,
    to_group,
    to_dataset,
    to_type,
    external_storage,
    virtual,
    filtered,
    nested,
)
