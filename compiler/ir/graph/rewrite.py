"""Rebuilding graphs: what passes share.

`rebuild` copies a graph node by node and lets a visitor put other values in place of a node's
results.  `apply_rules` does so with local rules until none matches.  Both go into bodies, keep
the names of inputs and outputs, constants and aliases, and infer the types of nodes whose operands
have others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from tcc.errors import InternalError
from tcc.ir.graph import (
    Graph,
    GraphBuilder,
    Node,
    Value,
    Values,
    bind_attrs,
    bodies,
    body_fields,
    captures,
)
from tcc.ir.index import Substitution
from tcc.ir.op import Array, Trait
from tcc.record import record

Inputs: TypeAlias = tuple[Value | None, ...]
# What takes the place of a node; None leaves it as it is.
Replacement: TypeAlias = Sequence[Value] | None
Visit: TypeAlias = Callable[[GraphBuilder, Node, Inputs], Replacement]


def rebuild(graph: Graph, visit: Visit) -> Graph:
    """A copy of `graph` in which `visit` may replace the results of each node.

    `visit(builder, node, inputs)` returns the new values of the node's results, or None to keep the
    node.  `node` has the old values but bodies already rebuilt; `inputs` are the new values.  Nodes
    that it adds have the node's location unless they are given one.  Since
    outputs keep their names, a node is kept after all where an output of the graph would become an
    input or another output.
    """
    return _Rebuild(visit).graph(graph, None, {})


def rewritten(graph: Graph, visit: Visit) -> Graph:
    """As `rebuild` without the nodes that are dead then; `graph` itself if no node gave way."""
    sweep = _Rebuild(visit)
    new = sweep.graph(graph, None, {})
    return without_dead(new) if sweep.replaced else graph


def with_sizes(graph: Graph, sizes: Substitution) -> Graph:
    """`graph` with symbols replaced, in the types of inputs and in attributes, of bodies too."""
    return _Rebuild(lambda *_: None, sizes).graph(graph, None, {})


class _Rebuild:
    """One pass over a graph and its bodies; `replaced` are the nodes that gave way."""

    def __init__(self, visit: Visit, sizes: Substitution | None = None) -> None:
        self._visit, self._sizes = visit, sizes or {}
        self.replaced: list[Node] = []

    def graph(self, old: Graph, parent: GraphBuilder | None, outer: Mapping[Value, Value]) -> Graph:
        b = GraphBuilder(old.name, old.store, parent)
        new = dict(outer)
        new.update((v, b.input(v.name, bind_attrs(v.type, self._sizes))) for v in old.inputs)
        # Taken first, so that no new value gets the name of an old one.
        names = {v: b.fresh(v.name) for node in old.nodes for v in node.outputs}
        new.update((v, b.constant_handle(h, v.type, v.name)) for v, h in old.constants.items())
        fixed = set(old.outputs) if parent is None else set()
        taken = {new[v] for v in (*old.inputs, *(fixed & set(old.constants)))}
        for node in old.nodes:
            inputs, known = tuple(None if v is None else new[v] for v in node.inputs), node
            node = self._with_bodies(node, b, new)
            if self._sizes:
                node = replace(node, attrs=bind_attrs(node.attrs, self._sizes))
            b.loc = node.loc
            results = self._visit(b, node, inputs)
            if results is not None and _fits(node, results, fixed, taken):
                self.replaced.append(node)
            else:
                own = [names[v] for v in node.outputs]
                results = _keep(b, node, inputs, own, inferred=node is known)
            new.update(zip(node.outputs, results, strict=True))
            taken.update(new[v] for v in node.outputs if v in fixed)
        aliases = tuple((new[a], new[i]) for a, i in old.aliases)
        graph = b.finish((new[v] for v in old.outputs), aliases)
        return graph if parent is not None else _renamed(graph, [v.name for v in old.outputs])

    def _with_bodies(self, node: Node, b: GraphBuilder, new: Mapping[Value, Value]) -> Node:
        return with_bodies(node, lambda g: self.graph(g, b, new))


def _fits(node: Node, results: Sequence[Value], fixed: set[Value], taken: set[Value]) -> bool:
    """Whether every output of the graph among the results becomes a value that can be renamed."""
    shown = [(v.type.dtype, v.type.rank) for v in results]
    if shown != [(v.type.dtype, v.type.rank) for v in node.outputs]:
        raise InternalError(
            f"a rewrite of {node.op.name} changes its results",
            where=node.loc,
            why=f"{list(node.outputs)} became {list(results)}",
        )
    ends = [r for r, v in zip(results, node.outputs, strict=True) if v in fixed]
    return len(set(ends) - taken) == len(ends)


def _keep(
    b: GraphBuilder, node: Node, inputs: Inputs, names: Sequence[str], *, inferred: bool
) -> Values:
    """The results of a node with other inputs; `inferred` where its own attributes gave its types,
    which inputs of the same types give again."""
    new, old = ([None if v is None else v.type for v in each] for each in (inputs, node.inputs))
    types = tuple(v.type for v in node.outputs)
    if not inferred or new != old:
        try:
            types = node.op.infer(new, node.attrs)
        except ValueError as error:
            raise InternalError(
                f"{node.op.name} no longer takes its operands", where=node.loc, why=error
            ) from error
    outputs = tuple(Value(name, t) for name, t in zip(names, types, strict=True))
    b.append(Node(node.op, node.attrs, inputs, outputs, node.loc))
    return outputs


def inlined(b: GraphBuilder, body: Graph) -> Values:
    """Adds the nodes of `body`, a body without inputs, to the builder around it.

    Returns the values of the body's results, all different and computed by the nodes added unless
    they are constants or values from around the body.
    """
    new: dict[Value, Value] = {}
    for value, handle in body.constants.items():
        new[value] = b.constant_handle(handle, value.type, value.name)
    for node in substituted(body, new).nodes:
        b.append(node)
    return tuple(new.get(value, value) for value in body.outputs)


def map_bodies(attrs: Any, change: Callable[[Graph], Graph]) -> Any:
    """`attrs` with every body replaced."""
    changed = {name: change(getattr(attrs, name)) for name in body_fields(attrs)}
    return replace(attrs, **changed) if changed else attrs


def with_bodies(node: Node, change: Callable[[Graph], Graph]) -> Node:
    """`node` with every body replaced; itself where none changes."""
    if not bodies(node):
        return node
    new = replace(node, attrs=map_bodies(node.attrs, change))
    same = all(a is b for a, b in zip(bodies(new), bodies(node), strict=True))
    return node if same else new


def _renamed(graph: Graph, names: Sequence[str]) -> Graph:
    """`graph` with its outputs called `names`."""
    own = {v for v, name in zip(graph.outputs, names, strict=True) if v.name == name}
    pairs = zip(graph.outputs, names, strict=True)
    new = {v: Value(name, v.type) for v, name in pairs if v not in own}
    return substituted(graph, new) if new else graph


def substituted(graph: Graph, new: Mapping[Value, Value]) -> Graph:
    """`graph` with the values of `new` put in place of its keys everywhere, bodies included."""

    def put(value: Value) -> Value:
        return new.get(value, value)

    def moved(node: Node) -> Node:
        found = with_bodies(node, lambda g: substituted(g, new))
        if new.keys().isdisjoint((*node.inputs, *node.outputs)):
            return found
        inputs = tuple(v and put(v) for v in node.inputs)
        return replace(found, inputs=inputs, outputs=tuple(map(put, node.outputs)))

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
    """`graph` without nodes whose results nothing reads, in bodies too.

    Nodes without results and opaque ones stay.
    """
    live = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        stays = not node.outputs or Trait.OPAQUE in node.op.traits
        if stays or not live.isdisjoint(node.outputs):
            pruned = with_bodies(node, without_dead)
            kept.append(pruned)
            live.update(v for v in pruned.inputs if v is not None)
            live.update(captures(pruned))
    constants = {v: h for v, h in graph.constants.items() if v in live}
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)


# ---- rules -------------------------------------------------------------------------------------


@record
class Site:
    """Where a rule is tried: a node, its inputs in the new graph, and what lies behind them."""

    builder: GraphBuilder
    node: Node
    inputs: Inputs

    def producer(self, number: int) -> Node | None:
        """The node that gives input `number`, None for inputs of the graph and constants."""
        value = self.inputs[number]
        return None if value is None else self.builder.producer(value)

    def array(self, number: int) -> Array | None:
        """The array of input `number` where it is constant, else None."""
        value = self.inputs[number]
        return None if value is None else self.builder.array(value)


@record
class Rule:
    """A local rewrite: `rewrite(site)` adds nodes to the site's builder and returns the value, or
    the values, that replace the node's results; None where the rule does not fit."""

    name: str
    rewrite: Callable[[Site], Value | Replacement]


def apply_rules(graph: Graph, rules: Sequence[Rule], bound: int = 64) -> Graph:
    """`graph` after the first rule that matches was applied at every node, until none matches.

    Dead nodes are dropped after each sweep in which a rule fired; where none does, the result is
    `graph` itself.  Raises `InternalError` with the name of the last rule
    that fired where `bound` sweeps do not suffice.
    """
    fired: dict[Node, str] = {}

    def visit(builder: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        site = Site(builder, node, inputs)
        for rule in rules:
            found = rule.rewrite(site)
            if found is not None:
                fired[node] = rule.name
                return [found] if isinstance(found, Value) else found
        return None

    last = ""
    for _ in range(bound):
        sweep = _Rebuild(visit)
        new = sweep.graph(graph, None, {})
        if not sweep.replaced:
            return graph
        graph = without_dead(new)
        last = fired[sweep.replaced[-1]]
        fired.clear()
    raise InternalError(f"rule {last} still fires after {bound} sweeps over {graph.name}")
