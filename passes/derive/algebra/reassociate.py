"""Rewrites a region so that it computes sums of products in other orders.

    y[i, j] = sum(k) x[i, k] * w[k, j]  +  sum(k, r) x[i, k] * a[k, r] * b[r, j]
      ->  m[k, j] = w[k, j]  +  sum(r) a[k, r] * b[r, j]        of constants, ahead of the run
          y[i, j] = sum(k) x[i, k] * m[k, j]

Every stage that is a sum of products is rewritten by its contraction trees (`network`).  Two terms
that share a factor are joined if the estimate is lower.  The scale of a term multiplies a constant
factor if there is one, otherwise the smallest intermediate result.  All other stages stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from operator import mul
from typing import NamedTuple, TypeAlias

from tcc.cached import cached_method
from tcc.ir.expr.scalar import Scalar, argument, cast, literal
from tcc.ir.region import Factor, Factors, Region, RegionStage
from tcc.ir.region.affine import Sizes, unit
from tcc.ir.region.canonical import fingerprint
from tcc.ir.region.edit import (
    drop_unused,
    from_sources,
    loop_maps,
    mapped,
    with_extra_loop,
    with_sources,
)
from tcc.ir.types import DType
from tcc.ops.formula import fn
from tcc.passes.derive.algebra.cost import count, estimate
from tcc.passes.derive.algebra.factoring import Common, outer_term, shared_factors
from tcc.passes.derive.algebra.network import Tree, Trees, leaves
from tcc.passes.derive.algebra.terms import Flattened, Scale, Term, loops_of_factors
from tcc.schedule.alternatives import IMPOSSIBLE, NO_TIME, Seconds, cheapest_first, saves
from tcc.schedule.limits import Rates

# Maps (term, extents of its result loops, which of its factors are constant) to the estimated
# seconds of its best contraction tree.
_Seconds: TypeAlias = dict[tuple[Term, Sizes, tuple[bool, ...]], Seconds]

# At most _RANKS contraction trees of the output's terms become regions, and at most _REGIONS of
# these regions are returned.
_RANKS, _REGIONS = 3, 3
# At most this many joins are estimated. After that, no more terms are joined, and no more regions
# are written.
_STATES = 1 << 13


class Rewrite(NamedTuple):
    """A region, its estimate in seconds, and the text of its derivation from the original
    region."""

    seconds: Seconds
    region: Region
    chain: str


class Rewrites(NamedTuple):
    """The best candidates, the cheapest first.

    `states` counts the joins and regions whose time was estimated.
    """

    candidates: tuple[Rewrite, ...]
    states: int


def reassociated(
    region: Region, constants: Sequence[bool], rates: Rates, limit: Seconds = IMPOSSIBLE
) -> Rewrites:
    """Returns the regions with other orders of sums and products that have the lowest estimates.

    `region` has a single output.  `constants` says for each parameter if it is constant.  If the
    best tree is estimated to take more than `limit` seconds, no further trees become regions.
    """
    candidates: dict[bytes, Rewrite] = {}
    seconds_of: _Seconds = {}
    states = 0
    for spread in (False, True):
        for rank in range(_RANKS):
            flat = Flattened(region, spread)
            writer = _Writer(flat, constants, rates, rank, seconds_of)
            rewritten = writer.region()
            states += writer.states + 1
            chain = ("multiply out; " if spread else "") + "; ".join(writer.chain)
            candidate = Rewrite(estimate(rewritten, constants, rates), rewritten, chain)
            candidates.setdefault(fingerprint(rewritten), candidate)
            if not writer.has_more or saves(limit, candidate.seconds) or states > _STATES:
                break
        if not flat.has_nested_sums or states > _STATES:
            break
    order = cheapest_first(candidates.values(), lambda c: c.seconds)
    return Rewrites(tuple(order[:_REGIONS]), states)


# ---- writing of the new region ------------------------------------------------------------------

# A product over the result loops: its scale, and its accesses.
_Product: TypeAlias = tuple[Scale, Factors]


@dataclass
class _Writer:
    """Rewrites the stages of a region.

    `rank` selects a contraction tree for the terms of the output; 0 is the best tree.  After
    `region`, `has_more` is True if there are trees of a higher rank.
    """

    flat: Flattened
    constants: Sequence[bool]
    rates: Rates
    rank: int
    seconds_of: _Seconds
    states: int = 0
    has_more: bool = False
    chain: list[str] = field(default_factory=list)
    _stages: list[RegionStage] = field(default_factory=list)
    _fixed: list[bool] = field(default_factory=list)

    def region(self) -> Region:
        outputs = tuple((self._stage(n), c) for n, c in self.flat.region.outputs)
        return drop_unused(Region(self.flat.region.params, tuple(self._stages), outputs))

    @cached_method
    def _stage(self, number: int) -> int:
        """Returns the number in the new region of the old stage `number`, which is added if
        needed."""
        terms = self.flat.terms(number)
        stage = self.flat.region.stages[number]
        if terms is None or self.flat.is_settled(number):
            return self._add(with_sources(stage, self._source))
        renewed = [t._replace(factors=from_sources(t.factors, self._source)) for t in terms]
        rank = self.rank if (number, 0) in self.flat.region.outputs else 0
        return self._sum(stage.iters, stage.dtypes[0], renewed, rank)

    def _source(self, source: int) -> int:
        return source if source >= 0 else ~self._stage(~source)

    @cached_method
    def _add(self, stage: RegionStage) -> int:
        self._fixed.append(all(map(self._is_fixed, stage.factors)))
        self._stages.append(stage)
        return len(self._stages) - 1

    def _is_fixed(self, factor: Factor) -> bool:
        """Returns True if an access reads a constant."""
        if factor.source is None:
            return True
        return self.constants[factor.source] if factor.source >= 0 else self._fixed[~factor.source]

    def _sum(self, iters: Sizes, dtype: DType, terms: Sequence[Term], rank: int = 0) -> int:
        """Adds the stages of the sum of `terms`; returns the number of the last stage.

        `rank` selects the contraction tree of each term.
        """
        parts = [
            self._contracted(self._trees(t, iters, dtype), rank)
            for t in self._factored(iters, dtype, terms)
        ]
        if len(parts) == 1 and not parts[0][0] and len(parts[0][1]) == 1:
            source = self._source_stage(parts[0][1][0], iters, dtype)
            if source is not None:
                return self._add(source)
        factors = tuple(f for _, part in parts for f in part)
        return self._add(RegionStage(iters, (), None, factors, (_body(parts, dtype),)))

    def _source_stage(self, factor: Factor, iters: Sizes, dtype: DType) -> RegionStage | None:
        """Returns the stage that an access reads, if the access copies its complete result; else
        None.

        If the access leaves out loops of a single iteration, they are added to the stage.
        """
        if factor.source is None or factor.source >= 0 or factor.dtype is not dtype:
            return None
        stage = self._stages[~factor.source]
        loops = sorted(loops_of_factors((factor,)))
        plain = factor.forms == tuple(unit(k, len(iters)) for k in loops)
        if not plain or stage.iters != tuple(iters[k] for k in loops) or len(stage.dtypes) > 1:
            return None
        for k, size in enumerate(iters):
            if k not in loops:
                if size != 1:
                    return None
                stage = with_extra_loop(stage, k, 1)
        return stage

    def _trees(self, term: Term, iters: Sizes, dtype: DType) -> Trees:
        constants = tuple(map(self._is_fixed, term.factors))
        return Trees(term, iters, constants, self.rates, dtype)

    # ---- terms that share a factor

    def _factored(self, iters: Sizes, dtype: DType, terms: Sequence[Term]) -> list[Term]:
        """Returns the terms, of which pairs with a common factor are joined if that saves time.

        The pair that saves most is joined first.
        """
        remaining = list(terms)
        while len(remaining) > 1 and self.states < _STATES:
            savings = [
                (self._saved(iters, dtype, pair), pair)
                for a, b in combinations(remaining, 2)
                for pair in shared_factors(a, b, iters)
            ]
            best = next(iter(cheapest_first(savings, lambda saving: -saving[0])), None)
            if best is None or not saves(NO_TIME, best[0]):
                break
            shared = best[1]
            number = self._sum(shared.iters, dtype, shared.remainders)
            self.chain.append(f"take {_name(shared.factor)} out of two terms")
            remaining = [
                t for t in remaining if t is not shared.terms[0] and t is not shared.terms[1]
            ]
            remaining.append(outer_term(shared, Factor(~number, 0, shared.forms, dtype)))
        return remaining

    def _saved(self, iters: Sizes, dtype: DType, shared: Common) -> Seconds:
        """Returns the estimated seconds that joining two terms saves."""
        self.states += 1
        separate = sum((self._seconds(t, iters, dtype) for t in shared.terms), NO_TIME)
        fixed = all(self._is_fixed(f) for remainder in shared.remainders for f in remainder.factors)
        inner = sum((self._seconds(t, shared.iters, dtype) for t in shared.remainders), NO_TIME)
        inner += NO_TIME if fixed else self.rates.seconds(0, count(shared.iters), 0)
        remainder = Factor(0, 0, shared.forms, dtype)
        outer = outer_term(shared, remainder)
        pair = self._is_fixed(shared.factor), fixed
        together = inner + self._seconds(outer, iters, dtype, pair)
        return separate + self.rates.seconds(0, count(iters), 0) - together

    def _seconds(
        self, term: Term, iters: Sizes, dtype: DType, fixed: tuple[bool, ...] | None = None
    ) -> Seconds:
        """Returns the estimated seconds of a term's best tree.

        `fixed` says for each factor if it is constant; None to find out.
        """
        constants = tuple(map(self._is_fixed, term.factors)) if fixed is None else fixed
        key = term, iters, constants
        if key not in self.seconds_of:
            trees = Trees(term, iters, constants, self.rates, dtype)
            self.seconds_of[key] = trees.best()[0].seconds
            self.states += trees.states
        return self.seconds_of[key]

    # ---- stages of contraction trees

    def _contracted(self, trees: Trees, rank: int) -> _Product:
        """Adds the stages of a term's sums; returns the product that remains, which has only result
        loops."""
        term = trees.term
        if not term.factors:
            return term.scale, ()
        plans = trees.best()
        self.states += trees.states
        self.has_more |= len(plans) > rank + 1
        tree = plans[min(rank, len(plans) - 1)].tree
        if len(term.factors) > 1 and term.sums:
            self.chain.append(_text(tree, term))
        target = _scaled_part(trees, tree) if term.scale else -1
        order = range(len((*trees.iters, *trees.term.sums)))
        factors = self._operands(trees, tree, order, target)
        maps = loop_maps(range(len(trees.iters)), len(order))
        over = tuple(mapped(f, maps, trees.iters) for f in factors)
        all_factors = (1 << len(term.factors)) - 1
        return (term.scale if target == all_factors else ()), over

    def _operands(self, trees: Trees, tree: Tree, order: Sequence[int], target: int) -> Factors:
        """Returns accesses whose product is the result of `tree`; stages are added for its sums.

        `order` is the order of the loops of stored results.  The term's scale multiplies the
        product of the factors in `target`; bit n stands for factor n.
        """
        subset = leaves(tree)
        result_loops = trees.needed(subset)
        if isinstance(tree, int):
            factors: Factors = (trees.term.factors[tree],)
            summed = result_loops != trees.loops[tree]
        else:
            loops = trees.needed(leaves(tree[0])) | trees.needed(leaves(tree[1]))
            summed = result_loops != loops
            inner = _inner_order(order, result_loops) if summed else order
            operands = [self._operands(trees, t, inner, target) for t in tree]
            if summed:
                operands = [(self._one(trees, s, inner),) for s in operands]
            factors = (*operands[0], *operands[1])
        if summed:
            factors = (self._write(trees, factors, order, result_loops),)
        if len(factors) > 1 and all(map(self._is_fixed, factors)):
            factors = (self._one(trees, factors, order),)
        if subset == target and subset != (1 << len(trees.term.factors)) - 1:
            factors = (self._one(trees, factors, order, trees.term.scale),)
        return factors

    def _one(
        self, trees: Trees, factors: Factors, order: Sequence[int], scale: Scale = ()
    ) -> Factor:
        """Returns a single access to the elementwise product of `factors` and `scale`.

        Adds a stage for the product if needed; `order` is the order of the loops of its result.
        """
        if len(factors) == 1 and not scale:
            return factors[0]
        result_loops = sum(1 << k for k in loops_of_factors(factors))
        return self._write(trees, factors, order, result_loops, scale)

    def _write(
        self,
        trees: Trees,
        factors: Factors,
        order: Sequence[int],
        result_loops: int,
        scale: Scale = (),
    ) -> Factor:
        """Adds a stage that computes a product, and returns an access to its result.

        The product is summed over all loops except `result_loops`, a set as bits.
        """
        loops = (*trees.iters, *trees.term.sums)
        result_order = [k for k in order if result_loops >> k & 1]
        summed = sorted(loops_of_factors(factors).difference(result_order))
        maps = loop_maps((*result_order, *summed), len(loops))
        iters, sums = tuple(loops[k] for k in result_order), tuple(loops[k] for k in summed)
        factors_read = tuple(mapped(f, maps, iters + sums) for f in factors)
        body = (_body([(scale, factors_read)], trees.dtype),)
        number = self._add(RegionStage(iters, sums, "sum" if sums else None, factors_read, body))
        return Factor(~number, 0, tuple(unit(k, len(loops)) for k in result_order), trees.dtype)


def _inner_order(order: Sequence[int], result_loops: int) -> list[int]:
    """Returns the order of loops in which the operand of a sum is stored.

    The last loop of the sum's result stays last, because it is vectorised.  The summed loops come
    directly before it.
    """
    outer = [k for k in order if result_loops >> k & 1]
    summed = [k for k in order if not result_loops >> k & 1]
    return [*outer[:-1], *summed, *outer[-1:]]


def _scaled_part(trees: Trees, tree: Tree) -> int:
    """Returns the set of factors, as bits, whose product the term's scale multiplies.

    The set is a part of the tree: a constant part if there is one, otherwise the part whose product
    has the fewest elements.
    """
    best, smallest = leaves(tree), (True, trees.points(trees.needed(leaves(tree))))
    pending = [tree]
    while pending:
        part = pending.pop(0)
        subset = leaves(part)
        is_constant = all(c for n, c in enumerate(trees.constants) if subset >> n & 1)
        size = (not is_constant, trees.points(trees.needed(subset)))
        if size < smallest:
            best, smallest = subset, size
        if isinstance(part, tuple):
            pending += part
    return best


def _body(parts: Sequence[_Product], dtype: DType) -> Scalar:
    """Returns the body of a sum of products, with numbers counted through the factors of all
    products in order."""
    accumulator: Scalar | None = None
    number = 0
    for scale, factors in parts:
        operands: list[Scalar] = []
        for factor in factors:
            operands.append(cast(argument(number, factor.dtype), dtype))
            number += 1
        minus = accumulator is not None and ("mul", -1.0) in scale
        scales = [s for s in scale if not (minus and s == ("mul", -1.0))]
        value = reduce(mul, operands) if operands else literal(1, dtype)
        for function, by in scales:
            value = fn(function, value, by)
        if accumulator is None:
            accumulator = value
        else:
            accumulator = accumulator - value if minus else accumulator + value
    assert accumulator is not None
    return accumulator


def _name(factor: Factor) -> str:
    if factor.source is None:
        return "index"
    return f"x{factor.source}" if factor.source >= 0 else f"s{~factor.source}"


def _text(tree: Tree, term: Term) -> str:
    if isinstance(tree, int):
        return _name(term.factors[tree])
    return f"({_text(tree[0], term)} {_text(tree[1], term)})"
