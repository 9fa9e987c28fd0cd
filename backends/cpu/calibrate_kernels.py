"""The kernels of the calibration: functions of blocks, and launches of an empty kernel."""

from pathlib import Path

from tcc.backends.artifact.encode_program import encode_program
from tcc.backends.artifact.link import link_artifact
from tcc.backends.artifact.variant import Variant
from tcc.backends.cpu.codegen import compile_object
from tcc.backends.cpu.llvm.emit import KernelText, emit_kernel
from tcc.ir.expr.scalar import Scalar, apply, argument
from tcc.ir.index import Index, Var, const, iterator, var_of
from tcc.ir.program import Allocate, Buffer, IntOp, Launch, Let, Loop, Output, Port, Program
from tcc.ir.tile import (
    Block,
    Compute,
    Load,
    MemorySpace,
    Stmt,
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
    shape = (VECTORS * lanes_,)
    x, y = _buffers(shape[0] * BLOCKS)
    axes, place = _axes(shape[0])
    block, out = Block("a", F32, shape), Block("b", F32, shape)
    body: Scalar = apply(function, *(argument(0, F32),) * arity)
    statements: tuple[Stmt, ...] = (
        Load(block, x, place),
        Compute(out, body, (block,)),
        Store(y, place, out),
    )
    kernel = TileKernel((x, y), (), (), axes, statements)
    return emit_kernel(kernel, f"function_{function}", target)


def gather_kernel(lanes_: int, target: Target) -> KernelText:
    """Returns the kernel y[i] = x[at[i]]; its buffers are x, y and at."""
    shape = (VECTORS * lanes_,)
    x, y = _buffers(shape[0] * BLOCKS)
    at = TileBuffer("at", I32, x.sizes, MemorySpace.INPUT)
    axes, place = _axes(shape[0])
    index, out = Block("i", I32, shape), Block("b", F32, shape)
    row = var_of(iterator("t", shape[0] * BLOCKS))
    assert row is not None
    statements: tuple[Stmt, ...] = (
        Load(index, at, place),
        Load(out, x, (iterator("t", shape[0] * BLOCKS),), indirect=((row, index),)),
        Store(y, place, out),
    )
    return emit_kernel(TileKernel((x, y, at), (), (), axes, statements), "gather", target)


def _buffers(size: int) -> tuple[TileBuffer, TileBuffer]:
    sizes = (const(size),)
    return TileBuffer("x", F32, sizes, MemorySpace.INPUT), TileBuffer(
        "y", F32, sizes, MemorySpace.OUTPUT
    )


def _axes(size: int) -> tuple[tuple[Var, ...], tuple[Index, ...]]:
    """Returns the parallel axes (passes, blocks), and the index of a block of `size` elements."""
    axes = tuple(var_of(iterator(n, e)) for n, e in (("pass", _PASSES), ("u", BLOCKS)))
    number = iterator("u", BLOCKS)
    return tuple(v for v in axes if v is not None), (number * size + lanes((size,))[0],)


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
        encode_program(program),
        (name,),
        objects=(compile_object(text, target),),
        features=target.profile.features,
    )
    link_artifact([variant], {}, "launches", out, triple=target.triple)
    return out
