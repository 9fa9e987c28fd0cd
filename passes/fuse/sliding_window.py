"""Finds a loop over rows along which all stages of an expression can share a sliding window.

    a[u, c]  for 58 rows u                      a tile has 8 rows h
    b[h, c] = sum(r: 3) a[h + r - 1, c]   ->    and computes 8 rows of b, rows h - 1 .. h + 8 of a
    y[h, d] = sum(c) b[h, c] * w[c, d]

A tile's part of a stage is then a strip: consecutive whole rows.  Rows that two neighbouring tiles
need are computed by both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from tcc.frozen import frozen
from tcc.ir.expr import Expr, extent, known_extent
from tcc.ir.expr.scalar import Read, reads_of_stages
from tcc.ir.index import Index, Indices, Var, Vars, bounds, free_vars, step_in, within
from tcc.ir.tile.group import Strip
from tcc.known import all_known
from tcc.passes.fuse.recompute import repeating_loops
from tcc.passes.fuse.unify_iterators import Shaped, common_loops, linked_stages, loops_at
from tcc.schedule.limits import FusionLimits
from tcc.zipped import zip_equal

# At most this many padding elements are stored at each end of a row. If reads need wider padding,
# no padding is stored, and reads have guards.
_WIDEST = 16


@frozen
class Loops:
    """`common` are the loops that all stages share; `strips` has the strip of each stage, or None
    for a stage without a strip."""

    common: Vars
    strips: tuple[Strip | None, ...]

    @staticmethod
    def plain(stages: Sequence[Shaped]) -> Loops:
        """Returns the common loops of the stages, without strips."""
        return Loops(common_loops(stages), (None,) * len(stages))


@frozen
class _Rows:
    """The rows of a stage that are needed to compute row i of the last stage.

    They are rows `scale*i + low` to `scale*i + high` along the stage's loop `rows`.
    """

    rows: Var
    scale: int
    low: int
    high: int


@frozen
class _Use:
    """A read of a component of a stage.

    `reader` is the number of the stage that reads.  `at` has an index for each iterator of the
    stage that is read.
    """

    reader: int
    node: Read
    component: int
    at: Indices


@lru_cache(512)  # cached for the check of the scratch, and for all layouts of an expression
def shared_loops(expr: Expr, limits: FusionLimits) -> Loops:
    """Returns the loops that the stages of `expr` share, with strips if the stages share a
    window."""
    stages = linked_stages(expr)
    plain = Loops.plain(stages)
    common = plain.common
    if len(stages) > 1:
        uses = _uses(stages)
        result_stages = {out.stage for out in expr.outputs}
        for loop in stages[-1].stage.iters:
            strips = None if loop in common else _strips(stages, uses, result_stages, common, loop)
            if strips is not None:
                loops = {*common, loop}
                return Loops(tuple(v for v in stages[-1].stage.iters if v in loops), strips)
    if not limits.repeats:
        return plain
    return replace(plain, common=repeating_loops(stages, {out.stage for out in expr.outputs}))


def _uses(stages: Sequence[Shaped]) -> Mapping[int, list[_Use]]:
    uses_of: dict[int, list[_Use]] = {}
    for reader, shaped in enumerate(stages):
        for node, source in reads_of_stages(*shaped.stage.body):
            at = loops_at(stages[source.stage], node.indices)
            uses_of.setdefault(source.stage, []).append(_Use(reader, node, source.component, at))
    return uses_of


def _strips(
    stages: Sequence[Shaped],
    uses: Mapping[int, list[_Use]],
    result_stages: set[int],
    common: Vars,
    loop: Var,
) -> tuple[Strip | None, ...] | None:
    """Returns for each stage its strip along `loop`, a loop of the last stage.

    A stage that no other stage reads has no strip.  Returns None if the rows of some stage that row
    i of `loop` needs are not rows `scale*i + low` to `scale*i + high` (`_Rows`).
    """
    last = len(stages) - 1
    rows_of = {last: _Rows(loop, 1, 0, 0)}
    for number in range(last - 1, -1, -1):
        rows = _needed_rows(stages, number, uses.get(number, []), rows_of)
        plain = rows == _Rows(loop, 1, 0, 0)
        if rows is None or (
            not plain and (number in result_stages or loop in stages[number].stage.iters)
        ):
            return None
        rows_of[number] = rows
    if all((r.scale, r.low, r.high) == (1, 0, 0) for r in rows_of.values()):
        return None
    if len({*rows_of.values()}) != len({r.rows for r in rows_of.values()}):
        # Two stages with one loop for their rows need different rows.
        return None
    strips: list[Strip | None] = [None] * len(stages)
    for number, rows in rows_of.items():
        if number in uses:
            strip = _strip(stages[number], uses[number], common, loop, rows)
            if strip is None or stages[number].unrolled_iters:
                return None
            strips[number] = strip
    return tuple(strips)


def _needed_rows(
    stages: Sequence[Shaped], number: int, uses: Sequence[_Use], rows_of: Mapping[int, _Rows]
) -> _Rows | None:
    """Returns the rows of a stage that its readers need for row i of the last stage.

    Returns None if they are not consecutive rows at a fixed distance from a multiple of i.
    """
    needed: _Rows | None = None
    for use in uses:
        stage, reader = stages[number].stage, rows_of[use.reader]
        along = [(v, i) for v, i in zip_equal(stage.iters, use.at) if reader.rows in free_vars(i)]
        if len(along) != 1 or use.node.indirect:
            return None
        ((var, index),) = along
        linear = step_in(index, reader.rows)
        if linear is None or linear[0] < 1:
            return None
        step, remainder = linear
        limits = all_known(bounds(remainder))
        if limits is None or not {*free_vars(remainder)} <= {*stages[use.reader].stage.reduce}:
            return None
        low, high = limits
        rows_read = _Rows(
            var, step * reader.scale, step * reader.low + low, step * reader.high + high
        )
        needed = rows_read if needed is None else _union(needed, rows_read)
        if needed is None:
            return None
    if needed is None and rows_of[len(stages) - 1].rows in stages[number].stage.iters:
        # The stage is a result that no stage reads: row i of it belongs to row i of the last stage.
        return rows_of[len(stages) - 1]
    return needed


def _union(a: _Rows, b: _Rows) -> _Rows | None:
    if (a.rows, a.scale) != (b.rows, b.scale):
        return None
    return replace(a, low=min(a.low, b.low), high=max(a.high, b.high))


def _strip(
    shaped: Shaped, uses: Sequence[_Use], common: Vars, loop: Var, rows: _Rows
) -> Strip | None:
    """Returns the strip of a stage, with enough padding that reads of the strip need no guards.

    Returns None if there is no such strip.
    """
    iters = shaped.stage.iters
    fills: list[bool | int | float | None] = [None] * len(shaped.stage.body)
    widths = {v: (0, 0) for v in iters}
    for use in uses:
        if all(map(within, use.at, map(extent, iters))):
            continue
        fill = use.node.fill
        if fill is None or fills[use.component] not in (None, fill):
            return None
        fills[use.component] = fill
        for var, index in zip_equal(iters, use.at):
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
        if var is not rows.rows:
            before, after = widths[var]
            row.append((before, size, after))
    return Strip(loop, rows.rows, rows.scale, rows.low, rows.high, tuple(row), tuple(fills))


def _widths(index: Index, size: Index) -> tuple[int, int] | None:
    low, high = bounds(index)[0], bounds(index - size + 1)[1]
    if low is None or high is None:
        return None
    before, after = max(0, -low), max(0, high)
    return (before, after) if max(before, after) <= _WIDEST else None
