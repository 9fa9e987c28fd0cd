"""Whether a kernel may write a result over an operand: the two buffers are then one memory.

    %a = load %x[4*k+l0] ; %b = compute(%a) ... ; store %b to %y[4*k+l0]      y may lie where x does

It may where every load of the operand stands before a store of the same lanes to the same places,
in one body, and no element is stored twice: then an element is read in the one run of a body that
replaces it, before it is replaced, whichever order and threads units run on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from tcc.ir.expr import extent
from tcc.ir.index import Var, as_int, var_of
from tcc.ir.tile import If, Load, Loop, Stmt, Store, TileBuffer, TileKernel, inner_bodies


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
    for node in body:
        for inner in inner_bodies(node):
            yield from _bodies(inner)


def stored_lanes(kernel: TileKernel, result: int) -> int | None:
    """How many elements all units together store to a buffer, guarded ones and repetitions
    included; None where that depends on symbolic sizes."""
    sizes = {axis: as_int(extent(axis)) for axis in kernel.axes}
    ranges = {axis: (0, size) for axis, size in sizes.items() if size is not None}
    if len(ranges) < len(sizes):
        return None
    counts = list(_stores(kernel.body, kernel.buffers[result], ranges, 1))
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _stores(
    body: Sequence[Stmt], buffer: TileBuffer, axes: Mapping[Var, tuple[int, int]], trips: int | None
) -> Iterator[int | None]:
    """The lanes of each store of `body`, which runs `trips` times for each unit with `axes`; None
    where nobody knows how often it runs."""
    for node in body:
        match node:
            case Store() if node.buffer is buffer:
                units = (max(high - low, 0) for low, high in axes.values())
                yield None if trips is None else prod((trips, *units, *node.block.shape))
            case Loop():
                steps = as_int((node.stop - node.start) // node.step)
                inner = None if trips is None or steps is None else trips * steps
                yield from _stores(node.body, buffer, axes, inner)
            case If():
                yield from _branch_stores(node, buffer, axes, trips)
            case _:
                pass


def _branch_stores(
    node: If, buffer: TileBuffer, axes: Mapping[Var, tuple[int, int]], trips: int | None
) -> Iterator[int | None]:
    """Branches on `axis < number` share the units; how often others run is not known."""
    var, limit = var_of(node.lhs), as_int(node.rhs)
    if var is None or limit is None or var not in axes:
        yield from _stores((*node.then, *node.otherwise), buffer, axes, None)
        return
    low, high = axes[var]
    middle = min(max(limit, low), high)
    yield from _stores(node.then, buffer, {**axes, var: (low, middle)}, trips)
    yield from _stores(node.otherwise, buffer, {**axes, var: (middle, high)}, trips)
