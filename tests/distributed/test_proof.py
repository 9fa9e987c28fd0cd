"""The proof of a plan accepts right plans and refuses each kind of wrong plan by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.costs import Cluster, Host, RankRates, one_host
from tcc.distributed.exchanges import Exchange
from tcc.distributed.facts import planned, proved
from tcc.distributed.mesh import Mesh
from tcc.distributed.plan import Plan
from tcc.distributed.proof import Step, check_order
from tcc.errors import InternalError, UserError

from .networks import NETWORKS, mlp

# Exchanges cost little, so that plans divide many nodes.
RATES = RankRates(operations=1e9, memory_bytes=1e9, link_bytes=1e11, latency=1e-7)


def best(name: str, ranks: int, rates: RankRates = RATES) -> Plan:
    return planned(NETWORKS[name](), one_host(ranks, rates), partition_solver(), {}).plan


def check(plan: Plan, hosts: tuple[Host, ...] = ()) -> object:
    return proved(
        mlp(), plan, replace(one_host(plan.ranks), hosts=tuple(hosts)), partition_solver()
    )


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", NETWORKS)
def test_right_plans_are_proved(name: str, ranks: int) -> None:
    plan = best(name, ranks)
    proof = proved(NETWORKS[name](), plan, one_host(ranks), partition_solver())
    assert proof.costs == plan.exchanges
    assert proof.stated
    assert proof.divided > 0
    assert proof.groups == (tuple(range(ranks)),)
    assert proof.weight_bytes == plan.weight_bytes < proof.peak_bytes


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (3, 2)], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_right_plans_of_meshes_are_proved(name: str, sizes: tuple[int, ...]) -> None:
    mesh = Mesh(sizes)
    cluster = Cluster(mesh, (RATES, RATES))
    plan = planned(NETWORKS[name](), cluster, partition_solver(), {}).plan
    proof = proved(NETWORKS[name](), plan, cluster, partition_solver())
    assert (proof.ranks, proof.costs, proof.stated) == (mesh.ranks, plan.exchanges, True)
    assert proof.weight_bytes == plan.weight_bytes < proof.peak_bytes
    groups = {group for axis in mesh.axes for group in axis.members}
    assert proof.groups
    assert {*proof.groups} <= groups


def test_each_axis_divides_the_blocks_that_earlier_axes_leave() -> None:
    """16 rows become 8 on each host, which 3 ranks cannot divide."""
    plan = planned(mlp(), Cluster(Mesh((2, 2)), (RATES, RATES)), partition_solver(), {}).plan
    rows = "split(0), whole -> split(0)"
    wrong = replace(plan, mesh=(2, 3), strategies={"h": (rows, rows)}, place="--check p.json")
    cluster = Cluster(Mesh((2, 3)), (RATES, RATES))
    with pytest.raises(UserError, match="3 ranks do not divide axis 0") as error:
        proved(mlp(), wrong, cluster, partition_solver())
    assert "it has 8 elements" in error.value.why
    right = replace(wrong, mesh=(2, 2), exchanges=None, weight_bytes=None)
    proved(mlp(), right, Cluster(Mesh((2, 2)), (RATES, RATES)), partition_solver())


def test_memory_is_that_of_the_fullest_step() -> None:
    """Counted by hand: the first matmul has h only, the last has r and y."""
    proof = proved(mlp(), best("mlp", 2), one_host(2), partition_solver())
    h, y, weights = 16 * 512 * 4, 16 * 256 * 4, 2 * 256 * 512 * 4
    assert proof.weight_bytes == weights
    assert proof.peak_bytes == weights + h + y


@pytest.mark.parametrize("number", [0, 1])
def test_each_host_has_the_memory_of_its_ranks(number: int) -> None:
    plan = best("mlp", 2)
    need = proved(mlp(), plan, one_host(2), partition_solver()).peak_bytes
    hosts = [Host("a", 1, need), Host("b", 1, need), Host("c", 9, 1)]
    check(plan, tuple(hosts))
    hosts[number] = replace(hosts[number], memory_bytes=need - 1)
    with pytest.raises(UserError, match=f"memory of host {hosts[number].name}") as error:
        check(plan, tuple(hosts))
    assert f"rank {number} needs {need} bytes" in error.value.why
    assert "more ranks" in error.value.hint


def changed(plan: Plan, **texts: str) -> Plan:
    singles = {name: (text,) for name, text in texts.items()}
    return replace(plan, strategies={**plan.strategies, **singles}, place="--check p.json")


WRONG: Mapping[str, tuple[Callable[[Plan], Plan], str, str, str]] = {
    "an axis that is not there": (
        lambda plan: changed(plan, h="whole, split(7) -> split(7)"),
        "axis 7, which is not there", "p.json: h, operand 1 (w), axis 7", "axes 0 to 1",
    ),
    "a factor that does not divide": (
        lambda plan: replace(changed(plan, h="split(0), whole -> split(0)"), mesh=(3,)),
        "3 ranks do not divide axis 0", "h, operand 0 (x), axis 0", "plan for 2, 4, 8, 16 ranks",
    ),
    "a strategy that computes something else": (
        lambda plan: changed(plan, h="split(1), whole -> split(1)"),
        "cannot be divided so", "p.json: h", "whole, split(1) -> split(1)",
    ),
    "too few shardings": (
        lambda plan: changed(plan, h="whole -> whole"),
        "no strategy of the node", "p.json: h", "--explain h",
    ),
    "a word that is no sharding": (
        lambda plan: changed(plan, h="halves, whole -> whole"),
        "no strategy of the node", "p.json: h", "split(AXIS)",
    ),
    "an exchange that is not paid": (
        lambda plan: replace(plan, exchanges={}),
        "does not pay every all_reduce", "y", "writes the costs",
    ),
    "an exchange that is paid twice": (
        lambda plan: replace(plan, exchanges={"all_reduce": (2, 2 * 16 * 256 * 4)}),
        "does not pay every all_reduce", "y", "writes the costs",
    ),
    "an exchange of other bytes": (
        lambda plan: replace(plan, exchanges={"all_reduce": (1, 16)}),
        "does not pay every all_reduce", "y", "writes the costs",
    ),
    "an exchange that is not needed": (
        lambda plan: replace(plan, exchanges={**(plan.exchanges or {}), "all_gather": (1, 4)}),
        "does not pay every all_gather", "all_gather", "writes the costs",
    ),
    "other weights": (
        lambda plan: replace(plan, weight_bytes=4),
        "other weights", "", "writes the costs",
    ),
    "a changed strategy with old costs": (
        lambda plan: changed(plan, h="whole, whole -> whole", r="whole -> whole",
                             y="whole, whole -> whole"),
        "does not pay every all_reduce", "all_reduce", "writes the costs",
    ),
    "an unknown node": (
        lambda plan: changed(plan, nobody="whole -> whole"),
        "unknown node", "p.json: nobody", "tcc plan MODEL",
    ),
    "another model": (
        lambda plan: replace(plan, model="0" * 32),
        "another model", "", "tcc plan",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_plans_are_refused(kind: str) -> None:
    change, what, where, hint = WRONG[kind]
    with pytest.raises(UserError) as error:
        check(change(best("mlp", 2)))
    assert what in error.value.what
    assert where in error.value.where
    assert hint in error.value.hint


def test_a_plan_may_leave_out_nodes_and_costs() -> None:
    plan = replace(best("mlp", 2), strategies={}, exchanges=None, weight_bytes=None)
    proof = proved(mlp(), plan, one_host(2, RATES), partition_solver())
    assert not proof.stated
    assert [*proof.costs] == ["all_reduce"]


def steps(*names: str, group: tuple[int, ...]) -> list[Step]:
    return [(group, Exchange("all_reduce", 4, name)) for name in names]


def test_groups_of_ranks_exchange_in_any_order_that_ends() -> None:
    """Ranks exchange in pairs along both axes of a 2x2 mesh, in an order that differs by rank."""
    rows, columns = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    orders = [
        steps("a", group=rows[rank // 2]) + steps("b", "c", group=columns[rank % 2])
        for rank in range(4)
    ]
    assert check_order(orders) == tuple(sorted(rows + columns))


ENDLESS: Mapping[str, list[list[Step]]] = {
    "a missing exchange": [steps("a", "b", group=(0, 1)), steps("a", group=(0, 1))],
    "another order": [steps("a", "b", group=(0, 1)), steps("b", "a", group=(0, 1))],
    "other bytes": [
        steps("a", group=(0, 1)), [((0, 1), Exchange("all_reduce", 8, "a"))],
    ],
    "a circle of three groups": [
        steps("a", group=(0, 1)) + steps("c", group=(0, 2)),
        steps("b", group=(1, 2)) + steps("a", group=(0, 1)),
        steps("c", group=(0, 2)) + steps("b", group=(1, 2)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", ENDLESS)
def test_ranks_that_wait_without_end_are_found(kind: str) -> None:
    with pytest.raises(InternalError, match="wait for each other"):
        check_order(ENDLESS[kind])
