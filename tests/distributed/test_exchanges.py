"""The proof of a plan finds faults of a divided graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.costs import Cluster, RankRates, one_host
from tcc.distributed.exchanges import Division, check_exchanges, is_exchange
from tcc.distributed.facts import planned
from tcc.distributed.mesh import Mesh
from tcc.distributed.sharding import WHOLE, Partial, Split
from tcc.errors import InternalError
from tcc.ir.graph import Graph, Node, Value
from tcc.ir.graph.rewrite import substituted

from .networks import mlp

RATES = RankRates(operations=1e9, memory_bytes=1e9, link_bytes=1e11, latency=1e-7)


@pytest.fixture(scope="module")
def division() -> Division:
    result = planned(mlp(), one_host(2, RATES), partition_solver(), {}).division
    assert [(item.kind, item.value) for item in check_exchanges(result)] == [("all_reduce", "y")]
    return result


def with_nodes(division: Division, change: Callable[[Node], Node]) -> Division:
    local = division.local
    nodes = tuple(map(change, local.nodes))
    graph = Graph(
        local.name, local.inputs, local.outputs, nodes, local.constants, local.store, local.aliases
    )
    return replace(division, local=graph)


def other_attrs(**attrs: object) -> Callable[[Node], Node]:
    def change(node: Node) -> Node:
        if not is_exchange(node):
            return node
        return Node(node.op, replace(node.attrs, **attrs), node.inputs, node.outputs, node.loc)

    return change


def exchange(division: Division) -> Node:
    (node,) = (node for node in division.local.nodes if is_exchange(node))
    return node


def with_array(division: Division, name: str, sharding: object, array: Value) -> Division:
    (value,) = (value for value in division.arrays if value.name == name)
    arrays = {**division.arrays, value: {**division.arrays[value], sharding: array}}
    return replace(division, arrays=arrays)


def without_exchange(division: Division) -> Division:
    """Plants a fault: the partial sum is returned in place of the sum."""
    node = exchange(division)
    (part,), (value_of_all,) = node.inputs, node.outputs
    assert part is not None
    nodes = tuple(n for n in division.local.nodes if n is not node)
    local = substituted(replace_nodes(division.local, nodes), {value_of_all: part})
    return with_array(replace(division, local=local), "y", (WHOLE,), part)


def replace_nodes(graph: Graph, nodes: tuple[Node, ...]) -> Graph:
    return Graph(graph.name, graph.inputs, graph.outputs, nodes, graph.constants, graph.store)


def second_exchange(division: Division) -> Division:
    """Plants a fault: the sum is computed twice, and nothing reads the second."""
    node = exchange(division)
    again = Node(node.op, node.attrs, node.inputs, (Value("again", node.outputs[0].type),), "")
    return replace(division, local=replace_nodes(division.local, (*division.local.nodes, again)))


def exchanged_blocks(division: Division) -> Division:
    """Plants a fault: the ranks hold each other's block of a constant."""
    local = division.local
    value, handle = next(iter(local.constants.items()))
    arrays = local.store.arrays(handle)
    other = local.store.put_per_rank([np.array(a) for a in reversed(arrays)])
    constants = {**local.constants, value: other}
    graph = Graph(local.name, local.inputs, local.outputs, local.nodes, constants, local.store)
    return replace(division, local=graph)


def whole_reader(division: Division) -> Division:
    """Plants a fault: the strategy of r reads h whole, but the ranks' node reads a block."""
    choice = {
        node: (replace(items[0], operands=(WHOLE,)),) if node.outputs[0].name == "r" else items
        for node, items in division.choice.items()
    }
    return replace(division, choice=choice)


def wrong_shape(division: Division) -> Division:
    """Plants a fault: the whole value h stands where the ranks hold a block."""
    (value,) = (value for value in division.arrays if value.name == "h")
    return with_array(division, "h", (Split(1),), value)


FAULTS: Mapping[str, tuple[Callable[[Division], Division], str]] = {
    "a missing exchange": (without_exchange, "another exchange"),
    "an exchange too many": (second_exchange, "something else than the plan needs"),
    "another reduction": (
        lambda d: with_nodes(d, other_attrs(reduction="max")), "another exchange",
    ),
    "other blocks of a constant": (exchanged_blocks, "another part of a constant"),
    "a reader of another array": (whole_reader, "change of sharding is missing"),
    "a wrong shape": (wrong_shape, "wrong shape"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_divided_graph_are_found(division: Division, fault: str) -> None:
    plant, what = FAULTS[fault]
    with pytest.raises(InternalError, match=what):
        check_exchanges(plant(division))


def test_arrays_of_a_value_are_those_of_its_sharding(division: Division) -> None:
    (value,) = (value for value in division.arrays if value.name == "y")
    assert {*division.arrays[value]} == {(Partial("sum"),), (WHOLE,)}


# ---- meshes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_mesh() -> Division:
    cluster = Cluster(Mesh((2, 2)), (RATES, RATES))
    division = planned(mlp(), cluster, partition_solver(), {}).division
    assert check_exchanges(division)
    return division


def other_groups(division: Division) -> Division:
    """Plants a fault: the ranks of the other mesh axis exchange."""
    rows, columns = (axis.members for axis in division.mesh.axes)

    def change(node: Node) -> Node:
        if not is_exchange(node):
            return node
        members = rows if node.attrs.members == columns else columns
        return other_attrs(members=members)(node)

    return with_nodes(division, change)


MESH_FAULTS: Mapping[str, tuple[Callable[[Division], Division], str]] = {
    "the groups of the other axis": (other_groups, "another exchange"),
    "blocks of a constant in another order": (exchanged_blocks, "another part of a constant"),
    "another reduction": (
        lambda d: with_nodes(d, other_attrs(reduction="max")), "another exchange",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", MESH_FAULTS)
def test_faults_of_a_graph_divided_on_a_mesh_are_found(on_mesh: Division, fault: str) -> None:
    plant, what = MESH_FAULTS[fault]
    with pytest.raises(InternalError, match=what):
        check_exchanges(plant(on_mesh))
