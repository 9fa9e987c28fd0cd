"""Decides whether a kernel may store a result in the memory of an operand.

    %a = load %x[4*k+l0] ; %b = compute(%a) ... ; store %b to %y[4*k+l0]    x and y may share memory

It may if every load of the operand is followed, in the same body, by a store of the same lanes to
the same positions, and if no element is stored twice.  Then the run of the body that overwrites an
element has read the element before, and no other run reads it.  This holds for all orders of tiles
on all threads.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TypeAlias

from tcc.ir.expr import extent, nest_size
from tcc.ir.index import Index, Var, as_index, const, free_vars, maximum, minimum, var_of
from tcc.ir.tile import If, Load, Stmt, Store, TileBuffer, TileKernel, TileLoop, inner_bodies
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import element_count
from tcc.known import all_known


def overwrites(kernel: TileKernel, operand: int, result: int) -> bool:
    """True if each load of `operand` is followed by a store of the same elements to `result`.

    `operand` and `result` are positions in `kernel.buffers`. The load and the store must be in the
    same body, and nothing may load from `result`. The caller also needs `stored_once`.
    """
    source, target = kernel.buffers[operand], kernel.buffers[result]
    if source.dtype is not target.dtype or source.sizes != target.sizes:
        return False
    loads = 0
    for body in _bodies(kernel.body):
        later_stores: list[Store] = []
        for node in reversed(body):
            if isinstance(node, Store) and node.buffer is target:
                later_stores.append(node)
            elif isinstance(node, Load) and node.buffer is target:
                return False
            elif isinstance(node, Load) and node.buffer is source:
                loads += 1
                if not any(_same_lanes(node, store) for store in later_stores):
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
    for node in body:
        for inner in inner_bodies(node):
            yield from _bodies(inner)


def stored_once(kernel: TileKernel, group: TileGroup, result: int) -> bool:
    """True if the tiles store each element of a result only once.

    The stages of the group store different points to different positions, so it suffices that the
    kernel stores as many elements as the group has points.
    """
    points = const(0)
    for stage in group.stages:
        stores = sum(access.buffer == result for targets in stage.stores for access in targets)
        points += stores * nest_size(stage.iters)
    return stored_lanes(kernel, result) == points


def stored_lanes(kernel: TileKernel, result: int) -> Index | None:
    """Returns the number of elements that all tiles together store to a buffer.

    The result is an index of size symbols. Lanes that guards drop and repeated stores count too.
    Returns None if the number depends on more than sizes.
    """
    ranges = {axis: (const(0), extent(axis)) for axis in kernel.axes}
    counts = all_known(_stores(kernel.body, kernel.buffers[result], ranges, const(1)))
    return None if counts is None else sum(counts, const(0))


_Ranges: TypeAlias = Mapping[Var, tuple[Index, Index]]


def _stores(
    body: Sequence[Stmt], buffer: TileBuffer, axes: _Ranges, trips: Index | None
) -> Iterator[Index | None]:
    """Yields the number of elements that each store of `body` to `buffer` stores in all tiles.

    `body` runs in the tiles whose parallel axes are in the ranges `axes`, `trips` times in each.
    Yields None for a store whose number of runs is unknown.
    """
    for node in body:
        match node:
            case Store() if node.buffer is buffer:
                units = (maximum(high - low, 0) for low, high in axes.values())
                lanes = prod(node.block.shape)
                yield None if trips is None else lanes * element_count((trips, *units))
            case TileLoop():
                steps = (node.stop - node.start) // node.step
                inner = None if trips is None or not _of_sizes(steps) else trips * steps
                yield from _stores(node.body, buffer, axes, inner)
            case If():
                yield from _branch_stores(node, buffer, axes, trips)


def _branch_stores(
    node: If, buffer: TileBuffer, axes: _Ranges, trips: Index | None
) -> Iterator[Index | None]:
    """Yields the number of elements that each store in the branches stores in all tiles.

    A condition `axis < size` divides the tiles between the branches. For other conditions the
    number of runs is unknown, so None is yielded for each store.
    """
    var, limit = var_of(node.lhs), as_index(node.rhs)
    if var is None or var not in axes or not _of_sizes(limit):
        yield from _stores((*node.then, *node.otherwise), buffer, axes, None)
        return
    low, high = axes[var]
    middle = minimum(maximum(limit, low), high)
    yield from _stores(node.then, buffer, {**axes, var: (low, middle)}, trips)
    yield from _stores(node.otherwise, buffer, {**axes, var: (middle, high)}, trips)


def _of_sizes(index: Index) -> bool:
    return all(var.extent is None for var in free_vars(index))
