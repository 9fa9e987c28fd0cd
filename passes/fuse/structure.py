"""Gives an expression storage: expression and layouts in, tile group out.

    y[i, j] = max(x[j, i], 0)   with x row-major [8, 4]
      ->  y@(8*i + j) = max(x@(4*j + i), 0)

Requires stages that read each other only at plain iterators (`compose` establishes it).
Establishes unified iterators, flat offsets, guards wherever an index is not proved inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tcc.errors import InternalError
from tcc.ir.expr import Expr, Stage, extent, reads
from tcc.ir.group import Access, GroupBuffer, GroupStage, TileGroup
from tcc.ir.index import (
    Index,
    Quotient,
    Remainder,
    Var,
    as_int,
    atoms,
    bounds,
    const,
    free_vars,
    iterator,
    linear_in,
    substitute,
    var_of,
    within,
)
from tcc.ir.layout import Layout, place, strides
from tcc.ir.scalar import (
    IndexValue,
    Read,
    Scalar,
    StageRef,
    read,
    rebuild,
    substitute_indices,
    walk,
)
from tcc.ir.tile import Guard, Scope
from tcc.ir.types import DType


@dataclass(frozen=True, slots=True)
class Storage:
    """Where an operand or result lies: its layout over its logical shape."""

    dtype: DType
    shape: tuple[Index, ...]
    layout: Layout
    constant: bool = False


def build_group(
    expr: Expr, operands: Sequence[Storage], results: Sequence[Storage], *, collapsed: bool = True
) -> TileGroup:
    """The tile group of `expr`; buffers are the operands in order, the results, then locals."""
    linked = link_stages(tuple(_shaped(s) for s in expr.stages))
    common = _common(linked)
    buffers = [
        GroupBuffer(s.dtype, _count(s.layout.sizes), scope, s.constant)
        for storages, scope in ((operands, Scope.INPUT), (results, Scope.OUTPUT))
        for s in storages
    ]
    held = {
        number: _local(buffers, shaped_stage.stage, common)
        for number, shaped_stage in enumerate(linked)
        if _needs_memory(linked, number, common)
    }
    stages = []
    for number, shaped_stage in enumerate(linked):
        stage = shaped_stage.stage
        accesses = {r: _read_access(r, operands, linked, held, common) for r in reads(stage)}
        stores: list[tuple[Access, ...]] = []
        for component in range(len(stage.body)):
            targets = [
                _store(len(operands) + n, shaped_stage, results[n])
                for n, out in enumerate(expr.outputs)
                if out == StageRef(number, component)
            ]
            if number in held:
                at = tuple(iterator(v.name, extent(v)) for v in stage.iters)
                targets.append(_local_access(held[number][component], stage, at, common))
            stores.append(tuple(targets))
        placed = {r: a for r, a in accesses.items() if a is not None}
        grouped = GroupStage(
            stage.iters, stage.reduce, stage.monoid, stage.body, placed, tuple(stores)
        )
        stages.append(grouped)
    group = order_loops(TileGroup(tuple(buffers), tuple(stages), common, ()))
    return _with_sizes(collapse(group) if collapsed else group)


@dataclass(frozen=True, slots=True)
class _Shaped:
    """A stage, and the logical index of its result as functions of its iterators.

    They differ from the iterators themselves once an iterator was split.
    """

    stage: Stage
    logical: tuple[Index, ...]


def _shaped(stage: Stage) -> _Shaped:
    """`stage` without loops of one trip."""
    at = tuple(iterator(v.name, extent(v)) for v in stage.iters)
    unit = {v: const(0) for v in (*stage.iters, *stage.reduce) if as_int(extent(v)) == 1}
    return _substituted(_Shaped(stage, at), unit, dict.fromkeys(unit, ()))


# ---- iterators ------------------------------------------------------------------------------


def link_stages(stages: tuple[_Shaped, ...]) -> tuple[_Shaped, ...]:
    """Makes readers and the stages they read loop over the same iterators, last stage first.

    A reshape between them shows as quotients and remainders in the read; the loop they cut is then
    split in two: `s[i // 64, i % 64]` becomes `s[u, v]` with `i = 64*u + v`.
    """
    linked = list(stages)
    for number in range(len(stages) - 1, -1, -1):
        linked[number] = _split_own(linked[number])
        reader = _first_reader(linked, number)
        if reader is not None:
            linked[number] = _follow(linked[number], reader)
    return tuple(linked)


def _first_reader(stages: Sequence[_Shaped], number: int) -> tuple[Index, ...] | None:
    for shaped in stages[number + 1 :]:
        for node in reads(shaped.stage):
            if isinstance(node.source, StageRef) and node.source.stage == number:
                used = {v for i in node.indices for v in free_vars(i)}
                if used <= set(shaped.stage.iters):
                    return node.indices
    return None


def _split_own(shaped: _Shaped) -> _Shaped:
    """Splits loops of a stage that its reads cut into quotient and rest."""
    while True:
        cut = _find_cut(shaped.stage)
        if cut is None:
            return shaped
        var, by = cut
        shaped = _split(shaped, var, by)


def _find_cut(stage: Stage) -> tuple[Var, int] | None:
    cuts: list[tuple[int, Var]] = []
    loops = (*stage.iters, *stage.reduce)
    for atom in (a for node in reads(stage) for i in node.indices for a in atoms(i)):
        if isinstance(atom, Quotient | Remainder):
            var, by = var_of(atom.num), as_int(atom.den)
            if var is None or by is None or var not in loops:
                continue
            if as_int(extent(var) % by) == 0:
                cuts.append((by, var))
    if not cuts:
        return None
    by, var = min(cuts, key=lambda cut: (cut[0], cut[1].name))
    return var, by


def _split(shaped: _Shaped, var: Var, by: int) -> _Shaped:
    outer = iterator(f"{var.name}a", extent(var) // by)
    inner = iterator(f"{var.name}b", by)
    names = (free_vars(outer)[0], free_vars(inner)[0])
    return _substituted(shaped, {var: outer * by + inner}, {var: names})


def _substituted(
    shaped: _Shaped, mapping: Mapping[Var, Index], loops: Mapping[Var, tuple[Var, ...]]
) -> _Shaped:
    stage = shaped.stage
    iters = tuple(new for v in stage.iters for new in loops.get(v, (v,)))
    reduce = tuple(new for v in stage.reduce for new in loops.get(v, (v,)))
    body = tuple(substitute_indices(s, mapping) for s in stage.body)
    logical = tuple(substitute(i, mapping) for i in shaped.logical)
    return _Shaped(replace(stage, iters=iters, reduce=reduce, body=body), logical)


def _follow(shaped: _Shaped, at: tuple[Index, ...]) -> _Shaped:
    """Gives a stage the iterators of the read `at`, where each index is a mixed-radix number of
    iterators of the reader that no other index uses."""
    mapping: dict[Var, Index] = {}
    loops: dict[Var, tuple[Var, ...]] = {}
    taken: set[Var] = set()
    for formula, index in zip(shaped.logical, at, strict=True):
        own = free_vars(formula)
        if not own:
            continue
        digits = _digits(index, _radix_size(formula))
        if digits is None or taken & set(digits):
            return shaped
        taken.update(digits)
        if len(own) == 1:
            mapping[own[0]], loops[own[0]] = index, digits
        elif tuple(map(extent, own)) == tuple(map(extent, digits)):
            mapping.update(
                {v: iterator(d.name, extent(d)) for v, d in zip(own, digits, strict=True)}
            )
            loops.update({v: (d,) for v, d in zip(own, digits, strict=True)})
        else:
            return shaped
    return _substituted(shaped, mapping, loops)


def _digits(index: Index, size: Index) -> tuple[Var, ...] | None:
    """The variables of a mixed-radix number that takes every value below `size`, largest first."""
    variables = sorted(free_vars(index), key=lambda v: -(as_int(_coefficient(index, v)) or 0))
    step = const(1)
    for var in reversed(variables):
        if var.extent is None or _coefficient(index, var) is not step:
            return None
        step = step * extent(var)
    return tuple(variables) if step is size and not index.const and variables else None


def _coefficient(index: Index, var: Var) -> Index:
    linear = linear_in(index, var)
    return const(0) if linear is None else linear[0]


def _common(stages: Sequence[_Shaped]) -> tuple[Var, ...]:
    """Iterators of every stage at which stages read each other one to one."""
    shared = set(stages[0].stage.iters)
    for shaped in stages[1:]:
        shared &= set(shaped.stage.iters)
    for shaped, at in _stage_reads(stages):
        values = dict(zip(shaped.stage.iters, _follow_indices(shaped, at), strict=True))
        shared = {v for v in shared if values[v] is _iterator(v)}
    return tuple(v for v in stages[-1].stage.iters if v in shared)


def _stage_reads(stages: Sequence[_Shaped]) -> list[tuple[_Shaped, tuple[Index, ...]]]:
    """The stages that later ones read, with the logical index of each such read."""
    return [
        (stages[node.source.stage], node.indices)
        for shaped in stages
        for node in reads(shaped.stage)
        if isinstance(node.source, StageRef)
    ]


def _iterator(var: Var) -> Index:
    return iterator(var.name, extent(var))


# ---- values that a unit holds in its scratch memory ----------------------------------------------


def _needs_memory(stages: Sequence[_Shaped], number: int, common: tuple[Var, ...]) -> bool:
    """Whether a later stage reads this one anywhere but at the point it was just computed."""
    own = stages[number]
    plain = tuple(map(_iterator, own.stage.iters))
    read_at = [at for shaped, at in _stage_reads(stages) if shaped is own]
    if not read_at:
        return False
    return set(own.stage.iters) != set(common) or any(
        _follow_indices(own, at) != plain for at in read_at
    )


def _local(buffers: list[GroupBuffer], stage: Stage, common: tuple[Var, ...]) -> tuple[int, ...]:
    size = _count(tuple(extent(v) for v in stage.iters if v not in common))
    if as_int(size) is None:
        raise InternalError("a value held in a unit's scratch must have a static size")
    numbers = []
    for scalar in stage.body:
        buffers.append(GroupBuffer(scalar.dtype, size, Scope.LOCAL))
        numbers.append(len(buffers) - 1)
    return tuple(numbers)


def _local_access(
    buffer: int, stage: Stage, at: tuple[Index, ...], common: tuple[Var, ...]
) -> Access:
    pairs = [(v, i) for v, i in zip(stage.iters, at, strict=True) if v not in common]
    return Access(buffer, _flatten(tuple(i for _, i in pairs), tuple(extent(v) for v, _ in pairs)))


# ---- accesses ---------------------------------------------------------------------------------


def _read_access(
    node: Read,
    operands: Sequence[Storage],
    stages: Sequence[_Shaped],
    held: Mapping[int, tuple[int, ...]],
    common: tuple[Var, ...],
) -> Access | None:
    """Where a read finds its element; None if it is the block just computed."""
    source = node.source
    if isinstance(source, int):
        return _access(source, node, operands[source])
    if source.stage not in held:
        return None
    shaped = stages[source.stage]
    at = _follow_indices(shaped, node.indices)
    place = _local_access(held[source.stage][source.component], shaped.stage, at, common)
    shape = tuple(map(_radix_size, shaped.logical))
    return replace(place, guards=tuple(_logical_guards(node, shape)))


def _follow_indices(shaped: _Shaped, logical: tuple[Index, ...]) -> tuple[Index, ...]:
    """The values of a stage's iterators at a logical index of its result."""
    found: dict[Var, Index] = {}
    for index, formula in zip(logical, shaped.logical, strict=True):
        own = free_vars(formula)
        if len(own) == 1:
            found[own[0]] = index
            continue
        rest = index
        for var in reversed(_digits(formula, _radix_size(formula)) or ()):
            found[var] = rest % extent(var)
            rest = rest // extent(var)
    return tuple(found[v] for v in shaped.stage.iters)


