"""Stores of blocks: splits them into vectors and elements, and chooses the order of the stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import product
from typing import TypeAlias

from tcc.backends.cpu.llvm.blocks import (
    Chunk,
    RegisterBlock,
    last_axis,
    part,
    row_number,
    row_positions,
    same_cuts,
    vector_chunks,
)
from tcc.backends.cpu.llvm.memory import (
    BlockAccess,
    Environment,
    block_access,
    lane_mask,
    registers_of,
    transposed,
    with_last,
)
from tcc.backends.cpu.llvm.relayout import rearrange
from tcc.backends.cpu.llvm.storage import to_memory
from tcc.backends.cpu.llvm.text import Reg, mangled
from tcc.backends.cpu.llvm.values import LlvmValue
from tcc.ir.index import const
from tcc.ir.tile import Store

# A vector or element to store: (access, position of its row, chunk of the row, block).
_Piece: TypeAlias = tuple[BlockAccess, tuple[int, ...], Chunk, RegisterBlock]


def store(env: Environment, nodes: Sequence[Store]) -> None:
    """Writes blocks one after another.

    If all stores are of single elements, the stores of all blocks are sorted by address. Otherwise
    the elements of one block, if they are a page apart, would evict each other's cache lines before
    the next block writes to these lines. If several guards depend on symbolic sizes, the code first
    tests if all of them hold, and then stores without guards.
    """
    pieces = [piece for node in nodes for piece in _pieces(env, node)]
    if len(nodes) < 2:
        _write(pieces)
    elif not any(access.guards for access, *_ in pieces):
        _write(_in_order(pieces))
    elif (all_hold := _all_hold(pieces)) is None:
        _write(pieces)
    else:
        code = env.indices.code
        with code.when(all_hold, "inside"):
            _write(_in_order([(replace(p[0], guards=()), *p[1:]) for p in pieces]))
        with code.when(code.op("xor", all_hold, 1), "border"):
            _write(pieces)


def _write(pieces: Sequence[_Piece]) -> None:
    for access, position, chunk, value in pieces:
        row = row_number(value.shape, position)
        _store_chunk(access, position, chunk, part(access.code, value, row, chunk))


def _all_hold(pieces: Sequence[_Piece]) -> Reg | None:
    """Returns an i1 that is true if the guards of all `pieces` hold, or None if it does not pay.

    It does not pay if there are fewer than two tests, if a guard turns single lanes off, or if no
    guard has a symbolic size.
    """
    if not any(guard.extent.terms for access, *_ in pieces for guard in access.guards):
        return None
    masks = [access.mask(position, chunk) for access, position, chunk, _ in pieces]
    if any(mask.never or mask.vector is not None for mask in masks):
        return None
    tests = list(dict.fromkeys(mask.scalar for mask in masks if mask.scalar is not None))
    if len(tests) < 2:
        return None
    return reduce(partial(pieces[0][0].code.op, "and"), tests)


def _in_order(pieces: list[_Piece]) -> list[_Piece]:
    """Returns `pieces`, which have no guards, sorted by address if all are single elements.

    Only pieces at constant distances from each other can be compared. They form a group, which is
    sorted. The groups keep the order of their first pieces. The order of all pieces stays as it is
    if a piece is a vector or has a data-dependent index, if the pieces belong to different buffers,
    or if two of them have the same offset.
    """
    first_access = pieces[0][0]
    same_buffer = all(
        access.buffer is first_access.buffer and not access.bound for access, *_ in pieces
    )
    if not same_buffer or any(chunk.width > 1 for _, _, chunk, _ in pieces):
        return pieces
    offsets = [access.at(position, const(chunk.start))[0] for access, position, chunk, _ in pieces]
    if len({*offsets}) < len(pieces):
        return pieces
    groups = {base: n for n, base in enumerate(dict.fromkeys(o - o.const for o in offsets))}
    places = [(groups[o - o.const], o.const) for o in offsets]
    return [pieces[n] for n in sorted(range(len(pieces)), key=places.__getitem__)]


def _pieces(env: Environment, node: Store) -> Iterator[_Piece]:
    """Yields the parts in which a block is written."""
    value = env.values[node.block]
    access = block_access(env, node, value.shape)
    order, axis = access.dense_order(), access.contiguous_axis()
    if order is not None:
        value = rearrange(access.code, value, order, access.merged_shape(order))
        access = access.merged(order)
    elif axis is not None:
        axes = with_last(len(value.shape), axis)
        node = transposed(node, value.shape, axes)
        value = rearrange(access.code, value, axes, tuple(value.shape[n] for n in axes))
        access = block_access(env, node, value.shape)
    shape = access.shape
    chunks = vector_chunks(last_axis(shape), access.code.module.lanes)
    if last_axis(value.shape) == last_axis(shape) and not same_cuts(value.chunks, chunks):
        chunks = value.chunks
    for position, chunk in product(row_positions(shape), chunks):
        if access.step(position, chunk) == 1:
            yield access, position, chunk, value
        else:
            for n in range(chunk.start, chunk.start + chunk.count):
                yield access, position, Chunk(n, 1, 1), value


def _store_chunk(access: BlockAccess, position: tuple[int, ...], chunk: Chunk, reg: Reg) -> None:
    code, dtype = access.code, access.buffer.dtype
    mask = access.mask(position, chunk)
    if mask.never:
        return
    if halves := registers_of(access, mask, chunk):
        for half in (half for half in halves if half.count):
            lanes = range(half.start - chunk.start, half.start - chunk.start + half.width)
            _store_chunk(access, position, half, code.shuffle(reg, None, lanes))
        return
    bits = to_memory(LlvmValue(code, reg), dtype).reg
    offset, _ = access.at(position, const(chunk.start))
    pointer, align = access.pointer(offset), access.alignment(offset, chunk.width)
    lanes_on = lane_mask(code, mask, chunk)
    if lanes_on is not None:
        name = f"llvm.masked.store.{mangled(bits)}.p0"
        signature = f"declare void @{name}({bits.type}, ptr, {lanes_on.type})"
        code.module.add(name, lambda: signature)
        code.void(f"call void @{name}({bits}, ptr align {align} {pointer.text}, {lanes_on})")
        return
    with code.when(mask.scalar, "store"):
        fills_lines = access.nontemporal and access.fills_lines(position)
        hint = ", !nontemporal !2" if fills_lines else ""
        code.void(f"store {bits}, {pointer}, align {align}{hint}")
