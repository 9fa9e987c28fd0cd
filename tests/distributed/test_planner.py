"""The planner chooses among a few plans by price and by program memory, and adds lean plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.costs import Cluster, RankRates, local_seconds, one_host
from tcc.distributed.exchanges import exchange_of, is_exchange
from tcc.distributed.mesh import Mesh
from tcc.distributed.planner import GraphPlanner, PlanStep, plan_steps
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder, constant_bytes
from tcc.ir.index import const
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.options import Options
from tcc.passes.rank_prices import RankPrices
from tcc.rank_plans import rank_prices

from .lockstep import collectives, on_ranks
from .networks import mlp
from .one_axis import mesh_sharded

# One rank takes about as long as two ranks with their exchanges.
EVEN = RankRates(operations=1e10, memory_bytes=1e10, latency=6.5e-4)


class Fake:
    """Prices a rank's graph by given functions."""

    def __init__(
        self,
        seconds: Callable[[Graph], float] = lambda graph: 0.0,
        memory: Callable[[Graph], int] = constant_bytes,
    ) -> None:
        self.seconds, self.memory = seconds, memory


def prices(
    seconds: Callable[[Graph], float] = lambda graph: 0.0,
    memory: Callable[[Graph], int] = constant_bytes,
) -> RankPrices:
    return cast(RankPrices, Fake(seconds, memory))


def planner(rates: RankRates, priced: RankPrices | None = None) -> GraphPlanner:
    return GraphPlanner(mlp(), one_host(2, rates), partition_solver(), prices=priced)


def test_prices_choose_among_plans_that_counts_do_not_tell_apart() -> None:
    """Exchanges do not pay if kernels take no time, and pay if kernels take long."""
    undivided = planner(EVEN, prices()).best()
    divided = planner(EVEN, prices(lambda graph: constant_bytes(graph) / 1e6)).best()
    assert collectives(undivided.local) == []
    assert collectives(divided.local) == ["all_reduce"]


def test_counts_alone_take_the_plan_of_the_least_counted_time() -> None:
    assert collectives(planner(EVEN).best().local) == ["all_reduce"]
    assert collectives(planner(replace(EVEN, latency=1.0)).best().local) == []


