"""Finds the loop whose rows all stages of an expression can follow, window by window.

    a[u, c]  for 58 rows u                      h: 8 rows a unit
    b[h, c] = sum(r: 3) a[h + r - 1, c]   ->    b: rows h, as many     a: rows h - 1 .. h + 8
    y[h, d] = sum(c) b[h, c] * w[c, d]

What a unit makes of a stage is then a strip of whole rows.  Neighbouring units make the rows that
both need twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from tcc.ir.expr import Expr, extent, known_extent
from tcc.ir.expr.scalar import Read, reads_of_stages
from tcc.ir.index import Index, Indices, Var, Vars, bounds, free_vars, step_in, within
from tcc.ir.tile.group import Strip
from tcc.passes.fuse.recompute import repeating_loops
from tcc.passes.fuse.unify_iterators import Shaped, common_loops, linked_stages, loops_at
from tcc.record import record
from tcc.schedule.limits import FusionLimits

# Elements on a side of a row beyond which what is outside is checked instead of stored.
_WIDEST = 16


@record
class Loops:
    """The loops that all stages share, and of each stage the strip that follows one of them."""

    common: Vars
    strips: tuple[Strip | None, ...]

    @staticmethod
    def plain(stages: Sequence[Shaped]) -> Loops:
        """Without strips."""
        return Loops(common_loops(stages), (None,) * len(stages))


@record
class _Reach:
    """Rows `scale*i + low .. scale*i + high` of the loop `rows` for row i of the loop followed."""

    rows: Var
    scale: int
    low: int
    high: int


@record
class _Use:
    """A read of a component of a stage by stage `reader`, at values `at` of its iterators."""

    reader: int
    node: Read
    component: int
    at: Indices


@lru_cache(maxsize=512)  # of an expression that may be too large, and in each of its layouts
def shared_loops(expr: Expr, limits: FusionLimits) -> Loops:
    """The loops of the linked stages of `expr`."""
    stages = linked_stages(expr)
    plain = Loops.plain(stages)
    common = plain.common
    if len(stages) > 1:
        uses = _uses(stages)
        stored = {out.stage for out in expr.outputs}
        for loop in stages[-1].stage.iters:
            strips = None if loop in common else _strips(stages, uses, stored, common, loop)
            if strips is not None:
                both = {*common, loop}
                return Loops(tuple(v for v in stages[-1].stage.iters if v in both), strips)
    if not limits.repeats:
        return plain
    return replace(plain, common=repeating_loops(stages, {out.stage for out in expr.outputs}))


def _uses(stages: Sequence[Shaped]) -> Mapping[int, list[_Use]]:
    found: dict[int, list[_Use]] = {}
    for reader, shaped in enumerate(stages):
        for node, source in reads_of_stages(*shaped.stage.body):
            at = loops_at(stages[source.stage], node.indices)
            found.setdefault(source.stage, []).append(_Use(reader, node, source.component, at))
    return found


def _strips(
    stages: Sequence[Shaped],
    uses: Mapping[int, list[_Use]],
    stored: set[int],
    common: Vars,
    loop: Var,
) -> tuple[Strip | None, ...] | None:
    """The strip of every stage that others read; None unless all rows follow `loop`."""
    last = len(stages) - 1
    reaches = {last: _Reach(loop, 1, 0, 0)}
    for number in range(last - 1, -1, -1):
        reach = _reach(stages, number, uses.get(number, []), reaches)
        plain = reach == _Reach(loop, 1, 0, 0)
        if reach is None or (
            not plain and (number in stored or loop in stages[number].stage.iters)
        ):
            return None
        reaches[number] = reach
    if all((r.scale, r.low, r.high) == (1, 0, 0) for r in reaches.values()):
        return None
    if len({(r.rows, r) for r in reaches.values()}) != len({r.rows for r in reaches.values()}):
        return None  # stages that share a loop would need different rows of it
    strips: list[Strip | None] = [None] * len(stages)
    for number, reach in reaches.items():
        if number in uses:
            strip = _strip(stages[number], uses[number], common, loop, reach)
            if strip is None or stages[number].chosen:
                return None
            strips[number] = strip
    return tuple(strips)


def _reach(
    stages: Sequence[Shaped], number: int, uses: Sequence[_Use], reaches: Mapping[int, _Reach]
) -> _Reach | None:
    """The rows of a stage that its readers need for a row of the loop followed."""
    own: _Reach | None = None
    for use in uses:
        stage, reader = stages[number].stage, reaches[use.reader]
        along = [
            (v, i) for v, i in zip(stage.iters, use.at, strict=True) if reader.rows in free_vars(i)
        ]
        if len(along) != 1 or use.node.indirect:
            return None
        ((var, index),) = along
        linear = step_in(index, reader.rows)
        if linear is None or linear[0] < 1:
            return None
        step, rest = linear
        low, high = bounds(rest)
        if low is None or high is None:
            return None
        if not set(free_vars(rest)) <= set(stages[use.reader].stage.reduce):
            return None
        found = _Reach(var, step * reader.scale, step * reader.low + low, step * reader.high + high)
        own = found if own is None else _both(own, found)
        if own is None:
            return None
    if own is None and reaches[len(stages) - 1].rows in stages[number].stage.iters:
        return reaches[len(stages) - 1]  # a result that no stage reads
    return own


def _both(a: _Reach, b: _Reach) -> _Reach | None:
    if (a.rows, a.scale) != (b.rows, b.scale):
        return None
    return replace(a, low=min(a.low, b.low), high=max(a.high, b.high))


def _strip(
    shaped: Shaped, uses: Sequence[_Use], common: Vars, loop: Var, reach: _Reach
) -> Strip | None:
    """The strip of a stage: wide enough that reads of it need no checks."""
    iters = shaped.stage.iters
    fills: list[bool | int | float | None] = [None] * len(shaped.stage.body)
    widths = {v: (0, 0) for v in iters}
    for use in uses:
        outside = [not within(i, extent(v)) for v, i in zip(iters, use.at, strict=True)]
        if not any(outside):
            continue
        fill = use.node.fill
        if fill is None or fills[use.component] not in (None, fill):
            return None
        fills[use.component] = fill
        for var, index in zip(iters, use.at, strict=True):
            if var in common:
                if not within(index, extent(var)):
                    return None
                continue
            wider = _widths(index, extent(var))
            if wider is None:
                return None
            before, after = widths[var]
            widths[var] = max(before, wider[0]), max(after, wider[1])
    row = []
    for var in iters:
        if var in common:
            continue
        size = known_extent(var)
        if size is None:
            return None
        if var is not reach.rows:
            before, after = widths[var]
            row.append((before, size, after))
    return Strip(loop, reach.rows, reach.scale, reach.low, reach.high, tuple(row), tuple(fills))


def _widths(index: Index, size: Index) -> tuple[int, int] | None:
    low, high = bounds(index)[0], bounds(index - size + 1)[1]
    if low is None or high is None:
        return None
    before, after = max(0, -low), max(0, high)
    return (before, after) if max(before, after) <= _WIDEST else None
