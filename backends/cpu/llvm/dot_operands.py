"""Words: neighbours along a summed axis in one word of 32 bits, the earliest one lowest.

Two of bf16, four of bytes.  Weights lie in memory like that (`tcc.passes.tile.plan`), and a
contraction multiplies and adds all of a word at once where the processor has an instruction for it
(AVX512_BF16, VNNI; BFDOT, SDOT).  Elsewhere a few instructions take them apart.

    block bf16[4, 64] at 128*(l0 // 2) + 2*l1 + l0 % 2     two rows of 64 words
    block i8[8, 64] at 256*(l0 // 4) + 4*l1 + l0 % 4       two rows of 64 words
"""

from collections.abc import Sequence

from tcc.backends.cpu.instructions import bf16_product, byte_product, pair_product
from tcc.backends.cpu.llvm.blocks import (
    Chunk,
    RegisterBlock,
    element,
    part,
    row_number,
    row_positions,
    scalar_chunks,
    vector_chunks,
)
from tcc.backends.cpu.llvm.indices import constant, lane_of
from tcc.backends.cpu.llvm.memory import BlockAccess, Environment, access, load, masked_load
from tcc.backends.cpu.llvm.text import Code, Reg, int_const, lane_consts, vector_type
from tcc.ir.index import Index, as_int, const, free_vars, step_in
from tcc.ir.tile import Load, TileBuffer
from tcc.ir.types import BF16, U8, U32, DType

_LATER = -65536  # the bits of a word that the later of two has
_LEAST_LANES = 4  # of the instructions
_SIGNS, _ONES = 0x80808080 - (1 << 32), 0x01010101  # of the four bytes of a word


def per_word(dtype: DType) -> int:
    """How many elements of a narrow type lie in a word."""
    return 32 // dtype.bits


