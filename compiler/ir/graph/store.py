"""The arrays of a graph's constants, by hash: given ones, and ones that are derived when read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import starmap
from mmap import mmap
from typing import Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from tcc.errors import InternalError
from tcc.frozen import entity, frozen
from tcc.ir.narrow import bf16_bits, bf16_values
from tcc.ir.op import Array
from tcc.ir.types import BF16, DType, dtype_of
from tcc.known import all_known

T = TypeVar("T")


@frozen
class Handle:
    """The SHA-256 of a constant: of its type and bytes, or of the form from which it is derived."""

    digest: str


def _content(data: Array) -> bytes | memoryview:
    """Returns bytes that identify the elements of `data`.

    Two arrays of one type and shape with equal bytes are equal.
    """
    if data.dtype != object:
        return data.reshape(-1).view(np.uint8).data
    texts = [str(text).encode("utf-8", "surrogateescape") for text in data.reshape(-1)]
    return b"".join(len(text).to_bytes(8, "little") + text for text in texts)


@entity
class _Derived:
    """An array that `make` computes of the arrays `operands`, while nothing holds it."""

    make: Callable[..., Any]
    operands: tuple[Stored, ...]


Stored: TypeAlias = Array | _Derived
# The arrays of all stores by hash: programs for several sizes read the same weights.
_STORED: WeakValueDictionary[str, Stored] = WeakValueDictionary()
# The derived arrays that something holds.
_MADE: WeakValueDictionary[_Derived, Array] = WeakValueDictionary()
# The results of `ConstantStore.fact`, by the function, the handles and further arguments.
_FACTS: dict[tuple[Hashable, ...], Any] = {}


def _shared(key: str, stored: Stored) -> Stored:
    """Returns the entry of all stores with `key`, which `stored` becomes if there is none.

    It also replaces an entry in a mapped file, because somebody may have written that file since.
    """
    entry = _STORED.get(key)
    if entry is None or _is_elsewhere_in_file(entry, stored):
        _STORED[key] = entry = stored
    return entry


def _is_elsewhere_in_file(entry: Any, stored: Any) -> bool:
    """Returns True if arrays of `entry` lie in a mapped file, at other addresses than those of
    `stored`."""
    if isinstance(entry, _Derived):
        return any(map(_is_elsewhere_in_file, entry.operands, stored.operands))
    base = entry.base
    while isinstance(base, np.ndarray):
        base = base.base
    is_mapped = isinstance(getattr(base, "obj", base), mmap)
    return is_mapped and entry.ctypes.data != stored.ctypes.data


def _made(stored: Stored) -> Array:
    """Returns the array of an entry, computed if it is derived and nothing holds it."""
    if not isinstance(stored, _Derived):
        return stored
    array = _MADE.get(stored)
    if array is None:
        _MADE[stored] = array = _fixed(stored.make(*map(_made, stored.operands)))
    return array


def _fixed(array: Array) -> Array:
    """Returns a contiguous read-only view or copy of `array`."""
    data = np.ascontiguousarray(array).reshape(array.shape)
    data.flags.writeable = False
    return data


def _keyed(array: Array, dtype: DType | None) -> tuple[str, Stored]:
    """Returns the content hash of `array`, and what a store holds of it.

    Elements of bf16 are held as their bits, which take half of the memory.
    """
    name = (dtype or dtype_of(array)).name
    data = _fixed(bf16_bits(array) if dtype is BF16 else array)
    digest = hashlib.sha256(f"{name}{data.shape}".encode())
    digest.update(_content(data))
    return digest.hexdigest(), _Derived(bf16_values, (data,)) if dtype is BF16 else data


def _form_key(form: str, keys: Sequence[str]) -> str:
    """Returns the hash of what `form` makes of the entries with `keys`."""
    return hashlib.sha256(f"{form} {' '.join(keys)}".encode()).hexdigest()


class ConstantStore:
    """A store of read-only arrays by content hash; all stores share one array of equal contents.

    A constant whose array differs by rank has one array per rank under one handle.

    The store also records from which constants of the source model an array was computed
    (`sources`). The name "" stands for all other numbers that
    went into it.
    """

    def __init__(self) -> None:
        # The entry of each rank, or the one entry that all ranks have, by hash.
        self._entries: dict[str, tuple[Stored, ...]] = {}
        self._sources: dict[str, tuple[str, ...]] = {}

    def put(self, array: Array, dtype: DType | None = None, sources: Sequence[str] = ()) -> Handle:
        """Stores a contiguous read-only view or copy of `array` and returns its handle.

        `dtype` is the element type, or None for the type of `array.dtype`. `sources` names the
        constants of the source model from which the array was computed.
        """
        return self.put_per_rank([array], dtype, sources)

    def put_per_rank(
        self, arrays: Sequence[Array], dtype: DType | None = None, sources: Sequence[str] = ()
    ) -> Handle:
        """Stores the array of each rank, in order of rank, and returns one handle for all.

        If all arrays are equal, the result is the handle of an ordinary constant, as from `put`.
        Raises `InternalError` where there are no arrays, or their shapes or types differ.
        """
        if len({(array.shape, array.dtype) for array in arrays}) != 1:
            forms = [f"{array.dtype}{list(array.shape)}" for array in arrays]
            raise InternalError(
                "the ranks' arrays of a constant have different types",
                why=", ".join(forms) or "there is no array",
            )
        pairs = [_keyed(array, dtype) for array in arrays]
        keys, parts = [key for key, _ in pairs], tuple(starmap(_shared, pairs))
        if len({*keys}) == 1:
            key, parts = keys[0], parts[:1]
        else:
            key = _form_key("ranks", keys)
        self._entries.setdefault(key, parts)
        self._add_sources(key, sources)
        return Handle(key)

    def derive(self, make: Callable[..., Any], form: str, operands: Sequence[Handle]) -> Handle:
        """Stores the array that `make` returns for the arrays of `operands`; returns its handle.

        Nothing is computed before the array is read, and all stores of the process compute it once
        while it is in use. `form` names what `make` computes; equal forms of equal operands have
        one handle. The sources are those of the operands.
        """
        entries = [self._entries[h.digest] for h in operands]
        key = _form_key(form, [h.digest for h in operands])
        self._entries[key] = tuple(
            _shared(f"{key} {rank}", _Derived(make, rank_operands))
            for rank, rank_operands in enumerate(_by_rank(entries))
        )
        self._add_sources(key, [s for h in operands for s in self.sources(h)])
        return Handle(key)

    def fact(self, function: Callable[..., T], handles: Sequence[Handle], *args: Hashable) -> T:
        """Returns `function` of the arrays of constants, each a tuple as from `arrays`, and `args`.

        All stores of the process call it once.
        """
        key = function, *handles, *args
        if key not in _FACTS:
            _FACTS[key] = function(*map(self.arrays, handles), *args)
        result: T = _FACTS[key]
        return result

    def get(self, handle: Handle) -> Array:
        """Returns an array that all ranks have.

        Raises `InternalError` where it differs by rank, and `KeyError` for an unknown handle.
        """
        array = self.common(handle)
        if array is None:
            raise InternalError(f"constant @{handle.digest[:16]} has another array on each rank")
        return array

    def common(self, handle: Handle) -> Array | None:
        """Returns an array that all ranks have; None where it differs by rank."""
        return self.arrays(handle)[0] if self.ranks(handle) == 1 else None

    def arrays(self, handle: Handle) -> tuple[Array, ...]:
        """Returns the array of each rank, or the one array that all ranks have."""
        return tuple(map(_made, self._entries[handle.digest]))

    def ranks(self, handle: Handle) -> int:
        """Returns the number of ranks whose arrays differ; 1 where all ranks have one array."""
        return len(self._entries[handle.digest])

    def on_rank(self, handle: Handle, rank: int) -> Array:
        """Returns the array of a rank; raises `InternalError` where the constant has none for
        it."""
        count = self.ranks(handle)
        if count > 1 and not 0 <= rank < count:
            raise InternalError(f"a constant for {count} ranks has no array for rank {rank}")
        return _made(self._entries[handle.digest][rank % count])

    def adopt(self, handle: Handle, other: ConstantStore) -> None:
        """Adds the arrays with `handle` in the store `other`, and their sources, without a copy."""
        self._entries.setdefault(handle.digest, other._entries[handle.digest])
        self._add_sources(handle.digest, other.sources(handle))

    def sources(self, handle: Handle) -> tuple[str, ...]:
        """Returns the names of the model's constants from which an array was computed, if known."""
        return self._sources.get(handle.digest, ())

    def _add_sources(self, key: str, sources: Sequence[str]) -> None:
        if sources:
            self._sources[key] = tuple(dict.fromkeys((*self._sources.get(key, ()), *sources)))

    def handles(self) -> Iterator[Handle]:
        """Yields the handles of arrays that all ranks share, then the handles of arrays per rank.

        Handles of a kind have the order in which their arrays were put.
        """
        return map(Handle, sorted(self._entries, key=lambda key: len(self._entries[key]) > 1))


def on_each_rank(
    operands: Sequence[Sequence[Array] | None], compute: Callable[[Sequence[Any]], T | None]
) -> tuple[T, ...] | None:
    """Returns the results of `compute` for the operands of each rank, or one result for all ranks.

    An operand is the array of each rank, one array that all ranks have, or None.  If `compute`
    returns None for one rank, the result is None: all ranks get the same program.
    """
    return all_known(map(compute, _by_rank(operands)))


def _by_rank(operands: Sequence[Sequence[T] | None]) -> Iterator[tuple[Any, ...]]:
    """Yields the operands of each rank, or those that all ranks have; see `on_each_rank`."""
    ranks = max((len(parts) for parts in operands if parts is not None), default=1)
    for rank in range(ranks):
        yield tuple(None if parts is None else parts[rank % len(parts)] for parts in operands)
