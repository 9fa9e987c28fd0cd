"""Prints and verifies each form of a model that a step takes or returns."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from tcc.ir.expr.verify import verify_expr
from tcc.ir.graph import Graph
from tcc.ir.graph.text import expr_text, graph_text
from tcc.ir.graph.verify import verify_graph
from tcc.ir.program.text import program_text
from tcc.ir.program.verify import verify_program
from tcc.ir.tile.text import kernel_text
from tcc.passes.layout.assign import Kernel, Placed
from tcc.passes.place import Grouped
from tcc.passes.program.lowered import Lowered
from tcc.zipped import zip_equal

Form: TypeAlias = Graph | Grouped | Placed | Lowered


def verify(form: Form) -> None:
    """Raises InternalError if a condition that the form must meet does not hold."""
    match form:
        case Graph():
            verify_graph(form)
        case Grouped():
            verify_graph(form.graph)
        case Placed():
            for step in form.steps:
                if step.kernel is not None:
                    verify_expr(step.kernel.expr, step.kernel.expr.params)
        case Lowered():
            for kernel in form.kernels:
                form.planner.verify(kernel)
            # The verifier needs a planned arena. Kernels have no names yet: locations stand for
            # them.
            if form.program.arena >= 0:
                verify_program(replace(form.program, kernels=tuple(form.table.locs)))


def text(form: Form) -> str:
    """Returns the form as text for people to read."""
    match form:
        case Graph():
            return graph_text(form)
        case Grouped():
            return "\n".join(_groups(form)) + "\n"
        case Placed():
            return "\n".join(expression_texts(form))
        case Lowered():
            return "\n".join((program_text(form.program), *tile_texts(form)))


def expression_texts(form: Placed) -> Iterator[str]:
    """Yields for each kernel a text with the layouts of its values and its expression."""
    for step in form.steps:
        if step.kernel is not None:
            yield "\n".join((f"// {step.kernel.loc}", *_layouts(form, step.kernel)))


def _layouts(form: Placed, kernel: Kernel) -> Iterator[str]:
    for value in (*kernel.operands, *kernel.results):
        if value in form.layouts:
            where = form.layouts[value]
            sizes, at = (", ".join(i.key for i in part) for part in (where.sizes, where.indices))
            yield f"// {value!r} in [{sizes}] at [{at}]"
    yield expr_text(kernel.expr)


def tile_texts(form: Lowered) -> Iterator[str]:
    """Yields for each kernel a text with its location, its schedule and its tile program."""
    rows = zip_equal(form.table.locs, form.table.bounds, form.kernels)
    for loc, bound, kernel in rows:
        yield f"// {loc}\n// {bound.schedule}\n{kernel_text(kernel)}"


def schedule_texts(form: Lowered) -> Iterator[str]:
    """Yields a text for each kernel.

    It has the kernel's location, its schedule, what limits its speed, and the rule that set each
    field of the schedule.
    """
    for loc, bound in zip_equal(form.table.locs, form.table.bounds):
        reasons = form.planner.explained(bound, form.weights.size)
        yield "\n".join(f"// {line}" for line in (loc, bound.schedule, *reasons))


def _groups(form: Grouped) -> Iterator[str]:
    for number, group in enumerate(form.groups):
        names = ", ".join(
            " ".join([node.op.name, *map(repr, node.outputs[:1])]) for node in group.members
        )
        yield f"{number}: {names}"
