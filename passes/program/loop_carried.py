"""Values that a loop carries from trip to trip, and the rows that its trips store.

    h' = f(h) ; y[t] = h'      h, h' = halves of one buffer, in turns ; launch f(h) -> h', y[t]

A kernel of the body writes its result where the next trip reads it: in the other half of a buffer,
so that nothing is copied. A value that a trip passes on unchanged, or whose size changes, has one
buffer and is copied at the end of a trip.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Value, Values
from tcc.ir.index import Index, ceildiv, symbol, var_of
from tcc.ir.program import Alias, Allocate, BufferId, Dynamic, Register, View
from tcc.passes.layout.assign import Kernel
from tcc.passes.program.lower_graph import GraphLowering, byte_count

# The alignment of each half, equal to that of whole buffers.
_ALIGN = 64


def trip_index(frame: GraphLowering, counter: Register) -> Index:
    """Returns the number of the trip; after the loop, the number of all trips."""
    name = f"trip.{counter}"
    frame.registers.bind(name, counter, late=True)
    return symbol(name)


def enter_trip(inner: GraphLowering, counter: Register) -> Index:
    """Returns the number of the trip, which random nodes of the body read."""
    inner.trip = trip_index(inner, counter)
    return inner.trip


@frozen
class Halves:
    """A buffer with room for two values that begin `distance` bytes apart; trip t reads the half of
    its parity and writes the other, through `target`."""

    buffer: BufferId
    target: BufferId
    distance: Index

    def offset(self, trip: Index) -> Index:
        return (trip % 2) * self.distance


@frozen
class Carried:
    """Values that are carried from trip to trip: their names in the body, and their buffers.

    `sizes` has, by symbol, the registers of sizes that differ from trip to trip. `halves` has the
    values written beside their old ones, by the buffer in which a trip reads them.
    """

    values: Values
    buffers: tuple[BufferId, ...]
    sizes: Mapping[str, Register]
    halves: Mapping[BufferId, Halves]

    def target(self, buffer: BufferId) -> BufferId:
        """Returns where to write the next value of the one that a trip reads in `buffer`."""
        return self.halves[buffer].target if buffer in self.halves else buffer


def carry(
    frame: GraphLowering,
    initial: Sequence[Value],
    body: Graph,
    first: int,
    results: Sequence[Value],
) -> Carried:
    """Returns buffers that hold the initial values of the carried values.

    These are the inputs of `body` from number `first` on, and `results` are their next values.
    Raises UserError if a size differs inside the loop without a symbol of its own there.
    """
    inside = body.inputs[first:][: len(initial)]
    buffers: list[BufferId] = []
    sizes: dict[str, Register] = {}
    halves: dict[BufferId, Halves] = {}
    computed = {v for n in body.nodes for v in n.outputs if results.count(v) == 1}
    for value, parameter, result in zip(initial, inside, results, strict=True):
        changing = _changing_sizes(value, parameter, body)
        size = byte_count(value.type)
        if changing:
            buffer = frame.new_buffer(Dynamic(), parameter.name)
            frame.out.append(Allocate(buffer, frame.size(size)))
        elif result in computed and not frame.registers.is_late(size):
            distance = ceildiv(size, _ALIGN) * _ALIGN
            both_halves = frame.temporary(distance * 2, parameter.name)
            frame.copy(both_halves, frame.read(value), value.type)
            buffer = frame.new_buffer(Alias(), parameter.name)
            target = frame.new_buffer(Alias(), f"{parameter.name}.next")
            halves[buffer] = Halves(both_halves, target, distance)
            buffers.append(buffer)
            continue
        else:
            buffer = frame.temporary(size, parameter.name)
        frame.copy(buffer, frame.read(value), value.type)
        buffers.append(buffer)
        for name, dim in changing.items():
            sizes[name] = frame.registers.fresh()
            frame.assign(sizes[name], frame.size(dim))
    return Carried(tuple(inside), tuple(buffers), sizes, halves)


def begin_trip(
    inner: GraphLowering, results: Sequence[Value], carried: Carried, trip: Index
) -> None:
    """Sets the views of the halves for this trip; what is computed goes to the other half."""
    for result, buffer in zip(results, carried.buffers, strict=True):
        halves = carried.halves.get(buffer)
        if halves is None:
            continue
        inner.out.append(View(buffer, halves.buffer, inner.size(halves.offset(trip))))
        inner.out.append(View(halves.target, halves.buffer, inner.size(halves.offset(trip + 1))))
        inner.targets[result] = halves.target


def _changing_sizes(value: Value, parameter: Value, body: Graph) -> dict[str, Index]:
    """Returns the body's symbols for sizes that trips change, each with its initial size."""
    initial_sizes: dict[str, Index] = {}
    for first, dim in zip(value.type.shape, parameter.type.shape, strict=True):
        if first is dim:
            continue
        var = var_of(dim)
        if var is None:
            raise UserError(
                "a carried value has another size inside the loop",
                where=body.name,
                why=f"{value.type!r} goes in, the body takes {parameter.type!r}",
            )
        initial_sizes[var.name] = first
    return initial_sizes


