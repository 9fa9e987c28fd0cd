"""Unrolls the loops of a stage that select between formulas.

    y[j] = select(j % 2 == 0, x[j // 2], -x[j // 2])     j: 0..5
      ->  y[2*u] = x[u] ; y[2*u + 1] = -x[u] if 2*u + 1 < 5      u: 0..3

The new stage has several results for each point, which share common work.  Requires a stage without
a reduction.  A stage that cannot be unrolled stays as it is, and selects at each point.
"""

from dataclasses import field, replace
from functools import lru_cache
from itertools import pairwise, product
from math import prod

from tcc.frozen import entity, frozen
from tcc.ir.expr import Stage, extent, known_extent, reads
from tcc.ir.expr.scalar import (
    Apply,
    Const,
    IndexValue,
    Read,
    Scalar,
    children,
    index_value,
    indices_in,
    read_at,
    rebuild,
    substitute_all,
    walk,
)
from tcc.ir.index import (
    Index,
    Indices,
    Quotient,
    Remainder,
    Substitution,
    Var,
    as_int,
    atoms,
    ceildiv,
    const,
    free_vars,
    iterator,
    substitute,
    var_of,
)
from tcc.known import all_known
from tcc.zipped import zip_equal

# At each point, an unrolled stage has at most this many results, because more formulas than
# registers gain nothing.
MOST_RESULTS = 64


@frozen
class Unrolled:
    """A stage with several bodies; the result of body n has the indices `places[n]`."""

    stage: Stage
    places: tuple[Indices, ...]


@lru_cache(64)
def unroll(stage: Stage, logical: Indices) -> Unrolled | None:
    """Returns `stage` with a body for each value of the loops that decide its conditions.

    These loops are left out.  `logical` are the indices of the stage's result.  Returns None if no
    condition compares an index with a number, or if there would be more than `MOST_RESULTS` bodies.
    """
    if stage.monoid is not None or len(stage.body) != 1:
        return None
    conditions = _conditions(stage.body[0])
    if not conditions:
        return None
    split = _split_loops(stage, conditions)
    if split is None:
        return None
    stage, digits = split
    at = tuple(substitute(i, digits) for i in logical)
    deciding = free_vars(*(i for c in _conditions(stage.body[0]) for i in _decided(c)))
    loops = tuple(v for v in stage.iters if v in deciding)
    counts = all_known(known_extent(v) for v in loops)
    if not loops or counts is None or not 1 < prod(counts) <= MOST_RESULTS:
        return None
    bodies, places = [], []
    varying = _varying(stage.body[0], set(loops))
    for values in product(*map(range, counts)):
        mapping = {v: const(n) for v, n in zip_equal(loops, values)}
        bodies.append(_Choice(mapping, varying).of(stage.body[0]))
        places.append(tuple(substitute(i, mapping) for i in at))
    other_loops = tuple(v for v in stage.iters if v not in loops)
    return Unrolled(replace(stage, iters=other_loops, body=tuple(bodies)), tuple(places))


# ---- conditions ---------------------------------------------------------------------------------


def _conditions(root: Scalar) -> list[Apply]:
    """Returns the conditions of `select` that compare an index with a number."""
    selects = (s for s in walk(root) if isinstance(s, Apply) and s.function == "select")
    tests = dict.fromkeys(s.args[0] for s in selects)
    return [c for c in tests if isinstance(c, Apply) and _decided(c)]


def _decided(condition: Apply) -> Indices:
    """Returns the index that `condition` compares with a number, as a tuple; empty for other
    conditions."""
    if condition.function != "eq":
        return ()
    left, right = condition.args
    return (left.index,) if isinstance(left, IndexValue) and isinstance(right, Const) else ()


# ---- splitting of loops into digits -------------------------------------------------------------


