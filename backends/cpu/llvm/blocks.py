"""Blocks in registers.

A block is a list of rows (all axes but the last). Each row is cut into chunks, and a register holds
a chunk. The last chunk of a row may use only the first lanes of its register.

Chunks have one lane if the last axis has size one, or if the block is used element by element. They
are then LLVM scalars. A use that needs a vector repeats a scalar over the lanes.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import prod

from tcc.backends.cpu.llvm.text import Code, Reg
from tcc.frozen import frozen
from tcc.ir.types import DType, DTypeKind
from tcc.zipped import zip_equal


@frozen
class Chunk:
    """Elements `start` to `start + count` of a row, in a register of `width >= count` lanes."""

    start: int
    count: int
    width: int


@lru_cache(maxsize=1024)
def vector_chunks(size: int, lanes: int) -> tuple[Chunk, ...]:
    """Returns the chunks of a last axis of `size` elements, each a vector of `lanes` lanes.

    The last chunk gets the smallest power of two of lanes that holds its elements.
    """
    full_chunks = tuple(Chunk(s, lanes, lanes) for s in range(0, size - lanes + 1, lanes))
    tail = size % lanes
    if not tail:
        return full_chunks
    return (*full_chunks, Chunk(size - tail, tail, 1 << (tail - 1).bit_length()))


@lru_cache(maxsize=1024)
def carried_chunks(size: int, lanes: int) -> tuple[Chunk, ...]:
    """Returns the chunks of `vector_chunks`, all widened to the width of the first chunk.

    Accumulators have these chunks. A contraction repeats an element of an operand over a full
    vector. If the last accumulators were narrower, they could not use this vector. LLVM's register
    allocator would then move accumulators between registers, which costs up to three quarters of
    the speed.
    """
    chunks = vector_chunks(size, lanes)
    return tuple(Chunk(c.start, c.count, chunks[0].width) for c in chunks)


@lru_cache(maxsize=1024)
def scalar_chunks(size: int) -> tuple[Chunk, ...]:
    return tuple(Chunk(n, 1, 1) for n in range(size))


def same_cuts(a: Sequence[Chunk], b: Sequence[Chunk]) -> bool:
    """Returns True if both lists of chunks cut a row at the same elements; the widths of their
    registers may differ."""
    return [(c.start, c.count) for c in a] == [(c.start, c.count) for c in b]


def last_axis(shape: tuple[int, ...]) -> int:
    return shape[-1] if shape else 1


@lru_cache(maxsize=1024)
def row_positions(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Returns the positions of a block's rows (all axes but the last), in row-major order."""
    return tuple(product(*(range(n) for n in shape[:-1])))


def row_number(shape: tuple[int, ...], position: Sequence[int]) -> int:
    """Returns the number of a row of a block of `shape`: the row that row `position` of a larger
    block reads when the block is broadcast to the larger one."""
    number = 0
    for size, at in zip_equal(shape[:-1], position[len(position) - len(shape[:-1]) :]):
        number = number * size + (0 if size == 1 else at)
    return number


def register_element(dtype: DType) -> str:
    """Returns the LLVM type of an element in a register; narrow floats are held as f32."""
    if dtype.kind is DTypeKind.FLOAT:
        return "double" if dtype.bits == 64 else "float"
    return "i1" if dtype.kind is DTypeKind.BOOL else f"i{8 * dtype.bytes}"


@frozen
class RegisterBlock:
    """The registers of a block: `regs[row * len(chunks) + chunk]`."""

    dtype: DType
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    regs: tuple[Reg, ...]

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    def at(self, row: int, chunk: int) -> Reg:
        return self.regs[row * len(self.chunks) + chunk]


def element(code: Code, value: RegisterBlock, row: int, lane: int) -> Reg:
    """Returns an element of a block as a scalar."""
    return code.extract(*_place(value, row, lane))


def _place(value: RegisterBlock, row: int, lane: int) -> tuple[Reg, int]:
    """Returns (register, lane) of an element; raises IndexError outside the block."""
    number, chunk = _chunk_of(value, lane)
    if not chunk.start <= lane < chunk.start + chunk.count:
        raise IndexError(lane)
    return value.at(row, number), lane - chunk.start


def _chunk_of(value: RegisterBlock, lane: int) -> tuple[int, Chunk]:
    number = bisect_right(value.chunks, lane, key=lambda chunk: chunk.start) - 1
    return number, value.chunks[number]


def splat_element(code: Code, value: RegisterBlock, row: int, lane: int, width: int) -> Reg:
    """Returns an element of a block in each of `width` lanes."""
    reg, at = _place(value, row, lane)
    if reg.width == 1 or width == 1:
        return code.splat(code.extract(reg, at), width)
    key = ("repeat", reg, at, width)
    return code.remember(key, lambda: code.shuffle(reg, None, (at,) * width))


def _resized(code: Code, reg: Reg, width: int) -> Reg:
    """Returns the first `width` lanes of a register; lanes that it does not have are undefined."""
    if reg.width == width:
        return reg
    if reg.width == 1:
        return code.gather((reg,), width)
    lanes = [n if n < reg.width else -1 for n in range(width)]
    return code.remember(("resized", reg, width), lambda: code.shuffle(reg, None, lanes))


def in_chunks(code: Code, value: RegisterBlock, chunks: tuple[Chunk, ...]) -> RegisterBlock:
    """Returns the block `value`, cut into `chunks`."""
    if value.chunks == chunks:
        return value
    regs = (part(code, value, row, chunk) for row in range(value.rows) for chunk in chunks)
    return RegisterBlock(value.dtype, value.shape, chunks, tuple(regs))


def part(code: Code, value: RegisterBlock, row: int, chunk: Chunk) -> Reg:
    """Returns the elements of `chunk` in a row.

    A last axis of size one is repeated over the chunk.
    """
    if last_axis(value.shape) == 1:
        return code.splat(value.at(row, 0), chunk.width)
    number, block_chunk = _chunk_of(value, chunk.start)
    if (block_chunk.start, block_chunk.count) == (chunk.start, chunk.count):
        return _resized(code, value.at(row, number), chunk.width)
    lanes = [element(code, value, row, chunk.start + n) for n in range(chunk.count)]
    key = ("gather", tuple(lanes), chunk.width)
    return code.remember(key, lambda: code.gather(lanes, chunk.width))
