"""Nodes that C functions of the runtime compute become calls; sizes that data decide are bound.

    %i = non_zero(%x) : i64[2,k]      call non_zero_count(x) -> r7 ; k = r7 ; allocate i ; call
                                      non_zero(x) -> i

What each function takes is in the head of its file in runtime/src/ops.  Attributes are passed as
integers; a float as the bits of a double.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from tcc.errors import InternalError
from tcc.ir.expr import ExprBuilder
from tcc.ir.graph import Node, Value
from tcc.ir.index import Index, as_int, const, nonnegative, var_of
from tcc.ir.layout import part_of, row_major
from tcc.ir.program import CallOp, Check, ReadInt, Register, Relation, TensorRef
from tcc.ir.types import element_count, integer_limits
from tcc.ops.data.data_dependent import BindSizeAttrs
from tcc.ops.data.indexing import REDUCTIONS
from tcc.ops.sizes import BroadcastSizeAttrs, CheckIndicesAttrs, RequireAttrs
from tcc.passes.layout.assign import Kernel
from tcc.passes.program.lower_graph import GraphLowering, check_facts

Lower = Callable[[GraphLowering, Node], None]


def _operand(node: Node, number: int) -> Value:
    value = node.inputs[number]
    if value is None:
        raise InternalError(f"{node.op.name} has no operand {number}", where=node.loc)
    return value


def call(
    frame: GraphLowering,
    name: str,
    inputs: tuple[TensorRef, ...],
    outputs: tuple[TensorRef, ...],
    ints: tuple[int, ...] = (),
    results: tuple[Register, ...] = (),
) -> None:
    """Emits the call of a C function."""
    frame.out.append(CallOp(name, inputs, outputs, ints, results))


def define(frame: GraphLowering, value: Value) -> TensorRef:
    """The array that a result is written to."""
    return frame.tensor(value, frame.define(value))


# ---- sizes that data decide ---------------------------------------------------------------------


def bind(frame: GraphLowering, size: Index, register: Register, loc: str, least: int = 0) -> None:
    """`size` is `register` from here on; where it is known already, they must be equal.  `least` is
    as of `check_facts`."""
    var = var_of(size)
    if var is None or frame.registers.bound(var.name):
        message = f"{loc}: {size.key} is due"
        frame.out.append(Check(Relation.EQ, register, frame.size(size), message))
        return
    frame.registers.bind(var.name, register, late=True)
    check_facts(frame, f"{loc}, size {var.name}", var, register, least)


def lower_bind_size(frame: GraphLowering, node: Node) -> None:
    """One element of a tensor becomes a size."""
    attrs: BindSizeAttrs = node.attrs
    value = _operand(node, 0)
    register = frame.registers.fresh()
    frame.out.append(ReadInt(register, frame.read(value), value.type.dtype, attrs.element))
    # What is read may be any number, unlike the size of an array.
    least = 0 if attrs.signed else integer_limits(value.type.dtype)[0]
    bind(frame, attrs.symbol, register, node.loc, least)


def lower_require(frame: GraphLowering, node: Node) -> None:
    """A demand on sizes is checked where it stands."""
    attrs: RequireAttrs = node.attrs
    if attrs.left is attrs.due:
        return
    left, right = frame.size(attrs.left), frame.size(attrs.due)
    message = f"{node.loc}: {attrs.text}, because {attrs.reason}"
    frame.out.append(Check(Relation.EQ, left, right, message))


def lower_broadcast_size(frame: GraphLowering, node: Node) -> None:
    """The size to which two broadcast; where these are known at entry, so is it."""
    attrs: BroadcastSizeAttrs = node.attrs
    var = var_of(attrs.symbol)
    assert var is not None
    late = frame.registers.is_late(attrs.value)
    top = frame.top or frame
    for owner in (frame,) if late else (top, frame):
        owner.registers.bind(var.name, owner.size(attrs.value), late=late)


def lower_check_indices(frame: GraphLowering, node: Node) -> None:
    """The least and the largest index are looked at before anything is read there."""
    attrs: CheckIndicesAttrs = node.attrs
    least, largest = frame.registers.fresh(), frame.registers.fresh()
    operands = (frame.tensor(_operand(node, 0)),)
    call(frame, "index_range", operands, (), (attrs.period, attrs.number), (least, largest))
    low, high = frame.size(attrs.least), frame.size(attrs.size - 1)
    message = f"{node.loc}: {attrs.reason}"
    frame.out.append(Check(Relation.LE, low, least, message))
    frame.out.append(Check(Relation.LE, largest, high, message))


def _counted(frame: GraphLowering, node: Node, ints: tuple[int, ...]) -> None:
    """Calls the function that counts, binds the size, and calls the one that writes."""
    inputs = tuple(frame.tensor(v) for v in node.inputs if v is not None)
    count = frame.registers.fresh()
    call(frame, f"{node.op.call}_count", inputs, (), ints, (count,))
    bind(frame, node.attrs.size, count, node.loc)
    outputs = tuple(define(frame, v) for v in node.outputs)
    call(frame, str(node.op.call), inputs, outputs, ints)


def _non_zero(frame: GraphLowering, node: Node) -> None:
    _counted(frame, node, ())


def _compress(frame: GraphLowering, node: Node) -> None:
    axis = node.attrs.axis
    _counted(frame, node, (-1 if axis is None else axis,))


def _unique(frame: GraphLowering, node: Node) -> None:
    axis = node.attrs.axis
    _counted(frame, node, (-1 if axis is None else axis, int(node.attrs.sorted)))


def _non_max_suppression(frame: GraphLowering, node: Node) -> None:
    given = sum(1 << n for n, value in enumerate(node.inputs[2:]) if value is not None)
    _counted(frame, node, (node.attrs.center_point_box, given))


# ---- sizes that are known -----------------------------------------------------------------------


def _top_k(frame: GraphLowering, node: Node) -> None:
    attrs, x = node.attrs, _operand(node, 0)
    k, extent = frame.size(attrs.k), frame.size(x.type.shape[attrs.axis])
    if as_int(attrs.k) is None or as_int(x.type.shape[attrs.axis]) is None:
        message = f"{node.loc}: k is larger than the axis"
        frame.out.append(Check(Relation.LE, k, extent, message))
    inputs = (frame.tensor(x),)
    outputs = tuple(define(frame, v) for v in node.outputs)
    ints = (attrs.axis, int(attrs.largest), int(attrs.sorted))
    call(frame, "top_k", inputs, outputs, ints)


def _scatter(frame: GraphLowering, node: Node) -> None:
    """The output may have the memory of x, which is then updated in place."""
    inputs = tuple(frame.tensor(_operand(node, n)) for n in range(3))
    reduction = REDUCTIONS.index(node.attrs.reduction)
    axes = (node.attrs.axis,) if node.op.name == "scatter_elements" else ()
    call(frame, str(node.op.call), inputs, (define(frame, node.outputs[0]),), (*axes, reduction))


def _update_slice(frame: GraphLowering, node: Node) -> None:
    """The output may have the memory of x, which is then updated in place."""
    if frame.context.planner.updates:
        _update_by_kernel(frame, node)
        return
    x, update = (frame.tensor(_operand(node, n)) for n in range(2))
    axis, start = node.attrs.axis, frame.size(node.attrs.start)
    front = replace(x, dims=(*x.dims[:axis], start, *x.dims[axis + 1 :]))
    call(frame, "update_slice", (x, update, front), (define(frame, node.outputs[0]),), (axis,))


def _update_by_kernel(frame: GraphLowering, node: Node) -> None:
    """A kernel stores the update's elements as a part of the output; x is copied where it does not
    lie there already."""
    x, update, y = _operand(node, 0), _operand(node, 1), node.outputs[0]
    axis, start = node.attrs.axis, node.attrs.start
    behind = x.type.shape[axis] - start - update.type.shape[axis]
    if not nonnegative(behind):
        least = frame.size(const(0))
        message = f"{node.loc}: the rows do not fit behind those that are there"
        frame.out.append(Check(Relation.LE, least, frame.size(behind), message))
    target = frame.define(y)
    if (y, x) not in frame.placed.graph.aliases:
        frame.copy(target, frame.read(x), x.type)
    if as_int(element_count(update.type.shape)) == 0:
        return
    builder = ExprBuilder(update.type)
    at = builder.iters(*update.type.shape)
    builder.stage(at, builder.read(0, *at))
    part = Value(f"{y.name}.rows", update.type)
    where = part_of(row_major(x.type.shape), update.type.shape, axis, start)
    kernel = Kernel(builder.done(), (update,), (part,), node.loc)
    layouts = {**frame.layouts, part: where}
    planned = frame.context.planner.plan(kernel, layouts, frame.handles)
    ((_, stored),) = planned.operands
    frame.run(planned, (frame.read(update, stored), target))


def _bit_cast(frame: GraphLowering, node: Node) -> None:
    x = _operand(node, 0)
    frame.copy(frame.define(node.outputs[0]), frame.read(x), x.type)


def _plain(frame: GraphLowering, node: Node) -> None:
    """The function of the op's own name, which takes its operands and no numbers."""
    inputs = tuple(frame.tensor(_operand(node, n)) for n in range(len(node.inputs)))
    outputs = tuple(define(frame, value) for value in node.outputs)
    call(frame, node.op.name, inputs, outputs)


