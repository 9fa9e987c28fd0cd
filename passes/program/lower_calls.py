"""Lowers nodes to calls of C functions of the runtime, and binds data-dependent sizes.

    %i = non_zero(%x) : i64[2,k]      call non_zero_count(x) -> r7 ; k = r7 ; allocate i ; call
                                      non_zero(x) -> i

The head of each file in runtime/src/ops describes the arguments of its functions.  Attributes are
passed as integers.  A float is passed as the bits of a double.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

from tcc.ir.graph import Node, Value
from tcc.ir.index import Index, as_int, nonnegative, var_of
from tcc.ir.layout import part_of
from tcc.ir.op import Array
from tcc.ir.program import CallOp, ReadInt, Register, Registers, Relation, TensorRef
from tcc.ir.types import dtype_of, integer_limits
from tcc.ops.data.data_dependent import BindSizeAttrs
from tcc.ops.data.indexing import REDUCTIONS
from tcc.ops.shapes import replaced
from tcc.ops.sizes import BroadcastSizeAttrs, CheckIndicesAttrs, NameSizeAttrs, RequireAttrs
from tcc.passes.layout.assign import copy_of
from tcc.passes.program.lower_graph import GraphLowering, check_facts

Lower: TypeAlias = Callable[[GraphLowering, Node], None]
# Functions that take an op's attributes. They return the integers of a call, its constant arrays,
# and the sizes of its results.
Numbers: TypeAlias = Callable[[Any], Iterable[int]]
Tables: TypeAlias = Callable[[Any], Iterable[Array]]
Sizes: TypeAlias = Callable[[Any], Iterable[Index]]


def _operand(node: Node, number: int) -> Value:
    value = node.inputs[number]
    assert value is not None
    return value


def call(
    frame: GraphLowering,
    name: str,
    inputs: tuple[TensorRef, ...],
    outputs: tuple[TensorRef, ...],
    ints: tuple[int, ...] = (),
    results: Registers = (),
) -> None:
    """Emits the call of the runtime's C function `name`.

    `ints` are its integer arguments.  It writes integer results, such as sizes, to the registers
    `results`.
    """
    frame.out.append(CallOp(name, inputs, outputs, ints, results))


def operands(frame: GraphLowering, node: Node) -> tuple[TensorRef, ...]:
    """Returns the operands of a node; optional operands that are absent are left out."""
    return tuple(frame.tensor(v) for v in node.inputs if v)


def _results(frame: GraphLowering, node: Node) -> tuple[TensorRef, ...]:
    """Returns references to the buffers of a node's results."""
    return tuple(frame.tensor(v, frame.define(v)) for v in node.outputs)


def _literal(frame: GraphLowering, array: Array) -> TensorRef:
    """Returns an array that is known at compile time, as an argument of a call."""
    dims = tuple(frame.size(n) for n in array.shape)
    return TensorRef(frame.literal(array), dtype_of(array), dims)


def _nothing(_attrs: Any) -> tuple[()]:
    return ()


def plain(numbers: Numbers = _nothing, tables: Tables = _nothing) -> Lower:
    """Returns a function that lowers a node to a call of its op's C function.

    The call's inputs are the node's operands, then `tables`.  Its outputs are the node's results.
    Its integers are `numbers`.
    """

    def lower(frame: GraphLowering, node: Node) -> None:
        inputs = operands(frame, node)
        literals = tuple(_literal(frame, table) for table in tables(node.attrs))
        ints = tuple(map(int, numbers(node.attrs)))
        call(frame, str(node.op.call), (*inputs, *literals), _results(frame, node), ints)

    return lower


def _size(attrs: Any) -> tuple[Index]:
    return (attrs.size,)


def sized(function: str, numbers: Numbers = _nothing, sizes: Sizes = _size) -> Lower:
    """Returns a function that lowers a node whose results have data-dependent sizes.

    It emits two calls.  The first calls the C function `function`, and binds `sizes` to its integer
    results.  The second calls the op's C function, which computes the node's results.
    """

    def lower(frame: GraphLowering, node: Node) -> None:
        inputs, ints = operands(frame, node), tuple(map(int, numbers(node.attrs)))
        size_registers = {frame.registers.fresh(): size for size in sizes(node.attrs)}
        call(frame, function, inputs, (), ints, tuple(size_registers))
        for register, size in size_registers.items():
            bind(frame, size, register, node.loc)
        call(frame, str(node.op.call), inputs, _results(frame, node), ints)

    return lower


