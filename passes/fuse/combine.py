"""How stages of an expression read each other, once loops that choose formulas are unrolled.

y[4*u + k] = f(k; m[0, u], ..., m[5, u])       each point u reads six elements, none twice
"""

from __future__ import annotations

from tcc.ir.expr import Expr, extent
from tcc.ir.index import as_int
from tcc.ir.types import element_count
from tcc.passes.fuse.link import digits_of, linked_stages, radix_size, stage_reads


def read_plainly(expr: Expr) -> bool:
    """Whether stages read earlier ones element by element: windows overlap, and a unit would make
    what it needs of its neighbours' again."""
    return all(
        as_int(index) is not None or digits_of(index, radix_size(formula)) is not None
        for source, at in stage_reads(linked_stages(expr))
        for index, formula in zip(at, source.logical, strict=True)
    )


def combines_once(expr: Expr) -> bool:
    """Whether the points of the last stage combine several elements of one other stage, which
    together are all it has."""
    stages = linked_stages(expr)
    if len(stages) != 2:
        return False
    first, last = stages
    found = {at for _, at in stage_reads(stages)}
    made, used = (element_count(tuple(map(extent, s.stage.iters))) for s in (first, last))
    return len(found) > 1 and used * len(found) is made
