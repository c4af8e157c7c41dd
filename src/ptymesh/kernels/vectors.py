"""Vectors of eight real numbers as a type of numba's: what a loop over a panel of columns or rows is made of.

Numba leaves it to LLVM to find out which loops can be vector code, and a butterfly of a Fourier transform, which reads
and writes sixteen places, is more than it can see through. Here the vectors are written down. They are LLVM's own, so
that each processor takes registers as wide as it has.

a, b    vectors, of float32 or float64
array   C-contiguous, real or complex; `place` counts real numbers from its start
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic as _intrinsic
from numba.extending import register_model

from ptymesh.kernels.jit import inlined

#: Numbers in a vector.
LANES: Any = np.uint64(8)
_lanes = int(LANES)
#: Bytes of a line of the cache.
LINE = 64
intrinsic: Any = _intrinsic  # what it makes is called with other arguments than it is given
ZERO, TWO, THREE, FOUR, FIVE, SIX, SEVEN = (np.uint64(n) for n in (0, 2, 3, 4, 5, 6, 7))


class Vector(types.Type):
    """Type of eight numbers of this dtype."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, _llvm(of))


def _llvm(vector: Any) -> Any:
    return ir.VectorType(ir.FloatType() if vector.dtype == types.float32 else ir.DoubleType(), _lanes)


def _in(array: Any) -> Any:
    """The vectors in an array of this type."""
    return Vector(getattr(array.dtype, "underlying_float", array.dtype))


def _offer(operation: Any, instruction: str) -> None:
    """a + b and its kin."""

    class Template(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            fits = len(args) == 2 and isinstance(args[0], Vector) and args[0] == args[1]
            return signature(args[0], *args) if fits else None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args)

    infer_global(operation)(Template)
    lower_builtin(operation, Vector, Vector)(lower)


for _operation, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _offer(_operation, _instruction)


