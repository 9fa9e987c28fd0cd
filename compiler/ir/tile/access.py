"""Proofs that the accesses of a tile kernel are inside their buffers.

A `IndexFacts` is what holds at one place of a kernel: how loop variables run, which conditions were
taken.  Each fact rewrites an index into an equal expression whose variables say more; an index is
inside once both of its limits are proved for some such form.

    for k in 0, 4, ... < n - n % 4      k = 4*j  with  0 <= j < n // 4
    where 0 <= 2*y + i - 1 < h          y = (u - i + 1) / 2  with  0 <= u < h
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import lcm, prod

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
from tcc.ir.tile import Guard, If, Loop, guards_at
from tcc.record import record


@record
class IndexFacts:
    """`known` replaces variables by what they are; `conditions` are further `0 <= index < extent`
    that hold here (only their upper limits are used where the lower is not certain)."""

    known: tuple[tuple[Var, Index], ...] = ()
    conditions: tuple[Guard, ...] = ()

    def in_loop(self, loop: Loop) -> IndexFacts:
        """What holds in the body of a loop."""
        known = self._mapping()
        start, stop = substitute(loop.start, known), substitute(loop.stop, known)
        start = _whole(start)
        trips = (_whole(stop) - start) // loop.step
        (counter,) = free_vars(iterator(f"{loop.var.name}.trip", trips))
        value = start + of_atom(counter) * loop.step
        return replace(self, known=(*self.known, (loop.var, value)))

    def in_branch(self, node: If, holds: bool) -> IndexFacts:
        """What holds where `lhs < rhs` does, or does not."""
        var = var_of(node.lhs)
        if var is not None and var.extent is not None:
            low = const(0) if holds else node.rhs
            size = node.rhs if holds else extent(var) - node.rhs
            value = low + iterator(f"{var.name}.{'low' if holds else 'high'}", size)
            return replace(self, known=(*self.known, (var, value)))
        if not holds:
            return self
        return replace(self, conditions=(*self.conditions, Guard(node.lhs, node.rhs)))

    def loop_claims(self, loop: Loop) -> list[str]:
        """What a loop promises that is not proved: whole steps, values within its extent."""
        claims = []
        if divisor_of(_whole(loop.stop) - _whole(loop.start)) % loop.step:
            claims.append(f"{loop.step} divides {(loop.stop - loop.start).key}")
        if not self._certain(loop.start):
            claims.append(f"0 <= {loop.start.key}")
        if not self._certain(extent(loop.var) - loop.stop):
            claims.append(f"{loop.stop.key} <= {extent(loop.var).key}")
        return claims

    def inside(
        self, index: Index, size: Index, guards: Sequence[Guard] = (), loose: Collection[Var] = ()
    ) -> bool:
        """Whether `0 <= index < size` is certain where `guards` hold.

        Nothing is believed of the `loose` variables beyond what the guards say.
        """
        if any(at_most(g.index, const(-1)) or at_most(g.extent, g.index) for g in guards):
            return True  # nowhere
        ends = (index, size - 1 - index)
        return all(self._certain(distance, guards, loose) for distance in ends)

    def _certain(
        self, distance: Index, guards: Sequence[Guard] = (), loose: Collection[Var] = ()
    ) -> bool:
        """Whether `distance >= 0` is."""
        return any(map(_nonnegative, self._forms(distance, guards, loose)))

    def _mapping(self) -> dict[Var, Index]:
        """What is known of variables, in terms of those of which nothing is."""
        mapping: dict[Var, Index] = {}
        for var, value in self.known:
            mapping[var] = substitute(value, mapping)
        return mapping

    def _forms(
        self, index: Index, guards: Sequence[Guard], loose: Collection[Var]
    ) -> Iterator[Index]:
        """Expressions equal to `index` here, free of `loose` variables."""
        mapping = self._mapping()
        for start in (index, substitute(index, mapping)):
            plain = {} if start is index else mapping
            facts = guards_at((*guards, *self.conditions), plain)
            for form in (start, *(_applied(start, [f]) for f in facts), _applied(start, facts)):
                if not set(loose) & set(free_vars(form)):
                    yield form


def _applied(index: Index, facts: Sequence[Guard]) -> Index:
    """`index` with what each fact bounds written as one new iterator over the fact's extent."""
    for number, fact in enumerate(facts):
        whole = iterator(f"within.{number}", fact.extent)
        for monomial, coeff in fact.index.terms:
            if len(monomial) != 1:
                continue
            found = _coefficient(index, monomial[0])
            if found is None or any(c % coeff for _, c in found[0].terms):
                continue
            factor, rest = found
            if factor.const % coeff:
                continue
            scaled = scale_down(factor, coeff)
            other = fact.index - of_atom(monomial[0]) * coeff
            index = scaled * (whole - other) + rest
            break
    return index


