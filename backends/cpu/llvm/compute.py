"""Element-wise computations on blocks.

Code is emitted register by register, in the order of the result. Each scalar of a body varies along
some axes only, its natural shape. It is computed once for each register of its natural shape, and
repeated over lanes only if a wider use needs it.
"""

from collections.abc import Mapping, Sequence
from itertools import islice, product

from tcc.backends.cpu.llvm.blocks import (
    Chunk,
    RegisterBlock,
    last_axis,
    part,
    register_element,
    row_number,
    row_positions,
    vector_chunks,
)
from tcc.backends.cpu.llvm.indices import LlvmIndices, lane_of
from tcc.backends.cpu.llvm.scalars import convert, emit_scalar, joint_function
from tcc.backends.cpu.llvm.storage import round_to
from tcc.backends.cpu.llvm.text import Code, Reg, int_const
from tcc.backends.cpu.llvm.values import LlvmValue
from tcc.backends.cpu.math.table import MATH
from tcc.ir.expr.scalar import Apply, Arg, IndexValue, Scalar, children, walk
from tcc.ir.index import (
    const,
    free_vars,
    substitute,
    within,
)
from tcc.ir.tile import Compute, lanes
from tcc.ir.types import BOOL, F64, I64
from tcc.zipped import zip_equal

_ONE = Chunk(0, 1, 1)


class LaneScalars:
    """A scalar body over blocks; `at` emits its value for one register of the result."""

    def __init__(
        self,
        indices: LlvmIndices,
        root: Scalar,
        args: Sequence[RegisterBlock],
        shape: tuple[int, ...],
    ) -> None:
        self._indices = indices
        self._args = args
        self._shape = shape
        self._lanes = free_vars(*lanes(shape))
        self._order = walk(root)
        self._varying: dict[Scalar, frozenset[int]] = {}
        for node in self._order:
            self._varying[node] = self._axes(node)
        self._known: dict[tuple[Scalar, tuple[int, ...], Chunk], Reg] = {}

    @property
    def _code(self) -> Code:
        return self._indices.code

    def _axes(self, node: Scalar) -> frozenset[int]:
        """Returns the axes of the result along which `node` varies."""
        rank = len(self._shape)
        match node:
            case Arg():
                shape = self._args[node.number].shape
                skip = rank - len(shape)
                return frozenset(skip + n for n, size in enumerate(shape) if size != 1)
            case IndexValue():
                free = free_vars(node.index)
                return frozenset(n for n, lane in enumerate(self._lanes) if lane in free)
            case _:
                return frozenset(a for c in children(node) for a in self._varying[c])

    def at(self, node: Scalar, position: tuple[int, ...], chunk: Chunk) -> Reg:
        """Returns the value of `node` for the elements of `chunk` in the row `position`."""
        varying, last = self._varying[node], len(self._shape) - 1
        natural_chunk = chunk if last in varying else _ONE
        row = tuple(p if n in varying else 0 for n, p in enumerate(position))
        key = (node, row, natural_chunk)
        if key not in self._known:
            self._known[key] = self._emit(node, row, natural_chunk)
        return self._code.splat(self._known[key], chunk.width)

    def _emit(self, node: Scalar, position: tuple[int, ...], chunk: Chunk) -> Reg:
        match node:
            case IndexValue():
                return self._index(node, position, chunk)
            case Arg():
                value = self._args[node.number]
                return part(self._code, value, row_number(value.shape, position), chunk)
            case Apply() if joint := joint_function(node):
                function, inner = joint
                return function(LlvmValue(self._code, self.at(inner, position, chunk))).reg
            case _:
                args = [self.at(c, position, chunk) for c in children(node)]
                return emit_scalar(self._code, node, args, chunk.width)

    def _index(self, node: IndexValue, position: tuple[int, ...], chunk: Chunk) -> Reg:
        mapping = {v: const(p) for v, p in zip(self._lanes, position, strict=False)}
        mapping |= {v: const(chunk.start) + lane_of(chunk) for v in self._lanes[-1:]}
        index = substitute(node.index, mapping)
        positions = LlvmValue(self._code, self._indices.lanes(index, chunk))
        if not node.dtype.is_float:
            return convert(positions, I64, node.dtype).reg
        if within(index + 2**31, const(2**32)):
            positions = positions.convert("trunc", "i32")
        elem = "double" if node.dtype is F64 else "float"
        return round_to(positions.convert("sitofp", elem), node.dtype).reg


def compute(
    indices: LlvmIndices, node: Compute, values: Mapping[int, RegisterBlock]
) -> RegisterBlock:
    """Returns the result of a Compute statement; `values` are its arguments by number."""
    shape = node.out.shape
    args = [values[n] for n in range(len(node.args))]
    chunks = vector_chunks(last_axis(shape), indices.code.module.lanes)
    if len(row_positions(shape)) > 1 and _is_long(node, args):
        regs = _row_by_row(indices, node, args, chunks)
    else:
        body = LaneScalars(indices, node.body, args, shape)
        regs = [body.at(node.body, *place) for place in product(row_positions(shape), chunks)]
    return RegisterBlock(node.out.dtype, shape, chunks, tuple(regs))