def _radix_size(formula: Index) -> Index:
    return _count(tuple(extent(v) for v in free_vars(formula)))


def _access(source: int, node: Read, storage: Storage) -> Access:
    guards = _logical_guards(node, storage.shape)
    stored = place(storage.layout, node.indices)
    if guards and _fills_agree(node, storage):
        in_storage = [
            Guard(i, n)
            for i, n in zip(stored, storage.layout.sizes, strict=True)
            if not within(i, n)
        ]
        guards = [] if not in_storage else guards
    return Access(source, _flatten(stored, storage.layout.sizes), tuple(guards))


def _logical_guards(node: Read, shape: tuple[Index, ...]) -> list[Guard]:
    """The bounds that are not proved.  Data-dependent indices are never taken on trust."""
    loose = {v for v, _ in node.indirect}
    return [
        Guard(i, n)
        for i, n in zip(node.indices, shape, strict=True)
        if loose & set(free_vars(i)) or not within(i, n)
    ]


def _fills_agree(node: Read, storage: Storage) -> bool:
    """Whether storage outside the elements holds what the read wants to see there."""
    return (
        node.fill is not None
        and storage.layout.fill is not None
        and (float(node.fill) == storage.layout.fill)
    )


def _store(buffer: int, shaped: _Shaped, storage: Storage) -> Access:
    return Access(buffer, _flatten(place(storage.layout, shaped.logical), storage.layout.sizes))


