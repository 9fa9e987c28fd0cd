"""Prices a site together with the nodes around it, as it is and replaced by candidates.

    site      max_pool -> conv -> add, relu -> max_pool    of the conv and its epilogue
    as it is  one kernel                                   priced like the kernels of a model
    F(4, 3)   input transform, products, output transform

A site with its neighbours becomes a graph of its own, which is placed and scheduled like a model.
Its price is the sum of its kernels' prices, so that epilogues, halos, layouts and joined kernels
count as in the model.  A max-pool is a placeholder for a kernel outside the site's graph that
computes or reads an image.  With a placeholder, the image gets the layout that it would have
between kernels.  The time of the placeholders is subtracted.  Constants have arbitrary contents,
because prices do not depend on them.  Values that are computed from constants at compile time count
as constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.index import as_index, as_int
from tcc.ir.types import F32
from tcc.ops import OPS
from tcc.passes.derive.bilinear.conv_forms import least_seconds
from tcc.passes.derive.bilinear.tiled_conv import Conv, Form
from tcc.passes.derive.candidate import Candidate
from tcc.passes.derive.sites import DerivationSite, Role
from tcc.passes.program.price import timed_kernels, unread
from tcc.passes.tile.plan import KernelChooser
from tcc.schedule.alternatives import Seconds, lower
from tcc.schedule.open_sizes import Times, mean_share, together
from tcc.zipped import zip_equal

# The size of the windows of max-pools that are placeholders for readers. An image that is read in
# windows gets the layout that windows need.
_READ = 3
# The locations that mark direct sums and placeholders in a site's graph.
_DIRECT, _POOL = "direct", "pool"

# Pairs (site, candidate that replaces the site), for sites within one neighbourhood.
Replacements: TypeAlias = Sequence[tuple[DerivationSite, Candidate]]


class Prices:
    """Prices sites by the kernels that a planner would schedule for them; equal sites are priced
    once.

    `direct` is the speedup of direct sums in a narrower type.  `priced` counts the graphs that were
    placed and scheduled.
    """

    def __init__(self, planner: KernelChooser, direct: float = 1.0) -> None:
        self.planner = planner
        self.priced = 0
        self._direct = direct
        self._times_of: dict[Any, Times] = {}
        self._pools: dict[Any, Times] = {}

    def least_seconds(self, conv: Conv, form: Form) -> Seconds:
        """Returns a lower bound of the seconds of a convolution in a bilinear form.

        The seconds of the convolution's transforms and products count; its neighbours do not.
        """
        return least_seconds(conv, form, self.planner.rates)

    def seconds(self, site: DerivationSite, replacements: Replacements = ()) -> Seconds:
        """Returns the seconds of a site and its neighbours with the candidates `replacements`.

        Let t(s) be the seconds as it is at a set of sizes s, and r(s) with the replacements.  The
        result is t(typical sizes) * mean over s of r(s) / t(s).
        """
        times, direct = self._times(site, replacements), self._times(site)
        if replacements and all(candidate.guarded for _, candidate in replacements):
            times = tuple(map(lower, times, direct))
        return mean_share(times, direct)

    def _times(self, site: DerivationSite, replacements: Replacements = ()) -> Times:
        site_key = site.key
        key = site_key, tuple((site.places_of(s.nodes), candidate) for s, candidate in replacements)
        if key not in self._times_of:
            parts = self._kernels(site, replacements)
            if not replacements:
                self._pools[site_key] = together(t for loc, t in parts if loc.startswith(_POOL))
            elif site_key not in self._pools:
                self._times(site)
            minus_pools = tuple(-seconds for seconds in self._pools[site_key])
            self._times_of[key] = together((*(t for _, t in parts), minus_pools))
        return self._times_of[key]

    def _kernels(self, site: DerivationSite, replacements: Replacements) -> list[tuple[str, Times]]:
        """Returns the location of each kernel of the site's graph, with its seconds at all sets of
        sizes."""
        self.priced += 1
        graph = site_graph(site, replacements)
        timed = timed_kernels(graph, self.planner, stand_ins(graph))
        kernel_times = []
        for kernel, times in timed:
            factor = self._direct if kernel.loc.startswith(_DIRECT) else 1.0
            kernel_times.append((kernel.loc, tuple(seconds / factor for seconds in times)))
        return kernel_times


def site_graph(site: DerivationSite, replacements: Replacements = ()) -> Graph:
    """Returns the graph of a site and its neighbours, after the replacements.

    Each item of `replacements` is a site and the candidate that replaces it.  The graph gets
    placeholders for kernels outside of it: a max-pool with the location `_POOL` in front of each
    input image, and behind each result image, that another kernel shares.  So these images get the
    layout of images between kernels, not the layout of a model's inputs and outputs.
    """
    b = GraphBuilder("site")
    new = {v: _outside(b, v, role) for v, role in site.inputs.items()}
    sinks = {s.sink: (s, candidate) for s, candidate in replacements}
    covered = {node for s, _ in replacements for node in s.nodes}
    for node in site.neighbourhood:
        if node in sinks:
            owner, candidate = sinks[node]
            b.loc = _DIRECT if candidate.direct else ""
            value = candidate.emit(b, [new[v] for v in owner.operands], None)
            b.loc = ""
            assert value is not None
            new[node.result] = value
        elif node not in covered:
            inputs = tuple(None if v is None else new[v] for v in node.inputs)
            loc = _DIRECT if node in site.nodes else ""
            new.update(zip_equal(node.outputs, b.add(node.op, inputs, node.attrs, loc=loc)))
    results = site.results.items()
    return b.finish(
        [new[v] if role is Role.GIVEN else _pool(b, new[v], _READ) for v, role in results]
    )


def stand_ins(graph: Graph) -> list[Node]:
    """Returns the placeholders for kernels outside a site's graph.  They are not fused with other
    nodes."""
    return [node for node in graph.nodes if node.loc == _POOL]


def _outside(b: GraphBuilder, value: Value, role: Role) -> Value:
    if role is Role.CONSTANT:
        return unread(b, value.type)
    value_in = b.input(value.name, value.type)
    return value_in if role is Role.GIVEN else _pool(b, value_in)


def _pool(b: GraphBuilder, value: Value, size: int = 1) -> Value:
    """Adds a max-pool of an image as the placeholder for another kernel, and returns its result.

    The windows of the max-pool have `size` elements along each axis.  Returns `value` itself if it
    is no f32 image: a tensor [n, channel, spatial axes...].
    """
    rank = value.rank - 2
    if value.dtype is not F32 or rank < 1:
        return value
    one, zero = (1,) * rank, (as_index(0),) * rank
    window = tuple(min(size, as_int(n) or 1) for n in value.shape[2:])
    attrs = OPS["max_pool"].attrs(one, zero, zero, one, window)
    return b.add(OPS["max_pool"], [value], attrs, loc=_POOL)[0]
