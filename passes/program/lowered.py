"""The last form of a model on its way from a graph to a host program.

Graph -> Grouped (nodes in kernels) -> Placed (values with layouts) -> Lowered (a host program)
"""

from __future__ import annotations

from tcc.frozen import frozen
from tcc.ir.program import Program
from tcc.ir.tile import TileKernel
from tcc.ir.tile.text import kernel_text
from tcc.passes.layout.assign import Placed
from tcc.passes.layout.weights import WeightTable
from tcc.passes.program.kernel_table import KernelTable
from tcc.passes.tile.plan import KernelChooser


@frozen
class Lowered:
    """A placed graph with its program, whose kernels have no names yet.

    `kernels` and `table` are in the order of the program's kernel numbers.  `planner` chose the
    schedules of the kernels.  `alignments` has, for each kernel, the alignment in bytes of each
    buffer; it is empty if the target needs no alignments.
    """

    placed: Placed
    program: Program
    kernels: tuple[TileKernel, ...]
    table: KernelTable
    weights: WeightTable
    planner: KernelChooser
    alignments: tuple[tuple[int, ...], ...] = ()

    def same_as(self, other: Lowered) -> bool:
        """Returns True if both lowerings give the same code on every architecture."""
        return (
            self.program == other.program
            and [b.schedule for b in self.table.bounds] == [b.schedule for b in other.table.bounds]
            and self.alignments == other.alignments
            and self.weights.same_as(other.weights)
            and list(map(kernel_text, self.kernels)) == list(map(kernel_text, other.kernels))
        )