def _flatten(indices: tuple[Index, ...], sizes: tuple[Index, ...]) -> Index:
    total = const(0)
    for index, step in zip(indices, strides(sizes), strict=True):
        total = total + index * step
    return total


def _count(sizes: tuple[Index, ...]) -> Index:
    total = const(1)
    for size in sizes:
        total = total * size
    return total


# ---- order --------------------------------------------------------------------------------------


def order_loops(group: TileGroup) -> TileGroup:
    """Loops in the order storage is walked: by falling stride of the results (common and inner
    loops), and of the largest operand that is no constant (reductions)."""
    last = group.stages[-1]
    written = [a for c in last.stores for a in c][:1]
    stages = []
    for stage in group.stages:
        widest = _largest_operand(group, stage)
        own = [a for c in stage.stores for a in c][:1] or written
        stages.append(
            replace(
                stage,
                iters=_by_stride(stage.iters, own),
                reduce=_by_stride(stage.reduce, widest),
            )
        )
    return replace(group, stages=tuple(stages), common=_by_stride(group.common, written))


def _largest_operand(group: TileGroup, stage: GroupStage) -> list[Access]:
    sized = [
        (len(set(free_vars(a.offset)) & set(stage.reduce)), n, a)
        for n, a in enumerate(stage.accesses.values())
        if not group.buffers[a.buffer].constant
    ]
    return [max(sized, key=lambda s: (s[0], -s[1]))[2]] if sized else []


