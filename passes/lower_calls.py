"""Nodes that C functions of the runtime compute become calls; sizes that data decide are bound.

    %i = non_zero(%x) : i64[2,k]      call non_zero_count(x) -> r7 ; k = r7 ; allocate i ; call
                                      non_zero(x) -> i

What each function takes is in the head of its file in runtime/src/ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from tcc.errors import InternalError
from tcc.ir.graph import Node, Value
from tcc.ir.index import Index, as_int, const, minimum, var_of
from tcc.ir.op import Array
from tcc.ir.program import BufferId, CallOp, Check, ReadInt, Register, Relation, TensorRef
from tcc.ir.types import DType, dtype_of, element_count
from tcc.ops.data_dependent import BindSizeAttrs
from tcc.ops.indexing import REDUCTIONS
from tcc.ops.sizes import RequireAttrs
from tcc.passes.lower_graph import Frame, check_facts

Lower = Callable[[Frame, Node], None]


def _operand(node: Node, number: int) -> Value:
    value = node.inputs[number]
    if value is None:
        raise InternalError(f"{node.op.name} has no operand {number}", where=node.loc)
    return value


def _emit(
    frame: Frame,
    name: str,
    inputs: tuple[TensorRef, ...],
    outputs: tuple[TensorRef, ...],
    ints: tuple[int, ...] = (),
    results: tuple[Register, ...] = (),
) -> None:
    frame.out.append(CallOp(name, inputs, outputs, ints, results))


def _define(frame: Frame, value: Value) -> TensorRef:
    return frame.tensor(value, frame.define(value))


# ---- sizes that data decide ---------------------------------------------------------------------


def _bind(frame: Frame, size: Index, register: Register, loc: str) -> None:
    """`size` is `register` from here on; where it is known already, they must be equal."""
    var = var_of(size)
    if var is None or frame.registers.bound(var.name):
        message = f"{loc}: {size.key} is due"
        frame.out.append(Check(Relation.EQ, register, frame.size(size), message))
        return
    frame.registers.bind(var.name, register, late=True)
    check_facts(frame, f"{loc}, size {var.name}", var, register)


def lower_bind_size(frame: Frame, node: Node) -> None:
    """One element of a tensor becomes a size."""
    attrs: BindSizeAttrs = node.attrs
    value = _operand(node, 0)
    register = frame.registers.fresh()
    frame.out.append(ReadInt(register, frame.read(value), value.type.dtype, attrs.element))
    _bind(frame, attrs.symbol, register, node.loc)


def lower_require(frame: Frame, node: Node) -> None:
    """A demand on sizes is checked where it stands."""
    attrs: RequireAttrs = node.attrs
    left, right = frame.size(attrs.left), frame.size(attrs.right)
    message = f"{node.loc}: {attrs.left.key} must be {attrs.right.key}, because {attrs.reason}"
    frame.out.append(Check(Relation.EQ, left, right, message))


def _counted(frame: Frame, node: Node, ints: tuple[int, ...]) -> None:
    """Calls the function that counts, binds the size, and calls the one that writes."""
    inputs = tuple(frame.tensor(v) for v in node.inputs if v is not None)
    count = frame.registers.fresh()
    _emit(frame, f"{node.op.call}_count", inputs, (), ints, (count,))
    _bind(frame, node.attrs.size, count, node.loc)
    _emit(frame, str(node.op.call), inputs, (_define(frame, node.outputs[0]),), ints)


def _non_zero(frame: Frame, node: Node) -> None:
    _counted(frame, node, ())


def _compress(frame: Frame, node: Node) -> None:
    axis = node.attrs.axis
    _counted(frame, node, (-1 if axis is None else axis,))


def _room(
    frame: Frame, shape: tuple[Index, ...], dtype: DType, label: str
) -> tuple[BufferId, TensorRef]:
    """A buffer for the largest result there can be, and that result as a tensor."""
    buffer = frame.temporary(element_count(shape) * dtype.bytes, label)
    return buffer, TensorRef(buffer, dtype, tuple(frame.size(d) for d in shape))


def _keep(frame: Frame, value: Value, room: BufferId) -> None:
    """The front of `room` is `value`, whose size is known by now."""
    if value not in frame.targets:
        frame.buffers[value] = room
        return
    frame.copy(frame.define(value), room, value.type)


def _unique(frame: Frame, node: Node) -> None:
    x, axis = _operand(node, 0), node.attrs.axis
    length = element_count(x.type.shape) if axis is None else x.type.shape[axis]
    values, first, inverse, counts = node.outputs
    rooms = {values: _room(frame, x.type.shape, x.type.dtype, values.name)}
    for value in (first, counts):
        rooms[value] = _room(frame, (length,), value.type.dtype, value.name)
    places = _define(frame, inverse)
    outputs = (rooms[values][1], rooms[first][1], places, rooms[counts][1])
    ints = (-1 if axis is None else axis, int(node.attrs.sorted))
    count = frame.registers.fresh()
    _emit(frame, "unique", (frame.tensor(x),), outputs, ints, (count,))
    _bind(frame, node.attrs.size, count, node.loc)
    for value, (buffer, _) in rooms.items():
        _keep(frame, value, buffer)


def _limit(frame: Frame, node: Node, number: int, default: Array) -> TensorRef:
    value = node.inputs[number] if number < len(node.inputs) else None
    if value is not None:
        return frame.tensor(value)
    return TensorRef(frame.literal(default), dtype_of(default), ())


def _non_max_suppression(frame: Frame, node: Node) -> None:
    boxes, scores = _operand(node, 0), _operand(node, 1)
    limits = (
        _limit(frame, node, 2, np.asarray(0, np.int64)),
        _limit(frame, node, 3, np.asarray(0, np.float32)),
        _limit(frame, node, 4, np.asarray(-math.inf, np.float32)),
    )
    batch, kinds, each = scores.type.shape
    given = node.inputs[2] if len(node.inputs) > 2 else None
    graph = None if given is None else frame.constants.get(given)
    most = None if graph is None else graph.constant(given)
    if most is not None:
        each = minimum(each, const(max(int(most.reshape(())), 0)))
    (value,) = node.outputs
    shape = (batch * kinds * each, const(3))
    buffer, room = _room(frame, shape, value.type.dtype, value.name)
    count = frame.registers.fresh()
    inputs = (frame.tensor(boxes), frame.tensor(scores), *limits)
    ints = (node.attrs.center_point_box,)
    _emit(frame, "non_max_suppression", inputs, (room,), ints, (count,))
    _bind(frame, node.attrs.size, count, node.loc)
    _keep(frame, value, buffer)


# ---- sizes that are known -----------------------------------------------------------------------


def _top_k(frame: Frame, node: Node) -> None:
    attrs, x = node.attrs, _operand(node, 0)
    k, extent = frame.size(attrs.k), frame.size(x.type.shape[attrs.axis])
    if as_int(attrs.k) is None or as_int(x.type.shape[attrs.axis]) is None:
        message = f"{node.loc}: k is larger than the axis"
        frame.out.append(Check(Relation.LE, k, extent, message))
    inputs = (frame.tensor(x),)
    outputs = tuple(_define(frame, v) for v in node.outputs)
    ints = (attrs.axis, int(attrs.largest), int(attrs.sorted))
    _emit(frame, "top_k", inputs, outputs, ints)


def _scatter(frame: Frame, node: Node) -> None:
    """The functions update their output, which is a copy of x or x itself."""
    x, indices, updates = (_operand(node, n) for n in range(3))
    source, inputs = frame.read(x), (frame.tensor(indices), frame.tensor(updates))
    output = _define(frame, node.outputs[0])
    frame.copy(output.buffer, source, x.type)
    reduction = REDUCTIONS.index(node.attrs.reduction)
    axes = (node.attrs.axis,) if node.op.name == "scatter_elements" else ()
    _emit(frame, str(node.op.call), inputs, (output,), (*axes, reduction))


def _max_unpool(frame: Frame, node: Node) -> None:
    inputs = tuple(frame.tensor(_operand(node, n)) for n in range(2))
    _emit(frame, "max_unpool", inputs, (_define(frame, node.outputs[0]),))


CALLS: Mapping[str, Lower] = MappingProxyType(
    {
        "top_k": _top_k,
        "non_zero": _non_zero,
        "compress": _compress,
        "unique": _unique,
        "non_max_suppression": _non_max_suppression,
        "scatter_elements": _scatter,
        "scatter_nd": _scatter,
        "max_unpool": _max_unpool,
    }
)
