"""What can be wrong with an array or a number: values, types, shapes. `Dice` is random.Random, or Hypothesis's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np

Dice = random.Random

NUMBERS = (0, -1, 1, 2, 3, 0.5, -0.0, 1e-300, 1e300, -1e300, 1e30, 1e9, 1e-9, 2**31, 2**63, -(2**63), 2**64, 10**6)
FLOATS = (*(float(n) for n in NUMBERS), float("nan"), float("inf"), float("-inf"))
TYPES = ("<f2", "<f4", "<f8", ">f4", ">f8", "<i1", "<i2", "<i8", "<u1", ">u2", "<u4", "<u8", "<c8", "<c16", "?")


def values(array: np.ndarray, dice: Dice) -> tuple[np.ndarray, str]:
    """The array with other numbers in it, and in words what was done."""
    if array.size == 0 or array.dtype.kind not in "buifc":
        return array, "as it was"
    real = array.dtype.kind in "fc"
    out = np.array(array, copy=True)
    pool = FLOATS if real else tuple(int(n) for n in NUMBERS)
    worst = dice.choice(pool)
    kind = dice.choice(("one", "some", "all", "scaled", "shifted", "sorted", "one row", "last"))
    with np.errstate(all="ignore"):
        number = np.asarray(worst).astype(out.dtype) if real else _wrapped(int(worst), out.dtype)
        flat = out.reshape(-1)
        if kind == "one":
            flat[dice.randrange(flat.size)] = number
        elif kind == "last":
            flat[-1] = number
        elif kind == "some":
            for _ in range(dice.randint(2, 8)):
                flat[dice.randrange(flat.size)] = number
        elif kind == "all":
            flat[:] = number
        elif kind == "one row" and out.ndim:
            out[dice.randrange(len(out))] = number
        elif kind in ("scaled", "shifted"):
            factor = 10.0 ** dice.randint(-12, 12) * dice.choice((1, -1))
            worst = factor
            changed = out.astype(np.complex128 if out.dtype.kind == "c" else np.float64)
            changed = changed * factor if kind == "scaled" else changed + factor
            out = changed.astype(out.dtype)
        else:
            out = np.sort(flat).reshape(out.shape)
    return out, f"{kind} of the values: {worst!r}"


def _wrapped(number: int, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        return np.asarray(bool(number))
    bits = 8 * dtype.itemsize
    return np.asarray(number % (1 << bits), dtype=np.uint64).astype(f"u{dtype.itemsize}").astype(dtype)


def types(array: np.ndarray, dice: Dice) -> tuple[np.ndarray, str]:
    """The array as numbers of another type, all of which a file can hold."""
    name = dice.choice((*TYPES, "longdouble", "clongdouble"))
    with np.errstate(all="ignore"):
        source = array.real if array.dtype.kind == "c" and np.dtype(name).kind != "c" else array
        try:
            return source.astype(name), f"type {name}"
        except (TypeError, ValueError):
            return np.zeros(array.shape, dtype=name), f"zeros of type {name}"


def odd_types(array: np.ndarray, dice: Dice) -> tuple[Any, Any, str]:
    """Data and type of what is no array of numbers, for HDF5."""
    shape = array.shape
    texts = [dice.choice(("", "1", "photon", "a" * 300, "é", "nan", "1e-10")) for _ in range(max(array.size, 1))][:64]
    kind = dice.choice(("text", "bytes", "compound", "enum", "reference", "vlen", "opaque", "subarray", "one text"))
    if kind == "one text":
        return texts[0], h5py.string_dtype(), kind
    if kind == "text":
        return np.resize(np.array(texts, dtype=object), shape), h5py.string_dtype(), kind
    if kind == "bytes":
        return np.resize(np.array([t.encode() for t in texts], dtype="S300"), shape), None, kind
    if kind == "compound":
        return (
            np.zeros(shape, dtype=[("r", "<f8"), ("i", dice.choice(("<f8", "<i4", "S3"))), ("", "<u2")][:3]),
            None,
            kind,
        )
    if kind == "enum":
        return np.zeros(shape, "i1"), h5py.enum_dtype({"FALSE": 0, "TRUE": 1, "MAYBE": 2}, basetype="i1"), kind
    if kind == "reference":
        return None, h5py.ref_dtype, kind
    if kind == "vlen":
        return None, h5py.vlen_dtype(np.float32), kind
    if kind == "opaque":
        return np.zeros(shape, dtype="V8"), None, kind
    return np.zeros(shape, dtype=("<f4", (2,))), None, kind


def shapes(array: np.ndarray, dice: Dice) -> tuple[np.ndarray, str]:
    """The array in another shape, or with another number of rows."""
    deeds: dict[str, Callable[[], np.ndarray]] = {
        "scalar": lambda: array.reshape(-1)[0] if array.size else array,
        "flat": lambda: array.reshape(-1),
        "an axis more": lambda: array[None],
        "an axis more at the end": lambda: array[..., None],
        "transposed": lambda: array.T,
        "two axes exchanged": lambda: np.swapaxes(array, 0, -1) if array.ndim else array,
        "first row": lambda: array[0] if array.ndim else array,
        "one row": lambda: array[:1] if array.ndim else array,
        "a row less": lambda: array[:-1] if array.ndim else array,
        "no row": lambda: array[:0] if array.ndim else array,
        "a row more": lambda: np.concatenate([array, array[:1]]) if array.ndim else array,
        "no column": lambda: array[..., :0] if array.ndim else array,
        "a column less": lambda: array[..., :-1] if array.ndim else array,
        "one column": lambda: array[..., :1] if array.ndim else array,
        "twice as wide": lambda: np.concatenate([array, array], axis=-1) if array.ndim else array,
        "of one value": lambda: np.resize(array, (1,) * max(array.ndim, 1)) if array.size else array,
        "many axes": lambda: array.reshape((1,) * dice.choice((4, 20, 28)) + array.shape),
    }
    name = dice.choice(tuple(deeds))
    return np.asarray(deeds[name]()), name


def changed(array: np.ndarray, dice: Dice) -> tuple[np.ndarray, str]:
    """One of the changes that leave an array of numbers."""
    return dice.choice((values, values, types, shapes))(array, dice)
