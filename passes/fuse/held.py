"""Which stages a unit would have to hold, and whether it can."""

from __future__ import annotations

from tcc.ir.expr import Expr, extent
from tcc.ir.index import as_int
from tcc.ir.types import element_count
from tcc.passes.fuse.link import link_stages, shaped_stage
from tcc.passes.fuse.repeated import launch_loops
from tcc.passes.fuse.structure import needs_memory

# The most bytes of one stage that a unit holds: they should stay in a core's cache.
_LARGEST = 1 << 19


def too_large(expr: Expr) -> int | None:
    """The first stage that a unit cannot hold."""
    if len(expr.stages) == 1:
        return None
    linked = link_stages(tuple(map(shaped_stage, expr.stages)))
    common = launch_loops(linked, {out.stage for out in expr.outputs})
    for number, shaped in enumerate(linked):
        if needs_memory(linked, number, common):
            inner = tuple(extent(v) for v in shaped.stage.iters if v not in common)
            held = as_int(element_count(inner))
            element = max(s.dtype.bytes for s in shaped.stage.body)
            if held is None or held * element > _LARGEST:
                return number
    return None
