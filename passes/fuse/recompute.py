"""Loops of a product that the stages before it lack: each unit then does those stages again.

    m = sum(k) x[k] ; h[k] = x[k] - m ; y[n] = sum(k) h[k] * w[k, n]
      ->  common (n): every unit of some columns makes all of h first

With few rows there is nothing else to give to several cores.  Otherwise the stages are a kernel of
their own: a launch, its results through memory, and a pause of the stream of weights.
"""

from collections.abc import Collection, Sequence

from tcc.ir.index import Var, Vars, of_atom
from tcc.passes.fuse.unify_iterators import Shaped, common_loops, loops_at, stage_reads


def repeating_loops(stages: Sequence[Shaped], results: Collection[int]) -> Vars:
    """The loops that may be parallel: those of every stage, and those that only stages before the
    last ones lack, where units do these again.

    `results` are the stages that are stored.
    """
    common = common_loops(stages)
    last = stages[-1].stage.iters
    return tuple(v for v in last if v in common or _may_repeat(stages, v, results))


def _may_repeat(stages: Sequence[Shaped], var: Var, results: Collection[int]) -> bool:
    lacking = [n for n, s in enumerate(stages) if var not in s.stage.iters]
    having = [n for n in range(len(stages)) if n not in lacking]
    if any(var in s.chosen for s in stages):  # such a stage gives all that it chooses between
        return False
    if not having or set(lacking) & set(results) or max(lacking, default=-1) > having[0]:
        return False
    return all(_reads_at(stages, number, var) for number in having)


def _reads_at(stages: Sequence[Shaped], number: int, var: Var) -> bool:
    """Whether the stages that have the loop read the stage `number` at the point at hand."""
    own = stages[number]
    values = (
        dict(zip(own.stage.iters, loops_at(own, at), strict=True))
        for shaped, at in stage_reads(stages)
        if shaped is own
    )
    return all(v[var] is of_atom(var) for v in values)
