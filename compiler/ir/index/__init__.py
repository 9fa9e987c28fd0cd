"""Integer expressions: dimensions, loop indices, offsets and sizes are all one interned type.

    Index  = sum of coeff * monomial + const        a polynomial in normal form
    atom   = Var | FloorDiv | Mod | Min | Max       a factor of a monomial

Semantics: mathematical integers; `//` and `%` round as in Python; divisors are positive (the
importer refuses others).  Equal expressions in normal form are one object.

A `Var` is a size symbol or a loop iterator.  Its facts are an inclusive range, a divisor, an
iterator's extent, and the size that kernel prices assume for a symbol.  The facts prove that
`(64*h + d) // 64` is `h` for d in 0 .. 63.  Two vars are the same if name *and* facts are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from typing import Any, TypeAlias

from tcc.frozen import entity
from tcc.ir.index.interned import intern
from tcc.ir.index.long import require_short
from tcc.ir.index.text import atom_text, factor_text, name_text, sum_text
from tcc.known import all_known
from tcc.zipped import zip_equal


@entity
class Var:
    """A size symbol, or an iterator over `0 <= var < extent`; `extent` is None for a symbol."""

    name: str
    lo: int
    hi: int | None
    divisor: int
    extent: Index | None
    key: str
    typical: int | None = None


@entity
class Quotient:
    """`num // den`, floor division."""

    num: Index
    den: Index
    key: str


@entity
class Remainder:
    """`num % den`, in `[0, den)`."""

    num: Index
    den: Index
    key: str


@entity
class Extremum:
    """`min(a, b)` if `which` is "min", else `max(a, b)`."""

    which: str
    a: Index
    b: Index
    key: str


Atom: TypeAlias = Var | Quotient | Remainder | Extremum
Monomial: TypeAlias = tuple[Atom, ...]
IndexLike: TypeAlias = "Index | int"
Vars: TypeAlias = tuple[Var, ...]
Indices: TypeAlias = "tuple[Index, ...]"
Substitution: TypeAlias = "Mapping[Var, Index]"
_Bounds: TypeAlias = tuple[int | None, int | None]


@entity
class Index:
    """A polynomial over atoms: `terms` are (monomial, non-zero coefficient), sorted by text."""

    terms: tuple[tuple[Monomial, int], ...]
    const: int

    @property
    def key(self) -> str:
        return sum_text(self)

    def __add__(self, other: IndexLike) -> Index:
        return add(self, other)

    __radd__ = __add__

    def __sub__(self, other: IndexLike) -> Index:
        return add(self, mul(other, -1))

    def __rsub__(self, other: int) -> Index:
        return add(mul(self, -1), other)

    def __mul__(self, other: IndexLike) -> Index:
        return mul(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return mul(self, -1)

    def __floordiv__(self, other: IndexLike) -> Index:
        return floordiv(self, other)

    def __mod__(self, other: IndexLike) -> Index:
        return mod(self, other)

    def __repr__(self) -> str:
        return self.key


# ---- constructors -----------------------------------------------------------------------------


def _build(terms: Mapping[Monomial, int]) -> Index:
    """Returns the sum of terms; the coefficient of the empty monomial is the constant term."""
    nonzero = [(m, c) for m, c in terms.items() if m and c]
    nonzero.sort(key=lambda term: [atom.key for atom in term[0]])
    return _sorted(tuple(nonzero), terms.get((), 0))


def _sorted(terms: tuple[tuple[Monomial, int], ...], const: int) -> Index:
    return intern(("index", terms, const), lambda: Index(terms, const))


def _sum(parts: Iterable[Index], const: int) -> Index:
    """Returns the sum of all `parts` and `const`, without building intermediate sums."""
    terms: dict[Monomial, int] = {(): const}
    for part in parts:
        for monomial, coeff in (*part.terms, ((), part.const)):
            terms[monomial] = terms.get(monomial, 0) + coeff
    return _build(terms)


@lru_cache(1 << 14)
def const(value: int) -> Index:
    """Returns the integer `value` as an index."""
    return _sorted((), int(value))


def as_index(value: IndexLike) -> Index:
    """Returns `value` itself, or the constant of an int."""
    return value if isinstance(value, Index) else const(value)


@lru_cache(1 << 16)
def of_atom(atom: Atom) -> Index:
    """Returns the expression that is `atom` alone."""
    return _sorted((((atom,), 1),), 0)


def symbol(
    name: str, lo: int = 0, hi: int | None = None, divisor: int = 1, typical: int | None = None
) -> Index:
    """Returns a size symbol in `[lo, hi]` that is divisible by `divisor`, or the constant `lo` if
    `lo == hi`. Kernel prices assume the size `typical`."""
    if hi is not None and lo == hi:
        return const(lo)
    key = ("sym", name, lo, hi, divisor, typical)
    return of_atom(intern(key, lambda: Var(name, lo, hi, divisor, None, name_text(name), typical)))


@lru_cache(1 << 14)
def iterator(name: str, extent: IndexLike) -> Index:
    """Returns a loop iterator over `[0, extent)`, a variable even if the extent is one."""
    size = as_index(extent)
    top = bounds(size)[1]
    hi = None if top is None else max(top - 1, 0)
    return of_atom(intern(("iter", name, size), lambda: Var(name, 0, hi, 1, size, name_text(name))))


@lru_cache(1 << 16)
def add(a: IndexLike, b: IndexLike) -> Index:
    x, y = as_index(a), as_index(b)
    if not x.terms or not y.terms:
        return _sorted(x.terms or y.terms, x.const + y.const)
    return _sum((x, y), 0)


@lru_cache(1 << 16)
def mul(a: IndexLike, b: IndexLike) -> Index:
    x, y = as_index(a), as_index(b)
    if not x.terms:
        x, y = y, x
    if not y.terms:
        scaled = tuple((m, c * y.const) for m, c in x.terms if y.const)
        return _sorted(scaled, x.const * y.const)
    require_short(len(x.terms), len(y.terms))
    terms: dict[Monomial, int] = {}
    for m1, c1 in (*x.terms, ((), x.const)):
        for m2, c2 in (*y.terms, ((), y.const)):
            monomial = tuple(sorted(m1 + m2, key=lambda atom: atom.key))
            terms[monomial] = terms.get(monomial, 0) + c1 * c2
    return _build(terms)


@lru_cache(1 << 14)
def floordiv(a: IndexLike, b: IndexLike) -> Index:
    num, den = as_index(a), as_index(b)
    whole_part, remainder = _divide(num, den)
    if within(remainder, den):
        return whole_part
    exact, inexact = _exact(remainder, den)
    if exact and remainder is not exact[0]:
        return sum((floordiv(part, den) for part in (*exact, inexact)), whole_part)
    if not den.terms:
        # A common factor need not divide the constant: `(4*i + 3) // 8` is `(2*i + 1) // 4`.
        factor = math.gcd(den.const, *(coeff for _, coeff in remainder.terms))
        remainder, den = scale_down(remainder, factor), scale_down(den, factor)
    digits = _digits(remainder, den)
    if digits is not None:
        upper, _, size = digits
        return add(whole_part, floordiv(upper, const(den.const // size)))
    if (inner := _nested_quotient(remainder, den)) is not None:
        return add(whole_part, inner)
    key = atom_text(f"({factor_text(remainder)}//{factor_text(den)})")
    quotient = of_atom(intern(("div", remainder, den), lambda: Quotient(remainder, den, key)))
    return add(whole_part, quotient)


@lru_cache(1 << 14)
def mod(a: IndexLike, b: IndexLike) -> Index:
    num, den = as_index(a), as_index(b)
    _, remainder = _exact(_divide(num, den)[1], den)
    if within(remainder, den):
        return remainder
    digits = _digits(remainder, den)
    if digits is not None:
        upper, lower, size = digits
        return add(mul(mod(upper, const(den.const // size)), size), lower)
    factor = math.gcd(den.const, *(coeff for _, coeff in remainder.terms))
    if factor > 1 and not den.terms:
        upper = mod(scale_down(remainder, factor), scale_down(den, factor))
        return add(mul(upper, factor), remainder.const % factor)
    key = atom_text(f"({factor_text(remainder)} % {factor_text(den)})")
    return of_atom(intern(("mod", remainder, den), lambda: Remainder(remainder, den, key)))


def minimum(a: IndexLike, b: IndexLike) -> Index:
    return _extremum("min", as_index(a), as_index(b))


def maximum(a: IndexLike, b: IndexLike) -> Index:
    return _extremum("max", as_index(a), as_index(b))


def ceildiv(a: IndexLike, b: IndexLike) -> Index:
    return floordiv(add(a, add(b, -1)), b)


def _extremum(which: str, a: Index, b: Index) -> Index:
    lo, hi = bounds(a - b)
    a_is_less = hi is not None and hi <= 0
    if a_is_less or (lo is not None and lo >= 0):
        return a if a_is_less == (which == "min") else b
    a, b = sorted((a, b), key=lambda index: index.key)
    key = atom_text(f"{which}({a.key},{b.key})")
    return of_atom(intern((which, a, b), lambda: Extremum(which, a, b, key)))


# ---- rules of the simplifier --------------------------------------------------------------------


def _divide(num: Index, den: Index) -> tuple[Index, Index]:
    """Returns (quotient, remainder) with `num == den * quotient + remainder`. Terms are divided one
    by one, so the remainder may exceed `den`."""
    if den is const(1):
        return num, const(0)
    quotient: dict[Monomial, int] = {}
    remainder: dict[Monomial, int] = {}
    pieces = den.terms if not den.const else (((), den.const),) if not den.terms else ()
    if len(pieces) != 1:
        return (const(1), const(0)) if num is den else (const(0), num)
    divisor, by = pieces[0]
    for monomial, coeff in (*num.terms, ((), num.const)):
        cofactor = _remove(monomial, divisor)
        if cofactor is None or (divisor and coeff % by):
            remainder[monomial] = coeff
            continue
        quotient[cofactor], remainder[monomial] = divmod(coeff, by)
    return _build(quotient), _build(remainder)


def _remove(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    factors = list(monomial)
    for atom in divisor:
        if atom not in factors:
            return None
        factors.remove(atom)
    return tuple(factors)


def within(index: Index, den: Index) -> bool:
    """True if `0 <= index < den` is certain, for a positive `den`."""
    return nonnegative(index) and (index is const(0) or nonnegative(den - 1 - index))


def _exact(index: Index, den: Index) -> tuple[Indices, Index]:
    """Returns the terms of `index` that `den` certainly divides, and the sum of its other terms."""
    if den.terms:
        return (), index
    terms = tuple(_sorted((term,), 0) for term in index.terms)
    exact = tuple(term for term in terms if divisor_of(term) % den.const == 0)
    return exact, index - sum(exact, const(0))


def scale_down(index: Index, factor: int) -> Index:
    """Returns `index // factor`, where `factor` divides every coefficient but maybe not the
    constant."""
    return _sorted(tuple((m, c // factor) for m, c in index.terms), index.const // factor)


def _digits(index: Index, den: Index) -> tuple[Index, Index, int] | None:
    """Returns (upper, lower, size) with `index == size * upper + lower` and `0 <= lower < size`,
    where `size` divides `den`: (i, j, 64) for `64*i + j` and 256. None if there are none."""
    if den.terms or len(index.terms) < 2:
        return None
    for size in sorted({abs(c) for _, c in index.terms if den.const % c == 0}, reverse=True):
        lower = _sorted(tuple(t for t in index.terms if t[1] % size), index.const % size)
        if size > 1 and len(lower.terms) < len(index.terms) and within(lower, const(size)):
            return scale_down(index - lower, size), lower, size
    return None


def _nested_quotient(index: Index, den: Index) -> Index | None:
    """Returns `x // (a*b)` for `(x // a) // b` with constants, else None."""
    inner = None if den.terms or index.const else sole_atom(index)
    if isinstance(inner, Quotient) and not inner.den.terms:
        return floordiv(inner.num, inner.den * den)
    return None


def as_int(index: IndexLike) -> int | None:
    """Returns the value of a constant expression, else None."""
    if isinstance(index, Index):  # fast path: a compile makes about 10^5 calls
        return None if index.terms else index.const
    return int(index)


@lru_cache(1 << 16)
def bounds(index: Index) -> _Bounds:
    """Returns inclusive bounds (lo, hi) by the variables' ranges; an unknown bound is None."""
    lo: int | None = index.const
    hi: int | None = index.const
    for monomial, coeff in index.terms:
        span: _Bounds = (1, 1)
        for atom in monomial:
            span = _mul_bounds(span, _atom_bounds(atom))
        a, b = span if coeff > 0 else span[::-1]
        lo = None if lo is None or a is None else lo + a * coeff
        hi = None if hi is None or b is None else hi + b * coeff
    return lo, hi


