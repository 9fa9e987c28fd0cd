"""Words that are computed from levels of four bits.

    bf16[2, 64] = compute(i8[1, 64]) bf16(i8(byte << (28 - 4 * row) >> 28))
    u8[4, 64] = compute(u8[4, 64]) byte >> 4 & 15

The two levels of a byte become a word of bf16 by one look-up in a table: x86-64 processors with
AVX512BW look up 16-bit elements (vpermw).  The bytes of a word become unsigned levels by a shift
and a mask.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tcc.backends.cpu.llvm.blocks import RegisterBlock
from tcc.backends.cpu.llvm.text import Code, Reg, lane_consts, vector_type
from tcc.ir.expr.scalar import Scalar, apply, argument, cast, index_value, literal
from tcc.ir.index import Index, const
from tcc.ir.narrow import bf16_bits
from tcc.ir.tile import Compute, lanes
from tcc.ir.types import BF16, I8, I32, U8, U32

# The bits of the levels 0 to 7 and -8 to -1 in bf16, in the order of their lowest four bits.
_TABLE = bf16_bits(np.array([*range(8), *range(-8, 0)], np.float32)).tolist()
_NIBBLES = 0x0F0F0F0F  # a mask of the lower half of each byte of a word
# Narrower vectors have fewer than sixteen elements.
_NAMES = {8: "llvm.x86.avx512.permvar.hi.256", 16: "llvm.x86.avx512.permvar.hi.512"}


def nibble_words(code: Code, node: Compute, args: Sequence[RegisterBlock]) -> RegisterBlock | None:
    """Returns the result of `node` in words of neighbouring rows.

    Returns None if the result has other than two rows of levels of four bits, or if the processor
    has no such look-up.
    """
    profile, shape = code.module.profile, node.out.shape
    if profile.arch != "x86-64" or not profile.masks_lanes or len(shape) < 2 or shape[-2] != 2:
        return None
    if node.body is not _levels_of_byte(lanes(shape)[-2]):
        return None
    (levels,) = args
    chunks, form = levels.chunks, (*shape[:-2], 1, shape[-1])
    if levels.shape != form or any(c.width not in _NAMES for c in chunks):
        return None
    return RegisterBlock(U32, form, chunks, tuple(_looked_up(code, reg) for reg in levels.regs))


def _levels_of_byte(row: Index) -> Scalar:
    """Returns the body that computes the level in half `row` of a byte."""
    raised = apply("shift_left", cast(argument(0, I8), I32), index_value(28 - 4 * row, I32))
    return cast(cast(apply("shift_right", raised, literal(28, I32)), I8), BF16)


def shift_of_nibble(node: Compute) -> int | None:
    """Returns the first bit of the levels that `node` takes out of bytes; None for other nodes."""
    if len(node.args) != 1 or node.args[0].dtype is not U8:
        return None
    byte = cast(argument(0, U8), I32)
    for bit in (0, 4):
        shifted = apply("shift_right", byte, index_value(const(bit), I32))
        if node.body is cast(apply("bit_and", shifted, literal(15, I32)), node.out.dtype):
            return bit
    return None


def nibbles_of_words(code: Code, bit: int, words: RegisterBlock) -> RegisterBlock:
    """Returns the levels from bit `bit` on of all bytes of `words`."""

    def unpacked(reg: Reg) -> Reg:
        return code.op("and", code.op("lshr", reg, bit) if bit else reg, _NIBBLES)

    return replace(words, regs=tuple(map(unpacked, words.regs)))


def _looked_up(code: Code, levels: Reg) -> Reg:
    """Returns the words for a vector of bytes.

    A look-up ignores the upper bits of each 16-bit index.  The lower half of a word is the byte
    itself, and the upper half the byte shifted by four bits.
    """
    width = levels.width
    wide = code.convert("zext", levels, "i32")
    numbers = code.op("or", wide, code.op("shl", wide, 12))
    count = 2 * width
    index = code.emit("i16", count, f"bitcast {numbers} to {vector_type('i16', count)}")
    table = lane_consts([_TABLE[n % 16] for n in range(count)], "i16")
    pairs = code.call(_NAMES[width], "i16", count, table, index)
    return code.emit("i32", width, f"bitcast {pairs} to {vector_type('i32', width)}")
