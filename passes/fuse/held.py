"""Which stages a unit would have to hold, and whether it can."""

from __future__ import annotations

from tcc.ir.expr import Expr
from tcc.passes.fuse.link import common_loops, needs_memory
from tcc.passes.fuse.online import held_bytes, linked_stages, walked

# The most bytes of one stage that a unit holds: they should stay in a core's cache.
_LARGEST = 1 << 19


def too_large(expr: Expr) -> int | None:
    """The first stage that a unit cannot hold, nor walk along a run at a time."""
    if len(expr.stages) == 1 or walked(expr) is not None:
        return None
    linked = linked_stages(expr)
    common = common_loops(linked)
    for number in range(len(linked)):
        if needs_memory(linked, number, common):
            held = held_bytes(linked, number, common)
            if held is None or held > _LARGEST:
                return number
    return None
