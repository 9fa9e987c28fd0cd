"""What a site takes as it is and as others compute it, with what is computed around it.

    site      max_pool -> conv -> add, relu -> max_pool    of the conv and what follows it
    as it is  one kernel                                   priced like the kernels of a model
    F(4, 3)   input transform, products, output transform

A site with its neighbours is a graph of its own, placed and scheduled like a whole model, and its
price the sum of its kernels' prices: epilogues, halos, layouts and joined kernels count as they
will be.  A pool of one element stands for the kernels that make or read an image which is stored,
so that it is stored as between kernels; what pools take by themselves is left out.  Constants have
contents that no price depends on, and what is made of them ahead of the run is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.index import as_index, as_int
from tcc.ir.types import F32
from tcc.ops import OPS
from tcc.passes.choose.price import priced_kernels, unread
from tcc.passes.derive.bilinear.conv_forms import form_work
from tcc.passes.derive.bilinear.tiled_conv import Conv, Form
from tcc.passes.derive.candidate import Candidate
from tcc.passes.derive.sites import Role, Site
from tcc.passes.tile.plan import KernelPlanner

# Elements along an axis that stand-ins for readers look at, for whose windows images are stored.
_READ = 3
# Where nodes of graphs come from.
_DIRECT, _POOL = "direct", "pool"

# Sites among the nodes around one, and what computes them.
Taken: TypeAlias = Sequence[tuple[Site, Candidate]]


class Prices:
    """Prices sites as a planner would schedule their kernels, equal ones once.

    `direct` is how many times the operations a site as it is does in a cycle, in a narrower type.
    `priced` counts the graphs that were placed and scheduled.
    """

    def __init__(self, planner: KernelPlanner, direct: float = 1.0) -> None:
        self.planner = planner
        self.priced = 0
        self._direct = direct
        self._known: dict[Any, float] = {}
        self._pools: dict[Any, float] = {}

    def least_seconds(self, conv: Conv, form: Form) -> float:
        """A lower bound of what a convolution takes in a form, without the kernels around it."""
        return form_work(conv, form).least_seconds(self.planner.rates)

    def seconds(self, site: Site, taken: Taken = ()) -> float:
        """Seconds of a site and its neighbours, with the candidates that are `taken`."""
        around = site.key
        key = around, tuple((site.places_of(s.nodes), candidate) for s, candidate in taken)
        if key not in self._known:
            parts = self._kernels(site, taken)
            if not taken:
                self._pools[around] = sum(s for loc, s in parts if loc.startswith(_POOL))
            elif around not in self._pools:
                self.seconds(site)
            self._known[key] = sum(s for _, s in parts) - self._pools[around]
        return self._known[key]

    def _kernels(self, site: Site, taken: Taken) -> list[tuple[str, float]]:
        """Where each kernel comes from, and its seconds."""
        self.priced += 1
        graph = site_graph(site, taken)
        return [
            (k.loc, seconds / (self._direct if k.loc.startswith(_DIRECT) else 1.0))
            for k, seconds in priced_kernels(graph, self.planner, stand_ins(graph))
        ]


def site_graph(site: Site, taken: Taken = ()) -> Graph:
    """A site and its neighbours by themselves: where nothing is taken, the nodes around it, in
    order, and stand-ins, whose location is `_POOL`, for what makes and reads images."""
    b = GraphBuilder("site")
    new = {v: _outside(b, v, role) for v, role in site.read.items()}
    sinks = {s.sink: (s, candidate) for s, candidate in taken}
    replaced = {node for s, _ in taken for node in s.nodes}
    for node in site.around:
        if node in sinks:
            own, candidate = sinks[node]
            b.loc = _DIRECT if candidate.direct else ""
            value = candidate.emit(b, [new[v] for v in own.operands], None)
            b.loc = ""
            assert value is not None
            new[node.outputs[0]] = value
        elif node not in replaced:
            inputs = tuple(None if v is None else new[v] for v in node.inputs)
            loc = _DIRECT if node in site.nodes else ""
            new.update(zip(node.outputs, b.add(node.op, inputs, node.attrs, loc=loc), strict=True))
    shown = site.shown.items()
    return b.finish(
        [new[v] if role is Role.GIVEN else _pool(b, new[v], _READ) for v, role in shown]
    )


def stand_ins(graph: Graph) -> list[Node]:
    """The nodes of a site's graph that stand for other kernels, and stay apart."""
    return [node for node in graph.nodes if node.loc == _POOL]


def _outside(b: GraphBuilder, value: Value, role: Role) -> Value:
    if role is Role.CONSTANT:
        return unread(b, value.type)
    given = b.input(value.name, value.type)
    return given if role is Role.GIVEN else _pool(b, given)


def _pool(b: GraphBuilder, value: Value, size: int = 1) -> Value:
    """Another kernel's work on an image, over windows of so many elements along each axis."""
    rank = value.type.rank - 2
    if value.type.dtype is not F32 or rank < 1:
        return value
    one, zero = (1,) * rank, (as_index(0),) * rank
    window = tuple(min(size, as_int(n) or 1) for n in value.type.shape[2:])
    attrs = OPS["max_pool"].attrs(one, zero, zero, one, window)
    return b.add(OPS["max_pool"], [value], attrs, loc=_POOL)[0]
