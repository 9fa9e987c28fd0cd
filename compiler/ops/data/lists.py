"""Lists: sequences and optionals of tensors, whose number and sizes are data-dependent.

Each op is a C function of the runtime on handles. Lists are immutable: an op that inserts or erases
returns another list.

In the attributes, `item` is the element type of the entries, and `type` the type of a resulting
tensor. When the op runs, symbolic dims of `type` get their values, and constant dims are checked. A
negative position counts from the end; without a position, the op uses the last entry.
"""

from collections.abc import Sequence

import numpy as np
from tcc.frozen import frozen
from tcc.ir.index import as_int
from tcc.ir.lists import NOTHING, ListType, dims_of, fits, joined, optional_of, sequence_of
from tcc.ir.op import (
    Arity,
    Array,
    NoAttrs,
    OpSpec,
    Trait,
)
from tcc.ir.types import I64, DType, TensorType
from tcc.ops.operands import require
from tcc.ops.rows import Function, op_row
from tcc.ops.shapes import ALL, present
from tcc.zipped import zip_equal


@frozen
class ListMakeAttrs:
    """`item` is the element type of the entries."""

    item: DType
    optional: bool


@frozen
class ListItemAttrs:
    """`item` is the element type of the entries."""

    item: DType


@frozen
class ListAtAttrs:
    """`type` is the type of the entry."""

    type: TensorType


@frozen
class ListExpectAttrs:
    """`type` is the type that every entry must have."""

    type: DType


@frozen
class ListConcatAttrs:
    """`axis` is an axis of the result.

    Entries are joined along it, or stacked along it as a new axis if `new_axis`.
    """

    axis: int
    new_axis: bool
    type: TensorType


@frozen
class ListSplitAttrs:
    """x is split along `axis` into pieces of the sizes in the second operand.

    If that operand is a scalar, all pieces have this size, and the last one may be smaller. If
    `keep` is False, the pieces have size one and lose the axis.
    """

    axis: int
    keep: bool
    item: DType


# ---- types ---------------------------------------------------------------------------------------


def list_type(sequence: TensorType) -> ListType:
    """Returns the list type of the first operand; raises ValueError if it is not a list."""
    dtype = sequence.dtype
    if not isinstance(dtype, ListType):
        raise ValueError(f"operand 0 is {dtype.name}, not a sequence or an optional")
    return dtype


def _scalar(dtype: DType) -> TensorType:
    return TensorType(dtype, ())


def _check_position(position: TensorType | None) -> None:
    require(position in (None, _scalar(I64)), f"the position {position!r} must be one i64")


def _make_infer(attrs: ListMakeAttrs, *entries: TensorType) -> TensorType:
    require(not attrs.optional or len(entries) <= 1, "an optional has one entry at most")
    make = optional_of if attrs.optional else sequence_of
    kind: DType = make(attrs.item, NOTHING)
    for entry in present(entries):
        wider = joined(kind, make(entry.dtype, dims_of(entry)))
        require(wider is not None, f"{entry!r} cannot be an entry of {kind.name}")
        kind = wider or kind
    return _scalar(kind)


def _insert_infer(
    attrs: ListItemAttrs, sequence: TensorType, x: TensorType, position: TensorType | None = None
) -> TensorType:
    kind = list_type(sequence)
    _check_position(position)
    wider = joined(kind, sequence_of(x.dtype, dims_of(x)))
    require(wider is not None, f"{x!r} cannot be an entry of {kind.name}")
    require(kind.item is attrs.item, f"entries of {kind.name} are not {attrs.item.name}")
    return _scalar(wider or kind)


def _erase_infer(
    _attrs: NoAttrs, sequence: TensorType, position: TensorType | None = None
) -> TensorType:
    kind = list_type(sequence)
    _check_position(position)
    require(not kind.optional, f"nothing can be taken out of {kind.name}")
    return _scalar(kind)


def _length_infer(_attrs: NoAttrs, sequence: TensorType) -> TensorType:
    list_type(sequence)
    return _scalar(I64)


def _at_infer(
    attrs: ListAtAttrs, sequence: TensorType, position: TensorType | None = None
) -> TensorType:
    kind = list_type(sequence)
    _check_position(position)
    require(fits(kind.item, attrs.type.dtype), f"an entry of {kind.name} is no {attrs.type!r}")
    require(_may_have_rank(kind, attrs.type.rank), f"{kind.name} has other ranks")
    return attrs.type


def _may_have_rank(kind: ListType, rank: int) -> bool:
    """Returns False if no entry has this rank."""
    return kind.dims in (None, NOTHING) or len(kind.dims or ()) == rank


def _expect_infer(attrs: ListExpectAttrs, sequence: TensorType) -> TensorType:
    kind = list_type(sequence)
    require(fits(kind, attrs.type), f"{kind.name} is not {attrs.type.name}")
    return _scalar(attrs.type)


def _concat_infer(attrs: ListConcatAttrs, sequence: TensorType) -> TensorType:
    kind, rank = list_type(sequence), attrs.type.rank
    require(kind.item is attrs.type.dtype, f"entries of {kind.name} do not make {attrs.type!r}")
    fitting = _may_have_rank(kind, rank - attrs.new_axis)
    require(fitting, f"entries of {kind.name} have another rank than {attrs.type!r}")
    require(0 <= attrs.axis < rank, f"axis {attrs.axis} of rank {rank}")
    return attrs.type


