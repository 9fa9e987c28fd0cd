"""Places graphs as prices see them, on a typical core if no planner is given."""

from collections.abc import Collection

from tcc.ir.graph import Graph, Node
from tcc.passes import place
from tcc.passes.layout.assign import Placed
from tcc.passes.place import LoweringContext
from tcc.passes.quantize.precision import FULL, Precision
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.plan import KernelChooser
from tcc.schedule.cpu.core import TYPICAL_CORE

TYPICAL = CoreChooser(TYPICAL_CORE)


def place_graph(
    graph: Graph,
    precision: Precision = FULL,
    model: KernelChooser = TYPICAL,
    ends: Collection[Node] = (),
) -> Placed:
    return place.place_graph(
        graph, LoweringContext(model, precision=precision, ends=ends, priced=True)
    )
