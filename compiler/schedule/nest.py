"""Properties of a tile group that schedulers need: strides, work, and kinds of contractions."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial, reduce
from itertools import takewhile
from math import prod

from tcc.frozen import frozen
from tcc.ir.expr import Stage, extent, known_extent
from tcc.ir.expr.scalar import Apply, Cast, Read, Scalar, Scalars, StageRef, apply, literal, walk
from tcc.ir.index import Index, Var, Vars, as_int, evaluate, free_vars, step_in
from tcc.ir.tile.group import Access, GroupBuffer, GroupStage, TileGroup
from tcc.ir.types import BF16, F32, I8, I32, U8

# The value of a symbol without a typical size: long enough to be worth a vector.
TYPICAL = 128
# No array has a longer axis. Symbolic sizes are clamped to it, so that the product of all sizes of
# a nest is not too large for a float.
_LONGEST = 1 << 40
# Lanes at most this many elements apart are shuffled out of whole vectors, which is faster than
# loading each lane.
FEW_APART = 4


@frozen
class Factors:
    """The two factors of a stage that computes `sum(k) a * b`.

    With a `scale`, the stage computes `sum(g) scale * sum(k) a * b`: the scale multiplies the sum
    over the loops k, with which it does not vary.  With a `start`, an i32, it computes
    `sum(g) scale * (start + sum(k) a * b)`.
    """

    a: Scalar
    b: Scalar
    scale: Scalar | None = None
    start: Scalar | None = None

    @property
    def operands(self) -> tuple[Scalar, Scalar]:
        """Returns the factors without casts that a multiply-add of narrow types makes unnecessary.

        Both factors may be cast from bf16, or from bytes.  Their products are exact in f32 and i32,
        and a processor may multiply them without the casts.
        """
        a, b = self.a, self.b
        if not isinstance(a, Cast) or not isinstance(b, Cast):
            return a, b
        dtypes = {a.arg.dtype, b.arg.dtype}
        return (a.arg, b.arg) if dtypes == {BF16} or dtypes <= {I8, U8} else (a, b)

    def loops(self, stage: GroupStage) -> tuple[frozenset[Var], frozenset[Var]]:
        """Returns the loops of the stage on which `a` depends, and those on which `b` depends."""
        return depends(stage, self.a), depends(stage, self.b)

    def scaled_loops(self, stage: GroupStage) -> Vars:
        """Returns the innermost summed loops of `stage` whose sum the scale multiplies."""
        if self.scale is None:
            return ()
        loops = depends(stage, self.scale)
        inner = takewhile(lambda v: v not in loops, reversed(stage.reduce))
        return tuple(inner)[::-1]


def multiplied(stage: GroupStage | Stage) -> Factors | None:
    """Returns the factors of a stage that is a sum of products of any type, else None."""
    (body, *more) = stage.body
    if more or stage.monoid != "sum" or not isinstance(body, Apply) or body.function != "mul":
        return None
    return Factors(*body.args)


@lru_cache(1 << 12)  # cached by identity, because schedulers ask often
def contraction_factors(stage: GroupStage) -> Factors | None:
    """Returns the factors of a contraction of floats, or of bytes accumulated in i32; else None."""
    return scaled_factors(stage) or plain_factors(stage)


def contracts(stage: GroupStage) -> bool:
    """Returns True if the stage is a contraction."""
    return contraction_factors(stage) is not None


def plain_factors(stage: GroupStage) -> Factors | None:
    """Returns the factors of a contraction as `contraction_factors` does, without a scale."""
    pair, dtype = multiplied(stage), stage.body[0].dtype
    if pair is None or dtype.is_float:
        return pair
    return pair if dtype is I32 and _is_byte(pair.a) and _is_byte(pair.b) else None


@lru_cache(1 << 12)
def scaled_factors(stage: GroupStage) -> Factors | None:
    """Returns the factors of a contraction whose terms share scales; None for other stages.

        sum(g, k) f32(x[i, g, k]) * (f32(level[g, k, j]) * f32(scale[g, j]))
        sum(g, k) (f32(x[i, g, k]) * f32(level[g, k, j]) + f32(start[i, g]) / size) * scale[i, g, j]

    Both factors x and level are bf16 in the first form, and bytes in the second.  They vary with
    the innermost summed loop; no scale does.  Each element of `start` belongs to `size` terms.
    """
    loops = long_loops(stage)
    if multiplied(stage) is None or not loops or stage.body[0].dtype is not F32:
        return None
    parts = multiplied_parts(stage.body[0])
    inner = [p for p in parts if loops[-1] in depends(stage, p)]
    scales = [p for p in parts if loops[-1] not in depends(stage, p)]
    start = None
    if len(inner) == 1 and isinstance(inner[0], Apply) and inner[0].function == "add":
        term, start = inner[0].args
        inner = multiplied_parts(term)
    if len(inner) != 2 or not scales:
        return None
    a, b = inner
    factors = Factors(a, b, reduce(partial(apply, "mul"), scales))
    if start is not None:
        loops = [*factors.scaled_loops(stage)]
        if not isinstance(start, Apply) or start.args[1] is not literal(1 / points(loops), F32):
            return None
        sums = start.args[0]
        if not isinstance(sums, Cast) or depends(stage, sums).intersection(loops):
            return None
        factors = replace(factors, start=sums.arg)
    is_narrow = _is_pair if start is None else _is_byte
    return factors if all(map(is_narrow, inner)) else None


def long_loops(stage: GroupStage | Stage) -> list[Var]:
    """Returns the reduced loops of a stage that have other than one iteration."""
    return [v for v in stage.reduce if known_extent(v) != 1]


def multiplied_parts(scalar: Scalar) -> list[Scalar]:
    """Returns the scalars whose product `scalar` is; `scalar` alone if it is no product."""
    if isinstance(scalar, Apply) and scalar.function == "mul":
        return [part for arg in scalar.args for part in multiplied_parts(arg)]
    return [scalar]


def of_bytes(stage: GroupStage) -> bool:
    """Returns True for a contraction of bytes accumulated in i32; scales may multiply its sums."""
    factors = contraction_factors(stage)
    return factors is not None and (factors.start is not None or not stage.body[0].dtype.is_float)


def of_pairs(stage: GroupStage) -> bool:
    """Returns True for a contraction of bf16 accumulated in f32."""
    factors = contraction_factors(stage)
    if factors is None or stage.body[0].dtype is not F32:
        return False
    return _is_pair(factors.a) and _is_pair(factors.b)


def neighbours(stage: GroupStage) -> int:
    """Returns how many terms of a contraction's sum one 32-bit word of an operand holds: 4 of one
    byte, or 2 of bf16; 1 for all other types.

    Some targets multiply all elements of a word by one instruction.
    """
    return 4 if of_bytes(stage) else 2 if of_pairs(stage) else 1


def _is_pair(scalar: Scalar) -> bool:
    return isinstance(scalar, Cast) and scalar.arg.dtype is BF16


def _is_byte(scalar: Scalar) -> bool:
    return isinstance(scalar, Cast) and scalar.arg.dtype in (I8, U8)


def is_open(var: Var) -> bool:
    """Returns True if the number of a loop's iterations is known only at run time."""
    return known_extent(var) is None


