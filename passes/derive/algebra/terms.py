"""Stages as sums of products: what the algebra of sums, products and differences makes of them.

    s[i, j] = sum(k) q[i, k] * t[j, k]             y[i, d] = sum(j, k) q[i, k] * t[j, k] * v[j, d]
    y[i, d] = sum(j) s[i, j] * v[j, d]        ->

A producer is taken into its only reader with the loops of its sum, so that a term is a tensor
network: factors over loops, of which those of the sum are summed in any order.  What is no sum or
product (a square root, a comparison) is a factor as a whole, over the loops that it depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import frexp
from typing import NamedTuple, TypeAlias

from tcc.ir import expr
from tcc.ir.expr.scalar import (
    Apply,
    Arg,
    Cast,
    Const,
    Scalar,
    apply,
    argument,
    transform_all,
    walk,
)
from tcc.ir.types import F32, F64
from tcc.passes.derive.affine import Affine, Size, Sizes, substitute, unit, units
from tcc.passes.derive.edit import depends, moved, placed
from tcc.passes.derive.record import Factor, Factors, Region, Stage, reads_inside, widens

# Products and quotients by numbers, one after another: ("mul", 0.125), ("div", 3.0).
Scale: TypeAlias = tuple[tuple[str, float], ...]

# Types whose range leaves room for other orders of products.
WIDE = (F32, F64)
# Terms and factors up to which sums are multiplied out.
_MOST_TERMS, _MOST_FACTORS = 8, 24


class Term(NamedTuple):
    """`scale` times the sum over `sums` of the product of `factors`, whose loops are those of the
    result and then those of `sums`."""

    scale: Scale
    sums: Sizes
    factors: Factors


# A product of scalars: its scale, and what is multiplied, each an operand or opaque to algebra.
_Product: TypeAlias = tuple[Scale, tuple[Scalar, ...]]


@dataclass(slots=True)
class Flattened:
    """The stages of a region as terms, each made when it is asked for.

    `spread`: sums inside of products are multiplied out, but for differences: what cancels before
    a product would not cancel behind it; otherwise `kept` tells whether there were any.  Stages of
    what is opaque are added to `region` behind those that it had.
    """

    region: Region
    spread: bool
    kept: bool = False
    _grown: set[int] = field(default_factory=set)
    _reads: list[int] = field(init=False)
    _added: dict[Stage, int] = field(default_factory=dict)
    _terms: dict[int, tuple[Term, ...] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reads = [0] * len(self.region.stages)
        for stage in self.region.stages:
            for factor in stage.factors:
                if factor.source is not None and factor.source < 0:
                    self._reads[~factor.source] += 1
        for number, _ in self.region.outputs:
            self._reads[number] += 2

    def terms(self, number: int) -> tuple[Term, ...] | None:
        """The terms of a stage; None where it is no sum of products of wide floats, or of more than
        are looked at."""
        if number not in self._terms:
            self._terms[number] = self._made(number)
        return self._terms[number]

    def is_settled(self, number: int) -> bool:
        """Whether a stage has but one order: a product of at most two factors that all loops of
        its sum are of, without a producer in it, or no sum."""
        terms = self.terms(number)
        if terms is None or number in self._grown:
            return terms is None
        first = len(self.region.stages[number].iters)
        return all(
            len(t.factors) <= 2
            and all(depends(f).issuperset(range(first, first + len(t.sums))) for f in t.factors)
            for t in terms
        )

    def _made(self, number: int) -> tuple[Term, ...] | None:
        stage = self.region.stages[number]
        products = _products(stage, self.spread)
        if products is None:
            return None
        self.kept |= not self.spread and products != _products(stage, spread=True)
        found: list[Term] = []
        for scale, scalars in products:
            factors = tuple(self._factor(stage, s) for s in scalars)
            own = _without_idle(Term(scale, stage.sums, factors), stage.iters)
            expanded = [by_digits(t, stage.iters) for t in self._expanded(own, stage)]
            if expanded != [own]:
                self._grown.add(number)
            found += expanded
        fits = all(len(t.factors) <= _MOST_FACTORS and _sums_used(t, stage.iters) for t in found)
        return tuple(found) if fits and len(found) <= _MOST_TERMS else None

    def _factor(self, stage: Stage, scalar: Scalar) -> Factor:
        """The access that an operand of a product is; what is opaque becomes a stage."""
        read = scalar.arg if isinstance(scalar, Cast) else scalar
        if isinstance(read, Arg) and widens(read.dtype, scalar.dtype):
            return stage.factors[read.number]
        used = sorted({n.number for n in walk(scalar) if isinstance(n, Arg)})
        loops = sorted(depended(stage.factors[n] for n in used))
        sizes = tuple(stage.loops[k] for k in loops)
        maps = placed(loops, len(stage.loops))
        body = transform_all((scalar,), lambda n: _renumbered(n, used))
        factors = tuple(moved(stage.factors[n], maps, sizes) for n in used)
        number = self._add(Stage(sizes, (), None, factors, body))
        return Factor(~number, 0, tuple(unit(k, len(stage.loops)) for k in loops), scalar.dtype)

    def _add(self, stage: Stage) -> int:
        if stage not in self._added:
            self._added[stage] = len(self.region.stages)
            self.region = self.region._replace(stages=(*self.region.stages, stage))
            self._reads.append(2)  # of a function: no part of it is taken apart
        return self._added[stage]

    def _expanded(self, term: Term, reader: Stage) -> list[Term]:
        """The term with the producers of its factors in their place."""
        for place, factor in enumerate(term.factors):
            inner = self._inner(term, factor, reader)
            if inner is None:
                continue
            made: list[Term] = []
            for each in inner:
                joined = _joined(term, place, each, reader.iters)
                made += self._expanded(joined, reader._replace(sums=joined.sums))
            return made
        return [term]

    def _inner(self, term: Term, factor: Factor, reader: Stage) -> tuple[Term, ...] | None:
        """The terms of the producer of a factor where they may take its place."""
        source = factor.source
        if source is None or source >= 0 or self._reads[~source] != 1:
            return None
        if factor.dtype not in WIDE or factor.dtype is not reader.dtypes[0]:
            return None
        if not reads_inside(self.region, reader._replace(sums=term.sums), factor):
            return None
        found = self.terms(~source)
        if found is None or len(found) == 1 or _bare(term):
            return found
        self.kept |= not self.spread
        return found if self.spread and _positive(t.scale for t in found) else None


def depended(factors: Iterable[Factor]) -> frozenset[int]:
    """The loops that any of some accesses depends on."""
    return frozenset[int]().union(*map(depends, factors))


def _sums_used(term: Term, iters: Sizes) -> bool:
    """Whether every loop of the sum is one of a factor."""
    first = len(iters)
    return depended(term.factors).issuperset(range(first, first + len(term.sums)))


def _bare(term: Term) -> bool:
    """Whether a term is its factor alone, so that a sum in its place is no sum in a product."""
    return len(term.factors) == 1 and not term.sums


def _renumbered(node: Scalar, used: Sequence[int]) -> Scalar:
    return argument(used.index(node.number), node.dtype) if isinstance(node, Arg) else node


def _joined(term: Term, place: int, inner: Term, iters: Sizes) -> Term:
    """The term with `inner`, a term of the producer of its factor `place`, in that place."""
    loops = (*iters, *term.sums, *inner.sums)
    own = units(len(loops))
    outer = len(iters) + len(term.sums)
    kept = [moved(f, own[:outer], loops) for f in term.factors]
    forms = [substitute(form, own[:outer], loops) for form in term.factors[place].forms]
    maps = (*forms, *own[outer:])
    new = [moved(f, maps, loops) for f in inner.factors]
    factors = (*kept[:place], *new, *kept[place + 1 :])
    scale = scaled(term.scale, inner.scale)
    return _without_idle(Term(scale, loops[len(iters) :], factors), iters)


def _without_idle(term: Term, iters: Sizes) -> Term:
    """The term without sum loops of known extent on which no factor depends: each is a factor."""
    first = len(iters)
    used = depended(term.factors)
    kept = [
        k
        for k, size in enumerate(term.sums, first)
        if k in used or not isinstance(size, int) or size < 1
    ]
    if len(kept) == len(term.sums):
        return term
    maps = placed((*range(first), *kept), first + len(term.sums))
    sums = tuple(term.sums[k - first] for k in kept)
    loops = (*iters, *sums)
    idle = (size for k, size in enumerate(term.sums, first) if k not in kept)
    scale = scaled(term.scale, tuple(("mul", float(n)) for n in idle if isinstance(n, int)))
    return Term(scale, sums, tuple(moved(f, maps, loops) for f in term.factors))


def by_digits(term: Term, iters: Sizes) -> Term:
    """The term with a loop for every digit of a sum loop that its factors read: one of 768 trips
    of which they read c // 64 and c % 64 becomes two."""
    first, loops = len(iters), (*iters, *term.sums)
    digits = [d for f in term.factors for form in f.forms for d in form.digits]
    parts: list[tuple[int, ...]] = []
    for k, size in enumerate(loops):
        whole = unit(k, len(loops))
        read = (n for d in digits if d.of == whole for n in (d.div, d.div * d.mod))
        cuts = sorted({1, *filter(None, read)})
        ends = (*cuts, size if isinstance(size, int) else 0)
        fits = k >= first and isinstance(size, int) and cuts[-1] < size
        split = fits and all(b % a == 0 for a, b in pairwise(ends))
        parts.append(tuple(reversed(cuts)) if split else (1,))
    if all(len(p) == 1 for p in parts):
        return term
    extents: list[Size] = []
    maps: list[Affine] = []
    count = sum(map(len, parts))
    for size, own in zip(loops, parts, strict=True):
        place = len(extents)
        maps.append(Affine((0,) * place + own + (0,) * (count - place - len(own))))
        rest = (a // b for a, b in pairwise(own))
        extents += [size if len(own) == 1 else size // own[0], *rest]
    sizes = tuple(extents)
    return Term(term.scale, sizes[first:], tuple(moved(f, maps, sizes) for f in term.factors))


# ---- scales -------------------------------------------------------------------------------------


def scaled(scale: Scale, more: Scale) -> Scale:
    """Both, one after the other; powers of two and signs are joined, which rounds nothing."""
    exact, rest = 1.0, []
    for function, value in (*scale, *more):
        if abs(frexp(value)[0]) == 0.5:
            exact = exact * value if function == "mul" else exact / value
        else:
            rest.append((function, value))
    return (*rest, *((("mul", exact),) if exact != 1 else ()))


def _positive(scales: Iterable[Scale]) -> bool:
    return all(value > 0 for scale in scales for _, value in scale)


def is_near_one(value: object) -> bool:
    """Whether a number is a factor that may be moved: nothing overflows or vanishes then that did
    not before."""
    return isinstance(value, int | float) and 2.0**-10 <= abs(value) <= 2.0**10


# ---- bodies -------------------------------------------------------------------------------------


def _products(stage: Stage, spread: bool) -> list[_Product] | None:
    """The body as a sum of products; None where the stage does not sum, or sums something else."""
    if isinstance(stage.body, expr.Stage) or len(stage.body) != 1:
        return None
    if stage.monoid not in (None, "sum") or stage.dtypes[0] not in WIDE:
        return None
    found = _sum(stage.body[0], spread)
    if not stage.sums and found == [((), stage.body)] and not isinstance(stage.body[0], Arg):
        return None
    if stage.sums and len(found) > 1 and not (spread and _positive(s for s, _ in found)):
        return [((), stage.body)]
    return found


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
        case Apply(function="div", args=(a, Const() as number)) if is_near_one(number.value):
            return [_by(p, "div", float(number.value)) for p in _sum(a, spread)]
        case Apply(function="mul", args=args):
            return _times(args, spread)
        case _:
            return [((), (scalar,))]


def _times(args: Sequence[Scalar], spread: bool) -> list[_Product]:
    """A product of sums; those that are not multiplied out are each an operand of it.  One with a
    number that is not to be moved is opaque."""
    made: list[_Product] = [((), ())]
    for arg in args:
        products = _sum(arg, spread)
        if products == [((), (arg,))] and isinstance(arg, Const):
            return [((), (apply("mul", *args),))]
        several = len(products) > 1
        if several and not (spread and _positive(s for s, _ in products)):
            products = [((), (arg,))]
        made = [(scaled(s, t), a + b) for s, a in made for t, b in products]
        if len(made) > _MOST_TERMS:
            return [((), (apply("mul", *args),))]
    return made


def _by(product: _Product, function: str, value: float) -> _Product:
    return scaled(product[0], ((function, value),)), product[1]
