"""Joins the expressions of a group's nodes into one, and inlines stages that need not be stored.

    s[i]    = sum(k) x[i, k]                       s[i] = sum(k) x[i, k]
    t[i]    = s[i] * 0.5                   ->      y[i] = max(s[i] * 0.5, 0)
    y[i]    = max(t[i], 0)

A stage without a reduction is substituted into its readers (inlined), with two exceptions.  It
stays a stage if it is a result of the group.  It also stays if its work is costly, if a contraction
or several stages read it, and if a tile can hold it.  Iterators are renumbered, so that equal
groups give the same (interned) expression.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from tcc.ir.expr import MONOIDS, Expr, Stage, extent, reads, renamed, with_reads, with_sources
from tcc.ir.expr.rename import bound_indices, canonical
from tcc.ir.expr.scalar import (
    Apply,
    IndexValue,
    Read,
    Scalar,
    Source,
    StageRef,
    read,
    read_at,
    reads_of_stages,
    substitute_indices,
    transform,
    walk,
)
from tcc.ir.graph import Node, Value, Values
from tcc.ir.index import free_vars, iterator, var_of, within
from tcc.ir.op import exact
from tcc.ir.types import U64, TensorType
from tcc.passes.fuse.hoist import hoist_normalisers
from tcc.passes.fuse.online_reductions import above
from tcc.passes.fuse.scratch_limit import too_large
from tcc.passes.fuse.trim_reductions import trim_reductions
from tcc.schedule.limits import TYPICAL_LIMITS, FusionLimits
from tcc.schedule.nest import multiplied, weight
from tcc.zipped import zip_equal

_T = TypeVar("_T")


def is_contraction(stage: Stage) -> bool:
    """Returns True if a stage is a sum of products of two different reads."""
    factors = multiplied(stage)
    return factors is not None and len(reads(stage)) >= 2 and factors.a is not factors.b


def node_expr(node: Node) -> Expr | None:
    """Returns the tensor expression of a node; None if it has none or a C function is faster."""
    called = node.op.calls is not None and node.op.calls(_types(node), node.attrs)
    return None if called or node.op.expr is None else _own_expr(node)


def _types(node: Node) -> tuple[TensorType | None, ...]:
    return tuple(None if v is None else stored_type(v.type) for v in node.inputs)


def stored_type(type: TensorType) -> TensorType:
    """Returns the type in memory of a value; strings and lists are stored as 64-bit handles."""
    return TensorType(U64, type.shape) if type.dtype.is_handle else type


@lru_cache(4096)  # cached, because every node that might join composes the group
def _own_expr(node: Node) -> Expr:
    assert node.op.expr is not None
    return _expr(node.op.expr, _types(node), node.attrs, exact(node.attrs))


@lru_cache(4096)  # cached, because equal layers need the same expression
def _expr(
    build: Callable[..., Expr], types: tuple[TensorType | None, ...], attrs: Any, _: Hashable
) -> Expr:
    """Returns the expression that an op's `build` makes for operand types and attributes.

    The last argument only extends the cache's key.  It tells apart attributes that compare equal
    but differ, such as 0.0 and -0.0.
    """
    return build(types, attrs)


# A pair (expression of a node, sources): operand n of the node is source `sources[n]` of the
# composed expression.
_Part: TypeAlias = "tuple[Expr, tuple[int | StageRef | None, ...]]"


def compose(
    members: Sequence[Node], results: Sequence[Value], limits: FusionLimits = TYPICAL_LIMITS
) -> tuple[Expr, Values]:
    """Returns the expression that computes `results`, and its operands in order of first use.

    `members` are in topological order and all have expressions.
    """
    parts: list[_Part] = []
    ref_of: dict[Value, StageRef] = {}
    operands: dict[Value, int] = {}
    first = 0
    for node in members:
        expr = _own_expr(node)
        parts.append((expr, tuple(source_of(v, ref_of, operands) for v in node.inputs)))
        for value, ref in zip_equal(node.outputs, expr.outputs):
            ref_of[value] = StageRef(ref.stage + first, ref.component)
        first += len(expr.stages)
    outputs = tuple(ref_of[v] for v in results)
    simple, operand_numbers = _composed(
        tuple(v.type for v in operands), tuple(parts), outputs, limits
    )
    values = tuple(operands)
    return simple, tuple(values[n] for n in operand_numbers)


@lru_cache(1024)  # cached for equal layers, and for groups that several rules compose
def _composed(
    params: tuple[TensorType, ...],
    parts: tuple[_Part, ...],
    outputs: tuple[StageRef, ...],
    limits: FusionLimits,
) -> tuple[Expr, tuple[int, ...]]:
    """Returns (expr, numbers): the simplified expression of all parts; its operand n is parameter
    `numbers[n]` of `params`."""
    stages: list[Stage] = []
    for expr, sources in parts:
        first = len(stages)
        for stage in expr.stages:
            stages.append(_renumbered(stage, first, sources, f"s{len(stages)}"))
    return _simplified(Expr(params, tuple(stages), outputs), limits)


def _simplified(joined: Expr, limits: FusionLimits) -> tuple[Expr, tuple[int, ...]]:
    """Returns the expression with pointwise stages inlined, and the old indices of its operands.

    Its iterators have canonical names.
    """
    hoisted = hoist_normalisers(joined)
    # The stages that do more than copy an element.
    computing = frozenset(
        n for n, s in enumerate(hoisted.stages) if not all(isinstance(b, Read) for b in s.body)
    )
    composed, read_operands = drop_unused(inline_pointwise(hoisted, computing))
    stored_form, operand_numbers = drop_unused(inline_pointwise(composed, costly(composed, limits)))
    if len(stored_form.stages) > 1 and too_large(stored_form, limits) is not None:
        stored_form, operand_numbers = drop_unused(inline_pointwise(composed))
    return canonical(trim_reductions(stored_form)), tuple(read_operands[n] for n in operand_numbers)


def source_of(
    value: Value | None, computed: Mapping[Value, _T], operands: dict[Value, int]
) -> int | _T | None:
    """Returns the source from which a group's node reads `value`.

    `computed` has the sources of values that the group computes.  All other values are operands,
    whose numbers `operands` has; a new operand is added to it.
    """
    if value is None:
        return None
    return computed[value] if value in computed else operands.setdefault(value, len(operands))


def _renumbered(
    stage: Stage, first: int, sources: tuple[int | StageRef | None, ...], prefix: str
) -> Stage:
    """Returns a stage of a node's expression with its sources in the composed expression.

    Stage n of the node gets the number `first + n`.  `sources` has the source of each operand of
    the node.  Names of reduced loops begin with `prefix`.
    """
    named = _own_names(stage, prefix if stage.reduce or bound_indices(stage) else "")

    def composed(old: Source) -> Source:
        if isinstance(old, StageRef):
            return StageRef(old.stage + first, old.component)
        new = sources[old]
        assert new is not None
        return new

    return with_sources(named, composed)


@lru_cache(4096)
def _own_names(stage: Stage, prefix: str) -> Stage:
    """Returns the stage with standard names for its result iterators.

    All stages have the same names, so elementwise reads are inlined without renaming.
    """
    inner = (*stage.reduce, *bound_indices(stage))
    mapping = {v: iterator(f"s.{n}", extent(v)) for n, v in enumerate(stage.iters)}
    mapping |= {v: iterator(f"{prefix}.{n}", extent(v)) for n, v in enumerate(inner)}
    return renamed(stage, mapping)


# ---- inlining -----------------------------------------------------------------------------------


def costly(expr: Expr, limits: FusionLimits) -> frozenset[int]:
    """Returns the stages, by number, that are better stored than inlined.

    A stage is better stored if it is too costly to repeat in each reader, or if it is a result that
    only pointwise stages read.
    """
    results = {out.stage for out in expr.outputs}
    readers: dict[int, list[Stage]] = {}
    for stage in expr.stages:
        for source in {source.stage for _, source in reads_of_stages(*stage.body)}:
            readers.setdefault(source, []).append(stage)
    return frozenset(
        number
        for number, users in readers.items()
        if _worth_keeping(expr.stages[number], users, limits)
        or (number in results and all(s.monoid is None for s in users))
    )


def _worth_keeping(stage: Stage, users: Sequence[Stage], limits: FusionLimits) -> bool:
    """Returns True if storing a stage is better than repeating it in its readers.

    A contraction reads each element of its factors several times.  So a stage that computes a
    factor is stored before the contraction.  A stage that reductions read is stored if computing it
    in each reader takes longer than storing it once and loading it in each reader.
    """
    if stage.monoid is None and any(map(is_contraction, users)):
        return any(isinstance(s, Apply) for s in walk(*stage.body))
    reduced, count = any(s.monoid is not None for s in users), len(users)
    exchange = limits.exchange * sum(b.dtype.bytes for b in stage.body)
    return reduced and (count - 1) * weight(stage) > count * exchange


def inline_pointwise(expr: Expr, stored: frozenset[int] = frozenset()) -> Expr:
    """Returns `expr` with stages without reductions substituted into their readers.

    The stages `stored` are not substituted.
    """
    stages: list[Stage] = []

    def inlined(node: Read) -> Scalar:
        source = node.source
        if not isinstance(source, StageRef) or source.stage in stored:
            return node
        return _inlined(node, stages[source.stage], source.component)

    for stage in expr.stages:
        stages.append(with_reads(stage, inlined))
    return replace(expr, stages=tuple(stages))


def _inlined(node: Read, stage: Stage, component: int) -> Scalar:
    body = stage.body[component]
    if stage.monoid is not None or not _safe_to_inline(node, stage, body):
        return node
    pairs = zip_equal(stage.iters, node.indices)
    mapping = {v: index for v, index in pairs if var_of(index) is not v}

    def bind(scalar: Scalar) -> Scalar:
        if not isinstance(scalar, Read):
            return scalar
        own_indices, variables = dict(scalar.indirect), free_vars(*scalar.indices)
        extra = (
            pair for pair in node.indirect if pair[0] in variables and pair[0] not in own_indices
        )
        return read_at(scalar, scalar.indices, (*scalar.indirect, *extra))

    body = substitute_indices(body, mapping) if mapping else body
    return transform(body, bind) if node.indirect else body


def _safe_to_inline(node: Read, stage: Stage, body: Scalar) -> bool:
    """Returns True if inlining `stage` at a read keeps the value.

    Inlining may change the value if the read may be outside and get its fill value.  It may also if
    the read has a data-dependent index and the stage uses its indices as values.
    """
    inside = all(within(i, extent(v)) for i, v in zip_equal(node.indices, stage.iters))
    if node.fill is not None and not inside:
        return False
    return not node.indirect or not any(isinstance(s, IndexValue) for s in walk(body))


# ---- unused stages and operands -----------------------------------------------------------------


def drop_unused(expr: Expr) -> tuple[Expr, tuple[int, ...]]:
    """Returns (expr, numbers): the expression without unused stages and operands.

    `numbers` has the old index of each operand that is left.
    """
    stage_numbers = sorted(above(expr, (o.stage for o in expr.outputs)))
    stage_number = {old: new for new, old in enumerate(stage_numbers)}
    operand_place: dict[int, int] = {}
    for number in stage_numbers:
        for node in reads(expr.stages[number]):
            if isinstance(node.source, int):
                operand_place.setdefault(node.source, len(operand_place))

    def renumbered_ref(ref: StageRef) -> StageRef:
        return StageRef(stage_number[ref.stage], ref.component)

    def renumbered(old: Source) -> Source:
        return renumbered_ref(old) if isinstance(old, StageRef) else operand_place[old]

    stages = tuple(with_sources(expr.stages[n], renumbered) for n in stage_numbers)
    params = tuple(expr.params[n] for n in operand_place)
    return Expr(params, stages, tuple(map(renumbered_ref, expr.outputs))), tuple(operand_place)


# cached, because prices and lowering merge the same expression several times
@lru_cache(1024)
def side_by_side(expr: Expr) -> Expr:
    """Returns `expr` with pairs of neighbouring reductions over equal loops and elements merged.

    The second reduction of a pair becomes a second component of the first.
    """
    stages = list(expr.stages)
    for n in range(len(stages) - 1):
        a, b = (_own_names(stage, "r") for stage in stages[n : n + 2])
        monoid = f"{a.monoid}_{b.monoid}"
        if monoid in MONOIDS and a.loops == b.loops and {*reads(a)} == {*reads(b)}:
            second = read(StageRef(n, 1), a.at, b.body[0].dtype)
            stages[n] = replace(a, monoid=monoid, body=a.body + b.body)
            stages[n + 1] = Stage(a.iters, (), None, (second,))
    return canonical(replace(expr, stages=tuple(stages)))
