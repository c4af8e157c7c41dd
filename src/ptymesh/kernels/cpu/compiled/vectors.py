"""Vectors of eight real numbers as a type of numba's: what a loop over a panel of columns or rows is made of.

Numba leaves it to LLVM to find out which loops can be vector code, and a butterfly of a Fourier transform, which reads
and writes sixteen places, is more than it can see through. Here the vectors are written down. They are LLVM's own, so
that each processor takes registers as wide as it has.

a, b    vectors, of float32 or float64
array   C-contiguous, real or complex; `place` counts real numbers from its start
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.base import BaseContext
from numba.core.datamodel import DataModelManager, models
from numba.core.imputils import lower_builtin
from numba.core.typing.context import BaseContext as TypingContext
from numba.core.typing.templates import AbstractTemplate, Signature, infer_global, signature
from numba.extending import intrinsic as _intrinsic
from numba.extending import register_model

from ptymesh.kernels.arrays import ComplexArray, NumberArray, RealArray
from ptymesh.kernels.cpu.compiled.jit import inlined

#: Numbers in a vector.
LANES: Any = np.uint64(8)
_lanes = int(LANES)
#: Bytes of a line of the cache.
LINE = 64
intrinsic: Any = _intrinsic  # what it makes is called with other arguments than it is given
ZERO, TWO, THREE, FOUR, FIVE, SIX, SEVEN = (np.uint64(n) for n in (0, 2, 3, 4, 5, 6, 7))


class Vector(types.Type):
    """Numba's type of eight numbers of one dtype."""

    def __init__(self, dtype: types.Float) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")

    if TYPE_CHECKING:  # operations on values of this type in kernels

        def __add__(self, other: Vector) -> Vector: ...

        def __sub__(self, other: Vector) -> Vector: ...

        def __mul__(self, other: Vector) -> Vector: ...

        def __truediv__(self, other: Vector) -> Vector: ...


#: Eight of them, eight neighbours each.
EightVectors = tuple[Vector, Vector, Vector, Vector, Vector, Vector, Vector, Vector]
#: Real and imaginary parts of eight complex numbers.
ComplexVector = tuple[Vector, Vector]
#: What an intrinsic is made of: its type, and the function that writes LLVM's instructions.
Intrinsic = tuple[Signature, Callable[[BaseContext, ir.IRBuilder, Signature, Sequence[ir.Value]], ir.Value]]


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: DataModelManager, of: Vector) -> None:
        super().__init__(manager, of, _llvm(of))


def _llvm(vector: Vector) -> ir.VectorType:
    """Return LLVM's type of a vector."""
    return ir.VectorType(ir.FloatType() if vector.dtype == types.float32 else ir.DoubleType(), _lanes)


def _dtype(array: types.Array) -> Any:
    """Return the type of an array's numbers."""
    return array.dtype


def _in(array: types.Array) -> Vector:
    """Return the type of the vectors in an array of this type."""
    dtype = _dtype(array)
    return Vector(getattr(dtype, "underlying_float", dtype))


def _offer(operation: Callable[..., object], instruction: str) -> None:
    """Let numba compile an operator on two vectors to one instruction."""

    class Template(AbstractTemplate):
        def generic(self, args: Sequence[types.Type], kws: Mapping[str, types.Type]) -> Signature | None:
            fits = len(args) == 2 and isinstance(args[0], Vector) and args[0] == args[1]
            return signature(args[0], *args) if fits else None

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        return getattr(builder, instruction)(*args)

    infer_global(operation)(Template)
    lower_builtin(operation, Vector, Vector)(_lower)


for _operation, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _offer(_operation, _instruction)


def _number(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
    """Return the address of the number at a place."""
    data = context.make_array(sig.args[0])(context, builder, args[0]).data
    return builder.gep(builder.bitcast(data, _llvm(_in(sig.args[0])).element.as_pointer()), [args[1]])


def _address(
    context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]
) -> tuple[ir.Value, int]:
    """Return the address of the vector at a place, and the alignment of its numbers."""
    vector = _in(sig.args[0])
    return builder.bitcast(_number(context, builder, sig, args), _llvm(vector).as_pointer()), vector.dtype.bitwidth // 8


@intrinsic
def load(typing: TypingContext, array: types.Array, place: types.Integer) -> Intrinsic:
    """Return the vector at a place.

    Args:
        typing: context of numba's type inference.
        array: real or complex, C-contiguous.
        place: index of the first number, counted in reals.
    """

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        address, align = _address(context, builder, sig, args)
        return builder.load(address, align=align)

    return _in(array)(array, types.uint64), _lower


