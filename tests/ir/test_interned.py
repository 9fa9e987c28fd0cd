"""Interned nodes are one object while a reference exists, and are freed with the last reference."""

from __future__ import annotations

import gc
from weakref import ref

from tcc.ir.expr.scalar import apply, literal
from tcc.ir.graph import Value
from tcc.ir.index import interned
from tcc.ir.types import F64, tensor


def test_equal_nodes_are_one_and_are_freed() -> None:
    gc.collect()
    before = len(interned._INTERNED)
    nodes = [apply("mul", literal(n + 0.123, F64), literal(n + 0.456, F64)) for n in range(500)]
    assert len(interned._INTERNED) == before + 1500
    assert apply("mul", literal(7.123, F64), literal(7.456, F64)) is nodes[7]
    gone = ref(nodes[7])
    del nodes
    gc.collect()
    assert gone() is None
    assert len(interned._INTERNED) == before
    again = apply("mul", literal(7.123, F64), literal(7.456, F64))
    assert apply("mul", literal(7.123, F64), literal(7.456, F64)) is again


def test_of_two_that_make_the_same_node_at_once_the_first_counts() -> None:
    first = []

    def make() -> Value:  # stands for another thread that runs during the creation of a node
        first.append(interned.intern(("twice",), lambda: Value("x", tensor(F64))))
        return Value("x", tensor(F64))

    assert interned.intern(("twice",), make) is first[0]
    assert interned.intern(("twice",), make) is first[0]
