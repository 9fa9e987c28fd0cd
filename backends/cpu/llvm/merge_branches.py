"""Merges the two branches of a condition if they differ only in numbers, into code with a variable
d that is 0 or 1.

    if p < 2 { for k: 0..9 { load x[9*p + k] } }      ->  d = 0 where p < 2, else 1
    else     { for k: 0..8 { load x[8*p + k + 2] } }      for k: 0..9 - d {
                                                            load x[9*p + k + (2 - p)*d] }

The tiles of a loop have two sizes. Without the merge, each size would have its own copy of the
code.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from tcc.ir.expr import known_extent
from tcc.ir.index import (
    Index,
    Var,
    free_vars,
    iterator,
    maximum,
    minimum,
    of_atom,
    substitute,
)
from tcc.ir.tile import Block, Guard, If, Stmt, TileLoop, defined_blocks, walk_statements


def merged(body: Sequence[Stmt], place: str = "d") -> tuple[Stmt, ...]:
    """Returns `body` with the branches of each condition merged, if they differ in numbers alone.

    The merged body is in a loop of one iteration, whose variable is 0 for the first branch and 1
    for the second. The names of these variables begin with `place`.
    """
    return tuple(_merged(node, f"{place}.{n}") for n, node in enumerate(body))


def _merged(node: Stmt, place: str) -> Stmt:
    if isinstance(node, TileLoop):
        return replace(node, body=merged(node.body, place))
    if not isinstance(node, If):
        return node
    then, other = merged(node.then, f"{place}.then"), merged(node.otherwise, f"{place}.else")
    which = iterator(place, 2)
    try:
        body = _CommonBody(which, other).of(then, other)
    except _DifferError:
        return replace(node, then=then, otherwise=other)
    (var,) = free_vars(which)
    start = minimum(maximum(node.lhs - node.rhs + 1, 0), 1)
    return TileLoop(var, start, start + 1, 1, (), (), body, (), ())


class _DifferError(Exception):
    """Raised if two branches differ in more than numbers."""


class _CommonBody:
    """Builds the common body of two branches; `which` is 0 in the first and 1 in the second."""

    def __init__(self, which: Index, second: Sequence[Stmt]) -> None:
        self._which = which
        self._own = {b for node in walk_statements(second) for b in defined_blocks(node)}
        self._blocks: dict[Block, Block] = {}
        self._vars: dict[Var, Index] = {}

    def of(self, a: Any, b: Any) -> Any:
        """Returns a statement, or a part of a statement, that equals `a` in the first branch and
        `b` in the second.

        Raises _DifferError if `a` and `b` differ in more than numbers.
        """
        if type(a) is not type(b):
            raise _DifferError
        match a:
            case Index():
                second = substitute(b, self._vars)
                return a + (second - a) * self._which
            case Block():
                counterpart = self._blocks.setdefault(b, a) if b in self._own else b
                is_equal = counterpart is a and (a.dtype, a.shape) == (b.dtype, b.shape)
            case Var():
                sizes = known_extent(a), known_extent(b)
                self._vars[b] = of_atom(a)
                is_equal = sizes[0] is not None and sizes[1] is not None and sizes[1] <= sizes[0]
            case tuple():
                if len(a) != len(b):
                    raise _DifferError
                return tuple(map(self.of, a, b))
            case _ if isinstance(a, Guard | Stmt):
                parts = {f.name: (getattr(a, f.name), getattr(b, f.name)) for f in fields(a)}
                return replace(a, **{name: self.of(*pair) for name, pair in parts.items()})
            case _:
                is_equal = a == b
        if not is_equal:
            raise _DifferError
        return a
