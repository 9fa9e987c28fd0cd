"""Which concatenations need no kernel: their operands are stored where they belong in the result.

    %a = conv(%x) ; %b = conv(%y)            kernels write %a and %b into parts of %c,
    %c = concat(%a, %b)              ->      and the concat itself is nothing

An operand has a place in one result only.  One that cannot be written there (it belongs to the
caller, is constant, is seen by a call, or has its place elsewhere) is copied.
"""

from collections.abc import Collection
from math import prod

from tcc.ir.expr.scalar import Read
from tcc.ir.graph import Graph, Node, Value
from tcc.ir.index import Index, as_int, const, free_vars
from tcc.ir.types import element_count
from tcc.passes.fuse.compose import node_expr
from tcc.record import entity
from tcc.schedule.nest import typical


@entity
class ConcatPart:
    """An operand of a joined value: its elements begin at `start` along the axis.

    `placed` is False where it is stored elsewhere too and has to be copied.
    """

    value: Value
    start: Index
    placed: bool


@entity
class Join:
    """A concatenation without a kernel; `parts` have elements."""

    whole: Value
    axis: int
    parts: tuple[ConcatPart, ...]


def find_joins(graph: Graph, seen: Collection[Value], launch: float) -> dict[Node, Join]:
    """The concatenations of `graph` that save traffic by having no kernel.

    `seen` are values whose storage others look at: results of the graph, what bodies, calls and
    states read and write; copying `launch` bytes takes as long as one more launch.
    """
    return _Joins(graph, seen, launch).run()


class _Joins:
    def __init__(self, graph: Graph, seen: Collection[Value], launch: float) -> None:
        self.graph, self.seen, self.launch = graph, seen, launch
        self.users = graph.users()
        self.producers = graph.producers()
        self.sizes = set(free_vars(*(d for x in graph.inputs for d in x.type.shape)))
        self.states = {v for pair in graph.aliases for v in pair}
        self.placed: set[Value] = set()
        self.found: dict[Node, Join] = {}

    def run(self) -> dict[Node, Join]:
        for node in self.graph.nodes:
            if node.op.name == "concat":
                join = self._join(node)
                if join is not None:
                    self.found[node] = join
                    self.placed.update(p.value for p in join.parts if p.placed)
        return self.found

    def _join(self, node: Node) -> Join | None:
        (whole,) = node.outputs
        if whole in self.states or not self.sizes.issuperset(free_vars(*whole.type.shape)):
            return None
        axis, start = node.attrs.axis, const(0)
        parts: list[ConcatPart] = []
        taken = set(self.placed)
        for value in node.inputs:
            assert value is not None
            if as_int(element_count(value.type.shape)) != 0:
                placed = value not in taken and self._writable(value)
                parts.append(ConcatPart(value, start, placed))
                taken.add(value)
            start = start + value.type.shape[axis]
        join = Join(whole, axis, tuple(parts))
        return join if self._saves(join) else None

    def _writable(self, value: Value) -> bool:
        """Whether a kernel of this graph writes `value` and only kernels read it."""
        producer = self.producers.get(value)
        return value not in self.seen and producer is not None and node_expr(producer) is not None

    def _saves(self, join: Join) -> bool:
        """Compares the traffic of the values that are stored in any case with the launches of the
        kernels that would otherwise be one with the concatenation's."""
        own = [p for p in join.parts if p.placed and self._stored_anyway(p.value)]
        more = len(join.parts) - len(own) - 1
        return bool(own) and 2 * sum(_bytes(p.value) for p in own) >= more * self.launch

    def _stored_anyway(self, value: Value) -> bool:
        """Whether a kernel of its own computes the value: it holds a reduction, or others read it.
        Index maps are repeated by each reader, so they have none."""
        pending = [value]
        while pending:
            value = pending.pop()
            node = self.producers.get(value)
            expr = None if node is None or len(node.outputs) > 1 else node_expr(node)
            if node is None or expr is None:
                continue
            if node in self.found or any(s.monoid is not None for s in expr.stages):
                return True
            if len(self.users[value]) == 1:
                read = dict.fromkeys(v for v in node.inputs if v is not None)
                pending += [v for v in read if len(self.users[v]) == 1]
            elif not all(isinstance(b, Read) for s in expr.stages for b in s.body):
                return True
        return False


def _bytes(value: Value) -> int:
    return value.type.dtype.bytes * prod(map(typical, value.type.shape))
