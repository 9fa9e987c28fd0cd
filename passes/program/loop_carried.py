"""Values that a loop hands from trip to trip, and the rows its trips leave.

    h' = f(h) ; y[t] = h'      h, h' = halves of one buffer, by turns ; launch f(h) -> h', y[t]

What a kernel of the body computes is written where the next trip looks for it: in the other half of
a buffer, so that nothing is copied.  What is handed through, and what changes its size, has one
buffer and is copied at the end of a trip.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tcc.errors import UserError
from tcc.ir.graph import Graph, Value, Values
from tcc.ir.index import Index, ceildiv, symbol, var_of
from tcc.ir.program import Alias, Allocate, BufferId, Dynamic, Register, View
from tcc.passes.layout.assign import Kernel
from tcc.passes.program.lower_graph import GraphLowering, byte_count
from tcc.record import record

# Halves of a buffer begin where whole ones do.
_ALIGN = 64


def trip_index(frame: GraphLowering, counter: Register) -> Index:
    """The number of the trip, or after the loop that of all trips."""
    name = f"trip.{counter}"
    frame.registers.bind(name, counter, late=True)
    return symbol(name)


def enter_trip(inner: GraphLowering, counter: Register) -> Index:
    """The number of the trip, which random nodes of the body ask for."""
    inner.trip = trip_index(inner, counter)
    return inner.trip


@record
class Halves:
    """A buffer with room for two values, `apart` bytes one behind the other; trip t reads the one
    of its parity and writes the other, through `target`."""

    buffer: BufferId
    target: BufferId
    apart: Index

    def offset(self, trip: Index) -> Index:
        return (trip % 2) * self.apart


@record
class Carried:
    """Values handed from trip to trip: what the body calls them, and where they lie.

    `sizes` holds, by symbol, the registers of sizes that differ from trip to trip; `halves`, by
    where a trip finds them, those that are written beside their old values.
    """

    values: Values
    buffers: tuple[BufferId, ...]
    sizes: Mapping[str, Register]
    halves: Mapping[BufferId, Halves]

    def target(self, buffer: BufferId) -> BufferId:
        """Where the next value of the one that a trip finds in `buffer` belongs."""
        return self.halves[buffer].target if buffer in self.halves else buffer


def carry(
    frame: GraphLowering,
    initial: Sequence[Value],
    body: Graph,
    first: int,
    results: Sequence[Value],
) -> Carried:
    """Buffers for the carried values, which hold their initial values: the inputs of `body` from
    the one of number `first` on, of which `results` are the next values.

    Raises UserError where a size differs inside the loop that has no name there.
    """
    inside = body.inputs[first:][: len(initial)]
    buffers: list[BufferId] = []
    sizes: dict[str, Register] = {}
    halves: dict[BufferId, Halves] = {}
    made = {v for n in body.nodes for v in n.outputs if results.count(v) == 1}
    for value, seen, result in zip(initial, inside, results, strict=True):
        changing = _changing_sizes(value, seen, body)
        size = byte_count(value.type)
        if changing:
            buffer = frame.new_buffer(Dynamic(), seen.name)
            frame.out.append(Allocate(buffer, frame.size(size)))
        elif result in made and not frame.registers.is_late(size):
            apart = ceildiv(size, _ALIGN) * _ALIGN
            whole = frame.temporary(apart * 2, seen.name)
            frame.copy(whole, frame.read(value), value.type)
            buffer = frame.new_buffer(Alias(), seen.name)
            target = frame.new_buffer(Alias(), f"{seen.name}.next")
            halves[buffer] = Halves(whole, target, apart)
            buffers.append(buffer)
            continue
        else:
            buffer = frame.temporary(size, seen.name)
        frame.copy(buffer, frame.read(value), value.type)
        buffers.append(buffer)
        for name, dim in changing.items():
            sizes[name] = frame.registers.fresh()
            frame.assign(sizes[name], frame.size(dim))
    return Carried(tuple(inside), tuple(buffers), sizes, halves)


def begin_trip(
    inner: GraphLowering, results: Sequence[Value], carried: Carried, trip: Index
) -> None:
    """Aims the halves at the values of this trip; what is computed goes to the other ones."""
    for result, buffer in zip(results, carried.buffers, strict=True):
        both = carried.halves.get(buffer)
        if both is None:
            continue
        inner.out.append(View(buffer, both.buffer, inner.size(both.offset(trip))))
        inner.out.append(View(both.target, both.buffer, inner.size(both.offset(trip + 1))))
        inner.targets[result] = both.target


def _changing_sizes(value: Value, seen: Value, body: Graph) -> dict[str, Index]:
    """Symbols of the body for sizes that trips change, with the sizes they begin with."""
    found: dict[str, Index] = {}
    for first, dim in zip(value.type.shape, seen.type.shape, strict=True):
        if first is dim:
            continue
        var = var_of(dim)
        if var is None:
            raise UserError(
                "a carried value has another size inside the loop",
                where=body.name,
                why=f"{value.type!r} goes in, the body takes {seen.type!r}",
            )
        found[var.name] = first
    return found


def next_trip(inner: GraphLowering, results: Sequence[Value], carried: Carried) -> None:
    """Hands the body's results to the next trip.

    Results that are other carried values are saved before those are overwritten, and sizes change
    last, for the copies count in them.
    """
    sources: list[BufferId] = []
    targets = [carried.target(b) for b in carried.buffers]
    for value, own in zip(results, targets, strict=True):
        source = inner.read(value)
        if source in targets and source != own:
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
    for target, changed in changes:
        inner.assign(target, changed)


def _size_changes(
    inner: GraphLowering, results: Sequence[Value], carried: Carried
) -> list[tuple[Register, Register]]:
    """The registers of changing sizes, each with one that holds its next value."""
    changes = []
    for value, seen in zip(results, carried.values, strict=True):
        for dim, actual in zip(seen.type.shape, value.type.shape, strict=True):
            var = var_of(dim)
            if var is not None and var.name in carried.sizes and actual is not dim:
                changed = inner.registers.fresh()
                inner.assign(changed, inner.size(actual))
                changes.append((carried.sizes[var.name], changed))
    return changes


def define_carried(
    frame: GraphLowering, values: Sequence[Value], carried: Carried, counter: Register
) -> None:
    """The node's results are what the last trip left."""
    trip = trip_index(frame, counter)
    for value, seen, buffer in zip(values, carried.values, carried.buffers, strict=True):
        both = carried.halves.get(buffer)
        if both is None:
            frame.buffers[value] = buffer
        else:
            frame.buffers[value] = frame.view(both.buffer, both.offset(trip), value.name)
        for dim, inside in zip(value.type.shape, seen.type.shape, strict=True):
            var, own = var_of(dim), var_of(inside)
            if var is not None and own is not None and own.name in carried.sizes:
                frame.registers.bind(var.name, carried.sizes[own.name], late=True)


