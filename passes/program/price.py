"""Prices the kernels of a graph, placed and scheduled as they would be in a model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from tcc.ir.graph import Graph, GraphBuilder, Handle, Node, Value
from tcc.ir.types import TensorType
from tcc.passes.choose.content import site
from tcc.passes.layout.assign import Kernel
from tcc.passes.place import LoweringContext, place_graph
from tcc.passes.tile.plan import KernelChooser, KernelKey, kernel_key
from tcc.schedule.alternatives import NO_TIME, Alternative, Seconds
from tcc.schedule.margins import NO_MARGIN, Margin
from tcc.schedule.open_sizes import Times


def priced_kernels(
    graph: Graph, planner: KernelChooser, ends: Collection[Node] = ()
) -> Iterator[tuple[Kernel, Seconds]]:
    """Yields the kernels of a graph, each with its price in seconds.

    The nodes `ends` stay kernels of their own.
    """
    for kernel, key in _keys(graph, planner, ends):
        yield kernel, planner.price_of(key)


def timed_kernels(
    graph: Graph, planner: KernelChooser, ends: Collection[Node] = ()
) -> Iterator[tuple[Kernel, Times]]:
    """Yields the kernels of a graph, each with its prices: one for each set of symbols' values.

    The nodes `ends` stay kernels of their own.
    """
    for kernel, key in _keys(graph, planner, ends):
        yield kernel, planner.times_of(key)


def _keys(
    graph: Graph, planner: KernelChooser, ends: Collection[Node]
) -> Iterator[tuple[Kernel, KernelKey]]:
    with planner.ledger.trial():
        placed = place_graph(graph, LoweringContext(planner, ends=ends, priced=True))
    constants = dict.fromkeys(graph.constants)
    for kernel in placed.kernels:
        yield kernel, kernel_key(kernel, placed.layouts, constants)


def cheapest(
    graphs: Sequence[Graph],
    planner: KernelChooser,
    *,
    apart: bool = False,
    margin: Margin = NO_MARGIN,
) -> int:
    """Returns the index of the graph whose kernels take the least time together.

    Another graph than the first must save `margin`.  If `apart`, each node counts as a kernel of
    its own, which takes less time to price.
    """
    priced = (priced_kernels(g, planner, g.nodes if apart else ()) for g in graphs)
    rule, *alternatives = (
        Alternative(n, sum((s for _, s in kernels), NO_TIME), name=f"form-{n}")
        for n, kernels in enumerate(priced)
    )
    return planner.ledger.decide(
        lambda: site("graph", *map(_content, graphs)), rule, alternatives, margin
    ).replacement


def _content(graph: Graph) -> tuple[Any, ...]:
    """Returns the content of a graph without names: its input types, and ops, attributes and
    types.
    """
    inputs = tuple(v.type for v in graph.inputs)
    nodes = ((n.op.name, n.attrs, tuple(v.type for v in n.outputs)) for n in graph.nodes)
    return inputs, tuple(nodes)


def unread(b: GraphBuilder, type_: TensorType, hint: str = "constant") -> Value:
    """Returns a constant that has a type and no data, for graphs that are only priced.

    `hint` is the beginning of its name.  It must differ from names in the graph that `b` rebuilds.
    """
    name = b.fresh(hint)
    return b.constant_handle(Handle(name), type_, name)
