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
from tcc.passes.choose.price import timed_kernels, unread
from tcc.passes.derive.bilinear.conv_forms import form_work
from tcc.passes.derive.bilinear.tiled_conv import Conv, Form
from tcc.passes.derive.candidate import Candidate
from tcc.passes.derive.sites import Role, Site
from tcc.passes.tile.plan import KernelPlanner
from tcc.schedule.open_sizes import Times, mean_share, together

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
        self._known: dict[Any, Times] = {}
        self._pools: dict[Any, Times] = {}

    def least_seconds(self, conv: Conv, form: Form) -> float:
        """A lower bound of what a convolution takes in a form, without the kernels around it."""
        return form_work(conv, form).least_seconds(self.planner.rates)

    def seconds(self, site: Site, taken: Taken = ()) -> float:
        """Seconds of a site and its neighbours, with the candidates that are `taken`; at other sets
        of sizes than the typical one, their share of what the site takes as it is."""
        times, direct = self._times(site, taken), self._times(site)
        if taken and all(candidate.guarded for _, candidate in taken):
            times = tuple(map(min, times, direct))
        return mean_share(times, direct)

    def _times(self, site: Site, taken: Taken = ()) -> Times:
        around = site.key
        key = around, tuple((site.places_of(s.nodes), candidate) for s, candidate in taken)
        if key not in self._known:
            parts = self._kernels(site, taken)
            if not taken:
                self._pools[around] = together(t for loc, t in parts if loc.startswith(_POOL))
            elif around not in self._pools:
                self._times(site)
            left = tuple(-seconds for seconds in self._pools[around])
            self._known[key] = together((*(t for _, t in parts), left))
        return self._known[key]

    def _kernels(self, site: Site, taken: Taken) -> list[tuple[str, Times]]:
        """Where each kernel comes from, and its seconds."""
        self.priced += 1
        graph = site_graph(site, taken)
        timed = timed_kernels(graph, self.planner, stand_ins(graph))
        return [(kernel.loc, self._rated(kernel.loc, times)) for kernel, times in timed]

    def _rated(self, loc: str, times: Times) -> Times:
        factor = self._direct if loc.startswith(_DIRECT) else 1.0
        return tuple(seconds / factor for seconds in times)


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
