"""Finds the statements that are the same for every tile: a thread runs them once for all its tiles.

tile u { s[:] = normalised x[:] ; y[u] = sum(k) s[k] * w[u, k] }     the first is the same for all u
"""

from collections.abc import Iterator, Sequence

from tcc.ir.expr.scalar import index_values
from tcc.ir.index import Index, Var, free_vars
from tcc.ir.tile import (
    Compute,
    If,
    Load,
    MemorySpace,
    Prefetch,
    Stmt,
    Store,
    TileBuffer,
    TileKernel,
    TileLoop,
    walk_statements,
)


def same_for_all(kernel: TileKernel) -> int:
    """Returns how many of the body's first statements are the same in every tile.

    Their only effects are stores to scratch that no later statement overwrites.
    """
    count = 0
    axes = frozenset(kernel.axes)
    while count < len(kernel.body) and _plain(kernel.body[count], axes):
        count += 1
    while count and _stored(kernel.body[:count]) & _stored(kernel.body[count:]):
        count -= 1
    # The last of these statements must be a store, so that no value stays in a register from them
    # to the tiles.
    while count and not _stored(kernel.body[count - 1 : count]):
        count -= 1
    return count


def _plain(statement: Stmt, axes: frozenset[Var]) -> bool:
    """True if a statement depends on no axis, stores only to scratch and loads no results."""
    for node in walk_statements((statement,)):
        if any(axes.intersection(free_vars(i)) for i in _indices(node)):
            return False
        if isinstance(node, Store) and not node.buffer.is_local:
            return False
        if isinstance(node, Load) and node.buffer.scope is MemorySpace.OUTPUT:
            return False
    return True


def _stored(body: Sequence[Stmt]) -> set[TileBuffer]:
    return {node.buffer for node in walk_statements(body) if isinstance(node, Store)}


def _indices(node: Stmt) -> Iterator[Index]:
    """Yields the indices that a statement itself computes, without those of inner statements."""
    match node:
        case Load() | Store() | Prefetch():
            yield from node.indices
            if not isinstance(node, Prefetch):
                yield from (i for g in node.guards for i in (g.index, g.extent))
        case Compute():
            yield from index_values(node.body)
        case TileLoop():
            yield from (node.start, node.stop)
        case If():
            yield from (node.lhs, node.rhs)
        case _:
            pass
