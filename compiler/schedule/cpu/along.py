"""Pointwise stages that are made along the reduction behind them, in one pass.

    e[i, j] = exp(x[i, j] - m[i])                 for j:  e = exp(x - m) ; store e ; s += e
    s[i] = sum(j) e[i, j]               ->
    y[i, j] = e[i, j] / s[i]                      for j:  y = e / s

The reduction then reads no scratch, and its sums wait behind the arithmetic of the stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tcc.ir.expr import extent
from tcc.ir.expr.scalar import Read, StageRef, reads_of_stages
from tcc.ir.index import Var, of_atom, substitute
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.schedule.cpu.schedule import Nest
from tcc.schedule.nest import stride


def loops_along(
    group: TileGroup, numbers: Sequence[int], stage: GroupStage
) -> Mapping[Var, Var] | None:
    """The reduction's loops by those of the pointwise stages `numbers`, which all have the same;
    None unless `stage` reads each of their elements once, and of theirs no others."""
    sources = [group.stages[n] for n in numbers]
    if group.stream is not None or stage.monoid is None:
        return None
    if any(s.strip is not None for s in (*sources, stage)) or any(s.monoid for s in sources):
        return None
    own = [v for v in sources[0].iters if v not in stage.iters]
    if {*sources[0].iters} != {*own, *stage.iters} or len(own) != len(stage.reduce):
        return None
    reads = [node for node, source in reads_of_stages(*stage.body) if source.stage in numbers]
    found = [_pairs(group, own, stage, node) for node in reads]
    first = found[0] if found else None
    return first if all(pairs == first for pairs in found) else None


def _pairs(
    group: TileGroup, own: Sequence[Var], stage: GroupStage, node: Read
) -> dict[Var, Var] | None:
    """The loops of the stage that `node` reads by those of the reader; None where it does not read
    element by element."""
    assert isinstance(node.source, StageRef)
    access = stage.accesses.get(node)
    stores = group.stages[node.source.stage].stores[node.source.component]
    if access is None or not stores or node.indirect:
        return None
    return paired_loops(own, stage.reduce, stores[-1], access)


def paired_loops(
    own: Sequence[Var], others: Sequence[Var], stored: Access, access: Access
) -> dict[Var, Var] | None:
    """The loops `others` of an access by the loops `own` of a store, such that both walk the same
    elements in step; None where they do not."""
    left = list(others)
    pairs: dict[Var, Var] = {}
    for var in own:
        step, size = stride(stored, var), extent(var)
        same = [v for v in left if extent(v) is size and stride(access, v) == step]
        if step is None or not same:
            return None
        pairs[var] = same[0]
        left.remove(same[0])
    moved = substitute(stored.offset, {u: of_atom(v) for u, v in pairs.items()})
    alike = moved is access.offset and stored.buffer == access.buffer
    return pairs if alike and not (access.guards or stored.guards) else None


def nest_along(nest: Nest, loops: Mapping[Var, Var]) -> Nest:
    """`nest` as the stages along its reduction see it, which have `loops` for those of the
    reduction."""
    names = {new.name: old.name for old, new in loops.items()}
    return replace(
        nest,
        order=(),
        blocks=tuple((names.get(n, n), size) for n, size in nest.blocks),
        vector=nest.vector and names.get(nest.vector, nest.vector),
        k_blocks=(),
    )
