"""Finds values whose planes a kernel touches together and that would lie in the same cache sets.

    y[4*u + k] = f(k; m[0, u], ..., m[35, u])      planes m[p] of 16 KiB: all 36 elements of a point
                                                   lie in one set of a cache with 12 places for them

A cache chooses the set of an address by bits above the line and, in the first level, below a page:
elements that lie a multiple of a page apart push each other out, and loads wait for stores that
only look like theirs.  Planes an odd number of lines apart begin in sets of their own.  Planes of
an open size are whole pages at some sizes, so they are set apart at all.
Requires stages whose results lie with the first axis outermost.
"""

from collections.abc import Iterator, Sequence

from tcc.ir.expr import Expr, reads
from tcc.ir.expr.scalar import StageRef
from tcc.ir.graph import Value
from tcc.ir.index import Indices, as_int
from tcc.ir.types import TensorType, element_count
from tcc.passes.fuse.unify_iterators import shaped_stage
from tcc.schedule.footprint import PAGE

# So many elements of a set at least do not stay beside what else is there.
_MANY = 8


def crowded(expr: Expr, operands: Sequence[Value], results: Sequence[Value]) -> Iterator[Value]:
    """The operands and results of which one point touches elements in many planes that are, or for
    an open size may be, a multiple of a page apart."""
    for number, stage in enumerate(expr.stages):
        at: dict[int, list[Indices]] = {}
        for node in reads(stage):
            if isinstance(node.source, int):
                at.setdefault(node.source, []).append(node.indices)
        for source, places in at.items():
            if _aligned(operands[source].type) and _spread(places):
                yield operands[source]
        made = zip(results, expr.outputs, strict=True)
        for value in (v for v, out in made if out == StageRef(number, 0) and _aligned(v.type)):
            if _spread(shaped_stage(stage, unrolled=True).places):
                yield value


def _aligned(type_: TensorType) -> bool:
    """Whether there are many planes, which are whole pages or of an open size."""
    count, plane = (as_int(element_count(part)) for part in (type_.shape[:1], type_.shape[1:]))
    if count is None or count < _MANY or type_.dtype.bits % 8:
        return False
    return plane is None or (plane * type_.dtype.bytes % PAGE == 0 and plane > 0)


def _spread(places: Sequence[Indices]) -> bool:
    """Whether many of `places` differ in the first index only."""
    planes: dict[Indices, set[int]] = {}
    for first, *rest in places:
        known = as_int(first)
        if known is not None:
            planes.setdefault(tuple(rest), set()).add(known)
    return any(len(found) >= _MANY for found in planes.values())