def _coefficient(index: Index, atom: Atom) -> tuple[Index, Index] | None:
    """`(factor, rest)` with `index == factor * atom + rest`; None where `atom` is not a factor."""
    found = linear_in(index, atom) if isinstance(atom, Var) else factor_of(index, atom)
    return None if found is None or found[0] is const(0) else found


def _whole(index: Index) -> Index:
    """`n - n % 4` as `4 * (n // 4)`."""
    for atom in atoms(index):
        if isinstance(atom, Remainder) and (found := _coefficient(index, atom)):
            factor, rest = found
            whole = factor * (atom.num - atom.den * (atom.num // atom.den)) + rest
            # Of `r - r % 4` with `r = n % 64` the latter alone is taken apart.
            index = whole if len(whole.terms) <= len(index.terms) else index
    return index


# ---- limits ---------------------------------------------------------------------------------


@lru_cache(1 << 14)
def _nonnegative(index: Index) -> bool:
    """Whether `index >= 0` is certain: iterators go to whichever end makes it least, then sizes
    that are divided become quotient and rest."""
    for _ in range(3):
        if at_most(const(0), index) or at_most(const(0), _without_rests(index)):
            return True
        index = _in_radix(_least(index))
    return False


def _least(index: Index) -> Index:
    """`index` with every iterator that it is linear in at the end that makes it least."""
    for _ in range(2):
        for var in (v for v in free_vars(index) if v.extent is not None):
            found = linear_in(index, var)
            if found is None:
                continue
            low, high = bounds(found[0])
            if low is not None and low >= 0:
                index = found[1]
            elif high is not None and high <= 0:
                index = found[0] * (extent(var) - 1) + found[1]
    return index


def _never_exceeded(rest: Remainder) -> Index:
    """`x` for `x % d` where x is certainly not negative, as many d less as stay so."""
    low, by = bounds(rest.num)[0], as_int(rest.den)
    least = rest.num - (low // by * by if by and low is not None and low > 0 else 0)
    while rest.den.const > 0 and at_most(const(0), least - rest.den):
        least = least - rest.den
    return least if at_most(const(0), least) else of_atom(rest)


def _without_rests(index: Index) -> Index:
    """`index` with `x % d` and `d * (x // d)`, where they are taken away, as the x that they never
    exceed; also as factors of what is not negative."""
    for monomial, coeff in index.terms:
        for n, atom in enumerate(monomial):
            others = prod(map(of_atom, (*monomial[:n], *monomial[n + 1 :])), start=const(1))
            if coeff > 0 or not isinstance(atom, Quotient | Remainder) or not nonnegative(others):
                continue
            by = as_int(atom.den) if isinstance(atom, Quotient) else None
            if by and coeff % by == 0:
                index = index + others * (atom.num * (coeff // by) - of_atom(atom) * coeff)
                break
            if isinstance(atom, Remainder):
                index = index + others * (_never_exceeded(atom) - of_atom(atom)) * coeff
                break
    return index


def _in_radix(index: Index) -> Index:
    """`n // 4` and `n` as `q` and `4*q + r`, for each size that is divided by constants."""
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
