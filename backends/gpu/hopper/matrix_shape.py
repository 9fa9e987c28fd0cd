"""Recognises block kernels for Hopper's warpgroups: a loop that accumulates one matmul.

    acc = 0; for k: a = load box, b = load box, acc += a . b;  pointwise on acc;  stores

Operands are f16, bf16, i8, or f32 that is multiplied as TF32. Names do not matter. Triton compiles
all kernels that do not certainly have this shape.
"""

from collections.abc import Collection, Sequence

from tcc.backends.gpu.hopper.boxes import (
    Box,
    BoxOperand,
    aligned_buffers,
    around_loop,
    box_of,
    operand_of,
)
from tcc.frozen import frozen
from tcc.ir.expr.scalar import Const
from tcc.ir.index import as_int
from tcc.ir.tile import (
    Broadcast,
    Compute,
    Contract,
    Load,
    MemorySpace,
    Stmt,
    Store,
    TileBuffer,
    TileKernel,
    TileLoop,
)
from tcc.ir.types import BF16, F16, F32, I8, I32

# Extra warps for copies pay if the rows and the columns of a tile are both among these numbers. A
# multiprocessor has room for only one such tile, so no other tile's warps can hide the copies.
_TILE_SIZES = (128, 256)
_MOST_ELEMENTS = 1 << 15  # elements of a tile that fit into the registers of two warpgroups
_LEAST_TRIPS = 4


@frozen
class MatrixKernel:
    """A kernel of one matmul: `loop` adds `a` times `b` to the accumulator, then `after` follows.

    `contract` is the matmul. `boxes` are the stores of `after` that the copy engine can do, with
    their boxes.
    """

    kernel: TileKernel
    loop: TileLoop
    contract: Contract
    a: BoxOperand
    b: BoxOperand
    after: tuple[Stmt, ...]
    boxes: tuple[tuple[Store, Box], ...]


def matrix_kernel(kernel: TileKernel, alignments: Sequence[int], dot: str) -> MatrixKernel | None:
    """Returns the kernel as a matmul, or None if it has another form.

    `alignments` has the alignment of each buffer of the kernel in bytes. `dot` says how f32
    operands are multiplied.
    """
    parts = around_loop(kernel)
    if parts is None:
        return None
    before, loop, after = parts
    contract = _matmul(loop, dot)
    if contract is None or not (_is_zero(before, loop) and _is_epilogue(after)):
        return None
    aligned = aligned_buffers(kernel, alignments)
    loads = {node.out: node for node in loop.body if isinstance(node, Load)}
    a, b = (operand_of(loads.get(block), aligned) for block in (contract.a, contract.b))
    if a is None or b is None or not _fits(contract, loop):
        return None
    # The units read operands of other types than 16 bits only along the sum.
    if contract.a.dtype.bits != 16 and (a.box.transposed or not b.box.transposed):
        return None
    boxes = tuple(
        (node, box)
        for node in after
        if isinstance(node, Store) and (box := _stored(node, contract, aligned)) is not None
    )
    return MatrixKernel(kernel, loop, contract, a, b, after, boxes)


def _matmul(loop: TileLoop, dot: str) -> Contract | None:
    """Returns the matmul if the loop does nothing but load its operands and accumulate it, else
    None."""
    match loop.body:
        case (Load(), Load(), Contract(a=a, b=b) as node):
            sums = loop.carried == (node.acc,) and loop.yields == (node.out,)
            pairs = {(BF16, F32), (F16, F32), (I8, I32)} | (
                {(F32, F32)} if dot == "tf32" else set()
            )
            fits = a.dtype is b.dtype and (a.dtype, node.acc.dtype) in pairs
            return node if sums and fits and a is not b and len(node.out_axes) == 2 else None
    return None


def _is_zero(before: Sequence[Stmt], loop: TileLoop) -> bool:
    """True if the only statement before the loop sets the accumulator to zero."""
    match before:
        case (Compute(body=Const(value=0)) as node,):
            return loop.inits == (node.out,)
    return False


def _is_epilogue(after: Sequence[Stmt]) -> bool:
    """True if all statements are element-wise and keep both axes, and at least one of them
    stores."""
    for node in after:
        if not isinstance(node, Load | Store | Compute | Broadcast):
            return False
        if len((node.block if isinstance(node, Store) else node.out).shape) != 2:
            return False
        if isinstance(node, Load) and (node.buffer.scope is MemorySpace.OUTPUT or node.indirect):
            return False
    return any(isinstance(node, Store) for node in after)


def _fits(contract: Contract, loop: TileLoop) -> bool:
    rows, columns = contract.out.shape
    start, stop = as_int(loop.start), as_int(loop.stop)
    if start is None or stop is None or (stop - start) // loop.step < _LEAST_TRIPS:
        return False
    return rows in _TILE_SIZES and columns in _TILE_SIZES and rows * columns <= _MOST_ELEMENTS


def _stored(node: Store, contract: Contract, aligned: Collection[TileBuffer]) -> Box | None:
    """Returns the box that `node` stores if the copy engine should store it, else None.

    The engine stores complete tiles of 16-bit elements. For wider elements it gains nothing,
    because stores from registers fill complete sectors of memory.
    """
    if node.block.shape != contract.out.shape or node.block.dtype.bits != 16:
        return None
    box = box_of(node) if node.buffer in aligned else None
    return None if box is None or box.transposed else box
