"""Evaluates tile kernels with NumPy: the meaning of `ir.tile` as executable text.

Units run one by one in a seeded random order. Every LOCAL buffer starts poisoned in each unit.
Every active access is checked against the sizes of its buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, assert_never

import numpy as np
from tcc.ir.expr import MONOIDS, extent
from tcc.ir.expr.evaluate import evaluate_scalars
from tcc.ir.graph import carrier
from tcc.ir.index import evaluate
from tcc.ir.op import Array
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    If,
    Load,
    Prefetch,
    Reduce,
    Relayout,
    Stmt,
    Store,
    Sync,
    TileBuffer,
    TileKernel,
    TileLoop,
)
from tcc.ir.types import DType


def evaluate_kernel(
    kernel: TileKernel,
    arrays: Sequence[Array],
    sizes: Mapping[str, int],
    rng: np.random.Generator | None = None,
    units: Sequence[int] | None = None,
) -> None:
    """Runs every unit; `arrays` are the kernel's buffers in order, outputs are written in place.

    `units` selects units, None means all. Raises IndexError if an active access leaves its buffer.
    """
    order = rng or np.random.default_rng(0)
    extents = [int(evaluate(extent(axis), sizes)) for axis in kernel.axes]
    order_of_units = (
        int(np.prod(extents, dtype=np.int64)) if units is None else np.asarray(units, np.int64)
    )
    with np.errstate(all="ignore"):
        for unit in order.permutation(order_of_units):
            at = np.unravel_index(unit, extents) if extents else ()
            env = dict(sizes) | {v.name: int(n) for v, n in zip(kernel.axes, at, strict=True)}
            memory = dict(zip(kernel.buffers, arrays, strict=True))
            memory |= {buffer: _poisoned(buffer, env) for buffer in kernel.locals}
            _Unit(memory, env).run(kernel.body)


@cache
def _lanes(shape: tuple[int, ...]) -> dict[str, Array]:
    lanes = np.ix_(*(np.arange(size, dtype=np.int64) for size in shape))
    return {f"l{axis}": along for axis, along in enumerate(lanes)}


def _full(value: Array | int, shape: tuple[int, ...]) -> Array:
    """Does the work of `np.broadcast_to`, which would take longer than all else here."""
    array = np.asarray(value)
    return array if array.shape == shape else np.broadcast_to(array, shape)


def _poisoned(buffer: TileBuffer, env: Mapping[str, int]) -> Array:
    shape = [int(evaluate(size, env)) for size in buffer.sizes]
    if buffer.dtype.is_float:
        return np.full(shape, np.nan, buffer.dtype.carrier)
    return np.full(shape, 0x55, np.uint8).astype(buffer.dtype.carrier)


class _Unit:
    """The memory, variables and blocks of one tile."""

    def __init__(self, memory: Mapping[TileBuffer, Array], env: dict[str, int]) -> None:
        self._memory, self._env = memory, env
        self._blocks: dict[Block, Array] = {}

    def run(self, body: Sequence[Stmt]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: Stmt) -> None:
        blocks = self._blocks
        match node:
            case Load():
                self._load(node)
            case Store():
                self._store(node)
            case Compute():
                args = [blocks[b] for b in node.args]
                grid = self._grid(node.out.shape)
                (value,) = evaluate_scalars((node.body,), grid, args)
                self._define(node.out, _full(value, node.out.shape))
            case Contract():
                self._contract(node)
            case Reduce():
                self._reduce(node)
            case Broadcast():
                self._define(node.out, _full(blocks[node.block], node.out.shape))
            case Relayout():
                transposed = blocks[node.block].transpose(node.order)
                self._define(node.out, transposed.reshape(node.out.shape))
            case TileLoop():
                self._loop(node)
            case If():
                holds = evaluate(node.lhs, self._env) < evaluate(node.rhs, self._env)
                self.run(node.then if holds else node.otherwise)
            case Prefetch() | Sync():
                pass
            case _:
                assert_never(node)

    def _define(self, block: Block, value: Array) -> None:
        if value.shape != block.shape:
            raise ValueError(f"{block.name} has shape {value.shape}, not {block.shape}")
        self._blocks[block] = np.asarray(carrier(value.astype(block.dtype.carrier), block.dtype))

    # ---- memory -------------------------------------------------------------------------------

    def _grid(self, shape: tuple[int, ...]) -> dict[str, Array | int]:
        """Returns the visible variables; lanes are arrays that vary along their own axis."""
        return {**self._env, **_lanes(shape)}

    def _places(
        self, node: Load | Store, shape: tuple[int, ...]
    ) -> tuple[tuple[Array | int, ...], Array]:
        """Returns the places of a block's elements, and a mask of active elements.

        Inactive elements have the place 0. An axis of `shape` along which all is equal may have
        size 1.
        """
        grid = self._grid(shape)
        for var, block in node.indirect:
            grid[var.name] = np.broadcast_to(self._blocks[block], shape).astype(np.int64)
        active: Any = np.True_
        for guard in node.guards:
            index, stop = evaluate(guard.index, grid), evaluate(guard.extent, grid)
            active = active & (index >= 0) & (index < stop)
        at = []
        for index, size in zip(node.indices, self._memory[node.buffer].shape, strict=True):
            where = evaluate(index, grid)
            if (active & ((where < 0) | (where >= size))).any():
                raise IndexError(f"{node.buffer.name}[{index}] outside [0, {size})")
            at.append(np.where(active, where, 0) if node.guards else where)
        return tuple(at), active

    def _load(self, node: Load) -> None:
        at, active = self._places(node, node.out.shape)
        array = self._memory[node.buffer]
        fill = np.asarray(node.fill).astype(array.dtype)
        loaded = np.where(active, array[at], fill) if active.any() else fill
        self._define(node.out, _full(loaded, node.out.shape))

    def _store(self, node: Store) -> None:
        at, active = self._places(node, node.block.shape)
        array = self._memory[node.buffer]
        flat: Array | int = 0
        for index, size in zip(at, array.shape, strict=True):
            flat = flat * size + index
        mask, block = _full(active, node.block.shape), self._blocks[node.block]
        array.flat[_full(flat, block.shape)[mask]] = block[mask]

    # ---- arithmetic ---------------------------------------------------------------------------

    def _contract(self, node: Contract) -> None:
        labels = dict.fromkeys(node.out_axes + node.a_axes + node.b_axes)
        letter = {label: chr(ord("a") + n) for n, label in enumerate(labels)}
        spelt = ["".join(letter[x] for x in t) for t in (node.a_axes, node.b_axes, node.out_axes)]
        wide = np.float64 if node.acc.dtype.is_float else node.acc.dtype.carrier
        a, b = (self._blocks[x].astype(wide) for x in (node.a, node.b))
        total = np.einsum(f"{spelt[0]},{spelt[1]}->{spelt[2]}", a, b)
        self._define(node.out, self._blocks[node.acc].astype(wide) + total)

    def _reduce(self, node: Reduce) -> None:
        dtypes: tuple[DType, ...] = tuple(b.dtype for b in node.blocks)
        bodies = MONOIDS[node.monoid].combine(dtypes)
        parts = [self._blocks[b] for b in node.blocks]
        for axis in node.axes:
            lines = [np.moveaxis(part, axis, 0) for part in parts]
            # Neighbours are combined in pairs, as in expressions, which keeps their order.
            while (count := len(lines[0])) > 1:
                pairs = [line[first : count // 2 * 2 : 2] for first in (0, 1) for line in lines]
                halves = evaluate_scalars(bodies, {}, pairs)
                odd_lines = [line[count // 2 * 2 :] for line in lines]
                lines = [np.concatenate(pair) for pair in zip(halves, odd_lines, strict=True)]
            parts = [np.moveaxis(line, 0, axis) for line in lines]
        for out, part in zip(node.outs, parts, strict=True):
            self._define(out, part)

    def _loop(self, node: TileLoop) -> None:
        start, stop = (int(evaluate(i, self._env)) for i in (node.start, node.stop))
        if (stop - start) % node.step:
            raise ValueError(f"loop {node.var.name}: {stop - start} is no multiple of {node.step}")
        state = [self._blocks[b] for b in node.inits]
        for position in range(start, stop, node.step):
            self._env[node.var.name] = position
            self._blocks.update(zip(node.carried, state, strict=True))
            self.run(node.body)
            state = [self._blocks[b] for b in node.yields]
        self._blocks.update(zip(node.results, state, strict=True))
