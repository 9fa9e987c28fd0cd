"""Finds what alignment kernels for devices may count on, from what their launches pass.

    launch k(input 0, arena)            ->   both buffers of k align 16
    launch k(view of a stack, arena)    ->   the second alone: a view begins at any element

On a device all memory but that of views begins at a multiple of 16 bytes: the arena and the weights
anyhow, and callers' arrays that do not are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tcc.ir.program import Alias, Branch, Instr, Launch, Loop, Program
from tcc.ir.tile import TileKernel

# Bytes: what the widest load of a lane takes, and what every device's memory is a multiple of.
ALIGNED = 16


def align_buffers(program: Program, kernels: Sequence[TileKernel]) -> tuple[tuple[int, ...], ...]:
    """For each of `kernels` the alignment of its buffers in bytes, in every launch of `program`."""
    viewed: dict[int, set[int]] = {n: set() for n in range(len(kernels))}
    for launch in _launches(program.body):
        for place, buffer in enumerate(launch.buffers):
            if isinstance(program.buffers[buffer].place, Alias):
                viewed[launch.kernel].add(place)
    return tuple(
        tuple(
            b.align if n in viewed[number] else max(b.align, ALIGNED)
            for n, b in enumerate(kernel.buffers)
        )
        for number, kernel in enumerate(kernels)
    )


def _launches(body: Sequence[Instr]) -> Iterator[Launch]:
    for instr in body:
        match instr:
            case Launch():
                yield instr
            case Branch():
                yield from _launches((*instr.then, *instr.otherwise))
            case Loop():
                yield from _launches(instr.body)
            case _:
                pass