def _is_long(node: Compute, args: Sequence[RegisterBlock]) -> bool:
    """Returns True if the body calls a function of many instructions, and can be computed in a loop
    over rows.

    The loop (`_row_by_row`) cannot compute a body that uses positions, or blocks of bool, whose
    elements are single bits in registers.
    """
    nodes = walk(node.body)
    return (
        any(isinstance(n, Apply) and n.function in MATH for n in nodes)
        and not any(isinstance(n, IndexValue) for n in nodes)
        and BOOL not in (node.out.dtype, *(arg.dtype for arg in args))
    )


def _row_by_row(
    indices: LlvmIndices, node: Compute, args: Sequence[RegisterBlock], chunks: tuple[Chunk, ...]
) -> list[Reg]:
    """Computes the registers of the result with an LLVM function that loops over rows.

    The loop keeps LLVM's compile time low: each math function takes many instructions, and blocks
    of the same shape share one function. It is not inlined, because the constants of its loop would
    displace accumulators from the registers of the loops around the call.

    Operands pass through a table on the stack. Each row has a slot for the operands that differ
    between rows, and its results overwrite the slot. The operands that all rows share follow the
    rows.
    """
    code, positions = indices.code, row_positions(node.out.shape)
    cuts = [chunks if last_axis(arg.shape) > 1 else (_ONE,) for arg in args]
    operands = [(arg, chunk) for arg, pieces in zip_equal(args, cuts) for chunk in pieces]
    row_regs = [
        [part(code, arg, row_number(arg.shape, position), chunk) for arg, chunk in operands]
        for position in positions
    ]
    varying = [n for n, column in enumerate(zip_equal(*row_regs)) if len(set(column)) > 1]
    constant = [n for n in range(len(operands)) if n not in varying]
    results = [Reg(register_element(node.out.dtype), chunk.width, "") for chunk in chunks]
    size = max(reg.bytes for reg in (*row_regs[0], *results))
    stride = size * max(len(varying), len(results))
    table = code.stack(stride * len(positions) + size * len(constant))

    def place(code: Code, row: Reg, column: int) -> Reg:
        first = code.offset(table, row, f"[{stride} x i8]")
        return code.offset(first, int_const(column), f"[{size} x i8]")

    def load(code: Code, like: Reg, row: Reg, column: int) -> Reg:
        return code.load(like.elem, like.width, place(code, row, column), like.bytes)

    def store(code: Code, reg: Reg, row: Reg, column: int) -> None:
        code.void(f"store {reg}, {place(code, row, column)}, align {reg.bytes}")

    for number, regs in enumerate((*row_regs, row_regs[0])):
        for column, n in enumerate(varying if number < len(row_regs) else constant):
            store(code, regs[n], int_const(number), column)
    inner, rows = Code(code.module), Reg("i64", 1, "%rows")
    loaded = {n: load(inner, row_regs[0][n], rows, column) for column, n in enumerate(constant)}
    with inner.repeat(rows) as row:
        loaded |= {n: load(inner, row_regs[0][n], row, column) for column, n in enumerate(varying)}
        regs_left = iter([loaded[n] for n in range(len(operands))])
        one_row = [
            RegisterBlock(
                arg.dtype,
                (1, last_axis(arg.shape)),
                pieces,
                tuple(islice(regs_left, len(pieces))),
            )
            for arg, pieces in zip_equal(args, cuts)
        ]
        shape = 1, last_axis(node.out.shape)
        body = LaneScalars(LlvmIndices(inner), node.body, one_row, shape)
        for column, chunk in enumerate(chunks):
            store(inner, body.at(node.body, (0,), chunk), row, column)
    name = code.module.procedure(f"(ptr {table.text}, {rows})", inner.text())
    code.void(f"call void @{name}({table}, {int_const(len(positions))})")
    return [
        load(code, like, int_const(number), column)
        for number in range(len(positions))
        for column, like in enumerate(results)
    ]


def combine(code: Code, bodies: Sequence[Scalar], args: Sequence[Reg]) -> tuple[Reg, ...]:
    """Returns the values of the scalars `bodies`, in which `Arg` n stands for `args[n]`.

    All registers have the same number of lanes.
    """
    values: dict[Scalar, Reg] = {}
    for node in walk(*bodies):
        if isinstance(node, Arg):
            values[node] = args[node.number]
        else:
            inner = [values[c] for c in children(node)]
            values[node] = emit_scalar(code, node, inner, args[0].width)
    return tuple(values[b] for b in bodies)
