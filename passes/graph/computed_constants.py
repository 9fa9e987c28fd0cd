"""Constants that follow from their indices are computed, not read: masks and ranges.

    mask = [[0, -inf, -inf], [0, 0, -inf], [0, 0, 0]] ;  x[i, j] + mask[i, j]
      ->  x[i, j] + select(j - i <= 0, 0, -inf)

Exporters evaluate causal masks and windows; as data, they cost a load for each score, and hide what
a walk may leave out (`skip`).  An array of two values is a band if one of them fills some diagonals
that are neighbours in each of its matrices.  Integers that are compared may also be a linear
function of their indices.

Requires layouts.  Establishes kernels that do not read such constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from tcc.ir.expr import Expr, reads, with_sources
from tcc.ir.expr.scalar import (
    Apply,
    Read,
    Scalar,
    Source,
    apply,
    index_value,
    literal,
    transform_all,
)
from tcc.ir.graph import Value
from tcc.ir.index import Index, const
from tcc.ir.op import Array
from tcc.ir.types import I32
from tcc.passes.layout.assign import Kernel, Placed
from tcc.record import record

# Smaller arrays are not worth the arithmetic, and any few numbers are a band or linear.
_LEAST = 16
# Elements that are looked at before the whole array is.
_FIRST = 1 << 12
_COMPARISONS = ("lt", "le", "gt", "ge")


@record
class Band:
    """`inside` where `low <= column - row <= high`, `outside` elsewhere; None is no limit."""

    low: int | None
    high: int | None
    inside: bool | int | float
    outside: bool | int | float


@record
class Linear:
    """`first` and for each axis `steps` of it times the index."""

    first: int
    steps: tuple[int, ...]


def with_computed_constants(placed: Placed) -> Placed:
    """`placed` whose kernels compute the masks and ranges they would read."""
    found: dict[Value, Band | Linear] = {}
    for value in dict.fromkeys(v for kernel in placed.kernels for v in kernel.operands):
        array = placed.graph.constant(value) if value in placed.graph.constants else None
        known = None if array is None else band_of(array) or linear_of(array)
        if known is not None:
            found[value] = known
    if not found:
        return placed
    steps = placed.with_kernels(lambda kernel: _computed(kernel, found))
    return replace(placed, steps=steps)


# ---- recognising ---------------------------------------------------------------------------------


def band_of(array: Array) -> Band | None:
    """The band that all matrices of `array` are, along the last two axes; None where they are
    none, or of one value only."""
    if array.ndim < 2 or array.size < _LEAST or array.dtype.kind not in "bif":
        return None
    values = np.unique(array.reshape(-1)[:_FIRST])
    if len(values) > 2 or np.isnan(values).any():
        return None
    rows, columns = array.shape[-2:]
    matrices = array.reshape(-1, rows, columns)
    first = matrices[0]
    diagonals = np.concatenate([first[:0:-1, 0], first[0]])
    at = np.arange(columns) - np.arange(rows)[:, None] + rows - 1
    if not (matrices == diagonals[at]).all():
        return None
    return _band(diagonals, rows - 1)


def _band(diagonals: Array, main: int) -> Band | None:
    """The band of values by diagonal, of which number `main` is the main one."""
    (edges,) = np.nonzero(diagonals[1:] != diagonals[:-1])
    first, last = diagonals[0], diagonals[-1]
    match [int(e) for e in edges]:
        case [low, high] if first == last:
            return Band(low + 1 - main, high - main, diagonals[low + 1].item(), first.item())
        case [edge] if first > last:
            return Band(None, edge - main, first.item(), last.item())
        case [edge]:
            return Band(edge + 1 - main, None, last.item(), first.item())
        case _:
            return None


def linear_of(array: Array) -> Linear | None:
    """The linear function of their indices that integers are, if they are one that varies."""
    if array.dtype.kind != "i" or array.size < _LEAST or array.ndim == 0:
        return None
    origin = (0,) * array.ndim
    first = int(array[origin])
    steps = []
    wanted = np.asarray(first, np.int64)
    for axis, size in enumerate(array.shape):
        second = tuple(int(n == axis) for n in range(array.ndim))
        steps.append(int(array[second]) - first if size > 1 else 0)
        along = np.arange(size, dtype=np.int64).reshape(
            [-1 if n == axis else 1 for n in range(array.ndim)]
        )
        wanted = wanted + steps[-1] * along
    if not any(steps) or not (array == wanted).all():
        return None
    return Linear(first, tuple(steps))


# ---- computing -----------------------------------------------------------------------------------


def _computed(kernel: Kernel, found: Mapping[Value, Band | Linear]) -> Kernel:
    """`kernel` without the operands that are no longer read."""

    def leaf(node: Scalar) -> Scalar:
        if isinstance(node, Apply) and node.function in _COMPARISONS:
            return apply(node.function, *map(compared, node.args))
        known = recognised(node)
        return _banded(node, known) if isinstance(known, Band) else node

    def compared(node: Scalar) -> Scalar:
        known = recognised(node)
        return _index(node, known) if isinstance(known, Linear) else node

    def recognised(node: Scalar) -> Band | Linear | None:
        if not isinstance(node, Read) or not isinstance(node.source, int):
            return None
        plain = node.fill is None and not node.indirect
        return found.get(kernel.operands[node.source]) if plain else None

    stages = tuple(replace(s, body=transform_all(s.body, leaf)) for s in kernel.expr.stages)
    if stages == kernel.expr.stages:
        return kernel
    return without_unread(replace(kernel, expr=replace(kernel.expr, stages=stages)))


def _banded(node: Scalar, band: Band) -> Scalar:
    assert isinstance(node, Read)
    row, column = node.indices[-2:]
    tests = []
    if band.low is not None:
        tests.append(apply("ge", index_value(column, I32), index_value(row + band.low, I32)))
    if band.high is not None:
        tests.append(apply("le", index_value(column, I32), index_value(row + band.high, I32)))
    test = tests[0] if len(tests) == 1 else apply("and", *tests)
    return apply(
        "select", test, literal(band.inside, node.dtype), literal(band.outside, node.dtype)
    )


def _index(node: Scalar, known: Linear) -> Scalar:
    assert isinstance(node, Read)
    total: Index = const(known.first)
    for step, index in zip(known.steps, node.indices, strict=True):
        total = total + index * step
    return index_value(total, node.dtype)


def without_unread(kernel: Kernel) -> Kernel:
    """`kernel` without the operands that no stage reads, the others in their order."""
    sources = {r.source for s in kernel.expr.stages for r in reads(s)}
    kept = sorted(source for source in sources if isinstance(source, int))
    numbers = {old: new for new, old in enumerate(kept)}

    def moved(source: Source) -> Source:
        return numbers[source] if isinstance(source, int) else source

    stages = tuple(with_sources(s, moved) for s in kernel.expr.stages)
    expr = Expr(tuple(kernel.expr.params[n] for n in kept), stages, kernel.expr.outputs)
    return replace(kernel, expr=expr, operands=tuple(kernel.operands[n] for n in kept))
