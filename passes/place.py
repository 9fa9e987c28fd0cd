"""Lists the steps from a graph to kernels whose values have places in memory, as a table.

    nodes  ->  partition: kernels  ->  assign-layouts: storage  ->  narrow-storage: types  ->  ...

There are three kinds of graphs: the graph of a model, the body of a loop or a branch, and a graph
that is only priced.  The condition of a row says for which kinds, and on which machines, its step
runs.
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
from tcc.passes.layout.turn_operands import with_turned_operands
from tcc.passes.memory.compact_buffers import compacted
from tcc.passes.memory.plan_arena import ArenaPlanner
from tcc.passes.quantize.exact_weights import with_exact_weights
from tcc.passes.quantize.level_bytes import with_level_bytes
from tcc.passes.quantize.precision import FULL, Precision, narrowed
from tcc.passes.quantize.signed_operands import with_signed_operands
from tcc.passes.steps import Step
from tcc.passes.tile.plan import KernelChooser


@dataclass(slots=True)
class LoweringContext:
    """The settings of the steps that lower one graph: a model, a body or a priced graph.

    A body is the graph of a loop or a branch.
    `planner`: the kernel planner of the target.
    `arena`: assigns offsets to buffers; None for a body or a priced graph.
    `outer`: for a body, maps each constant of an enclosing graph to that graph; else None.
    `ends`: nodes that stay kernels of their own.
    `priced`: True if the graph is only priced.
    `ports`: the graph before strings and lists become handles; callers see its inputs and outputs.
    `packed`: by name, the callers' types of inputs and outputs with elements of less than a byte.
    The step `pack-io` sets `ports` and `packed`.
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
        """Returns this object, which is passed to steps that read several settings."""
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
        """Returns True if the graph becomes code; False if it is only priced."""
        return not self.priced

    @property
    def has_gaps(self) -> bool:
        """Returns True for a whole model on a target that allows gaps between a value's
        elements.
        """
        return self.is_model and self.planner.gaps

    @property
    def reads_tables(self) -> bool:
        """Returns True for a CPU, where a load from a table takes less time than computing."""
        return self.planner.gaps

    @property
    def on_gpu(self) -> bool:
        """Returns True for a whole model on a GPU. Only GPUs have no scratch for tiles."""
        return self.is_model and not self.planner.scratch


@frozen
class Grouped:
    """A graph whose nodes are in groups.

    A group becomes a kernel or another step of the program.  `unguarded` is `graph` without the
    run-time checks of fast algorithms.  The groups contain nodes of `unguarded`.
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
    """Returns the groups as kernels, with layouts for all values that they store."""
    return assign_layouts(grouped.graph, grouped.groups, planner)


PLACE: tuple[Step, ...] = (
    Step("partition", group, reads=("planner", "ends")),
    Step("merge-groups", merge_groups, when="is_body", reads=("outer", "planner")),
    Step("assign-layouts", assign, reads=("planner",)),
    Step("tabulate", with_tables, when="reads_tables", reads=("planner.limits",)),
    Step("choose-layouts", choose_layouts, when="is_code", reads=("planner", "outer")),
    # The storage order decides which elements are neighbours, and so which are rounded together.
    Step("narrow-storage", narrowed, reads=("precision", "outer", "planner")),
    Step("level-bytes", with_level_bytes, reads=("precision.level_bytes", "outer")),
    Step("exact-weights", with_exact_weights, when="is_code", reads=("planner", "outer")),
    Step("compact-buffers", compacted, when="has_gaps"),
    Step("divide-sums", with_divided_sums, reads=("planner.divides",)),
    Step("sign-operands", with_signed_operands, when="on_gpu", reads=("planner.makes",)),
    Step("turn-operands", with_turned_operands, when="on_gpu", reads=("planner", "outer")),
)


def place_graph(graph: Graph, plan: LoweringContext) -> Placed:
    """Returns a body or a priced graph as kernels, with the layouts and stored types of values."""
    form = graph
    for step in PLACE:
        if step.runs(plan):
            form = step.apply(form, plan)
    assert isinstance(form, Placed)
    return form
