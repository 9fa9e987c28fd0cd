"""Regions that compute sums of products in other orders.

    y[i, j] = sum(k) x[i, k] * w[k, j]  +  sum(k, r) x[i, k] * a[k, r] * b[r, j]
      ->  m[k, j] = w[k, j]  +  sum(r) a[k, r] * b[r, j]        of constants: made ahead of the run
          y[i, j] = sum(k) x[i, k] * m[k, j]

Every stage that is a sum of products is written anew by its contraction trees (`network`), terms
that share a factor together where that is estimated to take less.  A number goes into a constant
factor, else to where it multiplies least.  Nothing else of a region changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from math import inf
from typing import NamedTuple, TypeAlias

from tcc.ir.expr.scalar import Scalar, apply, argument, cast, literal
from tcc.ir.types import DType
from tcc.passes.derive.affine import Sizes, unit
from tcc.passes.derive.algebra.cost import count, estimate
from tcc.passes.derive.algebra.factoring import Common, common, outer_term
from tcc.passes.derive.algebra.network import Tree, Trees, leaves
from tcc.passes.derive.algebra.terms import Flattened, Scale, Term, depended
from tcc.passes.derive.canonical import fingerprint
from tcc.passes.derive.edit import added, drop_unused, moved, placed, with_sources
from tcc.passes.derive.record import Factor, Factors, Region, Stage
from tcc.schedule.limits import Rates

# Seconds of the best tree of a term, by its loops and by which of its factors are constant.
_Known: TypeAlias = dict[tuple[Term, Sizes, tuple[bool, ...]], float]

# Trees of the result that are written out, and regions that are handed on.
_RANKS, _REGIONS = 3, 3
# Joins that are looked at before terms are left apart and no further region is written.
_STATES = 1 << 13


class Candidate(NamedTuple):
    """A region, what it is estimated to take, and how it follows from the one that was given."""

    seconds: float
    region: Region
    chain: str


class Found(NamedTuple):
    """The best candidates, the cheapest first; `states` are the joins and regions looked at."""

    candidates: tuple[Candidate, ...]
    states: int


def reassociated(
    region: Region, constants: Sequence[bool], rates: Rates, most: float = inf
) -> Found:
    """The orders of sums and products of a region with one output that are estimated to be
    cheapest; `constants` tells of each parameter whether it is one.

    Where the best tree is estimated to take more than `most`, no others are written out.
    """
    found: dict[bytes, Candidate] = {}
    known: _Known = {}
    states = 0
    for spread in (False, True):
        for rank in range(_RANKS):
            flat = Flattened(region, spread)
            writer = _Writer(flat, constants, rates, rank, known)
            made = writer.region()
            states += writer.states + 1
            chain = ("multiply out; " if spread else "") + "; ".join(writer.chain)
            each = Candidate(estimate(made, constants, rates), made, chain)
            found.setdefault(fingerprint(made), each)
            if not writer.others or each.seconds > most or states > _STATES:
                break
        if not flat.kept or states > _STATES:
            break
    order = sorted(found.values(), key=lambda c: c.seconds)
    return Found(tuple(order[:_REGIONS]), states)


# ---- writing ------------------------------------------------------------------------------------

# What a term is over the loops of the result: a number times a product of accesses.
_Product: TypeAlias = tuple[Scale, Factors]


@dataclass(slots=True)
class _Writer:
    """Writes the stages of a region anew; `rank` tells which of its trees the result gets, and
    `others` whether it has more."""

    flat: Flattened
    constants: Sequence[bool]
    rates: Rates
    rank: int
    known: _Known
    states: int = 0
    others: bool = False
    chain: list[str] = field(default_factory=list)
    _stages: list[Stage] = field(default_factory=list)
    _numbers: dict[Stage, int] = field(default_factory=dict)
    _fixed: list[bool] = field(default_factory=list)
    _places: dict[int, int] = field(default_factory=dict)

    def region(self) -> Region:
        outputs = tuple((self._stage(n), c) for n, c in self.flat.region.outputs)
        return drop_unused(Region(self.flat.region.params, tuple(self._stages), outputs))

    def _stage(self, number: int) -> int:
        """The new number of an old stage."""
        if number not in self._places:
            terms = self.flat.terms(number)
            stage = self.flat.region.stages[number]
            if terms is None or self.flat.is_settled(number):
                self._places[number] = self._add(with_sources(stage, self._source))
            else:
                renewed = [t._replace(factors=self._renewed(t.factors)) for t in terms]
                rank = self.rank if (number, 0) in self.flat.region.outputs else 0
                self._places[number] = self._sum(stage.iters, stage.dtypes[0], renewed, rank)
        return self._places[number]

    def _source(self, source: int) -> int:
        return source if source >= 0 else ~self._stage(~source)

    def _renewed(self, factors: Factors) -> Factors:
        return tuple(
            f if f.source is None else f._replace(source=self._source(f.source)) for f in factors
        )

    def _add(self, stage: Stage) -> int:
        if stage not in self._numbers:
            self._numbers[stage] = len(self._stages)
            self._fixed.append(all(map(self._is_fixed, stage.factors)))
            self._stages.append(stage)
        return self._numbers[stage]

    def _is_fixed(self, factor: Factor) -> bool:
        """Whether an access is of what is known ahead of the run."""
        if factor.source is None:
            return True
        return self.constants[factor.source] if factor.source >= 0 else self._fixed[~factor.source]

    def _sum(self, iters: Sizes, dtype: DType, terms: Sequence[Term], rank: int = 0) -> int:
        """Adds what computes the sum of `terms`; the number of its last stage."""
        parts = [
            self._product(self._trees(t, iters, dtype), rank)
            for t in self._factored(iters, dtype, terms)
        ]
        if len(parts) == 1 and not parts[0][0] and len(parts[0][1]) == 1:
            whole = self._whole(parts[0][1][0], iters, dtype)
            if whole is not None:
                return self._add(whole)
        factors = tuple(f for _, own in parts for f in own)
        return self._add(Stage(iters, (), None, factors, (_body(parts, dtype),)))

    def _whole(self, factor: Factor, iters: Sizes, dtype: DType) -> Stage | None:
        """The stage whose results an access reads one by one, with the loops of one trip that the
        access lacks; None where it reads otherwise."""
        if factor.source is None or factor.source >= 0 or factor.dtype is not dtype:
            return None
        stage = self._stages[~factor.source]
        used = sorted(depended((factor,)))
        plain = factor.forms == tuple(unit(k, len(iters)) for k in used)
        if not plain or stage.iters != tuple(iters[k] for k in used) or len(stage.dtypes) > 1:
            return None
        for k, size in enumerate(iters):
            if k not in used:
                if size != 1:
                    return None
                stage = added(stage, k, 1)
        return stage

    def _trees(self, term: Term, iters: Sizes, dtype: DType) -> Trees:
        constants = tuple(map(self._is_fixed, term.factors))
        return Trees(term, iters, constants, self.rates, dtype)

    # ---- terms that share a factor

    def _factored(self, iters: Sizes, dtype: DType, terms: Sequence[Term]) -> list[Term]:
        """The terms, those with a common factor taken together as long as that saves most."""
        left = list(terms)
        while len(left) > 1 and self.states < _STATES:
            found = [
                (self._saved(iters, dtype, each), n, each)
                for n, (a, b) in enumerate(combinations(left, 2))
                for each in common(a, b, iters)
            ]
            best = max(found, key=lambda f: (f[0], -f[1]), default=None)
            if best is None or best[0] <= 0:
                break
            shared = best[2]
            number = self._sum(shared.iters, dtype, shared.rests)
            self.chain.append(f"take {_name(shared.factor)} out of two terms")
            left = [t for t in left if t is not shared.terms[0] and t is not shared.terms[1]]
            left.append(outer_term(shared, Factor(~number, 0, shared.forms, dtype)))
        return left

    def _saved(self, iters: Sizes, dtype: DType, shared: Common) -> float:
        """Seconds that two terms are estimated to take more apart than together."""
        self.states += 1
        apart = sum(self._seconds(t, iters, dtype) for t in shared.terms)
        fixed = all(self._is_fixed(f) for rest in shared.rests for f in rest.factors)
        inner = sum(self._seconds(t, shared.iters, dtype) for t in shared.rests)
        inner += 0.0 if fixed else self.rates.seconds(0, count(shared.iters), 0)
        rest = Factor(0, 0, shared.forms, dtype)
        outer = outer_term(shared, rest)
        pair = self._is_fixed(shared.factor), fixed
        together = inner + self._seconds(outer, iters, dtype, pair)
        return apart + self.rates.seconds(0, count(iters), 0) - together

    def _seconds(
        self, term: Term, iters: Sizes, dtype: DType, fixed: tuple[bool, ...] | None = None
    ) -> float:
        """What the best tree of a term is estimated to take."""
        constants = tuple(map(self._is_fixed, term.factors)) if fixed is None else fixed
        key = term, iters, constants
        if key not in self.known:
            trees = Trees(term, iters, constants, self.rates, dtype)
            self.known[key] = trees.best()[0].seconds
            self.states += trees.states
        return self.known[key]

    # ---- trees

    def _product(self, trees: Trees, rank: int) -> _Product:
        """Adds the sums of a term; what is left over the loops of the result."""
        term = trees.term
        if not term.factors:
            return term.scale, ()
        plans = trees.best()
        self.states += trees.states
        self.others |= len(plans) > rank + 1
        tree = plans[min(rank, len(plans) - 1)].tree
        if len(term.factors) > 1 and term.sums:
            self.chain.append(_text(tree, term))
        target = _scaled_part(trees, tree) if term.scale else -1
        order = range(len((*trees.iters, *trees.term.sums)))
        factors = self._operands(trees, tree, order, target)
        maps = placed(range(len(trees.iters)), len(order))
        over = tuple(moved(f, maps, trees.iters) for f in factors)
        whole = (1 << len(term.factors)) - 1
        return (term.scale if target == whole else ()), over

    def _operands(self, trees: Trees, tree: Tree, order: Sequence[int], target: int) -> Factors:
        """Accesses whose product a tree makes, results with loops in `order`; the scale comes to
        the set of factors `target`."""
        subset = leaves(tree)
        kept = trees.needed(subset)
        if isinstance(tree, int):
            made: Factors = (trees.term.factors[tree],)
            summed = kept != trees.loops[tree]
        else:
            loops = trees.needed(leaves(tree[0])) | trees.needed(leaves(tree[1]))
            summed = kept != loops
            inner = _inner_order(order, kept) if summed else order
            sides = [self._operands(trees, t, inner, target) for t in tree]
            if summed:
                sides = [(self._one(trees, s, inner),) for s in sides]
            made = (*sides[0], *sides[1])
        if summed:
            made = (self._write(trees, made, order, kept),)
        if len(made) > 1 and all(map(self._is_fixed, made)):
            made = (self._one(trees, made, order),)
        if subset == target and subset != (1 << len(trees.term.factors)) - 1:
            made = (self._one(trees, made, order, trees.term.scale),)
        return made

    def _one(
        self, trees: Trees, factors: Factors, order: Sequence[int], scale: Scale = ()
    ) -> Factor:
        """The product of accesses, point by point, as one access."""
        if len(factors) == 1 and not scale:
            return factors[0]
        kept = sum(1 << k for k in depended(factors))
        return self._write(trees, factors, order, kept, scale)

    def _write(
        self,
        trees: Trees,
        factors: Factors,
        order: Sequence[int],
        kept: int,
        scale: Scale = (),
    ) -> Factor:
        """Adds the stage of a product, summed over all loops but the `kept` ones."""
        loops = (*trees.iters, *trees.term.sums)
        own = [k for k in order if kept >> k & 1]
        summed = sorted(depended(factors).difference(own))
        maps = placed((*own, *summed), len(loops))
        iters, sums = tuple(loops[k] for k in own), tuple(loops[k] for k in summed)
        read = tuple(moved(f, maps, iters + sums) for f in factors)
        body = (_body([(scale, read)], trees.dtype),)
        number = self._add(Stage(iters, sums, "sum" if sums else None, read, body))
        return Factor(~number, 0, tuple(unit(k, len(loops)) for k in own), trees.dtype)


def _inner_order(order: Sequence[int], kept: int) -> list[int]:
    """The order of loops in which what a sum reads is stored: the last of its result, along which
    vectors run, stays last, and the loops that it sums come before that."""
    outer = [k for k in order if kept >> k & 1]
    summed = [k for k in order if not kept >> k & 1]
    return [*outer[:-1], *summed, *outer[-1:]]


def _scaled_part(trees: Trees, tree: Tree) -> int:
    """The factors whose product a number multiplies: constant ones, else the fewest elements; the
    whole product where no part has fewer."""
    best, least = leaves(tree), (True, trees.points(trees.needed(leaves(tree))))
    left = [tree]
    while left:
        part = left.pop(0)
        subset = leaves(part)
        known = all(c for n, c in enumerate(trees.constants) if subset >> n & 1)
        size = (not known, trees.points(trees.needed(subset)))
        if size < least:
            best, least = subset, size
        if isinstance(part, tuple):
            left += part
    return best


def _body(parts: Sequence[_Product], dtype: DType) -> Scalar:
    """The sum of products, whose factors are numbered one after the other."""
    total: Scalar | None = None
    number = 0
    for scale, factors in parts:
        operands: list[Scalar] = []
        for factor in factors:
            operands.append(cast(argument(number, factor.dtype), dtype))
            number += 1
        minus = total is not None and ("mul", -1.0) in scale
        rest = [s for s in scale if not (minus and s == ("mul", -1.0))]
        value = reduce(_times, operands) if operands else literal(1, dtype)
        for function, by in rest:
            value = apply(function, value, literal(by, dtype))
        total = value if total is None else apply("sub" if minus else "add", total, value)
    assert total is not None
    return total


def _times(a: Scalar, b: Scalar) -> Scalar:
    return apply("mul", a, b)


def _name(factor: Factor) -> str:
    if factor.source is None:
        return "index"
    return f"x{factor.source}" if factor.source >= 0 else f"s{~factor.source}"


def _text(tree: Tree, term: Term) -> str:
    if isinstance(tree, int):
        return _name(term.factors[tree])
    return f"({_text(tree[0], term)} {_text(tree[1], term)})"
