"""Makes stages that read each other loop over the same iterators.

    s[i] = sum(k) x[i, k]                            s[u, v] = sum(k) x[64*u + v, k]
    y[u, v] = exp(s[64*u + v])            ->         y[u, v] = exp(s[u, v])

Requires nothing.  A stage whose iterators cannot be unified stays as it is.  Its value is then
stored in the tile's scratch (`tcc.passes.fuse.structure`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from tcc.frozen import frozen
from tcc.ir.expr import Expr, Stage, extent, known_extent, nest_size, reads
from tcc.ir.expr.scalar import reads_of_stages, substitute_all
from tcc.ir.index import (
    Index,
    Indices,
    Quotient,
    Remainder,
    Substitution,
    Var,
    Vars,
    as_int,
    atoms,
    const,
    free_vars,
    iterator,
    linear_in,
    of_atom,
    substitute,
    var_of,
    within,
)
from tcc.passes.fuse.unit_axes import read_inside
from tcc.passes.fuse.unroll import unroll
from tcc.zipped import zip_equal

# Stands for an index of a read along an axis for which reader and producer share no iterator.
_LOOSE = const(0)


@frozen
class Shaped:
    """A stage with the indices of its result, as functions of its iterators.

    `logical`: the result's index along each axis.  After a split of i into u and v, the index is
    `extent(v)*u + v`.
    `places`: for an unrolled stage, the indices of each body's result.
    `unrolled_iters`: for an unrolled stage that another stage reads, the iterators over which no
    loop runs, because there is a body for each of their values.
    """

    stage: Stage
    logical: Indices
    places: tuple[Indices, ...] = ()
    unrolled_iters: Vars = ()

    @property
    def axes(self) -> Vars:
        """The iterators of the result."""
        return (*self.unrolled_iters, *self.stage.iters)


# Cached because several rules and the lowering link the stages of the same expression.
@lru_cache(512)
def linked_stages(expr: Expr) -> tuple[Shaped, ...]:
    """Returns the stages of `expr`, with the same iterators for corresponding loops."""
    stages = read_inside(expr)
    inner = {source.stage for s in stages for _, source in reads_of_stages(*s.body)}
    return link_stages(
        tuple(
            _chosen_stage(stage) if number in inner else shaped_stage(stage, unrolled=True)
            for number, stage in enumerate(stages)
        )
    )


def _chosen_stage(stage: Stage) -> Shaped:
    """Returns the form of a stage that another stage reads, unrolled if possible.

    It is possible if along each axis of the result, either all bodies have one index, or there is a
    body for each value of an iterator.
    """
    shaped = shaped_stage(stage)
    split = unroll(shaped.stage, shaped.logical)
    if split is None:
        return shaped
    logical: list[Index] = []
    unrolled_iters: list[Var] = []
    for formula, places in zip_equal(shaped.logical, zip_equal(*split.places)):
        var = var_of(formula)
        if all(p is places[0] for p in places):
            logical.append(places[0])
        elif var is not None and all(as_int(p) is not None for p in places):
            logical.append(formula)
            unrolled_iters.append(var)
        else:
            return shaped
    return Shaped(split.stage, tuple(logical), split.places, tuple(unrolled_iters))


def shaped_stage(stage: Stage, *, unrolled: bool = False) -> Shaped:
    """Returns `stage` without loops of a single iteration.

    If `unrolled`, loops that select between formulas are unrolled too.
    """
    single_trips = {v: const(0) for v in stage.loops if known_extent(v) == 1}
    shaped = _substituted(Shaped(stage, stage.at), single_trips, dict.fromkeys(single_trips, ()))
    split = unroll(shaped.stage, shaped.logical) if unrolled else None
    if split is None:
        return shaped
    return Shaped(split.stage, split.stage.at, split.places)


def link_stages(stages: tuple[Shaped, ...]) -> tuple[Shaped, ...]:
    """Makes readers and their producers loop over the same iterators.

    A reshape between two stages appears as quotients and remainders in the read.  The divided loop
    is split in two: `s[i // 64, i % 64]` becomes `s[u, v]` with `i = 64*u + v`.  Then, from the
    last stage to the first, each producer gets the iterators of its reader.
    """
    linked: list[Shaped] = []
    for shaped in stages:
        for find_cut in (_find_cut, partial(_find_shared_cut, linked)):
            while (cut := find_cut(shaped.stage)) is not None:
                shaped = _split(shaped, *cut)
        linked.append(shaped)
    for number in range(len(stages) - 1, -1, -1):
        reader = _first_reader(linked, number)
        if reader is None and number < len(stages) - 1:
            shape, last = (tuple(map(radix_size, linked[n].logical)) for n in (number, -1))
            reader = linked[-1].logical if shape == last else _beside(linked, number)
        if reader is not None:
            linked[number] = _follow(linked[number], reader)
    return tuple(linked)


def _first_reader(stages: Sequence[Shaped], number: int) -> Indices | None:
    """Returns the indices at which another stage reads stage `number`, so that the stage can take
    over their iterators.

    The first read counts whose indices have only loops of the reader's result.  If there is none,
    the first read counts, with `_LOOSE` in place of indices that have reduced loops.  So a factor
    of a contraction takes over the reader's iterators along all axes but the summed axis.  Returns
    None if no stage reads stage `number`.
    """
    partial = None
    for shaped in stages[number + 1 :]:
        for node, source in reads_of_stages(*shaped.stage.body):
            if source.stage == number:
                reader_iters = set(shaped.stage.iters)
                if reader_iters.issuperset(free_vars(*node.indices)):
                    return node.indices
                if partial is None:
                    partial = tuple(
                        i if set(free_vars(i)) <= reader_iters else _LOOSE for i in node.indices
                    )
    return partial


def _beside(stages: Sequence[Shaped], number: int) -> Indices | None:
    """Returns the iterators of the last stage that correspond to those of stage `number`, because
    both stages read an earlier stage; None if a loop has no counterpart."""
    shaped, last = stages[number], stages[-1]
    for node, source in reads_of_stages(*shaped.stage.body):
        for other, ref in reads_of_stages(*last.stage.body):
            loops, other_loops = (free_vars(*n.indices) for n in (node, other))
            pairs = {v: of_atom(o) for v, o in zip(loops, other_loops, strict=False)}
            at = tuple(substitute(i, pairs) for i in node.indices)
            if ref == source and at == other.indices and {*shaped.stage.iters} <= {*pairs}:
                return tuple(substitute(i, pairs) for i in shaped.logical)
    return None


def _find_shared_cut(earlier: Sequence[Shaped], stage: Stage) -> tuple[Var, int] | None:
    """Returns a loop that has two loops over the same axis in a producer, among the stages
    `earlier`, and the extent of the inner loop.

    For example, a producer has two loops: over key heads, and over the query heads of a key head.
    The stage's loop over all query heads is then split into the same two loops.
    """
    for node, source in reads_of_stages(*stage.body):
        for index, formula in zip_equal(node.indices, earlier[source.stage].logical):
            var, size = var_of(index), radix_size(formula)
            if var not in stage.iters or extent(var) is not size or len(free_vars(formula)) < 2:
                continue
            digits = digits_of(formula, size)
            by = None if digits is None else known_extent(digits[-1])
            if by is not None:
                return var, by
    return None


def _find_cut(stage: Stage) -> tuple[Var, int] | None:
    """Returns a loop whose quotient and remainder the stage's reads use, and their divisor."""
    cuts: list[tuple[Var, int]] = []
    for atom in (a for node in reads(stage) for i in node.indices for a in atoms(i)):
        if isinstance(atom, Quotient | Remainder):
            var, by = var_of(atom.num), as_int(atom.den)
            if var in stage.loops and by is not None and as_int(extent(var) % by) == 0:
                cuts.append((var, by))
    return min(cuts, key=lambda cut: (cut[1], cut[0].name), default=None)