# ---- data-dependent sizes -----------------------------------------------------------------------


def bind(
    frame: GraphLowering, size: Index, register: Register, loc: str, lower_bound: int = 0
) -> None:
    """Binds the symbol `size` to the value in `register`, and emits checks of the symbol's bounds.

    If `size` is a bound symbol or an expression, emits a check that it equals the value.  The value
    is known to be at least `lower_bound`, so a bound below that is not checked.  `loc` is the
    node's location, for error messages.
    """
    var = var_of(size)
    if var is None or frame.registers.bound(var.name):
        message = f"{loc}: {size.key} is due"
        frame.check(Relation.EQ, register, frame.size(size), message)
        return
    frame.registers.bind(var.name, register, late=True)
    check_facts(frame, f"{loc}, size {var.name}", var, register, lower_bound)


def lower_bind_size(frame: GraphLowering, node: Node) -> None:
    """Binds a size to an element of a tensor; the host reads the element during the run."""
    attrs: BindSizeAttrs = node.attrs
    value = _operand(node, 0)
    register = frame.registers.fresh()
    frame.out.append(ReadInt(register, frame.read(value), value.dtype, attrs.element))
    # An element may be negative, unlike the size of an array.
    lower_bound = 0 if attrs.signed else integer_limits(value.dtype)[0]
    bind(frame, attrs.symbol, register, node.loc, lower_bound)


def lower_require(frame: GraphLowering, node: Node) -> None:
    """Emits the check of a `require` node: two sizes are equal."""
    attrs: RequireAttrs = node.attrs
    if attrs.left is attrs.due:
        return
    actual, due = frame.size(attrs.left), frame.size(attrs.due)
    frame.check(Relation.EQ, actual, due, f"{node.loc}: {attrs.text}, because {attrs.reason}")


def lower_named_size(frame: GraphLowering, node: Node) -> None:
    """Defines the symbol of a named size by its formula.

    If the formula depends on no data, the symbol is also defined at the entry of the program.
    """
    attrs: BroadcastSizeAttrs | NameSizeAttrs = node.attrs
    var = var_of(attrs.symbol)
    assert var is not None
    top = frame.top or frame
    for owner in (frame,) if frame.registers.is_late(attrs.value) else (top, frame):
        owner.registers.define(var.name, attrs.value)


def lower_check_indices(frame: GraphLowering, node: Node) -> None:
    """Emits checks of the smallest and the largest index, before any gather uses the indices."""
    attrs: CheckIndicesAttrs = node.attrs
    smallest, largest = frame.registers.fresh(), frame.registers.fresh()
    first, last = as_int(attrs.least), as_int(attrs.size - 1)
    # `index_range` is faster if it gets the range of valid indices. If the range is symbolic, it
    # gets the empty range 0 to -1, which means that the range is unknown.
    inside = (0, -1) if first is None or last is None else (first, last)
    ints = (attrs.period, attrs.number, *inside)
    call(frame, "index_range", operands(frame, node), (), ints, (smallest, largest))
    low, high = frame.size(attrs.least), frame.size(attrs.size - 1)
    message = f"{node.loc}: {attrs.reason}"
    frame.check(Relation.LE, low, smallest, message)
    frame.check(Relation.LE, largest, high, message)


def _axis_or_all(attrs: Any) -> int:
    return -1 if attrs.axis is None else attrs.axis


def _non_max_suppression(frame: GraphLowering, node: Node) -> None:
    present = sum(1 << n for n, value in enumerate(node.inputs[2:]) if value)
    sized("non_max_suppression_count", lambda a: (a.center_point_box, present))(frame, node)


# ---- sizes that do not depend on data -----------------------------------------------------------


