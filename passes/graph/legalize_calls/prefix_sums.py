"""Computes running totals of a line by blocks, as stages of an expression.

    x = 3 1 | 4 1 | 5     within = 3 4 | 4 5 | 5     before = 0 4 9     running = within + before

within[i] is the sum of the elements up to i in the block of element i; a block has 64 elements.
before[b] is the sum of all blocks before block b: a running total whose elements are the totals of
blocks, and which is computed in the same way.  This takes 64 times the work of a single loop along
the line, but no element waits for the element before it.
"""

from collections.abc import Callable, Sequence

from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, apply, index_value
from tcc.ir.index import Index, IndexLike, Indices, as_int, ceildiv
from tcc.ir.types import I64
from tcc.ops.formula import choose

# A block has BLOCK elements. A line of at most DIRECT elements is not divided into blocks.
BLOCK, DIRECT = 64, 512
# A line of symbolic length has as many levels of blocks as a line of _TYPICAL elements.
_TYPICAL = 1 << 20

# Returns an element; the arguments are the indices of its line, and its position in the line.
# Beyond the end of the line, it returns the identity.
Term = Callable[[Indices, Index], Scalar]


@frozen
class Combination:
    """A monoid of a single component, with the function that combines two values, and the
    identity."""

    monoid: str
    function: str
    identity: int


class Totals:
    """The stages that compute running totals along lines of `count` elements.

    `lines` are the extents of the axes that number the lines.
    """

    def __init__(
        self,
        b: ExprBuilder,
        lines: Sequence[Index],
        count: Index,
        term: Term,
        combination: Combination,
        typical: int = _TYPICAL,
    ) -> None:
        """Adds the stages to `b`; `term` computes an element.

        `typical` is the length of a line that is assumed if `count` is symbolic.
        """
        self.b, self.combination = b, combination
        self.within: StageRef | None = None
        size = as_int(count)
        if (typical if size is None else size) <= DIRECT:
            self.direct = _running(b, lines, count, term, combination)
            return
        blocks = ceildiv(count, BLOCK)
        self.within = within_blocks(b, lines, blocks, term, combination)
        self.outer = Totals(b, lines, blocks, self._of_block, combination, -(-typical // BLOCK))

    def before(self, at: Indices, number: Index) -> Scalar:
        """Returns the total of the elements before element `number`, which is inside the line."""
        return self._through(at, number, 1, self.combination.identity)

    def up_to(self, at: Indices, number: Index) -> Scalar:
        """Returns the total of the elements up to and including element `number`."""
        return self._through(at, number, 0)

    def _through(self, at: Indices, number: Index, back: int, fill: int | None = None) -> Scalar:
        """Returns the total up to and including element `number` - `back`.

        Returns `fill` if `number` < `back`.
        """
        if self.within is None:
            return self.b.read(self.direct, *at, number - back, fill=fill)
        block, place = number // BLOCK, number % BLOCK - back
        inside = self.b.read(self.within, *at, block, place, fill=fill)
        return apply(self.combination.function, self.outer.before(at, block), inside)

    def _of_block(self, at: Indices, number: Index) -> Scalar:
        """Returns the total of all elements of block `number`."""
        assert self.within is not None
        last, fill = BLOCK - 1, self.combination.identity
        return self.b.read(self.within, *at, number, last, fill=fill)


def within_blocks(
    b: ExprBuilder, lines: Sequence[Index], blocks: Index, term: Term, combination: Combination
) -> StageRef:
    """Adds and returns the stage [*lines, blocks, BLOCK] of the running totals of each block.

    `term` computes an element of a line, which has `blocks` blocks.
    """

    def in_block(at: Indices, k: Index) -> Scalar:
        return term(at[:-1], at[-1] * BLOCK + k)

    return _running(b, (*lines, blocks), BLOCK, in_block, combination)


def _running(
    b: ExprBuilder, lines: Sequence[Index], size: IndexLike, term: Term, combination: Combination
) -> StageRef:
    """Adds and returns the stage [*lines, size] of running totals, each with a loop of its own."""
    *at, number = b.iters(*lines, size)
    (k,) = b.iters(size)
    body = choose(index_value(k, I64) <= number, term(tuple(at), k), combination.identity)
    return b.stage((*at, number), body, over=(k,), monoid=combination.monoid)
