"""Integer expressions: dimensions, loop indices, offsets and sizes are all one interned type.

    Index  = sum of coeff * monomial + const        a polynomial in normal form
    atom   = Var | FloorDiv | Mod | Min | Max       what a monomial multiplies

Semantics: mathematical integers; `//` and `%` round as in Python; divisors are positive (the
importer refuses others).  Equal expressions in normal form are one object.

A `Var` is a size symbol or a loop iterator, with what the simplifier needs to prove that
`(64*h + d) // 64` is `h` (an inclusive range, a divisor, for an iterator its extent), and what
prices count a symbol as.  Two vars are the same when name *and* facts agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from typing import Any, TypeAlias

from tcc.ir.index.interned import intern
from tcc.ir.index.long import require_short
from tcc.ir.index.text import atom_text, factor_text, name_text, sum_text
from tcc.record import entity


@entity
class Var:
    """A size symbol (`extent` None) or an iterator over `0 <= var < extent`."""

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
    """`min(a, b)` or `max(a, b)` by `which`."""

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
    """The sum of products; the empty one stands for the constant."""
    kept = [(m, c) for m, c in terms.items() if m and c]
    kept.sort(key=lambda term: [atom.key for atom in term[0]])
    return _sorted(tuple(kept), terms.get((), 0))


def _sorted(terms: tuple[tuple[Monomial, int], ...], const: int) -> Index:
    return intern(("index", terms, const), lambda: Index(terms, const))


def _sum(parts: Iterable[Index], const: int) -> Index:
    """All `parts` and `const`, without the sums between."""
    terms: dict[Monomial, int] = {(): const}
    for part in parts:
        for monomial, coeff in (*part.terms, ((), part.const)):
            terms[monomial] = terms.get(monomial, 0) + coeff
    return _build(terms)


@lru_cache(1 << 14)
def const(value: int) -> Index:
    """The integer `value`."""
    return _sorted((), int(value))


def as_index(value: IndexLike) -> Index:
    """`value` itself, or the constant of an int."""
    return value if isinstance(value, Index) else const(value)


@lru_cache(1 << 16)
def of_atom(atom: Atom) -> Index:
    """The expression that is `atom` alone."""
    return _sorted((((atom,), 1),), 0)


def symbol(
    name: str, lo: int = 0, hi: int | None = None, divisor: int = 1, typical: int | None = None
) -> Index:
    """A size symbol in `[lo, hi]` that `divisor` divides, which prices count as `typical`; a
    one-point range is its constant."""
    if hi is not None and lo == hi:
        return const(lo)
    key = ("sym", name, lo, hi, divisor, typical)
    return of_atom(intern(key, lambda: Var(name, lo, hi, divisor, None, name_text(name), typical)))


@lru_cache(1 << 14)
def iterator(name: str, extent: IndexLike) -> Index:
    """A loop iterator over `[0, extent)`.  It stays a variable even where the extent is one."""
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
    whole, rest = _divide(num, den)
    if within(rest, den):
        return whole
    exact, left = _exact(rest, den)
    if exact and rest is not exact[0]:
        return sum((floordiv(part, den) for part in (*exact, left)), whole)
    if not den.terms:
        # `(4*i + 2*j + 1) // 8` is `(2*i + j) // 4`: the constant below the common factor is lost.
        factor = math.gcd(den.const, *(coeff for _, coeff in rest.terms))
        rest, den = scale_down(rest, factor), scale_down(den, factor)
    digits = _digits(rest, den)
    if digits is not None:
        upper, _, size = digits
        return add(whole, floordiv(upper, const(den.const // size)))
    inner = _nested_quotient(rest, den)
    if inner is not None:
        return add(whole, inner)
    key = atom_text(f"({factor_text(rest)}//{factor_text(den)})")
    quotient = of_atom(intern(("div", rest, den), lambda: Quotient(rest, den, key)))
    return add(whole, quotient)


@lru_cache(1 << 14)
def mod(a: IndexLike, b: IndexLike) -> Index:
    num, den = as_index(a), as_index(b)
    _, rest = _exact(_divide(num, den)[1], den)
    if within(rest, den):
        return rest
    digits = _digits(rest, den)
    if digits is not None:
        upper, lower, size = digits
        return add(mul(mod(upper, const(den.const // size)), size), lower)
    factor = math.gcd(den.const, *(coeff for _, coeff in rest.terms))
    if factor > 1 and not den.terms:
        upper = mod(scale_down(rest, factor), scale_down(den, factor))
        return add(mul(upper, factor), rest.const % factor)
    key = atom_text(f"({factor_text(rest)} % {factor_text(den)})")
    return of_atom(intern(("mod", rest, den), lambda: Remainder(rest, den, key)))


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


# ---- the simplifier's few facts -----------------------------------------------------------------


def _divide(num: Index, den: Index) -> tuple[Index, Index]:
    """Splits `num` into `den * whole + rest`, taking out every term that `den` divides."""
    if den is const(1):
        return num, const(0)
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    pieces = den.terms if not den.const else (((), den.const),) if not den.terms else ()
    if len(pieces) != 1:
        return (const(1), const(0)) if num is den else (const(0), num)
    divisor, by = pieces[0]
    for monomial, coeff in (*num.terms, ((), num.const)):
        left = _remove(monomial, divisor)
        if left is None or (divisor and coeff % by):
            rest[monomial] = coeff
            continue
        whole[left], rest[monomial] = divmod(coeff, by)
    return _build(whole), _build(rest)


def _remove(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def within(rest: Index, den: Index) -> bool:
    """Whether `0 <= rest < den` is certain, of a positive `den`."""
    return nonnegative(rest) and (rest is const(0) or nonnegative(den - 1 - rest))


def _exact(rest: Index, den: Index) -> tuple[Indices, Index]:
    """The terms of `rest` that `den` is known to divide, and what is left."""
    if den.terms:
        return (), rest
    terms = tuple(_sorted((term,), 0) for term in rest.terms)
    exact = tuple(term for term in terms if divisor_of(term) % den.const == 0)
    return exact, rest - sum(exact, const(0))


def scale_down(index: Index, factor: int) -> Index:
    """`index // factor`, where `factor` divides every coefficient; the constant is rounded down."""
    return _sorted(tuple((m, c // factor) for m, c in index.terms), index.const // factor)


def _digits(rest: Index, den: Index) -> tuple[Index, Index, int] | None:
    """`64*i + j` over 256 as (i, j, 64), where `0 <= j < 64`: then `// 256` is `i // 4` and `% 256`
    is `64*(i % 4) + j`."""
    if den.terms or len(rest.terms) < 2:
        return None
    for size in sorted({abs(c) for _, c in rest.terms if den.const % c == 0}, reverse=True):
        lower = _sorted(tuple(t for t in rest.terms if t[1] % size), rest.const % size)
        if size > 1 and len(lower.terms) < len(rest.terms) and within(lower, const(size)):
            return scale_down(rest - lower, size), lower, size
    return None


def _nested_quotient(rest: Index, den: Index) -> Index | None:
    """`(x // a) // b` is `x // (a*b)` for constants."""
    inner = None if den.terms or rest.const else sole_atom(rest)
    if isinstance(inner, Quotient) and not inner.den.terms:
        return floordiv(inner.num, inner.den * den)
    return None


def as_int(index: IndexLike) -> int | None:
    """The value of a constant expression, else None."""
    if isinstance(index, Index):  # asked some 10^5 times a compile
        return None if index.terms else index.const
    return int(index)


@lru_cache(1 << 16)
def bounds(index: Index) -> _Bounds:
    """Inclusive integer bounds from the facts of the variables; None where unbounded."""
    lo: int | None = index.const
    hi: int | None = index.const
    for monomial, coeff in index.terms:
        product: _Bounds = (1, 1)
        for atom in monomial:
            product = _mul_bounds(product, _atom_bounds(atom))
        a, b = product if coeff > 0 else product[::-1]
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
            c = max(c or 1, 1)  # divisors are positive
            low = None if a is None else (a // c if a < 0 else 0 if d is None else a // d)
            return low, None if b is None else (b // c if b >= 0 else -1)
        case Remainder():
            (a, b), d = bounds(atom.num), bounds(atom.den)[1]
            tops = [] if d is None else [d - 1]
            if a is not None and a >= 0 and b is not None:
                tops.append(b)
            return 0, min(tops) if tops else None
        case Extremum():
            # One part bounds a maximum from below and a minimum from above, both the other side.
            pick, needed = (max, (1, 2)) if atom.which == "max" else (min, (2, 1))
            pairs = zip(bounds(atom.a), bounds(atom.b), strict=True)
            known = ([end for end in pair if end is not None] for pair in pairs)
            low, high = (
                pick(ends) if len(ends) >= least else None
                for ends, least in zip(known, needed, strict=True)
            )
            return low, high


def nonnegative(index: Index) -> bool:
    """Whether `index >= 0` is certain wherever its iterators have a value."""
    if (low := bounds(index)[0]) is not None and low >= 0:
        return True
    least = _limit(index, up=False, cancel=False)
    for _ in range(2):
        low = None if least is None else bounds(least)[0]
        if low is not None and low >= 0:
            return True
        least = None if least is None else _limit(least, up=False, cancel=True)
    return False


@lru_cache(1 << 16)
def _limit(index: Index, up: bool, cancel: bool) -> Index | None:
    """An expression of sizes alone that `index` never exceeds (`up`) or never falls below.

    It holds wherever the iterators of `index` have a value; None where none is known.  `cancel`
    bounds `d * (x // d)` by x, which is right where x is what else the sum holds.
    """
    limits = (_term_limit(m, c, up == (c > 0), cancel) for m, c in index.terms)
    known = [limit for limit in limits if limit is not None]
    return _sum(known, index.const) if len(known) == len(index.terms) else None


def _term_limit(monomial: Monomial, coeff: int, up: bool, cancel: bool) -> Index | None:
    if cancel and len(monomial) == 1 and isinstance(monomial[0], Quotient):
        num, den = monomial[0].num, as_int(monomial[0].den)
        if den and coeff % den == 0:
            lost = 0 if up or divisor_of(num) % den == 0 else den - 1
            top = _limit(num, up, cancel)
            return None if top is None else mul(add(top, -lost), coeff // den)
    product = const(coeff)
    for atom in monomial:
        factor = _atom_limit(atom, up, cancel)
        # Limits of factors multiply only where no factor can be negative.
        if factor is None or (len(monomial) > 1 and not _nonnegative(atom, factor)):
            return None
        product = mul(product, factor)
    return product


def _nonnegative(atom: Atom, factor: Index) -> bool:
    if isinstance(atom, Var) and atom.extent is not None:
        return True  # an iterator that has a value is over at least one
    low, least = _atom_bounds(atom)[0], bounds(factor)[0]
    return low is not None and low >= 0 and least is not None and least >= 0


def _atom_limit(atom: Atom, up: bool, cancel: bool) -> Index | None:
    match atom:
        case Var():
            if atom.extent is None:
                return of_atom(atom)
            return _limit(add(atom.extent, -1), True, cancel) if up else const(0)
        case Quotient():
            num = _limit(atom.num, up, cancel)
            fixed = _limit(atom.den, True, cancel) is atom.den
            return floordiv(num, atom.den) if num is not None and fixed else None
        case Remainder():
            top = _limit(atom.den, True, cancel) if up else const(1)
            return None if top is None else add(top, -1)
        case Extremum():
            a, b = _limit(atom.a, up, cancel), _limit(atom.b, up, cancel)
            if a is None or b is None:
                return None
            return minimum(a, b) if atom.which == "min" else maximum(a, b)


def divisor_of(
    index: Index, of: Callable[[Atom], int] = lambda a: a.divisor if isinstance(a, Var) else 1
) -> int:
    """The largest integer known to divide `index`, of whose atoms `of` tells; 0 for zero."""
    result = abs(index.const)
    for monomial, coeff in index.terms:
        result = math.gcd(result, coeff * math.prod(map(of, monomial)))
    return result


@lru_cache(1 << 16)
def atoms(index: Index) -> tuple[Atom, ...]:
    """Every atom of `index`, nested ones included, each once, in a fixed order."""
    found: dict[Atom, None] = {}
    for atom in [atom for monomial, _ in index.terms for atom in monomial]:
        found |= dict.fromkeys((atom, *[a for part in parts_of(atom) for a in atoms(part)]))
    return tuple(found)


def parts_of(atom: Atom) -> Indices:
    """The operands of an atom."""
    match atom:
        case Quotient() | Remainder():
            return atom.num, atom.den
        case Extremum():
            return atom.a, atom.b
        case Var():
            return ()


@lru_cache(1 << 16)
def free_vars(*indices: Index) -> Vars:
    """The variables of all `indices`, each once, in a fixed order."""
    found = [atom for index in indices for atom in atoms(index) if isinstance(atom, Var)]
    return tuple(dict.fromkeys(found))


def sole_atom(index: Index) -> Atom | None:
    """The atom, if `index` is one atom and a constant."""
    if len(index.terms) != 1:
        return None
    ((monomial, coeff),) = index.terms
    return monomial[0] if coeff == 1 and len(monomial) == 1 else None


def var_of(index: Index) -> Var | None:
    """The variable, if `index` is one variable and nothing else."""
    atom = None if index.const else sole_atom(index)
    return atom if isinstance(atom, Var) else None


@lru_cache(1 << 16)
def factor_of(index: Index, atom: Atom) -> tuple[Index, Index]:
    """`(factor, rest)` with `index == factor * atom + rest`, where no product of `rest` has the
    atom."""
    held = {left: c for m, c in index.terms if (left := _remove(m, (atom,))) is not None}
    rest = tuple(term for term in index.terms if atom not in term[0])
    return _build(held), _sorted(rest, index.const)


@lru_cache(1 << 16)
def linear_in(index: Index, var: Var) -> tuple[Index, Index] | None:
    """`(coeff, rest)` with `index == coeff * var + rest` and neither holding `var`, else None."""
    a, b = factor_of(index, var)
    return None if var in free_vars(a) or var in free_vars(b) else (a, b)


@lru_cache(1 << 16)
def step_in(index: Index, var: Var) -> tuple[int, Index] | None:
    """`linear_in` where the coefficient is a number, else None."""
    linear = linear_in(index, var)
    step = None if linear is None else as_int(linear[0])
    return None if linear is None or step is None else (step, linear[1])


def substitute(index: Index, mapping: Substitution) -> Index:
    """`index` with variables replaced, simplified again; itself where it holds none of them."""
    taken = tuple([(v, mapping[v]) for v in free_vars(index) if v in mapping])
    return _substituted(index, taken) if taken else index


@lru_cache(1 << 16)  # parts occur many times, and passes ask for the same again and again
def _substituted(index: Index, taken: tuple[tuple[Var, Index], ...]) -> Index:
    mapping = dict(taken)
    products = (
        reduce(mul, (_substitute_atom(atom, mapping) for atom in monomial), const(coeff))
        for monomial, coeff in index.terms
    )
    return _sum(products, index.const)


def _substitute_atom(atom: Atom, mapping: Substitution) -> Index:
    if isinstance(atom, Var):
        return mapping.get(atom) or of_atom(atom)
    a, b = (substitute(part, mapping) for part in parts_of(atom))
    match atom:
        case Quotient():
            return floordiv(a, b)
        case Remainder():
            return mod(a, b)
        case Extremum():
            return minimum(a, b) if atom.which == "min" else maximum(a, b)


def evaluate(index: Index, values: Mapping[str, Any]) -> Any:
    """The value of `index`, given a value (int or integer array) for each variable's name."""
    return _evaluate(index, values, {})


def _evaluate(index: Index, values: Mapping[str, Any], done: dict[Atom, Any]) -> Any:
    """As `evaluate`; `done` holds the values of nested atoms, which may stand in many places."""
    total: Any = index.const
    for monomial, product in index.terms:
        for atom in monomial:
            if isinstance(atom, Var):
                product = product * values[atom.name]
                continue
            if atom not in done:
                parts = (_evaluate(part, values, done) for part in parts_of(atom))
                done[atom] = _combined(atom, *parts)
            product = product * done[atom]
        total = total + product
    return total


def _combined(atom: Quotient | Remainder | Extremum, a: Any, b: Any) -> Any:
    match atom:
        case Quotient():
            return a // b
        case Remainder():
            return a % b
        case Extremum():
            # Written without min/max so that arrays work too.
            smaller = a + (b - a) * (b < a)
            return smaller if atom.which == "min" else a + b - smaller
