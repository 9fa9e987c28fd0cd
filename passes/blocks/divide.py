"""Divides long sums of products among units where the results alone are too few for a device.

    s[i, j] = sum(k: 4096) a[i, k] * b[k, j] ; y = f(s)          16 x 512 results, 132 processors
      ->  kernel { p[q, i, j] = sum(r: 512) a[i, 512*q + r] * b[512*q + r, j] }        q: 0..8
          kernel { s[i, j] = sum(q) p[q, i, j] ; y = f(s) }

The order of sums depends on sizes and the device alone, and nothing is added up by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tcc.ir.expr import Expr, Stage, extent, reads
from tcc.ir.index import Index, Var, as_int, const, free_vars, iterator, of_atom, substitute
from tcc.ir.scalar import Apply, IndexValue, Read, Scalar, StageRef, index_value, read, transform
from tcc.passes.fuse.compose import canonical, is_contraction
from tcc.schedule.blocks import TYPICAL_DEVICE, BlockProfile

# Products worth a part, and the fewest parts that are worth a second kernel.
_LONG = 256
_FEWEST = 4
# Results of a unit along either side, and steps of a sum that it takes at once.
_SIDE = _STEP = 64


def divide_sums(expr: Expr, profile: BlockProfile = TYPICAL_DEVICE) -> tuple[Expr, int] | None:
    """`expr` with its only sum of products in parts, and the stage that makes them, behind which
    to cut; None where results are enough to keep the device busy."""
    totals = [n for n, s in enumerate(expr.stages) if s.monoid is not None]
    if len(totals) != 1 or not is_contraction(expr.stages[totals[0]]):
        return None
    (number,) = totals
    stage = expr.stages[number]
    found = _parts(stage, profile)
    if found is None or any(n.indirect for n in reads(stage)):
        return None
    stages: list[Stage] = []
    for old in expr.stages:
        moved = _later(old, number)
        stages += _divided(moved, number, *found) if old is stage else [moved]
    outputs = tuple(replace(o, stage=o.stage + (o.stage >= number)) for o in expr.outputs)
    return canonical(Expr(expr.params, tuple(stages), outputs)), number


def _parts(stage: Stage, profile: BlockProfile) -> tuple[Var, int] | None:
    """The loop of the sum to cut, and in how many parts."""
    sizes = [as_int(extent(v)) for v in (*stage.iters, *stage.reduce)]
    if any(n is None or n < 1 for n in sizes):
        return None
    (body,) = stage.body
    assert isinstance(body, Apply)
    a, b = map(_loops, body.args)
    sides = [[v for v in stage.iters if (v in a, v in b) == where] for where in _WHERE]
    units = _trips(sides[0]) * prod(-(-_trips(side) // _SIDE) for side in sides[1:])
    most = min(2 * profile.processors // units, _trips(stage.reduce) // _LONG)
    cut = max(stage.reduce, key=lambda v: _trips([v]))
    parts = 1
    while 2 * parts <= most and _trips([cut]) % (2 * parts * _STEP) == 0:
        parts *= 2
    return (cut, parts) if parts >= _FEWEST else None


_WHERE = ((True, True), (True, False), (False, True))


def _divided(stage: Stage, number: int, cut: Var, parts: int) -> tuple[Stage, Stage]:
    """The stage of parts, stage `number`, and that of their sums.

    Parts take the place of a first loop of one trip, so that images of one batch stay images.
    """
    size = _trips([cut]) // parts
    part, rest = iterator("part", parts), iterator(cut.name, size)
    (first,), (last,) = free_vars(part), free_vars(rest)
    moved = {cut: part * size + rest}
    kept = stage.iters
    if len(kept) > 1 and _trips(kept[:1]) == 1:
        moved, kept = {**moved, kept[0]: const(0)}, kept[1:]

    def leaf(node: Scalar) -> Scalar:
        match node:
            case Read():
                at = tuple(substitute(i, moved) for i in node.indices)
                return read(node.source, at, node.dtype, fill=node.fill)
            case IndexValue():
                return index_value(substitute(node.index, moved), node.dtype)
            case _:
                return node

    reduce = tuple(last if v is cut else v for v in stage.reduce)
    made = tuple(transform(s, leaf) for s in stage.body)
    at: tuple[Index, ...] = (part, *map(of_atom, kept))
    sums = read(StageRef(number, 0), at, stage.body[0].dtype)
    return (
        replace(stage, iters=(first, *kept), reduce=reduce, body=made),
        replace(stage, reduce=(first,), body=(sums,)),
    )


def _later(stage: Stage, number: int) -> Stage:
    """`stage` with the results of stage `number` and of later ones read one stage later."""

    def leaf(node: Scalar) -> Scalar:
        source = node.source if isinstance(node, Read) else None
        if not isinstance(node, Read) or not isinstance(source, StageRef) or source.stage < number:
            return node
        moved = replace(source, stage=source.stage + 1)
        return read(moved, node.indices, node.dtype, fill=node.fill, indirect=node.indirect)

    return replace(stage, body=tuple(transform(s, leaf) for s in stage.body))


def _loops(root: Scalar) -> frozenset[Var]:
    """The loops that a factor varies with."""
    found: set[Var] = set()

    def leaf(node: Scalar) -> Scalar:
        if isinstance(node, Read):
            found.update(v for i in node.indices for v in free_vars(i))
        elif isinstance(node, IndexValue):
            found.update(free_vars(node.index))
        return node

    transform(root, leaf)
    return frozenset(found)


def _trips(loops: Sequence[Var]) -> int:
    return prod(as_int(extent(v)) or 0 for v in loops)
