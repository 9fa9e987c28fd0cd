"""Divides long sums of values among tiles if one kernel reads many lines of other cores.

    m[c] = sum(h: 56, w: 56) x[h, w, c]      another kernel wrote the rows of x on two threads
      ->  kernel { p[q, c] = sum(h: 28, w: 56) x[28*q + h, w, c] }      q: 0..2, a thread each
          kernel { m[c] = sum(q) p[q, c] }

A sum is divided only if two kernels take less time than one.  The parts depend on sizes, prices and
the cores of the machine, not on the threads of a run, so results are reproducible.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from tcc.ir.expr import Expr
from tcc.ir.graph import Value
from tcc.ir.layout import Layout
from tcc.passes.choose.content import site
from tcc.passes.fuse.split_reductions import trips, with_parts
from tcc.passes.layout.assign import Kernel, Placed
from tcc.passes.layout.divide_sums import divided
from tcc.passes.tile.plan import KernelKey, kernel_key
from tcc.schedule.alternatives import NO_TIME, Alternative, Ledger, Seconds
from tcc.schedule.cpu.owners import ThreadTiles
from tcc.schedule.margins import MARGINS
from tcc.schedule.nest import multiplied


def divided_sum(
    kernel: Kernel,
    placed: Placed,
    draft: Callable[[KernelKey], ThreadTiles],
    cores: int,
    ledger: Ledger,
) -> tuple[Expr, int] | None:
    """Returns the expression of a kernel with its only reduction in parts, and the number of the
    stage of the parts.

    Returns None if two kernels take longer, if sizes are symbolic, or if it is a sum of products.
    `draft` returns the tiles of a kernel.
    """
    reductions = [(n, s) for n, s in enumerate(kernel.expr.stages) if s.monoid is not None]
    if len(reductions) != 1:
        return None
    ((number, stage),) = reductions
    if len(stage.body) > 1 or multiplied(stage) or not trips(stage.loops):
        return None
    constants = placed.graph.constants
    periods: dict[Value, float | None] = {}
    for step in placed.steps:
        writer = step.kernel
        if writer and not step.every and not {*kernel.operands}.isdisjoint(writer.results):
            results = draft(kernel_key(writer, placed.layouts, constants)).result_periods()
            numbered = enumerate(writer.results, len(writer.operands))
            periods |= {v: results.get(n) for n, v in numbered}
    if not any(periods.values()):
        return None

    def seconds(layouts: Mapping[Value, Layout], *pieces: Kernel) -> Seconds:
        prices = (
            draft(kernel_key(piece, layouts, constants)).seconds(
                {n: periods.get(v) for n, v in enumerate(piece.operands)}
            )
            for piece in pieces
        )
        return sum(prices, NO_TIME)

    def alternatives() -> Iterator[Alternative[Expr]]:
        for position, loop in enumerate(stage.reduce):
            length = trips((loop,))
            parts = length if length % cores else cores
            form = with_parts(kernel.expr, number, loop, parts)
            pieces, layouts = divided(kernel, form, number, placed.layouts)
            yield Alternative(form, seconds(layouts, *pieces), name=f"{parts}-parts-of-l{position}")

    rule = Alternative(kernel.expr, seconds(placed.layouts, kernel), name="whole")
    key = kernel_key(kernel, placed.layouts, constants)
    where = partial(site, "split-k", *key, tuple(map(periods.get, kernel.operands)))
    choice = ledger.decide(where, rule, [*alternatives()], MARGINS["split-k"])
    return None if choice is rule else (choice.replacement, number)