def _split_loops(stage: Stage, conditions: list[Apply]) -> tuple[Stage, Substitution] | None:
    """Returns `stage` with its loops split into the digits that conditions test; None if that
    fails.

    The second result maps each split loop to its value, an index of the new loops.
    """
    looked_at = [i for c in conditions for i in _decided(c)]
    parted = free_vars(*(i for i in looked_at if var_of(i) is None))
    mapping: dict[Var, Index] = {}
    loops: list[Var] = []
    indices = [*looked_at, *(i for node in reads(stage) for i in node.indices)]
    for var in stage.iters:
        if var not in parted:
            loops.append(var)
            continue
        steps = sorted({s for i in indices for a in atoms(i) for s in _steps(a, var)})
        if not steps or any(b % a for a, b in pairwise(steps)):
            return None
        digits = _digits(var, steps)
        loops += (free_vars(d)[0] for d in digits)
        weights = [*reversed(steps), 1]
        mapping[var] = sum((d * w for d, w in zip_equal(digits, weights)), const(0))
    body = substitute_all(stage.body, mapping)
    return replace(stage, iters=tuple(loops), body=body), mapping


def _digits(var: Var, steps: list[int]) -> list[Index]:
    """Returns new iterators for the digits of `var`, the most significant first.

    `steps` are the weights of all digits but the last one, in rising order; the weight of the last
    digit is 1.
    """
    sizes: list[Index] = [ceildiv(extent(var), steps[-1])]
    bounds = [1, *steps]
    sizes += (const(b // a) for a, b in reversed(list(pairwise(bounds))))
    return [iterator(f"{var.name}u{n}", size) for n, size in enumerate(sizes)]


def _steps(atom: object, var: Var) -> tuple[int, ...]:
    """Returns (n,) if `atom` is a quotient that changes, or a remainder that is 0 again, after
    every n values of `var`; () for another atom."""
    if not isinstance(atom, Quotient | Remainder) or free_vars(atom.num) != (var,):
        return ()
    by = as_int(atom.den)
    span = _constant_span(atom.num, var)
    return () if by is None or span is None else (span * by,)


def _constant_span(index: Index, var: Var) -> int | None:
    """Returns n if `index` keeps its value for n consecutive values of `var`: 1 for `var`, and 4
    for a quotient `var // 4`.

    Returns None for another index.
    """
    if var_of(index) is var:
        return 1
    for atom in (a for a in atoms(index) if isinstance(a, Quotient)):
        by = as_int(atom.den)
        below = _constant_span(atom.num, var)
        if by is not None and below is not None:
            return by * below
    return None


# ---- the formula of a choice --------------------------------------------------------------------


def _varying(root: Scalar, loops: set[Var]) -> frozenset[Scalar]:
    """Returns the scalars in the tree of `root` that depend on `loops`."""
    varying: set[Scalar] = set()
    for node in walk(root):
        if not varying.isdisjoint(children(node)) or loops & {*free_vars(*indices_in(node))}:
            varying.add(node)
    return frozenset(varying)


@entity
class _Choice:
    """The formula at given values of the loops that decide conditions.

    `mapping` has these values, and `varying` the scalars that depend on the loops.
    """

    mapping: Substitution
    varying: frozenset[Scalar]
    formula_of: dict[Scalar, Scalar] = field(default_factory=dict)

    def of(self, node: Scalar) -> Scalar:
        if node not in self.varying:
            return node
        if node not in self.formula_of:
            self.formula_of[node] = self._simplified(node)
        return self.formula_of[node]

    def _simplified(self, node: Scalar) -> Scalar:
        while isinstance(node, Apply) and node.function == "select":
            condition = node.args[0]
            outcome = self._decide(condition) if isinstance(condition, Apply) else None
            if outcome is None:
                break
            node = node.args[1] if outcome else node.args[2]
            if node not in self.varying:
                return node
        match node:
            case IndexValue():
                return index_value(substitute(node.index, self.mapping), node.dtype)
            case Read():
                at = tuple(substitute(i, self.mapping) for i in node.indices)
                return read_at(node, at, tuple((v, self.of(s)) for v, s in node.indirect))
            case _:
                return rebuild(node, self.of)

    def _decide(self, condition: Apply) -> bool | None:
        for index in _decided(condition):
            value, right = as_int(substitute(index, self.mapping)), condition.args[1]
            if value is not None and isinstance(right, Const):
                return value == right.value
        return None
