"""Converts expressions to regions and back, without loss except for the names of iterators.

Both directions keep the order of stages and factors.  If a body is a product, every occurrence of a
read becomes a factor of its own.  In any other body, equal reads become one factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tcc.ir import expr
from tcc.ir.expr import Expr, extent, reads, with_sources
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import (
    Apply,
    Arg,
    Cast,
    IndexValue,
    Read,
    Scalar,
    Scalars,
    Source,
    StageRef,
    argument,
    index_value,
    literal,
    read,
    rebuild,
    replaced,
    transform_all,
    walk,
)
from tcc.ir.graph.text import expr_text
from tcc.ir.index import Index, Var, Vars, free_vars, iterator
from tcc.ir.region import Factor, Factors, Region, RegionStage
from tcc.ir.region.affine import Sizes, affine_of, index_of, plain
from tcc.known import all_known


@lru_cache(4096)  # cached for equal layers, and for later passes over the same graph
def from_expr(source: Expr) -> Region:
    """Returns the region that computes the same as `source`.

    A stage that the fields of a `RegionStage` cannot express becomes a leaf.
    """
    stages = tuple(map(_stage, source.stages))
    return Region(source.params, stages, tuple((o.stage, o.component) for o in source.outputs))


def to_expr(region: Region) -> Expr:
    """Returns the expression of a region, with iterators named i0, i1, ..."""
    stages = tuple(map(_expr_stage, region.stages))
    return canonical(Expr(region.params, stages, tuple(StageRef(*o) for o in region.outputs)))


def region_text(region: Region) -> str:
    """Returns the text of a region's expression, from which the region can be parsed again."""
    return expr_text(to_expr(region))


# ---- from expressions ---------------------------------------------------------------------------

# If the reads of a product occur more often in total, equal reads become one factor: n repeated
# squares would give 2^n factors.
_MOST_OCCURRENCES = 16


def _stage(stage: expr.Stage) -> RegionStage:
    loops = {var: n for n, var in enumerate(stage.loops)}
    factor_of: dict[Scalar, Factor] = {}
    for node in walk(*stage.body):
        if isinstance(node, Read | IndexValue):
            factor = _factor(node, loops)
            if factor is None:
                return _leaf(stage)
            factor_of[node] = factor
    factors, body = _numbered(stage.body, factor_of)
    return RegionStage(_extents(stage.iters), _extents(stage.reduce), stage.monoid, factors, body)


def _extents(variables: Vars) -> Sizes:
    return tuple(plain(extent(v)) for v in variables)


def _factor(node: Read | IndexValue, loops: Mapping[Var, int]) -> Factor | None:
    indices = node.indices if isinstance(node, Read) else (node.index,)
    forms = all_known(affine_of(i, loops) for i in indices)
    if forms is None or (isinstance(node, Read) and node.indirect):
        return None
    if isinstance(node, IndexValue):
        return Factor(None, 0, forms, node.dtype)
    fill = None if node.fill is None else literal(node.fill, node.dtype)
    return Factor(*_number(node.source), forms, node.dtype, fill)


def _number(source: Source) -> tuple[int, int]:
    """Returns (source, component) in the numbers of `Factor`: n for operand n, ~n for stage n."""
    return (~source.stage, source.component) if isinstance(source, StageRef) else (source, 0)


def _numbered(body: Scalars, factor_of: Mapping[Scalar, Factor]) -> tuple[Factors, Scalars]:
    """Returns the factors in order of use, and the body with `Arg` n in place of factor n.

    `factor_of` has the factor of each read.
    """
    if len(factor_of) < _occurrences(body) <= _MOST_OCCURRENCES:
        factors: list[Factor] = []
        spread = _spread(body[0], factor_of, factors)
        return tuple(factors), (spread,)
    numbers: dict[Scalar, Scalar] = {
        node: argument(n, node.dtype) for n, node in enumerate(factor_of)
    }
    return tuple(factor_of.values()), tuple(replaced(scalar, numbers) for scalar in body)


def _occurrences(body: Scalars) -> int:
    """Returns the number of reads in a product of reads, with repetition.

    Returns 0 for a body that is not such a product.
    """
    counts: dict[Scalar, int] = {}
    for node in walk(*body):
        match node:
            case Read() | IndexValue():
                counts[node] = 1
            case Cast(arg=arg):
                counts[node] = counts[arg]
            case Apply(function="mul", args=args):
                counts[node] = sum(counts[a] for a in args)
            case _:
                return 0
    return counts[body[0]] if len(body) == 1 else 0


def _spread(scalar: Scalar, factor_of: Mapping[Scalar, Factor], factors: list[Factor]) -> Scalar:
    """Returns `scalar` with a new `Arg` for every occurrence of a read.

    Appends the factor of each occurrence to `factors`.
    """
    if scalar not in factor_of:
        return rebuild(scalar, lambda operand: _spread(operand, factor_of, factors))
    factors.append(factor_of[scalar])
    return argument(len(factors) - 1, scalar.dtype)


def _leaf(stage: expr.Stage) -> RegionStage:
    """Returns the stage as a leaf; its body reads operand n instead of the source of factor n."""
    numbers: dict[Source, int] = {}
    numbered = with_sources(stage, lambda source: numbers.setdefault(source, len(numbers)))
    named = canonical(Expr((), (numbered,), ())).stages[0]
    dtypes = {node.source: node.dtype for node in reads(stage)}
    factors = tuple(Factor(*_number(source), (), dtypes[source]) for source in numbers)
    return RegionStage(_extents(stage.iters), _extents(stage.reduce), stage.monoid, factors, named)


# ---- to expressions -----------------------------------------------------------------------------


def _source(factor: Factor) -> Source:
    assert factor.source is not None
    return factor.source if factor.source >= 0 else StageRef(~factor.source, factor.component)


def _expr_stage(stage: RegionStage) -> expr.Stage:
    if isinstance(stage.body, expr.Stage):
        sources: dict[Source, Source] = {n: _source(f) for n, f in enumerate(stage.factors)}
        return with_sources(stage.body, sources.__getitem__)
    loops = tuple(iterator(f"i{n}", size) for n, size in enumerate(stage.loops))
    nodes = [_node(f, [index_of(form, loops) for form in f.forms]) for f in stage.factors]

    def leaf(scalar: Scalar) -> Scalar:
        return nodes[scalar.number] if isinstance(scalar, Arg) else scalar

    variables = free_vars(*loops[: len(stage.iters)]), free_vars(*loops[len(stage.iters) :])
    return expr.Stage(*variables, stage.monoid, transform_all(stage.body, leaf))


def _node(factor: Factor, at: list[Index]) -> Scalar:
    if factor.source is None:
        return index_value(at[0], factor.dtype)
    fill = None if factor.fill is None else factor.fill.value
    return read(_source(factor), at, factor.dtype, fill=fill)
