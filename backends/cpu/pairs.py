"""Pairs of bf16: neighbours along a summed axis in one word of 32 bits, the earlier one low.

Weights lie in memory like that (`tcc.passes.plan_kernels`).  Where the processor has AVX512_BF16,
a contraction multiplies and adds both at once; elsewhere one instruction takes out each of them.

    block bf16[4, 64] at 128*(l0 // 2) + 2*l1 + l0 % 2     two rows of 64 words
"""

from __future__ import annotations

from collections.abc import Mapping

from tcc.backends.cpu.blocks import (
    Chunk,
    Value,
    element,
    part,
    row_number,
    row_positions,
    scalar_chunks,
    vector_chunks,
)
from tcc.backends.cpu.guards import lane_of
from tcc.backends.cpu.indices import Indices, constant
from tcc.backends.cpu.memory import Access, access, load, masked_load
from tcc.backends.cpu.text import Code, Reg, int_const, lane_consts, vector_type
from tcc.ir.index import as_int, const, linear_in, var_of
from tcc.ir.tile import Load, TileBuffer
from tcc.ir.types import BF16, U32

_LATER = -65536  # the bits of a word that the later element has
_LEAST_LANES = 4  # of the instruction


def load_rows(node: Load, indices: Indices, buffers: Mapping[TileBuffer, Reg]) -> Value | None:
    """A block of bf16 whose rows lie in pairs, as values; None where they do not."""
    shape = node.out.shape
    if len(shape) < 2 or node.guards or node.indirect:
        return None
    where = access(indices, buffers, node, shape, ())
    chunks = vector_chunks(shape[-1], indices.code.module.lanes)
    regs: dict[tuple[int, Chunk], Reg] = {}
    for position in row_positions(shape):
        number = row_number(shape, position)
        if position[-1] % 2:
            continue
        both = position[-1] + 1 < shape[-2]
        for chunk in chunks:
            words = _words(where, position, chunk, both)
            if words is None:
                return None
            regs[number, chunk], later = halves(indices.code, words)
            if both:
                regs[number + 1, chunk] = later
    ordered = tuple(regs[n, c] for n in range(len(regs) // len(chunks)) for c in chunks)
    return Value(BF16, shape, chunks, ordered)


def load_pairs(
    node: Load, indices: Indices, buffers: Mapping[TileBuffer, Reg], scalars: bool
) -> Value:
    """A block of bf16 as words of two neighbours: along the last axis where `scalars` are wanted,
    else along the one before.  What does not lie in pairs is put together."""
    shape = node.out.shape
    where = access(indices, buffers, node, shape, ())
    if scalars:
        halved = (*shape[:-1], shape[-1] // 2)
        chunks = scalar_chunks(halved[-1])
        pairs = [Chunk(2 * c.start, 1, 1) for c in chunks]
        places = [(p, c) for p in row_positions(halved) for c in pairs]
    else:
        halved = (*shape[:-2], shape[-2] // 2, shape[-1])
        chunks = vector_chunks(shape[-1], indices.code.module.lanes)
        places = [((*p[:-1], 2 * p[-1]), c) for p in row_positions(halved) for c in chunks]
    plain = not node.guards and not node.indirect
    found = [
        (_scalar_word(where, p, c.start) if scalars else _words(where, p, c, True))
        if plain
        else None
        for p, c in places
    ]
    if not all(found):
        value = load(node, indices, buffers, (), scalars)
        joined = _joined_scalars if scalars else _joined_rows
        found = [joined(indices.code, value, p, c) for p, c in places]
    return Value(U32, halved, chunks, tuple(r for r in found if r is not None))


def halves(code: Code, words: Reg) -> tuple[Reg, Reg]:
    """The earlier and the later elements of words, as f32."""
    early = code.op("shl", words, int_const(16, "i32", words.width))
    late = code.op("and", words, int_const(_LATER, "i32", words.width))
    return code.convert("bitcast", early, "float"), code.convert("bitcast", late, "float")


def multiply_pairs(code: Code, x: Reg, y: Reg, total: Reg) -> Reg:
    """`total` plus the products of both elements of each word of `x` and `y`."""
    width = total.width
    if width < _LEAST_LANES:
        for a, b in zip(halves(code, x), halves(code, y), strict=True):
            total = code.fma(a, b, total)
        return total
    kind = vector_type("bfloat", 2 * width)
    a, b = (code.emit("bfloat", 2 * width, f"bitcast {r} to {kind}") for r in (x, y))
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * width}"
    return code.call(name, "float", width, total, a, b)


# ---- words in memory ----------------------------------------------------------------------------


def _words(where: Access, position: tuple[int, ...], chunk: Chunk, both: bool) -> Reg | None:
    """The words of a row and, if `both`, the next one; None where they do not lie in pairs."""
    lane = lane_of(chunk)
    var = var_of(lane)
    offset, _ = where.at(position, const(chunk.start))
    if chunk.width == 1:
        step: int | None = 2
    else:
        along, _ = where.at(position, const(chunk.start) + lane)
        split = None if var is None else linear_in(along, var)
        step = None if split is None else constant(split[0])
    if step != 2:
        return None
    if both:
        after, _ = where.at((*position[:-1], position[-1] + 1), const(chunk.start))
        if constant(after - offset) != 1:
            return None
    elif where.indices.divisor(offset) % 2 or not _even(where.buffer):
        return None  # the word might end beyond the buffer
    return _load_words(where, position, chunk)


def _even(buffer: TileBuffer) -> bool:
    size = as_int(buffer.sizes[-1])
    return size is not None and size % 2 == 0


def _load_words(where: Access, position: tuple[int, ...], chunk: Chunk) -> Reg:
    code = where.code
    offset, _ = where.at(position, const(chunk.start))
    pointer, align = where.pointer(offset), where.alignment(offset, 2 * chunk.width)
    if chunk.count == chunk.width:
        kind = vector_type("i32", chunk.width)
        return code.emit("i32", chunk.width, f"load {kind}, {pointer}, align {align}")
    inside = lane_consts([int(n < chunk.count) for n in range(chunk.width)], "i1")
    return masked_load(code, int_const(0, "i32", chunk.width), pointer, inside, align)


def _scalar_word(where: Access, position: tuple[int, ...], lane: int) -> Reg | None:
    """The word of two neighbours along the last axis."""
    first, _ = where.at(position, const(lane))
    second, _ = where.at(position, const(lane + 1))
    if constant(second - first) != 1:
        return None
    pointer, align = where.pointer(first), where.alignment(first, 2)
    return where.code.emit("i32", 1, f"load i32, {pointer}, align {align}")


# ---- words put together -------------------------------------------------------------------------


def _joined_rows(code: Code, value: Value, position: tuple[int, ...], chunk: Chunk) -> Reg:
    row = row_number(value.shape, position)
    return _joined(code, part(code, value, row, chunk), part(code, value, row + 1, chunk))


def _joined_scalars(code: Code, value: Value, position: tuple[int, ...], chunk: Chunk) -> Reg:
    row = row_number(value.shape, position)
    pair = (element(code, value, row, chunk.start + n) for n in (0, 1))
    return _joined(code, *pair)


def _joined(code: Code, early: Reg, late: Reg) -> Reg:
    low, high = (code.convert("bitcast", r, "i32") for r in (early, late))
    low = code.op("lshr", low, int_const(16, "i32", low.width))
    return code.op("or", low, code.op("and", high, int_const(_LATER, "i32", high.width)))
