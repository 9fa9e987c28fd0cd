"""Loops of a product that the cheap stages before it lack: each unit then does those stages again.

    m = sum(k) x[k] ; h[k] = x[k] - m ; y[n] = sum(k) h[k] * w[k, n]
      ->  common (n): every unit of some columns makes all of h first

With few rows there is nothing else to give to several cores.  What is repeated is a small part of
what a column takes, so that the kernel it would be otherwise costs more: its launch, its results
through memory, and a pause of the stream of weights.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from tcc.ir.expr import Stage, extent
from tcc.ir.index import Var, as_int, of_atom
from tcc.passes.fuse.unify_iterators import Shaped, common_loops, loops_at, stage_reads
from tcc.schedule.limits import FusionLimits
from tcc.schedule.nest import weight


def launch_loops(
    stages: Sequence[Shaped], results: Collection[int], limits: FusionLimits
) -> tuple[Var, ...]:
    """The loops that may be parallel: those of every stage, and those that only stages before the
    last ones lack, where repeating these for each part costs little.

    `results` are the stages that are stored.
    """
    common = common_loops(stages)
    rows = [as_int(extent(v)) for v in common]
    if None in rows or prod(n or 0 for n in rows) > limits.few_rows:
        return common
    last = stages[-1].stage
    own = [v for v in last.iters if v not in common and _may_repeat(stages, v, results, limits)]
    return tuple(v for v in last.iters if v in common or v in own)


def _may_repeat(
    stages: Sequence[Shaped], var: Var, results: Collection[int], limits: FusionLimits
) -> bool:
    lacking = [n for n, s in enumerate(stages) if var not in s.stage.iters]
    having = [n for n in range(len(stages)) if n not in lacking]
    if not having or set(lacking) & set(results) or max(lacking, default=-1) > having[0]:
        return False
    if not all(_reads_at(stages, number, var) for number in having):
        return False
    repeated, once = (_work([stages[n].stage for n in group]) for group in (lacking, having))
    if repeated is None or once is None:
        return False
    return repeated * limits.repeated <= once


def _reads_at(stages: Sequence[Shaped], number: int, var: Var) -> bool:
    """Whether the stages that have the loop read the stage `number` at the point at hand."""
    own = stages[number]
    values = (
        dict(zip(own.stage.iters, loops_at(own, at), strict=True))
        for shaped, at in stage_reads(stages)
        if shaped is own
    )
    return all(v[var] is of_atom(var) for v in values)


def _work(stages: Sequence[Stage]) -> int | None:
    """Operations of stages, None where a size is open."""
    total = 0
    for stage in stages:
        sizes = [as_int(extent(v)) for v in stage.loops]
        if None in sizes:
            return None
        total += prod(n or 0 for n in sizes) * weight(stage)
    return total
