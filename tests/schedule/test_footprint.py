"""Footprints of accesses with symbolic sizes stay in the range of a float, and count no place
twice."""

from __future__ import annotations

from math import prod

from tcc.ir.index import Index, Var, const, free_vars, iterator, maximum, symbol, var_of
from tcc.ir.types import F32
from tcc.schedule.footprint import LINE, place_of, touch
from tcc.schedule.nest import points, trips, typical


def _var(index: Index) -> Var:
    (var,) = free_vars(index)
    return var


def test_an_element_of_a_loop_is_at_one_place_however_many_terms_say_where() -> None:
    """Rows start at products of the loop with padding sizes, as behind two pads."""
    i, j = iterator("i", symbol("n", lo=1)), iterator("j", 8)
    sizes = [symbol(f"p{k}") for k in range(12)]
    rows = sum((maximum(i - p, 0) * q for p in sizes for q in sizes if p is not q), const(0))
    offset = (rows + i // maximum(sizes[0], 1)) * j + j
    loops = _var(i), _var(j)
    steps, _ = place_of(offset, loops)
    reached = touch(0, steps, store=False, size=F32.bytes, buffer_bytes=float("inf"))
    spans = {v: trips(v) for v in loops}
    assert reached.reach(spans) <= LINE * prod(spans.values())


def test_counts_of_symbolic_sizes_are_floats() -> None:
    n = symbol("n")
    size = n
    for _ in range(9):
        size = size * size
    assert typical(size) > typical(n) > 1
    loops = [_var(iterator(f"i{k}", size + k)) for k in range(16)]
    assert float(points(loops)) > 1e12


SPANS = ((64, 128), (1, 128), (2, 16), (1, 1))


def test_rows_and_columns_of_a_symbolic_image_are_distinguished_like_those_of_a_fixed_image() -> (
    None
):
    """The read takes every second row and column of an image twice as large, whose width is
    symbolic."""
    i, j = iterator("i", 64), iterator("j", 128)
    loops = [v for v in map(var_of, (i, j)) if v is not None]
    byte_counts = []
    for width in (symbol("w", 0, None, 1, 128), const(128)):
        half = width // 2
        offset = 4 * half * ((2 * half * i + j) // (4 * half)) + 4 * (j // 2)
        steps, _ = place_of(offset, tuple(loops))
        assert all(step.size is not None for step in steps)
        image = touch(0, steps, store=False, size=4, buffer_bytes=1e9)
        byte_counts.append([image.bytes_in(dict(zip(loops, n, strict=True)), 4) for n in SPANS])
    assert byte_counts[0] == byte_counts[1]
    narrow = symbol("w", 0, None, 1, 1) // 2  # with a typical size of 1 it is 0
    place_of((2 * narrow * i + j) // (4 * narrow), tuple(loops))


def test_a_number_divided_by_what_is_zero_at_typical_sizes_counts_as_one() -> None:
    n = symbol("n", 0, None, 1, 128)
    nothing = symbol("m", 0, None, 1, 128) - n
    for number in (n % nothing, n // nothing):
        assert typical(number) == 1
