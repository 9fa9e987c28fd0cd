"""A graph whose kernels are planned becomes a program for the host.

    %y = relu(%x) : f32[n,64]      r1 = 64 ; check dim 1 of x == r1 ; ... ; launch k0(x, y)(n)

Every stored value gets a buffer; buffers inside the run are `Arena` places whose offsets
`plan_memory` sets.  Control flow is in `lower_control`, calls of C functions in `lower_calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from tcc.errors import InternalError
from tcc.ir.expr import ExprBuilder, extent
from tcc.ir.graph import Graph, Value
from tcc.ir.group import TileGroup
from tcc.ir.index import Index, Var, as_int, const, symbol, var_of
from tcc.ir.layout import Layout, axis_vars, layout, place, row_major
from tcc.ir.program import (
    Allocate,
    Arena,
    Buffer,
    BufferId,
    Check,
    Copy,
    Dynamic,
    Input,
    Instr,
    IntOp,
    Launch,
    Let,
    Output,
    Place,
    Port,
    Program,
    Register,
    Relation,
    TensorRef,
    Weight,
)
from tcc.ir.scalar import index_value, literal
from tcc.ir.types import BOOL, I64, TensorType, element_count
from tcc.passes.fuse.partition import partition
from tcc.passes.layouts import Kernel, Placed, Step, assign_layouts
from tcc.passes.lower_sizes import Registers
from tcc.passes.plan_kernels import Bound, KernelPlanner, PlannedKernel
from tcc.passes.weights import WeightTable
from tcc.schedule.nest import weight, work

# Launches with less work than this (body operations) are not worth a second thread.
SERIAL_WORK = 1 << 15


@dataclass(slots=True)
class KernelTable:
    """The kernels of an artifact: each structure once, in order of first launch."""

    bounds: list[Bound] = field(default_factory=list)
    numbers: dict[Bound, int] = field(default_factory=dict)
    locs: list[str] = field(default_factory=list)

    def number(self, planned: PlannedKernel) -> int:
        found = self.numbers.setdefault(planned.bound, len(self.bounds))
        if found == len(self.bounds):
            self.bounds.append(planned.bound)
            self.locs.append(planned.loc)
        return found


@dataclass(slots=True)
class Context:
    """What lowering of a graph and its bodies share."""

    planner: KernelPlanner
    kernels: KernelTable
    weights: WeightTable
    lower_node: Callable[[Frame, Step], None]
    buffers: list[Buffer] = field(default_factory=list)
    constants: dict[tuple[str, Layout], BufferId] = field(default_factory=dict)


@dataclass(slots=True)
class Frame:
    """Lowering state of one graph or body: where its values are and what was emitted."""

    context: Context
    placed: Placed
    registers: Registers
    buffers: dict[Value, BufferId]
    layouts: dict[Value, Layout]
    # Constants of this graph and the graphs around it.
    constants: dict[Value, Graph]
    # Values computed straight into a buffer that someone else owns.
    targets: dict[Value, BufferId] = field(default_factory=dict)
    out: list[Instr] = field(default_factory=list)
    top: Frame | None = None

    # ---- sizes ---------------------------------------------------------------------------

    def size(self, index: Index) -> Register:
        return self.registers.load(index, self.out)

    def bytes_of(self, value: Value) -> Register:
        return self.size(storage_count(self.layout(value)) * value.type.dtype.bytes)

    def layout(self, value: Value) -> Layout:
        found = self.layouts.get(value)
        return row_major(value.type.shape) if found is None else found

    # ---- buffers --------------------------------------------------------------------------

    def new_buffer(self, where: Place, label: str) -> BufferId:
        self.context.buffers.append(Buffer(where, label))
        return len(self.context.buffers) - 1

    def temporary(self, size: Index, label: str) -> BufferId:
        """A buffer of `size` bytes: in the arena, or from the pool if data decides the size."""
        if self.registers.is_late(size):
            buffer = self.new_buffer(Dynamic(), label)
            self.out.append(Allocate(buffer, self.size(size)))
            return buffer
        # The plan needs the sizes of bodies' buffers at entry too.
        top = self if self.top is None else self.top
        return self.new_buffer(Arena(-1, top.size(size)), label)

    def define(self, value: Value) -> BufferId:
        """The buffer that `value` is about to be written to."""
        buffer = self.targets.get(value)
        if buffer is None:
            size = storage_count(self.layout(value)) * value.type.dtype.bytes
            buffer = self.temporary(size, value.name)
        elif isinstance(self.context.buffers[buffer].place, Output):
            for dim in value.type.shape:  # the runtime shows them to the caller's allocator
                self.size(dim)
            self.out.append(Allocate(buffer, self.bytes_of(value)))
        self.buffers[value] = buffer
        return buffer

    def read(self, value: Value, layout_: Layout | None = None) -> BufferId:
        """The buffer that holds `value`; constants in `layout_` (row-major if not given)."""
        graph = self.constants.get(value)
        if graph is None:
            if value not in self.buffers:
                raise InternalError(f"{value!r} is read before it is computed")
            return self.buffers[value]
        handle = graph.constants[value]
        wanted = layout_ or row_major(value.type.shape)
        key = (handle.digest, wanted)
        if key not in self.context.constants:
            offset, size = self.context.weights.place(handle, value.type.dtype, wanted)
            self.context.buffers.append(Buffer(Weight(offset, size), value.name))
            self.context.constants[key] = len(self.context.buffers) - 1
        return self.context.constants[key]

    def true(self) -> BufferId:
        """A buffer that holds the bool true."""
        handle = self.placed.graph.store.put(np.asarray(True))
        key = (handle.digest, row_major(()))
        if key not in self.context.constants:
            offset, size = self.context.weights.place(handle, BOOL, key[1])
            self.context.constants[key] = self.new_buffer(Weight(offset, size), "true")
        return self.context.constants[key]

    def tensor(self, value: Value, buffer: BufferId | None = None) -> TensorRef:
        """`value` for a C function."""
        at = self.read(value) if buffer is None else buffer
        dims = tuple(self.size(d) for d in value.type.shape)
        return TensorRef(at, value.type.dtype, dims)

    def copy(self, target: BufferId, source: BufferId, type_: TensorType) -> None:
        size = self.size(element_count(type_.shape) * type_.dtype.bytes)
        self.out.append(Copy(target, source, size))

    # ---- launches ----------------------------------------------------------------------------

    def launch(self, planned: PlannedKernel) -> None:
        """Runs a kernel; halos of its results are filled first."""
        if all(as_int(element_count(v.type.shape)) == 0 for v, _ in planned.results):
            for value, _ in planned.results:
                self.define(value)
            return
        reads = tuple(self.read(v, where) for v, where in planned.operands)
        writes = tuple(self.define(v) for v, _ in planned.results)
        for (value, where), buffer in zip(planned.results, writes, strict=True):
            if where.fill is not None:
                self.fill_halo(value, where, buffer)
        self.run(planned, (*reads, *writes))

    def run(self, planned: PlannedKernel, buffers: tuple[BufferId, ...]) -> None:
        kernel = planned.bound.kernel
        number = self.context.kernels.number(planned)
        grid = const(1)
        for axis in kernel.axes:
            grid = grid * extent(axis)
        ints = tuple(self.size(_var_index(v)) for v in kernel.sizes)
        serial = total_work(planned.bound.group) < SERIAL_WORK
        self.out.append(Launch(number, self.size(grid), buffers, ints, serial))

    def fill_halo(self, value: Value, where: Layout, buffer: BufferId) -> None:
        """Writes the fill to storage around the elements, one slab a side."""
        for slab, slab_layout in halo_slabs(value, where):
            layouts = {slab.results[0]: slab_layout}
            self.run(self.context.planner.plan(slab, layouts, ()), (buffer,))

    def store_size(self, register_symbol: Index, target: BufferId) -> None:
        """Writes a size as one i64 to `target` (what bodies see of a loop's counter)."""
        builder = ExprBuilder()
        builder.stage((), index_value(register_symbol, I64))
        result = Value("size", TensorType(I64, ()))
        kernel = Kernel(builder.done(), (), (result,), "size")
        self.run(self.context.planner.plan(kernel, {}, ()), (target,))

    # ---- bodies ----------------------------------------------------------------------------

    def child(self, graph: Graph) -> Frame:
        """A frame for a body: it sees the buffers of the graphs around it."""
        placed = place_graph(graph)
        constants = {**self.constants, **dict.fromkeys(graph.constants, graph)}
        return Frame(
            self.context,
            placed,
            self.registers.inner(),
            dict(self.buffers),
            {**self.layouts, **placed.layouts},
            constants,
            top=self if self.top is None else self.top,
        )

    def steps(self) -> None:
        """Emits every step of the frame's graph."""
        for step in self.placed.steps:
            if step.kernel is None:
                self.context.lower_node(self, step)
            else:
                constants = self.constants
                self.launch(self.context.planner.plan(step.kernel, self.layouts, constants))


def place_graph(graph: Graph) -> Placed:
    """Partition and layouts of a graph."""
    return assign_layouts(graph, partition(graph))


def storage_count(where: Layout) -> Index:
    return element_count(where.sizes)


def total_work(group: TileGroup) -> int:
    return sum(work(s) * weight(s) for s in group.stages)


def _var_index(var: Var) -> Index:
    return symbol(var.name, var.lo, var.hi, var.divisor)


# ---- halos --------------------------------------------------------------------------------------


def halo_slabs(value: Value, where: Layout) -> list[tuple[Kernel, Layout]]:
    """Kernels that fill the storage around the elements, and where each writes.

    Two slabs a dimension; dimensions before it only as far as the elements go, so that no place is
    written twice.
    """
    ends = [_ends(value, where, d) for d in range(len(where.sizes))]
    slabs: list[tuple[Kernel, Layout]] = []
    for d, size in enumerate(where.sizes):
        before, after = ends[d]
        for width, start in ((before, const(0)), (after, size - after)):
            if width is const(0):
                continue
            shape = [n - e[0] - e[1] for n, e in zip(where.sizes, ends, strict=True)]
            starts = [e[0] for e in ends]
            shape[d], starts[d] = width, start
            shape[d + 1 :] = where.sizes[d + 1 :]
            starts[d + 1 :] = [const(0) for _ in starts[d + 1 :]]
            slabs.append(_slab(value, where, tuple(shape), tuple(starts)))
    return slabs


def _ends(value: Value, where: Layout, d: int) -> tuple[Index, Index]:
    """The halo before and after the elements along storage dimension d."""
    first = place(where, tuple(const(0) for _ in value.type.shape))[d]
    last = place(where, tuple(n - 1 for n in value.type.shape))[d]
    return first, where.sizes[d] - 1 - last


def _slab(
    value: Value, where: Layout, shape: tuple[Index, ...], starts: tuple[Index, ...]
) -> tuple[Kernel, Layout]:
    builder = ExprBuilder()
    builder.stage(builder.iters(*shape), literal(where.fill or 0.0, value.type.dtype))
    result = Value("halo", TensorType(value.type.dtype, shape))
    at = tuple(a + s for a, s in zip(axis_vars(shape), starts, strict=True))
    return Kernel(builder.done(), (), (result,), "halo"), layout(shape, where.sizes, at)


# ---- programs -----------------------------------------------------------------------------------


def lower_program(
    graph: Graph, planner: KernelPlanner, lower_node: Callable[[Frame, Step], None]
) -> tuple[Program, KernelTable, WeightTable]:
    """The program of a model; arena offsets are not planned yet.

    `lower_node` lowers steps that are no kernels.
    """
    context = Context(planner, KernelTable(), WeightTable(graph.store), lower_node)
    placed = place_graph(graph)
    constants = dict.fromkeys(graph.constants, graph)
    frame = Frame(context, placed, Registers(), {}, dict(placed.layouts), constants)
    ports = [_input_port(frame, n, value) for n, value in enumerate(graph.inputs)]
    _output_targets(frame, graph)
    frame.steps()
    outputs = tuple(_output_port(frame, n, value) for n, value in enumerate(graph.outputs))
    program = Program(
        tuple(ports), outputs, frame.registers.count, tuple(context.buffers), (), 0, -1,
        tuple(frame.out),
    )  # fmt: skip
    return program, context.kernels, context.weights


def _input_port(frame: Frame, port: int, value: Value) -> Port:
    """Binds or checks each dimension of an input."""
    frame.buffers[value] = frame.new_buffer(Input(port), value.name)
    dims = []
    for d, dim in enumerate(value.type.shape):
        given = frame.registers.fresh()
        frame.out.append(Let(given, IntOp.DIM, port, d))
        var = var_of(dim)
        if var is not None and not frame.registers.bound(var.name):
            frame.registers.bind(var.name, given)
            _check_facts(frame, value, d, var, given)
        else:
            wanted = frame.size(dim)
            message = f"input {value.name}, dimension {d}: {dim.key} is due"
            frame.out.append(Check(Relation.EQ, given, wanted, message))
            given = wanted
        dims.append(given)
    return Port(value.name, value.type.dtype, tuple(dims), _shape_text(value))


def _check_facts(frame: Frame, value: Value, d: int, var: Var, given: Register) -> None:
    """What the compiler took for granted of a symbol is checked at entry."""
    what = f"input {value.name}, dimension {d} ({var.name})"
    if var.lo > 0:
        low = frame.size(const(var.lo))
        frame.out.append(Check(Relation.LE, low, given, f"{what}: at least {var.lo} is due"))
    if var.hi is not None:
        high = frame.size(const(var.hi))
        frame.out.append(Check(Relation.LE, given, high, f"{what}: at most {var.hi} is due"))
    if var.divisor > 1:
        by = frame.size(const(var.divisor))
        message = f"{what}: a multiple of {var.divisor} is due"
        frame.out.append(Check(Relation.DIVIDES, by, given, message))


def _shape_text(value: Value) -> str:
    return "[" + ",".join(dim.key for dim in value.type.shape) + "]"


def _output_targets(frame: Frame, graph: Graph) -> None:
    """Results of kernels and calls are written where the caller wants them."""
    owned = {*graph.inputs, *graph.constants}
    for port, value in enumerate(graph.outputs):
        if value not in owned and value not in frame.targets:
            frame.targets[value] = frame.new_buffer(Output(port), value.name)


def _output_port(frame: Frame, port: int, value: Value) -> Port:
    target = frame.targets.get(value)
    mine = target is not None and frame.context.buffers[target].place == Output(port)
    if not mine or frame.buffers.get(value) != target:
        # An input, a constant, another output's value, or what control flow computed elsewhere.
        buffer = target if mine and target is not None else None
        if buffer is None:
            buffer = frame.new_buffer(Output(port), value.name)
        for dim in value.type.shape:
            frame.size(dim)
        frame.out.append(Allocate(buffer, frame.bytes_of(value)))
        frame.copy(buffer, frame.read(value), value.type)
    dims = tuple(frame.size(d) for d in value.type.shape)
    return Port(value.name, value.type.dtype, dims, _shape_text(value))
