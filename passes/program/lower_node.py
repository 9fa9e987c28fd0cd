"""Lowers a placed graph to a program, including the nodes that are not kernels.

    if, loop, scan -> branches, loops      top_k, ... -> calls      bind_size, require -> registers

Any other node cannot be run, and is refused by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tcc.errors import UserError
from tcc.ir.graph import Graph, Node, walk_nodes
from tcc.passes.fuse.node_kinds import NodeKind, classify
from tcc.passes.layout.assign import Placed, ProgramStep
from tcc.passes.place import LoweringContext
from tcc.passes.program.lower_calls import (
    BY_KERNELS,
    CALLS,
    Lower,
    lower_bind_size,
    lower_check_indices,
    lower_named_size,
    lower_require,
)
from tcc.passes.program.lower_collectives import COLLECTIVES, lower_collective, lower_rank
from tcc.passes.program.lower_control import lower_if, lower_loop, lower_scan
from tcc.passes.program.lower_graph import GraphLowering, lower_program
from tcc.passes.program.lower_handles import HANDLE_CALLS
from tcc.passes.program.lower_random import (
    lower_run_seed,
    lower_stream_number,
    lower_trip_number,
)
from tcc.passes.program.lowered import Lowered

_LOWER: Mapping[str, Lower] = MappingProxyType(
    {
        "if": lower_if,
        "loop": lower_loop,
        "scan": lower_scan,
        "bind_size": lower_bind_size,
        "broadcast_size": lower_named_size,
        "name_size": lower_named_size,
        "require": lower_require,
        "check_indices": lower_check_indices,
        **dict.fromkeys(COLLECTIVES, lower_collective),
        "rank": lower_rank,
        "run_seed": lower_run_seed,
        "stream_number": lower_stream_number,
        "trip_number": lower_trip_number,
        **CALLS,
        **HANDLE_CALLS,
    }
)


def lower_node(frame: GraphLowering, step: ProgramStep) -> None:
    """Emits the instructions of a step that is not a kernel."""
    node = step.node
    assert node is not None
    lower = _LOWER.get(node.op.name)
    if lower is None:
        raise _refusal((node,))
    lower(frame, node)


def emit(placed: Placed, context: LoweringContext) -> Lowered:
    """Plans the kernels of a placed graph, and returns them with the program that launches them."""
    placed = replace(placed, surface=context.packed)
    planner = context.planner
    program, table, weights = lower_program(placed, planner, lower_node, context.precision)
    return Lowered(placed, program, tuple(b.kernel for b in table.bounds), table, weights, planner)


def check_runnable(graph: Graph) -> None:
    """Raises UserError for a graph that no target can run; the error lists the nodes.

    A node cannot run if it has neither a kernel nor a C function.  Collectives of several groups
    whose ranks are not known cannot run either.  Nodes of loop bodies and branches are included.
    """
    missing = [
        node
        for node in walk_nodes(graph)
        if node.op.name not in _LOWER and classify(node) is NodeKind.OPAQUE
    ]
    if missing:
        raise _refusal(missing)
    _check_groups([node for node in walk_nodes(graph) if node.op.name in COLLECTIVES])


def check_without_calls(graph: Graph, kind: str) -> None:
    """Raises UserError if only C functions can compute some nodes of `graph`.

    Targets of this `kind` have no C functions.  The error lists the nodes, also those in bodies.
    """
    called = [node for node in walk_nodes(graph) if node.op.name in CALLS.keys() - BY_KERNELS]
    if called:
        raise _refusal(
            called,
            f"the model has nodes that {kind} cannot run",
            "only the host has a function for",
            "--allow-host runs these on the host, with copies there and back",
        )


def _check_groups(nodes: Sequence[Node]) -> None:
    nodes = [n for n in nodes if n.inputs and not n.attrs.members]
    groups = {n.attrs.group: n for n in nodes} | {n.attrs.ranks: n for n in nodes if n.attrs.ranks}
    if len({n.attrs.group for n in nodes}) > 1 or len({n.attrs.ranks for n in nodes} - {0}) > 1:
        raise _refusal(
            [*dict.fromkeys(groups.values())],
            "the model has collectives of several groups of ranks",
            "groups differ in name or size, and their ranks are not known, at",
            "export the model with all collectives on one group, or import the exported program "
            "where torch.distributed has its groups",
        )


def check_without_collectives(graph: Graph, kind: str) -> None:
    """Raises UserError if `graph` or its bodies have collectives; the error lists the nodes.

    Targets of this `kind` have no collectives.
    """
    nodes = [node for node in walk_nodes(graph) if node.op.name in COLLECTIVES]
    if nodes:
        raise _refusal(
            nodes,
            f"the model has collectives, which {kind} targets do not have",
            "only CPUs and GPUs have code for",
            "compile for one of them: --target cpu, cuda or rocm",
        )


def _refusal(
    nodes: Sequence[Node],
    message: str = "the model has nodes that no target can run",
    why: str = "there is no kernel and no C function for",
    hint: str = "`tcc ops` lists what can be run",
) -> UserError:
    lines = [f"{node.op.name} at {node.loc or node.outputs}" for node in nodes]
    return UserError(message, why="\n    ".join((why, *lines)), hint=hint)
