"""Pointwise stages that are computed along the reduction that reads them, in one pass.

    e[i, j] = exp(x[i, j] - m[i])                 for j:  e = exp(x - m) ; store e ; s += e
    s[i] = sum(j) e[i, j]               ->
    y[i, j] = e[i, j] / s[i]                      for j:  y = e / s

The reduction then reads the pointwise results from registers, not from scratch. The pointwise
arithmetic hides the latency of the reduction's additions.
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
    """Returns a map from the loops of the pointwise stages `numbers` to the loops of the reduction
    `stage`.

    The pointwise stages must have equal loops. Returns None unless `stage` reads each element of
    the pointwise stages exactly once, in the order in which it is computed.
    """
    sources = [group.stages[n] for n in numbers]
    if group.stream is not None or stage.monoid is None:
        return None
    if any(s.strip is not None for s in (*sources, stage)) or any(s.monoid for s in sources):
        return None
    inner_loops = [v for v in sources[0].iters if v not in stage.iters]
    if {*sources[0].iters} != {*inner_loops, *stage.iters} or len(inner_loops) != len(stage.reduce):
        return None
    reads = [node for node, source in reads_of_stages(*stage.body) if source.stage in numbers]
    pairings = [_pairs(group, inner_loops, stage, node) for node in reads]
    first = pairings[0] if pairings else None
    return first if all(pairing == first for pairing in pairings) else None


def loops_of(group: TileGroup, nest: Nest) -> Mapping[Var, Var]:
    """Returns `loops_along` for the stages `nest.along`; empty without such stages."""
    return loops_along(group, nest.along, group.stages[nest.stages[0]]) or {}


def _pairs(
    group: TileGroup, loops: Sequence[Var], stage: GroupStage, node: Read
) -> dict[Var, Var] | None:
    """Returns a map from `loops`, loops of the stage that `node` reads, to the reduced loops of
    `stage`, the reader.

    Returns None unless the reader reads the elements in the order in which they are written.
    """
    assert isinstance(node.source, StageRef)
    access = stage.accesses.get(node)
    stores = group.stages[node.source.stage].stores[node.source.component]
    if access is None or not stores or node.indirect:
        return None
    return paired_loops(loops, stage.reduce, stores[-1], access)


def paired_loops(
    writer_loops: Sequence[Var], reader_loops: Sequence[Var], store: Access, access: Access
) -> dict[Var, Var] | None:
    """Returns a map from `writer_loops` to `reader_loops` under which the store and the access
    visit the same elements in the same order; None if there is no such map."""
    unpaired = list(reader_loops)
    pairs: dict[Var, Var] = {}
    for var in writer_loops:
        step, size = stride(store, var), extent(var)
        matches = [v for v in unpaired if extent(v) is size and stride(access, v) == step]
        if step is None or not matches:
            return None
        pairs[var] = matches[0]
        unpaired.remove(matches[0])
    offset = substitute(store.offset, {u: of_atom(v) for u, v in pairs.items()})
    equal = offset is access.offset and store.buffer == access.buffer
    return pairs if equal and not (access.guards or store.guards) else None


def nest_along(nest: Nest, loops: Mapping[Var, Var]) -> Nest:
    """Returns the nest of a reduction with its loops renamed to the loops of pointwise stages.

    `loops` maps the loops of the pointwise stages to the loops of the reduction (`loops_along`).
    """
    names = {new.name: old.name for old, new in loops.items()}
    return replace(
        nest,
        order=(),
        blocks=tuple((names.get(n, n), size) for n, size in nest.blocks),
        vector=nest.vector and names.get(nest.vector, nest.vector),
        k_blocks=(),
    )
