"""Converters of sequences and optionals.

A list whose entries the import knows stays a tuple of operands (`Operand.items`); reading it at a
constant position adds no node to the graph. Other lists become values of the graph.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from tcc.frontends.emit import concat, constant, filled, require, size_scalar
from tcc.frontends.onnx.context import Axis, Converters, NodeContext, Results, named
from tcc.frontends.onnx.types import entry_type, list_type
from tcc.frontends.operand import Operand, Refusal
from tcc.ir.index import Index, as_int, const
from tcc.ir.lists import ListType
from tcc.ir.types import BOOL, F32, I64, DType, TensorType
from tcc.ops import OPS

_MOST_PIECES = 4096


def _list(ctx: NodeContext) -> Operand:
    operand = ctx.input(0)
    if not isinstance(operand.dtype, ListType):
        raise Refusal(f"input 0 is {operand.type!r}, not a sequence or an optional")
    return operand


def _kind(operand: Operand) -> ListType:
    assert isinstance(operand.dtype, ListType)
    return operand.dtype


def known_list(ctx: NodeContext, items: Sequence[Operand], dtype: DType, optional: bool) -> Operand:
    """Returns a list of known entries; it becomes a value of the graph when a node reads it."""
    row = OPS["list_make"]
    try:
        (type,) = row.infer([item.type for item in items], row.attrs(dtype, optional))
    except ValueError as error:
        raise Refusal(str(error)) from error
    return Operand(type, ctx.scope.builder, next(iter(ctx.names), "list"), items=tuple(items))


def _position(ctx: NodeContext, number: int) -> tuple[Operand | None, int | None]:
    """Returns input `number`, a position in a list, as an i64 scalar, and its value.

    The value is None if the import does not know it. Both are None if the input is absent.
    """
    operand = ctx.optional(number)
    if not operand:
        return None, None
    if not operand.dtype.is_integer:
        raise Refusal(f"a position has type {operand.type!r}")
    scalar = operand.reshape(()).cast(I64)
    array = scalar.array
    return scalar, None if array is None else int(array)


def _place(at: int, count: int, places: int) -> int:
    """Returns the position `at` in a list of `count` entries, counted from the front.

    Raises `UserError` unless it is in [0, `places`).
    """
    position = at + count if at < 0 else at
    if not 0 <= position < places:
        raise Refusal(f"position {at} of a sequence of {count}")
    return position


# ---- making lists --------------------------------------------------------------------------------


def _sequence_construct(ctx: NodeContext) -> Results:
    items = ctx.present()
    return known_list(ctx, items, items[0].dtype, False)


def _sequence_insert(ctx: NodeContext) -> Results:
    sequence, x = _list(ctx), ctx.input(1)
    where, at = _position(ctx, 2)
    if sequence.items is not None and (not where or at is not None):
        items = list(sequence.items)
        place = len(items) if at is None else _place(at, len(items), len(items) + 1)
        items.insert(place, x)
        return known_list(ctx, items, _kind(sequence).item, False)
    return sequence.list_insert(x, where, item=_kind(sequence).item)


def _sequence_erase(ctx: NodeContext) -> Results:
    sequence = _list(ctx)
    where, at = _position(ctx, 1)
    if sequence.items is not None and (not where or at is not None):
        items = list(sequence.items)
        del items[_place(-1 if at is None else at, len(items), len(items))]
        return known_list(ctx, items, _kind(sequence).item, False)
    return sequence.list_erase(where)


def _split_to_sequence(
    ctx: NodeContext, x: Operand, lengths: Operand | None = None, *, axis: Axis, keepdims: bool
) -> Results:
    keep = lengths is not None or keepdims
    sizes = _piece_sizes(x.shape[axis], lengths)
    if sizes is None:
        piece_length = lengths.cast(I64) if lengths else constant(np.array(1))
        return x.list_split(piece_length, axis=axis, keep=keep, item=x.dtype)
    start, items = const(0), []
    for size in sizes:
        piece = x.slice_axis(axis, start, size)
        items.append(piece if keep else piece.squeeze((axis,)))
        start = start + size
    return known_list(ctx, items, x.dtype, False)


def _piece_sizes(extent: Index, lengths: Operand | None) -> list[Index] | None:
    """Returns the sizes of the pieces; None if their number is known only at run time."""
    length = as_int(extent)
    if lengths and lengths.rank:
        if lengths.index_elements is None:
            return None
        sizes = list(lengths.index_elements.reshape(-1))
        if any((as_int(s) or 0) < 0 for s in sizes):
            raise Refusal("a piece has a negative size")
        total_length = sum(sizes, const(0))
        if total_length is not extent:
            if as_int(total_length) is not None and length is not None:
                raise Refusal(f"the pieces have {total_length.key} elements, the axis has {length}")
            require(total_length, extent, "pieces fill the axis that they are cut from")
        return sizes
    piece_length = 1 if lengths is None else None if lengths.array is None else int(lengths.array)
    if piece_length is None or length is None:
        return None
    if piece_length < 1:
        raise Refusal(f"pieces of {piece_length} elements")
    if -(-length // piece_length) > _MOST_PIECES:
        return None
    return [const(min(piece_length, length - at)) for at in range(0, length, piece_length)]


# ---- reading lists -------------------------------------------------------------------------------


def _sequence_at(ctx: NodeContext) -> Results:
    sequence = _list(ctx)
    where, at = _position(ctx, 1)
    if sequence.items is not None and at is not None:
        return sequence.items[_place(at, len(sequence.items), len(sequence.items))]
    return sequence.list_at(where, type=entry_type(ctx, _kind(sequence)))


def _sequence_length(ctx: NodeContext) -> Results:
    sequence = _list(ctx)
    if sequence.items is not None:
        return size_scalar(len(sequence.items))
    return sequence.list_length()


def _concat_from_sequence(ctx: NodeContext, *, new_axis: bool) -> Results:
    sequence = _list(ctx)
    if sequence.items is not None:
        if not sequence.items:
            raise Refusal("the sequence is empty")
        axis = ctx.axis_of("axis", sequence.items[0].rank + new_axis)
        parts = [item.unsqueeze(axis) if new_axis else item for item in sequence.items]
        return concat(parts, axis)
    one = entry_type(ctx, _kind(sequence))
    axis = ctx.axis_of("axis", one.rank + new_axis)
    dims = list(one.shape)
    joined_size = ctx.session.fresh_symbol("joined")
    if new_axis:
        dims.insert(axis, joined_size)
    else:
        dims[axis] = joined_size
    type = TensorType(one.dtype, tuple(dims))
    return sequence.list_concat(axis=axis, new_axis=new_axis, type=type)


# ---- optionals -----------------------------------------------------------------------------------


def _optional(ctx: NodeContext, element: Operand | None = None) -> Results:
    if element:
        return known_list(ctx, [element], element.dtype, True)
    if not ctx.has("type"):
        raise Refusal("it has neither an element nor a type")
    optional_type = onnx.helper.make_optional_type_proto(ctx._attributes["type"].tp)
    kind = list_type(optional_type)
    return Operand(TensorType(kind, ()), ctx.scope.builder, ctx.node.output[0], items=())


def _optional_has_element(operand: Operand | None = None) -> Results:
    if not operand:
        return filled(False, BOOL)
    if not isinstance(operand.dtype, ListType) or not operand.dtype.optional:
        return filled(True, BOOL)
    if operand.items is not None:
        return filled(bool(operand.items), BOOL)
    return operand.list_length() > 0


def _optional_get_element(ctx: NodeContext, operand: Operand) -> Results:
    if not isinstance(operand.dtype, ListType) or not operand.dtype.optional:
        return operand
    if operand.items is not None:
        if not operand.items:
            raise Refusal("the optional is empty")
        return operand.items[0]
    return operand.list_at(type=entry_type(ctx, operand.dtype))


def coerced(ctx: NodeContext, operand: Operand, due: DType) -> Operand:
    """Returns the operand, made an optional if `due` is the type of an optional."""
    if isinstance(due, ListType) and due.optional and operand.dtype is not due:
        inner = operand.dtype
        if not (isinstance(inner, ListType) and inner.optional):
            return known_list(ctx, [operand], inner, True)
    return operand


CONVERTERS: Converters = {
    **named(
        _sequence_construct,
        _sequence_insert,
        _sequence_erase,
        _sequence_at,
        _sequence_length,
        _split_to_sequence,
        _concat_from_sequence,
        _optional,
        _optional_has_element,
        _optional_get_element,
    ),
    "SequenceEmpty": lambda ctx: known_list(ctx, (), ctx.dtype("dtype", F32), False),
}
