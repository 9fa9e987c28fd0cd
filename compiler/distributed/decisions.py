"""The strategies of nodes as decisions, which `tcc inspect --choices` lists and a file forces.

    {"kind": "partition", "site": "0f3c...", "alternative": "whole, split(1) -> split(1)"}

A site is a number of ranks and the expression of a node; equal nodes are numbered in the order of
the graph.  The price of an alternative is the node's own work: the solver also counts exchanges.
On a mesh, a site has the numbers of ranks of all axes, and an alternative their strategies.
"""

from collections.abc import Mapping

from tcc.distributed.costs import Cluster, node_seconds
from tcc.distributed.offers import NodeStrategies, expr_of, mesh_offers
from tcc.distributed.plan import joined, texts_of
from tcc.errors import UserError
from tcc.ir.graph import Graph, Node
from tcc.passes.choose.together import forced_numbers, numbered, settle_all
from tcc.schedule.alternatives import Alternative, Ledger, Seconds

KIND = "partition"


class StrategyDecisions:
    """The decisions for the nodes of a graph that ranks can share in several ways.

    There are none if `ledger` does not listen.
    """

    def __init__(self, graph: Graph, cluster: Cluster, ledger: Ledger) -> None:
        self._ledger = ledger
        offered = mesh_offers(graph, cluster.mesh.axes) if ledger.listens else {}
        pairs = ((node, expr_of(node)) for node in offered if len(offered[node]) > 1)
        exprs = {node: expr for node, expr in pairs if expr is not None}
        self._places = {
            node: tuple(
                Alternative(
                    s, Seconds(node_seconds(graph, node, s, cluster)), name=joined(texts_of(s))
                )
                for s in offered[node]
            )
            for node in exprs
        }
        ranks = "x".join(map(str, cluster.mesh.sizes))
        contents = [(f"{ranks} ranks", expr) for expr in exprs.values()]
        self._sites = numbered(ledger, KIND, lambda: contents)

    def forced(self, fixed: Mapping[Node, NodeStrategies]) -> dict[Node, NodeStrategies]:
        """Returns `fixed` and the strategies that the ledger forces.

        Raises UserError if the ledger forces another strategy than `fixed` has.
        """
        places = [*self._places.items()]
        numbers = forced_numbers(self._ledger, self._sites, [*self._places.values()])
        strategies = dict(fixed)
        for place, number in numbers.items():
            node, alternatives = places[place]
            strategy = alternatives[number].replacement
            if strategies.setdefault(node, strategy) != strategy:
                raise UserError(
                    "a plan and a forced choice divide a node differently",
                    where=node.result.name,
                    why=f"--plan says {joined(texts_of(fixed[node]))}, and --choices says "
                    f"{joined(texts_of(strategy))}",
                    hint="leave the node out of the plan, or the line out of the choices",
                )
        return strategies

    def record(self, choice: Mapping[Node, NodeStrategies]) -> None:
        """Records the choice of a strategy for each node."""
        names = [node.result.name for node in self._places]
        choices = [
            next(a for a in alternatives if a.replacement == choice[node])
            for node, alternatives in self._places.items()
        ]
        settle_all(self._ledger, self._sites, [*self._places.values()], choices, names)
