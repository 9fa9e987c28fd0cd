"""Turns a graph into the graph that every rank runs, by a strategy for each node.

    %h = relu(matmul(%x, %a)) ; %y = matmul(%h, %b)        a : f32[64,256]  b : f32[256,64]

    on 2 ranks: columns of a, rows of b
    %h = relu(matmul(%x, %a.block)) ; %p = matmul(%h, %b.block) ; %y = all_reduce(%p)

All ranks run the same graph.  They differ in constants, which have an array per rank under one
handle, and in their numbers.  Inputs and outputs of the graph are whole on every rank.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from tcc.distributed.changes import Changer, RankNumber
from tcc.distributed.costs import HOST, RankRates, cheapest_route
from tcc.distributed.local_nodes import local_expr, zero_padded
from tcc.distributed.mesh import MeshAxis
from tcc.distributed.offers import NodeStrategies, expr_of, operand_shardings, result_shardings
from tcc.distributed.routes import mesh_type
from tcc.distributed.sharding import (
    REDUCTIONS,
    WHOLE,
    Partial,
    Sharding,
    Shardings,
    Split,
    Whole,
    local_type,
)
from tcc.distributed.states import StateNames, kept_states, states_of
from tcc.errors import InternalError, UserError
from tcc.ir.expr import Expr
from tcc.ir.expr.scalar import StageRef
from tcc.ir.graph import Graph, GraphBuilder, Handle, Node, Value, captures, walk_nodes
from tcc.ir.graph.rewrite import map_bodies, substituted, without_dead
from tcc.ir.index import as_int, const
from tcc.ir.op import Array, Trait
from tcc.ir.types import TensorType
from tcc.ops import OPS
from tcc.ops.shapes import replaced
from tcc.passes.graph.smaller_nodes import divided_at, local_op
from tcc.zipped import zip_equal

# A rank's array of each value of the whole graph, by its shardings along all axes.
RankArrays: TypeAlias = Mapping[Value, Mapping[Shardings, Value]]
# The handle of the ranks' arrays of each constant, by its shardings along all axes.
RankConstants: TypeAlias = dict[tuple[Value, Shardings], Handle]


def check_divisible(graph: Graph) -> None:
    """Raises UserError for a graph with collectives of its own."""
    for node in walk_nodes(graph):
        if Trait.COLLECTIVE in node.op.traits:
            raise UserError(
                "a model that divides itself cannot be divided again",
                where=node.loc or graph.name,
                why=f"it has the collective {node.op.name}",
                hint="compile it without --ranks, and run it on the ranks that it expects",
            )


def sharded_with_arrays(
    graph: Graph,
    choice: Mapping[Node, NodeStrategies],
    axes: Sequence[MeshAxis],
    states: StateNames = (),
    rates: Sequence[RankRates] = (),
    blocks: RankConstants | None = None,
) -> tuple[Graph, RankArrays]:
    """Returns the graph that each rank of a mesh runs, and a rank's arrays of the values of
    `graph`: `choice[node]` has a strategy for each of `axes`.

    `states` are pairs of the names of an input and of the output that replaces it: ranks keep their
    parts of a state if the strategies split it.  `rates` are the speeds along each axis, by which
    changes of sharding take their ways.  The result is `graph` itself if every strategy is whole.
    Values that only bodies have are missing.  An array that no node reads is not in the graph.
    `blocks` keeps the ranks' constants for other choices of strategies for `graph`.
    """
    if not any(map(divides, choice.values())):
        values = (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs))
        return graph, {value: {(WHOLE,) * len(axes): value} for value in values}
    shared = kept_states(states_of(graph, states), choice)
    rates = rates or [HOST] * len(axes)
    return _Sharding(graph, axes, rates, shared, {} if blocks is None else blocks).apply(choice)


def divides(items: NodeStrategies) -> bool:
    """Returns True if an operand or a result of a node is not whole."""
    return any(not isinstance(s, Whole) for strategy in items for s in strategy.shardings)


class _Sharding:
    """A sweep over a graph: the ranks' arrays of each value, by the shardings along all axes."""

    def __init__(
        self,
        graph: Graph,
        axes: Sequence[MeshAxis],
        rates: Sequence[RankRates],
        states: Mapping[Value, Shardings],
        blocks: RankConstants,
    ) -> None:
        self._graph, self._axes, self._rates = graph, axes, rates
        self._sizes = [axis.ranks for axis in axes]
        self._whole: Shardings = (WHOLE,) * len(axes)
        self._b = b = GraphBuilder(graph.name, graph.store)
        self._arrays: dict[Value, dict[Shardings, Value]] = {}
        # Arrays with zeros as their padding, by the arrays with any values there.
        self._zeroed: dict[Value, Value] = {}
        self._states, self._blocks = states, blocks
        for value in graph.inputs:
            shardings = states.get(value, self._whole)
            local = mesh_type(value.type, shardings, self._sizes)
            self._arrays[value] = {shardings: b.input(value.name, local)}
        # The names of whole results are reserved first, so that no new value gets one of them.
        self._names = {v: b.fresh(v.name) for node in graph.nodes for v in node.outputs}
        for value, handle in graph.constants.items():
            constant = b.constant_handle(handle, value.type, value.name)
            self._arrays[value] = {self._whole: constant}
        number = RankNumber(b)
        self._changers = [Changer(b, axis, number) for axis in axes]

    def apply(self, choice: Mapping[Node, NodeStrategies]) -> tuple[Graph, RankArrays]:
        graph, b = self._graph, self._b
        for node in graph.nodes:
            b.loc = node.loc
            self._node(node, choice[node])
        outputs = [self._array(value, self._states.get(value, self._whole))
                   for value in graph.outputs]  # fmt: skip
        aliases = tuple(
            (self._array(a, self._whole), self._array(i, self._whole)) for a, i in graph.aliases
        )
        result = without_dead(b.finish(outputs, aliases))
        pairs = zip_equal(outputs, graph.outputs)
        new = {v: Value(old.name, v.type) for v, old in pairs if v.name != old.name}
        arrays = {
            value: {sharding: new.get(array, array) for sharding, array in items.items()}
            for value, items in self._arrays.items()
        }
        return (substituted(result, new) if new else result), arrays

    def _node(self, node: Node, items: NodeStrategies) -> None:
        expr, op, attrs = expr_of(node), node.op, node.attrs
        local, zeroed = (None, set[int]()) if expr is None else self._local_expr(expr, items)
        inputs = tuple(
            value and self._operand(value, shardings, number in zeroed)
            for number, (value, shardings) in enumerate(
                zip_equal(node.inputs, operand_shardings(items))
            )
        )
        if local is not None and any(strategy.reduced for strategy in items):
            self._reduced(node, local, items, inputs)
            return
        if local is not None and any(s.blocks or s.rows is not None for s in items):
            op, attrs = local_op(node, local)
        inner = {v: self._array(v, self._whole) for v in captures(node) if v in self._arrays}
        if inner:
            attrs = map_bodies(attrs, lambda body: substituted(body, inner))
        outputs = []
        for value, shardings in zip_equal(node.outputs, result_shardings(items)):
            is_whole = shardings == self._whole
            name = self._names[value] if is_whole else self._b.fresh(f"{value.name}.part")
            result = Value(name, mesh_type(value.type, shardings, self._sizes))
            self._arrays[value] = {shardings: result}
            outputs.append(result)
        self._b.append(Node(op, attrs, inputs, tuple(outputs), node.loc))

    def _local_expr(self, expr: Expr, items: NodeStrategies) -> tuple[Expr, set[int]]:
        """Returns the expression that a rank computes, and the operands whose padding has to be
        zero."""
        every: set[int] = set()
        for strategy, changer, size in zip_equal(items, self._changers, self._sizes):
            zeroed = zero_padded(expr, strategy)
            expr = local_expr(expr, strategy, size, changer.place, zeroed)
            every |= zeroed
        return expr, every

    def _reduced(
        self, node: Node, local: Expr, items: NodeStrategies, inputs: Sequence[Value | None]
    ) -> None:
        """Adds expressions for a node that computes `local`, with reductions between them."""
        monoids: dict[int, list[tuple[Changer, tuple[str, ...]]]] = {}
        for strategy, changer in zip_equal(items, self._changers):
            for number, names in strategy.reduced:
                monoids.setdefault(number, []).append((changer, names))
        stages = sorted(monoids)
        *early, (last, operands) = divided_at(local, stages)
        values, row, results = [*inputs], OPS["expression"], {}
        for number, (part, numbers) in zip_equal(stages, early):
            parts = self._b.add(row, [values[n] for n in numbers], row.attrs(part))
            combined: Sequence[Value] = parts
            for changer, names in monoids[number]:
                combined = _combined(changer, combined, names)
            for component, whole in enumerate(combined):
                results[StageRef(number, component)] = whole
                values.append(whole)
        late = [ref for ref in local.outputs if ref.stage not in stages]
        if late:
            added = self._b.add(row, [values[n] for n in operands], row.attrs(last))
            results |= dict(zip_equal(late, added))
        shardings = result_shardings(items)
        for value, ref, along in zip_equal(node.outputs, local.outputs, shardings):
            self._arrays[value] = {along: results[ref]}

    def _array(self, value: Value, shardings: Shardings) -> Value:
        """Returns a rank's array of `value` in these shardings; adds what changes it to that."""
        arrays = self._arrays[value]
        if shardings not in arrays:
            constant = self._constant(value, shardings)
            if constant is None:
                self._change(value, shardings)
            else:
                arrays[shardings] = self._zeroed[constant] = constant
        return arrays[shardings]

    def _operand(self, value: Value, shardings: Shardings, zeroed: bool) -> Value:
        """Returns a rank's array of `value`; `zeroed`: with zeros as its padding."""
        array = self._array(value, shardings)
        if not zeroed:
            return array
        if array not in self._zeroed:
            self._zeroed[array] = self._without_padding(array, value.type, shardings)
        return self._zeroed[array]

    def _without_padding(self, array: Value, type: TensorType, shardings: Shardings) -> Value:
        for changer, sharding, size in zip_equal(self._changers, shardings, self._sizes):
            if isinstance(sharding, Split) and sharding.block:
                array = changer.without_padding(array, type, sharding)
            type = local_type(type, sharding, size)
        return array

    def _change(self, value: Value, shardings: Shardings) -> None:
        """Adds the cheapest steps to an array of `value` in these shardings."""
        arrays = self._arrays[value]
        routes = [
            (source, steps)
            for source in arrays
            for steps in [cheapest_route(value.type, source, shardings, self._sizes, self._rates)]
            if steps is not None
        ]
        if not routes:
            raise InternalError(f"no collectives make {shardings}", where=value.name)
        state, cheapest = min(routes, key=lambda pair: pair[1].price)
        for step in cheapest.steps:
            after = replaced(state, step.axis, step.result)
            if after not in arrays:
                changer = self._changers[step.axis]
                arrays[after] = changer.change(arrays[state], step.type, step.source, step.result)
            state = after

    def _constant(self, value: Value, shardings: Shardings) -> Value | None:
        """Returns the ranks' arrays of a constant as one constant; None for other values."""
        array = self._graph.constant(value)
        if array is None:
            return None
        if (value, shardings) not in self._blocks:
            self._blocks[value, shardings] = self._divided(value, array, shardings)
        local = mesh_type(value.type, shardings, self._sizes)
        return self._b.constant_handle(self._blocks[value, shardings], local, f"{value.name}.block")

    def _divided(self, value: Value, array: Array, shardings: Shardings) -> Handle:
        """Returns the handle of the ranks' parts of a constant."""
        blocks: dict[tuple[int, ...], Array] = {(): array}
        for sharding, size in zip_equal(shardings, self._sizes):
            blocks = {
                (*places, place): block
                for places, part in blocks.items()
                for place, block in enumerate(_local_arrays(part, sharding, size))
            }
        store = self._graph.store
        return store.put_per_rank(
            [blocks[tuple(axis.place(rank) for axis in self._axes)]
             for rank in range(self._axes[0].all_ranks)],
            value.dtype,
            store.sources(self._graph.constants[value]),
        )  # fmt: skip


