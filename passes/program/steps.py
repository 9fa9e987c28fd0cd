"""The steps from a graph to a program, each a function of the plan of the lowering and a form.

`passes/pipeline.py` holds their order.  A step returns the form that it was given if it changes
nothing.
"""

from __future__ import annotations

from dataclasses import replace

from tcc.ir.graph import Graph
from tcc.passes.fuse.partition import partition
from tcc.passes.graph.computed_constants import with_computed_constants
from tcc.passes.layout.assign import Placed, assign_layouts
from tcc.passes.layout.choose import choose_layouts
from tcc.passes.layout.pack_io import packed_io
from tcc.passes.memory.compact_buffers import compacted
from tcc.passes.memory.in_place import update_in_place
from tcc.passes.memory.plan_arena import plan_arena
from tcc.passes.memory.share_halos import share_halos
from tcc.passes.program.handles import erase_handles, with_ports
from tcc.passes.program.lower_graph import lower_program
from tcc.passes.program.lower_node import lower_node
from tcc.passes.program.lowered import Grouped, Lowered, Plan
from tcc.passes.quantize.precision import narrowed
from tcc.passes.quantize.signed_operands import with_signed_operands
from tcc.passes.tile.gpu.align import buffer_alignments


def pack_io(plan: Plan, graph: Graph) -> Graph:
    graph, plan.packed = packed_io(graph)
    plan.ports = graph
    return graph


def name_handles(plan: Plan, graph: Graph) -> Graph:
    return erase_handles(graph)


def group(plan: Plan, graph: Graph) -> Grouped:
    return Grouped(graph, partition(graph, plan.planner))


def assign(plan: Plan, grouped: Grouped) -> Placed:
    return assign_layouts(grouped.graph, grouped.groups, plan.planner)


def narrow(plan: Plan, placed: Placed) -> Placed:
    constants = dict.fromkeys(placed.graph.constants, placed.graph)
    return narrowed(placed, plan.precision, constants)


def choose(plan: Plan, placed: Placed) -> Placed:
    return choose_layouts(placed, plan.planner, placed.graph.constants)


def compact(plan: Plan, placed: Placed) -> Placed:
    return compacted(placed)


def compute_constants(plan: Plan, placed: Placed) -> Placed:
    return with_computed_constants(placed)


def sign_operands(plan: Plan, placed: Placed) -> Placed:
    return with_signed_operands(placed, plan.planner.makes)


def emit(plan: Plan, placed: Placed) -> Lowered:
    """Plans the kernels, and the program that launches them."""
    placed = replace(placed, surface=plan.packed)
    program, table, weights = lower_program(placed, plan.planner, lower_node, plan.precision)
    kernels = tuple(b.kernel for b in table.bounds)
    return Lowered(placed, program, kernels, table, weights, plan.planner.verify)


def overwrite(plan: Plan, lowered: Lowered) -> Lowered:
    program, kernels = update_in_place(lowered.program, lowered.table.bounds)
    return replace(lowered, program=program, kernels=kernels)


def share(plan: Plan, lowered: Lowered) -> Lowered:
    return replace(lowered, program=share_halos(lowered.program))


def align(plan: Plan, lowered: Lowered) -> Lowered:
    return replace(lowered, alignments=buffer_alignments(lowered.program, lowered.kernels))


def place_buffers(plan: Plan, lowered: Lowered) -> Lowered:
    return replace(lowered, program=plan_arena(lowered.program))


def describe_ports(plan: Plan, lowered: Lowered) -> Lowered:
    assert plan.ports is not None
    return replace(lowered, program=with_ports(lowered.program, plan.ports))
