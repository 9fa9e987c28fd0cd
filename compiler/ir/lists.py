"""Types of sequences and optionals: lists of tensors whose sizes and number the run decides.

    sequence(f32[2,?])           tensors of one rank; sizes that may differ are `?`
    sequence(f32)                tensors of any shapes
    sequence(f32[-])             no tensors at all, until one comes in
    optional(sequence(i64[3]))   nothing, or one sequence

A value of such a type is a scalar whose element type is a `ListType`.  An optional is a list of no
or one entry.  Equal types are one object.
"""

import re
from functools import cache
from typing import TypeAlias

import numpy as np
from tcc.ir.types import DTYPES, DType, DTypeKind, TensorType
from tcc.record import record

_DEEPEST = 8
Dims: TypeAlias = tuple[int | None, ...]
# Of the entries of an empty list: every tensor's sizes may take their place.
NOTHING: Dims = (-1,)


@record
class ListType(DType):
    """`item` is the element type of the entries, a `ListType` where they are lists themselves.

    `dims` are the sizes of entries that are tensors: None for a size that may differ, and in place
    of the tuple where even ranks may.  Make them with `sequence_of` and `optional_of`.
    """

    optional: bool
    item: DType
    dims: Dims | None


@cache
def _interned(optional: bool, item: DType, dims: Dims | None) -> ListType:
    shape = "" if dims is None or isinstance(item, ListType) else _shape_text(dims)
    name = f"{'optional' if optional else 'sequence'}({item.name}{shape})"
    if item.is_packed:
        raise ValueError(f"there are no sequences of {item.name}, whose elements share bytes")
    if name.count("(") > _DEEPEST:
        raise ValueError(f"lists nest more than {_DEEPEST} deep")
    return ListType(name, DTypeKind.LIST, 64, 3, np.dtype(np.object_), optional, item, dims)


def _shape_text(dims: Dims) -> str:
    if dims == NOTHING:
        return "[-]"
    return f"[{','.join('?' if n is None else str(n) for n in dims)}]"


def sequence_of(item: DType, dims: Dims | None = None) -> ListType:
    """The type of sequences of tensors, or (dims left out) of lists.

    Raises ValueError for lists that nest too deep.
    """
    return _interned(False, item, () if isinstance(item, ListType) else dims)


def optional_of(item: DType, dims: Dims | None = None) -> ListType:
    """As `sequence_of`, of optionals."""
    return _interned(True, item, () if isinstance(item, ListType) else dims)


def dims_of(type_: TensorType) -> Dims:
    """The sizes of a tensor as far as they are numbers."""
    return tuple(None if dim.terms else dim.const for dim in type_.shape)


def fits(a: DType, b: DType) -> bool:
    """Whether values of one type may stand where the other is due, but for entries' sizes."""
    if isinstance(a, ListType) and isinstance(b, ListType):
        return a.optional == b.optional and fits(a.item, b.item)
    return a is b


def joined(a: DType, b: DType) -> DType | None:
    """The element type that holds for values of both types; None where there is none."""
    if a is b:
        return a
    if not (isinstance(a, ListType) and isinstance(b, ListType)) or a.optional != b.optional:
        return None
    item = joined(a.item, b.item)
    return None if item is None else _interned(a.optional, item, joined_dims(a.dims, b.dims))


def joined_dims(a: Dims | None, b: Dims | None) -> Dims | None:
    """Sizes that hold for tensors of both."""
    if a == NOTHING or b == NOTHING:
        return b if a == NOTHING else a
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def type_words(list_type: ListType) -> tuple[int, ...]:
    """The type as the runtime reads it: for each level 1 (optional) or 2, then 0, code << 8 | bits
    of the tensors, and their rank and sizes; -1 is what is not known."""
    words: list[int] = []
    kind: DType = list_type
    dims: Dims | None = None
    while isinstance(kind, ListType):
        words.append(1 if kind.optional else 2)
        dims = kind.dims
        kind = kind.item
    if dims is None or dims == NOTHING:
        return (*words, 0, dtype_word(kind), -1)
    return (*words, 0, dtype_word(kind), len(dims), *(-1 if n is None else n for n in dims))


def dtype_word(dtype: DType) -> int:
    """Code and bits of an element type in one word."""
    return dtype.dlpack << 8 | dtype.bits


def parse_list_type(text: str) -> ListType:
    """The type that has this name; raises ValueError for a text that is none."""
    found = re.fullmatch(r"(optional|sequence)\((.*)\)", text)
    if found is None or text.count("(") > _DEEPEST:
        raise ValueError(f"{text!r} is no type of lists")
    optional, inner = found[1] == "optional", found[2]
    if "(" in inner:
        return _interned(optional, parse_list_type(inner), ())
    name, bracket, rest = inner.partition("[")
    if name not in DTYPES or (bracket and not rest.endswith("]")):
        raise ValueError(f"{text!r} is no type of lists")
    sizes = [part for part in rest[:-1].split(",") if part]
    dims = NOTHING if sizes == ["-"] else tuple(None if n == "?" else int(n) for n in sizes)
    return _interned(optional, DTYPES[name], dims if bracket else None)