def _combined(changer: Changer, parts: Sequence[Value], monoids: Sequence[str]) -> Sequence[Value]:
    """Returns the combination of all ranks' components of a stage along an axis; `monoids` has the
    monoid of each."""
    if not {*monoids} <= {*REDUCTIONS}:
        return changer.combine(parts, monoids[0])
    return [
        changer.change(value, value.type, Partial(monoid), WHOLE)
        for value, monoid in zip_equal(parts, monoids)
    ]


def _local_arrays(array: Array, sharding: Sharding, ranks: int) -> list[Array]:
    """Returns each rank's array of a value that is whole, split, or whose parts are summed.

    Padding is zero.
    """
    if isinstance(sharding, Whole):
        return [array] * ranks
    if not isinstance(sharding, Split):
        return [array, *(np.zeros_like(array) for _ in range(1, ranks))]
    axis, shape, groups = sharding.axis, array.shape, sharding.groups
    parts, group = sharding.parts(ranks), shape[axis] // groups
    block = as_int(sharding.length(const(shape[axis]), ranks)) or 0
    parted = array.reshape(replaced(shape, axis, groups, group))
    padding = [(0, 0)] * parted.ndim
    padding[axis + 1] = 0, block * parts - group
    covered = np.pad(parted, padding) if block * parts > group else parted
    divided = covered.reshape(replaced(shape, axis, groups, parts, block))
    local = replaced(shape, axis, groups * block)
    blocks = [part.reshape(local) for part in np.moveaxis(divided, axis + 1, 0)]
    return [blocks[place // sharding.copies] for place in range(ranks)]
