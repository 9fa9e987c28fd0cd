"""Questions a scheduler asks about a tile group: strides, work, and what kind of sum a stage is."""

from collections.abc import Iterable
from functools import lru_cache
from math import prod

from tcc.ir.expr import Stage, extent
from tcc.ir.expr.scalar import Apply, Cast, Read, Scalar, Scalars, StageRef, walk
from tcc.ir.index import Index, Var, Vars, as_int, evaluate, free_vars, step_in
from tcc.ir.tile import MemorySpace
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.ir.types import BF16, F32, I8, I32, U8
from tcc.record import record

# A symbol counts as so much where no typical size is given: long enough to be worth a vector.
TYPICAL = 128
# No array has an axis of so many elements: a symbolic size counts as no more, so that products of
# as many sizes as a nest has loops stay in the range of a float.
_LONGEST = 1 << 40
# Lanes up to so many elements from one another come out of as many vectors, by shuffles.
FEW_APART = 4


@record
class Factors:
    """A sum of products: the two factors of a stage `sum(k) a * b`."""

    a: Scalar
    b: Scalar


def multiplied(stage: GroupStage | Stage) -> Factors | None:
    """The factors, where the stage is a sum of products of anything."""
    (body, *rest) = stage.body
    if rest or stage.monoid != "sum" or not isinstance(body, Apply) or body.function != "mul":
        return None
    return Factors(*body.args)


@lru_cache(1 << 12)  # stages and bodies are compared by identity, and asked about again and again
def contraction_factors(stage: GroupStage) -> Factors | None:
    """The factors, where the stage is a sum of products: of floats, or of bytes in i32."""
    found, dtype = multiplied(stage), stage.body[0].dtype
    if found is None or dtype.is_float:
        return found
    return found if dtype is I32 and _is_byte(found.a) and _is_byte(found.b) else None


def of_bytes(stage: GroupStage) -> bool:
    """Whether a stage is a sum of products of bytes in i32."""
    return contraction_factors(stage) is not None and not stage.body[0].dtype.is_float


def of_pairs(stage: GroupStage) -> bool:
    """Whether a stage is a sum of products of bf16 in f32."""
    factors = contraction_factors(stage)
    if factors is None or stage.body[0].dtype is not F32:
        return False
    return all(isinstance(f, Cast) and f.arg.dtype is BF16 for f in (factors.a, factors.b))


def neighbours(stage: GroupStage) -> int:
    """How many neighbours along a sum of products lie in a word, and are multiplied at once where
    there is an instruction for it: four bytes or two bf16."""
    return 4 if of_bytes(stage) else 2 if of_pairs(stage) else 1


def _is_byte(scalar: Scalar) -> bool:
    return isinstance(scalar, Cast) and scalar.arg.dtype in (I8, U8)


@lru_cache(1 << 14)
def trips(var: Var) -> int:
    """The number of trips of a loop at the typical value of each symbol."""
    return typical(extent(var))


def typical(size: Index) -> int:
    """A size as all prices count it: each symbol counts as its typical value, or where none is
    given as the value of its range that is next to `TYPICAL`, a loop as its trips.  Symbolic sizes
    count as at least 1 and at most `_LONGEST`."""
    known = as_int(size)
    return known if known is not None else _typical(size)


@lru_cache(16384)
def _typical(size: Index) -> int:
    try:
        value = int(evaluate(size, {v.name: typical_value(v) for v in free_vars(size)}))
    except ZeroDivisionError:  # by a difference of sizes, which is zero at typical ones
        return 1
    return min(max(1, value), _LONGEST)


def typical_value(var: Var) -> int:
    """What a symbol or a loop counts as in a size."""
    if var.extent is not None:
        return trips(var)
    at_most = TYPICAL if var.hi is None else min(TYPICAL, var.hi)
    return max(at_most, var.lo) if var.typical is None else var.typical