@intrinsic
def _fetch(typing: TypingContext, array: types.Array, place: types.Integer) -> Intrinsic:
    """Ask for the line of the cache with the number at a place."""

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        whole = ir.IntType(32)
        address = builder.bitcast(_number(context, builder, sig, args), ir.IntType(8).as_pointer())
        signature = ir.FunctionType(ir.VoidType(), [address.type, whole, whole, whole])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [address.type], signature)
        # to read; into the second level, as a core waits for more lines of that one; data
        builder.call(prefetch, [address, *(ir.Constant(whole, n) for n in (0, 2, 1))])
        return context.get_dummy_value()

    return types.void(array, types.uint64), _lower


@intrinsic
def _in_line(typing: TypingContext, array: types.Array) -> Intrinsic:
    """Return how many numbers of an array are in a line of the cache."""

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        return ir.Constant(ir.IntType(64), LINE // (_in(sig.args[0]).dtype.bitwidth // 8))

    return types.uint64(array), _lower


@inlined
def fetch(array: NumberArray, place: int, count: int) -> None:
    """Ask for numbers to be in the cache when they are wanted.

    Args:
        array: real or complex, C-contiguous.
        place: index of the first number, counted in reals.
        count: how many numbers; they need not exist.
    """
    for at in range(place, place + count, _in_line(array)):
        _fetch(array, at)


@intrinsic
def load_as(typing: TypingContext, array: types.Array, place: types.Integer, like: types.Array) -> Intrinsic:
    """Return eight numbers of a real array, converted to the dtype of another array.

    Args:
        typing: context of numba's type inference.
        array: real or integer, C-contiguous.
        place: index of the first number.
        like: array of the wanted dtype.
    """
    vector, dtype = _in(like), _dtype(array)

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
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

    return vector(array, types.uint64, like), _lower


@intrinsic
def where_at_least(typing: TypingContext, a: Vector, b: Vector, x: Vector, y: Vector) -> Intrinsic:
    """Return x where a >= b, and y elsewhere, also where a or b is NaN.

    Args:
        typing: context of numba's type inference.
        a: vector of eight reals.
        b: vector of eight reals.
        x: vector of eight reals.
        y: vector of eight reals.
    """

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        return builder.select(builder.fcmp_ordered(">=", *args[:2]), *args[2:])

    return x(a, b, x, y), _lower


@intrinsic
def larger(typing: TypingContext, a: Vector, b: Vector) -> Intrinsic:
    """Return the larger number of each pair, and that of b where one is NaN.

    This is one instruction, which `where_at_least` is not.

    Args:
        typing: context of numba's type inference.
        a: vector of eight reals.
        b: vector of eight reals.
    """

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, b), _lower


def _wide(a: types.Type) -> types.Type:
    """Return the double-precision type of a vector or a number."""
    return Vector(types.float64) if isinstance(a, Vector) else types.float64


@intrinsic
def widened(typing: TypingContext, a: types.Type) -> Intrinsic:
    """Return a vector or a number in double precision."""
    wide = _wide(a)

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        return args[0] if sig.args[0] == wide else builder.fpext(args[0], context.get_value_type(wide))

    return wide(a), _lower


@intrinsic
def nearest(typing: TypingContext, a: types.Type, shift: types.Type) -> Intrinsic:
    """Return (a + shift) - shift, which is a rounded to a multiple of a step (physics/rounding.py).

    Numba gives its own freedom with sums to all operations that name none, and the compiler would find that shift -
    shift is 0. These operations name one that does no harm: zeros may have either sign.

    Args:
        typing: context of numba's type inference.
        a: vector or number in double precision.
        shift: of the same type.
    """

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        return builder.fsub(builder.fadd(*args, flags=("nsz",)), args[1], flags=("nsz",))

    return a(a, shift), _lower


@intrinsic
def magnitude(typing: TypingContext, a: Vector | types.Float) -> Intrinsic:
    """Return the absolute values of a vector or of a number."""

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        bits = (a.dtype if isinstance(a, Vector) else a).bitwidth
        name = f"llvm.fabs.{f'v{_lanes}' if isinstance(a, Vector) else ''}f{bits}"
        function = builder.module.declare_intrinsic(name, (), ir.FunctionType(args[0].type, [args[0].type]))
        return builder.call(function, args)

    return a(a), _lower


@intrinsic
def narrowed(typing: TypingContext, a: Vector, like: types.Array) -> Intrinsic:
    """Return a vector in double precision as a vector of an array's dtype.

    Args:
        typing: context of numba's type inference.
        a: vector of eight reals.
        like: array of the wanted dtype.
    """
    vector = _in(like)

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        return args[0] if sig.args[0] == vector else builder.fptrunc(args[0], _llvm(vector))

    return vector(a, like), _lower


