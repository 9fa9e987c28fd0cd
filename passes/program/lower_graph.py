"""Lowers a graph with planned kernels to a program for the host.

    %y = relu(%x) : f32[n,64]      r1 = 64 ; check dim 1 of x == r1 ; ... ; launch k0(x, y)(n)

Every stored value gets a buffer.  Buffers of intermediate values are in the arena, and `plan_arena`
sets their offsets.  `lower_control` lowers control flow, and `lower_calls` calls of C functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from tcc.errors import InternalError, UserError
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder, nest_size
from tcc.ir.expr.scalar import index_value
from tcc.ir.graph import Graph, Handle, Value
from tcc.ir.index import (
    Index,
    IndexLike,
    Var,
    as_index,
    as_int,
    const,
    free_vars,
    maximum,
    nonnegative,
    of_atom,
    step_in,
    var_of,
)
from tcc.ir.layout import Layout, place, row_major
from tcc.ir.op import Array
from tcc.ir.program import (
    Alias,
    Allocate,
    Arena,
    Branch,
    Buffer,
    BufferId,
    CallOp,
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
    RankGroup,
    Register,
    Relation,
    TensorRef,
    View,
    Weight,
)
from tcc.ir.types import I64, DType, TensorType, dtype_of, element_count
from tcc.passes.graph.state import EMPTY_HINT, updates_in_place
from tcc.passes.layout.assign import Kernel, Placed, ProgramStep
from tcc.passes.layout.weights import WeightTable, stored_bytes
from tcc.passes.place import LoweringContext, place_graph
from tcc.passes.program.kernel_table import KernelTable
from tcc.passes.program.lower_sizes import SizeRegisters
from tcc.passes.quantize.precision import FULL, Precision
from tcc.passes.tile.plan import KernelChooser, PlannedKernel
from tcc.zipped import zip_equal

_NO_TRIP = const(0)


@dataclass(slots=True)
class Context:
    """The state that the lowering of a graph shares with the lowerings of its loop bodies and
    branches."""

    planner: KernelChooser
    kernels: KernelTable
    weights: WeightTable
    lower_node: Callable[[GraphLowering, ProgramStep], None]
    precision: Precision
    buffers: list[Buffer] = field(default_factory=list)
    constants: dict[tuple[str, Layout], BufferId] = field(default_factory=dict)
    groups: dict[RankGroup, int] = field(default_factory=dict)  # numbered in the order of first use


@dataclass(slots=True)
class GraphLowering:
    """The state of the lowering of a model, a loop body or a branch.

    `constants` maps visible constants to their graphs: this or an enclosing one.  `targets` maps a
    value to the buffer into which its kernel shall write it.  `top` is the lowering of the model's
    graph; None if this is it.  `trip` is the index of the innermost loop's current iteration.
    """

    context: Context
    placed: Placed
    registers: SizeRegisters
    buffers: dict[Value, BufferId]
    layouts: dict[Value, Layout]
    constants: dict[Value, Graph]
    targets: dict[Value, BufferId] = field(default_factory=dict)
    out: list[Instr] = field(default_factory=list)
    plans: dict[ProgramStep, PlannedKernel] = field(default_factory=dict)
    top: GraphLowering | None = None
    trip: Index = _NO_TRIP

    # ---- sizes ---------------------------------------------------------------------------

    def size(self, index: IndexLike) -> Register:
        return self.registers.load(as_index(index), self.out)

    def early_size(self, index: Index) -> Register:
        """Returns the register of a size that is computed as early as possible.  A size that
        depends on no data is computed in the model's graph, before all bodies."""
        return (self if self.registers.is_late(index) else self.top or self).size(index)

    def computed(self, op: IntOp, a: int = 0, b: int = 0) -> Register:
        """Returns a new register that holds the result of `Let(op, a, b)`."""
        self.out.append(Let(target := self.registers.fresh(), op, a, b))
        return target

    def assign(self, target: Register, source: Register) -> None:
        """Emits an assignment to an existing register."""
        self.out.append(Let(target, IntOp.ADD, source, self.size(0)))

    def check(self, relation: Relation, a: Register, b: Register, message: str) -> None:
        """Emits a check that fails the run with `message` if the relation does not hold."""
        self.out.append(Check(relation, a, b, message))

    def storage(self, value: Value) -> Index:
        """Returns the bytes that a value occupies in its layout."""
        return element_count(self.layout(value).sizes) * value.dtype.bytes

    def layout(self, value: Value) -> Layout:
        layout_ = self.layouts.get(value)
        return row_major(value.shape) if layout_ is None else layout_

    def seen(self, value: Value) -> TensorType:
        """Returns the type of an input or output of the model as callers see it, before packing."""
        return self.placed.surface.get(value.name, value.type)

    # ---- buffers --------------------------------------------------------------------------

    def new_buffer(self, where: Place, label: str) -> BufferId:
        self.context.buffers.append(Buffer(where, label))
        return len(self.context.buffers) - 1

    def view(self, base: BufferId, offset: Index, label: str) -> BufferId:
        """Returns a buffer that begins `offset` bytes after the beginning of `base`."""
        buffer = self.new_buffer(Alias(), label)
        self.out.append(View(buffer, base, self.size(offset)))
        return buffer

    def temporary(self, size: Index, label: str) -> BufferId:
        """Returns a buffer of `size` bytes in the arena.  If the size depends on data, the buffer
        is allocated during the run instead."""
        if self.registers.is_late(size):
            buffer = self.new_buffer(Dynamic(), label)
            self.out.append(Allocate(buffer, self.size(size)))
            return buffer
        # The sizes of arena buffers are computed at entry, before a body has checked that its sizes
        # are not negative.
        bytes_ = size if nonnegative(size) else maximum(size, 0)
        return self.new_buffer(Arena(-1, self.early_size(bytes_)), label)

    def define(self, value: Value) -> BufferId:
        """Returns the buffer for a value that is written next, and emits the filling of its halo.
        A value that is a part of another value gets that value's buffer."""
        parent = self.placed.containers.get(value)
        if parent is not None:
            self.buffers[value] = (
                self.buffers[parent] if parent in self.buffers else self.define(parent)
            )
            return self.buffers[value]
        buffer = self.targets.get(value)
        if buffer is None:
            buffer = self.temporary(self.storage(value), value.name)
        elif isinstance(self.context.buffers[buffer].place, Output):
            self.allocate(value, buffer)
        self.buffers[value] = buffer
        where = self.layout(value)
        if where.fill is not None and value.type.count != 0:
            self.fill_halo(value, where, buffer)
        return buffer

    def allocate(self, value: Value, buffer: BufferId) -> None:
        """Emits a request for an output's memory, which the caller allocates."""
        # The runtime passes the sizes to the caller's allocator, so they are computed first.
        for dim in self.seen(value).shape:
            self.size(dim)
        self.out.append(Allocate(buffer, self.size(byte_count(value.type))))

    def read(self, value: Value, layout_: Layout | None = None) -> BufferId:
        """Returns the buffer that holds `value`.  For a constant, it is a weight's buffer in the
        layout `layout_`; None stands for row-major."""
        graph = self.constants.get(value)
        if graph is None:
            if value not in self.buffers:
                raise InternalError(f"{value!r} is read before it is computed")
            return self.buffers[value]
        where = layout_ or row_major(value.shape)
        return self._weight(graph.constants[value], value.dtype, where, value.name)

    def literal(self, array: Array) -> BufferId:
        """Returns the buffer of a weight that holds `array`."""
        where = row_major(tuple(map(const, array.shape)))
        return self._weight(self.placed.graph.store.put(array), dtype_of(array), where, "literal")

    def _weight(self, handle: Handle, dtype: DType, where: Layout, label: str) -> BufferId:
        buffers, key = self.context.constants, (handle.digest, where)
        if key not in buffers:
            place = Weight(*self.context.weights.place(handle, dtype, where))
            buffers[key] = self.new_buffer(place, label)
        return buffers[key]

    def true(self) -> BufferId:
        """Returns the buffer of a weight that holds the Boolean true."""
        return self.literal(np.asarray(True))

    def tensor(self, value: Value, buffer: BufferId | None = None) -> TensorRef:
        """Returns `value` as an argument of a C function.  It is in `buffer`; None stands for the
        value's own buffer."""
        at = self.read(value) if buffer is None else buffer
        return TensorRef(at, value.dtype.stored, tuple(self.size(d) for d in value.shape))

    def copy(self, target: BufferId, source: BufferId, type_: TensorType) -> None:
        self.out.append(Copy(target, source, self.size(byte_count(type_))))

    # ---- launches ----------------------------------------------------------------------------

    def launch(self, planned: PlannedKernel, *, again: bool = False) -> None:
        """Emits the launch of a kernel.  With `again`, results that already have buffers are
        written to the same buffers."""
        if all(v.type.count == 0 for v, _ in planned.results):
            for value, _ in () if again else planned.results:
                self.define(value)
            return
        reads = tuple(self.read(v, where) for v, where in planned.operands)
        existing = self.buffers if again else {}
        writes = tuple(existing[v] if v in existing else self.define(v) for v, _ in planned.results)
        self.run(planned, (*reads, *writes))

    def run(self, planned: PlannedKernel, buffers: tuple[BufferId, ...]) -> None:
        kernel = planned.bound.kernel
        number = self.context.kernels.number(planned.bound, planned.loc)
        grid = self.size(nest_size(kernel.axes))
        ints = tuple(self.size(of_atom(v)) for v in kernel.sizes)
        units = self.context.planner.least_units(planned.bound)
        min_tiles = -1 if units is None else self.early_size(units)
        self.out.append(Launch(number, grid, buffers, ints, min_tiles, planned.loc))

    def fill_halo(self, value: Value, where: Layout, buffer: BufferId) -> None:
        """Emits a call that writes the layout's fill value to the halo of a value."""
        dtype = value.dtype
        bits = stored_bytes(np.asarray([where.fill or 0], dtype.carrier), dtype).tobytes()
        storage = TensorRef(buffer, dtype.stored, tuple(self.size(n) for n in where.sizes))
        ints = (int.from_bytes(bits, "little"), *halo_widths(value, where))
        self.out.append(CallOp("fill_halo", (), (storage,), ints))

    def thin(self, kernel: Kernel, every: tuple[int, ...]) -> None:
        """Emits a call that copies some elements of a kernel's operand to its result.  It keeps
        each element whose index along every storage dimension n is a multiple of `every[n]`."""
        (source,), (target,) = kernel.operands, kernel.results
        storages = [(source, self.read(source)), (target, self.define(target))]
        x, y = (
            TensorRef(b, v.dtype.stored, tuple(self.size(n) for n in self.layout(v).sizes))
            for v, b in storages
        )
        self.out.append(CallOp("thin", (x,), (y,), every))

    def store_size(self, register_symbol: Index, target: BufferId) -> None:
        """Emits a kernel that writes a size, such as a loop's counter, to `target` as an i64."""
        builder = ExprBuilder()
        builder.stage((), index_value(register_symbol, I64))
        result = Value("size", TensorType(I64, ()))
        kernel = Kernel(builder.done(), (), (result,), "size")
        self.run(self.context.planner.plan(kernel, {}, {}), (target,))

    # ---- bodies ----------------------------------------------------------------------------

    def child(self, graph: Graph) -> GraphLowering:
        """Returns the state for lowering a body, which can read the buffers of enclosing graphs."""
        planner = self.context.planner
        settings = LoweringContext(planner, precision=self.context.precision, outer=self.constants)
        self.context.kernels.bodies[graph] = placed = place_graph(graph, settings)
        return GraphLowering(
            self.context,
            placed,
            self.registers.inner(),
            dict(self.buffers),
            {**self.layouts, **placed.layouts},
            placed.visible(self.constants),
            top=self.top or self,
            trip=self.trip,
        )

    @property
    def handles(self) -> dict[Value, Handle]:
        """The handles of all constants that this graph can read, by value."""
        return {value: graph.constants[value] for value, graph in self.constants.items()}

    def steps(self) -> None:
        """Emits the instructions of all kernels and calls of the graph, in order."""
        self.context.weights.rounded.update(dict.fromkeys(self.placed.rounded))
        self.context.weights.types.update(self.placed.weight_types)
        self.plans |= self.context.planner.plans(self.placed.steps, self.layouts, self.handles)
        for condition, steps in groupby(self.placed.steps, key=lambda step: step.condition):
            if condition is None:
                self._run(steps)
                continue
            # The branch shares values and buffers with this graph. Registers that it sets may stay
            # unset.
            inner = replace(self, registers=self.registers.inner(), out=[], top=self.top or self)
            inner._run(steps)
            self.out.append(Branch(self.read(condition), tuple(inner.out), ()))

    def _run(self, steps: Iterable[ProgramStep]) -> None:
        for step in steps:
            if step.kernel is None:
                self.context.lower_node(self, step)
            elif step.every:
                self.thin(step.kernel, step.every)
            else:
                self.launch(self.plans[step], again=step.condition is not None)


