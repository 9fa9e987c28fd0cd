"""Finds stages that a tile must hold in its scratch, but that do not fit there."""

from tcc.ir.expr import Expr
from tcc.passes.fuse.result_places import result_places
from tcc.passes.fuse.sliding_window import shared_loops
from tcc.passes.fuse.streaming import resident_bytes, streamed
from tcc.passes.fuse.unify_iterators import linked_stages, needs_memory
from tcc.schedule.limits import FusionLimits


def too_large(expr: Expr, limits: FusionLimits) -> int | None:
    """Returns the first stage that does not fit a tile's scratch; None if all stages fit.

    An expression that can be computed in K-blocks (`streaming`) fits.
    """
    if len(expr.stages) == 1 or streamed(expr, limits) is not None:
        return None
    linked = linked_stages(expr)
    loops = shared_loops(expr, limits)
    dtypes = [t.dtype for t in expr.types]
    placed = result_places(linked, loops, expr.outputs, dtypes) if limits.reuses_results else {}
    for number, strip in enumerate(loops.strips):
        if number in placed:
            continue
        if strip is not None or needs_memory(linked, number, loops.common):
            resident = resident_bytes(linked, number, loops.common)
            if strip is not None:
                element = max(s.dtype.bytes for s in linked[number].stage.body)
                resident = strip.width * strip.count(1) * element
            if resident is None or resident > limits.room:
                return number
    return None