def _top_k(frame: GraphLowering, node: Node) -> None:
    attrs, x = node.attrs, _operand(node, 0)
    k, extent = frame.size(attrs.k), frame.size(x.shape[attrs.axis])
    if as_int(attrs.k) is None or as_int(x.shape[attrs.axis]) is None:
        frame.check(Relation.LE, k, extent, f"{node.loc}: k is larger than the axis")
    plain(lambda a: (a.axis, a.largest, a.sorted))(frame, node)


def _update_slice(frame: GraphLowering, node: Node) -> None:
    """Lowers the replacement of a slice of operand 0.

    The output may share the memory of operand 0, which is then updated in place.
    """
    if frame.context.planner.updates or frame.layout(_operand(node, 0)).shared:
        _update_by_kernel(frame, node)
        return
    x, update = (frame.tensor(_operand(node, n)) for n in range(2))
    axis, start = node.attrs.axis, frame.size(node.attrs.start)
    front = replace(x, dims=replaced(x.dims, axis, start))
    call(frame, "update_slice", (x, update, front), _results(frame, node), (axis,))


def _update_by_kernel(frame: GraphLowering, node: Node) -> None:
    """Emits a copy of operand 0 to the output, then a kernel that stores the update in it.

    There is no copy if operand 0 and the output share memory.
    """
    x, update, y = _operand(node, 0), _operand(node, 1), node.result
    axis, start = node.attrs.axis, node.attrs.start
    behind = x.shape[axis] - start - update.shape[axis]
    if not nonnegative(behind):
        zero = frame.size(0)
        message = f"{node.loc}: the rows do not fit behind those that are there"
        frame.check(Relation.LE, zero, frame.size(behind), message)
    target = frame.define(y)
    if (y, x) not in frame.placed.graph.aliases:
        frame.copy(target, frame.read(x), x.type)
    if update.type.count == 0:
        return
    part = Value(f"{y.name}.rows", update.type)
    layouts = {**frame.layouts, part: part_of(frame.layout(x), update.shape, axis, start)}
    planned = frame.context.planner.plan(copy_of(update, part, node.loc), layouts, frame.handles)
    ((_, layout),) = planned.operands
    frame.run(planned, (frame.read(update, layout), target))


def _bit_cast(frame: GraphLowering, node: Node) -> None:
    x = _operand(node, 0)
    frame.copy(frame.define(node.result), frame.read(x), x.type)


def _bits(value: float) -> int:
    """Returns the bits of `value` as a double, as a signed integer."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


def _reduction(attrs: Any) -> int:
    return REDUCTIONS.index(attrs.reduction)


def _running(multiplies: bool) -> Lower:
    return plain(lambda a: (a.axis, a.exclusive, a.reverse, multiplies))


# The ops of `CALLS` that targets without C functions compute by kernels.
BY_KERNELS = frozenset({"update_slice", "bit_cast"})
CALLS: Mapping[str, Lower] = MappingProxyType(
    {
        "top_k": _top_k,
        "non_zero": sized("non_zero_count"),
        "compress": sized("compress_count", lambda a: (_axis_or_all(a),)),
        "unique": sized("unique_count", lambda a: (_axis_or_all(a), a.sorted)),
        "non_max_suppression": _non_max_suppression,
        # The output of a scatter may share the memory of x, which is then updated in place.
        "scatter_elements": plain(lambda a: (a.axis, _reduction(a))),
        **dict.fromkeys(("scatter_nd", "scatter_rows"), plain(lambda a: (_reduction(a),))),
        "update_slice": _update_slice,
        "bit_cast": _bit_cast,
        "cum_sum": _running(multiplies=False),
        "cum_prod": _running(multiplies=True),
        **dict.fromkeys("max_unpool det lu pivot_order cholesky qr svd".split(), plain()),
        "solve_triangular": plain(lambda a: (a.upper, a.unit)),
        "roi_align": plain(
            lambda a: (a.mode == "max", a.sampling_ratio, a.half_pixel, _bits(a.spatial_scale))
        ),
        "max_roi_pool": plain(lambda a: (_bits(a.spatial_scale),)),
    }
)
