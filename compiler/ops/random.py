"""Random bits: a pure function of a seed, a stream number and the position of an element.

    seed    the run's seed, an i64; each iteration of a loop has a seed of its own
    stream  an i64 that differs between the random nodes of a model

The generator is Philox4x32 with ten rounds (Salmon, Moraes, Dror and Shaw, "Parallel random
numbers: as easy as 1, 2, 3", 2011). The seed is its key; its counter is the element and the stream,
64 bits each.

An element does not depend on other elements. So it is the same for all numbers of threads, tiles
and ranks and on all targets, and several kernels may recompute it. The ops without operands are
opaque: no pass folds or merges them or the results computed from them.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, cast, index_value
from tcc.ir.layout import row_major_position
from tcc.ir.op import Array, NoAttrs, OpSpec, Trait
from tcc.ir.types import I64, U64, TensorType, tensor
from tcc.ops.formula import fn
from tcc.ops.operands import none_negative, require, sizes
from tcc.ops.rows import op_row
from tcc.ops.shapes import Point, Shape, present
from tcc.zipped import zip_equal

_FACTORS, _STEPS, _ROUNDS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 10
_LOW = 0xFFFFFFFF


@frozen
class RandomBitsAttrs:
    """`shape` is the shape of the result; `half` and `count` select the random bits of an element.

    The generator gives four words of 32 bits. `half` 0 selects the first two, 1 the last two. They
    form a number of 64 bits with the second selected word as its high half. An element is the
    `count` highest bits of this number.
    """

    shape: Shape
    half: int = 0
    count: int = 64


@frozen
class StreamAttrs:
    """`number` is the stream number that the node returns."""

    number: int


def _round_keys(key: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yields the two words of the key of each round."""
    for n in range(_ROUNDS):
        yield (key[0] + n * _STEPS[0]) & _LOW, (key[1] + n * _STEPS[1]) & _LOW


def philox(seed: int, stream: int, elements: Array) -> tuple[Array, ...]:
    """Returns four arrays: for each of `elements` (u64), the generator's four 32-bit words, as
    u64."""
    low, half = np.uint64(_LOW), np.uint64(32)
    a, b = elements & low, elements >> half
    c, d = (np.full_like(elements, stream >> n & _LOW) for n in (0, 32))
    for key in _round_keys((seed & _LOW, seed >> 32 & _LOW)):
        first, second = a * np.uint64(_FACTORS[0]), c * np.uint64(_FACTORS[1])
        a, b = (second >> half) ^ b ^ np.uint64(key[0]), second & low
        c, d = (first >> half) ^ d ^ np.uint64(key[1]), first & low
    return a, b, c, d


def _infer(attrs: RandomBitsAttrs, *operands: TensorType) -> TensorType:
    for x in present(operands):
        require(x.dtype is I64 and x.rank == 0, f"seed, stream and offset are of type i64, not {x}")
    none_negative(attrs.shape, "a size is negative")
    require(attrs.half in (0, 1), f"there is no half {attrs.half} of the words")
    require(0 < attrs.count <= 64, f"an element has 1 to 64 bits, not {attrs.count}")
    return TensorType(U64, attrs.shape)


def _reference(attrs: RandomBitsAttrs, *operands: Array) -> Array:
    seed, stream, *offset = map(int, operands)
    shape = sizes(attrs.shape)
    elements = np.arange(np.prod(shape, dtype=np.int64)).astype(np.uint64)
    elements += np.uint64(sum(offset) & ((1 << 64) - 1))
    low, high = philox(seed, stream, elements)[2 * attrs.half :][:2]
    return (high << np.uint64(32) | low).reshape(shape) >> np.uint64(64 - attrs.count)


def _halves(x: Scalar) -> tuple[Scalar, Scalar]:
    return fn("bit_and", x, _LOW), fn("shift_right", x, 32)


def _element(
    b: ExprBuilder,
    at: Point,
    attrs: RandomBitsAttrs,
    *operands: TensorType,
) -> Scalar:
    seed, stream, *offset = (cast(b.read(n), U64) for n in range(len(operands)))
    element = index_value(row_major_position(at, attrs.shape), U64)
    (a, above), (c, behind) = _halves(sum(offset, element)), _halves(stream)
    low, high = _halves(seed)
    for n in range(_ROUNDS):
        keys = (fn("bit_and", k + n * s, _LOW) for k, s in zip_equal((low, high), _STEPS))
        (first, carry), (second, over) = _halves(a * _FACTORS[0]), _halves(c * _FACTORS[1])
        a = fn("bit_xor", fn("bit_xor", over, above), next(keys))
        c = fn("bit_xor", fn("bit_xor", carry, behind), next(keys))
        above, behind = second, first
    low, high = (c, behind) if attrs.half else (a, above)
    if attrs.count <= 32:
        return fn("shift_right", high, 32 - attrs.count)
    return fn("shift_right", fn("shift_left", high, 32) + low, 64 - attrs.count)


def _opaque(name: str, attrs: type[Any], doc: str) -> OpSpec:
    """Returns the op-table row of an op without operands.

    The reference returns the attribute `number`, or 0 if there is none. It does not know the run's
    seed or the loop's trip: `evaluate_graph` evaluates the ops that return them.
    """

    def reference(attrs: Any) -> Array:
        return np.array(getattr(attrs, "number", 0), np.int64)

    return op_row(
        name, attrs, lambda _: tensor(I64), reference, (), doc, call=None, traits=Trait.OPAQUE
    )


OPS = (
    _opaque("run_seed", NoAttrs, "The seed of the run, on all ranks the same."),
    _opaque("trip_number", NoAttrs, "The trip number of the innermost enclosing loop, from 0."),
    _opaque("stream_number", StreamAttrs, "A number that no kernel holds as a constant."),
    op_row(
        "random_bits", RandomBitsAttrs, _infer, _reference, (I64,),
        "The same number of random bits for each element; operands (seed, stream, offset).",
        element=_element, arity=(2, 3),
    ),
)  # fmt: skip
