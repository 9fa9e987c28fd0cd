"""Turns a graph into the graph that every rank runs, by a strategy for each node.

    %h = relu(matmul(%x, %a)) ; %y = matmul(%h, %b)        a : f32[64,256]  b : f32[256,64]

    on 2 ranks: columns of a, rows of b
    %h = relu(matmul(%x, %a.block)) ; %p = matmul(%h, %b.block) ; %y = all_reduce(%p)

All ranks run the same graph.  They differ in constants, which have an array per rank under one
handle, and in their numbers.  Inputs and outputs of the graph are whole on every rank.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tcc.distributed.changes import Changer, RankNumber
from tcc.distributed.costs import HOST, Cluster, RankRates, change_seconds, one_host
from tcc.distributed.local_nodes import divided_at, local_expr, local_op
from tcc.distributed.mesh import Mesh, MeshAxis
from tcc.distributed.mesh_offers import NodeStrategies, operand_shardings, result_shardings
from tcc.distributed.offers import expr_of, offers
from tcc.distributed.plan import Plan, fixed_strategies
from tcc.distributed.problem import Solver
from tcc.distributed.routes import Route, mesh_type, route
from tcc.distributed.sharding import WHOLE, Partial, Sharding, Shardings, Split, Whole
from tcc.distributed.solve import mesh_strategies
from tcc.distributed.states import StateNames, kept_states, states_of
from tcc.distributed.strategies import Strategy
from tcc.errors import InternalError, UserError
from tcc.ir.expr import Expr
from tcc.ir.expr.scalar import StageRef
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, captures, walk_nodes
from tcc.ir.graph.rewrite import map_bodies, substituted, without_dead
from tcc.ir.op import Array, Trait
from tcc.ir.types import TensorType
from tcc.ops import OPS


def sharder(
    ranks: int,
    solver: Solver,
    rates: RankRates = HOST,
    plan: Plan | None = None,
    states: StateNames = (),
) -> Callable[[Graph], Graph]:
    """Returns the step that divides a graph among `ranks` ranks, at least 2.

    `plan` fixes the strategies of nodes, and `solver` chooses the other strategies.  `states` are
    pairs of the names of an input and of the output that replaces it.  The step raises UserError
    for a graph with collectives of its own, and for a plan that does not fit.
    """

    def shard(graph: Graph) -> Graph:
        check_divisible(graph)
        cluster = one_host(ranks, rates)
        fixed: Mapping[Node, NodeStrategies] = {}
        if plan is not None:
            cluster = Cluster(Mesh(plan.mesh), (rates,) * len(plan.mesh))
            fixed = fixed_strategies(graph, plan, cluster.mesh)
        choice = mesh_strategies(graph, cluster, solver, fixed, states)
        if not any(map(_divides, choice.values())):
            _check_use(graph, ranks)
        return mesh_sharded(graph, choice, cluster.mesh.axes, states, cluster.rates)

    return shard


def _check_use(graph: Graph, ranks: int) -> None:
    """Raises UserError if `ranks` ranks can share the work of no node."""
    if all(len(strategies) == 1 for strategies in offers(graph, ranks).values()):
        raise UserError(
            f"nothing in the model can be divided among {ranks} ranks",
            where=f"--ranks {ranks}",
            why=f"no loop of any node has a length that {ranks} divides",
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
    return mesh_sharded(graph, {node: (s,) for node, s in choice.items()}, (axis,), states)


def mesh_sharded(
    graph: Graph,
    choice: Mapping[Node, NodeStrategies],
    axes: Sequence[MeshAxis],
    states: StateNames = (),
    rates: Sequence[RankRates] = (),
) -> Graph:
    """Returns `sharded` for a mesh: `choice[node]` has a strategy for each of `axes`.

    `rates` are the speeds along each axis, by which changes of sharding take their ways.
    """
    if not any(map(_divides, choice.values())):
        return graph
    shared = kept_states(states_of(graph, states), choice)
    return _Sharding(graph, axes, rates or [HOST] * len(axes), shared).apply(choice)


def _divides(items: NodeStrategies) -> bool:
    return any(
        not isinstance(s, Whole)
        for strategy in items
        for s in (*strategy.operands, *strategy.results)
    )


class _Sharding:
    """A sweep over a graph: the ranks' arrays of each value, by the shardings along all axes."""

    def __init__(
        self,
        graph: Graph,
        axes: Sequence[MeshAxis],
        rates: Sequence[RankRates],
        states: Mapping[Value, Shardings],
    ) -> None:
        self._graph, self._axes, self._rates = graph, axes, rates
        self._sizes = [axis.ranks for axis in axes]
        self._whole: Shardings = (WHOLE,) * len(axes)
        self._b = b = GraphBuilder(graph.name, graph.store)
        self._arrays: dict[Value, dict[Shardings, Value]] = {}
        self._states = states
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

    def apply(self, choice: Mapping[Node, NodeStrategies]) -> Graph:
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
        pairs = zip(outputs, graph.outputs, strict=True)
        new = {v: Value(old.name, v.type) for v, old in pairs if v.name != old.name}
        return substituted(result, new) if new else result

    def _node(self, node: Node, items: NodeStrategies) -> None:
        inputs = tuple(
            None if value is None else self._array(value, shardings)
            for value, shardings in zip(node.inputs, operand_shardings(items), strict=True)
        )
        expr, op, attrs = expr_of(node), node.op, node.attrs
        if expr is not None and any(strategy.reduced for strategy in items):
            self._reduced(node, self._local_expr(expr, items), items, inputs)
            return
        if expr is not None and any(s.blocks or s.rows is not None for s in items):
            op, attrs = local_op(node, self._local_expr(expr, items))
        inner = {v: self._array(v, self._whole) for v in captures(node) if v in self._arrays}
        if inner:
            attrs = map_bodies(attrs, lambda body: substituted(body, inner))
        outputs = []
        for value, shardings in zip(node.outputs, result_shardings(items), strict=True):
            is_whole = shardings == self._whole
            name = self._names[value] if is_whole else self._b.fresh(f"{value.name}.part")
            result = Value(name, mesh_type(value.type, shardings, self._sizes))
            self._arrays[value] = {shardings: result}
            outputs.append(result)
        self._b.append(Node(op, attrs, inputs, tuple(outputs), node.loc))

    def _local_expr(self, expr: Expr, items: NodeStrategies) -> Expr:
        """Returns the expression that a rank computes."""
        for strategy, changer, size in zip(items, self._changers, self._sizes, strict=True):
            expr = local_expr(expr, strategy, size, changer.place)
        return expr

    def _reduced(
        self, node: Node, local: Expr, items: NodeStrategies, inputs: Sequence[Value | None]
    ) -> None:
        """Adds expressions for a node that computes `local`, with reductions between them."""
        monoids: dict[int, list[tuple[Changer, tuple[str, ...]]]] = {}
        for strategy, changer in zip(items, self._changers, strict=True):
            for number, names in strategy.reduced:
                monoids.setdefault(number, []).append((changer, names))
        stages = sorted(monoids)
        *early, (last, operands) = divided_at(local, stages)
        values, row, results = [*inputs], OPS["expression"], {}
        for number, (part, numbers) in zip(stages, early, strict=True):
            parts = self._b.add(row, [values[n] for n in numbers], row.attrs(part))
            for component, value in enumerate(parts):
                for changer, names in monoids[number]:
                    partial = Partial(names[component])
                    value = changer.change(value, value.type, partial, WHOLE)
                results[StageRef(number, component)] = value
                values.append(value)
        late = [ref for ref in local.outputs if ref.stage not in stages]
        if late:
            added = self._b.add(row, [values[n] for n in operands], row.attrs(last))
            results |= dict(zip(late, added, strict=True))
        shardings = result_shardings(items)
        for value, ref, along in zip(node.outputs, local.outputs, shardings, strict=True):
            self._arrays[value] = {along: results[ref]}

    def _array(self, value: Value, shardings: Shardings) -> Value:
        """Returns a rank's array of `value` in these shardings; adds what changes it to that."""
        arrays = self._arrays[value]
        if shardings not in arrays:
            constant = self._constant(value, shardings)
            if constant is None:
                self._change(value, shardings)
            else:
                arrays[shardings] = constant
        return arrays[shardings]

    def _change(self, value: Value, shardings: Shardings) -> None:
        """Adds the cheapest steps to an array of `value` in these shardings."""
        arrays = self._arrays[value]
        routes = [
            (source, steps)
            for source in arrays
            for steps in [route(value.type, source, shardings, self._sizes, self._price)]
            if steps is not None
        ]
        if not routes:
            raise InternalError(f"no collectives make {shardings}", where=value.name)
        state, cheapest = min(routes, key=_route_price)
        for step in cheapest.steps:
            after = (*state[: step.axis], step.result, *state[step.axis + 1 :])
            if after not in arrays:
                changer = self._changers[step.axis]
                arrays[after] = changer.change(arrays[state], step.type, step.source, step.result)
            state = after

    def _price(
        self, axis: int, type: TensorType, source: Sharding, result: Sharding
    ) -> float | None:
        return change_seconds(type, source, result, self._sizes[axis], self._rates[axis])

    def _constant(self, value: Value, shardings: Shardings) -> Value | None:
        """Returns the ranks' arrays of a constant as one constant; None for other values."""
        array = self._graph.constant(value)
        if array is None:
            return None
        blocks: dict[tuple[int, ...], Array] = {(): array}
        for sharding, size in zip(shardings, self._sizes, strict=True):
            blocks = {
                (*places, place): block
                for places, part in blocks.items()
                for place, block in enumerate(_local_arrays(part, sharding, size))
            }
        store = self._graph.store
        return self._b.constant_per_rank(
            [blocks[tuple(axis.place(rank) for axis in self._axes)]
             for rank in range(self._axes[0].all_ranks)],
            f"{value.name}.block",
            value.type.dtype,
            store.sources(self._graph.constants[value]),
        )  # fmt: skip


def _route_price(pair: tuple[Shardings, Route]) -> float:
    return pair[1].price


def _local_arrays(array: Array, sharding: Sharding, ranks: int) -> list[Array]:
    """Returns each rank's array of a value that is whole, split, or whose parts are summed."""
    if isinstance(sharding, Whole):
        return [array] * ranks
    if not isinstance(sharding, Split):
        return [array, *(np.zeros_like(array) for _ in range(1, ranks))]
    axis, shape = sharding.axis, array.shape
    groups, block = sharding.groups, shape[axis] // sharding.groups // ranks
    parted = array.reshape(*shape[:axis], groups, ranks, block, *shape[axis + 1 :])
    local = (*shape[:axis], groups * block, *shape[axis + 1 :])
    return [blocks.reshape(local) for blocks in np.moveaxis(parted, axis + 1, 0)]
