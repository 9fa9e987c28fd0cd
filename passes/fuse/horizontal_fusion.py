"""Merges kernels of a loop's body that are computed at the same points, to save launches.

    c' = f * c + i * g        kernel, stores c'
    h' = o * tanh(c')         kernel, stores h'      ->      one kernel that stores c' and h'

A body runs many times, and all threads wait at each launch.  The waits are a large part of a short
iteration.  Outside of loops, only `partition` decides which nodes are one kernel.
"""

from collections.abc import Collection, Sequence
from itertools import chain

from tcc.ir.expr import Expr
from tcc.ir.graph import Graph, Value, Values, captures
from tcc.passes.choose.content import site
from tcc.passes.fuse.compose import compose
from tcc.passes.fuse.node_kinds import NodeKind, classify
from tcc.passes.fuse.partition import Group
from tcc.schedule.alternatives import NO_TIME
from tcc.schedule.backend import KernelModel


def fuse_horizontally(
    graph: Graph,
    groups: Sequence[Group],
    constants: Collection[Value],
    model: KernelModel,
) -> tuple[Group, ...]:
    """Returns the groups of a loop's body, with groups merged into their readers where possible.

    A group merges into its reader only if no other group reads its results, and if each tile of the
    merged kernel can compute all values that the tile needs.  Results of the body stay results.
    `constants` are the constants of the body and of enclosing graphs.
    """
    return _Fusion(graph, constants, model).run(groups)


class _Fusion:
    def __init__(self, graph: Graph, constants: Collection[Value], model: KernelModel) -> None:
        self.graph, self.constants, self.model = graph, constants, model
        self.users = graph.users()
        self.position = {node: n for n, node in enumerate(graph.nodes)}

    def run(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        captured = set(chain.from_iterable(map(captures, self.graph.nodes)))
        merged: list[Group] = []
        for group in reversed(groups):
            reader = None
            if captured.isdisjoint(self.results(group)):
                reader = self.only_reader(group, merged)
            if reader is not None and group.join is None and reader.join is None:
                united = self.united(group, reader)
                if self.is_one_kernel(united, (group, reader)):
                    merged[merged.index(reader)] = united
                    continue
            merged.append(group)
        return tuple(reversed(merged))

    def results(self, group: Group) -> Values:
        return group.results(self.graph, self.users)

    def only_reader(self, group: Group, groups: Sequence[Group]) -> Group | None:
        """Returns the group that reads results of `group`; None if there are several or none."""
        reading = {n for v in self.results(group) for n in self.users.get(v, ())}
        readers = [g for g in groups if reading & set(g.members)]
        return readers[0] if len(readers) == 1 else None

    def united(self, group: Group, reader: Group) -> Group:
        members, anchors = (
            sorted({*first, *second}, key=self.position.__getitem__)
            for first, second in ((group.members, reader.members), (group.anchors, reader.anchors))
        )
        outputs = [v for v in self.results(group) if v in self.graph.outputs]
        return Group(reader.sink, members, anchors, None, [*reader.extra, *outputs])

    def is_one_kernel(self, group: Group, parts: Sequence[Group]) -> bool:
        """Returns True if the group can be one kernel that is predicted to take no longer than the
        kernels of its `parts`.

        All of its results must have the same shape, and no tile may need values of another tile.
        """
        if any(classify(m) is NodeKind.OPAQUE for m in group.members):
            return False
        if len({v.shape for v in self.results(group)}) > 1:
            return False
        if not self.model.legal(*self.composed(group)):
            return False
        kernels = [self.composed(g) for g in (group, *parts)]
        merged_seconds, *part_seconds = (self.model.alone(*kernel) for kernel in kernels)
        if merged_seconds is None:
            return True
        apart_seconds = sum((seconds or NO_TIME for seconds in part_seconds), NO_TIME)
        return self.model.ledger.either(
            lambda: site("merge-groups", *kernels),
            ("merged", [merged_seconds]),
            ("apart", lambda: [apart_seconds]),
            place=group.sink.loc,
        )

    def composed(self, group: Group) -> tuple[Expr, tuple[bool, ...]]:
        """Returns the expression of a group, and for each of its operands True if it is a
        constant."""
        expr, values = compose(group.members, self.results(group), self.model.limits)
        return expr, tuple(v in self.constants for v in values)