def byte_count(type_: TensorType) -> Index:
    return element_count(type_.shape) * type_.dtype.bytes


# ---- halos --------------------------------------------------------------------------------------


def halo_widths(value: Value, where: Layout) -> tuple[int, ...]:
    """Returns the widths of the halo (before, after) for each storage dimension, in one flat
    tuple."""
    first = place(where, tuple(const(0) for _ in value.shape))
    last = place(where, tuple(n - 1 for n in value.shape))
    widths: list[int] = []
    for a, b, size in zip_equal(first, last, where.sizes):
        before, after = as_int(a), as_int(size - 1 - b)
        if before is None or after is None:
            raise InternalError(f"the halo of {value!r} has no fixed width")
        widths += (before, after)
    return tuple(widths)


# ---- programs -----------------------------------------------------------------------------------


def lower_program(
    placed: Placed,
    planner: KernelChooser,
    lower_node: Callable[[GraphLowering, ProgramStep], None],
    precision: Precision = FULL,
) -> tuple[Program, KernelTable, WeightTable]:
    """Returns the program, the kernels and the weights of a placed graph.  The arena of the program
    is not planned yet.  `lower_node` lowers steps that are not kernels.  `precision` has the types
    in which `placed` stores values, and in which the bodies of loops and branches store them."""
    graph = placed.graph
    context = Context(planner, KernelTable(), WeightTable(graph.store), lower_node, precision)
    layouts, constants = dict(placed.layouts), placed.visible(None)
    frame = GraphLowering(context, placed, SizeRegisters(), {}, layouts, constants)
    ports = _input_ports(frame, graph)
    _output_targets(frame, graph)
    frame.steps()
    outputs = _output_ports(frame, graph)
    program = Program(
        ports, outputs, frame.registers.count, tuple(context.buffers), (), 0, -1,
        tuple(frame.out), tuple(context.groups),
    )  # fmt: skip
    return program, context.kernels, context.weights


