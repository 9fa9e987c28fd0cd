"""Builds the statements of a kernel, and names the blocks and variables that they define."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tcc.ir.index import Index, free_vars, iterator
from tcc.ir.tile import Block, Blocks, Stmt, Stmts, TileBuffer, TileLoop
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import DType


def tile_buffers(group: TileGroup) -> tuple[TileBuffer, ...]:
    """Returns a flat buffer for each buffer of the group."""
    return tuple(
        TileBuffer(f"b{n}", b.dtype, (b.size,), b.scope, b.dtype.bytes)
        for n, b in enumerate(group.buffers)
    )


class StatementEmitter:
    """Adds statements to the open body: the body of the kernel, of a loop or of a branch."""

    def __init__(self) -> None:
        self.stmts: Stmts = []
        self._count = 0

    def fresh(self, dtype: DType, shape: tuple[int, ...]) -> Block:
        """Returns a block with a new name."""
        self._count += 1
        return Block(f"v{self._count - 1}", dtype, shape)

    def like(self, blocks: Iterable[Block]) -> Blocks:
        """Returns new blocks with the types and shapes of `blocks`."""
        return tuple(self.fresh(b.dtype, b.shape) for b in blocks)

    def counter(self, size: Index) -> Index:
        """Returns a new loop variable, whose values are below `size`."""
        self._count += 1
        return iterator(f"k{self._count - 1}", size)

    def add(self, *stmts: Stmt) -> None:
        """Adds statements to the open body."""
        self.stmts += stmts

    @contextmanager
    def body(self) -> Iterator[Stmts]:
        """Opens a body that receives the statements that are added inside the `with` block."""
        outer, self.stmts = self.stmts, []
        try:
            yield self.stmts
        finally:
            self.stmts = outer

    @contextmanager
    def loop(self, counter: Index, start: Index, stop: Index, step: int = 1) -> Iterator[None]:
        """Puts a loop around the statements that are added inside the `with` block.

        Adds no loop if no statements are added there.
        """
        with self.body() as body:
            yield
        if body:
            (var,) = free_vars(counter)
            self.add(TileLoop(var, start, stop, step, (), (), tuple(body), (), ()))

    def carry(
        self,
        counter: Index,
        start: Index,
        stop: Index,
        step: int,
        inits: Blocks,
        trip: Callable[[Blocks], Blocks],
    ) -> Blocks:
        """Adds a loop that carries blocks, and returns the blocks after the last iteration.

        `inits` are the blocks before the first iteration. `trip` gets the blocks before an
        iteration, adds its statements, and returns the blocks after it.
        """
        (var,) = free_vars(counter)
        carried = self.like(inits)
        with self.body() as body:
            yields = trip(carried)
        results = self.like(inits)
        self.add(TileLoop(var, start, stop, step, inits, carried, tuple(body), yields, results))
        return results