def stride(access: Access, var: Var) -> int | None:
    """Elements between neighbours along `var`: 0 if it does not matter, None if irregular."""
    linear = step_in(access.offset, var)
    return None if linear is None else linear[0]


def guarded(access: Access, var: Var) -> bool:
    """Whether neighbours along `var` may differ in being inside."""
    return var in free_vars(*(g.index for g in access.guards))


@lru_cache(1 << 12)
def work(stage: GroupStage) -> int:
    """Evaluations of the body, with typical extents."""
    return points(stage.loops)


def points(variables: Iterable[Var]) -> int:
    """Trips of all loops together."""
    return prod(trips(v) for v in variables)


def weight(stage: GroupStage | Stage) -> int:
    """Operations of one evaluation of the body; transcendental functions count as many."""
    return _weight(stage.body)


@lru_cache(1 << 12)
def _weight(body: Scalars) -> int:
    total = 0
    for scalar in walk(*body):
        if isinstance(scalar, Apply):
            total += EXPENSIVE.get(scalar.function, 1)
        elif isinstance(scalar, Read):
            total += 1
    return max(total, 1)


EXPENSIVE = {
    name: 15
    for name in (
        "exp log tanh erf sin cos tan pow log1p expm1 "
        "asin acos atan sinh cosh asinh acosh atanh atan2"
    ).split()
}


# Single instructions that take as long as many.
_SLOW = frozenset(("div", "sqrt"))


def costly(scalar: Scalar) -> bool:
    """Whether a scalar is a function of floats that takes many cycles."""
    named = isinstance(scalar, Apply) and (scalar.function in EXPENSIVE or scalar.function in _SLOW)
    return named and scalar.dtype.is_float


def reads_here(group: TileGroup, stage: GroupStage, node: Read) -> bool:
    """Whether a stage reads another at the point that was just computed, so that the block can stay
    in registers."""
    access = stage.accesses.get(node)
    if access is None:
        return True
    if not isinstance(node.source, StageRef) or access.guards or node.indirect:
        return False
    source = group.stages[node.source.stage]
    places = [(a.buffer, a.offset) for a in source.stores[node.source.component]]
    return set(source.iters) == set(stage.iters) and (access.buffer, access.offset) in places


def row_loop(group: TileGroup) -> Var | None:
    """The common loop that rows of windowed stages follow; None in a group without such."""
    return next((s.strip.loop for s in group.stages if s.strip is not None), None)


def own_loops(group: TileGroup, stage: GroupStage) -> Vars:
    """The loops of a stage's results that a unit covers whole, whatever its share of the grid."""
    rows = () if stage.strip is None else (stage.strip.rows,)
    return tuple(v for v in stage.iters if v not in group.common and v not in rows)


@lru_cache(1 << 12)
def depends(stage: GroupStage, scalar: Scalar) -> frozenset[Var]:
    """The iterators of the stage that `scalar` varies with."""
    found: set[Var] = set()
    for node in walk(scalar):
        if isinstance(node, Read):
            access = stage.accesses.get(node)
            if isinstance(node.source, StageRef):  # it varies with all its iterators
                found.update(free_vars(*node.indices))
            if access is None:
                continue
            guards = (g.index for g in access.guards)
            found.update((*free_vars(access.offset, *guards), *access.along))
        elif hasattr(node, "index"):
            found.update(free_vars(node.index))
    return frozenset(found & {*stage.loops})


def anchor(group: TileGroup) -> GroupStage:
    """The stage that decides the loops: the one with most work."""
    return max(group.stages, key=lambda s: work(s) * weight(s))


def in_scratch(group: TileGroup, accesses: Iterable[Access]) -> list[Access]:
    """Those that touch the memory of a unit."""
    return [a for a in accesses if group.buffers[a.buffer].scope is MemorySpace.LOCAL]


def all_accesses(stage: GroupStage) -> tuple[Access, ...]:
    return (*stage.accesses.values(), *stage.written)
