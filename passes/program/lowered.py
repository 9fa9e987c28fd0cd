"""The forms of a model on its way from a graph to a host program.

Graph -> Grouped (which nodes are one kernel) -> Placed (where values lie) -> Lowered
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tcc.frozen import frozen
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


@dataclass(slots=True)
class Plan:
    """State that the steps of one lowering share.

    `planner` is the target's; `arena` assigns offsets to buffers. `ports` is the graph with the
    inputs and outputs that callers see, apart from elements of less than a byte, whose types are in
    `packed` by name.
    """

    planner: KernelPlanner
    arena: ArenaPlanner
    precision: Precision = FULL
    ports: Graph | None = None
    packed: Mapping[str, TensorType] = field(default_factory=dict)


@frozen
class Grouped:
    """A graph, and its nodes in groups: each is one kernel, or one other step of the program."""

    graph: Graph
    groups: tuple[Group, ...]


@frozen
class Lowered:
    """A placed graph and its program, whose kernels have no names yet.

    `kernels` and `table` are in the order of the program's numbers. `planner` planned the kernels.
    `alignments` are those of the kernels' buffers in bytes, if the target requests them.
    """

    placed: Placed
    program: Program
    kernels: tuple[TileKernel, ...]
    table: KernelTable
    weights: WeightTable
    planner: KernelPlanner
    alignments: tuple[tuple[int, ...], ...] = ()

    def same_as(self, other: Lowered) -> bool:
        """Returns True if both lowerings give the same code on every architecture."""
        return (
            self.program == other.program
            and [b.schedule for b in self.table.bounds] == [b.schedule for b in other.table.bounds]
            and self.alignments == other.alignments
            and self.weights.same_as(other.weights)
            and list(map(kernel_text, self.kernels)) == list(map(kernel_text, other.kernels))
        )