def _by_stride(loops: tuple[Var, ...], accesses: list[Access]) -> tuple[Var, ...]:
    if not accesses:
        return loops
    offset = accesses[0].offset

    def size(var: Var) -> int:
        low, high = bounds(_coefficient(offset, var))
        return abs(high if high is not None else (low or 0) + (1 << 40))

    return tuple(sorted(loops, key=lambda v: -size(v)))


# ---- collapsing ---------------------------------------------------------------------------------


def collapse(group: TileGroup) -> TileGroup:
    """Merges loops (u, v) that every access sees as one: offset = c*(extent(v)*u + v) + rest."""
    while (pair := _collapsible_pair(group)) is not None:
        group = _merge(group, *pair)
    return group


def _collapsible_pair(group: TileGroup) -> tuple[Var, Var] | None:
    fixed = _pinned(group)
    classes: dict[tuple[Var, ...], None] = {group.common: None}
    for stage in group.stages:
        classes[tuple(v for v in stage.iters if v not in group.common)] = None
        classes[stage.reduce] = None
    for variables in classes:
        free = [v for v in variables if v not in fixed]
        for u in free:
            for v in free:
                if u is not v and all(_mergeable(a.offset, u, v) for a in _accesses(group)):
                    return u, v
    return None


def _pinned(group: TileGroup) -> set[Var]:
    """Iterators that something other than a plain offset depends on."""
    pinned: set[Var] = set()
    for stage in group.stages:
        for scalar in walk(*stage.body):
            match scalar:
                case IndexValue():
                    pinned.update(free_vars(scalar.index))
        for access in stage.accesses.values():
            for guard in access.guards:
                pinned.update(free_vars(guard.index))
    return pinned


