"""How far accesses with open sizes reach: in the range of a float, and no place counted twice."""

from __future__ import annotations

from math import prod

from tcc.ir.index import Index, Var, const, free_vars, iterator, maximum, symbol
from tcc.ir.types import F32
from tcc.schedule.footprint import LINE, place_of, touch
from tcc.schedule.nest import points, trips, typical


def _var(index: Index) -> Var:
    (var,) = free_vars(index)
    return var


def test_an_element_of_a_loop_is_at_one_place_however_many_terms_say_where() -> None:
    """Rows that start at products of the loop with the sizes of padding, as behind two pads."""
    i, j = iterator("i", symbol("n", lo=1)), iterator("j", 8)
    sizes = [symbol(f"p{k}") for k in range(12)]
    rows = sum((maximum(i - p, 0) * q for p in sizes for q in sizes if p is not q), const(0))
    offset = (rows + i // maximum(sizes[0], 1)) * j + j
    loops = _var(i), _var(j)
    steps, _ = place_of(offset, loops)
    reached = touch(0, steps, store=False, size=F32.bytes, most=float("inf"))
    spans = {v: trips(v) for v in loops}
    assert reached.reach(spans) <= LINE * prod(spans.values())


def test_counts_of_open_sizes_are_floats() -> None:
    n = symbol("n")
    size = n
    for _ in range(9):
        size = size * size
    assert typical(size) > typical(n) > 1
    loops = [_var(iterator(f"i{k}", size + k)) for k in range(16)]
    assert float(points(loops)) > 1e12
