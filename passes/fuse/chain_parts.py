"""Computes chained reductions, such as attention over many keys, in parts that threads share.

    m = max(j) s[j] ; l = sum(j) exp(s[j] - m)

      ->  p[c] = max(j in part c) s[j] ; t[c] = sum(j in part c) exp(s[j] - p[c])     a kernel
          m = max(c) p[c]              ; l = sum(c) t[c] * exp(p[c] - m)              another

A part is `size` consecutive elements of the reduced loop.  In the first kernel, a mask replaces
terms outside of the part by the identity of their reduction, and the streaming loop leaves out the
blocks that the mask hides (`schedule.masked_terms`).  The factor exp(p[c] - m), by which a partial
sum is rescaled, is the factor of the online form (`online_reductions`).  If all elements of a part
are masked, its terms read 0 in place of the infinite p[c].

Parts have a fixed length, so sums do not depend on the number of threads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tcc.frozen import frozen
from tcc.ir.expr import MONOIDS, Expr, Stage, extent, known_extent, reads, with_reads, with_stages
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import (
    Read,
    Scalar,
    StageRef,
    argument,
    index_value,
    literal,
    read,
    read_from,
    replaced,
    uncast,
)
from tcc.ir.index import ceildiv, free_vars, iterator, of_atom
from tcc.ir.tile.group import Rescale
from tcc.ir.types import I64
from tcc.ops.formula import choose
from tcc.passes.fuse.online_reductions import Streamed, derive
from tcc.schedule.nest import multiplied_parts, trips
from tcc.zipped import zip_equal

# The lengths of parts whose prices are compared, in elements of the reduced loop. They are
# multiples of the blocks of streaming loops (`schedule.cpu.candidates`), so no block is in two
# parts.
_SIZES = 256, 1024


@frozen
class Parts:
    """An expression whose chained reductions are computed in parts of `size` elements.

    `partial` are the numbers of the stages with results of parts; later stages combine them.
    """

    expr: Expr
    size: int
    partial: tuple[int, ...]


def chain_parts(expr: Expr, sizes: Sequence[int] = _SIZES) -> Iterator[Parts]:
    """Yields the form of `expr` with parts of each of `sizes` elements, if it has several parts at
    typical sizes; none without a chain.

    Loops of known size have none, because their blocks are about equal in length and would be in
    two parts.
    """
    online = derive(expr)
    if online is not None and known_extent(online.stream.loop) is None:
        for size in sizes:
            if size < trips(online.stream.loop):
                yield _Division(online, size).parts()


class _Division:
    """Rewrites the stages of a chain, in parts of `size` elements."""

    def __init__(self, online: Streamed, size: int) -> None:
        self.expr, self.stream, self.size = online.expr, online.stream, size
        # No other iterator has this name.
        self.part = iterator("part", ceildiv(extent(self.stream.loop), size))
        (self.loop,) = free_vars(self.part)
        self.stages: list[Stage] = []
        # The stage of the parts of each stage, and the stage of its final results, by its number.
        self.partial: dict[int, int] = {}
        self.final: dict[int, int] = {}
        # The stages of the factors that rescale sums, by state and formula.
        self.factors: dict[tuple[StageRef, Scalar], int] = {}
        # The stages that the mask sets to 0.
        self.zeros: set[int] = set()

    def parts(self) -> Parts:
        sums = []
        for number, stage in enumerate(self.expr.stages):
            if number not in self.stream.stages:
                self.final[number] = self._add(with_stages(stage, self._result))
                continue
            self.partial[number] = self._add(self._in_parts(number, stage))
            if self.stream.loop in stage.reduce:
                sums.append(self.partial[number])
                self.final[number] = self._add(self._combined(number, stage))
        outputs = tuple(map(self._result, self.expr.outputs))
        expr = canonical(Expr(self.expr.params, tuple(self.stages), outputs))
        return Parts(expr, self.size, tuple(sums))

    def _add(self, stage: Stage) -> int:
        self.stages.append(stage)
        return len(self.stages) - 1

    def _result(self, ref: StageRef) -> StageRef:
        return replace(ref, stage=self.final[ref.stage])

    def _of_part(self, node: Read) -> Read:
        """Returns a read of the same value, if it is a value of a part in that part."""
        if not isinstance(node.source, StageRef):
            return node
        if node.source.stage not in self.partial:
            return read_from(node, self._result(node.source))
        ref = replace(node.source, stage=self.partial[node.source.stage])
        return read(ref, (self.part, *node.indices), node.dtype)

    def _in_parts(self, number: int, stage: Stage) -> Stage:
        """Returns a stage of the streaming loop, with the loop over parts outside of its loops.

        A mask replaces the terms of reductions by the identity, and by 0 the pointwise stages that
        read a state.  Sums whose terms have a factor that is 0 need no mask.
        """
        dtypes = tuple(s.dtype for s in stage.body)
        masks: Sequence[Scalar] = ()
        if self.stream.loop in stage.reduce:
            assert stage.monoid is not None
            if stage.monoid != "sum" or not self._vanishes(stage.body[0]):
                masks = MONOIDS[stage.monoid].identity(dtypes)
        elif {r.state.source for r in self.stream.rescales} & {n.source for n in reads(stage)}:
            self.zeros.add(number)
            masks = [literal(0, t) for t in dtypes]
        body = with_reads(stage, self._of_part).body
        if masks:
            start, place = self.part * self.size, index_value(of_atom(self.stream.loop), I64)
            inside = (place >= start) & (place < start + self.size)
            body = tuple(choose(inside, *pair) for pair in zip_equal(body, masks))
        return replace(stage, iters=(self.loop, *stage.iters), body=body)

    def _vanishes(self, term: Scalar) -> bool:
        """Returns True if a factor of a term is read from a stage that the mask sets to 0."""
        factors = (getattr(uncast(f), "source", None) for f in multiplied_parts(uncast(term)))
        return any(isinstance(f, StageRef) and f.stage in self.zeros for f in factors)

    def _combined(self, number: int, stage: Stage) -> Stage:
        """Returns the reduction of the results of all parts."""
        body: list[Scalar] = [
            self._of_part(read(StageRef(number, n), stage.at, s.dtype))
            for n, s in enumerate(stage.body)
        ]
        for rescale in self.stream.rescales:
            if rescale.stage == number:
                key = rescale.total, rescale.factor
                if key not in self.factors:
                    self.factors[key] = self._add(self._factor(rescale))
                at = self.part, *rescale.state.indices
                body[0] *= read(StageRef(self.factors[key]), at, body[0].dtype)
        return replace(stage, reduce=(self.loop,), body=tuple(body))

    def _factor(self, rescale: Rescale) -> Stage:
        """Returns the factors from the states of parts to the final state.

        They are one stage for all sums that they multiply, so that these share a streaming loop.
        """
        state = self.expr.stages[rescale.total.stage]
        final = read(rescale.total, state.at, rescale.state.dtype)
        values: dict[Scalar, Scalar] = {
            argument(0, final.dtype): self._of_part(final),
            argument(1, final.dtype): read_from(final, self._result(rescale.total)),
        }
        return Stage((self.loop, *state.iters), (), None, (replaced(rescale.factor, values),))