@frozen
class _Dim:
    """A dimension of an input: its `size` in the input's type, and the register of the caller's
    size."""

    value: Value
    axis: int
    size: Index
    actual: Register

    @property
    def what(self) -> str:
        return f"input {self.value.name}, dimension {self.axis}"


def _input_ports(frame: GraphLowering, graph: Graph) -> tuple[Port, ...]:
    """Returns the ports of the inputs, and emits code that binds or checks their dimensions.

    First, dimensions that are a single symbol bind it.  Then each other dimension is checked if all
    of its symbols are bound, or binds its only unbound symbol: `p + 1` binds p.  Raises UserError
    if a symbol remains that no dimension can bind.
    """
    dims: list[_Dim] = []
    for port, value in enumerate(graph.inputs):
        frame.buffers[value] = frame.new_buffer(Input(port), value.name)
        for axis, size in enumerate(frame.seen(value).shape):
            dims.append(_Dim(value, axis, size, frame.computed(IntOp.DIM, port, axis)))
    registers: dict[tuple[Value, int], Register] = {}
    waiting = [d for d in dims if not _bind_dim(frame, d, registers, plain=True)]
    while waiting:
        unsolved = [d for d in waiting if not _bind_dim(frame, d, registers, plain=False)]
        if len(unsolved) == len(waiting):
            raise UserError(
                "a size of an input cannot be derived",
                where=unsolved[0].what,
                why=f"it is {unsolved[0].size.key}, and other inputs leave several symbols unknown",
                hint="fix sizes with --input",
            )
        waiting = unsolved
    _bind_capacities(frame, graph)
    return tuple(
        _port(frame, v, [registers[v, axis] for axis in range(frame.seen(v).rank)])
        for v in graph.inputs
    )


