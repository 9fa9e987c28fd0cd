"""Lowers If, Loop and Scan to branches and loops of the program.

    %y = scan(%h0, %x){body}       copy h <- h0 ; loop t < n { x_t = view x + t*size ; body ;
                                                              copy y[t] <- h' ; copy h <- h' }

Bodies are lowered like graphs, into the instruction list of their branch or loop.  A value that a
loop carries has one buffer for all iterations.  Slices of scanned operands are views, not copies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tcc.errors import UserError
from tcc.ir.graph import Graph, Node, Value
from tcc.ir.index import Index, const, free_vars, var_of
from tcc.ir.program import (
    Alias,
    Allocate,
    Branch,
    BufferId,
    Dynamic,
    IntOp,
    Loop,
    ReadInt,
    Register,
    Relation,
    View,
)
from tcc.ir.types import BOOL, I64, TensorType
from tcc.ops.control import IfAttrs, LoopAttrs, ScanAttrs
from tcc.passes.program.loop_carried import (
    Carried,
    begin_trip,
    carry,
    define_carried,
    fill_rows,
    next_trip,
    store_rows,
    trip_index,
)
from tcc.passes.program.lower_graph import GraphLowering, byte_count
from tcc.zipped import zip_equal

_FOREVER = (1 << 63) - 1


def lower_if(frame: GraphLowering, node: Node) -> None:
    """Lowers If.

    Both branches copy their results to the same buffers.  A size of a result that differs between
    the branches has a register, which each branch sets.
    """
    attrs: IfAttrs = node.attrs
    condition = node.inputs[0]
    assert condition is not None
    late = [v for v in node.outputs if _fresh_sizes(frame, v.type)]
    names = dict.fromkeys(n for v in late for n in _fresh_sizes(frame, v.type))
    registers = {name: frame.registers.fresh() for name in names}
    targets = {
        value: frame.new_buffer(Dynamic(), value.name)
        if value in late
        else frame.temporary(byte_count(value.type), value.name)
        for value in node.outputs
    }
    branches = []
    for body in (attrs.then, attrs.otherwise):
        inner = frame.child(body)
        inner.steps()
        for result, value in zip_equal(body.outputs, node.outputs):
            _bind_branch_sizes(inner, registers, value.type, result.type)
            if value in late:
                size = inner.size(byte_count(result.type))
                inner.out.append(Allocate(targets[value], size))
            inner.copy(targets[value], inner.read(result), result.type)
        branches.append(tuple(inner.out))
    frame.out.append(Branch(frame.read(condition), branches[0], branches[1]))
    _bind_late(frame, registers)
    frame.buffers.update(targets)


def _fresh_sizes(frame: GraphLowering, type_: TensorType) -> list[str]:
    names = (v.name for dim in type_.shape for v in free_vars(dim))
    return [n for n in dict.fromkeys(names) if not frame.registers.bound(n)]


def _bind_late(frame: GraphLowering, registers: Mapping[str, Register]) -> None:
    for name, register in registers.items():
        frame.registers.bind(name, register, late=True)


def _bind_branch_sizes(
    inner: GraphLowering, registers: dict[str, Register], outer: TensorType, result: TensorType
) -> None:
    """Emits assignments of this branch's sizes to `registers`.

    `outer` is the type of a node's result, and `result` its type in the branch.  `registers` maps
    the symbols in `outer` that the node introduces to registers.
    """
    for dim, actual in zip_equal(outer.shape, result.shape):
        var = var_of(dim)
        if var is not None and var.name in registers:
            inner.assign(registers[var.name], inner.size(actual))


# ---- loop ---------------------------------------------------------------------------------------


def lower_loop(frame: GraphLowering, node: Node) -> None:
    """Lowers ONNX Loop.

    Its operands are a number of iterations, a condition, and initial values to carry.  Its results
    are the last carried values, and stacks with a row for each iteration.
    """
    attrs: LoopAttrs = node.attrs
    body = attrs.body
    trips_value, start, *initial = node.inputs
    trips = frame.size(_FOREVER)
    if trips_value is not None:
        trips = frame.registers.fresh()
        frame.out.append(ReadInt(trips, frame.read(trips_value), trips_value.dtype))
    carried_values = [v for v in initial if v]
    count = len(carried_values)
    results = body.outputs[1 : 1 + count]
    carried = carry(frame, carried_values, body, 2, results)
    condition = _condition(frame, body, start)
    row_values = node.outputs[count:]
    stacks = [frame.new_buffer(Dynamic(), v.name) for v in row_values]
    late = _row_sizes(frame, row_values)
    counter = frame.registers.fresh()
    inner = _inside(frame, body, carried)
    inner.buffers[body.inputs[1]] = condition if condition >= 0 else frame.true()
    # Nodes of the body that draw random numbers read `inner.trip`, so that trips differ.
    trip = inner.trip = trip_index(inner, counter)
    count_buffer = inner.temporary(const(I64.bytes), body.inputs[0].name)
    inner.store_size(trip, count_buffer)
    inner.buffers[body.inputs[0]] = count_buffer
    begin_trip(inner, results, carried, trip)
    inner.steps()
    for row, value, stack in zip_equal(body.outputs[1 + count :], row_values, stacks):
        _same_row(inner, row, value, late, counter, node)
        _append_row(inner, row, stack, counter)
    # The condition is carried from iteration to iteration too, in a single buffer.
    if condition >= 0:
        values, buffers = (body.inputs[1], *carried.values), (condition, *carried.buffers)
        flagged = replace(carried, values=values, buffers=buffers)
        next_trip(inner, body.outputs[: 1 + count], flagged)
    else:
        next_trip(inner, results, carried)
    frame.out.append(Loop(trips, condition, counter, tuple(inner.out)))
    define_carried(frame, node.outputs[:count], carried, counter)
    _bind_late(frame, late)
    for value, stack in zip_equal(row_values, stacks):
        frame.buffers[value] = stack
        first = var_of(value.shape[0])
        if first is not None and not frame.registers.bound(first.name):
            frame.registers.bind(first.name, counter, late=True)
        # Without iterations the stack of rows is empty, but it must be allocated.
        frame.out.append(Allocate(stack, frame.size(byte_count(value.type)), keep=True))


def _condition(frame: GraphLowering, body: Graph, start: Value | None) -> BufferId:
    """Returns a buffer that holds the condition before the first iteration.

    Returns -1 if the condition is always true.  `start` is the node's operand; None stands for
    true.
    """
    if start is None and _always_true(body):
        return -1
    condition = frame.temporary(const(BOOL.bytes), "condition")
    source = frame.true() if start is None else frame.read(start)
    frame.copy(condition, source, TensorType(BOOL, ()))
    return condition


def _inside(frame: GraphLowering, body: Graph, carried: Carried) -> GraphLowering:
    inner = frame.child(body)
    inner.buffers.update(zip_equal(carried.values, carried.buffers))
    _bind_late(inner, carried.sizes)
    return inner


def _row_sizes(frame: GraphLowering, values: Sequence[Value]) -> dict[str, Register]:
    """Returns registers, by symbol, for sizes of rows that are known only after an iteration.

    They start as 0, which remains if there are no iterations.
    """
    names = dict.fromkeys(
        var.name
        for dim in (dim for value in values for dim in value.shape[1:])
        if (var := var_of(dim)) and not frame.registers.bound(var.name)
    )
    return {name: frame.computed(IntOp.CONST) for name in names}


def _same_row(
    inner: GraphLowering,
    row: Value,
    value: Value,
    late: dict[str, Register],
    trip: Register,
    node: Node,
) -> None:
    """Emits checks that the rows of all iterations have equal sizes.

    `row` is the value in the body, and `value` the stack of all rows.  The first iteration sets the
    registers `late` of symbolic sizes, with which later iterations compare.  Raises UserError if
    other sizes of `row` and `value` differ.
    """
    for dim, actual in zip_equal(value.shape[1:], row.shape):
        var = var_of(dim)
        if var is not None and var.name in late:
            first_size, size = late[var.name], inner.size(actual)
            wrong = inner.computed(IntOp.MUL, inner.computed(IntOp.SUB, first_size, size), trip)
            message = f"{node.loc}: a loop stacks rows of different sizes"
            inner.check(Relation.EQ, wrong, inner.size(0), message)
            inner.assign(first_size, size)
        elif dim is not actual:
            raise UserError(
                "a loop stacks rows of different sizes",
                where=node.loc,
                why=f"rows are {row.type!r}, the result is {value.type!r}",
            )


def _always_true(body: Graph) -> bool:
    """Returns True if the body's next condition is the constant true, or its current condition."""
    array = body.constant(body.outputs[0])
    return body.outputs[0] is body.inputs[1] or bool(array is not None and array.all())


