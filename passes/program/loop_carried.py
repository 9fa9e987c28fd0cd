"""Lowers the values that a loop carries from iteration to iteration, and the rows that it stores.

    h' = f(h) ; y[t] = h'      launch f(half t % 2 of h) -> half (t + 1) % 2 of h, y[t]

A carried value has a buffer with two halves, which alternate.  A kernel of the body writes its
result to the half that the next iteration reads, so that nothing is copied.  A value that an
iteration passes on unchanged, or whose size changes, has a single buffer.  It is copied at the end
of an iteration.
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
from tcc.zipped import zip_equal

# The alignment in bytes of each half of a buffer; whole buffers have the same alignment.
_ALIGN = 64


def trip_index(frame: GraphLowering, counter: Register) -> Index:
    """Binds a symbol to `counter`, the register of an iteration's number, and returns the symbol.

    After the loop, the symbol is the number of all iterations.
    """
    name = f"trip.{counter}"
    frame.registers.bind(name, counter, late=True)
    return symbol(name)


@frozen
class Halves:
    """A buffer with two halves, each with room for a value; the halves begin `distance` bytes
    apart.

    Iteration t reads half t % 2, and writes the other half through the view `target`.
    """

    buffer: BufferId
    target: BufferId
    distance: Index

    def offset(self, trip: Index) -> Index:
        return (trip % 2) * self.distance


@frozen
class Carried:
    """The values that a loop carries from iteration to iteration.

    `values` are the values in the body.  `buffers` are the buffers from which an iteration reads
    them.  `sizes` has the register of each size symbol that changes between iterations.  `halves`
    maps the buffer of each carried value that has two halves to these halves.
    """

    values: Values
    buffers: tuple[BufferId, ...]
    sizes: Mapping[str, Register]
    halves: Mapping[BufferId, Halves]

    def target(self, buffer: BufferId) -> BufferId:
        """Returns the buffer into which an iteration writes the next value of a carried value.

        `buffer` is the buffer from which the same iteration reads the carried value.
        """
        return self.halves[buffer].target if buffer in self.halves else buffer


def carry(
    frame: GraphLowering,
    initial: Sequence[Value],
    body: Graph,
    first: int,
    results: Sequence[Value],
) -> Carried:
    """Emits the buffers of the carried values, filled with the values `initial`, and returns them.

    The inputs of `body` from index `first` on are the carried values.  `results` are the outputs of
    `body` that are their next values.  Raises UserError if the size of a value in the body differs
    from its initial size, and is not a single symbol.
    """
    inside = body.inputs[first:][: len(initial)]
    buffers: list[BufferId] = []
    sizes: dict[str, Register] = {}
    halves: dict[BufferId, Halves] = {}
    computed = {v for n in body.nodes for v in n.outputs if results.count(v) == 1}
    for value, parameter, result in zip_equal(initial, inside, results):
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
    """Emits the views of an iteration: the half to read, and the half for the next value."""
    for result, buffer in zip_equal(results, carried.buffers):
        halves = carried.halves.get(buffer)
        if halves is None:
            continue
        inner.out.append(View(buffer, halves.buffer, inner.size(halves.offset(trip))))
        inner.out.append(View(halves.target, halves.buffer, inner.size(halves.offset(trip + 1))))
        inner.targets[result] = halves.target


def _changing_sizes(value: Value, parameter: Value, body: Graph) -> dict[str, Index]:
    """Returns the symbols of the body for sizes that iterations change, each with its initial
    size.
    """
    initial_sizes: dict[str, Index] = {}
    for first, dim in zip_equal(value.shape, parameter.shape):
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
    """Emits the copies that pass the body's results to the next iteration.

    If a result is itself a carried value, it is saved before its buffer is overwritten.  Sizes
    change last, because the copies use the old sizes.
    """
    sources: list[BufferId] = []
    targets = [carried.target(b) for b in carried.buffers]
    for value, target_of_value in zip_equal(results, targets):
        source = inner.read(value)
        if source in targets and source != target_of_value:
            saved = inner.temporary(byte_count(value.type), f"{value.name}.saved")
            inner.copy(saved, source, value.type)
            source = saved
        sources.append(source)
    changes = _size_changes(inner, results, carried)
    for value, source, buffer in zip_equal(results, sources, targets):
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
    """Emits the next value of each changing size.

    Returns pairs of registers: for the size, and for its next value.
    """
    changes = []
    for value, parameter in zip_equal(results, carried.values):
        for dim, actual in zip_equal(parameter.shape, value.shape):
            var = var_of(dim)
            if var is not None and var.name in carried.sizes and actual is not dim:
                changed = inner.registers.fresh()
                inner.assign(changed, inner.size(actual))
                changes.append((carried.sizes[var.name], changed))
    return changes


def define_carried(
    frame: GraphLowering, values: Sequence[Value], carried: Carried, counter: Register
) -> None:
    """Defines the loop node's results as the carried values after the last iteration."""
    trip = trip_index(frame, counter)
    for value, parameter, buffer in zip_equal(values, carried.values, carried.buffers):
        halves = carried.halves.get(buffer)
        if halves is None:
            frame.buffers[value] = buffer
        else:
            frame.buffers[value] = frame.view(halves.buffer, halves.offset(trip), value.name)
        for dim, inside in zip_equal(value.shape, parameter.shape):
            var, inner_var = var_of(dim), var_of(inside)
            if var is not None and inner_var is not None and inner_var.name in carried.sizes:
                frame.registers.bind(var.name, carried.sizes[inner_var.name], late=True)


# ---- rows ---------------------------------------------------------------------------------------


def store_rows(
    inner: GraphLowering, rows: Sequence[Value], places: Sequence[BufferId]
) -> list[Value]:
    """Makes the kernels of a body write `rows` directly to the buffers `places`.

    Returns the rows, to be passed to `fill_rows` after the body's steps.  If a row is also a
    carried value, its kernel stores it twice, and the second result is returned in its place.
    """
    row_values: list[Value] = []
    for row, where in zip_equal(rows, places):
        if row in inner.targets:
            row = _stored_twice(inner, row)
        if row not in inner.targets:
            inner.targets[row] = where
        row_values.append(row)
    return row_values


def fill_rows(inner: GraphLowering, rows: Sequence[Value], places: Sequence[BufferId]) -> None:
    """Emits copies to `places` of the rows that no kernel has written there."""
    for row, where in zip_equal(rows, places):
        source = inner.read(row)
        if source != where:
            inner.copy(where, source, row.type)


def _stored_twice(inner: GraphLowering, value: Value) -> Value:
    """Adds a second result to the kernel that computes `value`, and returns this equal result.

    Returns `value` itself if no kernel computes it.
    """
    twin = Value(f"{value.name}.row", value.type)

    def stored(kernel: Kernel) -> Kernel:
        if value not in kernel.results:
            return kernel
        result = kernel.expr.outputs[kernel.results.index(value)]
        expr = replace(kernel.expr, outputs=(*kernel.expr.outputs, result))
        return replace(kernel, expr=expr, results=(*kernel.results, twin))

    inner.placed = replace(inner.placed, steps=inner.placed.with_kernels(stored))
    return twin if any(twin in kernel.results for kernel in inner.placed.kernels) else value
