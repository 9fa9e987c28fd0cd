"""Prices the graph that each of several ranks runs, as a compile would lower it.

a rank's graph  ->  the steps behind `shard`  ->  kernels, each with its price
                                              ->  a program: bytes of its memory
"""

from collections.abc import Callable, Iterator
from math import prod

from tcc.debug import Trace
from tcc.frozen import entity
from tcc.ir.graph import Graph
from tcc.ir.op import Trait
from tcc.ir.program import State, Symmetric, constant_registers
from tcc.passes.manager import run_steps
from tcc.passes.memory.plan_arena import live_bytes
from tcc.passes.pipeline import GRAPH, SHARD, GraphSettings, typical_dims
from tcc.passes.program.lowered import Lowered
from tcc.passes.program.price import priced_kernels
from tcc.passes.tile.plan import KernelChooser
from tcc.schedule.alternatives import number
from tcc.schedule.nest import typical

# How often a rank hands over an operand's blocks of all other ranks.
_SHARES = {"all_reduce": 2, "reduce_scatter": 1, "all_to_all": 1, "all_gather": 1}
_AFTER_SHARD = GRAPH[[step.name for step in GRAPH].index(SHARD) + 1 :]


@entity
class RankPrices:
    """Prices graphs by the kernels that `planner` chooses.

    `settings` and `level` select the steps on graphs, and `lower` returns a graph as a program.
    None of these belongs to a compile, so that a graph which is only priced leaves no trace there.
    """

    planner: KernelChooser
    settings: GraphSettings
    level: int
    lower: Callable[[Graph, Trace], Lowered]

    def seconds(self, graph: Graph) -> float:
        """Returns the predicted seconds of all kernels of a run.

        Exchanges and host functions have no price here.  Symbolic sizes count as typical.
        """
        kernels = priced_kernels(self._optimised(graph), self.planner)
        return sum(number(seconds) for _, seconds in kernels)

    def memory(self, graph: Graph) -> int:
        """Returns the bytes of weights, states and planned arenas of a rank.

        An arena whose size depends on symbolic sizes counts as what is live at typical sizes.
        """
        lowered = self.lower(self._optimised(graph), Trace())
        program, weights = lowered.program, lowered.weights.size
        sizes = constant_registers(program)
        arena = sizes.get(program.arena)
        if arena is None:
            arena = live_bytes(program, typical_dims(lowered))
        places = [buffer.place for buffer in program.buffers]
        states = sum(place.size for place in places if isinstance(place, State))
        exchanged = (
            sizes.get(place.offset, 0) + sizes.get(place.size, 0)
            for place in places
            if isinstance(place, Symmetric)
        )
        return weights + arena + states + max(exchanged, default=0)

    def _optimised(self, graph: Graph) -> Graph:
        form: Graph = run_steps(graph, _AFTER_SHARD, self.settings, Trace(), self.level)
        return form


def exchanged(graph: Graph) -> Iterator[tuple[str, int, tuple[tuple[int, ...], ...]]]:
    """Yields the kind of each exchange of a rank's graph, the bytes that a rank hands over to other
    ranks, and the groups of ranks.

    Symbolic sizes count as typical.
    """
    for node in graph.nodes:
        if Trait.COLLECTIVE in node.op.traits:
            for value in filter(None, node.inputs):
                bits = prod(map(typical, value.shape)) * value.dtype.bits
                others, blocks = node.attrs.ranks - 1, node.attrs.ranks
                blocks = 1 if node.op.name == "all_gather" else blocks
                bytes = -(-bits // 8) * _SHARES[node.op.name] * others // blocks
                yield node.op.name, bytes, node.attrs.members
