"""Lists the steps from a graph to kernels whose values have places in memory, as a table.

    nodes  ->  partition: kernels  ->  assign-layouts: storage  ->  narrow-storage: types  ->  ...

There are three kinds of graphs: that of a model, the body of a loop or a branch, and a graph that
is only priced.  The condition of a row says for which kinds, and on which machines, its step runs.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node, Value
from tcc.ir.types import TensorType
from tcc.passes.fuse.guards import split_guards
from tcc.passes.fuse.horizontal_fusion import fuse_horizontally
from tcc.passes.fuse.partition import Group, partition
from tcc.passes.graph.tabulate import with_tables
from tcc.passes.layout.assign import Placed, assign_layouts
from tcc.passes.layout.choose import choose_layouts
from tcc.passes.layout.divide_sums import with_divided_sums
from tcc.passes.memory.compact_buffers import compacted
from tcc.passes.memory.plan_arena import ArenaPlanner
from tcc.passes.quantize.precision import FULL, Precision, narrowed
from tcc.passes.quantize.signed_operands import with_signed_operands
from tcc.passes.steps import Step
from tcc.passes.tile.plan import KernelChooser


@dataclass(slots=True)
class LoweringContext:
    """The settings of the steps that lower one graph.

    `planner`: the kernel planner of the target.
    `arena`: assigns offsets to buffers; None for a body or a priced graph.
    `outer`: the graph of each constant of the graphs around a body; None if the graph is no body.
    `ends`: nodes that stay kernels of their own.
    `priced`: True if the graph is only priced.
    `ports`: the graph whose inputs and outputs callers see.
    `packed`: the types that callers see of inputs and outputs with elements of less than a byte, by
    name.  The step `pack-io` sets `ports` and `packed`.
    """

    planner: KernelChooser
    arena: ArenaPlanner | None = None
    precision: Precision = FULL
    outer: Mapping[Value, Graph] | None = None
    ends: Collection[Node] = ()
    priced: bool = False
    ports: Graph | None = None
    packed: Mapping[str, TensorType] = field(default_factory=dict)

    @property
    def context(self) -> "LoweringContext":
        """Returns the settings themselves, for steps that read several of them."""
        return self

    @property
    def is_body(self) -> bool:
        """Returns True for the body of a loop or a branch."""
        return self.outer is not None

    @property
    def is_model(self) -> bool:
        """Returns True for the graph of a whole model."""
        return not self.priced and not self.is_body

    @property
    def is_code(self) -> bool:
        """Returns True for a model and for a body, which become code."""
        return not self.priced

    @property
    def has_gaps(self) -> bool:
        """Returns True for a whole model whose values may lie with gaps between their elements."""
        return self.is_model and self.planner.gaps

    @property
    def reads_tables(self) -> bool:
        """Returns True for code of a processor, where loads take less time than arithmetic."""
        return self.is_code and self.planner.gaps

    @property
    def on_gpu(self) -> bool:
        """Returns True for a whole model on GPUs, whose tiles have no scratch."""
        return self.is_model and not self.planner.scratch


@frozen
class Grouped:
    """A graph with its nodes in groups; each group is a kernel, or another step of the program.

    The members of groups are nodes of `unguarded`, which is the graph without guards.
    """

    graph: Graph
    unguarded: Graph
    groups: tuple[Group, ...]


def group(graph: Graph, planner: KernelChooser, ends: Collection[Node]) -> Grouped:
    """Returns the nodes of `graph` in groups; each of the nodes `ends` is a group of its own."""
    unguarded = split_guards(graph).graph
    return Grouped(graph, unguarded, partition(unguarded, planner, ends))


def merge_groups(grouped: Grouped, outer: Mapping[Value, Graph], planner: KernelChooser) -> Grouped:
    """Returns the groups of a body, merged so that each iteration has fewer launches."""
    graph, constants = grouped.unguarded, {*outer, *grouped.graph.constants}
    groups = fuse_horizontally(graph, grouped.groups, constants, planner)
    return Grouped(grouped.graph, graph, groups)


def assign(grouped: Grouped, planner: KernelChooser) -> Placed:
    """Returns layouts for the values that groups store."""
    return assign_layouts(grouped.graph, grouped.groups, planner)


PLACE: tuple[Step, ...] = (
    Step("partition", group, reads=("planner", "ends")),
    Step("merge-groups", merge_groups, when="is_body", reads=("outer", "planner")),
    Step("assign-layouts", assign, reads=("planner",)),
    Step("tabulate", with_tables, when="reads_tables", reads=("planner.limits",)),
    Step("choose-layouts", choose_layouts, when="is_code", reads=("planner", "outer")),
    # The storage order decides which elements are neighbours, and so which are rounded together.
    Step("narrow-storage", narrowed, reads=("precision", "outer")),
    Step("compact-buffers", compacted, when="has_gaps"),
    Step("divide-sums", with_divided_sums, reads=("planner.divides",)),
    Step("sign-operands", with_signed_operands, when="on_gpu", reads=("planner.makes",)),
)


def place_graph(graph: Graph, plan: LoweringContext) -> Placed:
    """Returns a body or a priced graph as kernels, with the layouts and stored types of values."""
    form = graph
    for step in PLACE:
        if step.runs(plan):
            form = step.apply(form, plan)
    assert isinstance(form, Placed)
    return form
