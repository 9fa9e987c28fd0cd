"""The verifier of GPU kernels: the facts on which a GPU backend may rely beyond `verify_kernel`.

Extents of blocks are powers of two.  Contractions are matmuls with at most one batch axis.  There
is no local memory, prefetch or barrier.  Every buffer has a single axis.  Conditions of branches
contain only size symbols.
"""

from collections.abc import Iterator
from math import prod

from tcc.errors import require_none
from tcc.ir.index import free_vars
from tcc.ir.tile import (
    Contract,
    If,
    Prefetch,
    Sync,
    TileKernel,
    defined_blocks,
    walk_statements,
)

# The maximum number of elements of a block, and the minimum extent of an axis of a matmul's blocks.
LARGEST = 1 << 20
LEAST_SIDE = 16


def verify_blocks(kernel: TileKernel) -> None:
    """Checks a GPU kernel that `verify_kernel` has accepted.

    Raises `InternalError` whose `why` lists every problem, one on each line.
    """
    require_none("not a block kernel", _problems(kernel))


def _problems(kernel: TileKernel) -> Iterator[str]:
    for buffer in kernel.locals:
        yield f"buffer {buffer.name} is local"
    for buffer in kernel.buffers:
        if len(buffer.sizes) != 1:
            yield f"buffer {buffer.name} is not flat"
    for node in walk_statements(kernel.body):
        for block in defined_blocks(node):
            if any(size & (size - 1) for size in block.shape):
                yield f"%{block.name} has an axis that is no power of two: {block.shape}"
            if prod(block.shape) > LARGEST:
                yield f"%{block.name} is too large: {block.shape}"
        match node:
            case Contract():
                yield from _contract(node)
            case If():
                if any(v.extent is not None for i in (node.lhs, node.rhs) for v in free_vars(i)):
                    yield "a condition is over loops"
            case Prefetch() | Sync():
                yield f"a {type(node).__name__} is in the body"


def _contract(node: Contract) -> Iterator[str]:
    where = f"contract of %{node.out.name}"
    *batch, m, n = node.out_axes
    if len(batch) > 1:
        yield f"{where}: several batch axes"
    if node.a_axes[:-1] != (*batch, m) or node.b_axes != (*batch, node.a_axes[-1], n):
        yield f"{where}: {node.a_axes} x {node.b_axes} are no matrices for {node.out_axes}"
        return
    extents = (*node.out.shape[-2:], node.a.shape[-1])
    if min(extents) < LEAST_SIDE:
        yield f"{where}: a side is below {LEAST_SIDE}: {extents}"
