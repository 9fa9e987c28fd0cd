"""Writes stages as sums of products, by the algebra of sums, products and differences.

    s[i, j] = sum(k) q[i, k] * t[j, k]             y[i, d] = sum(j, k) q[i, k] * t[j, k] * v[j, d]
    y[i, d] = sum(j) s[i, j] * v[j, d]        ->

A producer is merged into its only reader, together with its sum loops.  So a term is a tensor
network: a product of factors, summed over loops in any order.  A factor is an access to a tensor,
or an opaque scalar, for example a square root or a comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import frexp
from typing import NamedTuple, TypeAlias

from tcc.cached import cached_method
from tcc.ir import expr
from tcc.ir.expr.scalar import (
    Apply,
    Arg,
    Cast,
    Const,
    Scalar,
    apply,
    walk,
)
from tcc.ir.region import Factor, Factors, Region, RegionStage, reads_inside, widens
from tcc.ir.region.affine import Affine, Size, Sizes, substitute, unit, units
from tcc.ir.region.edit import depends, loop_maps, mapped, renumbered
from tcc.ir.types import F32, F64
from tcc.ops.shapes import replaced
from tcc.zipped import zip_equal

# Multiplications and divisions by numbers, in order: ("mul", 0.125), ("div", 3.0).
Scale: TypeAlias = tuple[tuple[str, float], ...]

# Types with so wide a range that other orders of products cause no new overflow.
WIDE = (F32, F64)
# After multiplying out, a sum is not rewritten if it has more than _MOST_TERMS terms, or if a term
# has more than _MOST_FACTORS factors.
_MOST_TERMS, _MOST_FACTORS = 8, 24
# The divisor of a mean of at most _MOST_ELEMENTS elements may be moved within a product.  It makes
# the product smaller; only values below 2.0**-106 become subnormal, and none overflows.
_MOST_ELEMENTS = 1 << 20


class Term(NamedTuple):
    """`scale` times the sum over `sums` of the product of `factors`.

    The loops of the factors are the result loops, followed by `sums`.
    """

    scale: Scale
    sums: Sizes
    factors: Factors


# The scale of a product, and its factors. A factor is an argument of the body or an opaque scalar.
_Product: TypeAlias = tuple[Scale, tuple[Scalar, ...]]


@dataclass
class Flattened:
    """The stages of a region as sums of terms, each computed on request.

    If `spread`, sums inside of products are multiplied out: (a + b) * c becomes a * c + b * c.
    Differences are not: the cancellation in a - b would come too late, after two rounded products.
    If not `spread`, `has_nested_sums` becomes True if there are sums to multiply out.  Opaque
    scalars become stages that are appended to `region`.
    """

    region: Region
    spread: bool
    has_nested_sums: bool = False
    _grown: set[int] = field(default_factory=set)
    _reads: Counter[int | None] = field(init=False)

    def __post_init__(self) -> None:
        self._reads = Counter(f.source for s in self.region.stages for f in s.factors)
        for number, _ in self.region.outputs:
            self._reads[~number] += 2

    @cached_method
    def terms(self, number: int) -> tuple[Term, ...] | None:
        """Returns the terms of a stage.

        Returns None if the stage is not a sum of products of f32 or f64, or has too many terms.
        """
        stage = self.region.stages[number]
        products = _products(stage, self.spread)
        if products is None:
            return None
        self.has_nested_sums |= not self.spread and products != _products(stage, spread=True)
        terms: list[Term] = []
        for scale, scalars in products:
            factors = tuple(self._factor(stage, s) for s in scalars)
            term = _without_idle(Term(scale, stage.sums, factors), stage.iters)
            expanded = [by_digits(t, stage.iters) for t in self._expanded(term, stage)]
            if expanded != [term]:
                self._grown.add(number)
            terms += expanded
        fits = all(len(t.factors) <= _MOST_FACTORS and _sums_used(t, stage.iters) for t in terms)
        return tuple(terms) if fits and len(terms) <= _MOST_TERMS else None

    def is_settled(self, number: int) -> bool:
        """Returns True if the sums of a stage can be computed in one order only.

        That is so if no producers were merged into the stage, each term has at most two factors,
        and each factor depends on all sum loops.  It is also so if the stage has no terms.
        """
        terms = self.terms(number)
        if terms is None or number in self._grown:
            return terms is None
        first = len(self.region.stages[number].iters)
        return all(
            len(t.factors) <= 2
            and all(depends(f).issuperset(range(first, first + len(t.sums))) for f in t.factors)
            for t in terms
        )

    def _factor(self, stage: RegionStage, scalar: Scalar) -> Factor:
        """Returns the access of a factor of a product; an opaque scalar becomes a stage of its
        own."""
        operand = scalar.arg if isinstance(scalar, Cast) else scalar
        if isinstance(operand, Arg) and widens(operand.dtype, scalar.dtype):
            return stage.factors[operand.number]
        numbers = sorted({n.number for n in walk(scalar) if isinstance(n, Arg)})
        loops = sorted(loops_of_factors(stage.factors[n] for n in numbers))
        sizes = tuple(stage.loops[k] for k in loops)
        maps = loop_maps(loops, len(stage.loops))
        body = renumbered((scalar,), {old: new for new, old in enumerate(numbers)})
        factors = tuple(mapped(stage.factors[n], maps, sizes) for n in numbers)
        number = self._add(RegionStage(sizes, (), None, factors, body))
        return Factor(~number, 0, tuple(unit(k, len(stage.loops)) for k in loops), scalar.dtype)

    @cached_method
    def _add(self, stage: RegionStage) -> int:
        number = len(self.region.stages)
        self.region = self.region._replace(stages=(*self.region.stages, stage))
        # The stage of an opaque scalar counts two readers, so that it is not merged into one.
        self._reads[~number] = 2
        return number

    def _expanded(self, term: Term, reader: RegionStage) -> list[Term]:
        """Returns the terms that `term` becomes when producers are merged into it, where allowed.

        `reader` is the stage of the term.
        """
        for place, factor in enumerate(term.factors):
            inner = self._inner(term, factor, reader)
            if inner is None:
                continue
            expanded: list[Term] = []
            for inner_term in inner:
                merged = _with_producer(term, place, inner_term, reader.iters)
                expanded += self._expanded(merged, reader._replace(sums=merged.sums))
            return expanded
        return [term]

    def _inner(self, term: Term, factor: Factor, reader: RegionStage) -> tuple[Term, ...] | None:
        """Returns the terms of the stage that a factor reads; None if they must not replace the
        factor."""
        source = factor.source
        if source is None or source >= 0 or self._reads[source] != 1:
            return None
        if factor.dtype not in WIDE or factor.dtype is not reader.dtypes[0]:
            return None
        if not reads_inside(self.region, reader._replace(sums=term.sums), factor):
            return None
        terms = self.terms(~source)
        if terms is None or len(terms) == 1 or _bare(term):
            return terms
        self.has_nested_sums |= not self.spread
        return terms if self.spread and _positive(t.scale for t in terms) else None


def accesses(region: Region, number: int) -> list[tuple[RegionStage, Factor]]:
    """Returns the accesses to parameter `number`, each with its stage."""
    return [(s, f) for s in region.stages for f in s.factors if f.source == number]


def loops_of_factors(factors: Iterable[Factor]) -> frozenset[int]:
    """Returns the loops on which any of the accesses depends."""
    return frozenset[int]().union(*map(depends, factors))


def _sums_used(term: Term, iters: Sizes) -> bool:
    """Returns True if every sum loop occurs in a factor."""
    first = len(iters)
    return loops_of_factors(term.factors).issuperset(range(first, first + len(term.sums)))


def _bare(term: Term) -> bool:
    """Returns True if a term is a single factor without a sum loop.

    A producer that is a sum of several terms may then replace the factor: nothing multiplies the
    sum, so nothing has to be multiplied out.
    """
    return len(term.factors) == 1 and not term.sums


def _with_producer(term: Term, place: int, inner: Term, iters: Sizes) -> Term:
    """Returns the term with the factors of `inner` in place of factor number `place`.

    `inner` is a term of the stage that the factor reads.
    """
    loops = (*iters, *term.sums, *inner.sums)
    all_units = units(len(loops))
    outer = len(iters) + len(term.sums)
    outer_factors = [mapped(f, all_units[:outer], loops) for f in term.factors]
    forms = [substitute(form, all_units[:outer], loops) for form in term.factors[place].forms]
    maps = (*forms, *all_units[outer:])
    inner_factors = [mapped(f, maps, loops) for f in inner.factors]
    factors = replaced(outer_factors, place, *inner_factors)
    scale = scaled(term.scale, inner.scale)
    return _without_idle(Term(scale, loops[len(iters) :], factors), iters)


def _without_idle(term: Term, iters: Sizes) -> Term:
    """Returns the term without the sum loops on which no factor depends.

    A loop of n iterations is replaced by a factor n of the scale.  Loops of symbolic extent stay.
    """
    first = len(iters)
    loops_used = loops_of_factors(term.factors)
    summed = [
        k
        for k, size in enumerate(term.sums, first)
        if k in loops_used or not isinstance(size, int) or size < 1
    ]
    if len(summed) == len(term.sums):
        return term
    maps = loop_maps((*range(first), *summed), first + len(term.sums))
    sums = tuple(term.sums[k - first] for k in summed)
    loops = (*iters, *sums)
    idle = (size for k, size in enumerate(term.sums, first) if k not in summed)
    scale = scaled(term.scale, tuple(("mul", float(n)) for n in idle if isinstance(n, int)))
    return Term(scale, sums, tuple(mapped(f, maps, loops) for f in term.factors))


def by_digits(term: Term, iters: Sizes) -> Term:
    """Returns the term with sum loops split, so that each quotient or remainder becomes a loop.

    For example, if factors read a loop c of 768 iterations as c // 64 and c % 64, it becomes loops
    of 12 and 64 iterations.
    """
    first, loops = len(iters), (*iters, *term.sums)
    digits = [d for f in term.factors for form in f.forms for d in form.digits]
    parts: list[tuple[int, ...]] = []
    for k, size in enumerate(loops):
        loop_form = unit(k, len(loops))
        divisors = (n for d in digits if d.of == loop_form for n in (d.div, d.div * d.mod))
        cuts = sorted({1, *filter(None, divisors)})
        ends = (*cuts, size if isinstance(size, int) else 0)
        fits = k >= first and isinstance(size, int) and cuts[-1] < size
        split = fits and all(b % a == 0 for a, b in pairwise(ends))
        parts.append(tuple(reversed(cuts)) if split else (1,))
    if all(len(p) == 1 for p in parts):
        return term
    extents: list[Size] = []
    maps: list[Affine] = []
    count = sum(map(len, parts))
    for size, radices in zip_equal(loops, parts):
        place = len(extents)
        maps.append(Affine((0,) * place + radices + (0,) * (count - place - len(radices))))
        extents_below = (a // b for a, b in pairwise(radices))
        extents += [size if len(radices) == 1 else size // radices[0], *extents_below]
    sizes = tuple(extents)
    return Term(term.scale, sizes[first:], tuple(mapped(f, maps, sizes) for f in term.factors))


# ---- scales -------------------------------------------------------------------------------------


def scaled(scale: Scale, more: Scale) -> Scale:
    """Returns the scale that applies `scale`, then `more`.

    Powers of two and signs are combined into one number, because multiplying by them is exact.
    """
    exact, inexact = 1.0, []
    for function, value in (*scale, *more):
        if abs(frexp(value)[0]) == 0.5:
            exact = exact * value if function == "mul" else exact / value
        else:
            inexact.append((function, value))
    return (*inexact, *((("mul", exact),) if exact != 1 else ()))


def _positive(scales: Iterable[Scale]) -> bool:
    return all(value > 0 for scale in scales for _, value in scale)


def is_near_one(value: object) -> bool:
    """Returns True if a multiplication by `value` may move within a product: `value` is too close
    to 1 to cause a new overflow or underflow."""
    return isinstance(value, int | float) and 2.0**-10 <= abs(value) <= 2.0**10


# ---- bodies -------------------------------------------------------------------------------------


def _products(stage: RegionStage, spread: bool) -> list[_Product] | None:
    """Returns the body of a stage as a sum of products.

    Returns None if the stage reduces by another monoid, or if it has no sum and its body is a
    single opaque scalar.  `spread` multiplies out sums inside of products.
    """
    if isinstance(stage.body, expr.Stage) or len(stage.body) != 1:
        return None
    if stage.monoid not in (None, "sum") or stage.dtypes[0] not in WIDE:
        return None
    products = _sum(stage.body[0], spread)
    if not stage.sums and products == [((), stage.body)] and not isinstance(stage.body[0], Arg):
        return None
    if stage.sums and len(products) > 1 and not (spread and _positive(s for s, _ in products)):
        return [((), stage.body)]
    return products


def _sum(scalar: Scalar, spread: bool) -> list[_Product]:
    match scalar:
        case Apply(function="add", args=(a, b)):
            return _sum(a, spread) + _sum(b, spread)
        case Apply(function="sub", args=(a, b)):
            return _sum(a, spread) + [_by(p, "mul", -1.0) for p in _sum(b, spread)]
        case Apply(function="neg", args=(a,)):
            return [_by(p, "mul", -1.0) for p in _sum(a, spread)]
        case Const() if is_near_one(scalar.value):
            return [(scaled((), (("mul", float(scalar.value)),)), ())]
        case Apply(function="div", args=(a, Const() as number)) if (
            is_near_one(number.value) or 1 <= number.value <= _MOST_ELEMENTS
        ):
            return [_by(p, "div", float(number.value)) for p in _sum(a, spread)]
        case Apply(function="mul", args=args):
            return _times(args, spread)
        case _:
            return [((), (scalar,))]


def _times(args: Sequence[Scalar], spread: bool) -> list[_Product]:
    """Returns the product of `args`, which may be sums, as a sum of products.

    `spread` multiplies out sums; a sum that is not multiplied out counts as a single factor.  A
    product with a number that must not be moved (`is_near_one`) is a single opaque factor.
    """
    expanded: list[_Product] = [((), ())]
    for arg in args:
        products = _sum(arg, spread)
        if products == [((), (arg,))] and isinstance(arg, Const):
            return [((), (apply("mul", *args),))]
        several = len(products) > 1
        if several and not (spread and _positive(s for s, _ in products)):
            products = [((), (arg,))]
        expanded = [(scaled(s, t), a + b) for s, a in expanded for t, b in products]
        if len(expanded) > _MOST_TERMS:
            return [((), (apply("mul", *args),))]
    return expanded


def _by(factors: _Product, function: str, value: float) -> _Product:
    return scaled(factors[0], ((function, value),)), factors[1]
