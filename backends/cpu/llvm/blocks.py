"""Blocks in registers.

A block is a grid of rows (all axes but the last) cut along the last axis into chunks; each chunk
of each row is one register.  The last chunk of a row may use only the first lanes of its register.
Blocks whose last axis has size one, and those wanted element by element, have chunks of one lane,
which are LLVM scalars; they are repeated over lanes where a use asks for it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import prod

from tcc.backends.cpu.llvm.text import Code, Reg
from tcc.ir.types import DType, DTypeKind
from tcc.record import record


@record
class Chunk:
    """Elements `start .. start + count` of a row, in a register of `width >= count` lanes."""

    start: int
    count: int
    width: int


@lru_cache(maxsize=1024)
def vector_chunks(size: int, lanes: int) -> tuple[Chunk, ...]:
    """The last axis cut into vectors; a tail takes the narrowest power of two that holds it."""
    whole = tuple(Chunk(s, lanes, lanes) for s in range(0, size - lanes + 1, lanes))
    rest = size % lanes
    if not rest:
        return whole
    return (*whole, Chunk(size - rest, rest, 1 << (rest - 1).bit_length()))


@lru_cache(maxsize=1024)
def carried_chunks(size: int, lanes: int) -> tuple[Chunk, ...]:
    """As `vector_chunks`, but a tail after whole vectors has their width too.

    A contraction repeats its other operand's elements over whole vectors: were the sums of the
    tail narrower, their use of the same repeated element would make LLVM's register allocator
    move sums around, down to a quarter of the speed.
    """
    chunks = vector_chunks(size, lanes)
    return tuple(Chunk(c.start, c.count, chunks[0].width) for c in chunks)


@lru_cache(maxsize=1024)
def scalar_chunks(size: int) -> tuple[Chunk, ...]:
    return tuple(Chunk(n, 1, 1) for n in range(size))


def same_cuts(a: Sequence[Chunk], b: Sequence[Chunk]) -> bool:
    """Whether two divisions of a row differ at most in the widths of registers."""
    return [(c.start, c.count) for c in a] == [(c.start, c.count) for c in b]


def last_axis(shape: tuple[int, ...]) -> int:
    return shape[-1] if shape else 1


@lru_cache(maxsize=1024)
def row_positions(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The positions along all axes but the last, in row-major order."""
    return tuple(product(*(range(n) for n in shape[:-1])))


def row_number(shape: tuple[int, ...], position: Sequence[int]) -> int:
    """The row of a block of `shape` that broadcasts to `position` of a block of as many axes."""
    number = 0
    for size, at in zip(shape[:-1], position[len(position) - len(shape[:-1]) :], strict=True):
        number = number * size + (0 if size == 1 else at)
    return number


def register_element(dtype: DType) -> str:
    """The LLVM type that holds one element in a register: narrow floats are carried as f32."""
    if dtype.kind is DTypeKind.FLOAT:
        return "double" if dtype.bits == 64 else "float"
    return "i1" if dtype.kind is DTypeKind.BOOL else f"i{8 * dtype.bytes}"


@record
class RegisterBlock:
    """A block's registers: `regs[row * len(chunks) + chunk]`."""

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
    """One element as a scalar."""
    return code.extract(*_place(value, row, lane))


def _place(value: RegisterBlock, row: int, lane: int) -> tuple[Reg, int]:
    """The register of an element, and which lane of it."""
    number, chunk = _chunk_of(value, lane)
    if not chunk.start <= lane < chunk.start + chunk.count:
        raise IndexError(lane)
    return value.at(row, number), lane - chunk.start


def _chunk_of(value: RegisterBlock, lane: int) -> tuple[int, Chunk]:
    number = bisect_right(value.chunks, lane, key=lambda chunk: chunk.start) - 1
    return number, value.chunks[number]


def splat_element(code: Code, value: RegisterBlock, row: int, lane: int, width: int) -> Reg:
    """One element in each of `width` lanes."""
    reg, at = _place(value, row, lane)
    if reg.width == 1 or width == 1:
        return code.splat(code.extract(reg, at), width)
    key = ("repeat", reg, at, width)
    return code.remember(key, lambda: code.shuffle(reg, None, (at,) * width))


def _resized(code: Code, reg: Reg, width: int) -> Reg:
    """The first `width` lanes of a register; those that it does not have are undefined."""
    if reg.width == width:
        return reg
    if reg.width == 1:
        return code.gather((reg,), width)
    lanes = [n if n < reg.width else -1 for n in range(width)]
    return code.remember(("resized", reg, width), lambda: code.shuffle(reg, None, lanes))


def in_chunks(code: Code, value: RegisterBlock, chunks: tuple[Chunk, ...]) -> RegisterBlock:
    """`value` in other chunks."""
    if value.chunks == chunks:
        return value
    regs = (part(code, value, row, chunk) for row in range(value.rows) for chunk in chunks)
    return RegisterBlock(value.dtype, value.shape, chunks, tuple(regs))


def part(code: Code, value: RegisterBlock, row: int, chunk: Chunk) -> Reg:
    """The elements of `chunk` of a row; a last axis of size one is repeated over it."""
    if last_axis(value.shape) == 1:
        return code.splat(value.at(row, 0), chunk.width)
    number, own = _chunk_of(value, chunk.start)
    if (own.start, own.count) == (chunk.start, chunk.count):
        return _resized(code, value.at(row, number), chunk.width)
    lanes = [element(code, value, row, chunk.start + n) for n in range(chunk.count)]
    key = ("gather", tuple(lanes), chunk.width)
    return code.remember(key, lambda: code.gather(lanes, chunk.width))
