"""Divides kernels with long sums into a kernel of partial sums and a kernel that adds them.

    kernel { y = sum(k: 4096) x[i, k] * w[k, j] }
      ->  kernel { p[q, i, j] = sum(r: 512) x[i, 512*q + r] * w[512*q + r, j] }     q: 0..8
          kernel { y = sum(q) p[q, i, j] }

Requires layouts, and the types in which values are stored, because prices depend on both.
Establishes a layout for each value of partial sums, with the axis order of the result.
"""

from dataclasses import replace
from itertools import count

from tcc.ir.graph import Value
from tcc.ir.layout import Layout, axis_order, permuted, row_major
from tcc.passes.fuse.split import cut_behind
from tcc.passes.layout.assign import Placed, ProgramStep
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
        division = None if step.kernel is None or step.every else divides(step.kernel.expr)
        if division is None or step.kernel is None:
            steps.append(step)
            continue
        expr, number = division
        kernel, result = replace(step.kernel, expr=expr), step.kernel.results[0]
        names = (f"{result.name}.part{n}" for n in count())
        for piece in cut_behind(kernel, (number,), names):
            steps.append(ProgramStep(piece))
            new_values = [v for v in piece.results if v not in layouts]
            layouts |= {v: _layout_of_parts(v, layouts[result]) for v in new_values}
    return replace(placed, steps=tuple(steps), layouts=layouts)


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
