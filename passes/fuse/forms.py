"""Lists the forms that one kernel may take, among which prices choose.

s = softmax(q k^T) ; y = s v     1. a tile holds whole rows of s
                                 2. a tile streams along the rows in K-blocks
h = x / rms(x) ; y = h w         1. a tile computes rows of y
                                 2. a tile computes some columns of y, and repeats h
"""

from dataclasses import replace

from tcc.ir.expr import Expr
from tcc.passes.fuse.sliding_window import shared_loops
from tcc.passes.fuse.streaming import streamed
from tcc.schedule.limits import FusionLimits


def kernel_forms(expr: Expr, limits: FusionLimits) -> tuple[FusionLimits, ...]:
    """Returns the limits of each form of `expr`; the form whose tiles hold whole rows comes
    first."""
    holding, streaming = (replace(limits, streams=streams) for streams in (False, True))
    if streamed(expr, streaming) is None:
        return repeating_forms(expr, limits)
    if streamed(expr, holding) is not None:
        return (streaming,)
    return (*repeating_forms(expr, holding), streaming)


def repeating_forms(expr: Expr, limits: FusionLimits) -> tuple[FusionLimits, ...]:
    """Returns limits under which tiles repeat no stage, then limits under which tiles may compute a
    stage again that several tiles need.

    Omits the second limits if the kernel has the same loops under both.
    """
    once, again = (replace(limits, repeats=repeats) for repeats in (False, True))
    differ = len(expr.stages) > 1 and shared_loops(expr, again) != shared_loops(expr, once)
    return (once, again) if differ else (once,)