def _number(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Address of the number at a place."""
    data = context.make_array(sig.args[0])(context, builder, args[0]).data
    return builder.gep(builder.bitcast(data, _llvm(_in(sig.args[0])).element.as_pointer()), [args[1]])


def _address(context: Any, builder: Any, sig: Any, args: Any) -> tuple[Any, int]:
    """Of the vector at a place, and the alignment of its numbers."""
    vector = _in(sig.args[0])
    return builder.bitcast(_number(context, builder, sig, args), _llvm(vector).as_pointer()), vector.dtype.bitwidth // 8


@intrinsic
def load(typing: Any, array: Any, place: Any) -> Any:
    """The vector at a place."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address, align = _address(context, builder, sig, args)
        return builder.load(address, align=align)

    return _in(array)(array, types.uint64), lower


@intrinsic
def _fetch(typing: Any, array: Any, place: Any) -> Any:
    """Asks for the line of the cache with the number at a place."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        whole = ir.IntType(32)
        address = builder.bitcast(_number(context, builder, sig, args), ir.IntType(8).as_pointer())
        signature = ir.FunctionType(ir.VoidType(), [address.type, whole, whole, whole])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [address.type], signature)
        # to read; into the second level, as a core waits for more lines of that one; data
        builder.call(prefetch, [address, *(ir.Constant(whole, n) for n in (0, 2, 1))])
        return context.get_dummy_value()

    return types.void(array, types.uint64), lower


@intrinsic
def _in_line(typing: Any, array: Any) -> Any:
    """Numbers of an array in a line of the cache."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(ir.IntType(64), LINE // (_in(sig.args[0]).dtype.bitwidth // 8))

    return types.uint64(array), lower


@inlined
def fetch(array: Any, place: int, count: int) -> None:
    """Asks for so many numbers from a place on, to be in the cache when they are wanted; they need not exist."""
    for at in range(place, place + count, _in_line(array)):
        _fetch(array, at)


@intrinsic
def load_as(typing: Any, array: Any, place: Any, like: Any) -> Any:
    """Eight numbers of any real array, at a place, converted to those of another."""
    vector, dtype = _in(like), array.dtype

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        whole = isinstance(dtype, types.Integer)
        element = ir.IntType(dtype.bitwidth) if whole else _llvm(Vector(dtype)).element
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), ir.VectorType(element, _lanes).as_pointer())
        found, wanted = builder.load(address, align=dtype.bitwidth // 8), _llvm(vector)
        if whole:
            return (builder.sitofp if dtype.signed else builder.uitofp)(found, wanted)
        if dtype.bitwidth == vector.dtype.bitwidth:
            return found
        return (builder.fptrunc if dtype.bitwidth > vector.dtype.bitwidth else builder.fpext)(found, wanted)

    return vector(array, types.uint64, like), lower


@intrinsic
def where_at_least(typing: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
    """x where a >= b, and y elsewhere: where a or b is NaN, too."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">=", *args[:2]), *args[2:])

    return x(a, b, x, y), lower


@intrinsic
def larger(typing: Any, a: Any, b: Any) -> Any:
    """The larger ones of the numbers; b where a or b is NaN. One instruction, which `where_at_least` is not."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, b), lower


def _wide(a: Any) -> Any:
    """Vectors and numbers in double precision, like vectors or a number."""
    return Vector(types.float64) if isinstance(a, Vector) else types.float64


@intrinsic
def widened(typing: Any, a: Any) -> Any:
    """A vector or a number in double precision."""
    wide = _wide(a)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[0] if sig.args[0] == wide else builder.fpext(args[0], context.get_value_type(wide))

    return wide(a), lower


@intrinsic
def nearest(typing: Any, a: Any, shift: Any) -> Any:
    """(a + shift) - shift, which rounds a to a multiple of a step (physics/rounding.py).

    Numba gives its own liberties with sums to all operations that name none, and the compiler would find that shift -
    shift is 0. These name one that does no harm: zeros may have either sign.
    """

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fsub(builder.fadd(*args, flags=("nsz",)), args[1], flags=("nsz",))

    return a(a, shift), lower


@intrinsic
def magnitude(typing: Any, a: Any) -> Any:
    """Numbers without their signs."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = (a.dtype if isinstance(a, Vector) else a).bitwidth
        name = f"llvm.fabs.{f'v{_lanes}' if isinstance(a, Vector) else ''}f{bits}"
        function = builder.module.declare_intrinsic(name, (), ir.FunctionType(args[0].type, [args[0].type]))
        return builder.call(function, args)

    return a(a), lower


@intrinsic
def narrowed(typing: Any, a: Any, like: Any) -> Any:
    """A vector in double precision as one of the numbers in an array."""
    vector = _in(like)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[0] if sig.args[0] == vector else builder.fptrunc(args[0], _llvm(vector))

    return vector(a, like), lower


@intrinsic
def highest(typing: Any, a: Any) -> Any:
    """The largest of the eight numbers; what is NaN does not count."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        each = [builder.extract_element(args[0], ir.Constant(ir.IntType(32), lane)) for lane in range(_lanes)]
        found = each[0]
        for other in each[1:]:
            found = builder.select(builder.fcmp_ordered(">", other, found), other, found)
        return found

    return a.dtype(a), lower


@intrinsic
def is_zero(typing: Any, a: Any, b: Any) -> Any:
    """Whether all numbers of two vectors are 0."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        nothing = ir.Constant(_llvm(sig.args[0]), None)
        some = builder.or_(*(builder.fcmp_unordered("!=", x, nothing) for x in args))
        byte = ir.IntType(_lanes)
        return builder.icmp_unsigned("==", builder.bitcast(some, byte), ir.Constant(byte, 0))

    return types.boolean(a, b), lower


@intrinsic
def store(typing: Any, array: Any, place: Any, a: Any) -> Any:
    """Writes the vector to a place."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address, align = _address(context, builder, sig, args)
        builder.store(args[2], address, align=align)
        return context.get_dummy_value()

    return types.void(array, types.uint64, a), lower


@intrinsic
def spread(typing: Any, number: Any) -> Any:
    """Eight times the number."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        nothing = ir.Constant(_llvm(sig.return_type), ir.Undefined)
        one = builder.insert_element(nothing, args[0], ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(one, nothing, _chosen([0] * _lanes))

    return Vector(number)(number), lower


@intrinsic
def number(typing: Any, array: Any, place: Any) -> Any:
    """The one number at a place."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(_number(context, builder, sig, args))

    return _in(array).dtype(array, types.uint64), lower


@intrinsic
def put_number(typing: Any, array: Any, place: Any, value: Any) -> Any:
    """Writes one number to a place."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], _number(context, builder, sig, args))
        return context.get_dummy_value()

    return types.void(array, types.uint64, value), lower


@intrinsic
def total(typing: Any, a: Any) -> Any:
    """Sum of the eight numbers."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        each = [builder.extract_element(args[0], ir.Constant(ir.IntType(32), lane)) for lane in range(_lanes)]
        while len(each) > 1:
            each = [builder.fadd(x, y) for x, y in zip(each[::2], each[1::2], strict=True)]
        return each[0]

    return a.dtype(a), lower


def _chosen(places: Iterable[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), _lanes), list(places))


def _shuffle(*places: int) -> Any:
    """A function that takes numbers from two vectors: places 0 ... 7 are the first one's, 8 ... 15 the second one's."""

    @intrinsic
    def shuffle(typing: Any, a: Any, b: Any) -> Any:
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.shuffle_vector(*args, _chosen(places))

        return a(a, b), lower

    return shuffle


_even, _odd = _shuffle(0, 2, 4, 6, 8, 10, 12, 14), _shuffle(1, 3, 5, 7, 9, 11, 13, 15)
_zip_low, _zip_high = _shuffle(0, 8, 1, 9, 2, 10, 3, 11), _shuffle(4, 12, 5, 13, 6, 14, 7, 15)
# Three rounds of an 8 x 8 transposition that stay, but for the last, within halves of vectors: that is what
# processors with vectors of 256 bits do at once.
_ones_low, _ones_high = _shuffle(0, 8, 1, 9, 4, 12, 5, 13), _shuffle(2, 10, 3, 11, 6, 14, 7, 15)
_twos_low, _twos_high = _shuffle(0, 1, 8, 9, 4, 5, 12, 13), _shuffle(2, 3, 10, 11, 6, 7, 14, 15)
_fours_low, _fours_high = _shuffle(0, 1, 2, 3, 8, 9, 10, 11), _shuffle(4, 5, 6, 7, 12, 13, 14, 15)


@inlined
def load_complex(array: Any, place: int) -> Any:
    """Real and imaginary parts of eight complex numbers."""
    a, b = load(array, place), load(array, place + LANES)
    return _even(a, b), _odd(a, b)


@inlined
def store_complex(array: Any, place: int, real: Any, imaginary: Any) -> None:
    """Writes eight complex numbers."""
    store(array, place, _zip_low(real, imaginary))
    store(array, place + LANES, _zip_high(real, imaginary))


@inlined
def add_complex(array: Any, place: int, real: Any, imaginary: Any) -> None:
    """Adds to eight complex numbers."""
    store(array, place, load(array, place) + _zip_low(real, imaginary))
    store(array, place + LANES, load(array, place + LANES) + _zip_high(real, imaginary))


@inlined
def load_eight(array: Any, place: int, stride: int) -> Any:
    """Eight vectors, `stride` numbers apart."""
    return (
        load(array, place),
        load(array, place + stride),
        load(array, place + TWO * stride),
        load(array, place + THREE * stride),
        load(array, place + FOUR * stride),
        load(array, place + FIVE * stride),
        load(array, place + SIX * stride),
        load(array, place + SEVEN * stride),
    )


@inlined
def store_eight(array: Any, place: int, stride: int, of: Any) -> None:
    """Writes eight vectors, `stride` numbers apart."""
    store(array, place, of[0])
    store(array, place + stride, of[1])
    store(array, place + TWO * stride, of[2])
    store(array, place + THREE * stride, of[3])
    store(array, place + FOUR * stride, of[4])
    store(array, place + FIVE * stride, of[5])
    store(array, place + SIX * stride, of[6])
    store(array, place + SEVEN * stride, of[7])


@inlined
def transposed(of: Any) -> Any:
    """Of eight vectors the k-th numbers, for k = 0 ... 7."""
    a, b, c, d, e, f, g, h = of
    p, q, r, s = _ones_low(a, b), _ones_high(a, b), _ones_low(c, d), _ones_high(c, d)
    t, u, v, w = _ones_low(e, f), _ones_high(e, f), _ones_low(g, h), _ones_high(g, h)
    a, b, c, d = _twos_low(p, r), _twos_high(p, r), _twos_low(q, s), _twos_high(q, s)
    e, f, g, h = _twos_low(t, v), _twos_high(t, v), _twos_low(u, w), _twos_high(u, w)
    return (
        _fours_low(a, e),
        _fours_low(b, f),
        _fours_low(c, g),
        _fours_low(d, h),
        _fours_high(a, e),
        _fours_high(b, f),
        _fours_high(c, g),
        _fours_high(d, h),
    )


# --- sums that are free of order (physics/rounding.py) ---


@inlined
def second_part(size: int, parts: int) -> Any:
    """Numbers from the first part of sums of so many numbers to the second; 0 where there is one."""
    return np.uint64(size) // TWO if parts > 1 else ZERO


@inlined
def add_rounded(sums: Any, place: int, half: int, a: Any, shift: Any, fine: Any) -> None:
    """Adds a vector to sums in double precision, rounded; if they have a second part, which lies `half` numbers further
    on, what is left is added there. shift, fine: vectors of both parts' shifts."""
    t = widened(a)
    q = nearest(t, shift)
    store(sums, place, load(sums, place) + q)
    if half > ZERO:
        store(sums, place + half, load(sums, place + half) + nearest(t - q, fine))


@inlined
def add_number(sums: Any, place: int, half: int, a: float, shift: float, fine: float) -> None:
    """The same of one number."""
    t = widened(a)
    q = nearest(t, shift)
    put_number(sums, place, number(sums, place) + q)
    if half > ZERO:
        put_number(sums, place + half, number(sums, place + half) + nearest(t - q, fine))


@inlined
def add_complex_rounded(sums: Any, place: int, half: int, real: Any, imaginary: Any, shift: Any, fine: Any) -> None:
    """Adds eight complex numbers to sums, rounded."""
    add_rounded(sums, place, half, _zip_low(real, imaginary), shift, fine)
    add_rounded(sums, place + LANES, half, _zip_high(real, imaginary), shift, fine)


@inlined
def sum_at(sums: Any, place: int, half: int) -> float:
    """One sum, of both parts if there are two."""
    found = number(sums, place)
    return found + number(sums, place + half) if half > ZERO else found


@inlined
def load_sums(sums: Any, place: int, half: int) -> Any:
    """Eight sums, of both parts if there are two."""
    found = load(sums, place)
    return found + load(sums, place + half) if half > ZERO else found