def next_trip(inner: GraphLowering, results: Sequence[Value], carried: Carried) -> None:
    """Passes the body's results to the next trip.

    A result that is another carried value is saved before that one is overwritten. Sizes change
    last, because the copies use them.
    """
    sources: list[BufferId] = []
    targets = [carried.target(b) for b in carried.buffers]
    for value, target_of_value in zip(results, targets, strict=True):
        source = inner.read(value)
        if source in targets and source != target_of_value:
            saved = inner.temporary(byte_count(value.type), f"{value.name}.saved")
            inner.copy(saved, source, value.type)
            source = saved
        sources.append(source)
    changes = _size_changes(inner, results, carried)
    for value, source, buffer in zip(results, sources, targets, strict=True):
        if source == buffer:
            continue
        if isinstance(inner.context.buffers[buffer].place, Dynamic):
            inner.out.append(Allocate(buffer, inner.size(byte_count(value.type))))
        inner.copy(buffer, source, value.type)
    for register, changed in changes:
        inner.assign(register, changed)


def _size_changes(
    inner: GraphLowering, results: Sequence[Value], carried: Carried
) -> list[tuple[Register, Register]]:
    """Returns the registers of changing sizes, each with a register that holds its next value."""
    changes = []
    for value, parameter in zip(results, carried.values, strict=True):
        for dim, actual in zip(parameter.type.shape, value.type.shape, strict=True):
            var = var_of(dim)
            if var is not None and var.name in carried.sizes and actual is not dim:
                changed = inner.registers.fresh()
                inner.assign(changed, inner.size(actual))
                changes.append((carried.sizes[var.name], changed))
    return changes


def define_carried(
    frame: GraphLowering, values: Sequence[Value], carried: Carried, counter: Register
) -> None:
    """Defines the node's results as the values that the last trip left."""
    trip = trip_index(frame, counter)
    for value, parameter, buffer in zip(values, carried.values, carried.buffers, strict=True):
        halves = carried.halves.get(buffer)
        if halves is None:
            frame.buffers[value] = buffer
        else:
            frame.buffers[value] = frame.view(halves.buffer, halves.offset(trip), value.name)
        for dim, inside in zip(value.type.shape, parameter.type.shape, strict=True):
            var, inner_var = var_of(dim), var_of(inside)
            if var is not None and inner_var is not None and inner_var.name in carried.sizes:
                frame.registers.bind(var.name, carried.sizes[inner_var.name], late=True)


# ---- rows ---------------------------------------------------------------------------------------


def store_rows(
    inner: GraphLowering, rows: Sequence[Value], places: Sequence[BufferId]
) -> list[Value]:
    """Makes the kernels of a body write `rows` to `places`; call `fill_rows` behind its steps.

    Returns the rows to write; a carried value is stored twice, under another name.
    """
    row_values: list[Value] = []
    for row, where in zip(rows, places, strict=True):
        if row in inner.targets:
            row = _stored_twice(inner, row)
        if row not in inner.targets:
            inner.targets[row] = where
        row_values.append(row)
    return row_values


def fill_rows(inner: GraphLowering, rows: Sequence[Value], places: Sequence[BufferId]) -> None:
    """Copies those rows that no kernel wrote to their places."""
    for row, where in zip(rows, places, strict=True):
        source = inner.read(row)
        if source != where:
            inner.copy(where, source, row.type)


def _stored_twice(inner: GraphLowering, value: Value) -> Value:
    """Returns a second result of the kernel that computes `value`, equal to it; `value` itself if
    no kernel computes it."""
    twin = Value(f"{value.name}.row", value.type)

    def stored(kernel: Kernel) -> Kernel:
        if value not in kernel.results:
            return kernel
        result = kernel.expr.outputs[kernel.results.index(value)]
        expr = replace(kernel.expr, outputs=(*kernel.expr.outputs, result))
        return replace(kernel, expr=expr, results=(*kernel.results, twin))

    inner.placed = replace(inner.placed, steps=inner.placed.with_kernels(stored))
    has_twin = any(twin in kernel.results for kernel in inner.placed.kernels)
    return twin if has_twin else value
