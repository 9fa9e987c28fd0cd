"""Proofs that the accesses of a tile kernel are inside their buffers.

`IndexFacts` has what is known at a point of a kernel: the ranges of loop variables, and the
conditions of enclosing branches.  A fact allows to replace a variable of an index by an equal
expression with tighter bounds, as for k and y in the examples.  So an index gets several equal
expressions.  It is proved to be inside its extent if both bounds are proved for one of them.

    for k in 0, 4, ... < n - n % 4      k = 4*j  with  0 <= j < n // 4
    where 0 <= 2*y + i - 1 < h          y = (u - i + 1) / 2  with  0 <= u < h
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import lcm, prod

from tcc.frozen import frozen
from tcc.ir.expr import extent
from tcc.ir.index import (
    Atom,
    Index,
    Quotient,
    Remainder,
    Var,
    as_int,
    atoms,
    bounds,
    const,
    divisor_of,
    factor_of,
    free_vars,
    iterator,
    linear_in,
    nonnegative,
    of_atom,
    scale_down,
    substitute,
    symbol,
    var_of,
)
from tcc.ir.index.prove import at_most
from tcc.ir.tile import Guard, If, TileLoop, guards_at


@frozen
class IndexFacts:
    """Facts about the variables of indices at a point of a kernel.

    `values` has equal expressions for some variables; an expression may use the variables before
    it.  `conditions` are conditions `0 <= index < extent` that hold at this point.  Where `0 <=
    index` is not certain, only `index < extent` is used.
    """

    values: tuple[tuple[Var, Index], ...] = ()
    conditions: tuple[Guard, ...] = ()

    def in_loop(self, loop: TileLoop) -> IndexFacts:
        """Returns the facts in the body of a loop."""
        mapping = self._mapping()
        start, stop = substitute(loop.start, mapping), substitute(loop.stop, mapping)
        start = _without_remainders_of_sizes(start)
        trips = (_without_remainders_of_sizes(stop) - start) // loop.step
        (counter,) = free_vars(iterator(f"{loop.var.name}.trip", trips))
        value = start + of_atom(counter) * loop.step
        return replace(self, values=(*self.values, (loop.var, value)))

    def in_branch(self, node: If, holds: bool) -> IndexFacts:
        """Returns the facts in a branch: `then` if `holds`, else `otherwise`."""
        var = var_of(node.lhs)
        if var is not None and var.extent is not None:
            low = const(0) if holds else node.rhs
            size = node.rhs if holds else extent(var) - node.rhs
            value = low + iterator(f"{var.name}.{'low' if holds else 'high'}", size)
            return replace(self, values=(*self.values, (var, value)))
        if not holds:
            return self
        return replace(self, conditions=(*self.conditions, Guard(node.lhs, node.rhs)))

    def loop_claims(self, loop: TileLoop) -> list[str]:
        """Returns the claims about a loop that are not proved, as text.

        The claims are that the loop's range is a multiple of its step, and that its values are
        within the extent of its variable.
        """
        claims = []
        if (
            divisor_of(
                _without_remainders_of_sizes(loop.stop) - _without_remainders_of_sizes(loop.start)
            )
            % loop.step
        ):
            claims.append(f"{loop.step} divides {(loop.stop - loop.start).key}")
        if not self._certain(loop.start):
            claims.append(f"0 <= {loop.start.key}")
        if not self._certain(extent(loop.var) - loop.stop):
            claims.append(f"{loop.stop.key} <= {extent(loop.var).key}")
        return claims

    def inside(
        self, index: Index, size: Index, guards: Sequence[Guard] = (), loose: Collection[Var] = ()
    ) -> bool:
        """True if `0 <= index < size` is certain where `guards` hold.

        The `loose` variables, which stand for data-dependent indices, may have any value for which
        the guards hold.
        """
        if any(at_most(g.index, const(-1)) or at_most(g.extent, g.index) for g in guards):
            return True  # a guard never holds, so nothing is accessed
        return all(self._certain(distance, guards, loose) for distance in (index, size - 1 - index))

    def _certain(
        self, distance: Index, guards: Sequence[Guard] = (), loose: Collection[Var] = ()
    ) -> bool:
        """True if `distance >= 0` is certain."""
        return any(map(_nonnegative, self._forms(distance, guards, loose)))

    def _mapping(self) -> dict[Var, Index]:
        """Returns `values` as a map to expressions of variables that have no value in it."""
        mapping: dict[Var, Index] = {}
        for var, value in self.values:
            mapping[var] = substitute(value, mapping)
        return mapping

    def _forms(
        self, index: Index, guards: Sequence[Guard], loose: Collection[Var]
    ) -> Iterator[Index]:
        """Yields expressions without `loose` variables that equal `index` where `guards` hold."""
        mapping = self._mapping()
        for start in (index, substitute(index, mapping)):
            facts = guards_at((*guards, *self.conditions), {} if start is index else mapping)
            for form in (start, *(_applied(start, [f]) for f in facts), _applied(start, facts)):
                if not set(loose) & set(free_vars(form)):
                    yield form


def _applied(index: Index, facts: Sequence[Guard]) -> Index:
    """Returns `index` in terms of new iterators, one for each fact that can be used.

    A fact bounds an expression. The expression is replaced by an iterator over the fact's extent:
    with `0 <= 2*y + i < h`, `2*y` becomes `u - i` for an iterator u over h.
    """
    for number, fact in enumerate(facts):
        bounded = iterator(f"within.{number}", fact.extent)
        for monomial, coeff in fact.index.terms:
            if len(monomial) != 1:
                continue
            linear = _coefficient(index, monomial[0])
            if linear is None or any(c % coeff for _, c in linear[0].terms):
                continue
            factor, other_terms = linear
            if factor.const % coeff:
                continue
            scaled = scale_down(factor, coeff)
            other = fact.index - of_atom(monomial[0]) * coeff
            index = scaled * (bounded - other) + other_terms
            break
    return index


def _coefficient(index: Index, atom: Atom) -> tuple[Index, Index] | None:
    """Returns `(factor, rest)` with `index == factor * atom + rest`.

    Returns None if `index` does not contain `atom`, or a variable `atom` not linearly.
    """
    linear = linear_in(index, atom) if isinstance(atom, Var) else factor_of(index, atom)
    return None if linear is None or linear[0] is const(0) else linear


def _without_remainders_of_sizes(index: Index) -> Index:
    """Returns an equal index in which `n - n % 4` is written as `4 * (n // 4)`."""
    for atom in atoms(index):
        if isinstance(atom, Remainder) and (linear := _coefficient(index, atom)):
            factor, other_terms = linear
            rewritten = factor * (atom.num - atom.den * (atom.num // atom.den)) + other_terms
            # Rewrite only if the sum does not get longer: in `r - r % 4` with `r = n % 64`, that
            # is true of the outer remainder only.
            index = rewritten if len(rewritten.terms) <= len(index.terms) else index
    return index


# ---- bounds ---------------------------------------------------------------------------------


@lru_cache(1 << 14)
def _nonnegative(index: Index) -> bool:
    """True if `index >= 0` is certain.

    If there is no direct proof, it is tried again after two rewrites. The first sets each iterator
    to the end of its range that makes the index smallest. The second writes each size that is
    divided as quotient and remainder.
    """
    for _ in range(3):
        if at_most(const(0), index) or at_most(const(0), _with_upper_bounds_of_remainders(index)):
            return True
        index = _in_radix(_at_minimum(index))
    return False


def _at_minimum(index: Index) -> Index:
    """Returns a lower bound of `index`, in which iterators are replaced by values.

    An iterator in which `index` is linear is set to the end of its range that makes `index`
    smallest.
    """
    for _ in range(2):
        for var in (v for v in free_vars(index) if v.extent is not None):
            linear = linear_in(index, var)
            if linear is None:
                continue
            low, high = bounds(linear[0])
            if low is not None and low >= 0:
                index = linear[1]
            elif high is not None and high <= 0:
                index = linear[0] * (extent(var) - 1) + linear[1]
    return index


def _upper_bound(remainder: Remainder) -> Index:
    """Returns an upper bound of `x % d`.

    It is x minus as many multiples of d as keep it certainly at least 0, or `x % d` itself if x may
    be negative.
    """
    low, by = bounds(remainder.num)[0], as_int(remainder.den)
    bound = remainder.num - (low // by * by if by and low is not None and low > 0 else 0)
    while remainder.den.const > 0 and at_most(const(0), bound - remainder.den):
        bound = bound - remainder.den
    return bound if at_most(const(0), bound) else of_atom(remainder)


def _with_upper_bounds_of_remainders(index: Index) -> Index:
    """Returns a lower bound of `index` with fewer remainders and quotients.

    In terms with a negative coefficient, and with other factors that are at least 0, `x % d` is
    replaced by an upper bound, and `d * (x // d)` by its upper bound x.
    """
    for monomial, coeff in index.terms:
        for n, atom in enumerate(monomial):
            other_factors = prod(map(of_atom, (*monomial[:n], *monomial[n + 1 :])), start=const(1))
            if (
                coeff > 0
                or not isinstance(atom, Quotient | Remainder)
                or not nonnegative(other_factors)
            ):
                continue
            by = as_int(atom.den) if isinstance(atom, Quotient) else None
            if by and coeff % by == 0:
                index = index + other_factors * (atom.num * (coeff // by) - of_atom(atom) * coeff)
                break
            if isinstance(atom, Remainder):
                index = index + other_factors * (_upper_bound(atom) - of_atom(atom)) * coeff
                break
    return index


def _in_radix(index: Index) -> Index:
    """Returns `index` with every size that it divides by a constant written in quotients.

    A size n that is divided by 4 becomes `4*q + r`, where q is a new symbol and r a new iterator
    over 4. So `n // 4` becomes q.
    """
    divisors: dict[Var, tuple[int, int]] = {}
    for atom in atoms(index):
        if not isinstance(atom, Quotient | Remainder):
            continue
        by, var = as_int(atom.den), var_of(atom.num - atom.num.const)
        if by is not None and var is not None and var.extent is None:
            before = divisors.get(var, (1, atom.num.const))
            divisors[var] = (lcm(before[0], by), before[1])
    mapping = {}
    for var, (by, shift) in divisors.items():
        quotient = symbol(f"{var.name}.{by}", (var.lo + shift) // by)
        mapping[var] = quotient * by + iterator(f"{var.name}.rest", by) - shift
    return substitute(index, mapping)
