"""Finds factors that two terms share, and the remainder of each term after the factor is taken out.

    sum(k) x[i, k] * w[k, j]   and   sum(p, r) x[i, p] * a[p, r] * b[r, j]

The terms share the factor x[i, k], where k of the first term stands for p of the second.  Their
remainders, over k and j, are

    w[k, j]                    and   sum(r) a[k, r] * b[r, j]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tcc.ir.region import Factor
from tcc.ir.region.affine import Affines, Sizes, unit
from tcc.ir.region.edit import depends, loop_maps, mapped
from tcc.ops.shapes import replaced
from tcc.passes.derive.algebra.terms import Term, loops_of_factors
from tcc.zipped import zip_equal


class Common(NamedTuple):
    """Two terms with a common factor, which can be taken out of their sum.

    The two terms add up to sum(`sums`) `factor` * r[`forms`], where r is the sum of the two
    `remainders`.  The loops of `factor` and `forms` are the result loops of the terms, followed by
    `sums`.  `iters` are the extents of r.
    """

    terms: tuple[Term, Term]
    factor: Factor
    sums: Sizes
    remainders: tuple[Term, ...]
    iters: Sizes
    forms: Affines


def outer_term(shared: Common, remainder: Factor) -> Term:
    """Returns the term that equals the sum of the two terms of `shared`.

    `remainder` is the access to the stage that holds the sum of their remainders.
    """
    return Term((), shared.sums, (shared.factor, remainder))


def shared_factors(a: Term, b: Term, iters: Sizes) -> Iterator[Common]:
    """Yields each common factor of two terms whose result loops have the extents `iters`.

    A term with a single factor shares nothing, because no remainder would be left.
    """
    if len(a.factors) < 2 or len(b.factors) < 2:
        return
    for n, f in enumerate(a.factors):
        for m, g in enumerate(b.factors):
            pairs = _paired(f, g, a, b, len(iters))
            if pairs is not None:
                yield _common((a, b), (n, m), pairs, iters)


def _paired(f: Factor, g: Factor, a: Term, b: Term, first: int) -> dict[int, int] | None:
    """Returns the correspondence {sum loop of `g`: sum loop of `f`} that makes two accesses equal.

    `f` is a factor of term `a`, and `g` of term `b`.  Loops below `first` are the result loops of
    both terms.  Returns None if the accesses differ in more than the numbers of sum loops.
    """
    if f._replace(forms=()) != g._replace(forms=()):
        return None
    pairs: dict[int, int] = {}
    for x, y in zip_equal(f.forms, g.forms):
        if x.digits or y.digits or x.offset != y.offset or x.steps[:first] != y.steps[:first]:
            return None
        mine, theirs = (
            [k for k, step in enumerate(form.steps) if step != 0 and k >= first] for form in (x, y)
        )
        if len(mine) != len(theirs) or len(mine) > 1:
            return None
        for k, other in zip_equal(mine, theirs):
            if x.steps[k] != y.steps[other] or pairs.setdefault(other, k) != k:
                return None
    sizes = all(a.sums[k - first] == b.sums[other - first] for other, k in pairs.items())
    return pairs if sizes and len(set(pairs.values())) == len(pairs) else None


def _common(
    terms: tuple[Term, Term], numbers: tuple[int, int], pairs: dict[int, int], iters: Sizes
) -> Common:
    a, b = terms
    first = len(iters)
    factor = a.factors[numbers[0]]
    shared = sorted(k for k in depends(factor) if k >= first)
    sums = tuple(a.sums[k - first] for k in shared)
    outer = (*range(first), *shared)
    back = {k: other for other, k in pairs.items()}
    theirs = (*range(first), *(back[k] for k in shared))
    remainders = [
        (term._replace(factors=replaced(term.factors, n)), numbering)
        for term, n, numbering in ((a, numbers[0], outer), (b, numbers[1], theirs))
    ]
    # The last loop of the terms' result is vectorised, so it comes last in the remainders too.
    vector_loop_last = sorted(range(len(outer)), key=lambda n: n == first - 1)
    result_loops = [
        n
        for n in vector_loop_last
        if any(
            numbering[n] in loops_of_factors(remainder.factors)
            for remainder, numbering in remainders
        )
    ]
    loops = (*iters, *sums)
    inner_terms = (
        _over(remainder, [numbering[n] for n in result_loops], iters)
        for remainder, numbering in remainders
    )
    maps = loop_maps(outer, first + len(a.sums))
    return Common(
        terms,
        mapped(factor, maps, loops),
        sums,
        tuple(inner_terms),
        tuple(loops[n] for n in result_loops),
        tuple(unit(n, len(loops)) for n in result_loops),
    )


def _over(term: Term, result: Sequence[int], iters: Sizes) -> Term:
    """Returns the term with `result` as its result loops; all its other loops become sum loops."""
    first = len(iters)
    summed = sorted(k for k in loops_of_factors(term.factors) if k >= first and k not in result)
    loops = (*iters, *term.sums)
    order = (*result, *summed)
    sizes = tuple(loops[k] for k in order)
    maps = loop_maps(order, len(loops))
    factors = tuple(mapped(f, maps, sizes) for f in term.factors)
    return Term(term.scale, sizes[len(result) :], factors)
