"""Recognises block kernels that Hopper's warpgroups multiply: a product of tiles in a loop.

    acc = 0; for k: a = load box, b = load box, acc += a . b;  pointwise on acc;  stores

The names of nothing matter.  What is not surely of this shape is left to Triton.
"""

from __future__ import annotations

from collections.abc import Sequence

from tcc.backends.gpu.hopper.boxes import Box, box_of
from tcc.ir.expr import extent
from tcc.ir.expr.scalar import Const
from tcc.ir.index import as_int
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    Load,
    Loop,
    MemorySpace,
    Stmt,
    Store,
    TileBuffer,
    TileKernel,
)
from tcc.ir.types import BF16, F16, F32
from tcc.record import record

# Tiles that are worth warps of their own: a multiprocessor has room for one of these only.
_SIDES = (128, 256)
_MOST = 1 << 15  # elements of a tile in the registers of two warpgroups
_LEAST_TRIPS = 4
# The copy engine's alignment of a tensor, in bytes.
ALIGNED = 16


@record
class MatmulOperand:
    """One side of the product: the block that the loop loads, and where its box lies."""

    buffer: TileBuffer
    block: Block
    box: Box


@record
class MatrixKernel:
    """A kernel of one product: `loop` adds `a` times `b` to `acc`, then come `after`.

    `boxes` are the stores of `after` that the copy engine can do.
    """

    kernel: TileKernel
    loop: Loop
    contract: Contract
    a: MatmulOperand
    b: MatmulOperand
    after: tuple[Stmt, ...]
    boxes: tuple[tuple[Store, Box], ...]

    @property
    def rows(self) -> int:
        return self.contract.out.shape[0]

    @property
    def columns(self) -> int:
        return self.contract.out.shape[1]


def matrix_kernel(kernel: TileKernel, alignments: Sequence[int]) -> MatrixKernel | None:
    """The kernel as a product of tiles, or None; `alignments` are those of its buffers in bytes."""
    if kernel.sizes or kernel.locals or kernel.in_place or _units(kernel) is None:
        return None
    aligned = {b for b, n in zip(kernel.buffers, alignments, strict=True) if n % ALIGNED == 0}
    loops = [n for n, node in enumerate(kernel.body) if isinstance(node, Loop)]
    if len(loops) != 1:
        return None
    loop = kernel.body[loops[0]]
    assert isinstance(loop, Loop)
    before, after = kernel.body[: loops[0]], kernel.body[loops[0] + 1 :]
    contract = _product(loop)
    if contract is None or not _is_zero(before, loop) or not _is_epilogue(after):
        return None
    a, b = (_operand(loop, block, aligned) for block in (contract.a, contract.b))
    if a is None or b is None or not _fits(contract, loop):
        return None
    boxes = tuple(
        (node, box)
        for node in after
        if isinstance(node, Store) and (box := _stored(node, contract, aligned)) is not None
    )
    return MatrixKernel(kernel, loop, contract, a, b, after, boxes)


def _units(kernel: TileKernel) -> int | None:
    """How many there are, where sizes are known."""
    count = 1
    for var in kernel.axes:
        size = as_int(extent(var))
        if size is None:
            return None
        count *= size
    return count


def _product(loop: Loop) -> Contract | None:
    """The product, where the loop does nothing else than load its operands and add it up."""
    contracts = [node for node in loop.body if isinstance(node, Contract)]
    loads = [node for node in loop.body if isinstance(node, Load)]
    if len(contracts) != 1 or len(loads) != 2 or len(loop.body) != 3:
        return None
    (node,) = contracts
    if loop.carried != (node.acc,) or loop.yields != (node.out,) or len(node.out_axes) != 2:
        return None
    m, n = node.out_axes
    if node.a_axes[0] != m or node.b_axes[1] != n or node.a_axes[1] != node.b_axes[0]:
        return None
    halves = node.a.dtype is node.b.dtype and node.a.dtype in (BF16, F16)
    return node if halves and node.acc.dtype is F32 and node.a is not node.b else None


def _is_zero(before: Sequence[Stmt], loop: Loop) -> bool:
    """Whether the sum starts at zero, and that is all there is before it."""
    if len(before) != 1 or not isinstance(node := before[0], Compute):
        return False
    return loop.inits == (node.out,) and isinstance(node.body, Const) and node.body.value == 0


def _is_epilogue(after: Sequence[Stmt]) -> bool:
    """Only what is done element by element: no block changes its axes."""
    for node in after:
        if not isinstance(node, Load | Store | Compute | Broadcast):
            return False
        if len((node.block if isinstance(node, Store) else node.out).shape) != 2:
            return False
        if isinstance(node, Load) and (node.buffer.scope is MemorySpace.OUTPUT or node.indirect):
            return False
    return any(isinstance(node, Store) for node in after)


def _operand(loop: Loop, block: Block, aligned: set[TileBuffer]) -> MatmulOperand | None:
    for node in loop.body:
        if isinstance(node, Load) and node.out is block and node.buffer in aligned:
            box = box_of(node)
            return None if box is None else MatmulOperand(node.buffer, block, box)
    return None


def _fits(contract: Contract, loop: Loop) -> bool:
    rows, columns = contract.out.shape
    start, stop = as_int(loop.start), as_int(loop.stop)
    if start is None or stop is None or (stop - start) // loop.step < _LEAST_TRIPS:
        return False
    return rows in _SIDES and columns in _SIDES and rows * columns <= _MOST


def _stored(node: Store, contract: Contract, aligned: set[TileBuffer]) -> Box | None:
    """The box of a whole tile of halves; wider elements fill sectors of memory from registers."""
    if node.block.shape != contract.out.shape or node.block.dtype.bits != 16:
        return None
    box = box_of(node) if node.buffer in aligned else None
    return None if box is None or box.turned else box
