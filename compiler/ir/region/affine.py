"""Quasi-affine forms of loops: an offset, a multiple of each loop, and digits of other forms.

A digit of a form x is `(x // div) % mod`; a decimal digit of a number x is `(x // 10**n) % 10`.
Examples with the loops h and r:

    8*h + r - 1                   Affine((8, 1), -1)
    4*((h + r)//2) + (h + r) % 2  Affine((0, 0), 0, (Digit(4, h + r, 2, 0), Digit(1, h + r, 1, 2)))

Loops have numbers: `steps[k]` is the coefficient of loop k, which runs over `0..extents[k]`.  A
`Size` is an int, or an `Index` if it contains size symbols.  Divisors are ints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import gcd
from operator import mul
from typing import NamedTuple, TypeAlias

from tcc.ir.index import (
    Atom,
    Extremum,
    Index,
    Quotient,
    Var,
    as_index,
    as_int,
    free_vars,
    nonnegative,
    of_atom,
)
from tcc.zipped import zip_equal

Size: TypeAlias = "int | Index"
Sizes: TypeAlias = tuple[Size, ...]
Interval: TypeAlias = "tuple[Size | None, Size | None]"


class Digit(NamedTuple):
    """`step * ((of // div) % mod)`, or `step * (of // div)` if `mod` is 0."""

    step: Size
    of: Affine
    div: int
    mod: int


class Affine(NamedTuple):
    """The sum of `offset`, of `steps[k]` times loop k for every k, and of `digits`."""

    steps: Sizes
    offset: Size = 0
    digits: tuple[Digit, ...] = ()


Affines: TypeAlias = tuple[Affine, ...]
# A term of a form: the number of a loop, or a digit (of, div, mod). `_Terms` maps terms to their
# coefficients.
_Atom: TypeAlias = "int | tuple[Affine, int, int]"
_Terms: TypeAlias = "dict[_Atom, Size]"


def plain(size: Size) -> Size:
    """Returns `size` as an int, or `size` itself if it contains a symbol."""
    value = size if type(size) is int else as_int(size)
    return size if value is None else value


def unit(loop: int, loops: int) -> Affine:
    """Returns the form whose value is loop number `loop`; `loops` is the number of loops."""
    return Affine(tuple(int(k == loop) for k in range(loops)))


def units(loops: int) -> Affines:
    """Returns the identity map: form k has the value of loop k."""
    return tuple(unit(k, loops) for k in range(loops))


def constant(value: Size, loops: int) -> Affine:
    """Returns a form of constant value; `loops` is the number of loops."""
    return Affine((0,) * loops, value)


def digit(of: Affine, div: int, mod: int = 0, extents: Sizes | None = None) -> Affine:
    """Returns `(of // div) % mod`, or `of // div` if `mod` is 0.

    The form is simplified if the loops' `extents` are not None.
    """
    form = Affine((0,) * len(of.steps), 0, (Digit(1, of, div, mod),))
    return form if extents is None else simplified(form, extents)


def combine(parts: Sequence[tuple[Size, Affine]], extents: Sizes, offset: Size = 0) -> Affine:
    """Returns the simplified sum of `offset` and of `factor * form` for each pair of `parts`."""
    terms: _Terms = {}
    for factor, form in parts:
        offset += _add(terms, form, factor)
    return _affine(terms, offset, extents)


def substitute(form: Affine, maps: Sequence[Affine], extents: Sizes) -> Affine:
    """Returns `form` with loop k replaced by `maps[k]`, for every k.

    The maps are forms of new loops, whose extents are `extents`. Without digits, the result is the
    vector `steps` times the matrix whose rows are the maps.
    """
    weighted_maps = [(step, m) for step, m in zip_equal(form.steps, maps) if step != 0]
    steps = [step for step, _ in weighted_maps]
    if steps == [1] and form.offset == 0 and not form.digits:
        return weighted_maps[0][1]
    terms: _Terms = {}
    offset = form.offset
    for step, inner in weighted_maps:
        offset += _add(terms, inner, step)
    for digit in form.digits:
        _count(terms, (substitute(digit.of, maps, extents), digit.div, digit.mod), digit.step)
    return _affine(terms, offset, extents)


def simplified(form: Affine, extents: Sizes) -> Affine:
    """Returns a form of equal value at every point of the loops, with simpler or fewer digits.

    For j in 0..4, `(4*i + j)//4` is i, and `(4*i + j) % 4` is j. A digit of a digit may be a single
    digit. `4*(x//4) + x % 4` is x.
    """
    return substitute(form, units(len(form.steps)), extents) if form.digits else form


def loops_of(form: Affine) -> frozenset[int]:
    """Returns the loops that `form` depends on."""
    step_loops = {k for k, step in enumerate(form.steps) if step != 0}
    return frozenset(step_loops.union(*(loops_of(d.of) for d in form.digits)))


# ---- ranges -------------------------------------------------------------------------------------


def interval(form: Affine, extents: Sizes) -> Interval:
    """Returns inclusive bounds of `form` over all values of the loops; None for an unknown bound.

    The bounds are exact if `form` has no digits and no symbolic step.
    """
    ranges = [(step, (0, plain(e - 1))) for step, e in zip_equal(form.steps, extents)]
    ends: list[tuple[Size, Interval]] = [pair for pair in ranges if pair[0] != 0]
    ends += [(d.step, _digit_interval(d, extents)) for d in form.digits]
    low: Size | None = form.offset
    high: Size | None = form.offset
    for step, (first, last) in ends:
        if not is_nonnegative(step):
            first, last = (last, first) if is_nonnegative(-step) else (None, None)
        low = None if low is None or first is None else low + step * first
        high = None if high is None or last is None else high + step * last
    return None if low is None else plain(low), None if high is None else plain(high)


def _digit_interval(digit: Digit, extents: Sizes) -> Interval:
    low, high = interval(digit.of, extents)
    first = None if low is None else low // digit.div
    last = None if high is None else high // digit.div
    if not digit.mod or _is_in(first, last, digit.mod):
        return first, last
    return 0, digit.mod - 1


def is_nonnegative(size: Size) -> bool:
    """True if `size >= 0` is certain."""
    return size >= 0 if isinstance(size, int) else nonnegative(size)


def is_multiple(size: Size, by: int) -> bool:
    """True if it is certain that `by` divides `size`."""
    return plain(size % by) == 0


def is_inside(form: Affine, size: Size, extents: Sizes) -> bool:
    """True if `0 <= form < size` is certain at every point of the loops."""
    low, high = interval(form, extents)
    return _is_in(low, high, size)


def _is_in(low: Size | None, high: Size | None, size: Size) -> bool:
    if low is None or high is None:
        return False
    return is_nonnegative(low) and is_nonnegative(size - 1 - high)


# ---- conversion ---------------------------------------------------------------------------------


def index_of(form: Affine, loops: Sequence[Index]) -> Index:
    """Returns `form` as an index of the iterators `loops`."""
    index = as_index(form.offset)
    for step, loop in zip_equal(form.steps, loops):
        if step != 0:
            index = index + loop * step
    for digit in form.digits:
        value = index_of(digit.of, loops) // digit.div
        index = index + (value % digit.mod if digit.mod else value) * digit.step
    return index


def affine_of(index: Index, loops: Mapping[Var, int]) -> Affine | None:
    """Returns `index` as a form; `loops` has the number of each loop's variable.

    Quotients and remainders become digits, which are not simplified. Returns None for an index that
    is no form: a product or an extremum of loops, or a division by a symbol.
    """
    terms: _Terms = {}
    offset: Size = index.const
    for monomial, coeff in index.terms:
        free = [a for a in monomial if not any(v in loops for v in free_vars(of_atom(a)))]
        bound = [a for a in monomial if a not in free]
        step = plain(reduce(mul, map(of_atom, free), as_index(coeff)))
        if not bound:
            offset = plain(offset + step)
            continue
        atom = _atom_of(bound[0], loops) if len(bound) == 1 else None
        if atom is None:
            return None
        _count(terms, atom, step)
    return _form(terms, offset, len(loops))


def _atom_of(atom: Atom, loops: Mapping[Var, int]) -> _Atom | None:
    if isinstance(atom, Var):
        return loops[atom]
    if isinstance(atom, Extremum):
        return None
    size, of = as_int(atom.den), affine_of(atom.num, loops)
    if size is None or of is None:
        return None
    if isinstance(atom, Quotient):
        return of, size, 0
    digit = _sole_digit(of)
    return (of, 1, size) if digit is None or digit.mod else (digit.of, digit.div, size)


def _sole_digit(form: Affine) -> Digit | None:
    """Returns the digit to which a form is equal; None if there is none."""
    is_digit = len(form.digits) == 1 and form.offset == 0 and not any(form.steps)
    return form.digits[0] if is_digit and form.digits[0].step == 1 else None


# ---- digits -------------------------------------------------------------------------------------


def _count(terms: _Terms, atom: _Atom, step: Size) -> None:
    terms[atom] = terms.get(atom, 0) + step


def _add(terms: _Terms, form: Affine, factor: Size) -> Size:
    """Adds the loops and digits of `factor * form` to `terms`; returns `factor * form.offset`."""
    for loop, step in enumerate(form.steps):
        if step != 0:
            _count(terms, loop, step * factor)
    for digit in form.digits:
        _count(terms, digit[1:], digit.step * factor)
    return form.offset * factor


def _affine(terms: _Terms, offset: Size, extents: Sizes) -> Affine:
    """Returns `offset` plus `terms` as a form with simplified digits."""
    if not all(isinstance(atom, int) for atom in terms):
        terms, offset = _reduced(terms, offset, extents)
    return _form(terms, offset, len(extents))


def _plus(a: Affine, b: Affine, factor: Size = 1) -> Affine:
    """Returns `a + factor * b`, with the digits of both unchanged."""
    terms: _Terms = {}
    return _form(terms, _add(terms, a, 1) + _add(terms, b, factor), len(a.steps))


def _form(terms: _Terms, offset: Size, loops: int) -> Affine:
    steps = [plain(terms.get(k, 0)) for k in range(loops)]
    digits = [Digit(plain(step), *atom) for atom, step in terms.items() if isinstance(atom, tuple)]
    sorted_digits = tuple(sorted((d for d in digits if d.step != 0), key=_order))
    return Affine(tuple(steps), plain(offset), sorted_digits)


def _order(digit: Digit) -> tuple[str, ...]:
    return tuple(map(repr, (digit.of, digit.div, digit.mod)))


def _reduced(terms: _Terms, offset: Size, extents: Sizes) -> tuple[_Terms, Size]:
    """Returns (terms, offset) of equal sum, with every digit in its simplest form.

    A quotient and a remainder that together are a single digit are joined (see `_join`).
    """
    simple_terms: _Terms = {}
    for atom, step in terms.items():
        if isinstance(atom, int):
            _count(simple_terms, atom, step)
        elif plain(step) != 0:
            offset += _add(simple_terms, _digit(*atom, extents), step)
    merged_digit = _join(simple_terms)
    while merged_digit is not None:
        offset += _add(simple_terms, _digit(*merged_digit[0], extents), merged_digit[1])
        merged_digit = _join(simple_terms)
    return simple_terms, offset


def _join(terms: _Terms) -> tuple[tuple[Affine, int, int], Size] | None:
    """Removes two terms from `terms` whose sum is a single digit.

    They are `c*m*((x//(d*m)) % n)` and `c*((x//d) % m)`; their sum is `c*((x//d) % (m*n))`. Returns
    ((x, d, m*n), c), or None if there are no such terms.
    """
    for atom, step in terms.items():
        if isinstance(atom, int) or not atom[2] or step == 0:
            continue
        of, div, mod = atom
        for upper, larger in terms.items():
            if (
                isinstance(upper, tuple)
                and upper[:2] == (of, div * mod)
                and plain(step * mod) == plain(larger)
            ):
                del terms[atom], terms[upper]
                return (of, div, mod * upper[2]), step
    return None


def _digit(of: Affine, div: int, mod: int, extents: Sizes) -> Affine:
    """Returns `(of // div) % mod` in its simplest form."""
    quotient, remainder = _divided(of, div)
    if is_inside(remainder, div, extents):
        return _remainder(quotient, mod, extents) if mod else quotient
    if not mod:
        return _plus(quotient, _shrunk(remainder, div, 0, extents))
    of = _plus(remainder, _divided(quotient, mod)[1], div)
    if is_inside(of, div * mod, extents):
        return _digit(of, div, 0, extents)
    return _shrunk(of, div, mod, extents)


def _remainder(of: Affine, mod: int, extents: Sizes) -> Affine:
    """Returns `of % mod` in its simplest form."""
    of = _divided(of, mod)[1]
    if is_inside(of, mod, extents):
        return of
    for size in _scales(of, mod):
        high, low = _divided(of, size)
        if is_inside(low, size, extents):
            return _plus(low, _remainder(high, mod // size, extents), size)
    return _shrunk(of, 1, mod, extents)


def _shrunk(of: Affine, div: int, mod: int, extents: Sizes) -> Affine:
    """Returns `(of // div) % mod` with a smaller divisor where possible.

    If the remainder of `of` by a factor of `div` has no effect, `of` and `div` are divided by this
    factor. If `of` is a single digit, it is merged with the new digit.
    """
    for size in _scales(of, div):
        high, low = _divided(of, size)
        if is_inside(low, size, extents):
            return _digit(high, div // size, mod, extents)
    if inner_digit := _sole_digit(of):
        _, inner, inner_div, inner_mod = inner_digit
        if not inner_mod or inner_mod % div == 0:
            inner_mod //= div
            if not inner_mod or not mod or inner_mod % mod == 0:
                return _digit(inner, inner_div * div, mod or inner_mod, extents)
            if mod % inner_mod == 0:
                return _digit(inner, inner_div * div, inner_mod, extents)
    return _line(of, div, mod, extents) or digit(of, div, mod)


def _line(of: Affine, div: int, mod: int, extents: Sizes) -> Affine | None:
    """Returns `(of // div) % mod` as a form without digits; None if that is not possible.

    It is possible if `of` depends on a single loop of extent 2, because a function of two points is
    linear.
    """
    terms = [(k, step) for k, step in enumerate(of.steps) if step != 0]
    if of.digits or len(terms) != 1 or extents[terms[0][0]] != 2:
        return None
    ((loop, step),) = terms
    values = [of.offset, of.offset + step]
    if not all(isinstance(value, int) for value in values):
        return None
    first, last = (value // div % mod if mod else value // div for value in values)
    return Affine(tuple((last - first) * (k == loop) for k in range(len(of.steps))), first)


def _scales(of: Affine, div: int) -> list[int]:
    """Returns candidates for a factor of `div` that also divides terms of `of`, largest first.

    1 and `div` itself are left out.
    """
    steps = [s for s in (*of.steps, *(d.step for d in of.digits)) if isinstance(s, int) and s]
    scales = {gcd(s, div) for s in steps} | {gcd(div, *steps)}
    return sorted(scales - {1, div} if steps else (), reverse=True)


def _divided(of: Affine, by: int) -> tuple[Affine, Affine]:
    """Returns `(quotient, remainder)` with `of == by * quotient + remainder`.

    A term that `by` divides goes to the quotient, any other term to the remainder. The offset is
    divided with remainder if it is a number."""

    def split(size: Size) -> tuple[Size, Size]:
        if not isinstance(size, int):
            return 0, size
        return (size // by, 0) if size % by == 0 else (0, size)

    steps = [split(s) for s in of.steps]
    digits = [split(d.step) for d in of.digits]
    offset = divmod(of.offset, by) if isinstance(of.offset, int) else (0, of.offset)

    def part(n: int) -> Affine:
        pairs = zip_equal(of.digits, digits)
        part_digits = tuple(d._replace(step=s[n]) for d, s in pairs if s[n] != 0)
        return Affine(tuple(s[n] for s in steps), offset[n], part_digits)

    return part(0), part(1)
