"""Finds loops of a contraction that earlier stages lack: each tile then repeats these stages.

    m = sum(k) x[k] ; h[k] = x[k] - m ; y[n] = sum(k) h[k] * w[k, n]
      ->  common (n): every tile of some columns computes all of h first

With few rows, columns are the only work that several cores can share.  Otherwise the stages become
a kernel of their own, which costs a launch, a store and load of its results, and a pause of the
stream of weights.
"""

from collections.abc import Collection, Sequence

from tcc.ir.index import Var, Vars, of_atom
from tcc.passes.fuse.unify_iterators import Shaped, common_loops, loops_at, stage_reads


def repeating_loops(stages: Sequence[Shaped], results: Collection[int]) -> Vars:
    """Returns the loops that may be parallel: those of every stage, and those that only stages
    before the last ones lack, which tiles then repeat.

    `results` are the stages that are stored.
    """
    common = common_loops(stages)
    last = stages[-1].stage.iters
    return tuple(v for v in last if v in common or _may_repeat(stages, v, results))


def _may_repeat(stages: Sequence[Shaped], var: Var, results: Collection[int]) -> bool:
    lacking = [n for n, s in enumerate(stages) if var not in s.stage.iters]
    having = [n for n in range(len(stages)) if n not in lacking]
    if any(var in s.unrolled_iters for s in stages):  # one body for each value: all are computed
        return False
    if not having or set(lacking) & set(results) or max(lacking, default=-1) > having[0]:
        return False
    return all(_reads_at(stages, number, var) for number in having)


def _reads_at(stages: Sequence[Shaped], number: int, var: Var) -> bool:
    """True where the stages that have the loop read stage `number` at their own point of
    the loop."""
    source = stages[number]
    values = (
        dict(zip(source.stage.iters, loops_at(source, at), strict=True))
        for shaped, at in stage_reads(stages)
        if shaped is source
    )
    return all(v[var] is of_atom(var) for v in values)
