"""The forms of a model on its way from a graph to a host program.

Graph -> Grouped (which nodes are one kernel) -> Placed (where values lie) -> Lowered
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tcc.ir.graph import Graph
from tcc.ir.program import Program
from tcc.ir.tile import TileKernel
from tcc.ir.tile.text import kernel_text
from tcc.ir.types import TensorType
from tcc.passes.fuse.partition import Group
from tcc.passes.layout.assign import Placed
from tcc.passes.layout.weights import WeightTable
from tcc.passes.memory.plan_arena import ArenaPlanner
from tcc.passes.program.lower_graph import KernelTable
from tcc.passes.quantize.precision import FULL, Precision
from tcc.passes.tile.plan import KernelPlanner
from tcc.record import record


@dataclass(slots=True)
class Plan:
    """What the steps of one lowering share.

    `planner` is the target's, `arena` gives buffers their offsets; `ports` is the graph whose
    inputs and outputs are those that callers see, but for elements of less than a byte, whose types
    `packed` has by name.
    """

    planner: KernelPlanner
    arena: ArenaPlanner
    precision: Precision = FULL
    ports: Graph | None = None
    packed: Mapping[str, TensorType] = field(default_factory=dict)


@record
class Grouped:
    """A graph, and its nodes in groups: one kernel each, or one other step of the program."""

    graph: Graph
    groups: tuple[Group, ...]


@record
class Lowered:
    """A placed graph and its program, whose kernels have no names yet.

    `kernels` are in the order of the program's numbers, as `table` is, and `verify` raises
    InternalError for one that the target does not take; `alignments` are those of their buffers in
    bytes, where the target asks for them.
    """

    placed: Placed
    program: Program
    kernels: tuple[TileKernel, ...]
    table: KernelTable
    weights: WeightTable
    verify: Callable[[TileKernel], None]
    alignments: tuple[tuple[int, ...], ...] = ()

    def same_as(self, other: Lowered) -> bool:
        """Whether both become the same code, however their targets are compiled for."""
        return (
            self.program == other.program
            and [b.schedule for b in self.table.bounds] == [b.schedule for b in other.table.bounds]
            and self.alignments == other.alignments
            and self.weights.same_as(other.weights)
            and list(map(kernel_text, self.kernels)) == list(map(kernel_text, other.kernels))
        )
