"""Sixteen float32 numbers as one value inside a compiled kernel, so that kernels read like arithmetic.

`lanes` is an LLVM vector <16 x float>: one register with AVX-512, two with AVX2, four with NEON. Every operation is
IEEE, rounded once and never contracted, so its bits are the same on each of them and in NumPy. Addresses are plain
integers, in bytes; what lies there is the caller's business.
"""

from __future__ import annotations

import operator
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import models, register_model

from inference.kernels.jit.cpu import available_tiers
from inference.kernels.jit.kernel_cache import instruction, kernel

NUM_LANES = 16
LANE_BYTES = 64  # of one vector in memory

F32, I16, I32, I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F32X16, I16X16, I32X16 = ir.VectorType(F32, 16), ir.VectorType(I16, 16), ir.VectorType(I32, 16)
ROUND = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits, ties to even
# What sums pairs of 16-bit products on this CPU, and of how many lanes; "": plain vector code does.
ADDS, ADDED_LANES = next(
    ((tier.adds, tier.lanes) for tier in available_tiers(llvm.get_host_cpu_features()) if tier.adds), ("", NUM_LANES)
)


class LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="lanes")


lanes = LanesType()


@register_model(LanesType)
class LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, F32X16)


# Emitting


def pointer(builder: Any, at: Any, element: Any) -> Any:
    return builder.inttoptr(at, element.as_pointer())


def splat_of(builder: Any, scalar: Any) -> Any:
    """The scalar in every lane."""
    undefined = ir.Constant(ir.VectorType(scalar.type, NUM_LANES), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(I32X16, [0] * NUM_LANES))


def load_vector(builder: Any, at: Any) -> Any:
    """<16 x float> from memory."""
    return builder.load(pointer(builder, at, F32X16), align=4)


def ask_for_line(builder: Any, at: Any) -> None:
    """Has a cache line fetched into the second cache; nothing need be there."""
    kinds = [ir.Constant(I32, value) for value in (0, 2, 1)]  # to read; not into the first cache; data
    call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer(builder, at, ir.IntType(8)), *kinds)


def add_products(builder: Any, total: Any, words: Any, pair: Any) -> Any:
    """total + the products of each lane's two words (int16) with those of pair, an i32; total, words <16 x i32>.

    Where there is no instruction for pairs, the first words of all lanes are multiplied, then the second ones.
    """
    pairs = splat_of(builder, pair)
    if not ADDS:
        for shift in (16, 0):
            low, high = (builder.shl(x, ir.Constant(I32X16, [shift] * NUM_LANES)) for x in (words, pairs))
            low, high = (builder.ashr(x, ir.Constant(I32X16, [16] * NUM_LANES)) for x in (low, high))
            total = builder.add(total, builder.mul(low, high))
        return total
    sums = []
    for first in range(0, NUM_LANES, ADDED_LANES):
        numbers = ir.Constant(ir.VectorType(I32, ADDED_LANES), list(range(first, first + ADDED_LANES)))
        kind = ir.VectorType(I16, 2 * ADDED_LANES)
        parts = [builder.bitcast(builder.shuffle_vector(x, x, numbers), kind) for x in (words, pairs)]
        sums.append(call(builder, ADDS, ir.VectorType(I32, ADDED_LANES), *parts))
    while len(sums) > 1:
        places = ir.Constant(ir.VectorType(I32, 2 * sums[0].type.count), list(range(2 * sums[0].type.count)))
        sums = [builder.shuffle_vector(*sums[i : i + 2], places) for i in range(0, len(sums), 2)]
    return builder.add(total, sums[0])


def constant(value: float) -> Any:
    return ir.Constant(F32X16, [value] * NUM_LANES)


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _is_below(builder: Any, count: Any) -> Any:
    """<16 x i1>: lane < count, an i64."""
    numbers = ir.Constant(I32X16, list(range(NUM_LANES)))
    return builder.icmp_signed("<", numbers, splat_of(builder, builder.trunc(count, I32)))


def _is_whole(builder: Any, count: Any) -> Any:
    """Whether that is a whole vector: masks cost tens of cycles on some CPUs, so only the end of a row pays for one."""
    return builder.icmp_signed(">=", count, ir.Constant(I64, NUM_LANES))


# Memory


@instruction
def load(typingctx: Any, at: Any) -> Any:
    return lanes(types.int64), lambda context, builder, sig, args: load_vector(builder, args[0])


