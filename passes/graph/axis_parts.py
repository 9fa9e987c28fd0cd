"""Restricts an expression to a part of one of its results, and finds what that part reads.

    y[i, j] = sum(k) x[i, k] * w[k, j]    rows 5 to 8 of y read rows 5 to 8 of x and all of w
    y[i] = select(i < 3, a[i], b[i - 3])  elements 4 to 9 read elements 1 to 6 of b, nothing of a

A part has a range of elements, or a list of positions, for each axis.  The range of an operand is
the hull of all reads: the smallest range that contains their elements.
"""

from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

from tcc.frozen import frozen
from tcc.ir.expr import Expr, Stage, known_extent, reads, unconditional, with_reads
from tcc.ir.expr.scalar import (
    Apply,
    Const,
    IndexValue,
    Read,
    Scalar,
    Source,
    apply,
    index_value,
    indices_in,
    literal,
    read_at,
    substitute_all,
    transform_all,
    walk,
)
from tcc.ir.graph import Value
from tcc.ir.index import (
    Index,
    Indices,
    Var,
    const,
    free_vars,
    iterator,
    limit,
    linear_in,
    var_of,
)
from tcc.ir.index.prove import at_most
from tcc.ir.types import BOOL, TensorType, element_count


@frozen
class AxisPart:
    """The elements `start` to `start + size - 1` of an axis.

    With `rows`, only the elements of this range whose positions the integers `rows` list, in their
    order.
    """

    start: Index
    size: Index
    rows: Value | None = None

    @property
    def count(self) -> Index:
        """The number of elements, repeated ones included."""
        return self.size if self.rows is None else element_count(self.rows.type.shape)


Parts: TypeAlias = tuple[AxisPart, ...]


@frozen
class Restriction:
    """An expression of a part of a result, and the parts of the operands that it reads.

    `operands` has None for an operand that it does not read.
    """

    expr: Expr
    operands: tuple[Parts | None, ...]


def whole(shape: Indices) -> Parts:
    """Returns the part of a tensor of `shape` that has all its elements."""
    return tuple(AxisPart(const(0), size) for size in shape)


def joined(a: Parts | None, b: Parts, shape: Indices) -> Parts:
    """Returns a part of a tensor of `shape` that contains two parts; `a` is None if it is empty."""
    return b if a is None else tuple(map(_hull, a, b, shape))


def _hull(a: AxisPart, b: AxisPart, size: Index) -> AxisPart:
    if a == b:
        return a
    ends = a.start + a.size, b.start + b.size
    pairs = (a.start, b.start), (b.start, a.start)
    start = next((s for s, t in pairs if at_most(s, t)), const(0))
    stop = next((s for s, t in (ends, ends[::-1]) if at_most(t, s)), size)
    return AxisPart(start, stop - start)


@lru_cache(maxsize=1024)  # cached, because equal layers have equal expressions
def restricted(expr: Expr, number: int, parts: Parts) -> Restriction | None:
    """Returns the restriction of `expr` to the part `parts` of its result `number`.

    Returns None where the positions along a restricted axis are not independent.
    """
    output = expr.outputs[number]
    shapes = {n: type.shape for n, type in enumerate(expr.params) if type}
    shapes |= {~n: stage.types[0].shape for n, stage in enumerate(expr.stages)}
    hulls = {~output.stage: parts}
    stages = list(expr.stages)
    for at in reversed(range(output.stage + 1)):
        if ~at not in hulls:
            continue
        if not _is_independent(stages[at], hulls[~at]):
            return None
        stages[at] = stage = _placed(stages[at], hulls[~at])
        lists = {v: p for v, p in zip(stage.iters, hulls[~at], strict=True) if p.rows}
        for node in reads(stage):
            source, shape = _number(node.source), shapes[_number(node.source)]
            sure = node.fill is None and node in unconditional(stage.body)
            axes = [(i, size, var_of(i)) for i, size in zip(node.indices, shape, strict=True)]
            hull = tuple(lists[v] if v in lists else _range(i, n, sure) for i, n, v in axes)
            hulls[source] = joined(hulls.get(source), hull, shape)

    def moved(node: Read) -> Read:
        hull = hulls[_number(node.source)]
        at = (i if p.rows else i - p.start for i, p in zip(node.indices, hull, strict=True))
        return read_at(node, tuple(at), node.indirect)

    operands = tuple(hulls.get(n) for n in range(len(expr.params)))
    params = tuple(t and part_type(t, h) for t, h in zip(expr.params, operands, strict=True))
    stages = [with_reads(s, moved) if ~n in hulls else s for n, s in enumerate(stages)]
    return Restriction(Expr(params, tuple(stages), (output,)), operands)


