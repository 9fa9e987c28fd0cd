"""Whether a kernel may write a result over an operand: the two buffers are then one memory.

    %a = load %x[4*k+l0] ; %b = compute(%a) ... ; store %b to %y[4*k+l0]      y may lie where x does

It may where every load of the operand stands before a store of the same lanes to the same places,
in one body, and no element is stored twice: then an element is read in the one run of a body that
replaces it, before it is replaced, whichever order and threads units run on.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TypeAlias

from tcc.ir.expr import extent
from tcc.ir.index import Index, Var, as_index, const, free_vars, maximum, minimum, var_of
from tcc.ir.tile import If, Load, Loop, Stmt, Store, TileBuffer, TileKernel, inner_bodies
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import element_count
from tcc.known import all_known


def overwrites(kernel: TileKernel, operand: int, result: int) -> bool:
    """Whether buffer `operand` is only read where the same body then stores to buffer `result`.

    That each element is stored once is a fact of its own: `stored_once` tells.
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
    for node in body:
        for inner in inner_bodies(node):
            yield from _bodies(inner)


def stored_once(kernel: TileKernel, group: TileGroup, result: int) -> bool:
    """Whether units store no point of the group twice; different points lie at different places."""
    points = const(0)
    for stage in group.stages:
        stores = sum(access.buffer == result for targets in stage.stores for access in targets)
        points += stores * element_count(tuple(map(extent, stage.iters)))
    return stored_lanes(kernel, result) == points


def stored_lanes(kernel: TileKernel, result: int) -> Index | None:
    """How many elements all units together store to a buffer, guarded ones and repetitions
    included, by sizes; None where more than sizes decides that."""
    ranges = {axis: (const(0), extent(axis)) for axis in kernel.axes}
    counts = all_known(_stores(kernel.body, kernel.buffers[result], ranges, const(1)))
    return None if counts is None else sum(counts, const(0))


_Ranges: TypeAlias = Mapping[Var, tuple[Index, Index]]


def _stores(
    body: Sequence[Stmt], buffer: TileBuffer, axes: _Ranges, trips: Index | None
) -> Iterator[Index | None]:
    """The lanes of each store of `body`, which runs `trips` times for each unit with `axes`; None
    where nobody knows how often it runs."""
    for node in body:
        match node:
            case Store() if node.buffer is buffer:
                units = (maximum(high - low, 0) for low, high in axes.values())
                lanes = prod(node.block.shape)
                yield None if trips is None else lanes * element_count((trips, *units))
            case Loop():
                steps = (node.stop - node.start) // node.step
                inner = None if trips is None or not _of_sizes(steps) else trips * steps
                yield from _stores(node.body, buffer, axes, inner)
            case If():
                yield from _branch_stores(node, buffer, axes, trips)
            case _:
                pass


def _branch_stores(
    node: If, buffer: TileBuffer, axes: _Ranges, trips: Index | None
) -> Iterator[Index | None]:
    """Branches on `axis < size` share the units; how often others run is not known."""
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