def _accesses(group: TileGroup) -> list[Access]:
    found: list[Access] = []
    for stage in group.stages:
        found += stage.accesses.values()
        found += (a for component in stage.stores for a in component)
    return found


def _mergeable(offset: Index, u: Var, v: Var) -> bool:
    by_u, by_v = linear_in(offset, u), linear_in(offset, v)
    if by_u is None or by_v is None:
        return False
    return by_u[0] is by_v[0] * extent(v)


def _merge(group: TileGroup, u: Var, v: Var) -> TileGroup:
    both = iterator(f"{u.name}.{v.name}", extent(u) * extent(v))
    mapping = {u: const(0), v: both}
    (new,) = free_vars(both)

    def loops(variables: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(new if x is v else x for x in variables if x is not u)

    return _map_loops(group, mapping, loops)


def _map_loops(
    group: TileGroup,
    mapping: Mapping[Var, Index],
    loops: Callable[[tuple[Var, ...]], tuple[Var, ...]],
) -> TileGroup:
    def moved(access: Access) -> Access:
        return _moved(access, mapping)

    stages = tuple(
        replace(
            _with_blocks_at(s, mapping),
            iters=loops(s.iters),
            reduce=loops(s.reduce),
            stores=tuple(tuple(moved(a) for a in c) for c in s.stores),
        )
        for s in group.stages
    )
    return replace(group, stages=stages, common=loops(group.common))


def _moved(access: Access, mapping: Mapping[Var, Index]) -> Access:
    return replace(access, offset=substitute(access.offset, mapping))


def _with_blocks_at(stage: GroupStage, mapping: Mapping[Var, Index]) -> GroupStage:
    """`stage` with accesses moved, and reads of blocks just computed at the new iterators."""
    done: dict[Scalar, Scalar] = {}
    accesses: dict[Read, Access] = {}
    for old in walk(*stage.body):
        new = done[old] = rebuild(old, done.__getitem__)
        if isinstance(old, Read) and isinstance(new, Read):
            access = stage.accesses.get(old)
            if access is None:
                at = tuple(substitute(i, mapping) for i in new.indices)
                done[old] = read(new.source, at, new.dtype, fill=new.fill, indirect=new.indirect)
            else:
                accesses[new] = _moved(access, mapping)
    return replace(stage, body=tuple(done[s] for s in stage.body), accesses=accesses)


def _with_sizes(group: TileGroup) -> TileGroup:
    found: dict[Var, None] = {}
    for stage in group.stages:
        indices = [extent(v) for v in (*stage.iters, *stage.reduce)]
        for access in stage.accesses.values():
            indices += [access.offset, *(g.index for g in access.guards)]
            indices += [g.extent for g in access.guards]
        indices += [a.offset for c in stage.stores for a in c]
        indices += [s.index for s in walk(*stage.body) if isinstance(s, IndexValue)]
        for index in indices:
            found.update({v: None for v in free_vars(index) if v.extent is None})
    return replace(group, sizes=tuple(found))