def _bind_capacities(frame: GraphLowering, graph: Graph) -> None:
    """Binds the symbols of the sizes that arrays of states have along the axes that grow.

    Emits a check for each further state with the same symbol.
    """
    owners: dict[Var, Value] = {}
    for port, value in enumerate(graph.inputs):
        where = frame.layout(value)
        for axis in where.shared:
            actual = frame.computed(IntOp.CAPACITY, port, axis)
            (var,) = free_vars(where.sizes[axis])
            if var not in owners:
                owners[var] = value
                frame.registers.bind(var.name, actual)
                continue
            message = f"input {value.name}: its capacity along dimension {axis} must be that of "
            message += f"input {owners[var].name}; allocate both arrays alike"
            frame.check(Relation.EQ, actual, frame.size(where.sizes[axis]), message)


def _port(frame: GraphLowering, value: Value, dims: Iterable[Register], state: int = -1) -> Port:
    type_ = frame.seen(value)
    text = "[" + ",".join(dim.key for dim in type_.shape) + "]"
    return Port(value.name, type_.dtype, tuple(dims), text, state)


def _bind_dim(
    frame: GraphLowering, dim: _Dim, registers: dict[tuple[Value, int], Register], *, plain: bool
) -> bool:
    """Binds the unbound symbol of `dim`, or emits a check of `dim` if all symbols are bound.
    Returns False, and emits nothing, if neither is possible yet.  With `plain`, handles only
    dimensions that are a single symbol."""
    lone = var_of(dim.size)
    if plain and lone is None:
        return False
    unknown = [v for v in free_vars(dim.size) if not frame.registers.bound(v.name)]
    registers[dim.value, dim.axis] = dim.actual
    if not unknown:
        required = frame.size(dim.size)
        message = f"{dim.what}: {dim.size.key} is due{_told(dim, frame)}"
        frame.check(Relation.EQ, dim.actual, required, message)
        registers[dim.value, dim.axis] = required
        return True
    solved = _solved(frame, dim, unknown[0]) if len(unknown) == 1 else None
    if solved is None:
        return False
    frame.registers.bind(unknown[0].name, solved)
    is_state = any(past is dim.value for _, past in frame.placed.graph.aliases)
    hint = EMPTY_HINT if is_state and var_of(dim.size) is None else ""
    check_facts(frame, f"{dim.what} ({dim.size.key})", unknown[0], solved, hint=hint)
    return True