def _split_infer(attrs: ListSplitAttrs, x: TensorType, lengths: TensorType) -> TensorType:
    require(0 <= attrs.axis < x.rank, f"{x!r} has no axis {attrs.axis}")
    require(lengths.dtype is I64 and lengths.rank <= 1, f"the sizes {lengths!r} must be i64")
    require(x.dtype is attrs.item, f"pieces of {x!r} are no {attrs.item.name}")
    dims = list(dims_of(x))
    dims[attrs.axis] = None
    if not attrs.keep:
        del dims[attrs.axis]
    return _scalar(sequence_of(x.dtype, tuple(dims)))


# ---- NumPy references ----------------------------------------------------------------------------


def pack(entries: Sequence[Array]) -> Array:
    """Returns a list as NumPy holds it: an object array of rank 0 with a tuple."""
    out = np.empty((), object)
    out[()] = tuple(entries)
    return out


def entries_of(sequence: Array) -> list[Array]:
    """Returns the entries of a list."""
    return list(sequence[()])


def _place(position: Array | None, count: int, last: int) -> int:
    at = last if position is None else int(position)
    at += count if at < 0 else 0
    if not 0 <= at <= last:
        raise IndexError(f"position {at} of {count} entries")
    return at


def _make_reference(_attrs: ListMakeAttrs, *entries: Array) -> Array:
    return pack(present(entries))


def _insert_reference(
    _attrs: ListItemAttrs, sequence: Array, x: Array, position: Array | None
) -> Array:
    entries = entries_of(sequence)
    entries.insert(_place(position, len(entries), len(entries)), x)
    return pack(entries)


def _erase_reference(_attrs: NoAttrs, sequence: Array, position: Array | None) -> Array:
    entries = entries_of(sequence)
    del entries[_place(position, len(entries), len(entries) - 1)]
    return pack(entries)


def _length_reference(_attrs: NoAttrs, sequence: Array) -> Array:
    return np.array(len(entries_of(sequence)), np.int64)


def _at_reference(attrs: ListAtAttrs, sequence: Array, position: Array | None) -> Array:
    entries = entries_of(sequence)
    entry = entries[_place(position, len(entries), len(entries) - 1)]
    declared = [as_int(d) for d in attrs.type.shape]
    matches_type = len(declared) == entry.ndim and all(
        n in (None, size) for n, size in zip_equal(declared, entry.shape)
    )
    require(matches_type, f"an entry of shape {entry.shape} is no {attrs.type!r}")
    return entry


def _concat_reference(attrs: ListConcatAttrs, sequence: Array) -> Array:
    join = np.stack if attrs.new_axis else np.concatenate
    return join(entries_of(sequence), axis=attrs.axis)


def _split_reference(attrs: ListSplitAttrs, x: Array, lengths: Array) -> Array:
    extent = x.shape[attrs.axis]
    if lengths.ndim:
        sizes = [int(n) for n in lengths]
    else:
        require(int(lengths) > 0, "pieces have at least one element")
        sizes = [min(int(lengths), extent - at) for at in range(0, extent, int(lengths))]
    require(min(sizes, default=0) >= 0 and sum(sizes) == extent, f"pieces {sizes} of {extent}")
    pieces = np.split(x, np.cumsum(sizes)[:-1], attrs.axis) if sizes else []
    return pack(pieces if attrs.keep else [np.squeeze(p, attrs.axis) for p in pieces])


# ---- rows of the op table ------------------------------------------------------------------------

_OPAQUE = Trait.OPAQUE | Trait.LISTS
_MANY = 1 << 16


def _row(
    name: str,
    attrs: type,
    infer: Function,
    reference: Function,
    doc: str,
    arity: Arity | None = None,
) -> OpSpec:
    return op_row(name, attrs, infer, reference, ALL, doc, arity=arity, traits=_OPAQUE)


OPS = (
    _row(
        "list_make", ListMakeAttrs, _make_infer, _make_reference,
        "The list of the operands; the empty list without operands.", (0, _MANY),
    ),
    _row(
        "list_insert", ListItemAttrs, _insert_infer, _insert_reference,
        "The list with an entry inserted before a position; operands (list, entry, position).",
    ),
    _row(
        "list_erase", NoAttrs, _erase_infer, _erase_reference,
        "The list without the entry at a position.",
    ),
    _row(
        "list_length", NoAttrs, _length_infer, _length_reference, "The number of entries."
    ),
    _row(
        "list_at", ListAtAttrs, _at_infer, _at_reference,
        "The entry at a position.",
    ),
    _row(
        "list_expect", ListExpectAttrs, _expect_infer,
        lambda _attrs, sequence: sequence,
        "The list itself; the run fails if an entry has another type.",
    ),
    _row(
        "list_concat", ListConcatAttrs, _concat_infer, _concat_reference,
        "The entries side by side along an axis.",
    ),
    _row(
        "list_split", ListSplitAttrs, _split_infer, _split_reference,
        "Pieces of a tensor along an axis; operands (x, sizes).",
    ),
)  # fmt: skip
