"""Turns a graph into the graph that every rank runs, by a strategy for each node.

    %h = relu(matmul(%x, %a)) ; %y = matmul(%h, %b)        a : f32[64,256]  b : f32[256,64]

    on 2 ranks: columns of a, rows of b
    %h = relu(matmul(%x, %a.block)) ; %p = matmul(%h, %b.block) ; %y = all_reduce(%p)

All ranks run the same graph.  They differ in constants, which have an array per rank under one
handle, and in their numbers.  Inputs and outputs of the graph are whole on every rank.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from tcc.distributed.changes import Changer, transfer
from tcc.distributed.costs import HOST, RankRates
from tcc.distributed.decisions import StrategyDecisions
from tcc.distributed.local_nodes import divided_at, local_expr, local_op, zero_padded
from tcc.distributed.mesh import Mesh, MeshAxis
from tcc.distributed.offers import expr_of, offers
from tcc.distributed.plan import Plan, fixed_strategies
from tcc.distributed.sharding import (
    REDUCTIONS,
    WHOLE,
    Partial,
    Sharding,
    Split,
    Whole,
    local_type,
)
from tcc.distributed.solve import Solver, solve_strategies
from tcc.distributed.states import StateNames, kept_states, states_of
from tcc.distributed.strategies import Strategy
from tcc.errors import UserError
from tcc.ir.expr import Expr
from tcc.ir.expr.scalar import StageRef
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, captures, walk_nodes
from tcc.ir.graph.rewrite import map_bodies, substituted, without_dead
from tcc.ir.index import as_int, const
from tcc.ir.op import Array, Trait
from tcc.ops import OPS
from tcc.schedule.alternatives import SILENT, Ledger

# A rank's array of each value of the whole graph, by sharding.
RankArrays: TypeAlias = Mapping[Value, Mapping[Sharding, Value]]


def sharder(
    ranks: int,
    solver: Solver,
    rates: RankRates = HOST,
    plan: Plan | None = None,
    states: StateNames = (),
    ledger: Ledger = SILENT,
) -> Callable[[Graph], Graph]:
    """Returns the step that divides a graph among `ranks` ranks, at least 2.

    `plan` fixes the strategies of nodes, and `solver` chooses the other strategies.  `states` are
    pairs of the names of an input and of the output that replaces it.  `ledger` records the
    strategies, and may force some.  The step raises UserError for a graph with collectives of its
    own, and for a plan that does not fit.
    """

    def shard(graph: Graph) -> Graph:
        check_divisible(graph)
        fixed = {} if plan is None else fixed_strategies(graph, plan, ranks)
        decisions = StrategyDecisions(graph, ranks, rates, ledger)
        fixed = decisions.forced(fixed)
        choice = solve_strategies(graph, ranks, rates, solver, fixed, states)
        decisions.record(choice)
        if not any(map(_divides, choice.values())):
            _check_use(graph, ranks)
        return sharded(graph, choice, Mesh((ranks,)).axis(0), states)

    return shard


def _check_use(graph: Graph, ranks: int) -> None:
    """Raises UserError if `ranks` ranks can share the work of no node."""
    if all(len(strategies) == 1 for strategies in offers(graph, ranks).values()):
        raise UserError(
            f"nothing in the model can be divided among {ranks} ranks",
            where=f"--ranks {ranks}",
            why=f"no loop of any node has more than {ranks} iterations, or {ranks} of them",
            hint="give another number of ranks",
        )


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


def sharded(
    graph: Graph, choice: Mapping[Node, Strategy], axis: MeshAxis, states: StateNames = ()
) -> Graph:
    """Returns the graph that each rank of a mesh axis runs, with the strategy `choice[node]` of
    each node.

    `states` are pairs of the names of an input and of the output that replaces it: ranks keep their
    parts of a state if the strategies split it.  Returns `graph` itself if every strategy is whole.
    """
    return sharded_with_arrays(graph, choice, axis, states)[0]


def sharded_with_arrays(
    graph: Graph, choice: Mapping[Node, Strategy], axis: MeshAxis, states: StateNames = ()
) -> tuple[Graph, RankArrays]:
    """Returns the graph as `sharded` does, and a rank's arrays of the values of `graph`.

    Values that only bodies have are missing.  An array that no node reads is not in the graph.
    """
    if not any(_divides(strategy) for strategy in choice.values()):
        values = (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs))
        return graph, {value: {WHOLE: value} for value in values}
    return _Sharding(graph, axis, kept_states(states_of(graph, states), choice)).apply(choice)


def _divides(strategy: Strategy) -> bool:
    return any(not isinstance(s, Whole) for s in (*strategy.operands, *strategy.results))


class _Sharding:
    """A sweep over a graph: the ranks' arrays of each value, by sharding."""

    def __init__(self, graph: Graph, axis: MeshAxis, kept: Mapping[Value, Split]) -> None:
        self._graph, self._axis = graph, axis
        self._b = b = GraphBuilder(graph.name, graph.store)
        self._arrays: dict[Value, dict[Sharding, Value]] = {}
        # Arrays with zeros as their padding, by the arrays with any values there.
        self._zeroed: dict[Value, Value] = {}
        self._kept = kept
        for value in graph.inputs:
            sharding = kept.get(value, WHOLE)
            local = local_type(value.type, sharding, axis.ranks)
            self._arrays[value] = {sharding: b.input(value.name, local)}
        # The names of whole results are reserved first, so that no new value gets one of them.
        self._names = {v: b.fresh(v.name) for node in graph.nodes for v in node.outputs}
        for value, handle in graph.constants.items():
            constant = b.constant_handle(handle, value.type, value.name)
            self._arrays[value] = {WHOLE: constant}
        self._changer = Changer(b, axis)

    def apply(self, choice: Mapping[Node, Strategy]) -> tuple[Graph, RankArrays]:
        graph, b = self._graph, self._b
        for node in graph.nodes:
            b.loc = node.loc
            self._node(node, choice[node])
        outputs = [self._array(value, self._kept.get(value, WHOLE)) for value in graph.outputs]
        aliases = tuple((self._array(a, WHOLE), self._array(i, WHOLE)) for a, i in graph.aliases)
        result = without_dead(b.finish(outputs, aliases))
        pairs = zip(outputs, graph.outputs, strict=True)
        new = {v: Value(old.name, v.type) for v, old in pairs if v.name != old.name}
        arrays = {
            value: {sharding: new.get(array, array) for sharding, array in items.items()}
            for value, items in self._arrays.items()
        }
        return (substituted(result, new) if new else result), arrays

    def _node(self, node: Node, strategy: Strategy) -> None:
        expr, op, attrs = expr_of(node), node.op, node.attrs
        zeroed = frozenset[int]() if expr is None else zero_padded(expr, strategy)
        inputs = tuple(
            None if value is None else self._operand(value, sharding, number in zeroed)
            for number, (value, sharding) in enumerate(
                zip(node.inputs, strategy.operands, strict=True)
            )
        )
        if expr is not None and strategy.reduced:
            place = self._changer.place
            local = local_expr(expr, strategy, self._axis.ranks, place, zeroed)
            self._reduced(node, local, strategy, inputs)
            return
        if expr is not None:
            ranks, place = self._axis.ranks, self._changer.place
            op, attrs = local_op(node, expr, strategy, ranks, place, zeroed)
        inner = {v: self._array(v, WHOLE) for v in captures(node) if v in self._arrays}
        if inner:
            attrs = map_bodies(attrs, lambda body: substituted(body, inner))
        outputs = []
        for value, sharding in zip(node.outputs, strategy.results, strict=True):
            whole = isinstance(sharding, Whole)
            name = self._names[value] if whole else self._b.fresh(f"{value.name}.part")
            result = Value(name, local_type(value.type, sharding, self._axis.ranks))
            self._arrays[value] = {sharding: result}
            outputs.append(result)
        self._b.append(Node(op, attrs, inputs, tuple(outputs), node.loc))

    def _reduced(
        self, node: Node, local: Expr, strategy: Strategy, inputs: Sequence[Value | None]
    ) -> None:
        """Adds expressions for a node that computes `local`, with reductions between them."""
        stages = [number for number, _ in strategy.reduced]
        monoids = {number: names for number, names in strategy.reduced}
        *early, (last, operands) = divided_at(local, stages)
        values, row, results = [*inputs], OPS["expression"], {}
        for number, (part, numbers) in zip(stages, early, strict=True):
            parts = self._b.add(row, [values[n] for n in numbers], row.attrs(part))
            for component, whole in enumerate(self._combined(parts, monoids[number])):
                results[StageRef(number, component)] = whole
                values.append(whole)
        late = [ref for ref in local.outputs if ref.stage not in stages]
        if late:
            added = self._b.add(row, [values[n] for n in operands], row.attrs(last))
            results |= dict(zip(late, added, strict=True))
        for value, ref, sharding in zip(node.outputs, local.outputs, strategy.results, strict=True):
            self._arrays[value] = {sharding: results[ref]}

    def _combined(self, parts: Sequence[Value], monoids: Sequence[str]) -> Sequence[Value]:
        """Returns the combination of all ranks' components of a stage; `monoids` has the monoid of
        each."""
        if not {*monoids} <= {*REDUCTIONS}:
            return self._changer.combine(parts, monoids[0])
        return [
            self._changer.change(value, value.type, Partial(monoid), WHOLE)
            for value, monoid in zip(parts, monoids, strict=True)
        ]

    def _array(self, value: Value, sharding: Sharding) -> Value:
        """Returns a rank's array of `value` in a sharding; adds what changes it to that."""
        arrays = self._arrays[value]
        if sharding not in arrays:
            constant = self._constant(value, sharding)
            arrays[sharding] = array = constant or self._changed(value, sharding)
            if constant is not None:
                self._zeroed[array] = array
        return arrays[sharding]

    def _operand(self, value: Value, sharding: Sharding, zeroed: bool) -> Value:
        """Returns a rank's array of `value`; `zeroed`: with zeros as its padding."""
        array = self._array(value, sharding)
        if not zeroed or not isinstance(sharding, Split) or not sharding.block:
            return array
        if array not in self._zeroed:
            self._zeroed[array] = self._changer.without_padding(array, value.type, sharding)
        return self._zeroed[array]

    def _changed(self, value: Value, sharding: Sharding) -> Value:
        ranks, sources = self._axis.ranks, self._arrays[value]
        changes = {s: transfer(value.type, s, sharding, ranks) for s in sources}
        prices = {s: (bool(c.kind), c.bytes) for s, c in changes.items() if c is not None}
        source = min(prices, key=prices.__getitem__)
        return self._changer.change(sources[source], value.type, source, sharding)

    def _constant(self, value: Value, sharding: Sharding) -> Value | None:
        """Returns the ranks' arrays of a constant as one constant; None for other values."""
        array = self._graph.constant(value)
        if array is None:
            return None
        store, blocks = self._graph.store, _local_arrays(array, sharding, self._axis.ranks)
        return self._b.constant_per_rank(
            [blocks[self._axis.place(rank)] for rank in range(self._axis.all_ranks)],
            f"{value.name}.block",
            value.type.dtype,
            store.sources(self._graph.constants[value]),
        )


def _local_arrays(array: Array, sharding: Sharding, ranks: int) -> list[Array]:
    """Returns each rank's array of a value that is split, or whose parts are summed.

    Padding is zero.
    """
    if not isinstance(sharding, Split):
        return [array, *(np.zeros_like(array) for _ in range(1, ranks))]
    axis, shape, groups = sharding.axis, array.shape, sharding.groups
    parts, group = sharding.parts(ranks), shape[axis] // groups
    block = as_int(sharding.length(const(shape[axis]), ranks)) or 0
    parted = array.reshape(*shape[:axis], groups, group, *shape[axis + 1 :])
    padding = [(0, 0)] * parted.ndim
    padding[axis + 1] = 0, block * parts - group
    covered = np.pad(parted, padding)
    divided = covered.reshape(*shape[:axis], groups, parts, block, *shape[axis + 1 :])
    local = (*shape[:axis], groups * block, *shape[axis + 1 :])
    blocks = [part.reshape(local) for part in np.moveaxis(divided, axis + 1, 0)]
    return [blocks[place // sharding.copies] for place in range(ranks)]
