"""If, Loop and Scan become branches and loops of the program.

    %y = scan(%h0, %x){body}       copy h <- h0 ; loop t < n { x_t = view x + t*size ; body ;
                                                              copy y[t] <- h' ; copy h <- h' }

Bodies are lowered like graphs, into the instruction list of their branch or loop.  A carried value
has one buffer for all trips; slices of scanned operands are views, not copies.
"""

from __future__ import annotations

from collections.abc import Sequence

from tcc.errors import UserError
from tcc.ir.graph import Graph, Node, Value
from tcc.ir.index import Index, const, free_vars, symbol, var_of
from tcc.ir.program import (
    Alias,
    Allocate,
    Branch,
    BufferId,
    Dynamic,
    IntOp,
    Let,
    Loop,
    ReadInt,
    Register,
    View,
)
from tcc.ir.types import BOOL, I64, TensorType, element_count
from tcc.ops.control import IfAttrs, LoopAttrs, ScanAttrs
from tcc.passes.lower_graph import Frame

_FOREVER = (1 << 63) - 1


def byte_count(type_: TensorType) -> Index:
    return element_count(type_.shape) * type_.dtype.bytes


def lower_if(frame: Frame, node: Node) -> None:
    """Both branches write their results to the same buffers; sizes that differ are bound in
    each."""
    attrs: IfAttrs = node.attrs
    condition = node.inputs[0]
    assert condition is not None
    late = [v for v in node.outputs if _fresh_sizes(frame, v.type)]
    registers = _new_sizes(frame, node.outputs)
    targets = {}
    for value in node.outputs:
        if value in late:
            targets[value] = frame.new_buffer(Dynamic(), value.name)
        else:
            targets[value] = frame.temporary(byte_count(value.type), value.name)
    branches = []
    for body in (attrs.then, attrs.otherwise):
        inner = frame.child(body)
        inner.steps()
        for result, value in zip(body.outputs, node.outputs, strict=True):
            _bind_branch_sizes(inner, registers, value.type, result.type)
            if value in late:
                size = inner.size(byte_count(result.type))
                inner.out.append(Allocate(targets[value], size))
            inner.copy(targets[value], inner.read(result), result.type)
        branches.append(tuple(inner.out))
    frame.out.append(Branch(frame.read(condition), branches[0], branches[1]))
    _bind_late(frame, registers)
    frame.buffers.update(targets)


def _fresh_sizes(frame: Frame, type_: TensorType) -> list[str]:
    names = (v.name for dim in type_.shape for v in free_vars(dim))
    return [n for n in dict.fromkeys(names) if not frame.registers.bound(n)]


def _new_sizes(frame: Frame, values: Sequence[Value]) -> dict[str, Register]:
    names = dict.fromkeys(n for v in values for n in _fresh_sizes(frame, v.type))
    return {name: frame.registers.fresh() for name in names}


def _bind_late(frame: Frame, registers: dict[str, Register]) -> None:
    for name, register in registers.items():
        frame.registers.bind(name, register, late=True)


def _bind_branch_sizes(
    inner: Frame, registers: dict[str, Register], outer: TensorType, result: TensorType
) -> None:
    """Sets the sizes that only the node's results have to what this branch produced."""
    for dim, actual in zip(outer.shape, result.shape, strict=True):
        var = var_of(dim)
        if var is not None and var.name in registers:
            zero = inner.size(const(0))
            inner.out.append(Let(registers[var.name], IntOp.ADD, inner.size(actual), zero))


# ---- loop ---------------------------------------------------------------------------------------


def lower_loop(frame: Frame, node: Node) -> None:
    """ONNX Loop: a trip count, a condition, carried values, and rows stacked from every trip."""
    attrs: LoopAttrs = node.attrs
    body = attrs.body
    trips_value, start, *initial = node.inputs
    trips = frame.size(const(_FOREVER))
    if trips_value is not None:
        trips = frame.registers.fresh()
        frame.out.append(ReadInt(trips, frame.read(trips_value), trips_value.type.dtype))
    carried = [v for v in initial if v is not None]
    buffers = _carry(frame, carried, body.inputs[2:], node)
    condition = -1
    if start is not None or not _always_true(body, body.outputs[0]):
        condition = frame.temporary(const(BOOL.bytes), "condition")
        if start is not None:
            frame.copy(condition, frame.read(start), start.type)
        else:
            frame.copy(condition, frame.true(), TensorType(BOOL, ()))
    rows = body.outputs[1 + len(carried) :]
    row_values = node.outputs[len(carried) :]
    stacks = [frame.new_buffer(Dynamic(), v.name) for v in row_values]
    counter = frame.registers.fresh()
    inner = frame.child(body)
    inner.buffers.update(zip(body.inputs[2:], buffers, strict=True))
    if condition >= 0:
        inner.buffers[body.inputs[1]] = condition
    else:
        inner.buffers[body.inputs[1]] = frame.true()
    _bind_counter(inner, body.inputs[0], counter)
    inner.steps()
    for row, stack in zip(rows, stacks, strict=True):
        _append_row(inner, row, stack, counter)
    _next_trip(inner, body.outputs[1 : 1 + len(carried)], buffers)
    if condition >= 0:
        inner.copy(condition, inner.read(body.outputs[0]), TensorType(BOOL, ()))
    frame.out.append(Loop(trips, condition, counter, tuple(inner.out)))
    for value, buffer in zip(node.outputs, (*buffers, *stacks), strict=True):
        frame.buffers[value] = buffer
    for value, stack, row in zip(row_values, stacks, rows, strict=True):
        first = var_of(value.type.shape[0])
        if first is not None and not frame.registers.bound(first.name):
            frame.registers.bind(first.name, counter, late=True)
        # A loop without trips has empty, but allocated, rows.
        frame.out.append(Allocate(stack, frame.size(byte_count(value.type)), keep=True))
        _same_row(row, value, node)