@intrinsic
def highest(typing: TypingContext, a: Vector) -> Intrinsic:
    """Return the largest of the eight numbers; NaN does not count."""

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        each = [builder.extract_element(args[0], ir.Constant(ir.IntType(32), lane)) for lane in range(_lanes)]
        found = each[0]
        for other in each[1:]:
            found = builder.select(builder.fcmp_ordered(">", other, found), other, found)
        return found

    return a.dtype(a), _lower


@intrinsic
def is_zero(typing: TypingContext, a: Vector, b: Vector) -> Intrinsic:
    """Return True if all numbers of two vectors are 0.

    Args:
        typing: context of numba's type inference.
        a: vector of eight reals.
        b: vector of eight reals.
    """

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        nothing = ir.Constant(_llvm(sig.args[0]), None)
        some = builder.or_(*(builder.fcmp_unordered("!=", x, nothing) for x in args))
        byte = ir.IntType(_lanes)
        return builder.icmp_unsigned("==", builder.bitcast(some, byte), ir.Constant(byte, 0))

    return types.boolean(a, b), _lower


@intrinsic
def store(typing: TypingContext, array: types.Array, place: types.Integer, a: Vector) -> Intrinsic:
    """Write a vector to a place.

    Args:
        typing: context of numba's type inference.
        array: real or complex, C-contiguous.
        place: index of the first number, counted in reals.
        a: vector of eight reals.
    """

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        address, align = _address(context, builder, sig, args)
        builder.store(args[2], address, align=align)
        return context.get_dummy_value()

    return types.void(array, types.uint64, a), _lower


