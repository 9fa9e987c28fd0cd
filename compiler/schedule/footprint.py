"""The bytes that an access touches while some of the loops around it run.

An offset is split into steps along loops. `768*i + 64*k + j % 64 + 49152*(j // 64)` becomes

    j  1 apart, for 64 elements    k  64 apart    i  768 apart    j  49152 apart, every 64th

Accesses of one stage whose offsets differ by constants are one touch of several places: `x[i]`,
`x[i + 64]` and `x[i + 128]` are 3 places 64 apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from math import ceil, gcd, prod

from tcc.frozen import entity, frozen
from tcc.ir.expr.scalar import Source
from tcc.ir.index import (
    Atom,
    Extremum,
    Index,
    Monomial,
    Quotient,
    Var,
    Vars,
    as_int,
    const,
    free_vars,
    of_atom,
    step_in,
    substitute,
)
from tcc.schedule.nest import points, typical, typical_value

LINE = 64
# Addresses this many bytes apart map to the same set of the first-level cache.
PAGE = 4096
# The bytes that memory could deliver in the pause between two rows of a sum. Measured on a Zen 5:
# 130 to 320.
_GAP = 128


@frozen
class Stride:
    """The movement of an access along the loop `var`.

    The access moves by `size` elements each time `var` has advanced by `every`: `49152*(j // 64)`
    has `size` 49152 and `every` 64. If `size` is None, the distance is unknown. The access visits
    at most `within` places along the loop; None means no limit: `j % 64` has `within` 64. If `var`
    is None, the access visits `within` places, `size` apart, at each point of the loops.
    """

    var: Var | None
    size: int | None
    every: int = 1
    within: int | None = None

    def count(self, spans: Mapping[Var, int]) -> int:
        """Returns the number of distinct places; `spans` has the elements over which each loop
        runs."""
        if self.var is None:
            return self.within or 1
        places = ceil(spans[self.var] / self.every)
        return places if self.within is None else min(places, self.within)


@entity
class Touch:
    """The elements in memory that a read or a store touches.

    An element has `size` bytes, and there are `times` accesses for each point of the `loops`.
    `store` is True for a store.

    `source` is a buffer's number, or a stage's component whose block lies in registers or in the
    tile's scratch. `steps` are in rising order of size; those of unknown size are last.
    `buffer_bytes` is the size of the whole buffer, an upper bound of the bytes touched.
    """

    source: Source
    store: bool
    size: int
    steps: tuple[Stride, ...]
    buffer_bytes: float
    constant: bool
    loops: frozenset[Var]
    times: int
    _known: dict[tuple[int, ...], float] = field(default_factory=dict)

    def renamed(self, loops: Mapping[Var, Var]) -> Touch:
        """Returns the touch with other loops; `loops` maps the old ones to the new ones."""
        steps = (
            replace(s, var=None if s.var is None else loops.get(s.var, s.var)) for s in self.steps
        )
        renamed_loops = frozenset(loops.get(v, v) for v in self.loops)
        return replace(self, steps=tuple(steps), loops=renamed_loops)

    def step(self, var: Var | None) -> int | None:
        """Returns the elements between neighbours along `var`.

        Returns 0 if the touch does not vary with `var`, and None if the distances are irregular.
        """
        if var not in self.loops:
            return 0
        sizes = [s.size for s in self.steps if s.var is var and s.every == 1]
        if None in sizes:
            return None
        return min((s for s in sizes if s is not None), default=0)

    def crossing(self, vector: Var | None, lanes: int) -> float:
        """Returns the fraction of vectors that cross a border of cache lines.

        A vector has `lanes` elements along the loop `vector`. It may start at any multiple of the
        greatest common divisor of the other loops' steps. Constants are packed, so their vectors
        never cross a border.
        """
        if self.constant:
            return 0.0
        alignment = gcd(lanes, *(s.size for s in self.steps if s.var is not vector and s.size))
        return (1 - alignment / lanes) * min(1.0, lanes * self.size / LINE)

    def reach(self, spans: Mapping[Var, int]) -> float:
        """Returns the bytes touched, in whole lines, while each loop runs over `spans` elements."""
        key = tuple([spans[s.var] for s in self.steps if s.var is not None])
        size = self._known.get(key)
        if size is None:
            size = self._known[key] = self.bytes_in(spans, LINE)
        return size

    def crowded(self, along: Vars, row: int, capacity: int) -> float:
        """Returns the fraction of rows that the first-level cache loses before their next use.

        The cache has `capacity` bytes. There is a row of `row` bytes for each step of the loops
        `along`. If the distance of rows has a large common divisor with `PAGE`, the rows share few
        of the cache's sets, and evict each other. The fraction is 0 for constants, which are
        packed. It is also 0 if the cache could not hold the rows even if they were contiguous.
        """
        rows = points(along)
        if self.constant or not 0 < row * rows <= capacity:
            return 0.0
        distance = gcd(PAGE, *((self.step(v) or 1) * self.size for v in along))
        return max(0.0, 1 - capacity / distance / rows)

    def gap(self, along: Vars, block: int) -> float:
        """Returns the fraction by which memory takes longer because a block's rows have gaps
        between them.

        There is a row for each step of the loops `along`, and a block has `block` elements of each.
        """
        distance = min((s.size or 0 for s in self.steps if s.var in along), default=0)
        return _GAP / (block * self.size) if distance > block else 0.0

    def bytes_in(self, spans: Mapping[Var, int], line: int) -> float:
        """Returns the bytes touched, in whole lines of `line` bytes; `spans` has the elements of
        each loop.

        An element that several points of the loops touch counts once, for example where windows
        overlap.
        """
        strides: list[tuple[int, int]] = []  # (elements apart, number of places)
        scattered = 1
        for step in self.steps:
            count = step.count(spans)
            if count == 1 or step.size == 0:  # the size is 0 in an array without elements
                continue
            if step.size is None:
                lines = step.within and ceil(step.within * self.size / line)
                scattered *= min(count, lines or count)
            elif (
                strides
                and step.size % strides[-1][0] == 0
                and step.size // strides[-1][0] <= strides[-1][1]
            ):
                stride, length = strides[-1]
                strides[-1] = stride, length + step.size // stride * (count - 1)
            else:
                strides.append((step.size, count))
        stride, length = strides[0] if strides else (1, 1)
        if stride == 1:
            size = ceil(length * self.size / line) * line
        else:
            size = length * max(self.size, min(stride * self.size, line))
        for _, length in strides[1:]:
            size *= length
        return min(size * scattered, self.buffer_bytes)


def touch(
    source: Source,
    steps: Collection[Stride],
    *,
    store: bool,
    size: int,
    buffer_bytes: float,
    constant: bool = False,
    bases: Collection[int] = (0,),
) -> Touch:
    """Returns a touch with an access at each of the offsets `bases`; `steps` may have any order."""
    places = sorted(set(bases))
    strides = (*steps, *_progressions(places))
    ordered = sorted(strides, key=lambda s: (s.size is None, s.size or 0))
    loops = frozenset(s.var for s in steps if s.var is not None)
    return Touch(source, store, size, tuple(ordered), buffer_bytes, constant, loops, len(places))


def _progressions(places: Sequence[int]) -> list[Stride]:
    """Returns rising `places` as nested equal steps; one step of unknown size if they are
    irregular.

        0 1 2 8 9 10 are 3 places 1 apart, twice 8 apart.
    """
    if len(places) < 2:
        return []
    distance = places[1] - places[0]
    length = next((n for n, p in enumerate(places) if p != places[0] + n * distance), len(places))
    firsts = places[::length]
    if [first + n * distance for first in firsts for n in range(length)] != list(places):
        return [Stride(None, None, within=len(places))]
    return [Stride(None, distance, within=length), *_progressions(firsts)]


@lru_cache(1 << 15)  # groups that are built for one kernel share many offsets
def place_of(offset: Index, loops: Vars) -> tuple[tuple[Stride, ...], int]:
    """Returns the steps of an offset along `loops`, and the offset of the first element."""
    steps: list[Stride] = []
    base = offset.const
    for monomial, coeff in offset.terms:
        if any(_loops_of(a, loops) for a in monomial):
            steps += _of_term(monomial, coeff, loops)
        else:
            base += coeff * prod(typical(of_atom(atom)) for atom in monomial)
    return tuple(_merged(steps)), base


def _of_term(monomial: Monomial, coeff: int, loops: Vars) -> list[Stride]:
    """Returns the steps of one term `coeff * monomial` of an offset."""
    moving = [a for a in monomial if _loops_of(a, loops)]
    if len(moving) != 1:
        return [Stride(v, None) for a in moving for v in _loops_of(a, loops)]
    (atom,) = moving
    size = abs(coeff)
    for other in monomial:
        if other is not atom:  # the length of a row may be symbolic
            size *= typical(of_atom(other))
    if isinstance(atom, Var):
        return [Stride(atom, size)]
    if isinstance(atom, Extremum):  # the operand with more steps stands for both
        return max((list(place_of(i * size, loops)[0]) for i in (atom.a, atom.b)), key=len)
    atom_loops = _loops_of(atom, loops)
    den, num = as_int(atom.den), atom.num
    if den is None:
        if any(v in loops for v in free_vars(atom.den)) or not _divides_by_constants(num):
            return [Stride(v, None) for v in atom_loops]
        symbols = (v for v in free_vars(num) if v not in loops)
        den, num = typical(atom.den), substitute(num, {v: const(typical_value(v)) for v in symbols})
    parts = []
    for var in atom_loops:
        linear = step_in(num, var)
        quotient = isinstance(atom, Quotient)
        part = None if linear is None else _divided(quotient, var, abs(linear[0]), den, size)
        parts.append(part or Stride(var, None))
    return [p for p in parts if p.size != 0]


def _loops_of(atom: Atom, loops: Vars) -> list[Var]:
    return [v for v in free_vars(of_atom(atom)) if v in loops]


def _divides_by_constants(index: Index) -> bool:
    """Returns True for an index whose divisors are all constants."""
    atoms = (atom for monomial, _ in index.terms for atom in monomial)
    return all(
        isinstance(atom, Var)
        or (
            not isinstance(atom, Extremum)
            and as_int(atom.den) is not None
            and _divides_by_constants(atom.num)
        )
        for atom in atoms
    )


def _divided(quotient: bool, var: Var, by: int, den: int, size: int) -> Stride | None:
    """Returns the step along `var` of `size * (by*var // den)` if `quotient`, else of
    `size * (by*var % den)`; None if the step is not regular."""
    if by % den == 0:
        return Stride(var, size * by // den if quotient else 0)
    if den % by:
        return None
    return (
        Stride(var, size, every=den // by) if quotient else Stride(var, size * by, within=den // by)
    )


def _merged(steps: list[Stride]) -> list[Stride]:
    """Returns `steps` with the plain steps along each loop added up: `3*i + 64*i` moves by 67.

    Several steps of unknown size along a loop become one.
    """
    merged: list[Stride] = []
    for step in steps:
        position = next((n for n, s in enumerate(merged) if _mergeable(s, step)), None)
        if position is None:
            merged.append(step)
        elif step.size is not None:
            merged[position] = Stride(step.var, (merged[position].size or 0) + step.size)
    return merged


def _mergeable(a: Stride, b: Stride) -> bool:
    """Returns True for plain steps along one loop if both sizes are known, or both are unknown.

    A step is plain if `every` is 1 and `within` is None.
    """
    plain = all(s.every == 1 and s.within is None for s in (a, b))
    return plain and a.var is b.var and (a.size is None) is (b.size is None)
