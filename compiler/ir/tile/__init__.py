"""Tile: a kernel as a program over blocks, in the same form for every target.

    kernel = buffers, sizes, parallel axes, body
    stmt   = Load | Store | Prefetch | Compute | Contract | Reduce | Broadcast | Relayout
           | TileLoop | If | Sync

    GEMM with a fused ReLU, 6 x 64 register tile, in the text of `tcc.ir.tile.text`:
      kernel() parallel(n: 0..12, m: 0..21) {
        input %A : f32[126,768] align 64
        input %B : f32[12,768,64] align 64
        output %C : f32[126,768] align 64
        %acc: f32[6,64] = compute() 0.0:f32
        %sum: f32[6,64] = for k: 0..768 in 0..768 step 2 carry (%c: f32[6,64] = %acc) {
          %a: f32[6,2] = load %A[6*m+l0, k+l1]
          %b: f32[2,64] = load %B[n, k+l0, l1]
          %d: f32[6,64] = contract %a[m,k] * %b[k,n] + %c[m,n]
          yield %d
      }
        %y: f32[6,64] = compute(%sum) max(arg(0):f32, 0.0:f32)
        store %y to %C[6*m+l0, 64*n+l1]
    }

Blocks are SSA values of static shape.  A slice is a tuple of index expressions over the kernel's
sizes, the variables of enclosing loops and the block's *lane variables* l0, l1, ...
(`lanes(shape)`), one for each axis of the block; the expressions give the position of each element.
Data-dependent indices are variables bound to integer blocks (`indirect`), which broadcast to the
block's shape.

A `Guard` is a condition that each lane of an access must meet.  In a lane that fails it, a load
gives `fill`, and a store does nothing.  Guards are the only masks.  The remainder of a loop is
computed by blocks of smaller shapes.  On targets with masked instructions, the remainder of a loop
of symbolic size is computed by full vectors, whose guards exclude the lanes after the loop's end.

A tile is one point of the parallel axes.  Tiles are independent; they may run in any order on any
thread.  Within a tile, statements run in order.  `MemorySpace.LOCAL` buffers are private to a tile
and uninitialised.  Broadcasting between blocks follows NumPy for blocks of equal rank.  Reductions
inside a statement have a fixed order, so a tile's result does not depend on the schedule of tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import TypeAlias

from tcc.frozen import entity, frozen
from tcc.ir.expr.scalar import Scalar
from tcc.ir.index import Index, Indices, Substitution, Var, Vars, iterator, substitute
from tcc.ir.types import DType


class MemorySpace(Enum):
    """The kind of memory in which a buffer is stored."""

    INPUT = "input"  # global memory that is only read
    OUTPUT = "output"  # global memory; a tile may read only what it wrote itself
    LOCAL = "local"  # scratch of a tile: cache on a CPU, shared memory on a GPU


@entity
class TileBuffer:
    """A row-major array with the shape `sizes`.  `align` is its address's alignment in bytes."""

    name: str
    dtype: DType
    sizes: Indices
    scope: MemorySpace
    align: int = 64

    @property
    def is_local(self) -> bool:
        return self.scope is MemorySpace.LOCAL