@intrinsic
def broadcast(typing: TypingContext, number: types.Float) -> Intrinsic:
    """Return a vector of eight times the number."""

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        nothing = ir.Constant(_llvm(sig.return_type), ir.Undefined)
        one = builder.insert_element(nothing, args[0], ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(one, nothing, _chosen([0] * _lanes))

    return Vector(number)(number), _lower


@intrinsic
def number(typing: TypingContext, array: types.Array, place: types.Integer) -> Intrinsic:
    """Return the one number at a place.

    Args:
        typing: context of numba's type inference.
        array: real or complex, C-contiguous.
        place: index of the first number, counted in reals.
    """

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        return builder.load(_number(context, builder, sig, args))

    return _in(array).dtype(array, types.uint64), _lower


@intrinsic
def put_number(typing: TypingContext, array: types.Array, place: types.Integer, value: types.Type) -> Intrinsic:
    """Write one number to a place.

    Args:
        typing: context of numba's type inference.
        array: real or complex, C-contiguous.
        place: index of the first number, counted in reals.
        value: number of the array's dtype.
    """

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        builder.store(args[2], _number(context, builder, sig, args))
        return context.get_dummy_value()

    return types.void(array, types.uint64, value), _lower


@intrinsic
def total(typing: TypingContext, a: Vector) -> Intrinsic:
    """Return the sum of the eight numbers."""

    def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        each = [builder.extract_element(args[0], ir.Constant(ir.IntType(32), lane)) for lane in range(_lanes)]
        while len(each) > 1:
            each = [builder.fadd(x, y) for x, y in zip(each[::2], each[1::2], strict=True)]
        return each[0]

    return a.dtype(a), _lower


def _chosen(places: Iterable[int]) -> ir.Constant:
    """Return the indices of a shuffle as a constant of LLVM."""
    return ir.Constant(ir.VectorType(ir.IntType(32), _lanes), list(places))


def _shuffle(*places: int) -> Callable[[Vector, Vector], Vector]:
    """Return a function that takes numbers from two vectors: places 0 ... 7 are the first one's, 8 ... 15 the second
    one's."""

    @intrinsic
    def _take(typing: TypingContext, a: Vector, b: Vector) -> Intrinsic:
        def _lower(context: BaseContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            return builder.shuffle_vector(*args, _chosen(places))

        return a(a, b), _lower

    return _take


_even, _odd = _shuffle(0, 2, 4, 6, 8, 10, 12, 14), _shuffle(1, 3, 5, 7, 9, 11, 13, 15)
_zip_low, _zip_high = _shuffle(0, 8, 1, 9, 2, 10, 3, 11), _shuffle(4, 12, 5, 13, 6, 14, 7, 15)
# Three rounds of an 8 x 8 transposition that stay, but for the last, within halves of vectors: that is what
# processors with vectors of 256 bits do at once.
_ones_low, _ones_high = _shuffle(0, 8, 1, 9, 4, 12, 5, 13), _shuffle(2, 10, 3, 11, 6, 14, 7, 15)
_twos_low, _twos_high = _shuffle(0, 1, 8, 9, 4, 5, 12, 13), _shuffle(2, 3, 10, 11, 6, 7, 14, 15)
_fours_low, _fours_high = _shuffle(0, 1, 2, 3, 8, 9, 10, 11), _shuffle(4, 5, 6, 7, 12, 13, 14, 15)


@inlined
def load_complex(array: ComplexArray, place: int) -> ComplexVector:
    """Return real and imaginary parts of eight complex numbers."""
    a, b = load(array, place), load(array, place + LANES)
    return _even(a, b), _odd(a, b)


@inlined
def store_complex(array: ComplexArray, place: int, real: Vector, imaginary: Vector) -> None:
    """Write eight complex numbers.

    Args:
        array: real or complex, C-contiguous.
        place: index of the first number, counted in reals.
        real: vector of eight real parts.
        imaginary: vector of eight imaginary parts.
    """
    store(array, place, _zip_low(real, imaginary))
    store(array, place + LANES, _zip_high(real, imaginary))


@inlined
def add_complex(array: ComplexArray, place: int, real: Vector, imaginary: Vector) -> None:
    """Add to eight complex numbers.

    Args:
        array: real or complex, C-contiguous.
        place: index of the first number, counted in reals.
        real: vector of eight real parts.
        imaginary: vector of eight imaginary parts.
    """
    store(array, place, load(array, place) + _zip_low(real, imaginary))
    store(array, place + LANES, load(array, place + LANES) + _zip_high(real, imaginary))


@inlined
def load_eight(array: NumberArray, place: int, stride: int) -> EightVectors:
    """Return eight vectors.

    Args:
        array: real or complex, C-contiguous.
        place: index of the first number, counted in reals.
        stride: numbers from one vector to the next.
    """
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
def store_eight(array: NumberArray, place: int, stride: int, of: EightVectors) -> None:
    """Write eight vectors.

    Args:
        array: real or complex, C-contiguous.
        place: index of the first number, counted in reals.
        stride: numbers from one vector to the next.
        of: the vectors.
    """
    store(array, place, of[0])
    store(array, place + stride, of[1])
    store(array, place + TWO * stride, of[2])
    store(array, place + THREE * stride, of[3])
    store(array, place + FOUR * stride, of[4])
    store(array, place + FIVE * stride, of[5])
    store(array, place + SIX * stride, of[6])
    store(array, place + SEVEN * stride, of[7])


@inlined
def transposed(of: EightVectors) -> EightVectors:
    """Return eight vectors of which the k-th holds the k-th numbers of those given."""
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
def second_part(size: int, parts: int) -> np.uint64:
    """Return how many numbers the second part of sums lies behind the first; 0 if there is one part."""
    return np.uint64(size) // TWO if parts > 1 else ZERO


@inlined
def add_rounded(sums: RealArray, place: int, half: int, a: Vector, shift: Vector, fine: Vector) -> None:
    """Add a vector, rounded, to sums in double precision; what is left over to their second part, if there is one.

    Args:
        sums: float64, flat or of any shape.
        place: index of the first sum.
        half: numbers from the first part of the sums to the second; 0 if there is one part.
        a: vector of eight reals.
        shift: rounding shift of the first part.
        fine: rounding shift of the second part.
    """
    t = widened(a)
    q = nearest(t, shift)
    store(sums, place, load(sums, place) + q)
    if half > ZERO:
        store(sums, place + half, load(sums, place + half) + nearest(t - q, fine))


@inlined
def add_number(sums: RealArray, place: int, half: int, a: float, shift: float, fine: float) -> None:
    """Add a number, rounded, to a sum in double precision; what is left over to its second part, if there is one.

    Args:
        sums: float64, flat or of any shape.
        place: index of the sum.
        half: numbers from the first part of the sums to the second; 0 if there is one part.
        a: the number.
        shift: rounding shift of the first part.
        fine: rounding shift of the second part.
    """
    t = widened(a)
    q = nearest(t, shift)
    put_number(sums, place, number(sums, place) + q)
    if half > ZERO:
        put_number(sums, place + half, number(sums, place + half) + nearest(t - q, fine))


@inlined
def add_complex_rounded(
    sums: RealArray, place: int, half: int, real: Vector, imaginary: Vector, shift: Vector, fine: Vector
) -> None:
    """Add eight complex numbers, rounded, to sums in double precision; what is left over to their second part.

    Args:
        sums: float64, flat or of any shape.
        place: index of the first sum.
        half: numbers from the first part of the sums to the second; 0 if there is one part.
        real: vector of eight real parts.
        imaginary: vector of eight imaginary parts.
        shift: rounding shift of the first part.
        fine: rounding shift of the second part.
    """
    add_rounded(sums, place, half, _zip_low(real, imaginary), shift, fine)
    add_rounded(sums, place + LANES, half, _zip_high(real, imaginary), shift, fine)