def part_type(type: TensorType, parts: Parts | None) -> TensorType:
    """Returns the type of a part of a tensor; None is the whole tensor."""
    return type if parts is None else TensorType(type.dtype, tuple(p.count for p in parts))


def is_copy(expr: Expr) -> bool:
    """Returns True if the only result of `expr` is a copy of its only operand."""
    stage = expr.stages[0]
    body = stage.body[0]
    is_plain = isinstance(body, Read) and body.source == 0 and body.indices == stage.at
    return is_plain and stage.monoid is None and expr.params == expr.types


def _number(source: Source) -> int:
    """Returns the number of an operand, or ~n for all components of stage n."""
    return source if isinstance(source, int) else ~source.stage


def _is_independent(stage: Stage, parts: Parts) -> bool:
    """Returns True if no read along a restricted axis combines its positions with a reduction's.

    Positions of a list must be read as they are.
    """
    pairs = zip(stage.iters, parts, whole(stage.types[0].shape), strict=True)
    fixed = {v: part.rows for v, part, every in pairs if part != every}
    reduced = {v for v in stage.reduce if known_extent(v) != 1}
    for node in walk(*stage.body):
        for index in indices_in(node):
            used = fixed.keys() & free_vars(index)
            is_plain = isinstance(node, Read) and var_of(index) in fixed
            if used and not reduced.isdisjoint(free_vars(index)):
                return False
            if any(fixed[v] for v in used) and not is_plain:
                return False
    return True


def _placed(stage: Stage, parts: Parts) -> Stage:
    """Returns `stage` with loops over `parts`, and without conditions that these parts decide."""
    iters: list[Var] = []
    moves = {v: const(0) for v in stage.reduce if known_extent(v) == 1}
    for var, part in zip(stage.iters, parts, strict=True):
        index = iterator(var.name, part.count)
        iters += free_vars(index)
        moves[var] = index if part.rows else part.start + index
    body = transform_all(substitute_all(stage.body, moves), _decided)
    return replace(stage, iters=tuple(iters), body=body)


def _decided(node: Scalar) -> Scalar:
    """Returns a comparison that all positions decide as a literal, and a select by a literal as its
    branch.  An undecided comparison gets a left side that starts at 0."""
    match node:
        case Apply(function="lt", args=(IndexValue() as a, IndexValue() as b)):
            is_less = at_most(a.index + 1, b.index)
            if is_less or at_most(b.index, a.index):
                return literal(is_less, BOOL)
            first = limit(a.index, up=False, cancel=False) or const(0)
            return apply("lt", *(index_value(x.index - first, x.dtype) for x in (a, b)))
        case Apply(function="select", args=(Const() as condition, yes, no)):
            return yes if condition.value else no
    return node


def _range(index: Index, size: Index, sure: bool) -> AxisPart:
    """Returns the range of an axis of `size` elements that contains all values of `index`.

    `sure` says that no value lies outside of the axis.
    """
    low, high = (limit(index, up=up, cancel=False) for up in (False, True))
    loops = [v for v in free_vars(index) if v.extent is not None]
    start, stop = const(0), size
    if low is not None and high is not None:
        exact = sure and all(linear_in(index, v) for v in loops)
        start = low if exact or at_most(start, low) else start
        stop = high + 1 if exact or at_most(high + 1, stop) else stop
        if exact or at_most(start + 1, stop):
            return AxisPart(start, stop - start)
    return AxisPart(const(0), size)
