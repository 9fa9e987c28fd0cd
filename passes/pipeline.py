"""The order of all steps from a graph to a program, as data.

    import -> PIPELINE -> bind-states -> CPU or GPU -> code -> link

At level 0 only the steps that lowering requires run. A pass runs again if a later one gives it more
to do.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from tcc.debug import Trace
from tcc.ir.graph import Graph
from tcc.ir.types import I8, U8
from tcc.passes.derive.algebra.fold_factors import fold_factors
from tcc.passes.derive.derive import Derivations, derive
from tcc.passes.derive.merge import MergePrices, merge_contractions
from tcc.passes.fuse.guards import split_guards
from tcc.passes.fuse.partition import partition
from tcc.passes.graph.canonicalize import canonicalize
from tcc.passes.graph.check_indices import check_indices
from tcc.passes.graph.compute_constants import compute_constants
from tcc.passes.graph.cse import merge_equal_nodes
from tcc.passes.graph.dce import drop_dead_nodes, drop_unread_arrays
from tcc.passes.graph.decompose import decompose_transposed, is_derived, may_take_forms
from tcc.passes.graph.fold_constants import fold_constants
from tcc.passes.graph.legalize_calls import legalize_calls
from tcc.passes.graph.legalize_calls.scatter import Cheapest
from tcc.passes.graph.nest_concats import nest_concats
from tcc.passes.graph.scatter_rows import scatter_rows
from tcc.passes.graph.settle_sizes import settle_sizes
from tcc.passes.graph.small_top_k import small_top_k
from tcc.passes.graph.state import bind_states
from tcc.passes.graph.tabulate import with_tables
from tcc.passes.layout.assign import Placed, assign_layouts
from tcc.passes.layout.choose import choose_layouts
from tcc.passes.layout.divide_sums import with_divided_sums
from tcc.passes.layout.pack_io import packed_io
from tcc.passes.manager import Pass, run_passes
from tcc.passes.memory.compact_buffers import compacted
from tcc.passes.memory.in_place import update_in_place
from tcc.passes.memory.order_steps import order_steps
from tcc.passes.memory.plan_arena import plan_arena
from tcc.passes.memory.share_halos import share_halos
from tcc.passes.moe.grouped_gemm import TileOf, group_gemms
from tcc.passes.program.handles import erase_handles, with_ports
from tcc.passes.program.lower_node import emit
from tcc.passes.program.lowered import Grouped, Lowered, Plan
from tcc.passes.program.overlap_collectives import overlap_collectives
from tcc.passes.program.small_sizes import direct_where_small
from tcc.passes.quantize.int8_matmul import int8_matmuls, int8_weight_matmuls
from tcc.passes.quantize.precision import narrowed
from tcc.passes.quantize.requantize import requantize
from tcc.passes.quantize.signed_operands import with_signed_operands
from tcc.passes.quantize.weight_quant_matmul import weight_quant_matmuls
from tcc.passes.quantize.zero_points import split_zero_points
from tcc.passes.tile.gpu.align import buffer_alignments
from tcc.schedule.nest import typical

FOLD_FACTORS = Pass("fold-factors", fold_factors, level=1)
DECOMPOSE_TRANSPOSED = Pass("decompose-transposed", decompose_transposed, level=1)
SETTLE_SIZES = Pass("settle-sizes", settle_sizes, level=1)
REWRITES = (
    Pass("fold-constants", fold_constants, level=1),
    Pass("weight-quant-matmuls", weight_quant_matmuls, level=1),
    Pass("canonicalize", canonicalize, level=1),
    Pass("merge-equal-nodes", merge_equal_nodes, level=1),
    FOLD_FACTORS,
    DECOMPOSE_TRANSPOSED,
    Pass("fold-constants-again", fold_constants, level=1),
    Pass("canonicalize-again", canonicalize, level=1),
    Pass("merge-equal-nodes-again", merge_equal_nodes, level=1),
    Pass("nest-concats", nest_concats, level=1),
)
DROPS = (
    Pass("drop-dead-nodes", drop_dead_nodes),
    Pass("drop-unread-arrays", drop_unread_arrays),
)
PIPELINE: tuple[Pass, ...] = (SETTLE_SIZES, *REWRITES, *DROPS)


# Passes that targets may request: the first two run after all rewriting, the others after the first
# pass.
SCATTER_ROWS = Pass("scatter-rows", scatter_rows, level=1)
CHECK_INDICES = Pass("check-indices", check_indices)
INT8_MATMULS = Pass("int8-matmuls", int8_matmuls, level=1)
INT8_WEIGHT_MATMULS = Pass("int8-weight-matmuls", int8_weight_matmuls, level=1)
# Instructions multiply signed bytes with unsigned ones, with signed ones, or with either.
SPLIT_ZERO_POINTS, SPLIT_TO_SIGNED, SPLIT_AS_GIVEN = (
    Pass("split-zero-points", partial(split_zero_points, to=to), level=1) for to in (U8, I8, None)
)
REQUANTIZE = Pass("requantize", requantize, level=1)
SMALL_TOP_K = Pass("small-top-k", small_top_k)
LEGALIZE_CALLS = Pass("legalize-calls", legalize_calls)


def legalizing(cheapest: Cheapest) -> Pass:
    """Returns `LEGALIZE_CALLS` with a choice between forms."""
    return replace(LEGALIZE_CALLS, function=partial(legalize_calls, cheapest=cheapest))


def grouped_gemms(tile_of: TileOf, *, checks: bool = False) -> Pass:
    """Returns the pass that turns per-row matmuls with data-dependent matrices into grouped GEMMs
    over tiles of rows.

    `checks`: also emit the index checks, for targets that request `CHECK_INDICES`: that pass no
    longer sees the indices of the rows.
    """
    grouped = partial(group_gemms, tile_of=tile_of, checks=checks)
    return Pass("grouped-gemms", grouped, level=2)


# The passes that prices choose, and the pass before `DERIVE`.
MERGE, DERIVE = "merge-contractions", "derive"
BEFORE_DERIVE = MERGE


def merging(prices: MergePrices) -> Pass:
    """Returns the pass that merges contractions which share a factor, if one takes less time."""
    return Pass(MERGE, partial(merge_contractions, prices=prices), level=2)


def passes(derivations: Derivations | None, requested: Sequence[Pass] = ()) -> tuple[Pass, ...]:
    """Returns the pipeline with the derivations within the limits of `derivations` (None: without
    them) and with the `requested` passes, each in its place."""
    late = tuple(p for p in requested if p in (SCATTER_ROWS, CHECK_INDICES))
    priced = tuple(p for p in requested if p.name == MERGE)
    early = tuple(p for p in requested if p not in (*late, *priced, FOLD_FACTORS))
    rewrites = tuple(p for p in REWRITES if p is not FOLD_FACTORS or p in requested)
    if derivations is not None:
        if not derivations.strict:
            rewrites = tuple(_with_forms(p, derivations) for p in rewrites)
        priced = (*priced, Pass(DERIVE, partial(derive, limits=derivations), level=2))
    return (SETTLE_SIZES, *early, *rewrites, *priced, *late, *DROPS)


def _with_forms(rewrite: Pass, derivations: Derivations) -> Pass:
    """Returns `rewrite`; decomposing then leaves whole the nodes that derivations may take."""
    if rewrite is not DECOMPOSE_TRANSPOSED:
        return rewrite
    whole = may_take_forms if derivations.bilinear else is_derived
    return replace(rewrite, function=partial(decompose_transposed, whole=whole))


def run_pipeline(
    graph: Graph,
    level: int,
    trace: Trace,
    *,
    derivations: Derivations | None = None,
    requested: Sequence[Pass] = (),
    states: Sequence[tuple[str, str]] = (),
) -> Graph:
    """Returns `graph` ready to be partitioned, at level `level` of -O.

    Its constants lie in a store of their own: arrays that folding replaced are freed with the
    argument. `derivations` and `requested` are as in `passes`; `states` are the inputs that outputs
    update, as in `bind_states`.
    """
    bound = Pass("bind-states", partial(bind_states, pairs=states))
    result: Graph = run_passes(graph, (*passes(derivations, requested), bound), trace, level)
    return result


# ---- from a graph to a program ---------------------------------------------------------------

# A step takes the plan of the lowering, and the form that the step before it returned.
Step: TypeAlias = tuple[str, Callable[[Plan, Any], Any]]


def _pack_io(plan: Plan, graph: Graph) -> Graph:
    plan.ports, plan.packed = packed_io(graph)
    return plan.ports


def _group(plan: Plan, graph: Graph) -> Grouped:
    return Grouped(graph, partition(split_guards(graph).graph, plan.planner))


def _narrow(plan: Plan, placed: Placed) -> Placed:
    return narrowed(placed, plan.precision, dict.fromkeys(placed.graph.constants, placed.graph))


def _update_in_place(_: Plan, lowered: Lowered) -> Lowered:
    program, kernels = update_in_place(lowered.program, lowered.table.bounds)
    return replace(lowered, program=program, kernels=kernels)


def _order(lowered: Lowered) -> Lowered:
    results = [kernel.results for kernel in lowered.kernels]
    inputs = enumerate(lowered.placed.graph.inputs)
    dims = {(n, axis): typical(dim) for n, v in inputs for axis, dim in enumerate(v.type.shape)}
    return replace(lowered, program=order_steps(lowered.program, results, dims))


def _describe_ports(plan: Plan, lowered: Lowered) -> Lowered:
    assert plan.ports is not None
    return replace(lowered, program=with_ports(lowered.program, plan.ports))


_PACK_IO: Step = ("pack-io", _pack_io)
_EMIT: Step = ("emit", emit)
_COMPUTE: Step = ("compute-constants", lambda plan, it: compute_constants(it, plan.planner))
_ASSIGN: tuple[Step, ...] = (
    ("partition", _group),
    ("assign-layouts", lambda plan, it: assign_layouts(it.graph, it.groups, plan.planner)),
)
_NARROW: Step = ("narrow-storage", _narrow)
_PLACE = (*_ASSIGN, _NARROW)
_IN_PLACE: Step = ("update-in-place", _update_in_place)
_ORDER: Step = ("order-steps", lambda plan, it: _order(it))
_ARENA: Step = (
    "plan-arena",
    lambda plan, it: replace(it, program=plan_arena(it.program, plan.arena)),
)
_OVERLAP: Step = (
    "overlap-collectives",
    lambda plan, it: replace(it, program=overlap_collectives(it.program)),
)
_PORTS: Step = ("describe-ports", _describe_ports)
CPU: tuple[Step, ...] = (
    _PACK_IO,
    _COMPUTE,
    ("name-handles", lambda plan, graph: erase_handles(graph)),
    *_ASSIGN,
    ("tabulate", lambda plan, it: with_tables(it, plan.planner.limits)),
    ("choose-layouts", lambda plan, it: choose_layouts(it, plan.planner, it.graph.constants)),
    # The chosen order decides which neighbours lie side by side and are multiplied at once.
    _NARROW,
    ("compact-buffers", lambda plan, placed: compacted(placed)),
    _EMIT,
    _IN_PLACE,
    _ORDER,
    ("share-halos", lambda plan, it: replace(it, program=share_halos(it.program))),
    _OVERLAP,
    _ARENA,
    ("direct-where-small", lambda plan, it: direct_where_small(it, plan.planner)),
    _PORTS,
)
# Without gaps between values and without strings, as a file of C requires.
PORTABLE: tuple[Step, ...] = (_PACK_IO, _COMPUTE, *_PLACE, _EMIT, _IN_PLACE, _ORDER, _ARENA, _PORTS)
# These steps run again with other schedules if kernels did not fit.
GPU_PROGRAM: tuple[Step, ...] = (
    _EMIT,
    (
        "align-buffers",
        lambda plan, it: replace(it, alignments=buffer_alignments(it.program, it.kernels)),
    ),
    _ORDER,
    _OVERLAP,
    (
        "plan-arena",  # no rank reads another's memory
        lambda plan, it: replace(it, program=plan_arena(it.program, plan.arena, shared=False)),
    ),
)
GPU: tuple[Step, ...] = (
    _PACK_IO,
    _COMPUTE,
    *_PLACE,
    ("divide-sums", lambda plan, it: with_divided_sums(it, plan.planner.divides)),
    ("sign-operands", lambda plan, it: with_signed_operands(it, plan.planner.makes)),
    *GPU_PROGRAM,
)


def lower(form: Graph | Placed, steps: Sequence[Step], plan: Plan, trace: Trace) -> Lowered:
    """Returns the program and the kernels of a graph that is ready to be partitioned, or of a
    placed one, by the `steps` of its kind of target."""
    bound = tuple(Pass(name, partial(function, plan)) for name, function in steps)
    lowered: Lowered = run_passes(form, bound, trace)
    return lowered


def step_names() -> tuple[str, ...]:
    """Returns the names of all steps that a compile can run, in order."""
    requested = (SMALL_TOP_K, LEGALIZE_CALLS, INT8_WEIGHT_MATMULS, INT8_MATMULS, SPLIT_ZERO_POINTS)
    early = (*passes(None, (*requested, REQUANTIZE, FOLD_FACTORS, SCATTER_ROWS, CHECK_INDICES)),)
    names = [p.name for p in early] + ["grouped-gemms", MERGE, DERIVE, "bind-states"]
    return tuple(dict.fromkeys((*names, *(name for name, _ in (*CPU, *PORTABLE, *GPU)))))
