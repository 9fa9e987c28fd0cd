"""Finds concatenations that need no kernel: their operands are stored directly in the result.

    %a = conv(%x) ; %b = conv(%y)            kernels write %a and %b into parts of %c,
    %c = concat(%a, %b)              ->      and the concat needs no kernel

An operand can be stored in the result of one concatenation only.  It is copied into the result if
its kernel cannot write it there: if it belongs to the caller, is constant, is read by a call, or is
already stored in the result of another concatenation.
"""

from collections.abc import Collection
from math import prod

from tcc.frozen import entity
from tcc.ir.expr.scalar import Read
from tcc.ir.graph import Graph, Node, Value, symbols_in, uses
from tcc.ir.index import Index, const
from tcc.passes.fuse.compose import node_expr
from tcc.schedule.nest import typical


@entity
class ConcatPart:
    """An operand of a concatenation, which begins at index `start` of the concatenated axis.

    `placed` is True if the operand's kernel writes it into the result, and False if it must be
    copied into the result.
    """

    value: Value
    start: Index
    placed: bool


@entity
class Join:
    """A concatenation without a kernel.

    `result` is the concatenated value; `parts` are the operands that are not empty.
    """

    result: Value
    axis: int
    parts: tuple[ConcatPart, ...]


def find_joins(graph: Graph, visible: Collection[Value], launch: float) -> dict[Node, Join]:
    """Returns the concatenations of `graph` that save traffic by having no kernel.

    `visible` are values whose storage is fixed: results of the graph, and values that bodies, calls
    and states read or write.  `launch` is the number of bytes whose copy takes as long as a launch.
    """
    return _Joins(graph, visible, launch).run()


class _Joins:
    def __init__(self, graph: Graph, visible: Collection[Value], launch: float) -> None:
        self.graph, self.visible, self.launch = graph, visible, launch
        self.users = graph.users()
        self.producers = graph.producers()
        self.sizes = symbols_in(graph.inputs)
        self.states = {v for pair in graph.aliases for v in pair}
        self.placed: set[Value] = set()
        self.joins: dict[Node, Join] = {}

    def run(self) -> dict[Node, Join]:
        for node in self.graph.nodes:
            if node.op.name == "concat" and (join := self._join(node)):
                self.joins[node] = join
                self.placed.update(p.value for p in join.parts if p.placed)
        return self.joins

    def _join(self, node: Node) -> Join | None:
        (result,) = node.outputs
        if result in self.states or not symbols_in([result]) <= self.sizes:
            return None
        axis, start = node.attrs.axis, const(0)
        parts: list[ConcatPart] = []
        placed_values = set(self.placed)
        for value in node.inputs:
            assert value is not None
            if value.type.count != 0:
                placed = value not in placed_values and self._writable(value)
                parts.append(ConcatPart(value, start, placed))
                placed_values.add(value)
            start = start + value.shape[axis]
        join = Join(result, axis, tuple(parts))
        return join if self._saves(join) else None

    def _writable(self, value: Value) -> bool:
        """Returns True if a kernel of this graph writes `value` and only kernels read it."""
        producer = self.producers.get(value)
        return (
            value not in self.visible and producer is not None and node_expr(producer) is not None
        )

    def _saves(self, join: Join) -> bool:
        """Returns True if the saved traffic takes at least as long as the additional launches.

        Only operands that some kernel stores in any case save traffic.
        """
        stored_parts = [p for p in join.parts if p.placed and self._stored_anyway(p.value)]
        more = len(join.parts) - len(stored_parts) - 1
        return (
            bool(stored_parts)
            and 2 * sum(_bytes(p.value) for p in stored_parts) >= more * self.launch
        )

    def _stored_anyway(self, value: Value) -> bool:
        """Returns True if some kernel stores the value even without the concatenation.

        A kernel stores the value if the kernel has a reduction, or if several nodes read the value.
        Index maps are not stored, because each reader repeats them.
        """
        pending = [value]
        while pending:
            value = pending.pop()
            node = self.producers.get(value)
            expr = None if node is None or len(node.outputs) > 1 else node_expr(node)
            if node is None or expr is None:
                continue
            if node in self.joins or any(s.monoid is not None for s in expr.stages):
                return True
            if len(self.users[value]) == 1:
                pending += [v for v in dict.fromkeys(uses(node)) if len(self.users[v]) == 1]
            elif not all(isinstance(b, Read) for s in expr.stages for b in s.body):
                return True
        return False


def _bytes(value: Value) -> int:
    return value.dtype.bytes * prod(map(typical, value.shape))