@instruction
def ask(typingctx: Any, at: Any) -> Any:
    """See ask_for_line()."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        ask_for_line(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), emit


@instruction
def load_first(typingctx: Any, at: Any, count: Any) -> Any:
    """The first count numbers, zeros behind them, of which nothing is read."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at, count = args
        with builder.if_else(_is_whole(builder, count)) as (whole, partial):
            with whole:
                all_of_them, after_whole = load_vector(builder, at), builder.block
            with partial:
                place, align = pointer(builder, at, F32X16), ir.Constant(I32, 4)
                mask = _is_below(builder, count)
                first = call(builder, "llvm.masked.load.v16f32.p0", F32X16, place, align, mask, constant(0.0))
                after_partial = builder.block
        value = builder.phi(F32X16)
        value.add_incoming(all_of_them, after_whole)
        value.add_incoming(first, after_partial)
        return value

    return lanes(types.int64, types.int64), emit


@instruction
def store(typingctx: Any, at: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[1], pointer(builder, args[0], F32X16), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, lanes), emit


def _store_below(builder: Any, value: Any, at: Any, count: Any) -> None:
    """Stores the first count lanes of a vector of any kind; nothing else is written."""
    size = 2 if value.type == I16X16 else 4
    place, name = pointer(builder, at, value.type), f"llvm.masked.store.v16{'i16' if size == 2 else 'f32'}.p0"
    with builder.if_else(_is_whole(builder, count)) as (whole, partial):
        with whole:
            builder.store(value, place, align=size)
        with partial:
            call(builder, name, ir.VoidType(), value, place, ir.Constant(I32, size), _is_below(builder, count))


@instruction
def store_first(typingctx: Any, at: Any, value: Any, count: Any) -> Any:
    """The first count lanes; nothing else is written."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at, value, count = args
        _store_below(builder, value, at, count)
        return context.get_dummy_value()

    return types.void(types.int64, lanes, types.int64), emit


@instruction
def store_words(typingctx: Any, at: Any, value: Any, factor: Any, count: Any) -> Any:
    """The first count lanes times factor, rounded to the nearest of int16 (ties to even), which they must be among."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at, value, factor, count = args
        shifted = builder.fadd(builder.fmul(value, splat_of(builder, factor)), constant(ROUND))
        words = builder.trunc(builder.bitcast(shifted, I32X16), I16X16)  # the low bits of ROUND itself are zeros
        _store_below(builder, words, at, count)
        return context.get_dummy_value()

    return types.void(types.int64, lanes, types.float32, types.int64), emit


@instruction
def get_f32(typingctx: Any, at: Any) -> Any:
    return types.float32(types.int64), lambda c, builder, s, args: builder.load(pointer(builder, args[0], F32), align=4)


@instruction
def set_f32(typingctx: Any, at: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[1], pointer(builder, args[0], F32), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), emit


@instruction
def get_i16(typingctx: Any, at: Any) -> Any:
    """An int16 as int64."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.sext(builder.load(pointer(builder, args[0], I16), align=2), I64)

    return types.int64(types.int64), emit


@instruction
def set_i16(typingctx: Any, at: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(builder.trunc(args[1], I16), pointer(builder, args[0], I16), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@instruction
def get_i32(typingctx: Any, at: Any) -> Any:
    """An int32 as int64."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.sext(builder.load(pointer(builder, args[0], I32), align=4), I64)

    return types.int64(types.int64), emit


