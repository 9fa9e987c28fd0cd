"""Interned nodes are one object while somebody holds them, and go when nobody does."""

from __future__ import annotations

import gc
from weakref import ref

from tcc.ir.expr.scalar import apply, literal
from tcc.ir.index import interned
from tcc.ir.types import F64


def test_equal_nodes_are_one_and_are_freed() -> None:
    gc.collect()
    before = len(interned._INTERNED)
    held = [apply("mul", literal(n + 0.123, F64), literal(n + 0.456, F64)) for n in range(500)]
    assert len(interned._INTERNED) == before + 1500
    assert apply("mul", literal(7.123, F64), literal(7.456, F64)) is held[7]
    gone = ref(held[7])
    del held
    gc.collect()
    assert gone() is None
    assert len(interned._INTERNED) == before
    again = apply("mul", literal(7.123, F64), literal(7.456, F64))
    assert apply("mul", literal(7.123, F64), literal(7.456, F64)) is again
