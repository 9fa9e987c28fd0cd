"""Plans: the strategies of a model's nodes, as JSON.

    {"tcc_plan": 1, "model": "5e0c...", "ranks": 2, "nodes": [
     {"node": "h", "op": "matmul", "strategy": "whole, split(1) -> split(1)"},
     {"node": "y", "op": "matmul", "strategy": "split(1), split(0) -> partial(sum)"}
     ],
     "exchanges": {"all_reduce": [1, 2048]}, "rank_weight_bytes": 1048576}

On a mesh, the plan has the numbers of ranks along its axes, and each node a strategy for each axis:

    {"tcc_plan": 1, "model": "5e0c...", "ranks": 4, "mesh": [2, 2], "nodes": [
     {"node": "h", "op": "matmul", "strategy": ["split(0), whole -> split(0)",
                                                "whole, split(1) -> split(1)"]}]}

A node is named by its first result in the graph that `tcc plan` divides.  `model` is a hash of that
graph.  A plan may leave nodes out: the solver chooses for them.  `exchanges` has for each kind of
collective their number in a run, and the bytes that a rank hands to all of them.  A plan may leave
out both costs; `tcc plan --check` compares them with its strategies.  Plans are not trusted.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from tcc.distributed.mesh import Mesh
from tcc.distributed.offers import NodeStrategies, mesh_offers
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node
from tcc.ir.graph.text import graph_text
from tcc.json_file import fields_of, read_json, rows

_VERSION = 1
_HINT = "make a plan with: tcc plan MODEL --ranks N -o plan.json"
_SHOWN = 8  # strategies in a message
_MOST_AXES = 2  # of a mesh


# A text for each axis of a mesh.
Texts: TypeAlias = tuple[str, ...]


@frozen
class Plan:
    """The texts of strategies by the name of the node, for the model with the hash `model`.

    `mesh` has the number of ranks along each axis, and a node a text for each axis.  `place` names
    the file in messages.  `exchanges` has for each kind of collective their number in a run and the
    bytes that a rank hands to them, `weight_bytes` the bytes of a rank's weights; they are None
    where the plan does not state them.
    """

    model: str
    mesh: tuple[int, ...]
    strategies: Mapping[str, Texts]
    place: str = ""
    exchanges: Mapping[str, tuple[int, int]] | None = None
    weight_bytes: int | None = None

    @property
    def ranks(self) -> int:
        """The number of all ranks."""
        return prod(self.mesh)


def model_hash(graph: Graph) -> str:
    """Returns 128 bits of a hash of a graph and its constants, as 32 hexadecimal digits."""
    digest = blake2b(graph_text(graph).encode(), digest_size=16)
    for value, handle in graph.constants.items():
        digest.update(f"{value.name} {handle.digest}\n".encode())
    return digest.hexdigest()


def plan_of(graph: Graph, choice: Mapping[Node, NodeStrategies], mesh: Mesh) -> Plan:
    """Returns the plan of a choice; it leaves out nodes that can only stay whole."""
    offered = mesh_offers(graph, mesh.axes)
    texts = {node.result.name: texts_of(choice[node])
             for node in graph.nodes if len(offered[node]) > 1}  # fmt: skip
    return Plan(model_hash(graph), mesh.sizes, texts)


def texts_of(items: NodeStrategies) -> Texts:
    """Returns the text of the strategy of each axis."""
    return tuple(map(repr, items))


def json_of(texts: Texts) -> str | list[str]:
    """Returns the texts of a node as they stand in a plan: a list if there are several."""
    return texts[0] if len(texts) == 1 else list(texts)


def plan_text(graph: Graph, plan: Plan) -> str:
    """Returns the JSON of a plan, with a line for each node."""
    head: dict[str, Any] = {"tcc_plan": _VERSION, "model": plan.model, "ranks": plan.ranks}
    if len(plan.mesh) > 1:
        head["mesh"] = plan.mesh
    ops = {node.result.name: node.op.name for node in graph.nodes if node.outputs}
    lines = [
        json.dumps({"node": name, "op": ops[name], "strategy": json_of(texts)})
        for name, texts in plan.strategies.items()
    ]
    costs: dict[str, Any] = {}
    if plan.exchanges is not None:
        costs["exchanges"] = plan.exchanges
    if plan.weight_bytes is not None:
        costs["rank_weight_bytes"] = plan.weight_bytes
    tail = ",\n" + json.dumps(costs)[1:-1] if costs else ""
    body = ', "nodes": [\n ' + ",\n ".join(lines) + "\n]"
    return json.dumps(head)[:-1] + body + tail + "}\n"


def check_model(graph: Graph, plan: Plan, mesh: Mesh) -> None:
    """Raises UserError for a plan of another model, number of ranks or mesh."""
    if plan.model != model_hash(graph):
        raise UserError(
            "the plan is for another model",
            where=plan.place,
            why=f"its model has the hash {plan.model[:32]}, this one {model_hash(graph)}",
            hint="the model, its sizes and the options have to be those of tcc plan; " + _HINT,
        )
    if plan.ranks != mesh.ranks:
        raise UserError(
            "the plan is for another number of ranks",
            where=plan.place,
            why=f"it divides the model among {plan.ranks} ranks, not {mesh.ranks}",
            hint=_HINT,
        )
    if plan.mesh != mesh.sizes:
        sizes = "x".join(map(str, plan.mesh)), "x".join(map(str, mesh.sizes))
        raise UserError(
            "the plan is for another mesh of ranks",
            where=plan.place,
            why=f"its ranks are a mesh of {sizes[0]}, not {sizes[1]}",
            hint="give the --cluster for which the plan was made",
        )


def fixed_strategies(graph: Graph, plan: Plan, mesh: Mesh) -> dict[Node, NodeStrategies]:
    """Returns the strategies that a plan fixes.

    Raises UserError for a plan of another model, number of ranks or mesh, for a node that the graph
    lacks, and for a strategy that the node does not offer.
    """
    check_model(graph, plan, mesh)
    nodes = {node.result.name: node for node in graph.nodes if node.outputs}
    offered = mesh_offers(graph, mesh.axes)
    fixed: dict[Node, NodeStrategies] = {}
    for name, texts in plan.strategies.items():
        if name not in nodes:
            raise UserError(
                "the plan names an unknown node",
                where=f"{plan.place}: {name}",
                why="no node of the model has this result",
                hint=_HINT,
            )
        where = f"{plan.place}: {name}"
        fixed[nodes[name]] = _strategies(offered[nodes[name]], texts, mesh.ranks, where)
    return fixed


def _strategies(
    offered: Sequence[NodeStrategies], texts: Texts, ranks: int, where: str
) -> NodeStrategies:
    # The order is reversed, so that the first of several strategies with the same text is kept.
    by_text = {texts_of(items): items for items in reversed(offered)}
    if texts not in by_text:
        shown = [joined(other) for other in dict.fromkeys(map(texts_of, offered))]
        raise UserError(
            "the node cannot be divided so",
            where=where,
            why=f"{joined(texts)!r} is not among its strategies on {ranks} ranks",
            hint="they are: " + "; ".join(shown[:_SHOWN]),
        )
    return by_text[texts]


def joined(texts: Texts) -> str:
    """Returns the texts of a node as one text for readers."""
    return " | ".join(texts)


# ---- files ---------------------------------------------------------------------------------------


def read_plan(path: Path, flag: str = "--plan") -> Plan:
    """Returns the plan in a file that the user gives with `flag`; raises UserError for a file that
    is none."""
    place = f"{flag} {path}"
    parse = partial(_parse, place=place)
    return read_json(path, parse, place, "the plan cannot be read", "the file is no plan", _HINT)


def _parse(table: Any, place: str) -> Plan:
    if not isinstance(table, dict) or table.get("tcc_plan") != _VERSION:
        raise ValueError(f'it has no "tcc_plan": {_VERSION}')
    model, ranks = table.get("model"), table.get("ranks")
    mesh = table.get("mesh", [ranks])
    if not isinstance(model, str):
        raise ValueError("model is not the hash of a model")
    if type(ranks) is not int or ranks < 1:
        raise ValueError("ranks is not a number of ranks")
    if not isinstance(mesh, list) or not 0 < len(mesh) <= _MOST_AXES or not all(
        type(size) is int and 0 < size <= ranks for size in mesh
    ) or prod(mesh) != ranks:  # fmt: skip
        raise ValueError(f"mesh is not at most {_MOST_AXES} numbers whose product is {ranks}")
    strategies: dict[str, Texts] = {}
    for node, row in rows(table, "nodes").items():
        name, texts = _row(row, node)
        if name in strategies:
            raise ValueError(f"{node} has the node {name[:64]!r} for the second time")
        if len(texts) != len(mesh):
            raise ValueError(f"{node} has {len(texts)} strategies for {len(mesh)} axes")
        strategies[name] = texts
    weights = table.get("rank_weight_bytes")
    if weights is not None and not _is_count(weights):
        raise ValueError("rank_weight_bytes is not a number of bytes")
    exchanges = _exchanges(table.get("exchanges"))
    return Plan(model, tuple(mesh), strategies, place, exchanges, weights)


def _exchanges(table: Any) -> dict[str, tuple[int, int]] | None:
    if table is None:
        return None
    for kind, pair in fields_of(table, "exchanges").items():
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(_is_count, pair)):
            raise ValueError(f"exchanges has no pair of a number and of bytes for {kind[:64]!r}")
    return {kind: (number, bytes) for kind, (number, bytes) in table.items()}


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _row(row: dict[str, Any], place: str) -> tuple[str, Texts]:
    name, strategy = row.get("node"), row.get("strategy")
    texts = strategy if isinstance(strategy, list) else [strategy]
    if not isinstance(name, str) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{place} has no texts node and strategy")
    return name, tuple(texts)
