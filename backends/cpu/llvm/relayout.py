"""Broadcasts, permutations and reshapes of blocks in registers."""

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from tcc.backends.cpu.llvm.blocks import (
    RegisterBlock,
    last_axis,
    part,
    row_number,
    row_positions,
    vector_chunks,
)
from tcc.backends.cpu.llvm.text import Code, Reg, in_pairs
from tcc.ir.tile import Broadcast, Relayout

Place = tuple[int, int]  # (register of the source block, lane in it)


def broadcast(code: Code, node: Broadcast, value: RegisterBlock) -> RegisterBlock:
    """Returns `value` repeated along its axes of size one."""
    shape = node.out.shape
    chunks = vector_chunks(last_axis(shape), code.module.lanes)
    regs = tuple(
        part(code, value, row_number(value.shape, position), chunk)
        for position in row_positions(shape)
        for chunk in chunks
    )
    return RegisterBlock(value.dtype, shape, chunks, regs)


def relayout(code: Code, node: Relayout, value: RegisterBlock) -> RegisterBlock:
    """Returns the result of a Relayout statement."""
    return rearrange(code, value, node.order, node.out.shape)


def rearrange(
    code: Code, value: RegisterBlock, order: tuple[int, ...], shape: tuple[int, ...]
) -> RegisterBlock:
    """Returns `value` with its axes permuted by `order`, then reshaped to `shape`."""
    chunks = vector_chunks(last_axis(shape), code.module.lanes)
    source_places = _source_places(order, value)
    rows = source_places.reshape(prod(shape[:-1]), last_axis(shape), 2)
    targets = [
        ([(int(r), int(lane)) for r, lane in row[c.start : c.start + c.count]], c.width)
        for row in rows
        for c in chunks
    ]
    transposes = _transposes(code, value, targets)
    regs = [
        transposes[n] if n in transposes else _collect(code, value.regs, places, width)
        for n, (places, width) in enumerate(targets)
    ]
    return RegisterBlock(value.dtype, shape, chunks, tuple(regs))


def _source_places(order: tuple[int, ...], value: RegisterBlock) -> npt.NDArray[np.int64]:
    """Returns (register, lane) in `value` of each element of the result, in an array (elements,
    2)."""
    per_row = len(value.chunks)
    lanes = [(n, lane) for n, chunk in enumerate(value.chunks) for lane in range(chunk.count)]
    places = [(row * per_row + n, lane) for row in range(value.rows) for n, lane in lanes]
    grid = np.array(places, np.int64).reshape(*value.shape, 2)
    return grid.transpose(*order, len(value.shape)).reshape(-1, 2)


# ---- transposes ------------------------------------------------------------------------------


def _transposes(
    code: Code, value: RegisterBlock, targets: Sequence[tuple[list[Place], int]]
) -> dict[int, Reg]:
    """Computes the target registers that take one lane from each of several source registers.

    `targets` has for each target its source places and its width. Returns the registers by the
    number of their target. One transpose computes all targets that have the same source registers.
    """
    groups: dict[tuple[tuple[int, ...], int], dict[int, int]] = {}
    for number, (places, width) in enumerate(targets):
        sources = tuple(source for source, _ in places)
        lanes = {lane for _, lane in places}
        widths = {value.regs[s].width for s in sources}
        if len(set(sources)) == len(places) > 2 and len(lanes) == 1 == len(widths):
            groups.setdefault((sources, width), {})[number] = lanes.pop()
    transposes: dict[int, Reg] = {}
    for (sources, width), results in groups.items():
        regs = [value.regs[s] for s in sources]
        if regs[0].width > 1 and 4 * len(results) >= min(width, regs[0].width):
            regs += [Reg(regs[0].elem, regs[0].width, "poison")] * (width - len(regs))
            transposed = transpose(code, regs)
            transposes |= {number: transposed[lane] for number, lane in results.items()}
    return transposes


def transpose(code: Code, regs: Sequence[Reg]) -> list[Reg]:
    """Returns the transpose of `regs`: register n of the result holds lane n of all of them.

    The numbers of registers and of lanes are powers of two. A square takes log2(n) rounds of
    two-register shuffles: round b swaps bit b of an element's row with bit b of its lane.
    """
    rows, width = list(regs), regs[0].width
    while len(rows) > width:
        # Narrow registers are joined in pairs, so that one shuffle works on two squares.
        pairs = [
            (g + n, g + width + n) for g in range(0, len(rows), 2 * width) for n in range(width)
        ]
        both_rows = range(2 * rows[0].width)
        rows = [code.shuffle(rows[a], rows[b], both_rows) for a, b in pairs]
    row_width, bit = rows[0].width, 1
    while bit < len(rows):
        low = [n if not n & bit else row_width + (n ^ bit) for n in range(row_width)]
        high = [n | bit if not n & bit else row_width + n for n in range(row_width)]
        for n in range(len(rows)):
            if not n & bit:
                a, b = rows[n], rows[n | bit]
                rows[n], rows[n | bit] = code.shuffle(a, b, low), code.shuffle(a, b, high)
        bit *= 2
    if len(regs) >= width:
        return rows
    # Wide registers hold several squares next to each other.
    count = len(regs)
    starts = [(lane % count, lane // count * count) for lane in range(width)]
    return [code.shuffle(rows[r], None, range(start, start + count)) for r, start in starts]


# ---- any other permutation -------------------------------------------------------------------


_Part: TypeAlias = tuple[frozenset[int], Reg]  # sources, and a register with their lanes


def _collect(code: Code, regs: Sequence[Reg], places: list[Place], width: int) -> Reg:
    """Returns a register of `width` lanes whose lanes come from several registers."""
    sources = list(dict.fromkeys(source for source, _ in places))
    identity = [(sources[0], n) for n in range(width)]
    if places == identity and regs[sources[0]].width == width:
        return regs[sources[0]]
    if width == 1 or any(regs[s].width == 1 for s in sources):
        return code.gather([code.extract(regs[s], lane) for s, lane in places], width)
    parts = [(frozenset((s,)), _spread(code, regs[s], s, places, width)) for s in sources]

    def blend(a: _Part, b: _Part) -> _Part:
        return a[0] | b[0], code.shuffle(a[1], b[1], _blend(places, a[0], b[0], width))

    return in_pairs(parts, blend)[1]


def _spread(code: Code, reg: Reg, source: int, places: list[Place], width: int) -> Reg:
    """Moves the lanes that come from register `source` to their places in the result."""
    lanes = [lane if s == source else -1 for s, lane in places]
    return code.shuffle(reg, None, lanes + [-1] * (width - len(lanes)))


def _blend(
    places: list[Place], a_sources: frozenset[int], b_sources: frozenset[int], width: int
) -> list[int]:
    lanes = [
        n if s in a_sources else width + n if s in b_sources else -1
        for n, (s, _) in enumerate(places)
    ]
    return lanes + [-1] * (width - len(lanes))