@entity
class Block:
    """An SSA value, an array of static shape; the shape of a scalar is ()."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


@frozen
class Guard:
    """The condition `0 <= index < extent`, which must hold for each lane that is loaded or stored.

    Both are over sizes and the variables of loops, lanes and indirect indices.
    """

    index: Index
    extent: Index


def guards_at(guards: Iterable[Guard], mapping: Substitution) -> tuple[Guard, ...]:
    """Returns `guards` with variables replaced."""
    return tuple(Guard(substitute(g.index, mapping), substitute(g.extent, mapping)) for g in guards)


Indirect: TypeAlias = tuple[tuple[Var, Block], ...]


@entity
class Load:
    """`out = buffer[indices]`; lanes in which a guard fails get `fill`.

    `indirect` binds the variables of data-dependent indices to integer blocks.
    """

    out: Block
    buffer: TileBuffer
    indices: Indices
    guards: tuple[Guard, ...] = ()
    fill: bool | int | float = 0
    indirect: Indirect = ()


@entity
class Store:
    """`buffer[indices] = block`; lanes in which a guard fails are not stored.

    All lanes of a store have different positions.
    """

    buffer: TileBuffer
    indices: Indices
    block: Block
    guards: tuple[Guard, ...] = ()
    indirect: Indirect = ()


@entity
class Prefetch:
    """A hint that the cache line of `buffer[indices]` is needed soon; changes no value.

    The indices are over sizes and the variables of loops and indirect indices.  Indirect variables
    are bound to blocks of a single element.  If the indices are outside the buffer, the hint has no
    effect and causes no fault.
    """

    buffer: TileBuffer
    indices: Indices
    indirect: Indirect = ()
    level: int = 1  # the cache level to load the line into: 1 or 2
    write: bool = False  # True if the line will be written


@entity
class Compute:
    """`out = body(args)` element by element.

    `body` is a scalar over `Arg(n)`, the elements of `args[n]`, and `IndexValue`s over sizes, loop
    and lane variables; it contains no reads.
    """

    out: Block
    body: Scalar
    args: Blocks


@entity
class Contract:
    """`out = acc + sum over k of a * b`.

    Every axis of a block has a label; equal labels mean the same axis.  A label in `a`, `b` and
    `out` is a batch axis, in `a` and `out` an m axis, in `b` and `out` an n axis, and in `a` and
    `b` only a k axis.  Products and sums have the dtype of `acc`, with or without fused
    multiply-add; terms are added in the order of k.  For bf16 operands a processor may sum products
    in pairs and treat denormals as zeros; i8 and u8 operands are multiplied in i32.
    """

    out: Block
    acc: Block
    a: Block
    b: Block
    out_axes: tuple[str, ...]
    a_axes: tuple[str, ...]
    b_axes: tuple[str, ...]


@entity
class Reduce:
    """Combines `blocks`, the components of `monoid`, along `axes`, which get extent 1 in `outs`."""

    outs: Blocks
    monoid: str
    blocks: Blocks
    axes: tuple[int, ...]


@entity
class Broadcast:
    """Repeats `block` along axes of extent 1 to give `out.shape`, which has the same rank."""

    out: Block
    block: Block


@entity
class Relayout:
    """Transposes `block` so that axis n is its axis `order[n]`, then reshapes it to `out.shape`."""

    out: Block
    block: Block
    order: tuple[int, ...]


@entity
class TileLoop:
    """A serial loop: `for var in start, start + step, ... < stop`.

    `stop - start` is a multiple of `step`.  The blocks `carried` have the values `inits` in the
    first trip, and the values `yields` of the previous trip in every later one.  `results` are
    their values after the last trip.
    """

    var: Var
    start: Index
    stop: Index
    step: int
    inits: Blocks
    carried: Blocks
    body: tuple[Stmt, ...]
    yields: Blocks
    results: Blocks


@entity
class If:
    """Runs `then` if `lhs < rhs`, else `otherwise`.

    Both indices have no lane variables. Blocks that a branch defines are not visible outside it.
    """

    lhs: Index
    rhs: Index
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@entity
class Sync:
    """Makes earlier stores to LOCAL buffers visible to later loads, for all lanes of a tile."""


Stmt: TypeAlias = (
    Load
    | Store
    | Prefetch
    | Compute
    | Contract
    | Reduce
    | Broadcast
    | Relayout
    | TileLoop
    | If
    | Sync
)
Stmts: TypeAlias = list[Stmt]
Blocks: TypeAlias = tuple[Block, ...]


@entity
class TileKernel:
    """A kernel.

    `buffers` are in the order of the launch; LOCAL buffers are in `locals` instead.  `sizes` are
    the size symbols whose values the launch passes, in order.  `axes` are the parallel axes,
    outermost first.  The grid of a launch is the product of their extents, and the number of a tile
    is the row-major position of its values of the axes.

    `in_place` has pairs of an input and an output, as positions in `buffers`, that a launch may
    give the same memory.  `nontemporal` has the positions of results whose stores may bypass the
    caches if that is faster on the target; each element of them is stored once.
    """

    buffers: tuple[TileBuffer, ...]
    locals: tuple[TileBuffer, ...]
    sizes: Vars
    axes: Vars
    body: tuple[Stmt, ...]
    in_place: tuple[tuple[int, int], ...] = ()
    nontemporal: tuple[int, ...] = ()

    @property
    def results(self) -> tuple[int, ...]:
        """The positions of the results in `buffers`."""
        return tuple(n for n, b in enumerate(self.buffers) if b.scope is MemorySpace.OUTPUT)


def inner_bodies(node: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """Returns the bodies of a loop or a branch, in order; empty for other statements."""
    match node:
        case TileLoop():
            return (node.body,)
        case If():
            return node.then, node.otherwise
        case _:
            return ()


def walk_statements(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """Yields every statement of `body`, outer ones before inner ones."""
    for node in body:
        yield node
        for inner in inner_bodies(node):
            yield from walk_statements(inner)


def defined_blocks(node: Stmt) -> Blocks:
    """Returns the blocks that a statement itself defines."""
    match node:
        case Load() | Compute() | Contract() | Broadcast() | Relayout():
            return (node.out,)
        case Reduce():
            return node.outs
        case TileLoop():
            return (*node.carried, *node.results)
        case Store() | Prefetch() | If() | Sync():
            return ()


def used_blocks(node: Stmt) -> Blocks:
    """Returns the blocks that a statement itself uses, without the uses of inner statements."""
    match node:
        case Contract():
            return node.acc, node.a, node.b
        case TileLoop():
            return *node.inits, *node.yields
        case Compute():
            return node.args
        case Reduce():
            return node.blocks
        case Broadcast() | Relayout():
            return (node.block,)
        case Store():
            return (node.block, *(block for _, block in node.indirect))
        case Load() | Prefetch():
            return tuple(block for _, block in node.indirect)
        case If() | Sync():
            return ()


def lanes(shape: tuple[int, ...]) -> Indices:
    """Returns the lane variables l0, l1, ... of a block of `shape`."""
    return tuple(iterator(f"l{axis}", size) for axis, size in enumerate(shape))
