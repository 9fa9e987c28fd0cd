"""Prints block kernels as Triton: one readable function, the same for all devices.

    blocks are tensors, lanes `tl.arange`, guards masks, a Contract `tl.dot`, a carried loop `for`

The kernel decides order, sizes and memory traffic. Triton decides on shared memory, pipeline stages
and instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import assert_never

from tcc.backends.gpu.triton.dtypes import NARROW_FLOATS, float8_facts, literal_text, type_name
from tcc.backends.gpu.triton.indices import (
    TritonIndices,
    VaryingAxes,
    block_span,
    index_type,
    span_of,
)
from tcc.backends.gpu.triton.library import function_names, function_text
from tcc.backends.gpu.triton.scalars import Scalars, combine_function
from tcc.backends.gpu.triton.writer import PyExpr, Writer
from tcc.errors import InternalError
from tcc.ir.expr import MONOIDS, extent, known_extent
from tcc.ir.expr.scalar import Arg, Const, IndexValue, walk
from tcc.ir.index import Var, free_vars, nonnegative
from tcc.ir.layout import row_major_position
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    Guard,
    If,
    Load,
    MemorySpace,
    Prefetch,
    Reduce,
    Relayout,
    Stmt,
    Store,
    Sync,
    TileKernel,
    TileLoop,
)
from tcc.ir.types import BF16, BOOL, F16, F32, F64, FLOAT8
from tcc.zipped import zip_equal

# Matrix units are used if the summed axis has at least this many elements. The first number is for
# most types, the second for types of one byte.
_LEAST_SUM = (16, 32)
_RANKED = VaryingAxes(frozenset(), True)
_ROUNDED = MappingProxyType({"bf16": type_name(BF16), "f16": type_name(F16)})
_HEADER = "import triton\nimport triton.language as tl\n\n\n"


def triton_source(kernel: TileKernel, name: str, *, dot: str) -> str:
    """Returns the source of a module with the kernel as the Triton function `name`.

    Its parameters are the buffers in order, then the sizes, as int64. The grid has one dimension,
    with a program instance for each tile. `dot` says how the f32 operands of a Contract are
    multiplied: "ieee", "tf32", or after rounding to "bf16" or "f16".

    Raises UserError for a function that GPUs lack, and InternalError for statements that a block
    kernel must not have.
    """
    printer = Printer(name, dot)
    printer.kernel(kernel)
    return printer.module()


class Printer:
    """Prints a kernel; keeps the names of its buffers and the Python expressions of its blocks."""

    _range = "tl.range"

    def __init__(self, name: str, dot: str, reserved: Sequence[str] = ()) -> None:
        self._name, self._dot = name, dot
        self._writer = Writer((name, *function_names(), *reserved))
        self._used: dict[str, None] = {}
        self._blocks: dict[Block, PyExpr] = {}
        self._combines: dict[tuple[str, ...], tuple[str, list[str]]] = {}
        self._program = "tl.program_id(0)"
        self._halves: set[Block] = set()  # blocks that are rounded when a matmul reads them
        self._comments: list[str] = []
        self._parameters: list[str] = []

    def module(self) -> str:
        head = [*self._comments, "@triton.jit", f"def {self._name}({', '.join(self._parameters)}):"]
        body = [f"    {line}" for line in self._writer.lines()]
        return _HEADER + self.functions() + "\n".join([*head, *body]) + "\n"

    def functions(self) -> str:
        """Returns the definitions of the functions that the text calls."""
        combines = ("\n".join(lines) + "\n\n\n" for _, lines in self._combines.values())
        return function_text(self._used) + "".join(combines)

    def kernel(self, kernel: TileKernel) -> None:
        if kernel.locals:
            raise _no_block_kernel("scratch memory")
        writer = self._writer
        indices = self._indices = TritonIndices(writer, index_type(kernel), self._used)
        self._pointers = {b: writer.name(b.name) for b in kernel.buffers}
        sizes = {v: writer.name(v.name) for v in kernel.sizes}
        self._parameters = [*self._pointers.values(), *sizes.values()]
        self._comments = [f"# {line}" for line in self._description(kernel)]
        for var, name in sizes.items():
            if indices.dtype == "tl.int32":
                writer.line(f"{name} = {name}.to(tl.int32)")
            indices.bind(var, PyExpr(name))
        self._bind_axes(kernel.axes)
        self._body(kernel.body)

    def _description(self, kernel: TileKernel) -> list[str]:
        axes = ", ".join(f"{v.key}: 0..{extent(v).key}" for v in kernel.axes)
        lines = [f"A program for each of {axes}" if axes else "One program"]
        for buffer, name in self._pointers.items():
            shape = ",".join(n.key for n in buffer.sizes)
            use = "is written" if buffer.scope is MemorySpace.OUTPUT else "is read"
            lines.append(f"{name}: {buffer.dtype.name}[{shape}] {use}")
        return lines

    def _bind_axes(self, axes: Sequence[Var]) -> None:
        """Prints the positions on the parallel axes, computed from Triton's program id."""
        for var in axes:
            self._indices.bind(var, PyExpr("0"))
        long_axes = [v for v in axes if known_extent(v) != 1]
        if not long_axes:
            return
        first, *inner_axes = long_axes
        stem = "unit" if inner_axes else first.name
        quotient = self._writer.define(stem, self._indices.converted(self._program))
        for number, var in reversed(list(enumerate(inner_axes))):
            size = self._indices.value(extent(var)).operand
            self._indices.bind(var, self._writer.define(var.name, f"{quotient.text} % {size}"))
            name = "rest" if number else first.name
            quotient = self._writer.define(name, f"{quotient.text} // {size}")
        self._indices.bind(first, quotient)

    def _body(self, body: Sequence[Stmt]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: Stmt) -> None:
        match node:
            case Load():
                self._load(node)
            case Store():
                self._store(node)
            case Compute():
                self._compute(node)
            case Contract():
                self._contract(node)
            case Reduce():
                self._reduce(node)
            case Broadcast():
                self._define(node.out, self._spread(self._blocks[node.block].text, node.out))
            case Relayout():
                self._relayout(node)
            case TileLoop():
                self._loop(node)
            case If():
                self._if(node)
            case Prefetch() | Sync():
                raise _no_block_kernel(type(node).__name__)
            case _:
                assert_never(node)

    def _define(self, block: Block, text: str) -> None:
        self._blocks[block] = self._writer.define(block.name, text)

    # ---- memory ------------------------------------------------------------------------------

    def _access(self, node: Load | Store, shape: tuple[int, ...]) -> tuple[str, str, VaryingAxes]:
        """Returns (text of the addresses, text of the mask or "", axes of the access).

        A load has the axes along which the addresses or the mask vary. A store has all axes.
        """
        shapes = {var: block.shape for var, block in node.indirect}
        blocks = {var: self._blocks[block] for var, block in node.indirect}
        position = row_major_position(node.indices, node.buffer.sizes)
        offset = self._indices.value(position, shape, self._narrowed(node, blocks))
        span = full_span = span_of(position, shape, shapes)
        mask = self._mask(node.guards, shape, blocks) if node.guards else ""
        for guard in node.guards:
            full_span |= span_of(guard.index, shape, shapes) | span_of(guard.extent, shape, shapes)
        if isinstance(node, Store):
            # A store needs an address for each element of the block, even along axes with which
            # the address does not vary.
            full_span = block_span(shape)
        text = self._writer.share("at", offset).text if len(offset.text) > 24 else offset.text
        if span != full_span:
            extents = tuple(n if a in full_span.axes else 1 for a, n in enumerate(shape))
            text = self._broadcast(text, extents, self._indices.dtype, span)
        sign = "" if text == "0" else f" + {text}"
        return self._pointers[node.buffer] + sign, mask, full_span

    def _narrowed(self, node: Load | Store, blocks: Mapping[Var, PyExpr]) -> dict[Var, PyExpr]:
        """Returns the value of each data-dependent variable, converted to the type of offsets.

        Values that this type cannot hold are outside the buffer, so guards mask them.
        """
        offsets = {}
        for var, block in node.indirect:
            value = blocks[var]
            if type_name(block.dtype) != self._indices.dtype:
                cast = PyExpr(f"{value.text}.to({self._indices.dtype})", value.depth)
                value = self._writer.share(value.text, cast)
            offsets[var] = value
        return offsets

    def _mask(
        self, guards: Sequence[Guard], shape: tuple[int, ...], blocks: Mapping[Var, PyExpr]
    ) -> str:
        parts = []
        for guard in guards:
            index = self._indices.value(guard.index, shape, blocks)
            stop = self._indices.value(guard.extent, shape, blocks)
            depth = max(index.depth, stop.depth)
            # data may have any value, so its guard is always tested
            loose = any(var in blocks for var in free_vars(guard.index))
            if loose or not nonnegative(guard.index):
                parts.append(PyExpr(f"({index.operand} >= 0)", depth))
            parts.append(PyExpr(f"({index.text} < {stop.text})", depth))
        text = " & ".join(p.text for p in parts)
        text = text[1:-1] if len(parts) == 1 else text
        return self._writer.share("inside", PyExpr(text, max(p.depth for p in parts))).text

    def _load(self, node: Load) -> None:
        shape = node.out.shape
        address, mask, span = self._access(node, shape)
        if mask:
            other = literal_text(node.fill, node.out.dtype)
            mask = f", mask={mask}, other={other}"
        text = f"tl.load({address}{mask})"
        self._define(node.out, text if span.covers(shape) else self._spread(text, node.out, span))

    def _store(self, node: Store) -> None:
        address, mask, _ = self._access(node, node.block.shape)
        mask = f", mask={mask}" if mask else ""
        self._writer.line(f"tl.store({address}, {self._blocks[node.block].text}{mask})")

    # ---- arithmetic --------------------------------------------------------------------------

    def _compute(self, node: Compute) -> None:
        shape, body = node.out.shape, node.body
        if isinstance(body, Const):
            number = literal_text(body.value, body.dtype)
            self._define(node.out, self._full(shape, number, type_name(body.dtype)))
            return
        span = VaryingAxes(frozenset(), False)
        for scalar in walk(body):
            match scalar:
                case Arg():
                    span |= block_span(node.args[scalar.number].shape)
                case IndexValue():
                    span |= span_of(scalar.index, shape, {})
        scalars = Scalars(
            self._writer,
            [self._blocks[b] for b in node.args],
            lambda i: self._indices.value(i, shape),
            self._used,
            rounded=node.out in self._halves,
        )
        (value,) = scalars.values((body,))
        text = value.text
        self._define(node.out, text if span.covers(shape) else self._spread(text, node.out, span))

    def _contract(self, node: Contract) -> None:
        a, b, acc = (self._blocks[block].text for block in (node.a, node.b, node.acc))
        kind, dtype = node.a.dtype, node.acc.dtype
        wide = F32 if dtype in NARROW_FLOATS else dtype
        if wide not in (F32, F64) and kind.bits != 8:
            raise _no_block_kernel(f"a contraction of {kind.name}")
        length = node.a.shape[-1]
        if length < (shortest := _LEAST_SUM[kind.bits == 8]):
            raise _no_block_kernel(f"sums of {length} products, where {shortest} are the least")
        if wide is not dtype:
            acc = f"{acc}.to({type_name(wide)})"
        options = ""
        if kind is F32 and (rounded := _ROUNDED.get(self._dot)):
            a, b = f"{a}.to({rounded})", f"{b}.to({rounded})"
        elif kind is F32:
            options = f', input_precision="{self._dot}"'
        text = f"tl.dot({a}, {b}, {acc}{options}, out_dtype={type_name(wide)})"
        if kind in FLOAT8:
            self._used["float8_dot"] = None
            text = f"float8_dot({a}, {b}, {acc}, {', '.join(float8_facts(kind))})"
        self._define(node.out, f"{text}.to({type_name(dtype)})" if wide is not dtype else text)

    def _reduce(self, node: Reduce) -> None:
        values = [self._blocks[b] for b in node.blocks]
        axes = [n for n in node.axes if node.blocks[0].shape[n] > 1]
        for number, axis in enumerate(axes):
            last = number == len(axes) - 1
            names = [o.name if last else f"{o.name}_{axis}" for o in node.outs]
            if len(values) == 1:
                text = self._reduced(node, values[0], axis)
                values = [self._writer.define(names[0], text)]
                continue
            parts = ", ".join(v.text for v in values)
            call = f"tl.reduce(({parts}), {axis}, {self._combine(node)}, keep_dims=True)"
            components = [self._writer.name(n) for n in names]
            self._writer.line(f"{', '.join(components)} = {call}")
            values = [PyExpr(n, self._writer.depth) for n in components]
        self._blocks.update(zip_equal(node.outs, values))

    def _reduced(self, node: Reduce, value: PyExpr, axis: int) -> str:
        """Returns the text that reduces one component along one axis."""
        dtype = node.blocks[0].dtype
        place = f"{axis}, keep_dims=True"
        sums = node.monoid == "sum" and dtype is not BOOL
        if sums or (node.monoid in ("max", "min") and dtype.is_integer):
            wide = f"{value.text}.to(tl.float32)" if dtype in NARROW_FLOATS else value.text
            text = f"tl.{node.monoid}({wide}, {place})"
            return text if dtype.bits >= 32 else f"{text}.to({type_name(dtype)})"
        return f"tl.reduce({value.text}, {axis}, {self._combine(node)}, keep_dims=True)"

    def _combine(self, node: Reduce) -> str:
        """Returns the name of the function that combines two elements in `tl.reduce`."""
        dtypes = tuple(b.dtype for b in node.blocks)
        key = (node.monoid, *(t.name for t in dtypes))
        if key not in self._combines:
            name = self._writer.name(f"combine_{'_'.join(key)}")
            bodies = MONOIDS[node.monoid].combine(dtypes)
            lines = combine_function(name, bodies, len(dtypes), self._used)
            self._combines[key] = name, lines
        return self._combines[key][0]

    def _relayout(self, node: Relayout) -> None:
        text, source, shape = self._blocks[node.block].text, node.block.shape, node.out.shape
        if list(node.order) != sorted(node.order):
            text = f"tl.permute({text}, ({', '.join(map(str, node.order))}))"
            source = tuple(source[n] for n in node.order)
        if not source or source == shape:
            spread = self._spread(text, node.out, block_span(source))
            text = text if source == shape else spread
        elif shape:
            text = f"tl.reshape({text}, {list(shape)})"
        else:
            # Triton cannot reshape to shape (), so a sum turns the one element into a scalar.
            text = f"tl.sum(tl.reshape({text}, [1]), 0).to({type_name(node.out.dtype)})"
        self._define(node.out, text)

    def _spread(self, text: str, out: Block, span: VaryingAxes = _RANKED) -> str:
        return self._broadcast(text, out.shape, type_name(out.dtype), span)

    def _broadcast(self, text: str, shape: Sequence[int], dtype: str, span: VaryingAxes) -> str:
        """Returns `text`, which varies along the axes in `span`, broadcast to a block of
        `shape`."""
        return f"tl.broadcast_to({text}, {list(shape)})"

    def _full(self, shape: Sequence[int], number: str, dtype: str) -> str:
        return f"tl.full({list(shape)}, {number}, {dtype})"

    # ---- control flow ----------------------------------------------------------------------------

    def _loop(self, node: TileLoop) -> None:
        names = [
            self._writer.define(block.name, self._blocks[init].text).text
            for block, init in zip_equal(node.carried, node.inits)
        ]
        self._steps(node, names)
        for block, name in zip_equal(node.results, names):
            self._blocks[block] = PyExpr(name, self._writer.depth)

    def _steps(self, node: TileLoop, names: Sequence[str]) -> None:
        """Prints a loop; `names` are those of the variables that it carries."""
        writer = self._writer
        head, counter = self._head(node)
        with writer.scope() as lines:
            self._bind_counter(node, counter)
            for block, name in zip_equal(node.carried, names):
                self._blocks[block] = PyExpr(name, writer.depth)
            self._body(node.body)
            if names:
                yields = ", ".join(self._blocks[b].text for b in node.yields)
                writer.line(f"{', '.join(names)} = {yields}")
            self._end_step()
        writer.block(head, lines)

    def _head(self, loop: TileLoop) -> tuple[str, str]:
        """Returns the head of a `for` loop, and the name of its counter."""
        start, stop = (self._indices.value(i).text for i in (loop.start, loop.stop))
        counter = self._writer.name(loop.var.name)
        return f"for {counter} in {self._range}({start}, {stop}, {loop.step}):", counter

    def _bind_counter(self, loop: TileLoop, counter: str) -> None:
        """Binds the loop variable to the counter, which is an int32, inside the loop."""
        inner = PyExpr(counter, self._writer.depth)
        if self._indices.dtype == "tl.int64":
            inner = self._writer.define(f"{loop.var.name}_wide", f"tl.cast({counter}, tl.int64)")
        self._indices.bind(loop.var, inner)

    def _end_step(self) -> None:
        """Prints the last lines of a loop's body; Triton needs none."""

    def _if(self, node: If) -> None:
        lhs, rhs = self._indices.value(node.lhs), self._indices.value(node.rhs)
        with self._writer.scope() as then:
            self._body(node.then)
        with self._writer.scope() as otherwise:
            self._body(node.otherwise)
        self._writer.block(f"if {lhs.text} < {rhs.text}:", then)
        if node.otherwise:
            self._writer.block("else:", otherwise)


def _no_block_kernel(what: str) -> InternalError:
    return InternalError("a kernel is no block kernel", where="backends/gpu", why=f"it has {what}")