def _solve_triangular(frame: GraphLowering, node: Node) -> None:
    inputs = tuple(frame.tensor(_operand(node, n)) for n in range(2))
    ints = (int(node.attrs.upper), int(node.attrs.unit))
    call(frame, "solve_triangular", inputs, (define(frame, node.outputs[0]),), ints)


def _running(frame: GraphLowering, node: Node) -> None:
    attrs, x = node.attrs, frame.tensor(_operand(node, 0))
    ints = (attrs.axis, int(attrs.exclusive), int(attrs.reverse), int(node.op.name == "cum_prod"))
    call(frame, "running", (x,), (define(frame, node.outputs[0]),), ints)


def _bits(value: float) -> int:
    """The bits of `value` as a double, as a signed integer."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


def _roi_align(frame: GraphLowering, node: Node) -> None:
    attrs = node.attrs
    inputs = tuple(frame.tensor(_operand(node, n)) for n in range(3))
    choices = (int(attrs.mode == "max"), attrs.sampling_ratio, int(attrs.half_pixel))
    ints = (*choices, _bits(attrs.spatial_scale))
    call(frame, "roi_align", inputs, (define(frame, node.outputs[0]),), ints)


def _max_roi_pool(frame: GraphLowering, node: Node) -> None:
    inputs = tuple(frame.tensor(_operand(node, n)) for n in range(2))
    ints = (_bits(node.attrs.spatial_scale),)
    call(frame, "max_roi_pool", inputs, (define(frame, node.outputs[0]),), ints)


# Of these, what devices without functions of the host compute by kernels.
BY_KERNELS = frozenset({"update_slice", "bit_cast"})
CALLS: Mapping[str, Lower] = MappingProxyType(
    {
        "top_k": _top_k,
        "non_zero": _non_zero,
        "compress": _compress,
        "unique": _unique,
        "non_max_suppression": _non_max_suppression,
        "scatter_elements": _scatter,
        "scatter_nd": _scatter,
        "update_slice": _update_slice,
        "bit_cast": _bit_cast,
        "cum_sum": _running,
        "cum_prod": _running,
        **dict.fromkeys(
            ("max_unpool", "det", "lu", "pivot_order", "cholesky", "qr", "svd"), _plain
        ),
        "solve_triangular": _solve_triangular,
        "roi_align": _roi_align,
        "max_roi_pool": _max_roi_pool,
    }
)
