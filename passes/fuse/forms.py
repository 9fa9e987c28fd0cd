"""The forms that one kernel may take, among which prices choose.

s = softmax(q k^T) ; y = s v   ->   a unit holds whole rows of s
                               ->   a unit walks along them, a run at a time
"""

from __future__ import annotations

from dataclasses import replace

from tcc.ir.expr import Expr
from tcc.passes.fuse.streaming import streamed
from tcc.schedule.limits import FusionLimits


def kernel_forms(expr: Expr, limits: FusionLimits) -> tuple[FusionLimits, ...]:
    """Limits under which `expr` becomes groups that differ, the held one first."""
    held, walked = (replace(limits, walks=walks) for walks in (False, True))
    if streamed(expr, walked) is None:
        return (limits,)
    return (walked,) if streamed(expr, held) is not None else (held, walked)