def _append_row(inner: GraphLowering, row: Value, stack: BufferId, counter: Register) -> None:
    size = inner.size(byte_count(row.type))
    offset = inner.computed(IntOp.MUL, counter, size)
    end = inner.computed(IntOp.ADD, offset, size)
    inner.out.append(Allocate(stack, end, keep=True))
    view = inner.new_buffer(Alias(), f"{row.name}.row")
    inner.out.append(View(view, stack, offset))
    inner.copy(view, inner.read(row), row.type)


# ---- scan ---------------------------------------------------------------------------------------


def lower_scan(frame: GraphLowering, node: Node) -> None:
    """Lowers ONNX Scan along first axes; the importer has transposed operands with other scan
    axes.
    """
    attrs: ScanAttrs = node.attrs
    body = attrs.body
    inputs = [v for v in node.inputs if v]
    states = len(inputs) - attrs.num_scan_inputs
    if any((*attrs.input_axes, *attrs.output_axes)):
        raise UserError("a scan along an axis other than the first", where=node.loc)
    results, rows = body.outputs[:states], body.outputs[states:]
    carried = carry(frame, inputs[:states], body, 0, results)
    length = inputs[states].shape[0]
    trips = frame.size(length)
    stacks = [frame.temporary(byte_count(v.type), v.name) for v in node.outputs[states:]]
    counter = frame.registers.fresh()
    inner = _inside(frame, body, carried)
    trip = inner.trip = trip_index(inner, counter)
    for value, sequence, back in zip_equal(
        body.inputs[states:], inputs[states:], attrs.input_reverse
    ):
        at = length - 1 - trip if back else trip
        inner.buffers[value] = _slice(inner, value, frame.read(sequence), at)
    begin_trip(inner, results, carried, trip)
    places = [
        _slice(inner, row, stack, length - 1 - trip if back else trip)
        for row, stack, back in zip_equal(rows, stacks, attrs.output_reverse)
    ]
    stored_rows = store_rows(inner, rows, places)
    inner.steps()
    fill_rows(inner, stored_rows, places)
    next_trip(inner, results, carried)
    frame.out.append(Loop(trips, -1, counter, tuple(inner.out)))
    define_carried(frame, node.outputs[:states], carried, counter)
    frame.buffers.update(zip_equal(node.outputs[states:], stacks))


def _slice(inner: GraphLowering, value: Value, base: BufferId, at: Index) -> BufferId:
    """Returns a view of entry `at` of the buffer `base`, which holds a stack of values like
    `value`.
    """
    return inner.view(base, at * byte_count(value.type), f"{value.name}.slice")
