"""Vector code as LLVM IR, written from Python. Knows registers and memory, not what is computed.

Loop vectorisers do not see through unpacking and group scales, and what they make of a plain loop changes from version
to version; so the inner loops are written down. Nothing here may fuse or reorder float operations: no fast-math flag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from llvmlite import ir

from inference.kernels.jit.cpu import Tier

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
PTR = ir.PointerType()
VOID = ir.VoidType()
CONVERTING = {"f16c", "neon"}  # features of CPUs that convert float16
Value: TypeAlias = Any  # of ir.Value: llvmlite has no types


class Emitter:
    """Emits into one function. Values are LLVM values; addresses are opaque pointers with byte offsets."""

    def __init__(
        self, module: ir.Module, tier: Tier, name: str, parameters: Sequence[ir.Type], *, public: bool
    ) -> None:
        self.tier = tier
        self.module = module
        self.function = ir.Function(module, ir.FunctionType(VOID, parameters), name)
        self.function.attributes.add("nounwind")
        if not public:
            self.function.linkage = "internal"
            self.function.attributes.add("noinline")
        self.b = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.arguments: tuple[Value, ...] = self.function.args

    def vector(self, element: ir.Type, lanes: int = 0) -> ir.VectorType:
        """So many elements; 0: as many as 32-bit numbers fit a register."""
        return ir.VectorType(element, lanes or self.tier.lanes)

    def constant(self, value: float, element: ir.Type, lanes: int = 0) -> Value:
        kind = self.vector(element, lanes)
        return ir.Constant(kind, [value] * kind.count)

    def i64(self, value: int) -> Value:
        return ir.Constant(I64, value)

    def at(self, base: Value, offset: Value | int) -> Value:
        """The address `offset` bytes behind base."""
        if isinstance(offset, int):
            if offset == 0:
                return base
            offset = self.i64(offset)
        return self.b.gep(base, [offset], source_etype=I8)

    def load(self, base: Value, offset: Value | int, kind: ir.Type, align: int = 1) -> Value:
        return self.b.load(self.at(base, offset), typ=kind, align=align)

    def store(self, value: Value, base: Value, offset: Value | int, align: int = 1) -> None:
        self.b.store(value, self.at(base, offset), align=align)

    def splat(self, scalar: Value, lanes: int = 0) -> Value:
        """The scalar in every lane."""
        kind = self.vector(scalar.type, lanes)
        undefined = ir.Constant(kind, ir.Undefined)
        one = self.b.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(one, undefined, ir.Constant(self.vector(I32, kind.count), [0] * kind.count))

    def prefetch(self, base: Value, offset: Value | int, num_bytes: int, *, is_near: bool = False) -> None:
        """Asks for memory that will be read soon, into the first cache if is_near, else the second; it need not exist.

        The first one waits for few lines at a time, which is too slow for several streams.
        """
        arguments = [ir.Constant(I32, value) for value in (0, 3 if is_near else 2, 1)]  # to read; which cache; data
        for line in range(0, num_bytes, 64):
            self.call("llvm.prefetch.p0", VOID, self.at(self.at(base, offset), line), *arguments)

    def call(self, name: str, result: ir.Type, *arguments: Value) -> Value:
        """Calls an intrinsic."""
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(result, [a.type for a in arguments]), name)
        return self.b.call(function, arguments)

    def ordered(self, words: Value) -> Value:
        """Pairs of 16-bit words, lane by lane, in the order that add_products() takes them.

        Without an instruction for pairs that is: the first words of all lanes, then the second ones. Then words of
        whole registers are multiplied by one number, which all vector units widen and add up in one step.
        """
        if self.tier.adds:
            return words
        places = [2 * lane + word for word in range(2) for lane in range(self.tier.lanes)]
        return self.b.shuffle_vector(words, words, ir.Constant(self.vector(I32, len(places)), places))

    def add_products(self, total: Value, words: Value, pair: Value) -> Value:
        """total (lanes i32) + the products of each lane's two signed 16-bit words, ordered(), with those of pair (i32).

        words may be vectors of i16 or, as many bits, of i32.
        """
        b, lanes = self.b, self.tier.lanes
        words = b.bitcast(words, self.vector(I16, 2 * lanes))
        if self.tier.adds:
            pairs = b.bitcast(self.splat(pair), words.type)
            return b.add(total, self.call(self.tier.adds, self.vector(I32), words, pairs))
        both = b.bitcast(pair, self.vector(I16, 2))
        for word in range(2):
            places = ir.Constant(self.vector(I32), list(range(word * lanes, (word + 1) * lanes)))
            weights = b.sext(b.shuffle_vector(words, words, places), self.vector(I32))
            factors = b.sext(b.shuffle_vector(both, both, self.constant(word, I32)), self.vector(I32))
            total = b.add(total, b.mul(weights, factors))
        return total

    def widen_f16(self, value: Value) -> Value:
        """float16 -> float32, exactly, subnormals, infinities and NaN too. By integer steps if the CPU may lack it."""
        b, lanes = self.b, value.type.count
        if CONVERTING.intersection(self.tier.needs):
            return b.fpext(value, self.vector(F32, lanes))
        bits = b.zext(b.bitcast(value, self.vector(I16, lanes)), self.vector(I32, lanes))
        sign = b.shl(b.and_(bits, self.constant(0x8000, I32, lanes)), self.constant(16, I32, lanes))
        magnitude = b.shl(b.and_(bits, self.constant(0x7FFF, I32, lanes)), self.constant(13, I32, lanes))
        scaled = b.fmul(b.bitcast(magnitude, self.vector(F32, lanes)), self.constant(2.0**112, F32, lanes))
        is_special = b.icmp_unsigned(">=", magnitude, self.constant(0x0F800000, I32, lanes))
        special = b.or_(magnitude, self.constant(0x7F800000, I32, lanes))
        finite = b.bitcast(scaled, self.vector(I32, lanes))
        return b.bitcast(b.or_(b.select(is_special, special, finite), sign), self.vector(F32, lanes))

    def loop(
        self, start: Value, end: Value, step: int, carried: Sequence[Value], body: Callable[..., Sequence[Value]]
    ) -> tuple[Value, ...]:
        """for i in range(start, end, step): carried = body(i, *carried). Returns what is carried at the end."""
        return emit_loop(self.b, start, end, step, carried, body)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Code that runs only if the condition holds; nothing is carried out of it."""
        with self.b.if_then(condition):
            yield

    def finish(self) -> ir.Function:
        self.b.ret_void()
        return self.function


def emit_loop(
    b: Any, start: Value, end: Value, step: int, carried: Sequence[Value], body: Callable[..., Sequence[Value]]
) -> tuple[Value, ...]:
    """Emitter.loop() for any builder."""
    before = b.block
    head, inside, done = (b.append_basic_block(name) for name in ("loop", "body", "done"))
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(I64)
    index.add_incoming(start, before)
    values = []
    for value in carried:
        phi = b.phi(value.type)
        phi.add_incoming(value, before)
        values.append(phi)
    b.cbranch(b.icmp_signed("<", index, end), inside, done)
    b.position_at_end(inside)
    results = body(index, *values)
    index.add_incoming(b.add(index, ir.Constant(I64, step)), b.block)
    for phi, result in zip(values, results, strict=True):
        phi.add_incoming(result, b.block)
    b.branch(head)
    b.position_at_end(done)
    return tuple(values)
