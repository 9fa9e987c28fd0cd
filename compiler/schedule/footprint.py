"""How far an access reaches: the bytes it touches while some of the loops around it run.

An offset is taken apart into steps, `768*i + 64*k + j % 64 + 49152*(j // 64)` into

    j  1 apart, for 64 elements    k  64 apart    i  768 apart    j  49152 apart, every 64th

Accesses of one stage that differ by constants are one touch of several places: `x[i]`, `x[i + 64]`
and `x[i + 128]` are 3 places 64 apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from math import ceil, gcd, prod

from tcc.ir.expr.scalar import Source
from tcc.ir.index import (
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
from tcc.record import entity, record
from tcc.schedule.nest import points, typical, typical_value

LINE = 64
# Bytes after which the sets of the first-level cache start anew.
PAGE = 4096
# Bytes that memory could read while it goes on to the next row of a sum over rows.  Measured on a
# Zen 5: 130 to 320.
_GAP = 128


@record
class Stride:
    """Along `var` every `every`-th element lies `size` elements further, `within` times at most;
    `size` None: nobody knows where.  Without a loop `var` there are `within` places at once."""

    var: Var | None
    size: int | None
    every: int = 1
    within: int | None = None

    def count(self, spans: Mapping[Var, int]) -> int:
        """Distinct places while the loops run over `spans` elements."""
        if self.var is None:
            return self.within or 1
        found = ceil(spans[self.var] / self.every)
        return found if self.within is None else min(found, self.within)


@entity
class Touch:
    """A read or a `store` of elements of `size` bytes, `times` for each point of the loops.

    `source` is a buffer's number, or a stage's component whose block waits in registers or in the
    unit's scratch.  `steps` are in rising order, unknown ones last; `most` is the bytes there are.
    """

    source: Source
    store: bool
    size: int
    steps: tuple[Stride, ...]
    most: float
    constant: bool
    loops: frozenset[Var]
    times: int
    _known: dict[tuple[int, ...], float] = field(default_factory=dict)

    def renamed(self, loops: Mapping[Var, Var]) -> Touch:
        """The touch of loops that have other names."""
        steps = (
            replace(s, var=None if s.var is None else loops.get(s.var, s.var)) for s in self.steps
        )
        moved = frozenset(loops.get(v, v) for v in self.loops)
        return replace(self, steps=tuple(steps), loops=moved)

    def step(self, var: Var | None) -> int | None:
        """Elements between neighbours along `var`; 0 where it does not matter, None irregular."""
        if var not in self.loops:
            return 0
        near = [s.size for s in self.steps if s.var is var and s.every == 1]
        if None in near:
            return None
        return min((s for s in near if s is not None), default=0)

    def crossing(self, vector: Var | None, lanes: int) -> float:
        """The part of the vectors that lie in two lines: steps of other loops start them where no
        vector starts.  Constants are packed."""
        if self.constant:
            return 0.0
        apart = gcd(lanes, *(s.size for s in self.steps if s.var is not vector and s.size))
        return (1 - apart / lanes) * min(1.0, lanes * self.size / LINE)

    def reach(self, spans: Mapping[Var, int]) -> float:
        """Bytes touched, in whole lines, while every loop runs over so many elements."""
        key = tuple([spans[s.var] for s in self.steps if s.var is not None])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.bytes_in(spans, LINE)
        return found

    def crowded(self, along: Vars, row: int, capacity: int) -> float:
        """The part that the first cache, of `capacity` bytes, loses before it is used again: rows
        of `row` bytes, one for each step `along` loops, lie in few of its sets.  Nothing of
        constants, which are packed, and where it could not hold the rows side by side either."""
        rows = points(along)
        if self.constant or not 0 < row * rows <= capacity:
            return 0.0
        apart = gcd(PAGE, *((self.step(v) or 1) * self.size for v in along))
        return max(0.0, 1 - capacity / apart / rows)

    def gap(self, along: Vars, block: int) -> float:
        """What memory takes longer, as a part, for blocks of so many elements of rows that lie
        apart: one for each step `along` loops."""
        far = min((s.size or 0 for s in self.steps if s.var in along), default=0)
        return _GAP / (block * self.size) if far > block else 0.0

    def bytes_in(self, spans: Mapping[Var, int], line: int) -> float:
        """Bytes touched, in whole lines of `line` bytes.

        Loops that step over one another's elements (a window's and its positions) count once.
        """
        runs: list[tuple[int, int]] = []  # (elements apart, how many)
        scattered = 1
        for step in self.steps:
            count = step.count(spans)
            if count == 1 or step.size == 0:  # 0: of an array without elements
                continue
            if step.size is None:
                lines = step.within and ceil(step.within * self.size / line)
                scattered *= min(count, lines or count)
            elif runs and step.size % runs[-1][0] == 0 and step.size // runs[-1][0] <= runs[-1][1]:
                apart, run = runs[-1]
                runs[-1] = apart, run + step.size // apart * (count - 1)
            else:
                runs.append((step.size, count))
        apart, run = runs[0] if runs else (1, 1)
        if apart == 1:
            total = ceil(run * self.size / line) * line
        else:
            total = run * max(self.size, min(apart * self.size, line))
        for _, run in runs[1:]:
            total *= run
        return min(total * scattered, self.most)


def touch(
    source: Source,
    steps: Collection[Stride],
    *,
    store: bool,
    size: int,
    most: float,
    constant: bool = False,
    bases: Collection[int] = (0,),
) -> Touch:
    """A touch of the elements at each of `bases`, with its steps in order."""
    places = sorted(set(bases))
    found = (*steps, *_progressions(places))
    ordered = sorted(found, key=lambda s: (s.size is None, s.size or 0))
    loops = frozenset(s.var for s in steps if s.var is not None)
    return Touch(source, store, size, tuple(ordered), most, constant, loops, len(places))


def _progressions(places: Sequence[int]) -> list[Stride]:
    """Rising places as equal steps, and equal steps of such runs; unknown where they are neither.

    0 1 2 8 9 10 are 3 places 1 apart, twice 8 apart.
    """
    if len(places) < 2:
        return []
    apart = places[1] - places[0]
    run = next((n for n, p in enumerate(places) if p != places[0] + n * apart), len(places))
    firsts = places[::run]
    if [first + n * apart for first in firsts for n in range(run)] != list(places):
        return [Stride(None, None, within=len(places))]
    return [Stride(None, apart, within=run), *_progressions(firsts)]


@lru_cache(1 << 15)  # groups of one kernel have many offsets in common
def place_of(offset: Index, loops: Vars) -> tuple[tuple[Stride, ...], int]:
    """The steps of an offset along the loops it varies with, and the element where they start."""
    steps: list[Stride] = []
    base = offset.const
    for monomial, coeff in offset.terms:
        if any(v in loops for a in monomial for v in free_vars(of_atom(a))):
            steps += _of_term(monomial, coeff, loops)
        else:
            base += coeff * prod(typical(of_atom(atom)) for atom in monomial)
    return tuple(_joined(steps)), base


def _of_term(monomial: Monomial, coeff: int, loops: Vars) -> list[Stride]:
    moving = [a for a in monomial if any(v in loops for v in free_vars(of_atom(a)))]
    if len(moving) != 1:
        return [Stride(v, None) for a in moving for v in free_vars(of_atom(a)) if v in loops]
    (atom,) = moving
    size = abs(coeff)
    for other in monomial:
        if other is not atom:  # a row as long as a symbolic size
            size *= typical(of_atom(other))
    if isinstance(atom, Var):
        return [Stride(atom, size)]
    if isinstance(atom, Extremum):  # neighbours, but where it changes from one to the other
        return max((list(place_of(i * size, loops)[0]) for i in (atom.a, atom.b)), key=len)
    used = [v for v in free_vars(of_atom(atom)) if v in loops]
    den, num = as_int(atom.den), atom.num
    if den is None:
        if any(v in loops for v in free_vars(atom.den)) or not _whole(num):
            return [Stride(v, None) for v in used]
        symbols = (v for v in free_vars(num) if v not in loops)
        den, num = typical(atom.den), substitute(num, {v: const(typical_value(v)) for v in symbols})
    parts = []
    for var in used:
        linear = step_in(num, var)
        quotient = isinstance(atom, Quotient)
        part = None if linear is None else _cut(quotient, var, abs(linear[0]), den, size)
        parts.append(part or Stride(var, None))
    return [p for p in parts if p.size != 0]


def _whole(index: Index) -> bool:
    """Returns True for an index that divides by known numbers alone."""
    atoms = (atom for monomial, _ in index.terms for atom in monomial)
    return all(
        isinstance(atom, Var)
        or (not isinstance(atom, Extremum) and as_int(atom.den) is not None and _whole(atom.num))
        for atom in atoms
    )


def _cut(quotient: bool, var: Var, by: int, den: int, size: int) -> Stride | None:
    """The step of `by*var // den` or `by*var % den`, times `size`; None where it is not plain."""
    if by % den == 0:
        return Stride(var, size * by // den if quotient else 0)
    if den % by:
        return None
    return (
        Stride(var, size, every=den // by) if quotient else Stride(var, size * by, within=den // by)
    )


def _joined(steps: list[Stride]) -> list[Stride]:
    """Plain steps along one loop are one step, and so are unknown ones: an element of the loop is
    at one place, however many terms say where."""
    found: list[Stride] = []
    for step in steps:
        at = next((n for n, s in enumerate(found) if _alike(s, step)), None)
        if at is None:
            found.append(step)
        elif step.size is not None:
            found[at] = Stride(step.var, (found[at].size or 0) + step.size)
    return found


def _alike(a: Stride, b: Stride) -> bool:
    plain = all(s.every == 1 and s.within is None for s in (a, b))
    return plain and a.var is b.var and (a.size is None) is (b.size is None)
