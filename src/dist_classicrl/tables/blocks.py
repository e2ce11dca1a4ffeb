"""Blocks of values that lie together: the largest, and where it is, in a handful of instructions.

A loop over a row branches where a value is the largest so far, which a processor cannot foresee: it costs
more than all the rest of a step in a large table.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dist_classicrl._jit import is_for_card, vector_of

_AT_ONCE = 16
"""Bytes that a card loads at once, where they lie at a multiple of that."""


def _load(context: Any, builder: Any, signature: Any, arguments: Any) -> tuple[Any, int, int]:
    """Return the block as a vector whose length is a power of two, that length, and how many it has.

    Blocks are tuples of whole numbers where they are the row that begins there, on a line, and else of bools.
    """
    size = signature.args[0].dtype.bitwidth // 8
    n = wide = signature.args[2].count
    is_row = isinstance(signature.args[2].dtype, types.Integer)
    if is_row and is_for_card(context):  # a row ends with its line: there is more
        wide, size = -(-n * size // _AT_ONCE) * _AT_ONCE // size, _AT_ONCE
    block = vector_of(context, builder, signature.args[0], arguments, wide, size)
    length = 1 << (n - 1).bit_length()
    # The first value once more in each place that is left.
    return _shuffled(builder, block, [i if i < n else 0 for i in range(length)]), length, n


def _shuffled(builder: Any, vector: Any, lanes: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


@intrinsic
def largest(typing_context, values, at, block):
    """Return the largest of the values from the uint64 `at` on, as many as the tuple `block` has items."""

    def generate(context, builder, signature, arguments):
        top, length, _ = _load(context, builder, signature, arguments)
        while length > 1:
            length //= 2
            lower = _shuffled(builder, top, list(range(length)))
            upper = _shuffled(builder, top, list(range(length, 2 * length)))
            top = builder.select(builder.fcmp_ordered(">", upper, lower), upper, lower)
        return builder.extract_element(top, ir.Constant(ir.IntType(32), 0))

    return values.dtype(values, types.uint64, block), generate


@intrinsic
def places_of(typing_context, values, at, block, value):
    """Return which values of the block equal `value`: an int64 in which each of them has a bit."""

    def generate(context, builder, signature, arguments):
        found, length, n = _load(context, builder, signature, arguments)
        one = builder.insert_element(
            ir.Constant(found.type, ir.Undefined), arguments[3], ir.Constant(ir.IntType(32), 0)
        )
        equal = builder.fcmp_ordered("==", found, _shuffled(builder, one, [0] * length))
        bits = builder.zext(builder.bitcast(equal, ir.IntType(length)), ir.IntType(64))
        return builder.and_(bits, ir.Constant(ir.IntType(64), (1 << n) - 1))

    return types.int64(values, types.uint64, block, values.dtype), generate


@intrinsic
def lowest_bit(typing_context, bits):
    """Return the place of the lowest bit of an int64, 64 where there is none."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], context.get_constant(types.boolean, False))

    return types.int64(types.int64), generate


@intrinsic
def number_of_bits(typing_context, bits):
    """Return how many bits of an int64 are set."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate
