"""Whether a kernel may write a result over an operand: the two buffers are then one memory.

    %a = load %x[4*k+l0] ; %b = compute(%a) ... ; store %b to %y[4*k+l0]      y may lie where x does

It may where every load of the operand stands before a store of the same lanes to the same places,
in one body, and no element is stored twice: then an element is read in the one run of a body that
replaces it, before it is replaced, whichever order and threads units run on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tcc.ir.expr import extent
from tcc.ir.index import Var, as_int, var_of
from tcc.ir.tile import If, Load, Loop, Stmt, Store, TileBuffer, TileKernel, walk_statements


def overwrites(kernel: TileKernel, operand: int, result: int) -> bool:
    """Whether buffer `operand` is only read where the same body then stores to buffer `result`.

    That each element is stored once is a fact of its own: `stored_lanes` tells.
    """
    source, target = kernel.buffers[operand], kernel.buffers[result]
    if source.dtype is not target.dtype or source.sizes != target.sizes:
        return False
    loads = 0
    for body in _bodies(kernel.body):
        stored: list[Store] = []
        for node in reversed(body):
            if isinstance(node, Store) and node.buffer is target:
                stored.append(node)
            elif isinstance(node, Load) and node.buffer is target:
                return False
            elif isinstance(node, Load) and node.buffer is source:
                loads += 1
                if not any(_same_lanes(node, store) for store in stored):
                    return False
    return loads > 0


def _same_lanes(load: Load, store: Store) -> bool:
    return (
        load.indices == store.indices
        and load.out.shape == store.block.shape
        and (not store.guards or load.guards == store.guards)
        and not load.indirect
        and not store.indirect
    )


def _bodies(body: Sequence[Stmt]) -> Iterator[Sequence[Stmt]]:
    yield body
    for node in walk_statements(body):
        if isinstance(node, Loop):
            yield node.body
        elif isinstance(node, If):
            yield from (node.then, node.otherwise)


def stored_lanes(kernel: TileKernel, result: int) -> int | None:
    """How many elements all units together store to a buffer, guarded ones and repetitions
    included; None where that depends on symbolic sizes."""
    ranges: dict[Var, tuple[int, int]] = {}
    for axis in kernel.axes:
        size = as_int(extent(axis))
        if size is None:
            return None
        ranges[axis] = (0, size)
    return _count(kernel.body, kernel.buffers[result], ranges, 1)


def _count(
    body: Sequence[Stmt], buffer: TileBuffer, axes: Mapping[Var, tuple[int, int]], trips: int
) -> int | None:
    """The lanes that `body` stores; it runs `trips` times for each unit with `axes`."""
    total = 0
    for node in body:
        found: int | None = 0
        if isinstance(node, Store) and node.buffer is buffer:
            found = trips
            for low, high in axes.values():
                found *= max(high - low, 0)
            for size in node.block.shape:
                found *= size
        elif isinstance(node, Loop):
            steps = as_int((node.stop - node.start) // node.step)
            if _stores(node.body, buffer):
                found = None if steps is None else _count(node.body, buffer, axes, trips * steps)
        elif isinstance(node, If):
            found = _count_branches(node, buffer, axes, trips)
        if found is None:
            return None
        total += found
    return total


def _stores(body: Sequence[Stmt], buffer: TileBuffer) -> bool:
    every = walk_statements(body)
    return any(isinstance(node, Store) and node.buffer is buffer for node in every)


def _count_branches(
    node: If, buffer: TileBuffer, axes: Mapping[Var, tuple[int, int]], trips: int
) -> int | None:
    """Branches on `axis < number` share the units; others may not store to the buffer at all."""
    var, limit = var_of(node.lhs), as_int(node.rhs)
    if var is None or limit is None or var not in axes:
        return None if _stores((*node.then, *node.otherwise), buffer) else 0
    low, high = axes[var]
    cut = min(max(limit, low), high)
    then = _count(node.then, buffer, {**axes, var: (low, cut)}, trips)
    otherwise = _count(node.otherwise, buffer, {**axes, var: (cut, high)}, trips)
    return None if then is None or otherwise is None else then + otherwise
