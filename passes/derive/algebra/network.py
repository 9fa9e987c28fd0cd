"""Contraction trees: in which order the factors of a term are multiplied and its loops summed.

    y[i, d] = sum(j, k) q[i, k] * t[j, k] * v[j, d]      4,096 rows i and j, 64 columns k and d
      q, t first    s[i, j] = sum(k) q[i, k] * t[j, k]   y[i, d] = sum(j) s[i, j] * v[j, d]
      t, v first    s[k, d] = sum(j) t[j, k] * v[j, d]   y[i, d] = sum(k) q[i, k] * s[k, d]

What a subset of the factors makes keeps the loops that the result or another factor has; all others
are summed where their last factor comes in.  The best trees of every subset follow from those of
its parts (Held and Karp's dynamic program, as for joins of relations); where a term has more
factors than `_EXACT`, the pair is joined first that leaves least beyond its parts (the greedy
order of opt_einsum).  Products of constants are made ahead of the run and cost the bytes of their
result alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from typing import NamedTuple, TypeAlias

from tcc.ir.types import DType
from tcc.passes.derive.affine import Sizes
from tcc.passes.derive.algebra.cost import count
from tcc.passes.derive.algebra.terms import Term
from tcc.passes.derive.edit import depends
from tcc.schedule.limits import Rates

# Factors up to which all trees are looked at.
_EXACT = 8
# Trees of a term that are handed on.
_KEPT = 3

# A factor by its number, or what two trees make together.
Tree: TypeAlias = "int | tuple[Tree, Tree]"


class Plan(NamedTuple):
    """A tree, and the seconds that it is estimated to take."""

    seconds: float
    tree: Tree


class _Part(NamedTuple):
    """What a set of factors makes: the plan, its loops as bits, the bytes of storing and reading
    it, and whether it is a constant."""

    plan: Plan
    loops: int
    traffic: float
    constant: bool


@dataclass(slots=True)
class Trees:
    """The trees of one term over the loops `iters` of its result.

    `constants` tells of each factor whether it is known ahead of the run; what trees make is of
    type `dtype`.  `states` counts the joins that were looked at.
    """

    term: Term
    iters: Sizes
    constants: Sequence[bool]
    rates: Rates
    dtype: DType
    states: int = 0
    _sizes: list[int] = field(init=False)
    _points: dict[int, float] = field(default_factory=dict)
    _needed: dict[int, int] = field(default_factory=dict)
    loops: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._sizes = [count((size,)) for size in (*self.iters, *self.term.sums)]
        self.loops = [_bits(depends(f)) for f in self.term.factors]

    def best(self) -> list[Plan]:
        """The cheapest trees found, the best first.  The term has factors."""
        number = len(self.loops)
        whole = (1 << number) - 1
        found: dict[int, list[_Part]] = {1 << n: [self._leaf(n)] for n in range(number)}
        if number > _EXACT:
            return [self._greedy(found)]
        for size in range(2, number + 1):
            for chosen in combinations(range(number), size):
                subset = _bits(chosen)
                parts = [
                    self._join(a, b, subset)
                    for left in _halves(subset)
                    for a in found[left]
                    for b in found[subset ^ left]
                ]
                parts.sort(key=lambda p: p.plan.seconds)
                found[subset] = parts[: _KEPT if subset == whole else 1]
        return [part.plan for part in found[whole]]

    def _greedy(self, found: dict[int, list[_Part]]) -> Plan:
        parts = {subset: part for subset, (part,) in found.items()}
        while len(parts) > 1:
            joins = [
                (self._join(parts[a], parts[b], a | b), a, b) for a, b in combinations(parts, 2)
            ]
            best, a, b = min(
                joins,
                key=lambda j: (
                    self._bytes(j[0].loops) - sum(self._bytes(parts[n].loops) for n in j[1:])
                ),
            )
            del parts[a], parts[b]
            parts[a | b] = best
        (part,) = parts.values()
        return part.plan

    def needed(self, subset: int) -> int:
        """The loops, as bits, that the product of a subset of the factors keeps."""
        if subset not in self._needed:
            own, others = 0, (1 << len(self.iters)) - 1
            for n, loops in enumerate(self.loops):
                if subset >> n & 1:
                    own |= loops
                else:
                    others |= loops
            self._needed[subset] = own & others
        return self._needed[subset]

    def _leaf(self, number: int) -> _Part:
        """A factor by itself, the loops that are its alone summed."""
        loops, fixed = self.loops[number], self.constants[number]
        kept = self.needed(1 << number)
        seconds, bytes_ = 0.0, self._bytes(loops)
        if kept != loops and not fixed:
            seconds = self.rates.seconds(0, self.points(loops), bytes_)
            bytes_ = 2 * self._bytes(kept)
        return _Part(Plan(seconds, number), kept, self._bytes(kept) if fixed else bytes_, fixed)

    def _join(self, a: _Part, b: _Part, subset: int) -> _Part:
        self.states += 1
        kept, loops = self.needed(subset), a.loops | b.loops
        seconds = a.plan.seconds + b.plan.seconds
        fixed = a.constant and b.constant
        bytes_ = self._bytes(kept)
        if not fixed:
            summed = kept != loops
            work = self.points(loops)
            seconds += self.rates.seconds(
                work if summed else 0, 0 if summed else work, a.traffic + b.traffic
            )
            bytes_ = 2 * bytes_ if summed else 0.0
        return _Part(Plan(seconds, (a.plan.tree, b.plan.tree)), kept, bytes_, fixed)

    def points(self, loops: int) -> float:
        """How many points the box of these loops, as bits, has."""
        if loops not in self._points:
            sizes = (size for n, size in enumerate(self._sizes) if loops >> n & 1)
            self._points[loops] = float(prod(sizes))
        return self._points[loops]

    def _bytes(self, loops: int) -> float:
        return self.dtype.bytes * self.points(loops)


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << n for n in numbers)


def _halves(subset: int) -> Iterator[int]:
    """The ways to part a set in two, by the part that has its lowest element, all but the set."""
    rest = subset & (subset - 1)
    lowest = subset ^ rest
    part = rest
    while part:
        part = (part - 1) & rest
        yield lowest | part


def leaves(tree: Tree) -> int:
    """The factors of a tree, as bits."""
    return 1 << tree if isinstance(tree, int) else leaves(tree[0]) | leaves(tree[1])
