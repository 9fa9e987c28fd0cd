"""The weight section: packing equals a loop over elements, and bytes and sharing are right."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcc.ir.graph import ConstantStore
from tcc.ir.index import Index, ceildiv, const, evaluate
from tcc.ir.layout import Layout, axis_vars, layout, permuted, row_major, with_halo
from tcc.ir.types import BF16, BOOL, F16, F32, I8, DType
from tcc.passes.layout.weights import WeightTable, pack, stored_bytes

Array = np.ndarray[Any, np.dtype[Any]]


def dims(shape: tuple[int, ...]) -> tuple[Index, ...]:
    return tuple(map(const, shape))


def packed_by_hand(array: Array, where: Layout) -> Array:
    """Packs element by element, by the definition of a layout."""
    out = np.full([s.const for s in where.sizes], where.fill or 0, array.dtype)
    for at in product(*map(range, array.shape)):
        values = {var.name: n for var, n in zip(where.axes, at, strict=True)}
        out[tuple(evaluate(i, values) for i in where.indices)] = array[at]
    return out


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Array, Layout]:
    """Draws an array and a layout: a random permutation of axes, some cut into panels, some with a
    halo."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    sizes: list[Index] = []
    indices: list[Index] = []
    for axis, (var, size) in enumerate(zip(axis_vars(dims(shape)), shape, strict=True)):
        by = draw(st.integers(2, 8))
        if draw(st.booleans()) and by != shape[axis]:
            sizes += [ceildiv(const(size), by), const(by)]
            indices += [var // by, var % by]
        else:
            sizes.append(const(size))
            indices.append(var)
    order = draw(st.permutations(range(len(sizes))))
    fill = draw(st.sampled_from([0.0, -1.0, 3.0]))
    where = layout(
        dims(shape), tuple(sizes[n] for n in order), tuple(indices[n] for n in order), fill
    )
    if draw(st.booleans()):
        edge = st.tuples(st.integers(0, 2), st.integers(0, 2))
        where = with_halo(where, tuple(draw(edge) for _ in order), fill)
    array = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    return array, where


@settings(max_examples=200, deadline=None)
@given(layouts())
def test_packing_is_evaluating_the_layout(case: tuple[Array, Layout]) -> None:
    array, where = case
    result = pack(array, where)
    np.testing.assert_array_equal(result, packed_by_hand(array, where))
    assert result.flags.c_contiguous


@pytest.mark.parametrize("shape", [(), (1, 1), (0, 3)])
def test_scalars_and_empty_arrays(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    np.testing.assert_array_equal(pack(array, row_major(dims(shape))), array)


def test_an_axis_cut_unevenly_is_no_reshape() -> None:
    """Quotient and remainder have two divisors: rows of 2 lie in rows of 4."""
    (axis,) = axis_vars((const(8),))
    where = layout((const(8),), (const(4), const(4)), (axis // 2, axis % 4), 0.0)
    array = np.arange(1, 9, dtype=np.float32)
    np.testing.assert_array_equal(pack(array, where), packed_by_hand(array, where))


# ---- bytes --------------------------------------------------------------------------------------


def test_bf16_is_the_upper_half_of_f32() -> None:
    values = np.array([1.0, -2.0, 0.0, np.inf], np.float32)
    assert stored_bytes(values, BF16).tobytes() == bytes.fromhex("803f 00c0 0000 807f")


@pytest.mark.parametrize(
    ("dtype", "values", "stored"),
    [
        (BOOL, [True, False, True], "01 00 01"),
        (I8, [-1, 2], "ff 02"),
        (F16, [1.0, -2.0], "003c 00c0"),
    ],
)
def test_bytes_of_narrow_types(dtype: DType, values: list[Any], stored: str) -> None:
    assert stored_bytes(np.array(values, dtype.carrier), dtype).tobytes() == bytes.fromhex(stored)


def test_bytes_follow_memory_order() -> None:
    array = np.arange(6, dtype=np.int8).reshape(2, 3)
    assert stored_bytes(array.T, I8).tolist() == [0, 3, 1, 4, 2, 5]


# ---- the section --------------------------------------------------------------------------------


def section(table: WeightTable) -> bytes:
    return b"".join(part().tobytes() for part in table.parts())


def test_offsets_are_aligned_and_parts_lie_at_them() -> None:
    store, rng = ConstantStore(), np.random.default_rng(3)
    table = WeightTable(store)
    placed = []
    for count in (1, 16, 17, 63, 0, 100):
        array = rng.standard_normal(count).astype(np.float32)
        where = row_major(dims(array.shape))
        placed.append((array, table.place(store.put(array), F32, where)))
    contents = section(table)
    assert len(contents) == table.size
    for array, (offset, size) in placed:
        assert offset % 64 == 0
        assert contents[offset : offset + size] == array.tobytes()
        assert not any(contents[offset + size : offset + -(-size // 64) * 64])


def test_no_weights_are_no_bytes() -> None:
    assert section(WeightTable(ConstantStore())) == b""


def test_a_large_weight_begins_with_a_page() -> None:
    store = ConstantStore()
    table = WeightTable(store)
    arrays = [np.full(count, count, np.float32) for count in (3, 1 << 14, 5, (1 << 14) + 1, 7)]
    places = [table.place(store.put(a), F32, row_major(dims(a.shape))) for a in arrays]
    contents = section(table)
    assert len(contents) == table.size
    assert [offset % 4096 for offset, _ in places] == [0, 0, 0, 0, 64]
    assert places[3][0] == places[1][0] + (1 << 16) + 4096
    for array, (offset, size) in zip(arrays, places, strict=True):
        assert contents[offset : offset + size] == array.tobytes()


def test_a_weight_is_never_copied_to_be_padded() -> None:
    store = ConstantStore()
    table = WeightTable(store)
    handle = store.put(np.ones(1001, np.float32))
    table.place(handle, F32, row_major(dims((1001,))))
    first, padding = (part() for part in table.parts())
    assert np.shares_memory(first, store.get(handle))
    assert padding.nbytes == -4004 % 64


def test_equal_contents_in_one_layout_are_stored_once() -> None:
    store = ConstantStore()
    table = WeightTable(store)
    shape = dims((4, 32))
    one = np.arange(128, dtype=np.float32).reshape(4, 32)
    a = table.place(store.put(one), F32, row_major(shape))
    b = table.place(store.put(one.copy()), F32, row_major(shape))
    transposed = table.place(store.put(one), F32, permuted(shape, (1, 0)))
    assert a == b
    assert transposed != a
    assert table.size == 2 * one.nbytes
    assert section(table) == one.tobytes() + np.ascontiguousarray(one.T).tobytes()
