"""Compares two regions by exact values modulo two primes at some points of their outputs.

The points are corners, edges, points around every boundary of a quotient, a remainder or a padding,
and random points.  All terms of a sum are evaluated.  Elements of parameters are random; a hash
computes them when they are read.  If two different polynomials of degree d are compared, they agree
at a point with a probability of at most d/p for a prime p (Schwartz 1980; Zippel 1979).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import lcm, prod

import numpy as np
from tcc.errors import InternalError
from tcc.ir import expr
from tcc.ir.expr.scalar import Arg
from tcc.ir.index import Index, Var, evaluate, free_vars
from tcc.ir.region import Factor, Region, RegionStage, shape_of
from tcc.ir.region.affine import Affine, Size
from tcc.ir.region.canonical import stage_digests
from tcc.ir.region.field import PRIMES, PrimeField, Values, element, key_of, scattered
from tcc.ir.types import BOOL, DType
from tcc.zipped import zip_equal

_CHUNK = 1 << 18  # the approximate number of terms of sums that are evaluated at once
_MOST_ELEMENTS = 1 << 27
# For regions with symbols: _DRAWS sets of symbol values are compared. A set is drawn at most _TRIES
# times until it is valid. The range of the values doubles after every _DOUBLED draws.
_DRAWS, _TRIES, _DOUBLED = 3, 160, 8


class Unchecked(InternalError):
    """A region cannot be checked.

    Its sums have too many terms, or no symbol values are found for which its loops run.
    """


class _Outside(Exception):
    """A read without a fill value is outside its source."""


def equal_at(
    a: Region, b: Region, points: int = 16, seed: int = 0, max_terms: int = _MOST_ELEMENTS
) -> bool:
    """True if all outputs agree at `points` random points and at the boundaries of both regions.

    False if shapes or types differ, if a read of `b` without a fill value is outside its source, or
    if an extent of `b` is negative.  Leaf stages are not evaluated: an element of a leaf is a hash
    of the leaf's digest and the position, so two leaves agree only if their digests are equal.

    Raises `Unchecked` if the sums of a region have more than `max_terms` terms, if no symbol values
    are found for which all loops of `a` run, or if `a` reads outside a source without a fill value.
    """
    if _types(a) != _types(b):
        return False
    symbols = _symbols(a, b)
    return all(
        _agree(a, b, points, key_of(seed, draw), _drawn(a, symbols, seed, draw), max_terms)
        for draw in range(_DRAWS if symbols else 1)
    )


def _types(region: Region) -> tuple[object, ...]:
    outputs = ((region.stages[n], c) for n, c in region.outputs)
    return region.params, tuple((stage.iters, stage.dtypes[c]) for stage, c in outputs)


def _agree(
    a: Region, b: Region, points: int, seed: int, sizes: Mapping[str, int], max_terms: int
) -> bool:
    if any(_int(extent, sizes) < 0 for extent in _extents(b)):
        return False
    rng = random.Random(seed)
    edges = sorted({*_edges(a, sizes), *_edges(b, sizes)})
    places = [
        _points([_int(e, sizes) for e in a.stages[number].iters], edges, points, rng)
        for number, _ in a.outputs
    ]
    for prime in PRIMES:
        evaluators = [
            _Values(r, PrimeField(prime, seed), sizes, n, max_terms) for n, r in enumerate((a, b))
        ]
        try:
            expected = [evaluators[0].at(n, at)[c] for (n, c), at in zip_equal(a.outputs, places)]
        except _Outside as error:
            raise Unchecked(f"at {dict(sizes)} the region itself reads outside") from error
        try:
            for value, (n, c), at in zip_equal(expected, b.outputs, places):
                if np.any(value != evaluators[1].at(n, at)[c]):
                    return False
        except _Outside:
            return False
    return True


# ---- sizes and points ---------------------------------------------------------------------------


def _symbols(*regions: Region) -> list[Var]:
    sizes: set[Index] = set()
    for region in regions:
        sizes.update(d for p in region.params if p is not None for d in p.shape)
        for stage in region.stages:
            sizes.update(s for s in _sizes(stage) if isinstance(s, Index))
    return [v for v in free_vars(*sorted(sizes, key=lambda s: s.key)) if v.extent is None]


def _extents(region: Region) -> Iterator[Size]:
    """Yields the extents of all loops and parameters."""
    for number, param in enumerate(region.params):
        yield from () if param is None else shape_of(region, number)
    for stage in region.stages:
        yield from stage.loops


def _sizes(stage: RegionStage) -> Iterator[Size]:
    yield from stage.loops
    for form in _forms(stage):
        yield from form.steps
        yield form.offset


def _forms(stage: RegionStage) -> Iterator[Affine]:
    pending = [form for factor in stage.factors for form in factor.forms]
    while pending:
        form = pending.pop()
        pending += [d.of for d in form.digits]
        yield form


def _drawn(a: Region, symbols: Sequence[Var], seed: int, draw: int) -> dict[str, int]:
    """Returns small random values of the symbols for which all symbolic extents are positive.

    An extent such as `height - window` is positive only for some values, so values are drawn again
    until they fit, from ranges that grow. Raises `Unchecked` after `_TRIES` draws.
    """
    positive = [extent for n, _ in a.outputs for extent in a.stages[n].iters]
    positive += [extent for extent in _extents(a) if not isinstance(extent, int)]
    rng = random.Random(key_of("sizes", seed, draw))
    for number in range(_TRIES):
        # Some symbols may be 0 or negative, such as padding; every other draw makes all positive.
        sizes = _values(symbols, rng, 1 if number % 2 else -2, 5 << number // _DOUBLED)
        if all(_int(extent, sizes) > 0 for extent in positive):
            return sizes
    raise Unchecked("no sizes are known at which the region has points")


def _values(symbols: Sequence[Var], rng: random.Random, first: int, span: int) -> dict[str, int]:
    """Returns a random value for each name of a symbol.

    Values are multiples of the symbol's divisor, at least its minimum and at least `first` times
    the divisor, and at most `span` multiples above that. Symbols of one name but different ranges
    get a common value.
    """
    named: dict[str, list[Var]] = {}
    for var in symbols:
        named.setdefault(var.name, []).append(var)
    values = {}
    for name, ranges in named.items():
        step = lcm(*(v.divisor for v in ranges))
        low = max(-(-max(v.lo for v in ranges) // step), first)
        high = min([low + span, *(v.hi // step for v in ranges if v.hi is not None)])
        values[name] = step * rng.randint(min(low, high), high)
    return values


def _edges(region: Region, sizes: Mapping[str, int]) -> set[int]:
    """Returns distances from the ends of an axis at which values of the region may change.

    They are divisors, products of divisors and moduli, offsets of forms, and small extents of sums.
    """
    edges = {1}
    for stage in region.stages:
        edges.update(e for e in (_int(s, sizes) for s in stage.sums) if e <= 64)
        for form in _forms(stage):
            edges.add(abs(_int(form.offset, sizes)))
            for digit in form.digits:
                edges |= {digit.div, digit.div * max(digit.mod, 1)}
    return edges


def _points(extents: list[int], edges: Sequence[int], count: int, rng: random.Random) -> Values:
    """Returns an array of points, one in each row, with an index below each of `extents`.

    The points are corners, a point for each boundary of each axis near one of `edges`, and `count`
    random points. Half of the coordinates of a random point are such boundaries.
    """
    special = [
        sorted(
            {
                coordinate
                for edge in edges
                for place in (edge, size - edge, (size // 2 // max(edge, 1)) * edge)
                for coordinate in (place - 1, place, place + 1)
                if 0 <= coordinate < size
            }
        )
        or [0]
        for size in extents
    ]

    def anywhere(axis: int) -> int:
        return rng.choice(special[axis]) if rng.random() < 0.5 else rng.randrange(extents[axis])

    axes = range(len(extents))
    points = [list(p) for p in product(*({0, e - 1} for e in extents[-6:]))]
    points = [[0] * (len(extents) - len(p)) + p for p in points]
    points += [
        [at if k == axis else anywhere(k) for k in axes] for axis in axes for at in special[axis]
    ]
    points += [[anywhere(k) for k in axes] for _ in range(count)]
    return np.array(sorted(map(tuple, points)), np.int64).reshape(len(points), len(extents))


def _int(size: Size, sizes: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else int(evaluate(size, sizes))


# ---- values -------------------------------------------------------------------------------------


class _Values:
    """Evaluates the stages of a region at points; computes each value once.

    `sizes` has the symbols' values. `side` tells the two regions of a comparison apart: reads
    outside a source without a fill value give different elements in them. Raises `Unchecked` after
    `max_terms` terms.
    """

    def __init__(
        self, region: Region, field: PrimeField, sizes: Mapping[str, int], side: int, max_terms: int
    ) -> None:
        self._region, self._field, self._sizes, self._side = region, field, sizes, side
        self._digests = stage_digests(region)
        self._cache: dict[int, tuple[Values, list[Values]]] = {}
        self._terms_left, self._max_terms = max_terms, max_terms

    def at(self, number: int, points: Values) -> list[Values]:
        """Returns each component of a stage at some points; each row of `points` is a point."""
        return self._stage(number, _linear(points.T, self._shape(~number)))

    def _stage(self, number: int, places: Values) -> list[Values]:
        """Returns each component of a stage at elements, which `places` counts row by row."""
        requested = _distinct(places)
        if number not in self._cache:
            self._cache[number] = requested, self._computed(number, requested)
        cached, values = self._cache[number]
        if cached is not requested:
            missing = np.setdiff1d(requested, cached, assume_unique=True)
            components = self._computed(number, missing)
            every = np.concatenate([cached, missing])
            order = np.argsort(every, kind="stable")  # fast for two sorted parts
            cached = every[order]
            values = [
                np.concatenate([old, new])[order] for old, new in zip_equal(values, components)
            ]
            self._cache[number] = cached, values
        rows = np.searchsorted(cached, places)
        return [v[rows] for v in values]

    def _computed(self, number: int, numbers: Values) -> list[Values]:
        stage = self._region.stages[number]
        if isinstance(stage.body, expr.Stage):
            keys = [(self._field.seed, self._digests[number], c) for c in range(len(stage.dtypes))]
            return [
                self._random(numbers, dtype, *key) for key, dtype in zip_equal(keys, stage.dtypes)
            ]
        sums = [_int(s, self._sizes) for s in stage.sums]
        terms = prod(sums)
        at = _unravelled(numbers, self._shape(~number))
        self._terms_left -= len(at) * max(terms, 1)
        if self._terms_left < 0:
            raise Unchecked(f"the check of stage {number} has over {self._max_terms} terms")
        inner = _unravelled(np.arange(terms), sums)
        rows = max(_CHUNK // max(terms, 1), 1)
        parts = [self._part(stage, at[n : n + rows], inner) for n in range(0, len(at), rows)]
        parts = parts or [[np.zeros(0, np.int64)] * len(stage.dtypes)]
        return [np.concatenate(component) for component in zip_equal(*parts)]

    def _part(self, stage: RegionStage, at: Values, inner: Values) -> list[Values]:
        loops = [*(at[:, k, None] for k in range(at.shape[1])), *inner.T[:, None, :]]
        assert not isinstance(stage.body, expr.Stage)
        must = {s.number for s in expr.unconditional(stage.body) if isinstance(s, Arg)}
        factors = [self._factor(f, loops, n in must) for n, f in enumerate(stage.factors)]
        full = len(at), len(inner)
        values = [np.broadcast_to(v, full) for v in self._field.body(stage.body, factors)]
        if stage.monoid is None:
            return [v[:, 0] for v in values]
        return self._field.combined(stage.monoid, stage.dtypes, values)

    def _factor(self, factor: Factor, loops: list[Values], must: bool) -> Values:
        prime = self._field.prime
        at = [self._affine(form, loops) for form in factor.forms]
        if factor.source is None:
            return at[0] % prime
        shape = self._shape(factor.source)
        pairs = [*zip_equal(at, shape)]
        inside = np.ones((), bool)
        for place, size in pairs:
            inside = inside & (place >= 0) & (place < size)
        if factor.fill is None and must and not np.all(inside):
            raise _Outside
        outside = np.array(
            key_of("outside", self._side) % prime
            if factor.fill is None
            else element(factor.fill.value, prime)
        )
        if not all(shape):
            return np.broadcast_to(outside, np.broadcast_shapes(*(p.shape for p in at), ()))
        places = _linear([np.clip(place, 0, size - 1) for place, size in pairs], shape)
        values = self._source_values(factor, places)
        return values if np.all(inside) else np.where(inside, values, outside)

    def _source_values(self, factor: Factor, places: Values) -> Values:
        assert factor.source is not None
        if factor.source < 0:
            return self._stage(~factor.source, places)[factor.component]
        return self._random(places, factor.dtype, self._field.seed, factor.source)

    def _random(self, numbers: Values, dtype: DType, *key: object) -> Values:
        values = scattered(key_of(*key), numbers, self._field.prime)
        return values & 1 if dtype is BOOL else values

    def _affine(self, form: Affine, loops: list[Values]) -> Values:
        value = np.array(_int(form.offset, self._sizes), np.int64)
        for step, loop in zip_equal(form.steps, loops):
            if step != 0:
                value = value + _int(step, self._sizes) * loop
        for digit in form.digits:
            quotient = self._affine(digit.of, loops) // digit.div
            quotient = quotient % digit.mod if digit.mod else quotient
            value = value + _int(digit.step, self._sizes) * quotient
        return value

    def _shape(self, source: int) -> list[int]:
        return [_int(s, self._sizes) for s in shape_of(self._region, source)]


def _distinct(places: Values) -> Values:
    """Returns the distinct numbers in ascending order.

    `np.unique` is not used, because it imports masked arrays, which takes a third of a second.
    """
    ordered = np.sort(places, axis=None)
    first = np.concatenate([ordered[:1] == ordered[:1], ordered[1:] != ordered[:-1]])
    distinct: Values = ordered[first]
    return distinct


def _linear(at: Iterable[Values], shape: Sequence[int]) -> Values:
    """Returns the numbers, counted row by row, of the elements with the indices `at`.

    `at` has an array for each axis; the arrays broadcast.
    """
    number = np.zeros((), np.int64)
    for place, size in zip_equal(at, shape):
        number = number * size + place
    return number


def _unravelled(numbers: Values, shape: Sequence[int]) -> Values:
    places = np.zeros((len(numbers), len(shape)), np.int64)
    for axis in range(len(shape) - 1, -1, -1):
        numbers, places[:, axis] = np.divmod(numbers, max(shape[axis], 1))
    return places
