"""Constants that are computed when something reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tcc.frontends.model_file import map_file
from tcc.ir.graph import ConstantStore
from tcc.ir.types import BF16, DType

from tests.draws import RNG


class Counted:
    """A function that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        self.calls += 1
        return np.concatenate(arrays)


def test_a_derived_array_is_computed_when_it_is_read_and_while_nothing_holds_it() -> None:
    store, make = ConstantStore(), Counted()
    parts = [RNG.standard_normal(5), RNG.standard_normal(3)]
    handle = store.derive(make, "joined", [store.put(part) for part in parts])
    assert (make.calls, store.ranks(handle)) == (0, 1)
    array = store.get(handle)
    np.testing.assert_array_equal(array, np.concatenate(parts))
    assert not array.flags.writeable
    assert store.get(handle) is array
    assert make.calls == 1
    del array
    store.get(handle)
    assert make.calls == 2


def test_equal_forms_of_equal_operands_are_one_constant_in_all_stores() -> None:
    stores, make = [ConstantStore(), ConstantStore()], Counted()
    array = RNG.standard_normal(4)
    source, equal_handle = (store.put(array.copy(), sources=["w"]) for store in stores)
    handle = stores[0].derive(make, "copied", [source])
    assert stores[1].derive(make, "copied", [equal_handle]) == handle
    first = stores[0].get(handle)
    assert stores[1].get(handle) is first
    assert make.calls == 1
    other_handles = [
        stores[0].derive(make, "turned", [source]),
        stores[0].derive(make, "copied", [source, source]),
        stores[0].derive(make, "copied", [stores[0].put(array + 1)]),
    ]
    assert len({handle, *other_handles}) == 4
    assert stores[0].sources(other_handles[1]) == ("w",)
    adopting = ConstantStore()
    adopting.adopt(other_handles[1], stores[0])
    assert make.calls == 1
    np.testing.assert_array_equal(adopting.get(other_handles[1]), np.concatenate([array, array]))


def test_each_rank_has_its_own_derived_array() -> None:
    store = ConstantStore()
    common, parts = RNG.standard_normal(2), RNG.standard_normal((3, 4))
    operands = [store.put(common), store.put_per_rank([*parts])]
    handle = store.derive(Counted(), "joined", operands)
    assert store.ranks(handle) == 3
    for rank, part in enumerate(parts):
        np.testing.assert_array_equal(store.on_rank(handle, rank), [*common, *part])


def test_a_fact_is_computed_once_for_all_stores() -> None:
    calls: list[float] = []

    def largest(arrays: tuple[np.ndarray, ...], factor: float) -> float:
        calls.append(factor)
        return float(max(a.max() for a in arrays)) * factor

    parts = RNG.standard_normal((2, 6))
    for _ in range(2):
        store = ConstantStore()
        handle = store.put_per_rank([*parts])
        assert store.fact(largest, [handle], 2.0) == parts.max() * 2
        assert store.fact(largest, [handle], 3.0) == parts.max() * 3
    assert calls == [2.0, 3.0]


@pytest.mark.parametrize("shape", [(), (0,), (3, 1 << 16)])
def test_bf16_is_held_in_two_bytes_and_read_bit_for_bit(shape: tuple[int, ...]) -> None:
    words = RNG.integers(0, 1 << 16, shape).astype(np.uint32)  # all bits, so also NaNs
    values = np.asarray(words << 16, np.uint32).view(np.float32)
    store = ConstantStore()
    handle = store.put(values, BF16)
    np.testing.assert_array_equal(store.get(handle).view(np.uint32), values.view(np.uint32))
    assert store.get(handle).shape == shape
    (entry,) = store._entries[handle.digest]
    assert sum(part.nbytes for part in entry.operands) == 2 * values.size  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [None, BF16], ids=["f32", "bf16"])
def test_a_file_that_is_overwritten_leaves_later_stores_alone(
    dtype: DType | None, tmp_path: Path
) -> None:
    """An earlier store keeps its mapping of the old file, whose elements are now others."""
    stores, paths = [ConstantStore(), ConstantStore()], [tmp_path / "old", tmp_path / "new"]
    array, handles = RNG.integers(0, 9, 2048).astype(np.float32), []
    for store, path in zip(stores, paths, strict=True):
        path.write_bytes(array.tobytes())
        handle = store.put(np.frombuffer(map_file(path, ""), np.float32), dtype)
        handles.append((handle, store.derive(lambda x: x + 1, "one more", [handle])))
        with paths[0].open("r+b") as file:
            file.write(bytes(array.nbytes))
    assert handles[0] == handles[1]
    for handle, values in zip(handles[1], (array, array + 1), strict=True):
        np.testing.assert_array_equal(stores[1].get(handle), values)
