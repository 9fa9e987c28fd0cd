"""The kernels of the calibration: functions of blocks, and launches of an empty kernel."""

from pathlib import Path
from typing import TypeAlias

from tcc.backends.artifact.link import link_artifact
from tcc.backends.artifact.variant import Variant
from tcc.backends.cpu.codegen import compile_object
from tcc.backends.cpu.llvm.emit import KernelText, emit_kernel
from tcc.ir.expr.scalar import Scalar, apply, argument
from tcc.ir.index import Indices, Vars, const, free_vars, iterator
from tcc.ir.program import Allocate, Buffer, IntOp, Launch, Let, Loop, Output, Port, Program
from tcc.ir.tile import (
    Block,
    Compute,
    Load,
    MemorySpace,
    Store,
    TileBuffer,
    TileKernel,
    lanes,
)
from tcc.ir.types import F32, I32
from tcc.target import Target

# Vectors per block, and blocks per pass. All data fits into any first-level cache.
VECTORS, BLOCKS = 4, 8
_PASSES = 1 << 30

# Functions whose cost a machine file lists, with their number of operands. `gather` is listed too.
TIMED = (
    *(("div", 2), ("sqrt", 1), ("exp", 1), ("expm1", 1), ("tanh", 1), ("log", 1), ("log1p", 1)),
    *(("erf", 1), ("sin", 1), ("cos", 1), ("tan", 1), ("pow", 2)),
)
# The C library computes some functions of two operands element by element. Only this one of them is
# timed; its time stands for all of them.
LIBRARY = "atan2"


def function_kernel(function: str, arity: int, lanes_: int, target: Target) -> KernelText:
    """Returns the kernel y[i] = function(x[i], ...) over BLOCKS tiles of VECTORS vectors.

    Its buffers are x and y. Tile n + BLOCKS repeats tile n, so a launch of more tiles repeats the
    pass.
    """
    (x, y), axes, place, (block, out) = _pass(VECTORS * lanes_)
    body: Scalar = apply(function, *(argument(0, F32),) * arity)
    statements = Load(block, x, place), Compute(out, body, (block,)), Store(y, place, out)
    return emit_kernel(TileKernel((x, y), (), (), axes, statements), f"function_{function}", target)


def gather_kernel(lanes_: int, target: Target) -> KernelText:
    """Returns the kernel y[i] = x[at[i]]; its buffers are x, y and at."""
    (x, y), axes, place, (_, out) = _pass(VECTORS * lanes_)
    at, index = TileBuffer("at", I32, x.sizes, MemorySpace.INPUT), Block("i", I32, out.shape)
    element = iterator("t", BLOCKS * VECTORS * lanes_)
    (row,) = free_vars(element)
    gather = Load(out, x, (element,), indirect=((row, index),))
    statements = Load(index, at, place), gather, Store(y, place, out)
    return emit_kernel(TileKernel((x, y, at), (), (), axes, statements), "gather", target)


_Pass: TypeAlias = tuple[list[TileBuffer], Vars, Indices, list[Block]]


def _pass(size: int) -> _Pass:
    """Returns the buffers x and y of a kernel, its parallel axes (passes, blocks), the index of a
    block of `size` elements, and two blocks."""
    spaces = (("x", MemorySpace.INPUT), ("y", MemorySpace.OUTPUT))
    buffers = [TileBuffer(name, F32, (const(size * BLOCKS),), space) for name, space in spaces]
    number = iterator("u", BLOCKS)
    axes = free_vars(iterator("pass", _PASSES), number)
    place = (number * size + lanes((size,))[0],)
    return buffers, axes, place, [Block(name, F32, (size,)) for name in "ab"]


def link_launches(folder: Path, trips: int, units: int, target: Target, *, serial: bool) -> Path:
    """Links an artifact that launches an empty kernel `trips` times over `units` tiles.

    With `serial`, the calling thread runs all tiles; else all threads share them. Raises ToolError
    if nothing can link.
    """
    name = "nothing"
    # The number of the register that holds the smallest number of tiles for a thread. Register 4
    # holds the number of all tiles, so that only one thread gets tiles. -1 stands for no register:
    # a thread may get a single tile.
    count = 4 if serial else -1
    text = (
        f'target triple = "{target.triple}"\n'
        f"define void @{name}(ptr %b, ptr %n, i64 %begin, i64 %end, ptr %s) {{\n  ret void\n}}\n"
    )
    body = (
        Let(0, IntOp.CONST, 0),
        Let(1, IntOp.CONST, 1),
        Let(2, IntOp.CONST, 4),
        Let(3, IntOp.CONST, trips),
        Let(4, IntOp.CONST, units),
        Allocate(0, 2),
        Loop(3, -1, 5, (Launch(0, 4, (0,), (), count),)),
    )
    program = Program(
        (), (Port("y", F32, (1,), "[1]"),), 6, (Buffer(Output(0), "y"),), (name,), 0, 0, body
    )
    out = folder / f"launches{int(serial)}.so"
    variant = Variant(
        target.text,
        program,
        objects=(compile_object(text, target),),
        features=target.profile.features,
    )
    link_artifact([variant], {}, "launches", out, triple=target.triple)
    return out
