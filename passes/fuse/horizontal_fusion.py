"""Unites kernels of a loop's body whose elements belong together: a trip then takes few launches.

    c' = f * c + i * g        kernel, stores c'
    h' = o * tanh(c')         kernel, stores h'      ->      one kernel that stores c' and h'

A body runs many times, and a launch that all threads wait for is a large part of a short trip.
Outside loops `partition` decides alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain

from tcc.ir.expr import Expr
from tcc.ir.graph import Graph, Node, Value, captures
from tcc.passes.fuse.compose import compose
from tcc.passes.fuse.partition import Group, NodeKind, classify
from tcc.schedule.backend import KernelModel


def fuse_horizontally(
    graph: Graph,
    groups: Sequence[Group],
    constants: Collection[Value],
    model: KernelModel,
) -> tuple[Group, ...]:
    """The groups of a loop's body, united where a unit has in hand what the other one needs.

    A group joins the only one that reads its results; those of the body stay results.  `constants`
    are those of the body and of the graphs around it.
    """
    users = graph.users()
    captured = set(chain.from_iterable(map(captures, graph.nodes)))
    position = {node: n for n, node in enumerate(graph.nodes)}
    found: list[Group] = []
    for group in reversed(groups):
        reader = None
        if captured.isdisjoint(group.results(graph, users)):
            reader = _only_reader(group, graph, users, found)
        if reader is not None and group.join is None and reader.join is None:
            united = _united(group, reader, graph, users, position)
            if _one_kernel(united, (group, reader), graph, users, constants, model):
                found[found.index(reader)] = united
                continue
        found.append(group)
    return tuple(reversed(found))


def _only_reader(
    group: Group, graph: Graph, users: dict[Value, list[Node]], groups: Sequence[Group]
) -> Group | None:
    """The group that alone reads the results of `group`."""
    reading = {n for v in group.results(graph, users) for n in users.get(v, ())}
    readers = [g for g in groups if reading & set(g.members)]
    return readers[0] if len(readers) == 1 else None


def _united(
    group: Group,
    reader: Group,
    graph: Graph,
    users: dict[Value, list[Node]],
    position: dict[Node, int],
) -> Group:
    members = sorted({*group.members, *reader.members}, key=position.__getitem__)
    anchors = sorted({*group.anchors, *reader.anchors}, key=position.__getitem__)
    own = [v for v in group.results(graph, users) if v in graph.outputs]
    return Group(reader.sink, members, anchors, None, [*reader.extra, *own])


def _one_kernel(
    group: Group,
    parts: Sequence[Group],
    graph: Graph,
    users: dict[Value, list[Node]],
    constants: Collection[Value],
    model: KernelModel,
) -> bool:
    """Whether all results of the group have one shape, a unit of it needs nothing that another
    makes, and it is predicted to take no longer than its `parts`."""
    if any(classify(m).kind is NodeKind.OPAQUE for m in group.members):
        return False
    results = group.results(graph, users)
    if len({v.type.shape for v in results}) > 1:
        return False
    if not model.legal(*_composed(group, graph, users, constants, model)):
        return False
    whole, *apart = (
        model.alone(*_composed(g, graph, users, constants, model)) for g in (group, *parts)
    )
    return whole is None or whole <= sum(seconds or 0.0 for seconds in apart)


def _composed(
    group: Group,
    graph: Graph,
    users: dict[Value, list[Node]],
    constants: Collection[Value],
    model: KernelModel,
) -> tuple[Expr, tuple[bool, ...]]:
    """The expression of a group, and which of its operands are constants."""
    expr, values = compose(group.members, group.results(graph, users), model.limits)
    return expr, tuple(v in constants for v in values)
