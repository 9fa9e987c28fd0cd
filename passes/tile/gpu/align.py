"""Finds the alignment of buffers that block kernels may assume.

    launch k(arena, weight), launch k(arena, arena)     ->  both parameters of k: 16 bytes
    launch k(arena, view)                               ->  second parameter: the size of an element

Wide loads need aligned buffers.  The runtime places buffers at multiples of 64 bytes, and copies
callers' arrays that do not lie at multiples of 16.  A view into another buffer may lie anywhere.
Requires a program and its kernels, in order.  Establishes the alignment of each kernel's buffers.
"""

from collections.abc import Sequence

from tcc.ir.program import Alias, Launch, Program
from tcc.ir.program.operands import walk_instructions
from tcc.ir.tile import TileKernel
from tcc.zipped import zip_equal

# The widest access of a lane, in bytes.
_WIDE = 16


def buffer_alignments(
    program: Program, kernels: Sequence[TileKernel]
) -> tuple[tuple[int, ...], ...]:
    """Returns the alignment in bytes of each buffer of each kernel, which holds in all launches."""
    placed = [not isinstance(b.place, Alias) for b in program.buffers]
    is_wide = [[True] * len(kernel.buffers) for kernel in kernels]
    for instr in walk_instructions(program.body):
        if isinstance(instr, Launch):
            for place, buffer in enumerate(instr.buffers):
                is_wide[instr.kernel][place] &= placed[buffer]
    return tuple(
        tuple(_WIDE if w else b.align for w, b in zip_equal(flags, kernel.buffers))
        for flags, kernel in zip_equal(is_wide, kernels)
    )
