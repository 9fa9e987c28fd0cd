"""What a site takes as it is and as another region, with what is computed around it.

A site with its neighbours is a graph of its own, placed and scheduled like a whole model, and its
price the sum of its kernels' prices: epilogues, layouts and joined kernels count as they will be.
Constants have contents that no price depends on, and what is made of them ahead of the run is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tcc.ir.graph import Graph, GraphBuilder, Value
from tcc.ir.index import as_index
from tcc.ir.types import TensorType
from tcc.passes.choose.price import priced_kernels, unread
from tcc.passes.derive.algebra.cost import constant_stages
from tcc.passes.derive.convert import to_expr
from tcc.passes.derive.record import Factor, Region, Stage
from tcc.passes.derive.sites import Site
from tcc.passes.graph.emit import express
from tcc.passes.tile.plan import KernelPlanner

# The value of a component of a constant stage.
Folded: TypeAlias = Callable[[GraphBuilder, int, int], Value]


class SitePrices:
    """Prices sites as a planner would schedule their kernels, equal ones once.

    `priced` counts the graphs that were placed and scheduled.
    """

    def __init__(self, planner: KernelPlanner) -> None:
        self.planner = planner
        self.priced = 0
        self._known: dict[Any, float] = {}

    def seconds(self, site: Site, region: Region | None = None) -> float:
        """Seconds of a site and its neighbours, computed by `region`, or as it is."""
        key = site.key, site.surroundings, region
        if key not in self._known:
            self.priced += 1
            graph = _built(site, region)
            self._known[key] = sum(s for _, s in priced_kernels(graph, self.planner))
        return self._known[key]


def _built(site: Site, region: Region | None) -> Graph:
    b = GraphBuilder("site")
    made = {v for node in site.around for v in node.outputs}
    fixed = {v for v, known in site.read.items() if known}
    new: dict[Value, Value] = {}
    for value in site.read:
        if value not in made:
            new[value] = (
                unread(b, value.type) if value in fixed else b.input(value.name, value.type)
            )
    replaced = set() if region is None else set(site.nodes)
    for node in site.around:
        if node is site.nodes[-1] and region is not None:
            operands = [new[v] for v in site.operands]
            new[node.outputs[0]] = add_region(b, region, operands, site.constants, _unread(region))
        elif node not in replaced:
            inputs = tuple(None if v is None else new[v] for v in node.inputs)
            new.update(zip(node.outputs, b.add(node.op, inputs, node.attrs), strict=True))
    return b.finish([new[v] for v in site.shown])


def _unread(region: Region) -> Folded:
    return lambda b, number, component: unread(b, stage_type(region, number, component))


def stage_type(region: Region, number: int, component: int) -> TensorType:
    """The type of what a stage computes."""
    stage = region.stages[number]
    return TensorType(stage.dtypes[component], tuple(map(as_index, stage.iters)))


def add_region(
    b: GraphBuilder,
    region: Region,
    operands: Sequence[Value],
    constants: Sequence[bool],
    folded: Folded,
) -> Value:
    """Adds a node for every stage that is not constant; the value of the only output.

    Constant stages that others read are `folded`.
    """
    fixed = constant_stages(region, constants)
    made: dict[tuple[int, int], Value] = {}

    def value(source: int, component: int) -> Value:
        if source >= 0:
            return operands[source]
        if fixed[~source] and (~source, component) not in made:
            made[~source, component] = folded(b, ~source, component)
        return made[~source, component]

    for number, stage in enumerate(region.stages):
        if not fixed[number]:
            part, read = _alone(stage)
            inputs = [value(*r) for r in read]
            part = part._replace(params=tuple(v.type for v in inputs))
            results = express(b, to_expr(part), *inputs)
            made.update(((number, c), v) for c, v in enumerate(results))
    number, component = region.outputs[0]
    return value(~number, component)


def _alone(stage: Stage) -> tuple[Region, list[tuple[int, int]]]:
    """A region of one stage without the types of its parameters, and what each of these is: source
    and component."""
    places: dict[tuple[int, int], int] = {}

    def moved(factor: Factor) -> Factor:
        if factor.source is None:
            return factor
        key = factor.source, factor.component
        return factor._replace(source=places.setdefault(key, len(places)), component=0)

    own = stage._replace(factors=tuple(map(moved, stage.factors)))
    outputs = tuple((0, c) for c in range(len(stage.dtypes)))
    return Region((), (own,), outputs), list(places)
