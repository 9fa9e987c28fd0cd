"""Orders a group's loops by storage, and merges loops that run through storage like one loop.

for i in 8: for j in 4: y@(4*i + j) = x@(4*i + j)     ->     for i.j in 32: y@(i.j) = x@(i.j)
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import permutations

from tcc.ir.expr import extent
from tcc.ir.expr.scalar import Read, Scalar, StageRef, index_values, read_at, rebuild, walk
from tcc.ir.index import (
    Index,
    Substitution,
    Var,
    Vars,
    as_int,
    bounds,
    const,
    free_vars,
    iterator,
    linear_in,
    substitute,
)
from tcc.ir.tile import guards_at
from tcc.ir.tile.group import Access, GroupBuffer, GroupStage, TileGroup
from tcc.passes.fuse.unify_iterators import coefficient
from tcc.schedule.nest import all_accesses, contraction_factors


def order_loops(group: TileGroup) -> TileGroup:
    """Returns the group with its loops in the order of storage, the largest stride first.

    A result loop counts with its stride in the first value that its stage stores; if the stage
    stores none, in the first value that the last stage stores.  A reduced loop counts with its
    stride in the operand that depends on most reduced loops, constants excluded.
    """
    last_store = next(iter(group.stages[-1].written), None)
    stages = []
    for stage in group.stages:
        iters = _by_stride(stage.iters, next(iter(stage.written), last_store))
        widest = widest_access(stage.accesses.values(), group.buffers, stage.reduce)
        stages.append(replace(stage, iters=iters, reduce=_by_stride(stage.reduce, widest)))
    common = _by_stride(group.common, last_store)
    if group.stream is not None:
        common = _rows_last(common, [stages[n] for n in group.stream.stages])
    return replace(group, stages=tuple(stages), common=common)


def _rows_last(loops: Vars, streaming: Sequence[GroupStage]) -> Vars:
    """Returns the loops in their order, except that row loops come last.

    A row loop indexes only one factor of a matmul of `streaming`, so each of its points reads the
    whole other factor again.  A tile holds several points of the last loops, so it reads the other
    factor less often.  Tiles that share a factor run close together.
    """
    rows: set[Var] = set()
    for stage in streaming:
        factors = contraction_factors(stage)
        if factors is not None:
            a, b = factors.loops(stage)
            rows |= a ^ b
    return tuple(sorted(loops, key=rows.__contains__))


def widest_access(
    accesses: Iterable[Access], buffers: Sequence[GroupBuffer], loops: Vars
) -> Access | None:
    """Returns the access that depends on most of `loops`, the first of equals.

    Accesses to constant buffers do not count.  Returns None if there is no other access.
    """
    moving = (a for a in accesses if not buffers[a.buffer].constant)
    return max(moving, default=None, key=lambda a: len({*loops} & {*free_vars(a.offset)}))


def _by_stride(loops: Vars, access: Access | None) -> Vars:
    return tuple(sorted(loops, key=lambda v: -coefficient_size(access, v)))


def coefficient_size(access: Access | None, var: Var) -> int:
    """Returns the distance in elements between neighbours along `var`.

    A symbolic distance counts as a large number.  Returns 0 if `access` is None.
    """
    if access is None:
        return 0
    low, high = bounds(coefficient(access.offset, var))
    return abs(high if high is not None else (low or 0) + (1 << 40))


# ---- collapsing ---------------------------------------------------------------------------------


def collapse(group: TileGroup) -> TileGroup:
    """Returns the group with pairs of loops (u, v) merged into one loop, where possible.

    Every offset must have the form c * (extent(v)*u + v) + d, where d depends on neither u nor v.
    """
    while pair := _collapsible_pair(group):
        group = _merge(group, *pair)
    return group


def _collapsible_pair(group: TileGroup) -> tuple[Var, Var] | None:
    fixed = _pinned(group)
    classes: dict[Vars, None] = {group.common: None}
    for stage in group.stages:
        classes[tuple(v for v in stage.iters if v not in group.common)] = None
        classes[stage.reduce] = None
    for variables in classes:
        for u, v in permutations([v for v in variables if v not in fixed], 2):
            if any((u in s.iters) != (v in s.iters) for s in group.stages):
                continue
            if all(_mergeable(a.offset, u, v) for s in group.stages for a in all_accesses(s)):
                return u, v
    return None


def _pinned(group: TileGroup) -> set[Var]:
    """Returns the iterators that must not be merged, because guards, strips or index values depend
    on them."""
    pinned: set[Var] = set() if group.stream is None else {group.stream.loop}
    for stage in group.stages:
        if stage.strip is not None:
            pinned.update((*group.common, stage.strip.rows))
        guards = (g.index for a in all_accesses(stage) for g in a.guards)
        pinned.update(free_vars(*guards, *index_values(*stage.body)))
    return pinned


def _mergeable(offset: Index, u: Var, v: Var) -> bool:
    by_u, by_v = linear_in(offset, u), linear_in(offset, v)
    if by_u is None or by_v is None:
        return False
    return by_u[0] is by_v[0] * extent(v)


def _merge(group: TileGroup, u: Var, v: Var) -> TileGroup:
    merged = iterator(f"{u.name}.{v.name}", extent(u) * extent(v))
    mapping = {u: const(0), v: merged}
    # If v has no iterations, nothing is read, and the quotient would divide by 0.
    parts = {u: merged // extent(v), v: merged % extent(v)} if as_int(extent(v)) != 0 else mapping
    (new,) = free_vars(merged)

    def loops(variables: Vars) -> Vars:
        return tuple(new if x is v else x for x in variables if x is not u)

    stages = tuple(
        replace(
            _with_blocks_at(s, mapping, parts),
            iters=loops(s.iters),
            reduce=loops(s.reduce),
            stores=tuple(tuple(_remapped(a, mapping) for a in c) for c in s.stores),
        )
        for s in group.stages
    )
    return replace(group, stages=stages, common=loops(group.common))


def _remapped(access: Access, mapping: Substitution) -> Access:
    return replace(access, offset=substitute(access.offset, mapping))


def _with_blocks_at(stage: GroupStage, mapping: Substitution, parts: Substitution) -> GroupStage:
    """Returns `stage` with the merged iterators in its accesses and its reads of earlier stages."""
    rebuilt: dict[Scalar, Scalar] = {}
    accesses: dict[Read, Access] = {}
    for old in walk(*stage.body):
        new = rebuilt[old] = rebuild(old, rebuilt.__getitem__)
        if isinstance(old, Read) and isinstance(new, Read):
            access = stage.accesses.get(old)
            if isinstance(new.source, StageRef):
                new = read_at(new, tuple(substitute(i, mapping) for i in new.indices), new.indirect)
                rebuilt[old] = new
            if access is not None:
                beyond = guards_at(access.beyond, parts)
                accesses[new] = replace(_remapped(access, mapping), beyond=beyond)
    return replace(stage, body=tuple(rebuilt[s] for s in stage.body), accesses=accesses)