@lru_cache(1 << 14)
def trips(var: Var) -> int:
    """Returns the number of trips of a loop, with each symbol at its typical value."""
    return typical(extent(var))


def typical(size: Index) -> int:
    """Returns a size as all prices count it.

    A symbol counts as its typical value, or without one as the value in its range that is closest
    to `TYPICAL`. A loop counts as its trips. A symbolic size is clamped to 1 .. `_LONGEST`.
    """
    constant = as_int(size)
    return constant if constant is not None else _typical(size)


@lru_cache(16384)
def _typical(size: Index) -> int:
    try:
        value = int(evaluate(size, {v.name: typical_value(v) for v in free_vars(size)}))
    except ZeroDivisionError:  # a divisor such as n - m can be 0 at typical values
        return 1
    return min(max(1, value), _LONGEST)


def typical_value(var: Var) -> int:
    """Returns the number that prices assume for a symbol or a loop."""
    if var.extent is not None:
        return trips(var)
    at_most = TYPICAL if var.hi is None else min(TYPICAL, var.hi)
    return max(at_most, var.lo) if var.typical is None else var.typical


def stride(access: Access, var: Var) -> int | None:
    """Returns the elements between neighbours along `var`.

    Returns 0 if the access does not vary with `var`, and None if the distances are irregular.
    """
    linear = step_in(access.offset, var)
    return None if linear is None else linear[0]


def guarded(access: Access, var: Var) -> bool:
    """Returns True if a guard of the access varies with `var`."""
    return var in free_vars(*(g.index for g in access.guards))


@lru_cache(1 << 12)
def work(stage: GroupStage) -> int:
    """Returns how often the body of a stage is evaluated, at typical sizes."""
    return points(stage.loops)


def points(variables: Iterable[Var]) -> int:
    """Returns the product of the trips of all loops."""
    return prod(trips(v) for v in variables)


