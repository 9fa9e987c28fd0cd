"""Reductions of blocks in registers, as trees of fixed shape."""

from __future__ import annotations

from collections.abc import Sequence

from tcc.backends.cpu.llvm.blocks import (
    RegisterBlock,
    in_chunks,
    row_number,
    row_positions,
    scalar_chunks,
)
from tcc.backends.cpu.llvm.compute import combine
from tcc.backends.cpu.llvm.scalars import emit_scalar
from tcc.backends.cpu.llvm.text import Code, Reg, in_pairs
from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.expr import MONOIDS
from tcc.ir.expr.scalar import Scalar
from tcc.ir.tile import Reduce
from tcc.ir.types import DType
from tcc.zipped import zip_equal

Parts = tuple[Reg, ...]  # a register for each component of the monoid


def reduce(code: Code, node: Reduce, values: Sequence[RegisterBlock]) -> tuple[RegisterBlock, ...]:
    """Returns the results of a Reduce statement; the reduced axes have size one."""
    tree = tree_of(code, node.monoid, tuple(v.dtype for v in values))
    shape, out_shape = values[0].shape, node.outs[0].shape
    aligned = _same_chunks(code, values)
    groups: dict[int, list[int]] = {}
    for row, position in enumerate(row_positions(shape)):
        groups.setdefault(row_number(out_shape, position), []).append(row)
    whole_row = len(shape) - 1 in node.axes
    results: list[list[Parts]] = []
    for out_row in sorted(groups):
        rows = groups[out_row]
        sums = [
            tree.fold([tuple(v.at(row, n) for v in aligned) for row in rows])
            for n in range(len(aligned[0].chunks))
        ]
        if whole_row:
            counts = [chunk.count for chunk in aligned[0].chunks]
            sums = [tree.across(sums, counts)]
        results.append(sums)
    chunks = scalar_chunks(1) if whole_row else aligned[0].chunks
    return tuple(
        RegisterBlock(
            out.dtype,
            out_shape,
            chunks,
            tuple(parts[component] for sums in results for parts in sums),
        )
        for component, out in enumerate(node.outs)
    )


def _same_chunks(code: Code, values: Sequence[RegisterBlock]) -> Sequence[RegisterBlock]:
    """Returns `values` cut into the same chunks as the first of them."""
    first = values[0]
    if any(v.shape != first.shape for v in values):
        raise InternalError("the blocks of a reduction differ in shape", where="backends/cpu")
    return [in_chunks(code, v, first.chunks) for v in values]


def tree_of(code: Code, name: str, dtypes: tuple[DType, ...]) -> Tree:
    """Returns the tree of the monoid `name` for components of `dtypes`."""
    monoid = MONOIDS[name]
    return Tree(code, monoid.combine(dtypes), monoid.identity(dtypes))


@frozen
class Tree:
    """Combines items with the scalars `bodies`; unused lanes hold `identity`."""

    code: Code
    bodies: Sequence[Scalar]
    identity: Sequence[Scalar]

    def _combine(self, a: Parts, b: Parts) -> Parts:
        return combine(self.code, self.bodies, (*a, *b))

    def fold(self, items: Sequence[Parts]) -> Parts:
        """Returns the combination of all items, combined pairwise with their neighbours."""
        return in_pairs(items, self._combine)

    def across(self, items: Sequence[Parts], counts: Sequence[int]) -> Parts:
        """Returns the combination of the lanes of all items; item n has `counts[n]` used lanes.

        The widest items are split into halves, which are combined, until one lane is left. A
        narrower item is combined with them once the halves have its width.
        """
        waiting = [self.padded(parts, n) for parts, n in zip_equal(items, counts)]
        width = max(parts[0].width for parts in waiting)
        folded = self.fold([p for p in waiting if p[0].width == width])
        while width > 1:
            lanes, width = range(width), width // 2
            low, high = (
                tuple(self.code.shuffle(r, None, half) for r in folded)
                for half in (lanes[:width], lanes[width:])
            )
            parts_here = [p for p in waiting if p[0].width == width]
            folded = self.fold([self._combine(low, high), *parts_here])
        return folded

    def padded(self, parts: Parts, count: int) -> Parts:
        """Returns `parts` with the identity in the lanes from `count` on."""
        width = parts[0].width
        if count == width:
            return parts
        keep = [n if n < count else width for n in range(width)]
        return tuple(
            self.code.shuffle(reg, emit_scalar(self.code, i, (), width), keep)
            for reg, i in zip_equal(parts, self.identity)
        )
