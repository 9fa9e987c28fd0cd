"""Places graphs as prices see them, on a core of a usual kind if no planner is given."""

from collections.abc import Collection

from tcc.ir.graph import Graph, Node
from tcc.passes import place
from tcc.passes.layout.assign import Placed
from tcc.passes.place import Plan
from tcc.passes.quantize.precision import FULL, Precision
from tcc.passes.tile.cpu.plan import CorePlanner
from tcc.passes.tile.plan import KernelPlanner
from tcc.schedule.cpu.core import TYPICAL_CORE

TYPICAL = CorePlanner(TYPICAL_CORE)


def place_graph(
    graph: Graph,
    precision: Precision = FULL,
    model: KernelPlanner = TYPICAL,
    ends: Collection[Node] = (),
) -> Placed:
    return place.place_graph(graph, Plan(model, precision=precision, ends=ends, priced=True))
