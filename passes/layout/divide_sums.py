"""Divides kernels with long sums into a kernel of partial sums and a kernel that adds them.

    kernel { y = sum(k: 4096) x[i, k] * w[k, j] }
      ->  kernel { p[q, i, j] = sum(r: 512) x[i, 512*q + r] * w[512*q + r, j] }     q: 0..8
          kernel { y = sum(q) p[q, i, j] }

Requires layouts, and the types in which values are stored, because prices depend on both.
Establishes a layout for each value of partial sums, with the axis order of the result.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from tcc.ir.expr import Expr
from tcc.ir.graph import Value
from tcc.ir.layout import Layout, axis_order, permuted, row_major
from tcc.passes.fuse.split import cut_behind
from tcc.passes.layout.assign import Kernel, Placed, ProgramStep
from tcc.schedule.backend import Divides


def with_divided_sums(placed: Placed, divides: Divides | None) -> Placed:
    """Returns `placed` with two kernels in place of each kernel that `divides` rewrites.

    `divides` is `KernelModel.divides`.  Returns `placed` itself if it is None.
    """
    if divides is None:
        return placed
    layouts = dict(placed.layouts)
    steps: list[ProgramStep] = []
    for step in placed.steps:
        division = None if step.kernel is None or step.every else divides(step.kernel, placed)
        if division is None or step.kernel is None:
            steps.append(step)
            continue
        pieces, layouts = divided(step.kernel, *division, layouts)
        steps += map(ProgramStep, pieces)
    return replace(placed, steps=tuple(steps), layouts=layouts)


def divided(
    kernel: Kernel, expr: Expr, number: int, layouts: Mapping[Value, Layout]
) -> tuple[tuple[Kernel, Kernel], dict[Value, Layout]]:
    """Returns the kernels that compute `expr`, which has partial sums in stage `number`, in place
    of `kernel`, and `layouts` with those of the values between them."""
    result = kernel.results[0]
    names = (f"{result.name}.part{n}" for n in count())
    pieces = cut_behind(replace(kernel, expr=expr), (number,), names)
    new_values = (v for piece in pieces for v in piece.results if v not in layouts)
    return pieces, {**layouts, **{v: _layout_of_parts(v, layouts[result]) for v in new_values}}


def _layout_of_parts(parts: Value, result: Layout) -> Layout:
    """Returns the layout of partial sums.

    The axis of the parts is outermost.  All other axes have the order that they have in the result.
    """
    order, rank = axis_order(result), parts.rank
    if order is None or rank not in (len(order), len(order) + 1):
        return row_major(parts.shape)
    if rank == len(order):
        return permuted(parts.shape, order)
    return permuted(parts.shape, (0, *(axis + 1 for axis in order)))
