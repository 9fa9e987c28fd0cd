"""Words of 32 bits that hold neighbours along a summed axis, the first one in the lowest bits.

A word holds two bf16 or four bytes. Weights have this layout (`tcc.passes.tile.plan`). If the CPU
has an instruction for it, a contraction multiplies and adds all elements of a word at once
(AVX512_BF16, VNNI; BFDOT, SDOT). On other CPUs a few instructions unpack the words.

    block bf16[4, 64] at 128*(l0 // 2) + 2*l1 + l0 % 2     two rows of 64 words
    block i8[8, 64] at 256*(l0 // 4) + 4*l1 + l0 % 4       two rows of 64 words
"""

from collections.abc import Iterable, Sequence
from itertools import product

from tcc.backends.cpu.instructions import bf16_dot, bf16_rounding, byte_dot, pair_dot
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
from tcc.backends.cpu.llvm.guards import Mask
from tcc.backends.cpu.llvm.indices import constant, lane_of
from tcc.backends.cpu.llvm.memory import (
    BlockAccess,
    Environment,
    block_access,
    lane_mask,
    load,
    masked_load,
)
from tcc.backends.cpu.llvm.storage import round_to
from tcc.backends.cpu.llvm.text import Code, Reg, int_const, remembered, vector_type
from tcc.backends.cpu.llvm.values import LlvmValue
from tcc.frozen import frozen
from tcc.ir.index import Index, as_int, const, free_vars, step_in
from tcc.ir.tile import Load, Store, TileBuffer
from tcc.ir.types import BF16, U8, U32, DType
from tcc.zipped import zip_equal

_LATER = -65536  # a mask of the upper 16 bits of a word, which hold its second element
_LEAST_LANES = 4  # the fewest lanes of a dot-product instruction
# The sign bits of a word's four bytes, and a one in each byte.
_SIGNS, _ONES = 0x80808080 - (1 << 32), 0x01010101


def per_word(dtype: DType) -> int:
    """Returns how many elements of a narrow type a word holds."""
    return 32 // dtype.bits


