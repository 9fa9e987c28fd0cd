"""Restricts an expression to a part of one of its results, and finds what that part reads.

    y[i, j] = sum(k) x[i, k] * w[k, j]    rows 5 to 8 of y read rows 5 to 8 of x and all of w
    y[i] = select(i < 3, a[i], b[i - 3])  elements 4 to 9 read elements 1 to 6 of b, nothing of a

A part has a range of elements, or a list of positions, for each axis.  The range of an operand is
the hull of all reads: the smallest range that contains their elements.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

from tcc.frozen import frozen
from tcc.ir.expr import Expr, Stage, known_extent, reads, with_reads
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
    Quotient,
    Remainder,
    atoms,
    bounds,
    const,
    free_vars,
    iterator,
    limit,
    var_of,
)
from tcc.ir.index.prove import at_most
from tcc.ir.types import BOOL, TensorType, element_count
from tcc.zipped import zip_equal


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
        return self.size if self.rows is None else element_count(self.rows.shape)


Parts: TypeAlias = tuple[AxisPart, ...]
# An expression of a part of a result, and the part of each operand that it reads; None for an
# operand that it does not read.
Restriction: TypeAlias = tuple[Expr, tuple[Parts | None, ...]]


def whole(shape: Indices) -> Parts:
    """Returns the part of a tensor of `shape` that has all its elements."""
    return tuple(AxisPart(const(0), size) for size in shape)


def joined(a: Parts | None, b: Parts, shape: Indices) -> Parts:
    """Returns a part of a tensor of `shape` that contains two parts; `a` is None if it is empty."""
    return b if a is None else tuple(map(_hull, a, b, shape))


def _hull(a: AxisPart, b: AxisPart, size: Index) -> AxisPart:
    if a == b:
        return a
    start = _smaller(a.start, b.start)
    behind = _smaller(*(size - part.start - part.size for part in (a, b)))
    return AxisPart(start, size - start - behind)


def _smaller(a: Index, b: Index) -> Index:
    """Returns the smaller of two sizes; 0 if one is 0 or neither is proved to be at most the other.

    A size that is equal to 0 in another form must not come before 0: a part joined with the whole
    has to be the whole.
    """
    if const(0) in (a, b):
        return const(0)
    return a if at_most(a, b) else b if at_most(b, a) else const(0)


@lru_cache(1024)  # cached, because equal layers have equal expressions
def restricted(expr: Expr, number: int, parts: Parts) -> Restriction | None:
    """Returns the restriction of `expr` to the part `parts` of its result `number`.

    Returns None where the positions along a restricted axis are not independent.
    """
    output = expr.outputs[number]
    stages = list(expr.stages)
    types: dict[int, Any] = dict(enumerate(expr.params))
    types |= {~n: stage.types[0] for n, stage in enumerate(stages)}
    hulls = {~output.stage: parts}
    for at in reversed(range(output.stage + 1)):
        if ~at not in hulls:
            continue
        if not _is_independent(stages[at], hulls[~at]):
            return None
        stages[at] = stage = _placed(stages[at], hulls[~at])
        lists: dict[Any, AxisPart] = {v: p for v, p in zip_equal(stage.iters, hulls[~at]) if p.rows}
        for node in reads(stage):
            source = _number(node.source)
            axes = zip_equal(node.indices, types[source].shape)
            hull = tuple(lists.get(var_of(i)) or _range(i, n) for i, n in axes)
            hulls[source] = joined(hulls.get(source), hull, types[source].shape)

    def moved(node: Read) -> Read:
        at = (i - p.start for i, p in zip_equal(node.indices, hulls[_number(node.source)]))
        return read_at(node, tuple(at), node.indirect)

    operands = tuple(map(hulls.get, range(len(expr.params))))
    params = tuple(part_type(t, h) if t and h else t for t, h in zip_equal(expr.params, operands))
    stages = [with_reads(s, moved) if ~n in hulls else s for n, s in enumerate(stages)]
    return Expr(params, tuple(stages), (output,)), operands


def part_type(type: TensorType, parts: Parts) -> TensorType:
    """Returns the type of a part of a tensor."""
    return TensorType(type.dtype, tuple(p.count for p in parts))


def _number(source: Source) -> int:
    """Returns the number of an operand, or ~n for all components of stage n."""
    return source if isinstance(source, int) else ~source.stage


def _is_independent(stage: Stage, parts: Parts) -> bool:
    """Returns True if no read along a restricted axis combines its positions with a reduction's.

    Positions of a list must be read as they are.
    """
    pairs = zip_equal(stage.iters, parts, whole(stage.types[0].shape))
    fixed = {v: part.rows for v, part, every in pairs if part != every}
    reduced = {v for v in stage.reduce if known_extent(v) != 1}
    for node in walk(*stage.body):
        for index in indices_in(node):
            used = fixed.keys() & free_vars(index)
            if used and not reduced.isdisjoint(free_vars(index)):
                return False
            if any(map(fixed.get, used)) and not (isinstance(node, Read) and var_of(index)):
                return False
    return True


def _placed(stage: Stage, parts: Parts) -> Stage:
    """Returns `stage` with loops over `parts`, and without conditions that these parts decide."""
    at = [iterator(v.name, part.count) for v, part in zip_equal(stage.iters, parts)]
    places = (part.start + i for part, i in zip_equal(parts, at))
    body = substitute_all(stage.body, dict(zip_equal(stage.iters, places)))
    return replace(stage, iters=free_vars(*at), body=transform_all(body, _decided))


def _decided(node: Scalar) -> Scalar:
    """Returns a comparison that all positions decide as a literal, and a select by a literal as its
    branch.  An undecided comparison gets a left side without a constant."""
    match node:
        case Apply(function="lt", args=(IndexValue(index=a, dtype=dtype), IndexValue(index=b))):
            is_less = at_most(a + 1, b)
            if is_less or at_most(b, a):
                return literal(is_less, BOOL)
            return apply("lt", *(index_value(i - a.const, dtype) for i in (a, b)))
        case Apply(function="select", args=(Const(value=condition), yes, no)):
            return yes if condition else no
    return node


def _range(index: Index, size: Index) -> AxisPart:
    """Returns the range of an axis of `size` elements that contains all values of `index` on it."""
    low, high = (limit(index, up=up, cancel=False) for up in (False, True))
    start = low if low is not None and _is_defined(low) and at_most(const(0), low) else const(0)
    last = size - 1
    if high is not None and _is_defined(high) and at_most(high, last):
        last = high
    return AxisPart(start, last + 1 - start) if at_most(start, last) else AxisPart(const(0), size)


def _is_defined(bound: Index) -> bool:
    """Returns True if every run can compute a bound of a loop's positions.

    A loop divides by a size only if the loop runs, but a bound is also computed for empty loops.
    """
    divisions = (atom for atom in atoms(bound) if isinstance(atom, Quotient | Remainder))
    return all((bounds(atom.den)[0] or 0) > 0 for atom in divisions)
