"""GGUF's quantised types: blocks of 32 or 256 levels with their scales, as `Levels`.

The layouts are those of ggml-common.h in llama.cpp; the values are those of `gguf.quants`.
"""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
from tcc.frontends.weights.checkpoint import Levels
from tcc.ir.op import Array
from tcc.ir.types import I8, U4

# The number of levels in a block, and its fields: f16 factors d of scales and m of minimums, scales
# s, all or lower bits of levels q, upper bits h.
_ROWS = """
Q8_0  32 dq    <f2 32i1
Q4_0  32 dq    <f2 16u1
Q4_1  32 dmq   <f2 <f2 16u1
Q5_0  32 dhq   <f2 4u1 16u1
Q4_K 256 dmsq  <f2 <f2 12u1 128u1
Q5_K 256 dmshq <f2 <f2 12u1 32u1 128u1
Q6_K 256 qhsd  128u1 64u1 16i1 <f2
"""
# The levels of a block and its structured NumPy type, by the name of the type.
BLOCKS = MappingProxyType(
    {
        type_name: (int(columns), np.dtype({"names": [*fields], "formats": formats}))
        for type_name, columns, fields, *formats in map(str.split, _ROWS.strip().split("\n"))
    }
)


def levels_of(type_name: str, blocks: Array, rows: int) -> Levels:
    """Returns the levels of `rows` rows of blocks of a type.

    They take at most 1.35 times the bytes of the blocks.
    """

    def matrix(field: str) -> Array:
        return blocks[field].reshape(rows, -1)

    def codes(field: str, width: int, bits: int) -> Array:
        """Returns `[rows, columns]` codes of `bits` bits.

        The lowest bits of `width` bytes are the codes of as many neighbours, the next bits of these
        bytes are those of the next neighbours, and so on.
        """
        shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
        spread = blocks[field].reshape(len(blocks), -1, 1, width) >> shifts
        spread &= np.uint8((1 << bits) - 1)
        return spread.reshape(rows, -1)

    d = matrix("d")
    match type_name:
        case "Q8_0":
            return Levels(matrix("q"), I8, d, None, 0, 32)
        case "Q4_0":
            return Levels(codes("q", 16, 4), U4, d, None, 8, 32)
        case "Q4_1":
            return Levels(codes("q", 16, 4), U4, d, matrix("m"), 0, 32)
        case "Q5_0":
            return Levels(codes("q", 16, 4), U4, d, None, 16, 32, codes("h", 1, 1), high_bits=1)
        case "Q6_K":
            low, high = codes("q", 64, 4), codes("h", 32, 2)
            return Levels(low, U4, matrix("s"), None, 32, 16, high, d, high_bits=2)
    # 8 scales and 8 minimums of 6 bits fill 12 bytes.  Bytes 0 to 3 have the first four scales in
    # their lower bits, bytes 4 to 7 the first four minimums.  The others have their lower four bits
    # in the last bytes, and their upper two in the upper bits of the first eight.
    packed = blocks["s"]
    low, last = packed[:, :8].reshape(-1, 2, 4), packed[:, 8:]
    lower = np.stack([last & 15, last >> 4], 1)
    factors = np.concatenate([low & 63, lower | low >> 2 & 48], 2)
    scales, minimums = (factors[:, n].reshape(rows, -1) for n in (0, 1))
    levels = Levels(codes("q", 32, 4), U4, scales, minimums, 0, 32, None, d, -matrix("m"))
    if type_name == "Q4_K":
        return levels
    return replace(levels, high=codes("h", 32, 1), high_bits=1)