def test_the_memory_of_programs_decides_which_plans_fit() -> None:
    """All values together do not fit, but a program stores only some of them."""
    weights, values = constant_bytes(mlp()), 16 * (256 + 2 * 1024) * 4
    rates = RankRates(latency=1.0, memory=weights + values // 4)
    assert constant_bytes(planner(rates).best().local) == weights // 2
    fused = prices(memory=lambda graph: constant_bytes(graph) + values // 8)
    best = planner(rates, fused).best()
    assert constant_bytes(best.local) == weights
    prices_of_memory = prices(memory=lambda graph: constant_bytes(graph) + values)
    assert constant_bytes(planner(rates, prices_of_memory).best().local) == weights // 2
    with pytest.raises(UserError, match="no plan fits") as error:
        planner(rates, prices(memory=lambda graph: 2 * weights)).best()
    assert f"needs {2 * weights} bytes" in error.value.why


def test_exchanges_cost_the_bytes_that_ranks_transfer() -> None:
    """Counted by hand: an all_reduce sends each element twice, except the rank's own half."""
    rates = RankRates(latency=3e-6, link_bytes=1e9)
    best = planner(replace(rates, operations=1e8)).best()
    (node,) = (n for n in best.local.nodes if is_exchange(n))
    assert exchange_of(node).bytes == 16 * 256 * 4
    seconds = local_seconds(best.local, one_host(2, rates))
    assert seconds == pytest.approx(3e-6 + 2 * 16 * 256 * 4 / 2 / 1e9)


def test_each_axis_of_a_mesh_has_links_of_its_own() -> None:
    mesh, slow, fast = Mesh((2, 2)), RankRates(latency=7.0), RankRates(latency=0.5)
    work = RankRates(operations=1e6, latency=1e-9)
    plan = GraphPlanner(mlp(), Cluster(mesh, (work, work)), partition_solver()).best()
    kinds = [n.attrs.members for n in plan.local.nodes if is_exchange(n)]
    due = sum(7.0 if members == mesh.axis(0).members else 0.5 for members in kinds)
    assert due > 0
    assert abs(local_seconds(plan.local, Cluster(mesh, (slow, fast))) - due) < 0.1


def test_host_functions_cost_the_bytes_that_they_read_and_write() -> None:
    b = GraphBuilder("g")
    x, row = b.input("x", tensor(F32, 64, 512)), OPS["top_k"]
    attrs = row.attrs(k=const(8), axis=1, largest=True, sorted=True)
    values, indices = b.add(row, [x], attrs)
    graph = b.finish((values, indices))
    bytes = 64 * 512 * 4 + 64 * 8 * 4 + 64 * 8 * 8
    cluster = one_host(2, RankRates(memory_bytes=1e9))
    assert local_seconds(graph, cluster) == pytest.approx(bytes / 1e9)
    # Ranks divide the rows if that saves more than the exchange costs.
    cheap = one_host(2, RankRates(memory_bytes=1e6, latency=1e-9))
    plan = GraphPlanner(graph, cheap, partition_solver()).best()
    assert collectives(plan.local)


# ---- lean plans ----------------------------------------------------------------------------------

# The fastest plan keeps everything whole, although exchanges take little of the time.
DEAR = RankRates(operations=1e9, memory_bytes=1e12, latency=2e-2)


@pytest.mark.parametrize(("slower", "is_worth"), [(1.2, True), (3.0, False)])
def test_a_lean_plan_stands_beside_if_it_saves_more_than_it_costs(
    slower: float, is_worth: bool
) -> None:
    weights = constant_bytes(mlp())
    seconds = prices(lambda graph: 1.0 if constant_bytes(graph) == weights else slower)
    plans = planner(replace(DEAR, latency=1e-9), seconds)
    fast = GraphPlanner(mlp(), one_host(2, DEAR), partition_solver()).best()
    assert constant_bytes(fast.local) == weights
    lean = plans.lean_beside(fast)
    assert (lean is not None) == is_worth
    if lean is not None:
        assert constant_bytes(lean.local) == weights // 2


def test_no_lean_plan_stands_beside_a_plan_of_least_memory() -> None:
    plans = planner(RankRates(operations=1e8))
    assert plans.lean_beside(plans.best()) is None


def test_steps_of_a_compile_give_the_lean_plan_behind_the_fast_plan() -> None:
    graph = mlp()
    weights = constant_bytes(graph)
    seconds = prices(lambda part: 1.0 if constant_bytes(part) == weights else 1.01)
    cluster = one_host(2, replace(DEAR, latency=1e-2, operations=1e12))
    locals_ = [step(graph) for step in plan_steps(cluster, partition_solver(), lambda _: seconds)]
    assert [constant_bytes(local) for local in locals_] == [weights, weights // 2]
    x = {"x": np.random.default_rng(1).standard_normal((16, 256)).astype(np.float32)}
    (reference,) = on_ranks(graph, x, 1)
    for outputs in on_ranks(locals_[1], x, 2):
        for name, array in reference.items():
            np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-4)


def test_plans_of_files_have_no_lean_plan() -> None:
    step = PlanStep(one_host(2), partition_solver())
    assert step.leaner is None
    step(mlp())
    assert step.leaner is False


# ---- prices of a target --------------------------------------------------------------------------


def test_prices_of_kernels_follow_the_work_of_a_rank() -> None:
    graph, options = mlp(4096), Options(ranks=(2,), cpu="x86-64-v3")
    priced = rank_prices(options)(constant_bytes(graph))
    assert priced is not None
    choice = planner(RankRates(operations=1e8)).best()
    plans = GraphPlanner(graph, one_host(2, RankRates(operations=1e8)), partition_solver())
    plan = plans.best()
    assert collectives(choice.local)
    one, two = priced.seconds(graph), priced.seconds(plan.local)
    assert 0.4 < two / one < 0.7
    divided = mesh_sharded(graph, plan.choice, Mesh((2,)).axes)
    assert priced.seconds(divided) == two
    weights, halves = constant_bytes(plan.local), 2 * 16 * 2048 * 4
    assert weights <= priced.memory(plan.local) <= weights + halves


def test_targets_without_prices_have_none() -> None:
    assert rank_prices(Options(target="c"))(1) is None