@instruction
def set_i32(typingctx: Any, at: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(builder.trunc(args[1], I32), pointer(builder, args[0], I32), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@instruction
def get_i64(typingctx: Any, at: Any) -> Any:
    return types.int64(types.int64), lambda c, builder, s, args: builder.load(pointer(builder, args[0], I64), align=8)


@instruction
def set_i64(typingctx: Any, at: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[1], pointer(builder, args[0], I64), align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@instruction
def as_pointer(typingctx: Any, at: Any) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), emit


@instruction
def call_code(typingctx: Any, code: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    """Calls the function at an address with five int64."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64] * 5)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), emit


# Arithmetic


@instruction
def splat(typingctx: Any, scalar: Any) -> Any:
    return lanes(types.float32), lambda context, builder, sig, args: splat_of(builder, args[0])


def _define(operation: Any, emit: Any) -> None:
    """Gives the lanes an operator of Python's."""

    @infer_global(operation)
    class Template(ConcreteTemplate):
        cases = [signature(lanes, lanes, lanes)]

    lower_builtin(operation, lanes, lanes)(lambda context, builder, sig, args: emit(builder)(*args))


_define(operator.add, lambda builder: builder.fadd)
_define(operator.sub, lambda builder: builder.fsub)
_define(operator.mul, lambda builder: builder.fmul)
_define(operator.truediv, lambda builder: builder.fdiv)


@instruction
def maximum(typingctx: Any, a: Any, b: Any) -> Any:
    """a where it is above b, else b."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return lanes(lanes, lanes), emit


@instruction
def keep_between(typingctx: Any, value: Any, low: Any, high: Any, other: Any) -> Any:
    """value in the lanes low .. high - 1, the scalar `other` elsewhere."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value, low, high, other = args
        other = splat_of(builder, other)
        value = builder.select(_is_below(builder, high), value, other)
        return builder.select(_is_below(builder, low), other, value)

    return lanes(lanes, types.int64, types.int64, types.float32), emit


@instruction
def sum_lanes(typingctx: Any, value: Any) -> Any:
    """A tree of halvings: lane i + lane i + 8, then i + i + 4, ..."""
    return types.float32(lanes), lambda c, builder, s, args: _fold(builder, args[0], builder.fadd)


@instruction
def max_lanes(typingctx: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _fold(builder, args[0], lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))

    return types.float32(lanes), emit


@instruction
def widest(typingctx: Any, top: Any, value: Any) -> Any:
    """The larger of each lane of `top` and the magnitude of the value's; NaN is larger than any number."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        top, bits = (builder.bitcast(value, I32X16) for value in args)
        bits = builder.and_(bits, ir.Constant(I32X16, [0x7FFFFFFF] * NUM_LANES))
        largest = call(builder, "llvm.smax.v16i32", I32X16, top, bits)
        return builder.bitcast(largest, F32X16)

    return lanes(lanes, lanes), emit


@instruction
def widest_lane(typingctx: Any, value: Any) -> Any:
    """The largest of magnitudes; NaN is larger than any number."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], I32X16)
        return builder.bitcast(call(builder, "llvm.vector.reduce.smax.v16i32", I32, bits), F32)

    return types.float32(lanes), emit


def _fold(builder: Any, value: Any, combine: Any) -> Any:
    for half in (8, 4, 2, 1):
        numbers = [ir.Constant(ir.VectorType(I32, half), list(range(start, start + half))) for start in (0, half)]
        low, high = (builder.shuffle_vector(value, value, part) for part in numbers)
        value = combine(low, high)
    return builder.extract_element(value, ir.Constant(I32, 0))


WEIGHT_LOW = -64.0  # weights of attention below exp(WEIGHT_LOW) are 0: subnormal numbers take long on some CPUs
# exp(x) = 2 ** n * p(r) with n the nearest whole number to x / ln 2 and r what is left, |r| <= ln 2 / 2.
EXP_LOW, EXP_HIGH = -87.0, 88.0
LOG2_E = 1.44269504088896341
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # the first has so few bits that n times it is exact
EXP_TERMS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
    1.0,
    1.0,
)


def _rounded(builder: Any, x: Any) -> Any:
    """x / ln 2 + ROUND: its low bits are n."""
    return builder.fadd(builder.fmul(x, constant(LOG2_E)), constant(ROUND))


def _rest(builder: Any, x: Any) -> Any:
    n = builder.fsub(_rounded(builder, x), constant(ROUND))
    r = builder.fsub(x, builder.fmul(n, constant(LN2_HIGH)))
    return builder.fsub(r, builder.fmul(n, constant(LN2_LOW)))


def _power(builder: Any, x: Any, r: Any) -> Any:
    """2 ** n * p(r)."""
    power = constant(EXP_TERMS[0])
    for term in EXP_TERMS[1:]:
        power = builder.fadd(builder.fmul(power, r), constant(term))
    shift = builder.shl(builder.bitcast(_rounded(builder, x), I32X16), ir.Constant(I32X16, [23] * NUM_LANES))
    return builder.bitcast(builder.add(builder.bitcast(power, I32X16), shift), F32X16)


def _zero_below(builder: Any, x: Any, low: float, value: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", x, constant(low)), constant(0.0), value)


@instruction
def exp(typingctx: Any, value: Any) -> Any:
    """e to the power of each lane: exactly 0 below EXP_LOW, no more than at EXP_HIGH above it. Cephes' expf.

    NaN stays NaN, if its low bits are zeros as in all that comes from calculations.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        low, high = constant(EXP_LOW), constant(EXP_HIGH)
        x = builder.select(builder.fcmp_ordered("<", args[0], low), low, args[0])
        x = builder.select(builder.fcmp_ordered(">", x, high), high, x)
        return _zero_below(builder, args[0], EXP_LOW, _power(builder, x, _rest(builder, x)))

    return lanes(lanes), emit


@instruction
def exp_rest(typingctx: Any, value: Any) -> Any:
    """The first half of exp() for lanes that are not above 0: r."""
    return lanes(lanes), lambda context, builder, sig, args: _rest(builder, args[0])


@instruction
def weight_of(typingctx: Any, value: Any, rest: Any) -> Any:
    """The second half, with what exp_rest() has said: exp(value), exactly 0 below WEIGHT_LOW."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _zero_below(builder, args[0], WEIGHT_LOW, _power(builder, *args))

    return lanes(lanes, lanes), emit


@kernel
def exp_scalar(x: float) -> float:
    """The same of one number."""
    return max_lanes(exp(splat(x)))