def _told(dim: _Dim, frame: GraphLowering) -> str:
    """Returns the end of the message of a failed check.  If the dimension is a single symbol, it
    names the dimension that bound the symbol, with a hint."""
    if var_of(dim.size) is None:
        return ""
    inputs = ((v.name, frame.seen(v).shape) for v in frame.placed.graph.inputs)
    name, shape = next((name, shape) for name, shape in inputs if dim.size in shape)
    return (
        f", the size of input {name}, dimension {shape.index(dim.size)}; "
        "compile with another name for one of them (--input NAME=SHAPE) if they may differ"
    )


def _solved(frame: GraphLowering, dim: _Dim, var: Var) -> Register | None:
    """Returns a register with the value of `var` for which `dim` equals the caller's size.  Returns
    None if `dim` does not have the form  number * `var` + a size whose value is already known."""
    linear = step_in(dim.size, var)
    if linear is None or linear[0] < 1:
        return None
    factor, addend = linear
    value = dim.actual
    if as_int(addend) != 0:
        offset = frame.size(addend)
        message = f"{dim.what} ({dim.size.key}): at least {addend.key} is due"
        frame.check(Relation.LE, offset, value, message)
        value = frame.computed(IntOp.SUB, dim.actual, offset)
    if factor > 1:
        by = frame.size(factor)
        frame.check(Relation.DIVIDES, by, value, f"{dim.what}: {dim.size.key} is due")
        value = frame.computed(IntOp.FLOORDIV, value, by)
    return value


