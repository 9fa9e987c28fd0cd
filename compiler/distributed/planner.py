"""Chooses the plan of a graph, and divides graphs by their plans.

    counts of operations and bytes      the solver's best plans: one for each weight of exchanges
                                        and each limit of memory
    prices of kernels and exchanges     the plan of the least time whose memory fits

A plan of least memory may stand beside the fastest plan, for ranks that have less memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeAlias

from tcc.cached import cached_method
from tcc.distributed.cluster import on_mesh
from tcc.distributed.costs import Cluster, local_seconds, with_memory
from tcc.distributed.decisions import StrategyDecisions
from tcc.distributed.offers import NodeStrategies, mesh_offers
from tcc.distributed.plan import Plan, fixed_strategies
from tcc.distributed.problem import (
    FORBIDDEN,
    NANOSECONDS,
    ProblemWriter,
    Solver,
    cost_of,
    largest_values,
    with_bytes,
    with_exchanges,
)
from tcc.distributed.shard import (
    RankArrays,
    RankConstants,
    check_divisible,
    divides,
    sharded_with_arrays,
)
from tcc.distributed.solve import no_plan_fits
from tcc.distributed.states import StateNames
from tcc.errors import UserError
from tcc.frozen import entity
from tcc.ir.graph import Graph, Node, constant_bytes
from tcc.passes.pipeline import Sharder
from tcc.passes.rank_prices import RankPrices
from tcc.schedule.alternatives import SILENT, Ledger
from tcc.zipped import zip_equal

# The solver makes a plan for each weight of exchanges.
_WEIGHTS = 1.0, 0.25, 4.0
# Plans are priced whose counted time is at most this many times the least.
_NEAR = 1.25
# Prices do not tell plans apart whose exchanges differ by less than this fraction of their time.
_ALIKE = 0.01
# The plan of least memory takes at most this fraction of the fastest plan's bytes.
_LEAN = 0.9

# Returns the prices of kernels for a model with so many bytes of constants; None if its target has
# no prices.
PricesFor: TypeAlias = Callable[[int], RankPrices | None]


@entity
class AppliedPlan:
    """The strategies of each node, their seconds by counts, and the graph that a rank runs, with
    its arrays of each value."""

    choice: Mapping[Node, NodeStrategies]
    counted: float
    local: Graph
    arrays: RankArrays

    @property
    def bytes(self) -> int:
        """The bytes of a rank's weights, and of its values as if each were stored."""
        return constant_bytes(self.local) + largest_values(self.local)


