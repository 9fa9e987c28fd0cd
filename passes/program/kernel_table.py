"""The kernels of an artifact, each once."""

from dataclasses import dataclass, field

from tcc.ir.graph import Graph
from tcc.passes.layout.assign import Placed
from tcc.passes.tile.plan import Bound


@dataclass(slots=True)
class KernelTable:
    """The kernels of an artifact, in the order of their first launch; equal kernels occur once.

    A kernel's number is its index in `bounds`; `numbers` is the inverse.  `locs` has the location
    in the model of each kernel's first launch.  `bodies` maps the graph of a loop body or a branch
    to its kernels.
    """

    bounds: list[Bound] = field(default_factory=list)
    numbers: dict[Bound, int] = field(default_factory=dict)
    locs: list[str] = field(default_factory=list)
    bodies: dict[Graph, Placed] = field(default_factory=dict)

    def number(self, bound: Bound, loc: str) -> int:
        """Returns the number of a kernel, which is added if it is new."""
        index = self.numbers.setdefault(bound, len(self.bounds))
        if index == len(self.bounds):
            self.bounds.append(bound)
            self.locs.append(loc)
        return index