def check_facts(
    frame: GraphLowering, what: str, var: Var, register: Register, floor: int = 0, hint: str = ""
) -> None:
    """Emits checks of what the compiler assumed about a symbol: its range and its divisor.
    `register` holds the symbol's value, which is at least `floor`.  So the range's lower end is
    checked only if it is above `floor`.  `what` names the size in messages; `hint` is the
    end of the message for a value that is too small."""
    if var.lo > floor:
        low = frame.size(var.lo)
        frame.check(Relation.LE, low, register, f"{what}: at least {var.lo} is due{hint}")
    if var.hi is not None:
        frame.check(Relation.LE, register, frame.size(var.hi), f"{what}: at most {var.hi} is due")
    if var.divisor > 1:
        by = frame.size(var.divisor)
        frame.check(Relation.DIVIDES, by, register, f"{what}: a multiple of {var.divisor} is due")


def _output_targets(frame: GraphLowering, graph: Graph) -> None:
    """Makes kernels and calls write outputs directly to the caller's memory.  A state is an input
    that an output replaces.  Its new value is written directly only if nothing reads its old value
    afterwards.  Otherwise it is copied there at the end of the run."""
    owned = {*graph.inputs, *graph.constants}
    states = dict(graph.aliases)
    for port, value in enumerate(graph.outputs):
        if value in owned or value in frame.targets:
            continue
        if value not in states or updates_in_place(frame.placed, value, states[value]):
            frame.targets[value] = frame.new_buffer(Output(port), value.name)


def _output_ports(frame: GraphLowering, graph: Graph) -> tuple[Port, ...]:
    """Returns the ports of the outputs, and emits copies to outputs that are computed elsewhere.
    New values of states are copied last, because the old values may be read until then."""
    states = dict(graph.aliases)
    late = [(n, v) for n, v in enumerate(graph.outputs) if v in states]
    for port, value in enumerate(graph.outputs):
        if value not in states and not _is_filled(frame, port, value):
            _fill(frame, port, value)
    sources = [_saved(frame, port, value, states[value]) for port, value in late]
    for (port, value), source in zip_equal(late, sources):
        if source is not None:
            _fill(frame, port, value, source)
    inputs = {v: n for n, v in enumerate(graph.inputs)}
    return tuple(
        _port(
            frame, v, map(frame.size, frame.seen(v).shape), inputs[states[v]] if v in states else -1
        )
        for v in graph.outputs
    )


def _own_target(frame: GraphLowering, port: int, value: Value) -> BufferId | None:
    target = frame.targets.get(value)
    mine = target is not None and frame.context.buffers[target].place == Output(port)
    return target if mine else None


def _is_filled(frame: GraphLowering, port: int, value: Value) -> bool:
    """Returns True if an output was computed directly in the caller's memory."""
    target = _own_target(frame, port, value)
    return target is not None and frame.buffers.get(value) == target


def _saved(frame: GraphLowering, port: int, value: Value, past: Value) -> BufferId | None:
    """Returns the buffer from which a state's new value must be copied; None if it was computed in
    the state's memory.  `past` is the old value.  If the new value is an input, it may be the old
    value of another state.  So it is saved in a temporary buffer before any state is updated."""
    if value is past or _is_filled(frame, port, value):
        return None
    source = frame.read(value)
    if value in frame.placed.graph.inputs:
        saved = frame.temporary(byte_count(value.type), "saved")
        frame.copy(saved, source, value.type)
        return saved
    return source


def _fill(frame: GraphLowering, port: int, value: Value, source: BufferId | None = None) -> None:
    """Emits the copy of the buffer `source` to an output; None stands for the buffer of `value`.
    `value` may be an input, a constant, the value of another output, or a result of control flow.
    """
    target = _own_target(frame, port, value)
    buffer = frame.new_buffer(Output(port), value.name) if target is None else target
    frame.allocate(value, buffer)
    frame.copy(buffer, frame.read(value) if source is None else source, value.type)
