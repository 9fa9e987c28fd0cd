"""Rounds the factors of contractions that runs compute, so that pairs of bf16 are multiplied.

    s[i, j] = sum(d) q[i, d] * k[j, d]
->  a[i, d] = bf16(q[i, d]) ; b[j, d] = bf16(k[j, d]) ; s[i, j] = sum(d) f32(a[i, d]) * f32(b[j, d])

Attention multiplies such factors: queries, keys, exponentials and values.  Each tile rounds a
factor once, in its scratch.  Sums and all other values stay f32.  A factor that several heads share
is rounded for all of them: k[j, i // 8] becomes b[j, i // 8].
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from tcc.ir.expr import Expr, Stage, extent, inserted, known_extent, reads
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import (
    Read,
    Scalar,
    StageRef,
    apply,
    cast,
    read,
    substitute_indices,
    uncast,
)
from tcc.ir.graph import Value
from tcc.ir.index import (
    Index,
    Indices,
    Var,
    free_vars,
    iterator,
    of_atom,
)
from tcc.ir.layout import Layout
from tcc.ir.types import BF16, F32
from tcc.passes.choose.content import site
from tcc.passes.fuse.streaming import shared_steps
from tcc.passes.layout.assign import Kernel
from tcc.passes.quantize.round_stages import with_rounded
from tcc.passes.tile.plan import KernelChooser, kernel_key
from tcc.schedule.alternatives import Alternative
from tcc.schedule.nest import multiplied
from tcc.schedule.open_sizes import mean_share
from tcc.zipped import zip_equal


def cheaper_factors(
    kernel: Kernel,
    layouts: Mapping[Value, Layout],
    constants: Collection[Value],
    planner: KernelChooser,
) -> Kernel:
    """Returns `kernel` with the factors of its contractions in bf16, if that has a lower price.

    A planner without prices rounds no factor.
    """
    flags = [v in constants for v in kernel.operands]
    numbers = [n for n, is_constant in enumerate(flags) if is_constant]
    paired = replace(kernel, expr=with_rounded_factors(kernel.expr, numbers))
    if paired == kernel or not planner.prices_layouts or not planner.legal(paired.expr, flags):
        return kernel
    keys = [kernel_key(k, layouts, constants) for k in (kernel, paired)]
    times = [planner.times_of(key) for key in keys]
    rule, other = (
        Alternative(k, mean_share(t, times[0]), name=name)
        for k, t, name in zip_equal((kernel, paired), times, ("f32", "pairs of bf16"))
    )
    return planner.ledger.decide(partial(site, "pairs", *keys[0]), rule, (other,)).replacement


def with_rounded_factors(expr: Expr, constants: Collection[int]) -> Expr:
    """Returns `expr` with both factors of contractions in bf16; `expr` itself if none changes.

    Each factor must vary with a loop over results that the other one lacks, so that each rounded
    element is multiplied several times.  `constants` has the numbers of the constant operands: a
    contraction with a constant factor stays as it is.
    """
    stages = list(expr.stages)
    rounding_stages: dict[Stage, int] = {}
    in_place: set[StageRef] = set()
    for number, stage in enumerate(expr.stages):
        pair = multiplied(stage)
        if pair is None or stage.body[0].dtype is not F32:
            continue
        reads_ = (n for n in map(uncast, (pair.a, pair.b)) if isinstance(n, Read))
        nodes = [n for n in reads_ if _may_round(n, expr, constants)]
        if len(nodes) < 2 or not (_has_own_loop(*nodes) and _has_own_loop(*nodes[::-1])):
            continue
        factors: list[Scalar] = []
        for factor, node in zip_equal((pair.a, pair.b), nodes):
            if isinstance(node.source, StageRef):
                in_place.add(node.source)
            elif node.dtype is not BF16:
                rounding_stage, at = _rounded(factor, node)
                # `inserted` puts the rounding stages first, and -1 stands for the last of them.
                place = rounding_stages.setdefault(rounding_stage, -1 - len(rounding_stages))
                factor = cast(read(StageRef(place), at, BF16), F32)
            factors.append(factor)
        stages[number] = replace(stage, body=(apply("mul", *factors),))
    if not rounding_stages and not in_place:
        return expr
    expr = inserted(replace(expr, stages=tuple(stages)), 0, *reversed(rounding_stages))
    readers_of: dict[StageRef, frozenset[int]] = {}
    for ref in in_place:
        source = replace(ref, stage=ref.stage + len(rounding_stages))
        readers = (
            n for n, s in enumerate(expr.stages) if any(r.source == source for r in reads(s))
        )
        readers_of[source] = frozenset(readers)
    return canonical(with_rounded(expr, readers_of, BF16))


def _may_round(node: Read, expr: Expr, constants: Collection[int]) -> bool:
    """Returns True for a read of an operand, or of a stage without a reduction, that may be
    rounded there."""
    if node.indirect or node.fill is not None:
        return False
    if isinstance(node.source, int):
        return node.source not in constants and node.dtype.is_float
    is_plain = expr.stages[node.source.stage].monoid is None
    return is_plain and node.source not in expr.outputs and node.dtype is F32


def _has_own_loop(node: Read, other: Read) -> bool:
    """Returns True if `node` varies with a loop of several iterations that `other` lacks."""
    return any(
        known_extent(v) != 1
        and shared_steps(node, v) == 1
        and (v not in free_vars(*other.indices) or shared_steps(other, v) > 1)
        for v in free_vars(*node.indices)
    )


def _rounded(factor: Scalar, node: Read) -> tuple[Stage, Indices]:
    """Returns the stage that rounds `factor`, and the indices at which to read it.

    `factor` is the read `node`, or a cast of it.  The stage has the loops of the read, in the order
    of its indices.
    """
    loops: list[Index] = []
    at: list[Index] = []
    mapping: dict[Var, Index] = {}
    for number, var in enumerate(free_vars(*node.indices)):
        count = shared_steps(node, var)
        loop = iterator(f"i{number}", extent(var) // count)
        loops.append(loop)
        at.append(of_atom(var) // count)
        mapping[var] = loop * count
    body = cast(substitute_indices(factor, mapping), BF16)
    return Stage(free_vars(*loops), (), None, (body,)), tuple(at)
