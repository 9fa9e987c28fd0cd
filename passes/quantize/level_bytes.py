"""Rounds what is multiplied with levels to bytes, so that bytes are multiplied (`--activations`).

    kernel { y = sum(k) x[i, k] * (f32(level[k, j]) * s[k // 32, j]) }
      ->  kernel { r[i, g] = max(k) |x[i, 32*g + k]| / 127;  q[i, k] = i8(x[i, k] / r[i, k // 32])
                   t[i, g] = -8 * sum(k) q[i, 32*g + k] }
          kernel { y = sum(k) (f32(q[i, k]) * f32(level[k, j] + 8) + f32(t[i, k // 32]) / 32)
                              * (r[i, k // 32] * s[k // 32, j]) }

Sums of products of bytes are exact in f32 within a group, as they are in i32.  All matmuls of x
share its bytes q, the scales r of its groups, and the starts t of their sums.

Levels of four bits are stored unsigned, and t takes what that adds out of a sum.  A byte holds the
levels 8*n + m and 8*n + m + 4, for m from 0 to 3, so two operations unpack a word of bytes.  Levels
of eight bits are stored unsigned for processors that multiply only unsigned by signed bytes.

Requires that levels are in the form in which the step before stores them.  Establishes that levels
along sums of whole groups of 32 are multiplied as bytes; other levels keep their form.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial, reduce
from itertools import product
from typing import TypeAlias, TypeGuard

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder, Stage, known_extent
from tcc.ir.expr.scalar import (
    Read,
    Scalar,
    apply,
    cast,
    index_value,
    indices_in,
    literal,
    read,
    walk,
)
from tcc.ir.graph import Graph, Handle, Value
from tcc.ir.index import Index, Indices, as_int, free_vars, iterator, of_atom, substitute
from tcc.ir.layout import row_major
from tcc.ir.op import Array
from tcc.ir.types import F32, I8, I32, U8, DType, TensorType
from tcc.ops.algebra.levels import LEAST
from tcc.ops.formula import fn
from tcc.ops.shapes import replaced
from tcc.passes.layout.assign import Kernel, Placed, ProgramStep, operand_of
from tcc.passes.layout.weights import Rounded
from tcc.passes.quantize.level_pairs import level_read
from tcc.passes.quantize.signed_operands import without_unread
from tcc.schedule.nest import long_loops, multiplied, multiplied_parts

BYTES = "int8"  # the type of rounded factors in a manifest
# The neighbours of x that share a scale.
GROUP = 32
# The size of the groups that have a start, and the offset of the levels.
_Start: TypeAlias = tuple[int, int]


@frozen
class _Matmul:
    """A stage that multiplies the factor `x` with levels of `bits` bits along the loop `k`.

    `levels` reads the constant, which has the positions of `k` along `axis`.  `scales` are the
    other factors; along `k`, `size` neighbours share them.
    """

    stage: Stage
    k: Index
    x: Read
    levels: Read
    axis: int
    bits: int
    scales: tuple[Scalar, ...]
    size: int


def with_level_bytes(
    placed: Placed, dtype: DType | None, outer: Mapping[Value, Graph] | None
) -> Placed:
    """Returns `placed` with factors rounded to bytes where they are multiplied with levels.

    `dtype`: the type of the levels, U8 or I8; None returns `placed` itself.  For a body, `outer`
    maps each constant of an enclosing graph to that graph.
    """
    return placed if dtype is None else _Rounding(placed, dtype, placed.visible(outer)).run()


class _Rounding:
    def __init__(self, placed: Placed, dtype: DType, constants: Mapping[Value, Graph]) -> None:
        self.placed, self.dtype, self.constants = placed, dtype, constants
        self.matmuls = {kernel: [*_matmuls(kernel, constants)] for kernel in placed.kernels}
        self.new_constants: dict[Value, Handle] = {}
        self.levels: dict[tuple[Value, int], Value] = {}
        self.sources: set[tuple[str, ...]] = set()
        # The starts of the sums with each value.
        self.starts: dict[Value, dict[_Start, Value]] = {}
        for kernel, matmuls in self.matmuls.items():
            for m in matmuls:
                x, key = operand_of(kernel, m.x), (m.size, self._offset(m))
                self.starts.setdefault(x, {})[key] = _part(x, f"starts{key}", I32, m.size)

    def run(self) -> Placed:
        steps: list[ProgramStep] = []
        roundings: dict[Value, Kernel] = {}
        for step in self.placed.steps:
            kernel = step.kernel
            if kernel is not None and (matmuls := self.matmuls.get(kernel)):
                for m in matmuls:
                    x = operand_of(kernel, m.x)
                    if x not in roundings:
                        roundings[x] = _rounding(x, self.starts[x], kernel.loc)
                        steps.append(ProgramStep(roundings[x]))
                    kernel = self._rewritten(kernel, m, roundings[x])
                kernel = without_unread(kernel)
            steps.append(replace(step, kernel=kernel))
        values = [v for k in roundings.values() for v in k.results]
        layouts = {**self.placed.layouts, **{v: row_major(v.shape) for v in values}}
        graph = self.placed.graph
        graph = replace(graph, constants={**graph.constants, **self.new_constants})
        records = (*self._records(),)
        return replace(self.placed, graph=graph, steps=(*steps,), layouts=layouts, rounded=records)

    def _offset(self, m: _Matmul) -> int:
        """Returns what is added to the levels where they are stored."""
        return 8 if m.bits == 4 else 128 if self.dtype is U8 else 0

    def _records(self) -> Iterator[Rounded]:
        """Yields what the manifest says of constants, with the types of rounded factors."""
        for r in self.placed.rounded:
            yield replace(r, operands=BYTES) if r.sources in self.sources else r
        for sources in sorted(self.sources - {r.sources for r in self.placed.rounded}):
            yield Rounded(sources, I8.name, BYTES, True)

    # ---- matmuls ------------------------------------------------------------------------------

    def _rewritten(self, kernel: Kernel, m: _Matmul, rounding: Kernel) -> Kernel:
        """Returns `kernel` with bytes in one of its matmuls; `rounding` computes those of x."""
        x, key, first = operand_of(kernel, m.x), (m.size, self._offset(m)), len(kernel.operands)
        bytes_, scales, *_ = rounding.results
        constant = self._stored(operand_of(kernel, m.levels), m)
        operands = (*kernel.operands, bytes_, scales, self.starts[x][key], constant)
        rows = m.x.indices[:-1]
        term = _f32(read(first, m.x.indices, I8)) * _f32(self._level(m, first + 3))
        start = _f32(read(first + 2, (*rows, m.k // m.size), I32)) * literal(1 / m.size, F32)
        parts = (*m.scales, read(first + 1, (*rows, m.k // GROUP), F32))
        body = (term + start) * reduce(partial(apply, "mul"), parts)
        stages = [replace(s, body=(body,)) if s is m.stage else s for s in kernel.expr.stages]
        params = tuple(v.type for v in operands)
        expr = replace(kernel.expr, params=params, stages=tuple(stages))
        return replace(kernel, expr=expr, operands=operands)

    def _level(self, m: _Matmul, source: int) -> Scalar:
        if m.bits == 8:
            return read(source, m.levels.indices, self.dtype)
        indices = replaced(m.levels.indices, m.axis, m.k // 8 * 4 + m.k % 4)
        first_bit = index_value(m.k // 4 % 2 * 4, I32)
        bits = fn("shift_right", cast(read(source, indices, U8), I32), first_bit)
        return cast(fn("bit_and", bits, literal(15, I32)), self.dtype)

    def _stored(self, value: Value, m: _Matmul) -> Value:
        """Returns the constant of the levels `value` as bytes are multiplied with it."""
        graph, dtype = self.constants[value], U8 if m.bits == 4 else self.dtype
        store, handle = graph.store, graph.constants[value]
        sources = store.sources(handle)
        self.sources.add(sources)
        if (value, m.axis) not in self.levels:
            constant = Value(f"{value.name}.bytes", TensorType(dtype, value.shape))
            if m.bits == 4:
                make = partial(_in_words, axis=m.axis)
                handle = store.derive(make, f"words along {m.axis}", [handle])
            elif dtype is U8:
                handle = store.derive(_unsigned, "levels plus 128", [handle])
            self.new_constants[constant], self.levels[value, m.axis] = handle, constant
        return self.levels[value, m.axis]


def _unsigned(levels: Array) -> Array:
    return levels.view(np.uint8) ^ np.uint8(128)


def _in_words(packed: Array, axis: int) -> Array:
    """Returns levels of four bits, packed as `nibbles` does, in the order of words, plus 8."""
    parts = np.moveaxis(packed.view(np.uint8) ^ np.uint8(0x88), axis, 0)
    levels = np.stack([parts & 15, parts >> 4], 1).reshape(-1, 2, 4, *parts.shape[1:])
    words = (levels[:, 0] | levels[:, 1] << 4).reshape(parts.shape)
    array: Array = np.ascontiguousarray(np.moveaxis(words, 0, axis))
    return array


# ---- the kernel that rounds ----------------------------------------------------------------------


def _part(value: Value, name: str, dtype: DType, size: int) -> Value:
    """Returns a new value with an element for `size` neighbours of `value`."""
    *rows, depth = value.shape
    return Value(f"{value.name}.{name}", TensorType(dtype, (*rows, depth // size)))


def _rounding(value: Value, starts: Mapping[_Start, Value], loc: str) -> Kernel:
    """Returns the kernel that computes the bytes of a value, their scales and the starts of sums.

    A NaN gives its group a scale of NaN, so all products with its row are NaN.
    """
    b = ExprBuilder(value.type)
    *sizes, depth = value.shape

    def groups(size: int) -> tuple[Indices, Index, Index]:
        *rows, group, k = b.iters(*sizes, depth // size, size)
        return (*rows, group), group * size + k, k

    at, place, k = groups(GROUP)
    largest = b.stage(at, abs(b.read(0, *at[:-1], place)), over=(k,), monoid="max")
    at = b.iters(*sizes, depth // GROUP)
    scales = b.stage(at, fn("max", b.read(largest, *at), LEAST) / 127.0)
    *rows, k = b.iters(*sizes, depth)
    least = fn("max", b.read(largest, *rows, k // GROUP), LEAST)
    element = b.read(0, *rows, k) * (literal(127.0, F32) / least)
    bytes_ = b.stage((*rows, k), cast(fn("round", element), I8))
    sums = []
    for size, offset in starts:
        at, place, k = groups(size)
        sums.append(b.sum(at, cast(b.read(bytes_, *at[:-1], place), I32) * -offset, over=(k,)))
    results = (_part(value, "bytes", I8, 1), _part(value, "scales", F32, GROUP))
    return Kernel(b.done(bytes_, scales, *sums), (value,), (*results, *starts.values()), loc)


def _f32(scalar: Scalar) -> Scalar:
    return cast(scalar, F32)


# ---- finding the matmuls -------------------------------------------------------------------------


def _matmuls(kernel: Kernel, constants: Mapping[Value, Graph]) -> Iterator[_Matmul]:
    """Yields the stages of `kernel` that multiply constant levels with rows of a value."""
    for stage in kernel.expr.stages:
        loops = long_loops(stage)
        if multiplied(stage) is None or len(loops) != 1 or (known_extent(loops[0]) or 1) % GROUP:
            continue
        k = of_atom(loops[0])
        parts = multiplied_parts(stage.body[0])
        levels = [(p, place) for p in parts if (place := _place(p, k, kernel, constants))]
        rows = [p for p in parts if _is_row(p, k, kernel, constants)]
        if len(levels) != 1 or len(rows) != 1:
            continue
        ((level, place),), (x,) = levels, rows
        scales = tuple(p for p in parts if p not in (level, x))
        size = next((n for n in (GROUP, 16) if all(_shared(s, k, n) for s in scales)), None)
        if size is not None:
            yield _Matmul(stage, k, x, *place, scales, size)


def _is_row(
    factor: Scalar, k: Index, kernel: Kernel, constants: Mapping[Value, Graph]
) -> TypeGuard[Read]:
    """Returns True for a factor that reads whole rows of a value in order."""
    if not isinstance(factor, Read) or not isinstance(factor.source, int) or factor.indirect:
        return False
    value, (loop,) = kernel.operands[factor.source], free_vars(k)
    if value in constants or factor.fill is not None or factor.indices[-1:] != (k,):
        return False
    length = as_int(value.shape[-1])
    return length == known_extent(loop) and loop not in free_vars(*factor.indices[:-1])


def _place(
    factor: Scalar, k: Index, kernel: Kernel, constants: Mapping[Value, Graph]
) -> tuple[Read, int, int] | None:
    """Returns (read, axis, bits) of the constant whose levels a factor is; None for others."""
    for node in walk(factor):
        if isinstance(node, Read) and isinstance(node.source, int):
            for axis, bits in product(range(len(node.indices)), (8, 4)):
                element = read(node.source, replaced(node.indices, axis, k), I8)
                is_factor = _f32(level_read(element, node.source, axis, bits)) is factor
                if is_factor and operand_of(kernel, node) in constants:
                    return node, axis, bits
    return None


def _shared(scale: Scalar, k: Index, size: int) -> bool:
    """Returns True if `size` neighbours along `k` share a factor."""
    (loop,) = free_vars(k)
    inner = iterator("inner", size)
    place = {loop: iterator("outer", (known_extent(loop) or 0) // size) * size + inner}
    indices = (substitute(i, place) for node in walk(scale) for i in indices_in(node))
    return set(free_vars(inner)).isdisjoint(free_vars(*indices))
