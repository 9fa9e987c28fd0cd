"""Rewrites graphs: functions that many passes use.

`rebuild` copies a graph node by node; a visitor may replace a node's results by other values.
`apply_rules` applies local rules until none matches.  Both enter bodies, keep the names of inputs
and outputs, constants and aliases, and infer types again where operands have changed types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.graph import (
    Graph,
    GraphBuilder,
    Node,
    Value,
    Values,
    bind_attrs,
    bodies,
    body_fields,
    types_of,
    uses,
)
from tcc.ir.index import Substitution
from tcc.ir.op import Array, Trait
from tcc.zipped import zip_equal

Inputs: TypeAlias = tuple[Value | None, ...]
# The values that replace a node's results; None keeps the node.
Replacement: TypeAlias = Sequence[Value] | None
Visit: TypeAlias = Callable[[GraphBuilder, Node, Inputs], Replacement]


def rebuild(graph: Graph, visit: Visit) -> Graph:
    """Returns a copy of `graph` in which `visit` may replace the results of each node.

    `visit(builder, node, inputs)` returns the values that replace the node's results, or None to
    keep the node. `node` is the old node with rebuilt bodies; `inputs` are its inputs in the new
    graph. Nodes that `visit` adds without a location get the location of `node`.

    Outputs of the graph keep their names. So a node is kept, whatever `visit` returns, if an output
    of the graph would be replaced by an input or by the replacement of another output.
    """
    return _Rebuild(visit).graph(graph, None, {})


def rewritten(graph: Graph, visit: Visit) -> Graph:
    """Rebuilds the graph and drops dead nodes; returns `graph` itself if no node was replaced."""
    sweep = _Rebuild(visit)
    new = sweep.graph(graph, None, {})
    return without_dead(new) if sweep.replaced else graph


def with_sizes(graph: Graph, sizes: Substitution) -> Graph:
    """Returns `graph` with size symbols replaced in the types of inputs and in attributes.

    Bodies are changed too, and all types are inferred again.
    """
    return _Rebuild(lambda *_: None, sizes).graph(graph, None, {})


class _Rebuild:
    """Rebuilds a graph and its bodies once; `replaced` lists the nodes that were replaced."""

    def __init__(self, visit: Visit, sizes: Substitution | None = None) -> None:
        self._visit, self._sizes = visit, sizes or {}
        self.replaced: list[Node] = []

    def graph(self, old: Graph, parent: GraphBuilder | None, outer: Mapping[Value, Value]) -> Graph:
        b = GraphBuilder(old.name, old.store, parent)
        new = dict(outer)
        new.update((v, b.input(v.name, bind_attrs(v.type, self._sizes))) for v in old.inputs)
        # Reserve the old names first, so that no new value gets one of them.
        names = {v: b.fresh(v.name) for node in old.nodes for v in node.outputs}
        new.update((v, b.constant_handle(h, v.type, v.name)) for v, h in old.constants.items())
        fixed = set(old.outputs) if parent is None else set()
        occupied = {new[v] for v in (*old.inputs, *(fixed & set(old.constants)))}
        for node in old.nodes:
            inputs, old_node = tuple(v and new[v] for v in node.inputs), node
            node = with_bodies(node, lambda g: self.graph(g, b, new))
            if self._sizes:
                node = replace(node, attrs=bind_attrs(node.attrs, self._sizes))
            b.loc = node.loc
            results = self._visit(b, node, inputs)
            if results is not None and _fits(node, results, fixed, occupied):
                self.replaced.append(node)
            else:
                output_names = [names[v] for v in node.outputs]
                results = _keep(b, node, inputs, output_names, inferred=node is old_node)
            new.update(zip_equal(node.outputs, results))
            occupied.update(new[v] for v in node.outputs if v in fixed)
        aliases = tuple((new[a], new[i]) for a, i in old.aliases)
        graph = b.finish((new[v] for v in old.outputs), aliases)
        return graph if parent is not None else _renamed(graph, [v.name for v in old.outputs])


def _fits(node: Node, results: Sequence[Value], fixed: set[Value], occupied: set[Value]) -> bool:
    """True if `results` may replace the node's results.

    A result in `fixed` is a graph output, and gives its name to its replacement. So the
    replacements of results in `fixed` must be distinct. None of them may be in `occupied`: the
    values in it keep their own names. Raises InternalError if a replacement has another element
    type or rank.
    """
    types = [(v.dtype, v.rank) for v in results]
    if types != [(v.dtype, v.rank) for v in node.outputs]:
        raise InternalError(
            f"a rewrite of {node.op.name} changes its results",
            where=node.loc,
            why=f"{list(node.outputs)} became {list(results)}",
        )
    ends = [r for r, v in zip_equal(results, node.outputs) if v in fixed]
    return len(set(ends) - occupied) == len(ends)


def _keep(
    b: GraphBuilder, node: Node, inputs: Inputs, names: Sequence[str], *, inferred: bool
) -> Values:
    """Appends a copy of the node with the inputs `inputs` and returns its results.

    `names` are the names of the results. With `inferred`, the types of the node's results fit its
    attributes; then they are inferred again only if the types of the inputs change.
    """
    types = tuple(v.type for v in node.outputs)
    if not inferred or types_of(inputs) != types_of(node.inputs):
        try:
            types = node.op.infer(types_of(inputs), node.attrs)
        except ValueError as error:
            raise InternalError(
                f"{node.op.name} no longer takes its operands", where=node.loc, why=error
            ) from error
    outputs = tuple(Value(name, t) for name, t in zip_equal(names, types))
    b.append(Node(node.op, node.attrs, inputs, outputs, node.loc))
    return outputs


def inlined(b: GraphBuilder, body: Graph) -> Values:
    """Adds copies of the nodes of `body`, which has no inputs, to the enclosing graph's builder.

    Returns the new values of the body's outputs. Outputs that nodes of the body compute have
    distinct new values; an output may also be a constant or a value of the enclosing graph.
    """
    new = {v: b.constant_handle(h, v.type, v.name) for v, h in body.constants.items()}
    for node in substituted(body, new).nodes:
        b.append(node)
    return tuple(new.get(value, value) for value in body.outputs)


def map_bodies(attrs: Any, change: Callable[[Graph], Graph]) -> Any:
    """Returns `attrs` with `change(body)` in place of every body in its fields."""
    changed = {name: change(getattr(attrs, name)) for name in body_fields(attrs)}
    return replace(attrs, **changed) if changed else attrs


def with_bodies(node: Node, change: Callable[[Graph], Graph]) -> Node:
    """Returns `node` with every body replaced; `node` itself if no body changes."""
    if not bodies(node):
        return node
    new = replace(node, attrs=map_bodies(node.attrs, change))
    unchanged = all(a is b for a, b in zip_equal(bodies(new), bodies(node)))
    return node if unchanged else new


def _renamed(graph: Graph, names: Sequence[str]) -> Graph:
    """Returns `graph` with its outputs renamed to `names`."""
    correct = {v for v, name in zip_equal(graph.outputs, names) if v.name == name}
    pairs = zip_equal(graph.outputs, names)
    new = {v: Value(name, v.type) for v, name in pairs if v not in correct}
    return substituted(graph, new) if new else graph


def substituted(graph: Graph, new: Mapping[Value, Value]) -> Graph:
    """Returns `graph` with each key of `new` replaced by its value, also in bodies."""

    def put(value: Value) -> Value:
        return new.get(value, value)

    def moved(node: Node) -> Node:
        rebuilt = with_bodies(node, lambda g: substituted(g, new))
        if new.keys().isdisjoint((*node.inputs, *node.outputs)):
            return rebuilt
        inputs = tuple(v and put(v) for v in node.inputs)
        return replace(rebuilt, inputs=inputs, outputs=tuple(map(put, node.outputs)))

    nodes = tuple(map(moved, graph.nodes))
    return replace(
        graph,
        inputs=tuple(map(put, graph.inputs)),
        nodes=nodes,
        outputs=tuple(map(put, graph.outputs)),
        constants={put(v): h for v, h in graph.constants.items()},
        aliases=tuple((put(a), put(b)) for a, b in graph.aliases),
    )


def without_dead(graph: Graph) -> Graph:
    """Returns `graph` without dead nodes and unread constants, also in bodies.

        %a = exp(%x) ; %b = relu(%x) ; return %b        %b = relu(%x) ; return %b

    A node is dead if nothing reads its results.  Nodes without results and opaque nodes (control
    flow, ops that bind sizes) stay.  Returns `graph` itself if nothing is dead.
    """
    live = set(graph.outputs)
    live_nodes: list[Node] = []
    for node in reversed(graph.nodes):
        stays = not node.outputs or Trait.OPAQUE in node.op.traits
        if stays or not live.isdisjoint(node.outputs):
            pruned = with_bodies(node, without_dead)
            live_nodes.append(pruned)
            live.update(uses(pruned))
    constants = {v: h for v, h in graph.constants.items() if v in live}
    nodes = tuple(reversed(live_nodes))
    if nodes == graph.nodes and constants == graph.constants:
        return graph
    return replace(graph, nodes=nodes, constants=constants)


# ---- rules -------------------------------------------------------------------------------------


@frozen
class RewriteSite:
    """A place where a rule is tried: a node and its inputs in the new graph."""

    builder: GraphBuilder
    node: Node
    inputs: Inputs

    def producer(self, number: int) -> Node | None:
        """Returns the node that computes input `number`; None for inputs of the graph and
        constants."""
        return self.builder.producer(self.inputs[number])

    def array(self, number: int) -> Array | None:
        """Returns the array of input `number` if it is constant, else None."""
        return self.builder.array(self.inputs[number])


@frozen
class Rule:
    """A local rewrite.

    `rewrite(site)` adds nodes to the site's builder and returns the value, or the values, that
    replace the node's results; None where the rule does not match.  It is called at nodes of the
    ops that `ops` names, separated by spaces; at all nodes if `ops` is empty.
    """

    name: str
    rewrite: Callable[[RewriteSite], Value | Replacement]
    ops: str = ""


def apply_rules(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """Applies at every node the first rule that matches, until none matches.

    Dead nodes are dropped after each sweep in which a rule fired; if none fires, the result is
    `graph` itself.  Raises `InternalError` with the name of the last rule that fired where 64
    sweeps do not suffice.
    """
    fired: dict[Node, str] = {}

    def visit(builder: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        site = RewriteSite(builder, node, inputs)
        for rule in rules:
            if rule.ops and node.op.name not in rule.ops.split():
                continue
            replacement = rule.rewrite(site)
            if replacement is not None:
                fired[node] = rule.name
                return [replacement] if isinstance(replacement, Value) else replacement
        return None

    last = ""
    for _ in range(64):
        sweep = _Rebuild(visit)
        new = sweep.graph(graph, None, {})
        if not sweep.replaced:
            return graph
        graph = without_dead(new)
        last = fired[sweep.replaced[-1]]
        fired.clear()
    raise InternalError(f"rule {last} still fires after 64 sweeps over {graph.name}")