def load_rows(env: Environment, node: Load) -> RegisterBlock | None:
    """A block of bf16 whose rows lie in pairs, as values; None where they do not."""
    shape = node.out.shape
    if len(shape) < 2 or node.guards or node.indirect:
        return None
    where = access(env, node, shape)
    chunks = vector_chunks(shape[-1], where.code.module.lanes)
    regs: dict[tuple[int, Chunk], Reg] = {}
    for position in row_positions(shape):
        number = row_number(shape, position)
        if position[-1] % 2:
            continue
        count = min(2, shape[-2] - position[-1])
        for chunk in chunks:
            words = _words(where, position, chunk, count)
            if words is None:
                return None
            regs[number, chunk], later = halves(where.code, words)
            if count == 2:
                regs[number + 1, chunk] = later
    ordered = tuple(regs[n, c] for n in range(len(regs) // len(chunks)) for c in chunks)
    return RegisterBlock(BF16, shape, chunks, ordered)


def load_words(env: Environment, node: Load, scalars: bool) -> RegisterBlock:
    """A block as words of neighbours: along the last axis where `scalars` are wanted, else along
    the one before.  What does not lie so is put together.  In the last word, what an axis lacks is
    zero where `scalars` are wanted, and anything elsewhere."""
    shape, per = node.out.shape, per_word(node.out.dtype)
    where = access(env, node, shape)
    length = shape[-1] if scalars else shape[-2]
    words = -(-length // per)
    if scalars:
        short = (*shape[:-1], words)
        chunks = scalar_chunks(words)
        places = [
            (p, Chunk(per * c.start, 1, 1), min(per, length - per * c.start))
            for p in row_positions(short)
            for c in chunks
        ]
    else:
        short = (*shape[:-2], words, shape[-1])
        chunks = vector_chunks(shape[-1], where.code.module.lanes)
        places = [
            ((*p[:-1], per * p[-1]), c, min(per, length - per * p[-1]))
            for p in row_positions(short)
            for c in chunks
        ]
    find = _scalar_word if scalars else _words
    plain = not node.guards and not node.indirect
    found = [find(where, *place) if plain else None for place in places]
    if not all(found):
        value = load(env, node, scalars)
        joined = _joined_scalars if scalars else _joined_rows
        found = [joined(where.code, value, *place) for place in places]
    return RegisterBlock(U32, short, chunks, tuple(r for r in found if r is not None))


# ---- products -----------------------------------------------------------------------------------


def halves(code: Code, words: Reg) -> tuple[Reg, Reg]:
    """The earlier and the later elements of words of bf16, as f32."""
    early = code.op("shl", words, 16)
    late = code.op("and", words, _LATER)
    return code.bitcast(early, "float"), code.bitcast(late, "float")


def multiply_pairs(code: Code, x: Reg, y: Reg, total: Reg) -> Reg:
    """`total` plus the products of both elements of each word of `x` and `y`, of bf16."""
    width = total.width
    if width < _LEAST_LANES:
        for a, b in zip(halves(code, x), halves(code, y), strict=True):
            total = code.fma(a, b, total)
        return total
    a, b = (_as_lanes(code, r, "bfloat", 2) for r in (x, y))
    return code.call(bf16_product(code.module.profile, width), "float", width, total, a, b)


def multiply_bytes(code: Code, x: tuple[Reg, DType], y: tuple[Reg, DType], total: Reg) -> Reg:
    """`total` plus the products of all four elements of each word of `x` and `y`, in i32."""
    profile, width = code.module.profile, total.width
    if y[1] is U8:  # an unsigned one first, where there is one
        x, y = y, x
    name = byte_product(profile, x[1] is U8, y[1] is U8, width)
    signed = byte_product(profile, False, False, width)
    if name:
        return code.call(name, "i32", width, total, *_all_bytes(code, x[0], y[0]))
    if signed:
        return _multiply_shifted(code, signed, x[0], y[0], total)
    if width >= _LEAST_LANES and pair_product(profile, width):
        for n in range(2):
            a, b = (_as_lanes(code, _every_other(code, *f, n), "i16", 2) for f in (x, y))
            products = code.call(pair_product(profile, width), "i32", width, a, b)
            total = code.op("add", total, products)
        return total
    for n in range(4):
        a, b = (_byte(code, *f, n) for f in (x, y))
        total = code.op("add", total, code.op("mul", a, b))
    return total


def _multiply_shifted(code: Code, signed: str, unsigned: Reg, other: Reg, total: Reg) -> Reg:
    """Products of unsigned bytes with signed ones by the instruction for signed ones: u * s is
    (u - 128) * s + 128 * s, whose second part is the same for all rows."""
    width = total.width

    def low() -> Reg:
        return code.op("xor", unsigned, _SIGNS)

    def rest() -> Reg:
        ones, zero = int_const(_ONES, "i32", width), int_const(0, "i32", width)
        sums = code.call(signed, "i32", width, zero, *_all_bytes(code, ones, other))
        return code.op("shl", sums, 7)

    total = code.op("add", total, code.remember(("signed rest", other), rest))
    moved = code.remember(("signed", unsigned), low)
    return code.call(signed, "i32", width, total, *_all_bytes(code, moved, other))


def _all_bytes(code: Code, *words: Reg) -> tuple[Reg, ...]:
    return tuple(_as_lanes(code, r, "i8", 4) for r in words)


def _as_lanes(code: Code, words: Reg, elem: str, count: int) -> Reg:
    width = count * words.width
    return code.emit(elem, width, f"bitcast {words} to {vector_type(elem, width)}")


def _every_other(code: Code, words: Reg, dtype: DType, first: int) -> Reg:
    """Bytes 0 and 2, or 1 and 3, of each word as numbers of 16 bits in it."""

    def make() -> Reg:
        halves = _as_lanes(code, words, "i16", 2)
        raised = halves if first else code.op("shl", halves, 8)
        lowered = code.op("lshr" if dtype is U8 else "ashr", raised, 8)
        return code.emit("i32", words.width, f"bitcast {lowered} to {words.type}")

    return code.remember(("every other", words, dtype, first), make)


def _byte(code: Code, words: Reg, dtype: DType, number: int) -> Reg:
    """One of the bytes of each word, in i32."""

    def make() -> Reg:
        raised = words
        if number < 3:
            raised = code.op("shl", words, 24 - 8 * number)
        opcode = "lshr" if dtype is U8 else "ashr"
        return code.op(opcode, raised, 24)

    return code.remember(("byte", words, dtype, number), make)


# ---- words in memory ----------------------------------------------------------------------------


def _words(where: BlockAccess, position: tuple[int, ...], chunk: Chunk, count: int) -> Reg | None:
    """The words of `count` rows from one on; None where they do not lie in words."""
    per = per_word(where.buffer.dtype)
    lane = lane_of(chunk)
    offset, _ = where.at(position, const(chunk.start))
    if chunk.width == 1:
        step: int | None = per
    else:
        along, _ = where.at(position, const(chunk.start) + lane)
        split = step_in(along, *free_vars(lane))
        step = None if split is None else split[0]
    if step != per:
        return None
    for n in range(1, count):
        after, _ = where.at((*position[:-1], position[-1] + n), const(chunk.start))
        if constant(after - offset) != n:
            return None
    if count < per and (where.indices.divisor(offset) % per or not _whole(where.buffer)):
        return None  # the word might end beyond the buffer
    return _load_words(where, offset, chunk)


def _whole(buffer: TileBuffer) -> bool:
    size = as_int(buffer.sizes[-1])
    return size is not None and size % per_word(buffer.dtype) == 0


def _load_words(where: BlockAccess, offset: Index, chunk: Chunk) -> Reg:
    code = where.code
    size = where.buffer.dtype.bytes
    pointer, align = where.pointer(offset), where.alignment(offset, chunk.width * 4 // size)
    if chunk.count == chunk.width:
        kind = vector_type("i32", chunk.width)
        return code.emit("i32", chunk.width, f"load {kind}, {pointer}, align {align}")
    inside = lane_consts([int(n < chunk.count) for n in range(chunk.width)], "i1")
    return masked_load(code, int_const(0, "i32", chunk.width), pointer, inside, align)


def _scalar_word(
    where: BlockAccess, position: tuple[int, ...], chunk: Chunk, count: int
) -> Reg | None:
    """The word of `count` neighbours along the last axis; zeros follow them."""
    first, _ = where.at(position, const(chunk.start))
    for n in range(1, count):
        after, _ = where.at(position, const(chunk.start + n))
        if constant(after - first) != n:
            return None
    found: Reg | None = None
    start, bits = 0, where.buffer.dtype.bits
    while start < count:  # as few loads as there are powers of two in `count`
        size = 1 << ((count - start).bit_length() - 1)
        at = first + start
        elem = f"i{size * bits}"
        loaded = where.code.emit(
            elem, 1, f"load {elem}, {where.pointer(at)}, align {where.alignment(at, size)}"
        )
        found = _placed(where.code, found, loaded, start * bits)
        start += size
    return found


# ---- words put together -------------------------------------------------------------------------


def _joined_rows(
    code: Code, value: RegisterBlock, position: tuple[int, ...], chunk: Chunk, count: int
) -> Reg:
    at = [(*position[:-1], position[-1] + n) for n in range(count)]
    rows = [part(code, value, row_number(value.shape, p), chunk) for p in at]
    return _joined(code, rows, value.dtype)


def _joined_scalars(
    code: Code, value: RegisterBlock, position: tuple[int, ...], chunk: Chunk, count: int
) -> Reg:
    row = row_number(value.shape, position)
    each = [element(code, value, row, chunk.start + n) for n in range(count)]
    return _joined(code, each, value.dtype)


def _joined(code: Code, elements: Sequence[Reg], dtype: DType) -> Reg:
    found: Reg | None = None
    for n, reg in enumerate(elements):
        bits = _bits(code, reg) if dtype is BF16 else reg
        found = _placed(code, found, bits, n * dtype.bits)
    assert found is not None
    return found


def _bits(code: Code, reg: Reg) -> Reg:
    """bf16 carried as f32, in the low half of words."""
    raised = code.bitcast(reg, "i32")
    return code.op("lshr", raised, 16)


def _placed(code: Code, below: Reg | None, bits: Reg, shift: int) -> Reg:
    """`bits` from bit `shift` of words on, which are empty there."""
    wide = bits if bits.elem == "i32" else code.convert("zext", bits, "i32")
    if shift:
        wide = code.op("shl", wide, shift)
    return wide if below is None else code.op("or", below, wide)
