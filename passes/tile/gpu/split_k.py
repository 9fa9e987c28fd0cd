"""Divides long sums among tiles if there are too few results to keep a device busy.

    s[i, j] = sum(k: 4096) a[i, k] * b[k, j] ; y = f(s)          16 x 512 results, 132 processors
      ->  kernel { p[q, i, j] = sum(r: 512) a[i, 512*q + r] * b[512*q + r, j] }        q: 0..8
          kernel { s[i, j] = sum(q) p[q, i, j] ; y = f(s) }

A sum is divided only if two kernels take less time than one. Among the numbers of parts, the one
with the lowest price is chosen. The order of sums depends only on sizes and the device, so results
are reproducible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from tcc.ir.expr import Expr, known_extent
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import StageRef
from tcc.passes.choose.content import site
from tcc.passes.fuse.compose import drop_unused
from tcc.passes.fuse.split_reductions import trips, with_parts
from tcc.schedule.alternatives import IMPOSSIBLE, SILENT, Alternative, Ledger, Seconds, saves
from tcc.schedule.gpu.cost import LAUNCH, BlockPrice, streamed
from tcc.schedule.gpu.schedule import BlockProfile
from tcc.schedule.margins import MARGINS

# Kernels that take less time are never divided.
_SHORT = Seconds(2 * LAUNCH)
# The terms of a sum that a tile computes at once. The length of every part is a multiple of it.
_STEP = 64
# A function that returns the best price of a kernel; None if it cannot be a block kernel.
Prices: TypeAlias = Callable[[Expr], BlockPrice | None]


def split_k(
    expr: Expr, profile: BlockProfile, prices: Prices, ledger: Ledger = SILENT
) -> tuple[Expr, int] | None:
    """Returns (expr, number): `expr` with its only reduction divided into parts.

    Stage `number` computes the sums of the parts, and the expression is to be cut into two kernels
    after it.  Returns None if two kernels take longer, or if sizes are symbolic.
    """
    reductions = [n for n, s in enumerate(expr.stages) if s.monoid is not None]
    if len(reductions) != 1 or len(expr.stages[reductions[0]].body) != 1:
        return None
    (number,) = reductions
    stage = expr.stages[number]
    sizes = [known_extent(v) for v in stage.loops]
    if any(n is None or n < 1 for n in sizes):
        return None
    loop = max(stage.reduce, key=lambda v: trips((v,)))
    counts = _counts(trips((loop,)))
    price = prices(expr) if counts else None
    if price is None or price.units >= 2 * profile.processors or saves(price.seconds, _SHORT):
        return None
    rule = Alternative(expr, price.seconds, name="whole")
    divided = ((n, with_parts(expr, number, loop, n)) for n in counts)
    alternatives = [
        Alternative(e, _seconds(e, number, profile, prices), name=f"{n}-parts") for n, e in divided
    ]
    margin = MARGINS["split-k"]
    best = ledger.decide(lambda: site("split-k", expr), rule, alternatives, margin)
    return None if best is rule else (best.replacement, number)


def _counts(trips: int) -> list[int]:
    """Returns the numbers of parts into which a loop of `trips` can be divided."""
    return [1 << n for n in range(1, 9) if trips % (_STEP << n) == 0]


def _seconds(expr: Expr, number: int, profile: BlockProfile, prices: Prices) -> Seconds:
    """Returns the price of two kernels: one for the parts, whose sums stage `number` computes, and
    one that adds the parts."""
    first, _ = drop_unused(replace(expr, outputs=(StageRef(number, 0),)))
    price = prices(canonical(first))
    stage = expr.stages[number]
    traffic = 2 * trips(stage.iters) * stage.body[0].dtype.bytes
    return IMPOSSIBLE if price is None else price.seconds + Seconds(streamed(profile, traffic))
