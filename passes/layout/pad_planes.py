"""Finds values whose planes a kernel reads together although they lie in the same cache sets.

    y[4*u + k] = f(k; m[0, u], ..., m[35, u])      planes m[p] of 16 KiB: all 36 elements of a point
                                                   lie in one set of a cache with 12 places for them

A plane is the part of a value at one index of its first axis.  The cache set of an address is
address // 64 % (number of sets).  In the first-level cache, number of sets * 64 divides the size of
a page.  So elements whose distance is a multiple of a page evict each other, and a load waits for
earlier stores whose addresses differ from its own by a multiple of a page.

With padding between planes, their distance is an odd number of lines, and they begin in different
sets.  Planes of symbolic size are whole pages at some sizes, so they always get padding.  Requires
that the first axis of results is outermost in storage.
"""

from collections.abc import Iterator, Sequence

from tcc.ir.expr import Expr, reads
from tcc.ir.expr.scalar import StageRef
from tcc.ir.graph import Value
from tcc.ir.index import Indices, as_int
from tcc.ir.types import TensorType, element_count
from tcc.passes.fuse.unify_iterators import shaped_stage
from tcc.schedule.footprint import PAGE
from tcc.zipped import zip_equal

# With at least this many elements in one cache set, some of them are evicted before their use.
_MANY = 8


def crowded(expr: Expr, operands: Sequence[Value], results: Sequence[Value]) -> Iterator[Value]:
    """Yields the operands and results of a kernel whose planes need padding between them.

    A point of the kernel accesses elements of many of these planes.  The distance of planes is a
    multiple of a page, or symbolic.
    """
    for number, stage in enumerate(expr.stages):
        places_of: dict[int, list[Indices]] = {}
        for node in reads(stage):
            if isinstance(node.source, int):
                places_of.setdefault(node.source, []).append(node.indices)
        for source, places in places_of.items():
            if _aligned(operands[source].type) and _spread(places):
                yield operands[source]
        result_refs = zip_equal(results, expr.outputs)
        for value in (
            v for v, out in result_refs if out == StageRef(number, 0) and _aligned(v.type)
        ):
            if _spread(shaped_stage(stage, unrolled=True).places):
                yield value


def _aligned(type_: TensorType) -> bool:
    """Returns True if a value has many planes, and their size is symbolic or a multiple of a
    page."""
    count, plane = (as_int(element_count(part)) for part in (type_.shape[:1], type_.shape[1:]))
    if count is None or count < _MANY or type_.dtype.bits % 8:
        return False
    return plane is None or (plane * type_.dtype.bytes % PAGE == 0 and plane > 0)


def _spread(places: Sequence[Indices]) -> bool:
    """Returns True if at least `_MANY` of `places`, indices of reads, differ in the first index
    alone."""
    planes: dict[Indices, set[int]] = {}
    for first, *inner in places:
        plane = as_int(first)
        if plane is not None:
            planes.setdefault(tuple(inner), set()).add(plane)
    return any(len(numbers) >= _MANY for numbers in planes.values())
