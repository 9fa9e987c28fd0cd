"""Finds loops of the last stage that may be parallel although earlier stages do not have them.

Each tile then computes the earlier stages again.

    m = sum(k) x[k] ; h[k] = x[k] - m ; y[n] = sum(k) h[k] * w[k, n]
      ->  common (n): every tile of some columns computes all of h first

With few rows, only the columns can be divided among several cores.  The alternative is a separate
kernel for the earlier stages.  A separate kernel costs a launch, a store and a load of its results,
and a pause in the reading of weights.
"""

from collections.abc import Collection, Sequence

from tcc.ir.index import Var, Vars, of_atom
from tcc.passes.fuse.unify_iterators import Shaped, common_loops, loops_at, stage_reads
from tcc.zipped import zip_equal


def repeating_loops(stages: Sequence[Shaped], results: Collection[int]) -> Vars:
    """Returns the loops of the last stage that may be parallel.

    A loop may be parallel if every stage has it.  It may also be if only later stages have it and
    no earlier stage is among `results`, the stages whose values are stored.  Each tile then
    computes the earlier stages again.
    """
    common = common_loops(stages)
    last = stages[-1].stage.iters
    return tuple(v for v in last if v in common or _may_repeat(stages, v, results))


def streaming_loops(stages: Sequence[Shaped], results: Collection[int]) -> Vars:
    """Returns the loops of the last stage that may be parallel if the stages share a streaming
    loop: tiles repeat only stages without a reduction."""
    loops = repeating_loops(stages, results)
    sums = [set(s.stage.iters) for s in stages if s.stage.monoid is not None]
    return tuple(v for v in loops if all(v in iters for iters in sums))


def _may_repeat(stages: Sequence[Shaped], var: Var, results: Collection[int]) -> bool:
    lacking = [n for n, s in enumerate(stages) if var not in s.stage.iters]
    having = [n for n in range(len(stages)) if n not in lacking]
    # A stage that is unrolled along `var` computes its results for all values of `var` together.
    if any(var in s.unrolled_iters for s in stages):
        return False
    if not having or set(lacking) & set(results) or max(lacking, default=-1) > having[0]:
        return False
    return all(_reads_at(stages, number, var) for number in having)


def _reads_at(stages: Sequence[Shaped], number: int, var: Var) -> bool:
    """Returns True if every read of stage `number` has the index `var` along the loop `var`."""
    source = stages[number]
    values = (
        dict(zip_equal(source.stage.iters, loops_at(source, at)))
        for shaped, at in stage_reads(stages)
        if shaped is source
    )
    return all(v[var] is of_atom(var) for v in values)
