"""Which stages a unit would have to hold, and whether it can."""

from __future__ import annotations

from tcc.ir.expr import Expr, extent
from tcc.ir.index import as_int
from tcc.ir.types import element_count
from tcc.passes.fuse.link import link_stages, shaped_stage
from tcc.passes.fuse.strips import shared_loops
from tcc.passes.fuse.structure import needs_memory

# The most bytes of one stage that a unit holds: they should stay in a core's cache.
_LARGEST = 1 << 19


def too_large(expr: Expr) -> int | None:
    """The first stage that a unit cannot hold."""
    if len(expr.stages) == 1:
        return None
    linked = link_stages(tuple(map(shaped_stage, expr.stages)))
    loops = shared_loops(linked, expr)
    for number, (shaped, strip) in enumerate(zip(linked, loops.strips, strict=True)):
        if strip is not None or needs_memory(linked, number, loops.common):
            inner = tuple(extent(v) for v in shaped.stage.iters if v not in loops.common)
            held = as_int(element_count(inner)) if strip is None else strip.width * strip.count(1)
            element = max(s.dtype.bytes for s in shaped.stage.body)
            if held is None or held * element > _LARGEST:
                return number
    return None
