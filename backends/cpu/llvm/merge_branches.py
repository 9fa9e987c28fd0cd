"""Branches that do the same with other numbers become one body.

    if p < 2 { for k: 0..9 { load x[9*p + k] } }      ->  d = 0 where p < 2, else 1
    else     { for k: 0..8 { load x[8*p + k + 2] } }      for k: 0..9 - d {
                                                            load x[9*p + k + (2 - p)*d] }

Units of a loop have two sizes, and each would be code of its own, for all blocks in them.
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
from tcc.ir.tile import Block, Guard, If, Loop, Stmt, defined_blocks, walk_statements


def merged(body: Sequence[Stmt], place: str = "d") -> tuple[Stmt, ...]:
    """`body` with one body for the branches of each condition that differ in numbers alone: a loop
    of one trip, whose variable tells the branch.  `place` begins the names of such variables."""
    return tuple(_merged(node, f"{place}.{n}") for n, node in enumerate(body))


def _merged(node: Stmt, place: str) -> Stmt:
    if isinstance(node, Loop):
        return replace(node, body=merged(node.body, place))
    if not isinstance(node, If):
        return node
    then, other = merged(node.then, f"{place}.then"), merged(node.otherwise, f"{place}.else")
    which = iterator(place, 2)
    try:
        both = _Alike(which, other).of(then, other)
    except _DifferError:
        return replace(node, then=then, otherwise=other)
    (var,) = free_vars(which)
    start = minimum(maximum(node.lhs - node.rhs + 1, 0), 1)
    return Loop(var, start, start + 1, 1, (), (), both, (), ())


class _DifferError(Exception):
    """Two branches differ in more than numbers."""


class _Alike:
    """What two branches have in common; numbers are the second's where `which` is 1."""

    def __init__(self, which: Index, second: Sequence[Stmt]) -> None:
        self._which = which
        self._own = {b for node in walk_statements(second) for b in defined_blocks(node)}
        self._blocks: dict[Block, Block] = {}
        self._vars: dict[Var, Index] = {}

    def of(self, a: Any, b: Any) -> Any:
        """A part of the first branch that does what it does, or what `b` does in the second.

        Raises _DifferError where there is none.
        """
        if type(a) is not type(b):
            raise _DifferError
        match a:
            case Index():
                own = substitute(b, self._vars)
                return a + (own - a) * self._which
            case Block():
                found = self._blocks.setdefault(b, a) if b in self._own else b
                alike = found is a and (a.dtype, a.shape) == (b.dtype, b.shape)
            case Var():
                sizes = known_extent(a), known_extent(b)
                self._vars[b] = of_atom(a)
                alike = sizes[0] is not None and sizes[1] is not None and sizes[1] <= sizes[0]
            case tuple():
                if len(a) != len(b):
                    raise _DifferError
                return tuple(map(self.of, a, b))
            case _ if isinstance(a, Guard | Stmt):
                parts = {f.name: (getattr(a, f.name), getattr(b, f.name)) for f in fields(a)}
                return replace(a, **{name: self.of(*pair) for name, pair in parts.items()})
            case _:
                alike = a == b
        if not alike:
            raise _DifferError
        return a
