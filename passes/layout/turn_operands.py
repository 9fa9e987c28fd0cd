"""Copies operands of contractions into another storage order before they are multiplied.

    y[i, j] = sum(k) a[i, k] * b[k, j]
      ->  kernel { t[k, j] = b[k, j] }       t stored as [j, k]: terms of a sum are neighbours
          kernel { y[i, j] = sum(k) a[i, k] * t[k, j] }

Some matrix units only read neighbouring terms, so lanes would turn every block of b that a tile
reads.  Operands are copied if the copy and the kernel together take less time.  Constants are
stored in the right order anyway.  Kernels that read the same operand share the copy.

Requires layouts, and the types in which values are stored.  Establishes the copies' layouts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tcc.ir.graph import Graph, Value
from tcc.ir.index import const, free_vars, linear_in
from tcc.ir.layout import Layout, axis_order, permuted
from tcc.passes.choose.content import site
from tcc.passes.layout.assign import Kernel, Placed, ProgramStep, copy_of, operand_reads
from tcc.passes.tile.plan import KernelChooser, kernel_key
from tcc.schedule.alternatives import NO_TIME, Seconds
from tcc.schedule.margins import MARGINS


def with_turned_operands(
    placed: Placed, planner: KernelChooser, outer: Mapping[Value, Graph] | None
) -> Placed:
    """Returns `placed` with copies of operands, where these save time.

    `outer` maps the constants of the graphs around a loop's body to those graphs.
    """
    layouts, constants = dict(placed.layouts), placed.visible(outer)
    copies: dict[tuple[Value, int], Value] = {}
    steps: list[ProgramStep] = []
    for step in placed.steps:
        kernel = step.kernel
        if kernel is None or step.every or step.condition:
            steps.append(step)
            continue
        for value, axis in dict.fromkeys(_term_axes(kernel)):
            order = axis_order(layouts[value]) if value in layouts else None
            if value in constants or order is None or order[-1] == axis:
                continue
            target = copies.get((value, axis)) or Value(f"{value.name}.turned{axis}", value.type)
            new_order = (*(n for n in order if n != axis), axis)
            new_layouts = {**layouts, target: permuted(value.shape, new_order)}
            copy = copy_of(value, target, f"{kernel.loc} (turned)")
            reader = replace(
                kernel, operands=tuple(target if v is value else v for v in kernel.operands)
            )
            new_copies = () if (value, axis) in copies else (copy,)
            if _keeps(kernel, (*new_copies, reader), planner, new_layouts, constants):
                continue
            steps += map(ProgramStep, new_copies)
            copies[value, axis], layouts, kernel = target, new_layouts, reader
        steps.append(replace(step, kernel=kernel))
    return replace(placed, steps=tuple(steps), layouts=layouts)


def _term_axes(kernel: Kernel) -> Iterator[tuple[Value, int]]:
    """Yields (operand, axis) for the operands of a kernel's sums of products: the axis along which
    the last summed loop moves."""
    for stage, node, value in operand_reads(kernel):
        if stage.monoid is None or len(stage.body) != 1 or node.indirect:
            continue
        last = stage.reduce[-1]
        axes = [n for n, index in enumerate(node.indices) if last in free_vars(index)]
        if len(axes) == 1 and len(node.indices) > 1:
            linear = linear_in(node.indices[axes[0]], last)
            if linear is not None and linear[0] is const(1):
                yield value, axes[0]


def _keeps(
    kernel: Kernel,
    pieces: tuple[Kernel, ...],
    planner: KernelChooser,
    layouts: Mapping[Value, Layout],
    constants: Mapping[Value, Graph],
) -> bool:
    """Returns True if `kernel` stays, and False if the kernels `pieces` replace it."""

    def seconds(*kernels: Kernel) -> list[Seconds]:
        return [sum((planner.seconds(k, layouts, constants) for k in kernels), NO_TIME)]

    return planner.ledger.either(
        lambda: site("turn", *(kernel_key(k, layouts, constants) for k in (kernel, *pieces))),
        ("as-is", seconds(kernel)),
        ("turned", lambda: seconds(*pieces)),
        MARGINS["storage order"],
        place=kernel.loc,
    )
