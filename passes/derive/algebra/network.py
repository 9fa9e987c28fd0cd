"""Finds contraction trees: orders in which factors of a term are multiplied and loops summed.

    y[i, d] = sum(j, k) q[i, k] * t[j, k] * v[j, d]      4,096 rows i and j, 64 columns k and d
      q, t first    s[i, j] = sum(k) q[i, k] * t[j, k]   y[i, d] = sum(j) s[i, j] * v[j, d]
      t, v first    s[k, d] = sum(j) t[j, k] * v[j, d]   y[i, d] = sum(k) q[i, k] * s[k, d]

A term is a sum over loops of a product of factors.  The product of a subset of its factors keeps
the loops that occur in the result or in the other factors.  Every other loop is summed when the
last factor with this loop is multiplied.  The best trees of a subset follow from the best trees of
its parts (Held and Karp's dynamic program, as for joins of relations).

For a term with more than `_EXACT` factors, the next pair to be joined is the pair whose product is
smallest relative to its parts (the greedy order of opt_einsum).  Products of constants are computed
at compile time, and cost only the bytes of their result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import prod
from typing import NamedTuple, TypeAlias

from tcc.cached import cached_method
from tcc.ir.region.affine import Sizes
from tcc.ir.region.edit import depends
from tcc.ir.types import DType
from tcc.passes.derive.algebra.cost import count
from tcc.passes.derive.algebra.terms import Term
from tcc.schedule.alternatives import NO_TIME, Seconds, cheapest_first
from tcc.schedule.limits import Rates

# All trees of a term are compared if it has at most this many factors.
_EXACT = 8
# The number of trees that are returned for a term, the best first.
_TREES = 3

# A tree is the index of a factor, or a pair of trees whose results are multiplied.
Tree: TypeAlias = "int | tuple[Tree, Tree]"


class ContractionTree(NamedTuple):
    """A contraction tree, which computes the product of a set of factors.

    `seconds`: its estimated time.
    `loops`: the set of the product's loops; bit k stands for loop k.
    `traffic`: the bytes of storing and reading the product.
    `constant`: True if all factors are constant.
    """

    seconds: Seconds
    tree: Tree
    loops: int
    traffic: float
    constant: bool


@dataclass
class Trees:
    """The contraction trees of a term with result loops `iters`.

    `constants` says for each factor if it is constant.  Intermediate results have type `dtype`.
    `states` counts the joins that were estimated.  `loops` has the set of loops of each factor.
    """

    term: Term
    iters: Sizes
    constants: Sequence[bool]
    rates: Rates
    dtype: DType
    states: int = 0

    @cached_property
    def _sizes(self) -> list[int]:
        return [count((size,)) for size in (*self.iters, *self.term.sums)]

    @cached_property
    def loops(self) -> list[int]:
        return [_bits(depends(f)) for f in self.term.factors]

    def best(self) -> list[ContractionTree]:
        """Returns the cheapest trees, the best first.  Requires a term with factors."""
        number = len(self.loops)
        everything = (1 << number) - 1
        best_parts: dict[int, list[ContractionTree]] = {
            1 << n: [self._leaf(n)] for n in range(number)
        }
        if number > _EXACT:
            return [self._greedy(best_parts)]
        for size in range(2, number + 1):
            for members in combinations(range(number), size):
                subset = _bits(members)
                parts = [
                    self._join(a, b, subset)
                    for half in _halves(subset)
                    for a in best_parts[half]
                    for b in best_parts[subset ^ half]
                ]
                parts = cheapest_first(parts, lambda p: p.seconds)
                best_parts[subset] = parts[: _TREES if subset == everything else 1]
        return best_parts[everything]

    def _greedy(self, best_parts: dict[int, list[ContractionTree]]) -> ContractionTree:
        parts = {subset: part for subset, (part,) in best_parts.items()}
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
        return part

    @cached_method
    def needed(self, subset: int) -> int:
        """Returns the loops that the product of the factors `subset` keeps.

        The set of loops and the set of factors are integers: bit n stands for element n.
        """
        inside, outside = 0, (1 << len(self.iters)) - 1
        for n, loops in enumerate(self.loops):
            if subset >> n & 1:
                inside |= loops
            else:
                outside |= loops
        return inside & outside

    def _leaf(self, number: int) -> ContractionTree:
        """Returns the tree of factor `number`, summed over the loops that only this factor has."""
        loops, fixed = self.loops[number], self.constants[number]
        result_loops = self.needed(1 << number)
        seconds, bytes_ = NO_TIME, self._bytes(loops)
        if result_loops != loops and not fixed:
            seconds = self.rates.seconds(0, self.points(loops), bytes_)
            bytes_ = 2 * self._bytes(result_loops)
        traffic = self._bytes(result_loops) if fixed else bytes_
        return ContractionTree(seconds, number, result_loops, traffic, fixed)

    def _join(self, a: ContractionTree, b: ContractionTree, subset: int) -> ContractionTree:
        self.states += 1
        result_loops, loops = self.needed(subset), a.loops | b.loops
        seconds = a.seconds + b.seconds
        fixed = a.constant and b.constant
        bytes_ = self._bytes(result_loops)
        if not fixed:
            summed = result_loops != loops
            work = self.points(loops)
            seconds += self.rates.seconds(
                work if summed else 0, 0 if summed else work, a.traffic + b.traffic
            )
            bytes_ = 2 * bytes_ if summed else 0.0
        return ContractionTree(seconds, (a.tree, b.tree), result_loops, bytes_, fixed)

    @cached_method
    def points(self, loops: int) -> float:
        """Returns the product of the extents of `loops`, a set as bits."""
        return float(prod(size for n, size in enumerate(self._sizes) if loops >> n & 1))

    def _bytes(self, loops: int) -> float:
        return self.dtype.bytes * self.points(loops)


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << n for n in numbers)


def _halves(subset: int) -> Iterator[int]:
    """Yields each way to divide a set, given as bits, into two parts.

    Yields the part that contains the lowest element; the other part is the complement.
    """
    upper = subset & (subset - 1)
    lowest = subset ^ upper
    part = upper
    while part:
        part = (part - 1) & upper
        yield lowest | part


def leaves(tree: Tree) -> int:
    """Returns the set of a tree's factors; bit n stands for factor n."""
    return 1 << tree if isinstance(tree, int) else leaves(tree[0]) | leaves(tree[1])
