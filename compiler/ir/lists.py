"""Types of sequences and optionals: lists of tensors whose sizes and number are data-dependent.

    sequence(f32[2,?])           tensors of one rank; sizes that may differ are `?`
    sequence(f32)                tensors of any shapes
    sequence(f32[-])             no tensors yet
    optional(sequence(i64[3]))   nothing, or one sequence

A value of a list type is a scalar whose element type is a `ListType`.  An optional is a list with
at most one entry.  Equal types are one object.
"""

import re
from functools import cache
from typing import TypeAlias

import numpy as np
from tcc.frozen import frozen
from tcc.ir.types import DTYPES, DType, DTypeKind, TensorType
from tcc.zipped import zip_equal

_DEEPEST = 8
Dims: TypeAlias = tuple[int | None, ...]
# The `dims` of the type of an empty list, which may be joined with any other `dims`.
NOTHING: Dims = (-1,)


@frozen
class ListType(DType):
    """The type of a list, created by `sequence_of` or `optional_of`.

    `item` is the element type of the entries, or a `ListType` if the entries are lists.  `dims` has
    the sizes that all entries of a list of tensors have, with None for a size that may differ
    between entries.  It is None if the ranks may differ too, and () for a list of lists.
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
    """Returns the type of sequences whose entries have the element type `item`.

    `dims` are the sizes of the entries as in `ListType`; they are ignored if `item` is a list type.
    Raises ValueError for lists that nest too deep, and for element types below a byte.
    """
    return _interned(False, item, () if isinstance(item, ListType) else dims)


def optional_of(item: DType, dims: Dims | None = None) -> ListType:
    """Returns the type of optionals whose entry has the element type `item` and the sizes `dims`.

    `dims` are ignored if `item` is a list type.  Raises ValueError for lists that nest too deep,
    and for element types below a byte.
    """
    return _interned(True, item, () if isinstance(item, ListType) else dims)


def dims_of(type_: TensorType) -> Dims:
    """Returns the sizes of a tensor, None for symbolic ones."""
    return tuple(None if dim.terms else dim.const for dim in type_.shape)


def fits(a: DType, b: DType) -> bool:
    """True if a value of type `a` may be used where `b` is expected.

    The sizes of lists' entries are not compared.
    """
    if isinstance(a, ListType) and isinstance(b, ListType):
        return a.optional == b.optional and fits(a.item, b.item)
    return a is b


def joined(a: DType, b: DType) -> DType | None:
    """Returns the most specific type that includes all values of both types, or None."""
    if a is b:
        return a
    if not (isinstance(a, ListType) and isinstance(b, ListType)) or a.optional != b.optional:
        return None
    item = joined(a.item, b.item)
    return item and _interned(a.optional, item, joined_dims(a.dims, b.dims))


def joined_dims(a: Dims | None, b: Dims | None) -> Dims | None:
    """Returns the `dims` of a list type whose entries may have the sizes `a` or the sizes `b`."""
    if a == NOTHING or b == NOTHING:
        return b if a == NOTHING else a
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip_equal(a, b))


def type_words(list_type: ListType) -> tuple[int, ...]:
    """Returns the type in the runtime's encoding.

    The words are: for each level, 1 for an optional or 2 for a sequence; 0; the word of the
    tensors' element type (`dtype_word`); the tensors' rank; their sizes. -1 stands for an unknown
    rank or size.
    """
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
    """Returns an element type as a word: (DLPack code) << 8 | (width in bits)."""
    return dtype.dlpack << 8 | dtype.bits


def parse_list_type(text: str) -> ListType:
    """Returns the type with this name; raises ValueError for a text that names none."""
    match = re.fullmatch(r"(optional|sequence)\((.*)\)", text)
    if match is None or text.count("(") > _DEEPEST:
        raise ValueError(f"{text!r} is no type of lists")
    optional, inner = match[1] == "optional", match[2]
    if "(" in inner:
        return _interned(optional, parse_list_type(inner), ())
    name, bracket, dims_text = inner.partition("[")
    if name not in DTYPES or (bracket and not dims_text.endswith("]")):
        raise ValueError(f"{text!r} is no type of lists")
    sizes = [part for part in dims_text[:-1].split(",") if part]
    dims = NOTHING if sizes == ["-"] else tuple(None if n == "?" else int(n) for n in sizes)
    return _interned(optional, DTYPES[name], dims if bracket else None)
