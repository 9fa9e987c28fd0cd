"""The order of all steps from a graph to a program, as rows of two tables.

    import -> GRAPH -> LOWER -> code -> link      LOWER = three steps, PLACE (of place.py), PROGRAM

Each row is a `Step`: a function, and the condition under which a compile runs it.  At level 0 only
the steps that lowering requires run.  A step that finds new work after later steps has a second row
behind them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from tcc.debug import Trace
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node
from tcc.ir.graph.rewrite import without_dead
from tcc.ir.types import U8, DType
from tcc.passes.derive.algebra.fold_factors import fold_factors
from tcc.passes.derive.derive import Derivations, derive
from tcc.passes.derive.merge import MergePrices, merge_contractions
from tcc.passes.derive.resampling import move_resamplings
from tcc.passes.derive.zeros import skip_zeros
from tcc.passes.graph.canonicalize import canonicalize, canonicalize_last
from tcc.passes.graph.check_indices import check_indices
from tcc.passes.graph.compute_constants import compute_constants
from tcc.passes.graph.cse import merge_equal_nodes
from tcc.passes.graph.decompose import decompose_transposed, is_derived, may_take_forms
from tcc.passes.graph.fold_constants import fold_constants
from tcc.passes.graph.legalize_calls import legalize_calls
from tcc.passes.graph.legalize_calls.scatter import Cheapest
from tcc.passes.graph.nest_concats import nest_concats
from tcc.passes.graph.scatter_rows import scatter_rows
from tcc.passes.graph.settle_sizes import settle_sizes
from tcc.passes.graph.share_tables import share_tables
from tcc.passes.graph.shrink import shrink
from tcc.passes.graph.small_top_k import small_top_k
from tcc.passes.graph.state import bind_states
from tcc.passes.layout.assign import Placed
from tcc.passes.layout.pack_io import packed_io
from tcc.passes.manager import run_steps
from tcc.passes.memory.in_place import update_in_place
from tcc.passes.memory.order_steps import order_steps
from tcc.passes.memory.plan_arena import ArenaPlanner, plan_arena
from tcc.passes.memory.share_halos import share_halos
from tcc.passes.moe.grouped_gemm import TileOf, group_gemms
from tcc.passes.place import PLACE, LoweringContext
from tcc.passes.program.handles import erase_handles, with_ports
from tcc.passes.program.lower_node import emit
from tcc.passes.program.lowered import Lowered
from tcc.passes.program.overlap_collectives import overlap_collectives
from tcc.passes.program.small_sizes import direct_where_small
from tcc.passes.quantize.int8_matmul import int8_matmuls, int8_weight_matmuls
from tcc.passes.quantize.requantize import requantize
from tcc.passes.quantize.split_level_zeros import split_level_zeros
from tcc.passes.quantize.weight_quant_matmul import weight_quant_matmuls
from tcc.passes.quantize.zero_points import split_zero_points
from tcc.passes.steps import Step
from tcc.passes.tile.gpu.align import buffer_alignments
from tcc.schedule.nest import typical

# Returns the graph that each of several ranks runs.
Sharder: TypeAlias = Callable[[Graph], Graph]


@frozen
class GraphSettings:
    """The settings of the steps on graphs: which optional steps a target wants, and its prices.

    A Boolean field requests the step of the same name.
    `cheapest`: returns the index of the cheapest of several graphs; requests `legalize-calls`.
    `factor_type`: the 8-bit type of the unsigned factor in matmuls of bytes, as in
    `split_zero_points`.  With None, both factors keep their types.
    `tile_of`: returns the number of rows in a tile of a grouped GEMM; requests `grouped-gemms`.
    `checks`: True if `grouped-gemms` also adds checks of indices.  It replaces the gathers for
    which the later step `check-indices` would add them.
    `parts`: returns the index of the cheapest of several graphs; requests `shrink`.
    `zeros`: returns the index of the cheapest of several graphs; requests `skip-zeros` and
    `move-resamplings`.
    `merges`, `derivations`: the prices and limits of the steps `merge-contractions` and `derive`.
    `states`: pairs (input name, output name), where a run replaces the input by the output.
    `state_type`: the element type of states to which a run appends rows; None keeps their types.
    `sharder`: turns a graph into the graph that each of several ranks runs; requests `shard`.
    """

    small_top_k: bool = False
    cheapest: Cheapest | None = None
    int8_weight_matmuls: bool = False
    int8_matmuls: bool = False
    split_zero_points: bool = False
    factor_type: DType | None = U8
    requantize: bool = False
    split_level_zeros: bool = False
    tile_of: TileOf | None = None
    checks: bool = False
    fold_factors: bool = False
    parts: Cheapest | None = None
    zeros: Cheapest | None = None
    merges: MergePrices | None = None
    derivations: Derivations | None = None
    scatter_rows: bool = False
    check_indices: bool = False
    states: tuple[tuple[str, str], ...] = ()
    state_type: DType | None = None
    sharder: Sharder | None = None

    @property
    def stays_whole(self) -> Callable[[Node], bool] | None:
        """Returns a predicate that is true for transposed convolutions which may stay in one piece.

        The step `decompose-transposed` skips them, because the step `derive` may find a faster
        form.  Returns None if all of them shall be decomposed.
        """
        if self.derivations is None or self.derivations.strict:
            return None
        return may_take_forms if self.derivations.bilinear else is_derived


def shard(graph: Graph, sharder: Sharder) -> Graph:
    """Returns the graph that each rank runs."""
    return sharder(graph)


# The driver's `divided_graph` and `model_derivations` end their compiles after these steps.
SHARD = "shard"
MERGE = "merge-contractions"
GRAPH: tuple[Step, ...] = (
    Step("settle-sizes", settle_sizes, 1),
    Step("small-top-k", small_top_k, when="small_top_k"),
    Step("legalize-calls", legalize_calls, when="cheapest", reads=("cheapest",)),
    Step("int8-weight-matmuls", int8_weight_matmuls, 1, when="int8_weight_matmuls"),
    Step("int8-matmuls", int8_matmuls, 1, when="int8_matmuls"),
    Step("split-zero-points", split_zero_points, 1, "split_zero_points", ("factor_type",)),
    Step("requantize", requantize, 1, when="requantize"),
    Step("grouped-gemms", group_gemms, 2, when="tile_of", reads=("tile_of", "checks")),
    Step("fold-constants", fold_constants, 1),
    Step("weight-quant-matmuls", weight_quant_matmuls, 1),
    Step("split-level-zeros", split_level_zeros, 1, when="split_level_zeros"),
    Step("canonicalize", canonicalize, 1),
    Step("merge-equal-nodes", merge_equal_nodes, 1),
    Step("fold-factors", fold_factors, 1, when="fold_factors"),
    Step("skip-zeros", skip_zeros, 2, when="zeros", reads=("zeros",)),
    Step("legalize-calls-again", legalize_calls, when="cheapest", reads=("cheapest",)),
    Step("decompose-transposed", decompose_transposed, 1, reads=("stays_whole",)),
    Step("shrink", shrink, 2, when="parts", reads=("parts",)),
    Step("move-resamplings", move_resamplings, 2, when="zeros", reads=("zeros",)),
    Step("fold-constants-again", fold_constants, 1),
    Step("canonicalize-again", canonicalize_last, 1),
    Step("merge-equal-nodes-again", merge_equal_nodes, 1),
    Step("nest-concats", nest_concats, 1),
    # Constants are folded, and all later steps see what a rank computes.
    Step(SHARD, shard, when="sharder", reads=("sharder",)),
    Step(MERGE, merge_contractions, 2, when="merges", reads=("merges",)),
    Step("derive", derive, 2, when="derivations", reads=("derivations",)),
    Step("scatter-rows", scatter_rows, 1, when="scatter_rows"),
    Step("share-tables", share_tables, 1),
    Step("check-indices", check_indices, when="check_indices"),
    Step("drop-dead-nodes", without_dead),
    Step("bind-states", bind_states, reads=("states", "state_type")),
)


# The settings of a target that requests no optional step.
PLAIN = GraphSettings()


def run_pipeline(graph: Graph, level: int, trace: Trace, settings: GraphSettings = PLAIN) -> Graph:
    """Returns `graph` ready to be partitioned, at level `level` of -O."""
    result: Graph = run_steps(graph, GRAPH, settings, trace, level)
    return result


# ---- from a graph to a program ---------------------------------------------------------------


def pack_io(graph: Graph, context: LoweringContext) -> Graph:
    """Returns `graph` with inputs and outputs of less than a byte per element packed into bytes.

    Stores in `context` how callers see these inputs and outputs.
    """
    context.ports, context.packed = packed_io(graph)
    return context.ports


def align_buffers(lowered: Lowered) -> Lowered:
    """Returns `lowered` with the alignment of each buffer that its kernels access."""
    return replace(lowered, alignments=buffer_alignments(lowered.program, lowered.kernels))


def replace_operands(lowered: Lowered) -> Lowered:
    """Returns `lowered` with results that overwrite operands which nothing reads afterwards."""
    program, kernels = update_in_place(lowered.program, lowered.table.bounds)
    return replace(lowered, program=program, kernels=kernels)


def order(lowered: Lowered) -> Lowered:
    """Returns `lowered` with its launches in an order that needs less memory."""
    results = [kernel.results for kernel in lowered.kernels]
    program = order_steps(lowered.program, results, typical_dims(lowered))
    return replace(lowered, program=program)


def typical_dims(lowered: Lowered) -> dict[tuple[int, int], int]:
    """Returns the size of each axis of each input, by the numbers of both; typical if symbolic."""
    inputs = enumerate(lowered.placed.graph.inputs)
    return {(n, axis): typical(dim) for n, v in inputs for axis, dim in enumerate(v.shape)}


def reuse_halos(lowered: Lowered) -> Lowered:
    """Returns `lowered` with values of equal halos in a common buffer, filled once."""
    return replace(lowered, program=share_halos(lowered.program))


def overlap(lowered: Lowered) -> Lowered:
    """Returns `lowered` with collectives that start early and are waited for late."""
    return replace(lowered, program=overlap_collectives(lowered.program))


def assign_offsets(lowered: Lowered, arena: ArenaPlanner, shared: bool) -> Lowered:
    """Returns `lowered` with the offsets of its buffers in the arena."""
    return replace(lowered, program=plan_arena(lowered.program, arena, shared=shared))


def describe_ports(lowered: Lowered, ports: Graph) -> Lowered:
    """Returns `lowered` with ports that name strings and lists as callers see them."""
    return replace(lowered, program=with_ports(lowered.program, ports))


# If code for a kernel does not fit the target, these steps run again with other schedules.
PROGRAM: tuple[Step, ...] = (
    Step("emit", emit, reads=("context",)),
    Step("align-buffers", align_buffers, when="on_gpu"),
    Step("update-in-place", replace_operands, when="planner.scratch"),
    Step("order-steps", order),
    Step("share-halos", reuse_halos, when="has_gaps"),
    Step("overlap-collectives", overlap),
    # Only CPUs have scratch. There ranks share memory; on GPUs no rank reads another rank's memory.
    Step("plan-arena", assign_offsets, reads=("arena", "planner.scratch")),
    Step("direct-where-small", direct_where_small, reads=("planner",)),
    Step("describe-ports", describe_ports, when="ports", reads=("ports",)),
)
LOWER: tuple[Step, ...] = (
    Step("pack-io", pack_io, reads=("context",)),
    Step("compute-constants", compute_constants, reads=("planner",)),
    Step("name-handles", erase_handles),
    *PLACE,
    *PROGRAM,
)


def lower(form: Graph | Placed, plan: LoweringContext, trace: Trace) -> Lowered:
    """Returns the program and the kernels of `form`.

    `form` is a graph that is ready to be partitioned, or a placed graph.
    """
    steps = PROGRAM if isinstance(form, Placed) else LOWER
    lowered: Lowered = run_steps(form, steps, plan, trace)
    return lowered


def step_names() -> tuple[str, ...]:
    """Returns the names of all steps that a compile can run, in order."""
    return tuple(step.name for step in (*GRAPH, *LOWER))