@dataclass(frozen=True, eq=False)
class GraphPlanner:
    """Plans `graph` on a cluster; nodes in `fixed` keep the strategies that stand there.

    `states` are pairs of the names of an input and of the output that replaces it.  Without
    `prices`, counts alone decide, and every value needs memory of its own.
    """

    graph: Graph
    cluster: Cluster
    solver: Solver
    fixed: Mapping[Node, NodeStrategies] = field(default_factory=dict)
    states: StateNames = ()
    prices: RankPrices | None = None
    _blocks: RankConstants = field(default_factory=dict)

    def best(self) -> AppliedPlan:
        """Returns the plan of the least time whose weights and arena fit the memory of a rank.

        Raises UserError if no plan fits.
        """
        memory, plans = self.cluster.rates[0].memory, [*self._plans()]
        if self.prices is None or (memory is None and len(plans) == 1):
            return plans[0]
        plans.sort(key=self.seconds)
        for plan in plans:
            if memory is None or self.memory(plan) <= memory:
                return plan
        raise no_plan_fits(self.graph, min(map(self.memory, plans)))

    def lean(self) -> AppliedPlan:
        """Returns the plan of the least weights, and of the least counted time among these."""
        writer = ProblemWriter(
            self.graph, with_memory(self.cluster, FORBIDDEN), self.fixed, self.states
        )
        problem = writer.problem()
        pairs = zip_equal(problem.nodes, self.solver(with_bytes(problem)))
        limited = replace(problem, limit=sum(node.usages[number] for node, number in pairs))
        numbers = self.solver(limited)
        return self._applied(writer, numbers, cost_of(problem, numbers))

    def lean_beside(self, fast: AppliedPlan) -> AppliedPlan | None:
        """Returns the plan of the least weights if it is worth a place beside the plan `fast`.

        It saves memory by a larger factor than it takes longer.
        """
        values = fast.bytes - constant_bytes(fast.local)
        least = constant_bytes(self.graph) // self.cluster.ranks + values
        if least > _LEAN * fast.bytes:
            return None
        lean = self.lean()
        if lean.bytes > _LEAN * fast.bytes:
            return None
        costs = (plan.bytes * self.seconds(plan) for plan in (lean, fast))
        return lean if next(costs) <= _LEAN * next(costs) else None

    @cached_method
    def seconds(self, plan: AppliedPlan) -> float:
        """Returns the predicted seconds of a run on a rank."""
        if self.prices is None:
            return plan.counted
        return self.prices.seconds(plan.local) + local_seconds(plan.local, self.cluster)

    def memory(self, plan: AppliedPlan) -> int:
        """Returns the bytes that a rank needs: with its planned arena, or with all values."""
        return plan.bytes if self.prices is None else self.prices.memory(plan.local)

    def _plans(self) -> Iterator[AppliedPlan]:
        """Yields the solver's plans, each once, the plan of the least counted time first.

        Raises UserError if there is none.
        """
        writer = ProblemWriter(self.graph, self.cluster, self.fixed, self.states)
        problem, memory = writer.problem(), self.cluster.rates[0].memory
        limits = [problem.limit]
        if self.prices is not None and memory is not None:
            # Fusion leaves values out, and others share memory: larger limits may fit too.
            limits += [memory - largest_values(self.graph) // 2, memory]
        weights = _WEIGHTS if self.prices is not None and memory is None else _WEIGHTS[:1]
        costs: dict[tuple[int, ...], int] = {}
        refusal = no_plan_fits(self.graph)
        for weight, limit in product(weights, limits):
            try:
                numbers = self.solver(with_exchanges(problem, weight, limit))
                costs[tuple(numbers)] = cost_of(problem, numbers)
            except UserError as error:  # does not fit
                refusal = error
        least = min(costs.values(), default=FORBIDDEN)
        if least >= FORBIDDEN:
            raise refusal
        free, exchanges = with_exchanges(problem, 0.0, None), list[int]()
        for solution, cost in sorted(costs.items(), key=lambda pair: pair[1]):
            exchange = cost - cost_of(free, solution)
            is_new = all(abs(exchange - other) > _ALIKE * least for other in exchanges)
            if cost < FORBIDDEN and (memory is not None or (is_new and cost <= _NEAR * least)):
                exchanges.append(exchange)
                yield self._applied(writer, solution, cost)

    def _applied(self, writer: ProblemWriter, numbers: Sequence[int], cost: int) -> AppliedPlan:
        choice = writer.choice(numbers)
        local, arrays = sharded_with_arrays(
            self.graph, choice, self.cluster.mesh.axes, self.states, self.cluster.rates,
            self._blocks,
        )  # fmt: skip
        return AppliedPlan(choice, cost / NANOSECONDS, local, arrays)


@dataclass(eq=False)
class PlanStep:
    """A step that divides graphs among ranks; `leaner` is True if a plan of less memory may stand
    beside the plan of the first graph.

    `plan` fixes the strategies of nodes, and `solver` chooses the other strategies.  `ledger`
    records the strategies, and may force some.  With `lean`, the plan is that of the least memory.
    """

    cluster: Cluster
    solver: Solver
    prices: PricesFor = lambda constants: None
    plan: Plan | None = None
    states: StateNames = ()
    ledger: Ledger = SILENT
    lean: bool = False
    leaner: bool | None = None

    def __call__(self, graph: Graph) -> Graph:
        """Returns the graph that each rank runs.

        Raises UserError for a graph with collectives of its own, for a plan that does not fit it,
        and where no plan fits the memory of ranks.
        """
        check_divisible(graph)
        cluster, fixed = self.cluster, {}
        if self.plan is not None:
            cluster = on_mesh(cluster, self.plan.mesh)
            fixed = fixed_strategies(graph, self.plan, cluster.mesh)
        decisions = StrategyDecisions(graph, cluster, self.ledger)
        fixed = decisions.forced(fixed)
        prices = self.prices(constant_bytes(graph))
        planner = GraphPlanner(graph, cluster, self.solver, fixed, self.states, prices)
        plan = planner.lean() if self.lean else planner.best()
        decisions.record(plan.choice)
        if not any(map(divides, plan.choice.values())):
            _check_use(graph, cluster)
        if self.leaner is None:
            self.leaner = self.plan is None and planner.lean_beside(plan) is not None
        return plan.local


def plan_steps(
    cluster: Cluster,
    solver: Solver,
    prices: PricesFor,
    states: StateNames = (),
    ledger: Ledger = SILENT,
) -> Iterator[Sharder]:
    """Yields the step of the fastest plan and then, if that step says so, the step of the plan of
    least memory."""
    fast = PlanStep(cluster, solver, prices, None, states, ledger)
    yield fast
    if fast.leaner:
        yield PlanStep(cluster, solver, prices, None, states, ledger, lean=True)


def _check_use(graph: Graph, cluster: Cluster) -> None:
    """Raises UserError if the ranks of a cluster can share the work of no node."""
    ranks = cluster.ranks
    offered = mesh_offers(graph, cluster.mesh.axes)
    if all(len(strategies) == 1 for strategies in offered.values()):
        raise UserError(
            f"nothing in the model can be divided among {ranks} ranks",
            where=f"--ranks {ranks}",
            why=f"no loop of any node has more than {ranks} iterations, or {ranks} of them",
            hint="give another number of ranks",
        )
