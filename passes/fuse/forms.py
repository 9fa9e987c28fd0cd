"""The forms that one kernel may take, among which prices choose.

s = softmax(q k^T) ; y = s v         ->   a unit holds whole rows of s
                                     ->   a unit walks along them, a run at a time
h = x / rms(x) ; y = h w             ->   a unit makes rows of y
                                     ->   a unit makes some columns, and h again
"""

from dataclasses import replace

from tcc.ir.expr import Expr
from tcc.passes.fuse.sliding_window import shared_loops
from tcc.passes.fuse.streaming import streamed
from tcc.schedule.limits import FusionLimits


def kernel_forms(expr: Expr, limits: FusionLimits) -> tuple[FusionLimits, ...]:
    """Limits under which `expr` becomes groups that differ, the held one first."""
    held, walked = (replace(limits, walks=walks) for walks in (False, True))
    if streamed(expr, walked) is None:
        return repeating_forms(expr, limits)
    if streamed(expr, held) is not None:
        return (walked,)
    return (*repeating_forms(expr, held), walked)


def repeating_forms(expr: Expr, limits: FusionLimits) -> tuple[FusionLimits, ...]:
    """Limits under which units do no stage again, and, where the loops then differ, some."""
    once, again = (replace(limits, repeats=repeats) for repeats in (False, True))
    differ = len(expr.stages) > 1 and shared_loops(expr, again) != shared_loops(expr, once)
    return (once, again) if differ else (once,)