def tile_count(loops: Iterable[Var], sizes: Mapping[Var, int]) -> int:
    """Returns the number of tiles along all loops; `sizes` has their elements, by default 1."""
    return prod(-(-trips(v) // sizes.get(v, 1)) for v in loops)


def operations(stage: GroupStage) -> int:
    """Returns the operations of all evaluations of a stage's body."""
    return work(stage) * weight(stage)


def weight(stage: GroupStage | Stage) -> int:
    """Returns the operations of one evaluation of the body; a function such as exp counts as 15."""
    return _weight(stage.body)


@lru_cache(1 << 12)
def _weight(body: Scalars) -> int:
    operations = 0
    for scalar in walk(*body):
        if isinstance(scalar, Apply):
            operations += EXPENSIVE.get(scalar.function, 1)
        elif isinstance(scalar, Read):
            operations += 1
    return max(operations, 1)


EXPENSIVE = dict.fromkeys(
    (
        "exp log tanh erf sin cos tan pow log1p expm1 "
        "asin acos atan sinh cosh asinh acosh atanh atan2"
    ).split(),
    15,
)


# Functions that are single instructions, but take many cycles.
_SLOW = frozenset(("div", "sqrt"))


def costly(scalar: Scalar) -> bool:
    """Returns True for a function of floats that takes many cycles."""
    named = isinstance(scalar, Apply) and (scalar.function in EXPENSIVE or scalar.function in _SLOW)
    return named and scalar.dtype.is_float


@lru_cache(1 << 12)
def word_loop(group: TileGroup, ref: StageRef) -> Var | None:
    """Returns the loop of a stage along which two neighbouring results of bf16 share a word.

    It is the loop along which a later stage sums their products.  Returns None if there is none.
    """
    stage = group.stages[ref.stage]
    for reader in filter(of_pairs, group.stages[ref.stage + 1 :]):
        summed = reader.reduce[-1]
        for node, access in reader.accesses.items():
            if node.source != ref or node.dtype is not BF16:
                continue
            if summed in group.cut:
                return summed if summed in stage.iters else None
            inner = [v for v in stage.iters if v not in group.cut]
            return inner[-1] if inner and stride(access, summed) == 1 else None
    return None


def reads_here(group: TileGroup, stage: GroupStage, node: Read) -> bool:
    """Returns True if `node` reads another stage at the current point of the common loops, so that
    the element was just computed.

    If this is true of all reads of that stage, its block can stay in registers.
    """
    access = stage.accesses.get(node)
    if access is None:
        return True
    if not isinstance(node.source, StageRef) or access.guards or node.indirect:
        return False
    source = group.stages[node.source.stage]
    places = [(a.buffer, a.offset) for a in source.stores[node.source.component]]
    return set(source.iters) == set(stage.iters) and (access.buffer, access.offset) in places


def row_loop(group: TileGroup) -> Var | None:
    """Returns the common loop that decides which rows of a stage a tile computes; None if no stage
    has a strip.

    A strip is the rows of a stage that a tile computes for its later stages.
    """
    return next((s.strip.loop for s in group.stages if s.strip is not None), None)


def own_loops(group: TileGroup, stage: GroupStage) -> Vars:
    """Returns the loops of a stage's results that every tile covers whole.

    They are neither common loops nor the rows of a strip.
    """
    rows = () if stage.strip is None else (stage.strip.rows,)
    return tuple(v for v in stage.iters if v not in group.common and v not in rows)


@lru_cache(1 << 12)
def depends(stage: GroupStage, scalar: Scalar) -> frozenset[Var]:
    """Returns the iterators of `stage` that `scalar` varies with."""
    varying: set[Var] = set()
    for node in walk(scalar):
        if isinstance(node, Read):
            access = stage.accesses.get(node)
            # If the source is a stage, the value read varies with every iterator in the read's
            # indices, because a stage may have another value at each of its points.
            if isinstance(node.source, StageRef):
                varying.update(free_vars(*node.indices))
            if access is None:
                continue
            guards = (g.index for g in access.guards)
            varying.update((*free_vars(access.offset, *guards), *access.along))
        elif hasattr(node, "index"):
            varying.update(free_vars(node.index))
    return frozenset(varying & {*stage.loops})


def anchor(group: TileGroup) -> GroupStage:
    """Returns the stage with the most work, which decides how the group's loops are cut."""
    return max(group.stages, key=operations)


def in_scratch(group: TileGroup, accesses: Iterable[Access]) -> list[Access]:
    """Returns those of `accesses` that access a tile's scratch."""
    return [a for a in accesses if group.buffers[a.buffer].is_local]


def constant_bytes(buffers: Iterable[GroupBuffer]) -> int:
    """Returns the bytes of the constants among `buffers`; symbolic sizes count as 0."""
    return sum((as_int(b.size) or 0) * b.dtype.bytes for b in buffers if b.constant)


def all_accesses(stage: GroupStage) -> tuple[Access, ...]:
    """Returns the reads, then the stores, of a stage."""
    return (*stage.accesses.values(), *stage.written)
