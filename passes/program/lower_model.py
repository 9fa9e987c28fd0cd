"""A graph becomes what its target runs: a host program and kernels.

    cpu    layouts by price, results over operands that die, shared halos
    gpu    block kernels, nothing beside the elements, no result over an operand

Requires a graph that is ready to be partitioned.  Establishes a program whose memory is planned,
and one kernel for each of its kernel numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tcc.ir.graph import Graph
from tcc.ir.program import Program
from tcc.ir.tile import TileKernel
from tcc.ir.tile.text import kernel_text
from tcc.passes.graph.computed_constants import with_computed_masks
from tcc.passes.layout.assign import Placed
from tcc.passes.layout.choose import choose_layouts
from tcc.passes.layout.pack_io import packed_surface
from tcc.passes.layout.weights import WeightTable
from tcc.passes.memory.compact_buffers import thinned
from tcc.passes.memory.in_place import update_in_place
from tcc.passes.memory.plan_arena import plan_memory
from tcc.passes.memory.share_halos import share_halos
from tcc.passes.program.handles import erase_handles, with_ports
from tcc.passes.program.lower_graph import KernelTable, lower_program, place_graph
from tcc.passes.program.lower_node import lower_node
from tcc.passes.quantize.precision import Precision
from tcc.passes.quantize.signed_operands import with_signed_bytes
from tcc.passes.tile.gpu.align import buffer_alignments
from tcc.passes.tile.gpu.plan import BlockPlanner
from tcc.passes.tile.plan import KernelPlanner


@dataclass(frozen=True, slots=True)
class Lowered:
    """A placed graph and its program, whose kernels have no names yet.

    `kernels` are in the order of the program's numbers, as `table` is; `alignments` are those of
    their buffers in bytes, where the target asks for them.
    """

    placed: Placed
    program: Program
    kernels: tuple[TileKernel, ...]
    table: KernelTable
    weights: WeightTable
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


def lower_for_cpu(graph: Graph, planner: KernelPlanner, precision: Precision) -> Lowered:
    """`graph` for the cores of one processor."""
    graph, surface = packed_surface(graph)
    placed = place_graph(erase_handles(graph), precision, registers=planner.registers)
    placed = thinned(choose_layouts(placed, planner, placed.graph.constants))
    placed = replace(placed, surface=surface)
    program, table, weights = lower_program(placed, planner, lower_node, precision)
    program, kernels = update_in_place(program, table.bounds)
    planned = with_ports(plan_memory(share_halos(program)), graph)
    return Lowered(placed, planned, kernels, table, weights)


def lower_for_gpu(graph: Graph, planner: BlockPlanner, precision: Precision) -> Lowered:
    """`graph` as block kernels."""
    graph, surface = packed_surface(graph)
    placed = place_graph(
        graph,
        precision,
        registers=planner.registers,
        lowers=planner.lowers,
        gaps=planner.gaps,
        divides=planner.divides,
    )
    placed = with_signed_bytes(with_computed_masks(placed), planner.makes)
    return lower_placed(replace(placed, surface=surface), planner, precision)


def lower_placed(placed: Placed, planner: BlockPlanner, precision: Precision) -> Lowered:
    """A graph that is placed for GPUs, with the kernels that `planner` plans now."""
    program, table, weights = lower_program(placed, planner, lower_node, precision)
    kernels = tuple(b.kernel for b in table.bounds)
    alignments = buffer_alignments(program, kernels)
    return Lowered(placed, plan_memory(program), kernels, table, weights, alignments)