def _split(shaped: Shaped, var: Var, by: int) -> Shaped:
    outer = iterator(f"{var.name}a", extent(var) // by)
    inner = iterator(f"{var.name}b", by)
    return _substituted(shaped, {var: outer * by + inner}, {var: free_vars(outer, inner)})


def _substituted(shaped: Shaped, mapping: Substitution, loops: Mapping[Var, Vars]) -> Shaped:
    stage = shaped.stage
    iters, reduce, unrolled_iters = (
        tuple(new for v in old for new in loops.get(v, (v,)))
        for old in (stage.iters, stage.reduce, shaped.unrolled_iters)
    )
    body = substitute_all(stage.body, mapping)
    logical, *places = (
        tuple(substitute(i, mapping) for i in at) for at in (shaped.logical, *shaped.places)
    )
    substituted = replace(stage, iters=iters, reduce=reduce, body=body)
    return Shaped(substituted, logical, tuple(places), unrolled_iters)


def _follow(shaped: Shaped, at: Indices) -> Shaped:
    """Returns a stage with the iterators of its reader, where possible.

    The reader reads the stage at the indices `at`.  If an index is a mixed-radix number, such as
    64*u + v, of iterators that no earlier index uses, these iterators replace the stage's iterators
    along the axis.  All other iterators of the stage stay.
    """
    mapping: dict[Var, Index] = {}
    loops: dict[Var, Vars] = {}
    used_digits: set[Var] = set()
    for formula, index in zip_equal(shaped.logical, at):
        formula_vars = free_vars(formula)
        digits = digits_of(index, radix_size(formula)) if formula_vars else None
        if digits is None or used_digits & set(digits):
            continue
        if len(formula_vars) == 1:
            mapping[formula_vars[0]], loops[formula_vars[0]] = index, digits
        elif tuple(map(extent, formula_vars)) == tuple(map(extent, digits)):
            mapping.update(zip_equal(formula_vars, map(of_atom, digits)))
            loops.update(zip_equal(formula_vars, ((d,) for d in digits)))
        else:
            continue
        used_digits.update(digits)
    return _substituted(shaped, mapping, loops)


@lru_cache(1 << 14)
def digits_of(index: Index, size: Index) -> Vars | None:
    """Returns the iterators that are the digits of a mixed-radix number, the most significant
    first.

    For example, the digits of 64*u + v are u and v if v has extent 64.  The number must take each
    value below `size` once.  Returns None for another index.
    """
    variables = sorted(free_vars(index), key=lambda v: -(as_int(coefficient(index, v)) or 0))
    step = const(1)
    for var in reversed(variables):
        if var.extent is None or coefficient(index, var) is not step:
            return None
        step = step * extent(var)
    return tuple(variables) if step is size and not index.const and variables else None


def coefficient(index: Index, var: Var) -> Index:
    """Returns the coefficient of `var` in `index`; 0 if `index` is not linear in `var`."""
    linear = linear_in(index, var)
    return const(0) if linear is None else linear[0]


def common_loops(stages: Sequence[Shaped]) -> Vars:
    """Returns the loops that all stages have, and along which no stage reads another iteration.

    A stage may read `s[v, ...]` along such a loop v, but neither `s[v - 1, ...]` nor `s[w, ...]`.
    """
    shared = set(stages[0].stage.iters)
    for shaped in stages[1:]:
        shared &= set(shaped.stage.iters)
    for shaped, at in stage_reads(stages):
        values = dict(zip_equal(shaped.stage.iters, loops_at(shaped, at)))
        shared = {v for v in shared if values[v] is of_atom(v)}
    return tuple(v for v in stages[-1].stage.iters if v in shared)


def stage_reads(stages: Sequence[Shaped]) -> list[tuple[Shaped, Indices]]:
    """Returns all reads of stages, as pairs (the stage that is read, the logical indices of the
    read)."""
    return [
        (stages[source.stage], node.indices)
        for shaped in stages
        for node, source in reads_of_stages(*shaped.stage.body)
    ]


def loops_at(shaped: Shaped, logical: Indices) -> Indices:
    """Returns the values of a stage's loops at which it computes its result with the indices
    `logical`."""
    return axes_at(shaped, logical)[len(shaped.unrolled_iters) :]


def axes_at(shaped: Shaped, logical: Indices) -> Indices:
    """Returns the values of the result's iterators, `unrolled_iters` included, at which the result
    has the indices `logical`."""
    values = _values_at(shaped.logical, logical)
    return tuple(values[v] for v in shaped.axes)


@lru_cache(1 << 14)
def _values_at(formulas: Indices, logical: Indices) -> Substitution:
    values: dict[Var, Index] = {}
    for index, formula in zip_equal(logical, formulas):
        formula_vars = free_vars(formula)
        if len(formula_vars) == 1:
            values[formula_vars[0]] = index
            continue
        quotient = index
        for var in reversed(digits_of(formula, radix_size(formula)) or ()):
            values[var] = quotient % extent(var)
            quotient = quotient // extent(var)
    return values


@lru_cache(1 << 14)
def radix_size(formula: Index) -> Index:
    """Returns the number of values of `formula`, a mixed-radix number of iterators."""
    return nest_size(free_vars(formula))


def needs_memory(stages: Sequence[Shaped], number: int, common: Vars) -> bool:
    """Returns True if the results of stage `number` must be stored in memory: a stage reads them at
    other points than the point just computed."""
    producer = stages[number]
    read_at = [at for shaped, at in stage_reads(stages) if shaped is producer]
    if not read_at:
        return False
    # The results of an unrolled stage are in several blocks, so readers need memory.
    if producer.unrolled_iters:
        return True
    away = any(
        loops_at(producer, at) != producer.stage.at or _outside(producer, at) for at in read_at
    )
    return away or set(producer.stage.iters) != set(common)


def _outside(shaped: Shaped, logical: Indices) -> bool:
    """Returns True if an index may be outside of an axis of length 1, which has no loop."""
    places = zip_equal(logical, shaped.logical)
    return any(not free_vars(formula) and not within(i, const(1)) for i, formula in places)
