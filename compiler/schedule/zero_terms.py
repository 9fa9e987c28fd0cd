"""Finds the terms of contractions that are not zero; a term is zero where a factor reads padding.

    y[h, w] = sum(p, q, c)  x[h + p - 2, w + q - 2, c] * f[p, q, c]        zeros around x[H, W]
      rows h .. h + 3 of a tile    ->    p from max(0, 2 - (h + 3)) to min(5, H + 2 - h)

Only dims of symbolic size are examined. If sizes are known, each tap of a window is inside of the
operand for some result. A zero times an infinite weight counts as zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr.scalar import Cast, Read
from tcc.ir.index import (
    Index,
    Quotient,
    Var,
    as_int,
    const,
    evaluate,
    free_vars,
    iterator,
    of_atom,
    step_in,
    substitute,
)
from tcc.ir.tile.group import GroupStage
from tcc.schedule.masked_terms import Ends, TermLimit, block_ends, needed, symbols_in
from tcc.schedule.nest import contraction_factors, contracts, trips, typical_value
from tcc.zipped import zip_equal

# A longer loop counts as this long, because padding is only a small part of it.
_LONG = 1 << 12


@frozen
class Border:
    """A condition of the nonzero terms along a summed loop: `limit.step * (loop // every) +
    limit.offset` >= 0."""

    every: int
    limit: TermLimit


@lru_cache(1 << 12)  # cached by identity, because schedules ask often
def borders_of(stage: GroupStage) -> Mapping[Var, tuple[Border, ...]]:
    """Returns the limits of the nonzero terms along each summed loop of a contraction.

    The mapping is empty for any other stage.
    """
    if not contracts(stage):
        return {}
    return {v: borders for v in stage.reduce if (borders := tuple(_borders(stage, v)))}


def _borders(stage: GroupStage, loop: Var) -> Iterator[Border]:
    factors = contraction_factors(stage)
    assert factors is not None
    for factor in (factors.a, factors.b):
        node = factor.arg if isinstance(factor, Cast) else factor
        if not isinstance(node, Read) or node.fill:
            continue
        access = stage.accesses.get(node)
        for guard in () if access is None else (*access.guards, *access.beyond):
            steps = _steps(guard.index, loop)
            if steps is None or as_int(guard.extent) is not None:
                continue
            every, step, offset = steps
            yield Border(every, TermLimit(step, offset))
            yield Border(every, TermLimit(-step, guard.extent - 1 - offset))


def _steps(index: Index, loop: Var) -> tuple[int, int, Index] | None:
    """Returns (every, step, offset) with `index` = step * (loop // every) + offset; None if `index`
    does not have this form."""
    if loop not in free_vars(index):
        return None
    linear = step_in(index, loop)
    if linear is not None:
        return 1, *linear
    for atom in (atom for monomial, _ in index.terms for atom in monomial):
        if not isinstance(atom, Quotient) or atom.num is not of_atom(loop):
            continue
        every, part = as_int(atom.den) or 0, iterator("part", 1 << 40)
        linear = step_in(substitute(index, {loop: part * every}), *free_vars(part))
        if every and linear is not None and index is linear[0] * of_atom(atom) + linear[1]:
            return every, *linear
    return None


def needed_terms(
    stage: GroupStage, loop: Var, tile_ends: Mapping[Var, Ends]
) -> tuple[Sequence[Index], Sequence[Index]]:
    """Returns (firsts, stops), bounds of the nonzero terms along a summed loop.

    All terms before any of `firsts`, and from any of `stops` on, are zero. `tile_ends` has the
    smallest and the largest value of each loop around the summed loop.
    """
    firsts: list[Index] = []
    stops: list[Index] = []
    for border in borders_of(stage).get(loop, ()):
        first, stop = needed((border.limit,), tile_ends)
        firsts += [border.every * place for place in first]
        stops += [border.every * place for place in stop]
    return firsts, stops


@lru_cache(1 << 14)
def terms_along(stage: GroupStage, loop: Var) -> int:
    """Returns the number of terms along `loop` that are nonzero for any result, at typical
    sizes."""
    ends = {v: (const(0), const(min(trips(v), _LONG) - 1)) for v in stage.iters}
    start, stop = _terms(stage, loop, ends, {})
    return max(0, int(stop - start))


@lru_cache(1 << 12)
def terms_share(stage: GroupStage, blocks: tuple[tuple[str, int], ...]) -> float:
    """Returns the fraction of a contraction's terms that are computed if zero terms are skipped.

    A term is skipped if it is zero for a whole block of results. `blocks` has pairs of a loop's
    name and the elements of a block; other loops have blocks of one element. Symbolic sizes count
    as typical, but at most as `_LONG`.
    """
    values: dict[str, Any] = {}
    ends: dict[Var, Ends] = {}
    loops = stage.iters if borders_of(stage) else ()
    counts = [min(trips(v), _LONG) for v in loops]
    for var, elements in zip_equal(loops, np.ix_(*map(np.arange, counts))):
        size = dict(blocks).get(var.name, 1)
        ends[var] = block_ends(var, size, elements.size)
        values[var.name] = elements // size  # the block of each element
    share = 1.0
    for loop in borders_of(stage):
        start, stop = _terms(stage, loop, ends, values)
        share *= float(np.mean(np.maximum(stop - start, 0))) / max(1, trips(loop))
    return share


def _terms(
    stage: GroupStage, loop: Var, ends: Mapping[Var, Ends], values: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Returns arrays (start, stop): the terms of `loop` outside of start .. stop - 1 are zero.

    The arrays have an element for each block. `ends` has the smallest and the largest value of each
    outer loop in a block, as formulas of the block's number. `values` has these numbers.
    """
    firsts, stops = needed_terms(stage, loop, ends)
    sizes = symbols_in(firsts, stops)
    values = {**values, **{v.name: min(typical_value(v), _LONG) for v in sizes}}
    start = reduce(np.maximum, (evaluate(first, values) for first in firsts), 0)
    return start, reduce(np.minimum, (evaluate(end, values) for end in stops), trips(loop))