# ---- rows ---------------------------------------------------------------------------------------


def store_rows(
    inner: GraphLowering, rows: Sequence[Value], places: Sequence[BufferId]
) -> list[Value]:
    """Lets the kernels of a body write `rows` to `places`; call `fill_rows` behind its steps.

    Returns what is written there: a carried value is stored twice, under another name.
    """
    found: list[Value] = []
    for row, where in zip(rows, places, strict=True):
        if row in inner.targets:
            row = _stored_twice(inner, row)
        if row not in inner.targets:
            inner.targets[row] = where
        found.append(row)
    return found


def fill_rows(inner: GraphLowering, rows: Sequence[Value], places: Sequence[BufferId]) -> None:
    """Copies those rows that no kernel wrote to their places."""
    for row, where in zip(rows, places, strict=True):
        source = inner.read(row)
        if source != where:
            inner.copy(where, source, row.type)


def _stored_twice(inner: GraphLowering, value: Value) -> Value:
    """A second result of the kernel that computes `value`, equal to it; or `value` where that is
    computed by no kernel."""
    twin = Value(f"{value.name}.row", value.type)

    def stored(kernel: Kernel) -> Kernel:
        if value not in kernel.results:
            return kernel
        result = kernel.expr.outputs[kernel.results.index(value)]
        expr = replace(kernel.expr, outputs=(*kernel.expr.outputs, result))
        return replace(kernel, expr=expr, results=(*kernel.results, twin))

    inner.placed = replace(inner.placed, steps=inner.placed.with_kernels(stored))
    made = any(twin in kernel.results for kernel in inner.placed.kernels)
    return twin if made else value