def _same_row(row: Value, value: Value, node: Node) -> None:
    if value.type.shape[1:] != row.type.shape:
        raise UserError(
            "a loop stacks rows of different sizes",
            where=node.loc,
            why=f"rows are {row.type!r}, the result is {value.type!r}",
        )


def _always_true(body: Graph, value: Value) -> bool:
    """Whether the condition that a body computes is the constant true, or handed through."""
    array = body.constant(value)
    return bool(array is not None and array.all())


def _bind_counter(inner: Frame, value: Value, counter: Register) -> None:
    name = f"trip.{counter}"
    inner.registers.bind(name, counter, late=True)
    buffer = inner.temporary(const(I64.bytes), value.name)
    inner.store_size(symbol(name), buffer)
    inner.buffers[value] = buffer


def _carry(
    frame: Frame, initial: Sequence[Value], inside: Sequence[Value], node: Node
) -> list[BufferId]:
    """One buffer for each carried value, holding its initial value."""
    buffers = []
    for value, seen in zip(initial, inside, strict=True):
        if value.type.shape != seen.type.shape:
            raise UserError(
                "a loop carries a value whose size changes from trip to trip",
                where=node.loc,
                why=f"{value.type!r} goes in, the body takes {seen.type!r}",
            )
        buffer = frame.temporary(byte_count(value.type), seen.name)
        frame.copy(buffer, frame.read(value), value.type)
        buffers.append(buffer)
    return buffers


def _next_trip(inner: Frame, results: Sequence[Value], buffers: Sequence[BufferId]) -> None:
    """Hands the body's results to the next trip; results that are carried values of others are
    saved before they are overwritten."""
    sources: list[BufferId] = []
    for value in results:
        source = inner.read(value)
        if source in buffers and buffers.index(source) != len(sources):
            saved = inner.temporary(byte_count(value.type), f"{value.name}.saved")
            inner.copy(saved, source, value.type)
            source = saved
        sources.append(source)
    for value, source, buffer in zip(results, sources, buffers, strict=True):
        if source != buffer:
            inner.copy(buffer, source, value.type)


def _append_row(inner: Frame, row: Value, stack: BufferId, counter: Register) -> None:
    size = inner.size(byte_count(row.type))
    offset = inner.registers.fresh()
    end = inner.registers.fresh()
    inner.out.append(Let(offset, IntOp.MUL, counter, size))
    inner.out.append(Let(end, IntOp.ADD, offset, size))
    inner.out.append(Allocate(stack, end, keep=True))
    view = inner.new_buffer(Alias(), f"{row.name}.row")
    inner.out.append(View(view, stack, offset))
    inner.copy(view, inner.read(row), row.type)


# ---- scan ---------------------------------------------------------------------------------------


def lower_scan(frame: Frame, node: Node) -> None:
    """ONNX Scan over leading axes (the importer transposes others)."""
    attrs: ScanAttrs = node.attrs
    body = attrs.body
    inputs = [v for v in node.inputs if v is not None]
    states = len(inputs) - attrs.num_scan_inputs
    if any((*attrs.input_axes, *attrs.output_axes)):
        raise UserError("a scan along an axis other than the first", where=node.loc)
    buffers = _carry(frame, inputs[:states], body.inputs[:states], node)
    length = inputs[states].type.shape[0]
    trips = frame.size(length)
    rows = body.outputs[states:]
    stacks = [frame.temporary(byte_count(v.type), v.name) for v in node.outputs[states:]]
    counter = frame.registers.fresh()
    inner = frame.child(body)
    inner.buffers.update(zip(body.inputs[:states], buffers, strict=True))
    inner.registers.bind(f"trip.{counter}", counter, late=True)
    trip = symbol(f"trip.{counter}")
    for value, sequence, back in zip(
        body.inputs[states:], inputs[states:], attrs.input_reverse, strict=True
    ):
        at = length - 1 - trip if back else trip
        inner.buffers[value] = _slice(inner, value, frame.read(sequence), at)
    inner.steps()
    for row, stack, back in zip(rows, stacks, attrs.output_reverse, strict=True):
        at = length - 1 - trip if back else trip
        inner.copy(_slice(inner, row, stack, at), inner.read(row), row.type)
    _next_trip(inner, body.outputs[:states], buffers)
    frame.out.append(Loop(trips, -1, counter, tuple(inner.out)))
    for value, buffer in zip(node.outputs, (*buffers, *stacks), strict=True):
        frame.buffers[value] = buffer


def _slice(inner: Frame, value: Value, base: BufferId, at: Index) -> BufferId:
    """A view of element `at` of a stack of values like `value`."""
    view = inner.new_buffer(Alias(), f"{value.name}.slice")
    inner.out.append(View(view, base, inner.size(at * byte_count(value.type))))
    return view
