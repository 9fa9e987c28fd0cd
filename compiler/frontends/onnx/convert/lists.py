"""Sequences and optionals.

A list whose entries the import knows stays a tuple of operands (`Operand.items`): what reads it at
a known place leaves no trace in the graph.  Others are values that the run makes.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.onnx.types import entry_type, list_type
from tcc.frontends.scope import Operand
from tcc.ir.index import Index, as_int, const
from tcc.ir.lists import ListType
from tcc.ir.types import BOOL, F32, I64, DType, TensorType
from tcc.ops import OPS

_MOST_PIECES = 4096


def _list(ctx: NodeContext) -> Operand:
    found = ctx.input(0)
    if not isinstance(found.dtype, ListType):
        raise ctx.fail(f"input 0 is {found.type!r}, not a sequence or an optional")
    return found


def _kind(operand: Operand) -> ListType:
    assert isinstance(operand.dtype, ListType)
    return operand.dtype


def known_list(ctx: NodeContext, items: Sequence[Operand], dtype: DType, optional: bool) -> Operand:
    """A list of known entries, which become a value when something needs it."""
    row = OPS["list_make"]
    try:
        (type,) = row.infer([item.type for item in items], row.attrs(dtype, optional))
    except ValueError as error:
        raise ctx.fail(str(error)) from error
    return Operand(type, ctx.scope, next(iter(ctx.names), "list"), items=tuple(items))


def _position(ctx: NodeContext, number: int) -> tuple[Operand | None, int | None]:
    """The operand that says a place, as one i64, and its value where it is known."""
    given = ctx.optional(number)
    if given is None:
        return None, None
    if not given.dtype.is_integer:
        raise ctx.fail(f"a position has type {given.type!r}")
    scalar = ctx.cast(ctx.reshape(given, ()), I64)
    known = scalar.array
    return scalar, None if known is None else int(known)


def _place(ctx: NodeContext, at: int, count: int, places: int) -> int:
    """A known position from the front, among so many places of a list of `count`."""
    found = at + count if at < 0 else at
    if not 0 <= found < places:
        raise ctx.fail(f"position {at} of a sequence of {count}")
    return found


# ---- making lists --------------------------------------------------------------------------------


def _construct(ctx: NodeContext) -> Results:
    items = ctx.present()
    return known_list(ctx, items, items[0].dtype, False)


def _insert(ctx: NodeContext) -> Results:
    sequence, x = _list(ctx), ctx.input(1)
    where, at = _position(ctx, 2)
    if sequence.items is not None and (where is None or at is not None):
        items = list(sequence.items)
        place = len(items) if at is None else _place(ctx, at, len(items), len(items) + 1)
        items.insert(place, x)
        return known_list(ctx, items, _kind(sequence).item, False)
    return ctx.emit("list_insert", sequence, x, where, item=_kind(sequence).item)


def _erase(ctx: NodeContext) -> Results:
    sequence = _list(ctx)
    where, at = _position(ctx, 1)
    if sequence.items is not None and (where is None or at is not None):
        items = list(sequence.items)
        del items[_place(ctx, -1 if at is None else at, len(items), len(items))]
        return known_list(ctx, items, _kind(sequence).item, False)
    return ctx.emit("list_erase", sequence, where)


def _split(ctx: NodeContext) -> Results:
    x, cut = ctx.input(0), ctx.optional(1)
    axis = ctx.axis_of("axis", x.rank)
    keep = cut is not None or ctx.flag("keepdims")
    sizes = _piece_sizes(ctx, x.shape[axis], cut)
    if sizes is None:
        given = ctx.constant(np.array(1)) if cut is None else ctx.cast(cut, I64)
        return ctx.emit("list_split", x, given, axis=axis, keep=keep, item=x.dtype)
    start, items = const(0), []
    for size in sizes:
        piece = ctx.slice_axis(x, axis, start, size)
        items.append(piece if keep else ctx.squeeze(piece, (axis,)))
        start = start + size
    return known_list(ctx, items, x.dtype, False)


def _piece_sizes(ctx: NodeContext, extent: Index, cut: Operand | None) -> list[Index] | None:
    """Sizes of the pieces where their number is known."""
    length = as_int(extent)
    if cut is not None and cut.rank:
        if cut.known is None:
            return None
        sizes = list(cut.known.reshape(-1))
        if any((as_int(s) or 0) < 0 for s in sizes):
            raise ctx.fail("a piece has a negative size")
        total = sum(sizes, const(0))
        if total is not extent:
            if as_int(total) is not None and length is not None:
                raise ctx.fail(f"the pieces have {total.key} elements, the axis has {length}")
            ctx.require(total, extent, "pieces fill the axis that they are cut from")
        return sizes
    each = 1 if cut is None else None if cut.array is None else int(cut.array)
    if each is None or length is None:
        return None
    if each < 1:
        raise ctx.fail(f"pieces of {each} elements")
    if -(-length // each) > _MOST_PIECES:
        return None
    return [const(min(each, length - at)) for at in range(0, length, each)]


# ---- reading lists -------------------------------------------------------------------------------


def _at(ctx: NodeContext) -> Results:
    sequence = _list(ctx)
    where, at = _position(ctx, 1)
    if sequence.items is not None and at is not None:
        return sequence.items[_place(ctx, at, len(sequence.items), len(sequence.items))]
    type = entry_type(ctx, _kind(sequence))
    return ctx.emit("list_at", sequence, where, type=type)


def _length(ctx: NodeContext) -> Results:
    sequence = _list(ctx)
    if sequence.items is not None:
        return ctx.size_scalar(len(sequence.items))
    return ctx.emit("list_length", sequence)


def _concat(ctx: NodeContext) -> Results:
    sequence, new_axis = _list(ctx), ctx.flag("new_axis")
    if sequence.items is not None:
        if not sequence.items:
            raise ctx.fail("the sequence is empty")
        rank = sequence.items[0].rank + new_axis
        axis = ctx.axis_of("axis", rank)
        parts = [ctx.unsqueeze(item, axis) if new_axis else item for item in sequence.items]
        return ctx.concat(parts, axis)
    one = entry_type(ctx, _kind(sequence))
    axis = ctx.axis_of("axis", one.rank + new_axis)
    dims = list(one.shape)
    joined_size = ctx.session.fresh_symbol("joined")
    if new_axis:
        dims.insert(axis, joined_size)
    else:
        dims[axis] = joined_size
    type = TensorType(one.dtype, tuple(dims))
    return ctx.emit("list_concat", sequence, axis=axis, new_axis=new_axis, type=type)


# ---- optionals -----------------------------------------------------------------------------------


def _optional(ctx: NodeContext) -> Results:
    given = ctx.optional(0)
    if given is not None:
        return known_list(ctx, [given], given.dtype, True)
    if not ctx.has("type"):
        raise ctx.fail("it has neither an element nor a type")
    whole = onnx.helper.make_optional_type_proto(ctx._attributes["type"].tp)
    kind = list_type(whole, ctx.loc)
    return Operand(TensorType(kind, ()), ctx.scope, ctx.node.output[0], items=())


def _has_element(ctx: NodeContext) -> Results:
    given = ctx.optional(0)
    if given is None:
        return ctx.filled(False, BOOL)
    if not isinstance(given.dtype, ListType) or not given.dtype.optional:
        return ctx.filled(True, BOOL)
    if given.items is not None:
        return ctx.filled(bool(given.items), BOOL)
    return ctx.emit("list_length", given) > 0


def _get_element(ctx: NodeContext) -> Results:
    given = ctx.input(0)
    if not isinstance(given.dtype, ListType) or not given.dtype.optional:
        return given
    if given.items is not None:
        if not given.items:
            raise ctx.fail("the optional is empty")
        return given.items[0]
    return ctx.emit("list_at", given, type=entry_type(ctx, given.dtype))


def coerced(ctx: NodeContext, operand: Operand, due: DType) -> Operand:
    """A value as an optional where one is due."""
    if isinstance(due, ListType) and due.optional and operand.dtype is not due:
        inner = operand.dtype
        if not (isinstance(inner, ListType) and inner.optional):
            return known_list(ctx, [operand], inner, True)
    return operand


CONVERTERS: Converters = {
    "SequenceConstruct": _construct,
    "SequenceEmpty": lambda ctx: known_list(ctx, (), ctx.dtype("dtype", F32), False),
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": _length,
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
    "Optional": _optional,
    "OptionalHasElement": _has_element,
    "OptionalGetElement": _get_element,
}
