"""Joins the expressions of a group's nodes into one, and inlines what need not be stored.

    s[i]    = sum(k) x[i, k]                       s[i] = sum(k) x[i, k]
    t[i]    = s[i] * 0.5                   ->      y[i] = max(s[i] * 0.5, 0)
    y[i]    = max(t[i], 0)

A stage without a reduction is substituted into its readers; it stays only where it is a result
itself, or costly work that several stages or a product read and a unit can hold.  Iterators are
numbered afresh, so equal groups give the same (interned) expression.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

from tcc.ir.expr import MONOIDS, Expr, Stage, extent, reads, with_reads, with_sources
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
    substitute_all,
    substitute_indices,
    transform,
    walk,
)
from tcc.ir.graph import Node, Value, Values
from tcc.ir.index import Index, Substitution, Var, Vars, free_vars, iterator, var_of, within
from tcc.ir.op import exact
from tcc.ir.types import U64, TensorType
from tcc.passes.fuse.hoist import hoist_normalisers
from tcc.passes.fuse.online_reductions import above
from tcc.passes.fuse.scratch_limit import too_large
from tcc.passes.fuse.trim_reductions import trim_reductions
from tcc.schedule.limits import TYPICAL_LIMITS, FusionLimits
from tcc.schedule.nest import multiplied, weight


def is_contraction(stage: Stage) -> bool:
    """A sum of products of two reads that share only part of the loops."""
    found = multiplied(stage)
    return found is not None and len(reads(stage)) >= 2 and found.a is not found.b


def node_expr(node: Node) -> Expr | None:
    """The tensor expression of a node, None where its op has none or a C function is better."""
    called = node.op.calls is not None and node.op.calls(_types(node), node.attrs)
    return None if called or node.op.expr is None else _own_expr(node)


def _types(node: Node) -> tuple[TensorType | None, ...]:
    return tuple(None if v is None else stored_type(v.type) for v in node.inputs)


def stored_type(type: TensorType) -> TensorType:
    """Strings and lists are words that name them."""
    return TensorType(U64, type.shape) if type.dtype.is_handle else type


@lru_cache(maxsize=4096)  # a group is composed again for every node that might join it
def _own_expr(node: Node) -> Expr:
    assert node.op.expr is not None
    return _expr(node.op.expr, _types(node), node.attrs, exact(node.attrs))


@lru_cache(maxsize=4096)  # equal layers
def _expr(
    build: Callable[..., Expr], types: tuple[TensorType | None, ...], attrs: Any, _: Hashable
) -> Expr:
    """What `build` of an op gives; attributes may be equal that are not exactly so."""
    return build(types, attrs)


# The expression of a node in a group, and where each of its operands comes from.
_Part: TypeAlias = "tuple[Expr, tuple[int | StageRef | None, ...]]"


def compose(
    members: Sequence[Node], results: Sequence[Value], limits: FusionLimits = TYPICAL_LIMITS
) -> tuple[Expr, Values]:
    """The expression that computes `results`, and its operands in order of first use.

    `members` are in topological order and all have expressions.
    """
    parts: list[_Part] = []
    made: dict[Value, StageRef] = {}
    operands: dict[Value, int] = {}
    first = 0
    for node in members:
        expr = _own_expr(node)
        parts.append((expr, tuple(_source(v, made, operands) for v in node.inputs)))
        for value, ref in zip(node.outputs, expr.outputs, strict=True):
            made[value] = StageRef(ref.stage + first, ref.component)
        first += len(expr.stages)
    outputs = tuple(made[v] for v in results)
    simple, used = _composed(tuple(v.type for v in operands), tuple(parts), outputs, limits)
    values = tuple(operands)
    return simple, tuple(values[n] for n in used)


@lru_cache(maxsize=1024)  # equal layers, and groups that are looked at again
def _composed(
    params: tuple[TensorType, ...],
    parts: tuple[_Part, ...],
    outputs: tuple[StageRef, ...],
    limits: FusionLimits,
) -> tuple[Expr, tuple[int, ...]]:
    """The expression of the parts together, simplified, and the operands that it reads."""
    stages: list[Stage] = []
    for expr, sources in parts:
        first = len(stages)
        for stage in expr.stages:
            stages.append(_renumbered(stage, first, sources, f"s{len(stages)}"))
    return _simplified(Expr(params, tuple(stages), outputs), limits)


def _simplified(whole: Expr, limits: FusionLimits) -> tuple[Expr, tuple[int, ...]]:
    """The expression with pointwise stages inlined, under canonical names, and its operands."""
    hoisted = hoist_normalisers(whole)
    composed, known = drop_unused(inline_pointwise(hoisted, _computing(hoisted)))
    kept, used = drop_unused(inline_pointwise(composed, costly(composed, limits)))
    if len(kept.stages) > 1 and too_large(kept, limits) is not None:
        kept, used = drop_unused(inline_pointwise(composed))
    return canonical(trim_reductions(kept)), tuple(known[n] for n in used)


def _source(
    value: Value | None, made: dict[Value, StageRef], operands: dict[Value, int]
) -> int | StageRef | None:
    if value is None:
        return None
    return made[value] if value in made else operands.setdefault(value, len(operands))


def _renumbered(
    stage: Stage, first: int, sources: tuple[int | StageRef | None, ...], prefix: str
) -> Stage:
    """`stage` with sources of the composed expression, and reductions named by `prefix`."""
    named = _own_names(stage, prefix if stage.reduce or _bound(stage) else "")

    def composed(old: Source) -> Source:
        if isinstance(old, StageRef):
            return StageRef(old.stage + first, old.component)
        new = sources[old]
        assert new is not None
        return new

    return with_sources(named, composed)


@lru_cache(maxsize=4096)
def _own_names(stage: Stage, prefix: str) -> Stage:
    """Iterators named alike in all stages: what is read element by element is inlined as it is."""
    inner = (*stage.reduce, *_bound(stage))
    mapping = {v: iterator(f"s.{n}", extent(v)) for n, v in enumerate(stage.iters)}
    mapping |= {v: iterator(f"{prefix}.{n}", extent(v)) for n, v in enumerate(inner)}
    return _renamed(stage, mapping)


def _bound(stage: Stage) -> Vars:
    """The data-dependent indices of a stage, each once, in order of use."""
    return tuple(dict.fromkeys(v for node in reads(stage) for v, _ in node.indirect))


def _renamed(stage: Stage, mapping: Substitution) -> Stage:
    """`stage` with iterators and data-dependent indices renamed, all at once."""
    return replace(
        stage,
        iters=_vars(stage.iters, mapping),
        reduce=_vars(stage.reduce, mapping),
        body=substitute_all(stage.body, mapping),
    )


def _vars(variables: Vars, mapping: Substitution) -> Vars:
    return tuple(free_vars(mapping[v])[0] for v in variables)


# ---- inlining -----------------------------------------------------------------------------------


def _computing(expr: Expr) -> frozenset[int]:
    """Stages that are more than a read elsewhere."""
    return frozenset(
        n for n, s in enumerate(expr.stages) if not all(isinstance(b, Read) for b in s.body)
    )


def costly(expr: Expr, limits: FusionLimits) -> frozenset[int]:
    """Stages whose work is too much to repeat in each of the reductions that read them, and results
    that other results are made of."""
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
    """Factors of products are read one by one, so even a sum is better made in vectors before.
    Anything else is, where to repeat it takes longer than a write and a read for each user."""
    if stage.monoid is None and any(map(is_contraction, users)):
        return any(isinstance(s, Apply) for s in walk(*stage.body))
    reduced, count = any(s.monoid is not None for s in users), len(users)
    exchange = limits.exchange * sum(b.dtype.bytes for b in stage.body)
    return reduced and (count - 1) * weight(stage) > count * exchange


def inline_pointwise(expr: Expr, kept: frozenset[int] = frozenset()) -> Expr:
    """Substitutes stages without a reduction into the stages that read them, but for `kept`."""
    stages: list[Stage] = []

    def inlined(node: Read) -> Scalar:
        source = node.source
        if not isinstance(source, StageRef) or source.stage in kept:
            return node
        return _inlined(node, stages[source.stage], source.component)

    for stage in expr.stages:
        stages.append(with_reads(stage, inlined))
    return replace(expr, stages=tuple(stages))


def _inlined(node: Read, stage: Stage, component: int) -> Scalar:
    body = stage.body[component]
    if stage.monoid is not None or not _safe_to_inline(node, stage, body):
        return node
    pairs = zip(stage.iters, node.indices, strict=True)
    mapping = {v: index for v, index in pairs if var_of(index) is not v}

    def bind(scalar: Scalar) -> Scalar:
        if not isinstance(scalar, Read):
            return scalar
        known, wanted = dict(scalar.indirect), free_vars(*scalar.indices)
        extra = (pair for pair in node.indirect if pair[0] in wanted and pair[0] not in known)
        bound = (*scalar.indirect, *extra)
        return read_at(scalar, scalar.indices, bound)

    body = substitute_indices(body, mapping) if mapping else body
    return transform(body, bind) if node.indirect else body


def _safe_to_inline(node: Read, stage: Stage, body: Scalar) -> bool:
    """A padded read of a computed value keeps its fill; a bound index keeps its arithmetic."""
    inside = all(within(i, extent(v)) for i, v in zip(node.indices, stage.iters, strict=True))
    if node.fill is not None and not inside:
        return False
    return not node.indirect or not any(isinstance(s, IndexValue) for s in walk(body))


# ---- tidying ------------------------------------------------------------------------------------


def drop_unused(expr: Expr) -> tuple[Expr, tuple[int, ...]]:
    """Without stages and operands that nothing reads; also the numbers of the operands kept."""
    kept = sorted(above(expr, (o.stage for o in expr.outputs)))
    stage_number = {old: new for new, old in enumerate(kept)}
    used: dict[int, int] = {}
    for number in kept:
        for node in reads(expr.stages[number]):
            if isinstance(node.source, int):
                used.setdefault(node.source, len(used))

    def moved(ref: StageRef) -> StageRef:
        return StageRef(stage_number[ref.stage], ref.component)

    def renumbered(old: Source) -> Source:
        return moved(old) if isinstance(old, StageRef) else used[old]

    stages = tuple(with_sources(expr.stages[n], renumbered) for n in kept)
    params = tuple(expr.params[n] for n in used)
    return Expr(params, stages, tuple(map(moved, expr.outputs))), tuple(used)


def canonical(expr: Expr) -> Expr:
    """Iterators and data-dependent indices named i0, i1, ... and t0, t1, ... in order of use."""
    count = bound = 0
    stages = []
    for stage in expr.stages:
        mapping: dict[Var, Index] = {}
        for var in stage.loops:
            mapping[var] = iterator(f"i{count}", extent(var))
            count += 1
        for var in _bound(stage):
            mapping[var] = iterator(f"t{bound}", extent(var))
            bound += 1
        stages.append(_renamed(stage, mapping))
    return replace(expr, stages=tuple(stages))


@lru_cache(maxsize=1024)  # a group's forms are asked for again and again
def side_by_side(expr: Expr) -> Expr:
    """`expr` with each two neighbouring reductions as one that walk the same loops and read the
    same elements; the second then is a component of the first."""
    stages = list(expr.stages)
    for n in range(len(stages) - 1):
        a, b = (_own_names(stage, "r") for stage in stages[n : n + 2])
        monoid = f"{a.monoid}_{b.monoid}"
        if monoid in MONOIDS and a.loops == b.loops and {*reads(a)} == {*reads(b)}:
            second = read(StageRef(n, 1), a.at, b.body[0].dtype)
            stages[n] = replace(a, monoid=monoid, body=a.body + b.body)
            stages[n + 1] = Stage(a.iters, (), None, (second,))
    return canonical(replace(expr, stages=tuple(stages)))