def _mul_bounds(x: _Bounds, y: _Bounds) -> _Bounds:
    (a, b), (c, d) = x, y
    if a is not None and c is not None and a >= 0 and c >= 0:
        return a * c, None if b is None or d is None else b * d
    if a is None or b is None or c is None or d is None:
        return None, None
    corners = (a * c, a * d, b * c, b * d)
    return min(corners), max(corners)


def _atom_bounds(atom: Atom) -> _Bounds:
    match atom:
        case Var():
            return atom.lo, atom.hi
        case Quotient():
            (a, b), (c, d) = bounds(atom.num), bounds(atom.den)
            c = max(c or 1, 1)  # a divisor is at least 1
            low = None if a is None else (a // c if a < 0 else 0 if d is None else a // d)
            return low, None if b is None else (b // c if b >= 0 else -1)
        case Remainder():
            (a, b), d = bounds(atom.num), bounds(atom.den)[1]
            tops = [] if d is None else [d - 1]
            if a is not None and a >= 0 and b is not None:
                tops.append(b)
            return 0, min(tops) if tops else None
        case Extremum():
            # A lower bound of one operand is also a lower bound of the maximum. An upper bound of
            # the maximum needs upper bounds of both operands. A minimum is the reverse.
            pick, needed = (max, (1, 2)) if atom.which == "max" else (min, (2, 1))
            operand_ends = zip_equal(bounds(atom.a), bounds(atom.b))
            finite_ends = ([n for n in both if n is not None] for both in operand_ends)
            low, high = (
                pick(ends) if len(ends) >= count else None
                for ends, count in zip_equal(finite_ends, needed)
            )
            return low, high


def nonnegative(index: Index) -> bool:
    """True if `index >= 0` is certain for all values of its iterators."""
    if (low := bounds(index)[0]) is not None and low >= 0:
        return True
    lower = limit(index, up=False, cancel=False)
    for _ in range(2):
        low = None if lower is None else bounds(lower)[0]
        if low is not None and low >= 0:
            return True
        lower = None if lower is None else limit(lower, up=False, cancel=True)
    return False


@lru_cache(1 << 16)
def limit(index: Index, up: bool, cancel: bool) -> Index | None:
    """Returns a bound of `index` that contains no iterators; None if no bound is known. It is an
    upper bound with `up`, else a lower bound. With `cancel`, `d * (x // d)` is bounded by an
    expression in x, which helps if x cancels with another term."""
    limits = all_known(_term_limit(m, c, up == (c > 0), cancel) for m, c in index.terms)
    return None if limits is None else _sum(limits, index.const)


def _term_limit(monomial: Monomial, coeff: int, up: bool, cancel: bool) -> Index | None:
    if cancel and len(monomial) == 1 and isinstance(monomial[0], Quotient):
        num, den = monomial[0].num, as_int(monomial[0].den)
        if den and coeff % den == 0:
            lost = 0 if up or divisor_of(num) % den == 0 else den - 1
            top = limit(num, up, cancel)
            return None if top is None else mul(add(top, -lost), coeff // den)
    bound = const(coeff)
    for atom in monomial:
        factor = _atom_limit(atom, up, cancel)
        # Bounds of factors give a bound of the product only if no factor can be negative.
        if factor is None or (len(monomial) > 1 and not _nonnegative(atom, factor)):
            return None
        bound = mul(bound, factor)
    return bound


def _nonnegative(atom: Atom, factor: Index) -> bool:
    if isinstance(atom, Var) and atom.extent is not None:
        return True  # the bound is 0 or extent - 1, and the extent is at least 1
    low, lower = _atom_bounds(atom)[0], bounds(factor)[0]
    return low is not None and low >= 0 and lower is not None and lower >= 0


def _atom_limit(atom: Atom, up: bool, cancel: bool) -> Index | None:
    match atom:
        case Var():
            if atom.extent is None:
                return of_atom(atom)
            return limit(add(atom.extent, -1), True, cancel) if up else const(0)
        case Quotient():
            num = limit(atom.num, up, cancel)
            fixed = limit(atom.den, True, cancel) is atom.den
            return floordiv(num, atom.den) if num is not None and fixed else None
        case Remainder():
            top = limit(atom.den, True, cancel) if up else const(1)
            return None if top is None else add(top, -1)
        case Extremum():
            a, b = limit(atom.a, up, cancel), limit(atom.b, up, cancel)
            if a is None or b is None:
                return None
            return _extremum(atom.which, a, b)


def divisor_of(
    index: Index, of: Callable[[Atom], int] = lambda a: a.divisor if isinstance(a, Var) else 1
) -> int:
    """Returns the largest known divisor of all values of `index`, or 0 for the index 0. `of(atom)`
    returns a known divisor of an atom."""
    result = abs(index.const)
    for monomial, coeff in index.terms:
        result = math.gcd(result, coeff * math.prod(map(of, monomial)))
    return result


@lru_cache(1 << 16)
def atoms(index: Index) -> tuple[Atom, ...]:
    """Returns the distinct atoms of `index`, also those nested in atoms, in a fixed order."""
    all_atoms: dict[Atom, None] = {}
    for atom in [atom for monomial, _ in index.terms for atom in monomial]:
        all_atoms |= dict.fromkeys((atom, *[a for part in parts_of(atom) for a in atoms(part)]))
    return tuple(all_atoms)


def parts_of(atom: Atom) -> Indices:
    """Returns the operands of an atom, such as `num` and `den`; a variable has none."""
    match atom:
        case Quotient() | Remainder():
            return atom.num, atom.den
        case Extremum():
            return atom.a, atom.b
        case Var():
            return ()


@lru_cache(1 << 16)
def free_vars(*indices: Index) -> Vars:
    """Returns the distinct variables of all `indices`, in a fixed order."""
    variables = [atom for index in indices for atom in atoms(index) if isinstance(atom, Var)]
    return tuple(dict.fromkeys(variables))


def sole_atom(index: Index) -> Atom | None:
    """Returns the atom a if `index` is `a + c` for a constant c; else None."""
    if len(index.terms) != 1:
        return None
    ((monomial, coeff),) = index.terms
    return monomial[0] if coeff == 1 and len(monomial) == 1 else None


def var_of(index: Index) -> Var | None:
    """Returns the variable if `index` is one variable and nothing else, else None."""
    atom = None if index.const else sole_atom(index)
    return atom if isinstance(atom, Var) else None


@lru_cache(1 << 16)
def factor_of(index: Index, atom: Atom) -> tuple[Index, Index]:
    """Returns `(a, b)` with `index == a * atom + b`; no term of `b` has the factor `atom`."""
    cofactors = {part: c for m, c in index.terms if (part := _remove(m, (atom,))) is not None}
    other_terms = tuple(term for term in index.terms if atom not in term[0])
    return _build(cofactors), _sorted(other_terms, index.const)


@lru_cache(1 << 16)
def linear_in(index: Index, var: Var) -> tuple[Index, Index] | None:
    """Returns `(a, b)` with `index == a * var + b` and `var` in neither; None if not linear."""
    a, b = factor_of(index, var)
    return None if var in free_vars(a) or var in free_vars(b) else (a, b)


@lru_cache(1 << 16)
def step_in(index: Index, var: Var) -> tuple[int, Index] | None:
    """Returns `(a, b)` with `index == a * var + b`, an int a and b without `var`; else None."""
    linear = linear_in(index, var)
    step = None if linear is None else as_int(linear[0])
    return None if linear is None or step is None else (step, linear[1])


def substitute(index: Index, mapping: Substitution) -> Index:
    """Returns `index` with variables replaced; `index` itself if it has no key of `mapping`."""
    replacements = tuple([(v, mapping[v]) for v in free_vars(index) if v in mapping])
    return _substituted(index, replacements) if replacements else index


@lru_cache(1 << 16)  # cached, because many passes substitute in the same indices
def _substituted(index: Index, replacements: tuple[tuple[Var, Index], ...]) -> Index:
    mapping = dict(replacements)
    terms = (
        reduce(mul, (_substitute_atom(atom, mapping) for atom in monomial), const(coeff))
        for monomial, coeff in index.terms
    )
    return _sum(terms, index.const)


def _substitute_atom(atom: Atom, mapping: Substitution) -> Index:
    if isinstance(atom, Var):
        return mapping.get(atom) or of_atom(atom)
    result: Index = _combined(atom, _extremum, *(substitute(p, mapping) for p in parts_of(atom)))
    return result


def evaluate(index: Index, values: Mapping[str, Any]) -> Any:
    """Returns the value of `index` for a value (int or integer array) of each variable's name."""
    return _evaluate(index, values, {})


def _evaluate(index: Index, values: Mapping[str, Any], atom_values: dict[Atom, Any]) -> Any:
    """Evaluates `index`; `atom_values` caches the values of nested atoms, which may repeat."""
    value: Any = index.const
    for monomial, term in index.terms:
        for atom in monomial:
            if isinstance(atom, Var):
                term = term * values[atom.name]
                continue
            if atom not in atom_values:
                parts = (_evaluate(part, values, atom_values) for part in parts_of(atom))
                atom_values[atom] = _combined(atom, _smaller_or_larger, *parts)
            term = term * atom_values[atom]
        value = value + term
    return value


def _combined(
    atom: Quotient | Remainder | Extremum, extremum: Callable[[str, Any, Any], Any], a: Any, b: Any
) -> Any:
    """Returns the value of `atom` for operands `a` and `b`; `extremum` is min or max by name."""
    match atom:
        case Quotient():
            return a // b
        case Remainder():
            return a % b
        case Extremum():
            return extremum(atom.which, a, b)


def _smaller_or_larger(which: str, a: Any, b: Any) -> Any:
    smaller = a + (b - a) * (b < a)  # works for arrays too, unlike `min`
    return smaller if which == "min" else a + b - smaller
