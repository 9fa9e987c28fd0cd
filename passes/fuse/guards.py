"""Removes the guards of fast algorithms from a graph; direct sums become kernels that rarely run.

    %t = expression(%m)                              %y = expression(%m)
    %y = guarded(%t, %f, %x, %w) {direct}     ->     %z = relu(%y)
    %z = relu(%y)                                    where %f: %y = direct(%x, %w) ; %z = relu(%y)

A guard is a node that selects the result of a fast algorithm, or direct sums if the flag %f says
that the fast algorithm failed.  The graph that is partitioned has no guards, so nodes after a fast
algorithm can share its kernel.  If the flag is set at run time, kernels with direct sums compute
the group again, and overwrite its results.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tcc.frozen import entity
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.graph import Graph, Node, Value, uses
from tcc.ir.types import TensorType
from tcc.ops import OPS


@entity
class Guards:
    """A graph whose guards are removed.

    `flags` maps each guarded value to its flag, a bool that is true if the fast algorithm failed.
    The flags are outputs of `graph` too.  `direct` maps each guarded value to the node that
    computes it by direct sums.
    """

    graph: Graph
    flags: Mapping[Value, Value]
    direct: Mapping[Value, Node]

    def repeated(
        self, value: Value, results: Sequence[Value], stored_values: Collection[Value]
    ) -> Graph:
        """Returns a graph that computes the guarded `value` by direct sums.

        Its outputs are the values of `results` that depend on `value`.  It may read
        `stored_values`.
        """
        nodes = [
            self.direct.get(node.result, node) if node.outputs else node
            for node in self.graph.nodes
        ]
        following = {value}
        for node in nodes:
            if not following.isdisjoint(uses(node)):
                following.update(node.outputs)
        outputs = tuple(v for v in results if v in following)
        needed, repeated = set(outputs), list[Node]()
        for node in reversed(nodes):
            if not needed.isdisjoint(node.outputs):
                repeated.append(node)
                needed.update(v for v in uses(node) if v not in stored_values or v in outputs)
        operands = {v for node in repeated for v in uses(node)}
        constants = {v: h for v, h in self.graph.constants.items() if v in operands}
        name, store = self.graph.name, self.graph.store
        return Graph(name, (), outputs, tuple(reversed(repeated)), constants, store)


def split_guards(graph: Graph) -> Guards:
    """Returns the graph without its guards, together with the flags and direct sums of the
    guards."""
    guarded = [node for node in graph.nodes if node.op.name == "guarded"]
    if not guarded:
        return Guards(graph, {}, {})
    row, users, kept_values = OPS["expression"], graph.users(), graph.values_read_outside()
    single_results = (node.result for node in graph.nodes if len(node.outputs) == 1)
    private = {v for v in single_results if v not in kept_values and len(users.get(v, ())) == 1}
    fast = {node.inputs[0]: node.outputs for node in guarded if node.inputs[0] in private}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op is not guarded[0].op:
            first = node.result if node.outputs else None
            nodes.append(replace(node, outputs=fast[first]) if first in fast else node)
        elif node.inputs[0] not in fast:
            identity = row.attrs(_identity(node.result.type))
            nodes.append(Node(row, identity, node.inputs[:1], node.outputs, node.loc))
    flags = {node.result: flag for node in guarded if (flag := node.inputs[1])}
    direct = {
        node.result: Node(row, node.attrs, node.inputs[2:], node.outputs, node.loc)
        for node in guarded
    }
    outputs = (*graph.outputs, *dict.fromkeys(flags.values()))
    return Guards(replace(graph, nodes=tuple(nodes), outputs=outputs), flags, direct)


def _identity(form: TensorType) -> Expr:
    b = ExprBuilder(form)
    at = b.point(form)
    return b.finish(at, b.read(0, *at))