def load_rows(env: Environment, node: Load) -> RegisterBlock | None:
    """Loads a block of bf16 as f32 values if its rows are stored in pairs, else returns None.

    In memory, a 32-bit word holds the elements of rows 2n and 2n + 1 at one position of the last
    axis. Rows are numbered along the second-last axis.
    """
    shape = node.out.shape
    if len(shape) < 2 or node.guards or node.indirect:
        return None
    access = block_access(env, node, shape)
    chunks = vector_chunks(shape[-1], access.code.module.lanes)
    regs: dict[tuple[int, Chunk], Reg] = {}
    for position in row_positions(shape):
        number = row_number(shape, position)
        if position[-1] % 2:
            continue
        count = min(2, shape[-2] - position[-1])
        for chunk in chunks:
            words = _words(access, position, chunk, count)
            if words is None:
                return None
            regs[number, chunk], later = halves(access.code, words)
            if count == 2:
                regs[number + 1, chunk] = later
    row_regs = tuple(regs[n, c] for n in range(len(regs) // len(chunks)) for c in chunks)
    return RegisterBlock(BF16, shape, chunks, row_regs)


def load_words(env: Environment, node: Load, scalars: bool) -> RegisterBlock:
    """Loads a block whose neighbouring elements share 32-bit words in registers.

    With `scalars`, a word holds neighbours along the last axis, and each word has a register of its
    own. Otherwise a word holds neighbours along the second-last axis, and a vector holds words
    along the last axis. If these neighbours are not adjacent in memory, elements are loaded and
    joined to words in registers. If the last word of an axis is not full, its remaining elements
    are zero with `scalars`, and undefined without.
    """
    access = block_access(env, node, node.out.shape)
    form = _word_form(access.code, node.out.shape, node.out.dtype, scalars)
    loader = _scalar_word if scalars else _words
    is_plain = not node.guards and not node.indirect
    words_of = [loader(access, *place) if is_plain else None for place in form.places]
    if not all(words_of):
        return _joined(access.code, load(env, node, scalars), form, scalars)
    return form.block(r for r in words_of if r is not None)


def join_words(code: Code, value: RegisterBlock) -> RegisterBlock:
    """Returns a block whose rows are joined to words as `load_words` does without `scalars`."""
    return _joined(code, value, _word_form(code, value.shape, value.dtype, False), False)


def rounded(code: Code, value: RegisterBlock) -> RegisterBlock:
    """Returns a block of f32 rounded to bf16, for instructions that multiply pairs.

    Denormals may become zeros, which these instructions take them for.
    """
    return RegisterBlock(
        BF16, value.shape, value.chunks, tuple(_rounded(code, r) for r in value.regs)
    )


def _rounded(code: Code, reg: Reg) -> Reg:
    name = bf16_rounding(code.module.profile, reg.width)
    if not name:
        return round_to(LlvmValue(code, reg), BF16).reg
    bits = code.convert("bitcast", code.call(name, "bfloat", reg.width, reg), "i16")
    return code.convert("bitcast", code.op("shl", code.convert("zext", bits, "i32"), 16), "float")


def store_words(env: Environment, node: Store) -> None:
    """Stores a block of words of bf16, which are adjacent in memory, without guards."""
    value = env.values[node.block]
    access = block_access(env, node, node.block.shape)
    for position, chunk in product(row_positions(value.shape), value.chunks):
        first = (*position[:-1], 2 * position[-1])
        offset, _ = access.at(first, const(chunk.start))
        words = part(access.code, value, row_number(value.shape, position), chunk)
        if chunk.count < chunk.width:
            words = access.code.shuffle(words, None, range(chunk.count))
        align = access.alignment(offset, 2 * chunk.width)
        access.code.void(f"store {words}, {access.pointer(offset)}, align {align}")


@frozen
class _WordForm:
    """The shape and the chunks of a block of words.

    `places` has (position, chunk, count) for each register: where its first elements are in the
    block of elements, and how many elements a word joins.
    """

    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    places: tuple[tuple[tuple[int, ...], Chunk, int], ...]

    def block(self, words: Iterable[Reg]) -> RegisterBlock:
        return RegisterBlock(U32, self.shape, self.chunks, tuple(words))


def _word_form(code: Code, shape: tuple[int, ...], dtype: DType, scalars: bool) -> _WordForm:
    per = per_word(dtype)
    length = shape[-1] if scalars else shape[-2]
    words = -(-length // per)
    if scalars:
        word_shape, chunks = (*shape[:-1], words), scalar_chunks(words)
    else:
        word_shape = (*shape[:-2], words, shape[-1])
        chunks = vector_chunks(shape[-1], code.module.lanes)
    places: list[tuple[tuple[int, ...], Chunk, int]] = []
    for position, chunk in product(row_positions(word_shape), chunks):
        first = per * (chunk.start if scalars else position[-1])
        at = (position, Chunk(first, 1, 1)) if scalars else ((*position[:-1], first), chunk)
        places.append((*at, min(per, length - first)))
    return _WordForm(word_shape, chunks, tuple(places))


def _joined(code: Code, value: RegisterBlock, form: _WordForm, scalars: bool) -> RegisterBlock:
    join = _join_scalars if scalars else _join_rows
    return form.block(join(code, value, *place) for place in form.places)


# ---- multiply-adds ------------------------------------------------------------------------------


def halves(code: Code, words: Reg) -> tuple[Reg, Reg]:
    """Returns the first and the second element of each word of bf16, as f32."""
    bits = code.op("shl", words, 16), code.op("and", words, _LATER)
    earlier, later = (code.convert("bitcast", b, "float") for b in bits)
    return earlier, later


def multiply_pairs(code: Code, x: Reg, y: Reg, acc: Reg) -> Reg:
    """Returns `acc` plus the products of both bf16 elements of each word of `x` and `y`."""
    width = acc.width
    if width < _LEAST_LANES:
        for a, b in zip_equal(halves(code, x), halves(code, y)):
            acc = code.fma(a, b, acc)
        return acc
    a, b = (_as_lanes(code, r, "bfloat", 2) for r in (x, y))
    return code.call(bf16_dot(code.module.profile, width), "float", width, acc, a, b)


def multiply_bytes(code: Code, x: tuple[Reg, DType], y: tuple[Reg, DType], acc: Reg) -> Reg:
    """Returns `acc` (i32) plus the products of all four bytes of each word of `x` and `y`."""
    profile, width = code.module.profile, acc.width
    if y[1] is U8:  # if only one operand is unsigned, it must be the first
        x, y = y, x
    name = byte_dot(profile, x[1] is U8, y[1] is U8, width)
    signed = byte_dot(profile, False, False, width)
    if name:
        return code.call(name, "i32", width, acc, *_all_bytes(code, x[0], y[0]))
    if signed:
        return _multiply_shifted(code, signed, x[0], y[0], acc)
    if width >= _LEAST_LANES and pair_dot(profile, width):
        for n in range(2):
            a, b = (_as_lanes(code, _every_other(code, *f, n), "i16", 2) for f in (x, y))
            products = code.call(pair_dot(profile, width), "i32", width, a, b)
            acc = code.op("add", acc, products)
        return acc
    for n in range(4):
        a, b = (_byte(code, *f, n) for f in (x, y))
        acc = code.op("add", acc, code.op("mul", a, b))
    return acc


def _multiply_shifted(code: Code, signed: str, unsigned: Reg, other: Reg, acc: Reg) -> Reg:
    """Returns `acc` plus the products of unsigned bytes and the signed bytes `other`.

    It uses an instruction for two signed bytes (the intrinsic `signed`):
    u * s = (u - 128) * s + 128 * s. The term 128 * s does not depend on u, so it is computed once
    for all rows of u.
    """
    acc = code.op("add", acc, _correction(code, signed, other))
    shifted = code.remember(("signed", unsigned), lambda: code.op("xor", unsigned, _SIGNS))
    return code.call(signed, "i32", acc.width, acc, *_all_bytes(code, shifted, other))


@remembered
def _correction(code: Code, signed: str, other: Reg) -> Reg:
    """Returns 128 times the sums of the signed bytes `other`."""
    width = other.width
    one_bytes, zero = int_const(_ONES, "i32", width), int_const(0, "i32", width)
    sums = code.call(signed, "i32", width, zero, *_all_bytes(code, one_bytes, other))
    return code.op("shl", sums, 7)


def _all_bytes(code: Code, *words: Reg) -> tuple[Reg, ...]:
    return tuple(_as_lanes(code, r, "i8", 4) for r in words)


def _as_lanes(code: Code, words: Reg, elem: str, count: int) -> Reg:
    width = count * words.width
    return code.emit(elem, width, f"bitcast {words} to {vector_type(elem, width)}")


@remembered
def _every_other(code: Code, words: Reg, dtype: DType, first: int) -> Reg:
    """Returns two bytes of each word, widened to 16 bits.

    The bytes are 0 and 2 if `first` is 0, and 1 and 3 if it is 1.
    """
    halves = _as_lanes(code, words, "i16", 2)
    raised = halves if first else code.op("shl", halves, 8)
    lowered = code.op("lshr" if dtype is U8 else "ashr", raised, 8)
    return code.emit("i32", words.width, f"bitcast {lowered} to {words.type}")


@remembered
def _byte(code: Code, words: Reg, dtype: DType, number: int) -> Reg:
    """Returns byte `number` of each word, as i32."""
    raised = code.op("shl", words, 24 - 8 * number) if number < 3 else words
    return code.op("lshr" if dtype is U8 else "ashr", raised, 24)


# ---- loading words -------------------------------------------------------------------------------


def _words(access: BlockAccess, position: tuple[int, ...], chunk: Chunk, count: int) -> Reg | None:
    """Loads words that hold `count` elements each, from the rows that start at `position`.

    A word holds elements of neighbouring rows, along the second-last axis. Returns None if these
    elements are not adjacent in memory.
    """
    per = per_word(access.buffer.dtype)
    lane = lane_of(chunk)
    offset, _ = access.at(position, const(chunk.start))
    if chunk.width > 1:
        lane_offset, _ = access.at(position, const(chunk.start) + lane)
        split = step_in(lane_offset, *free_vars(lane))
        if split is None or split[0] != per:
            return None
    for n in range(1, count):
        neighbour, _ = access.at((*position[:-1], position[-1] + n), const(chunk.start))
        if constant(neighbour - offset) != n:
            return None
    if count < per and (access.indices.divisor(offset) % per or not _holds_words(access.buffer)):
        # The word has room for more elements than the block has rows, and its last bytes might be
        # beyond the end of the buffer, so it cannot be loaded as a whole.
        return None
    return _load_words(access, offset, chunk)


def _holds_words(buffer: TileBuffer) -> bool:
    size = as_int(buffer.sizes[-1])
    return size is not None and size % per_word(buffer.dtype) == 0


def _load_words(access: BlockAccess, offset: Index, chunk: Chunk) -> Reg:
    code = access.code
    size = access.buffer.dtype.bytes
    pointer, align = access.pointer(offset), access.alignment(offset, chunk.width * 4 // size)
    mask = lane_mask(code, Mask(), chunk)
    if mask is None:
        return code.load("i32", chunk.width, pointer, align)
    return masked_load(code, int_const(0, "i32", chunk.width), pointer, mask, align)


def _scalar_word(
    access: BlockAccess, position: tuple[int, ...], chunk: Chunk, count: int
) -> Reg | None:
    """Loads `count` neighbours along the last axis as a word, filled up with zeros.

    Returns None if they are not adjacent in memory.
    """
    first, _ = access.at(position, const(chunk.start))
    for n in range(1, count):
        neighbour, _ = access.at(position, const(chunk.start + n))
        if constant(neighbour - first) != n:
            return None
    word: Reg | None = None
    start, bits = 0, access.buffer.dtype.bits
    # Each load takes the largest power of two of the remaining elements.
    while start < count:
        size = 1 << ((count - start).bit_length() - 1)
        offset = first + start
        elem = f"i{size * bits}"
        align = access.alignment(offset, size)
        loaded = access.code.load(elem, 1, access.pointer(offset), align)
        word = _placed(access.code, word, loaded, start * bits)
        start += size
    return word


# ---- joining elements to words in registers ------------------------------------------------------


def _join_rows(
    code: Code, value: RegisterBlock, position: tuple[int, ...], chunk: Chunk, count: int
) -> Reg:
    positions = [(*position[:-1], position[-1] + n) for n in range(count)]
    rows = [part(code, value, row_number(value.shape, p), chunk) for p in positions]
    return _join(code, rows, value.dtype)


def _join_scalars(
    code: Code, value: RegisterBlock, position: tuple[int, ...], chunk: Chunk, count: int
) -> Reg:
    row = row_number(value.shape, position)
    elements = [element(code, value, row, chunk.start + n) for n in range(count)]
    return _join(code, elements, value.dtype)


def _join(code: Code, elements: Sequence[Reg], dtype: DType) -> Reg:
    word: Reg | None = None
    for n, reg in enumerate(elements):
        bits = reg
        if dtype is BF16:  # a bf16 is carried as f32, so its bits are the upper half
            bits = code.op("lshr", code.convert("bitcast", reg, "i32"), 16)
        word = _placed(code, word, bits, n * dtype.bits)
    assert word is not None
    return word


def _placed(code: Code, below: Reg | None, bits: Reg, shift: int) -> Reg:
    """Returns the words `below` with `bits` inserted at bit `shift`, where they are zero.

    Without `below`, all other bits are zero.
    """
    words = bits if bits.elem == "i32" else code.convert("zext", bits, "i32")
    if shift:
        words = code.op("shl", words, shift)
    return words if below is None else code.op("or", below, words)
