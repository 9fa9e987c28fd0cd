"""Computes convolutions with fewer products.

    %y = conv(%x, %w, %bias)      %v = expression(%x)           ; input transform
                                  %m = expression(%v, %u)       ; as many products of matrices
                                  %y = expression(%m, %bias)    ; output transform

F(4 x 4, 3 x 3) needs a quarter of a convolution's products, F(3 x 3, 2 x 2) 4 in 9; all forms round
more and most take larger weights, %u, which are computed here in f64.  Infinities and NaN spread
over the tile of results they touch.  Requires folded constants.  A convolution is replaced where
that is predicted to pay (`conv_price`), within the error policy (`conv_forms`), where all weights
together grow within bounds, and where %u is finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log2
from typing import TypeAlias

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, walk_graphs
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int
from tcc.ir.op import Trait
from tcc.ir.types import F32, TensorType, element_count
from tcc.passes.choose.beam import Link, choose_together
from tcc.passes.derive.bilinear.conv_forms import amplification, forms_of
from tcc.passes.derive.bilinear.conv_price import ConvPrices, ConvRegion, region_of, with_form
from tcc.passes.derive.bilinear.tiled_conv import (
    DIRECT,
    Conv,
    Form,
    conv_of,
    largest_of_four,
    transformed_weights,
)
from tcc.passes.graph.emit import express
from tcc.record import record
from tcc.schedule.alternatives import Alternative, in_order

# Forms of a convolution whose kernels are made to be priced: at most so many, whose bounds are at
# most so many times the least of those that may grow all weights so far, each with weights of at
# most so many times the one's before.
_PRICED, _NEAR, _SMALLER = 2, 1.3, 0.75
# An option that is so many times as dear as the best is not looked at together with others.
_HOPELESS = 1.15
# A form, how many times as dear as its price it counts, and a lower bound of its seconds.
_Candidate: TypeAlias = tuple[Form, float, float]


@record
class Limits:
    """What prices are made by, and how many times their size all weights together may take.

    A form counts as dearer than its price by the part `margin` that prices of unlike kernels err
    by, and by `rounding` for each bit of a result that its amplification may cost.
    """

    prices: ConvPrices
    growth: float = 4.0
    margin: float = 0.05
    rounding: float = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """A convolution that forms compute, and what it is chosen from: directly (first) and in some of
    them, with the seconds of each."""

    node: Node
    seconds: tuple[float, ...]
    alternatives: tuple[Alternative[Node, Form | None], ...]

    @property
    def contested(self) -> bool:
        """Whether a neighbour may tip the scales."""
        least, *others = (each.price for each in in_order(self.alternatives))
        return any(price <= _HOPELESS * least for price in others)


def faster_convolutions(graph: Graph, limits: Limits) -> Graph:
    """`graph` with the convolutions replaced that gain from it within the limits."""
    chosen = _choose(graph, limits)
    pools = _pools_of(graph, chosen)

    def visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        if node in pools:
            return _formula(b, node, *inputs)
        form = chosen.get(node)
        return None if form is None else _replaced(b, node, inputs, form)

    return rewritten(graph, visit) if chosen else graph


def constant_bytes(graph: Graph) -> int:
    """Bytes of all constants of a graph and its bodies."""
    constants = (v for part in walk_graphs(graph) for v in part.constants)
    sizes = ((as_int(element_count(v.type.shape)) or 0, v.type.dtype) for v in constants)
    return sum(-(-count * dtype.bits // 8) for count, dtype in sizes)


# ---- which --------------------------------------------------------------------------------------


def _choose(graph: Graph, limits: Limits) -> Mapping[Node, Form]:
    """The cheapest forms of all convolutions together, with weights within bounds."""
    constants = {v: None for part in walk_graphs(graph) for v in part.constants}
    room = (limits.growth - 1) * constant_bytes(graph)
    choice = _Choice(limits, constants)
    for part in walk_graphs(graph):
        choice.add(part)
    return choice.forms(room)


class _Choice:
    """The convolutions of a graph and its bodies, with their prices."""

    def __init__(self, limits: Limits, constants: Mapping[Value, None]) -> None:
        self._limits, self._prices, self._constants = limits, limits.prices, constants
        self._sites: list[_Site] = []
        self._links: dict[tuple[int, int], Link] = {}
        self._candidates: dict[Conv, Sequence[_Candidate]] = {}

    def add(self, graph: Graph) -> None:
        """Takes up the convolutions of one graph, without its bodies."""
        users = graph.users()
        sites: dict[Value, int] = {}  # of values that are a site's results
        for node in graph.nodes:
            conv = _fitting(node, self._constants)
            if conv is None or not self._candidates_of(conv):
                continue
            region = region_of(graph, users, self._constants, (node,))
            number = len(self._sites)
            self._sites.append(self._site(node, conv, region))
            image = node.inputs[0]
            before = None if image is None else sites.get(image)
            if before is not None and (
                self._sites[before].contested or self._sites[number].contested
            ):
                nodes = (self._sites[before].node, node)
                both = region_of(graph, users, self._constants, nodes)
                self._links[before, number] = self._link(both, before, number)
            sites.update((v, number) for n in region.nodes for v in n.outputs)

    def forms(self, room: float) -> Mapping[Node, Form]:
        """The form to take for each convolution that one is taken for."""
        places = [site.alternatives for site in self._sites]
        picks = choose_together(places, self._links, room)
        taken = [place[pick] for place, pick in zip(places, picks, strict=True)]
        return {each.region: each.replacement for each in taken if each.replacement is not None}

    def _site(self, node: Node, conv: Conv, region: ConvRegion) -> _Site:
        """The candidates are priced whose bounds are below the direct price."""
        seconds = [self._prices.seconds(region, (None,))]
        found: list[Alternative[Node, Form | None]] = [Alternative(node, None, seconds[0])]
        for form, dearer, bound in self._candidates_of(conv):
            if bound * dearer < seconds[0]:
                seconds.append(self._prices.seconds(region, (form,)))
                extra = 4 * (_elements(conv.weights_type(form)) - _elements(_weights(node)))
                found.append(Alternative(node, form, seconds[-1] * dearer, max(0, extra)))
        return _Site(node, tuple(seconds), tuple(found))

    def _candidates_of(self, conv: Conv) -> Sequence[_Candidate]:
        """Allowed forms with lower bounds than the direct one, the least first, those after it with
        ever smaller weights."""
        if conv not in self._candidates:
            bound = self._prices.least_seconds
            most = bound(conv, (DIRECT,) * len(conv.axes))
            found = [(f, self._dearer(conv, f), bound(conv, f)) for f in forms_of(conv)]
            found = [each for each in found if each[1] * each[2] < most]
            found.sort(key=lambda each: each[1] * each[2])
            self._candidates[conv] = tuple(_few(conv, found, self._limits.growth))[:_PRICED]
        return self._candidates[conv]

    def _dearer(self, conv: Conv, form: Form) -> float:
        bits = log2(amplification(conv, form))
        return 1 + self._limits.margin + self._limits.rounding * bits

    def _link(self, both: ConvRegion, before: int, after: int) -> Link:
        """What two neighbours take together beyond what they take alone, if both have a form."""
        first, second = self._sites[before], self._sites[after]

        def beyond(a: int, b: int) -> float:
            forms = first.alternatives[a].replacement, second.alternatives[b].replacement
            if None in forms:
                return 0.0
            together, plain = (self._prices.seconds(both, f) for f in (forms, (None, forms[1])))
            return together - plain - (first.seconds[a] - first.seconds[0])

        return beyond


def _few(conv: Conv, found: Sequence[_Candidate], growth: float) -> Iterator[_Candidate]:
    """Those that are worth a price, in their order."""
    direct = _elements(conv.weights_type((DIRECT,) * len(conv.axes)))
    sizes = [_elements(conv.weights_type(form)) for form, _, _ in found]
    bounds = (b for (_, _, b), size in zip(found, sizes, strict=True) if size <= growth * direct)
    near, smallest = _NEAR * min(bounds, default=inf), inf
    for each, size in zip(found, sizes, strict=True):
        if size <= smallest and each[2] <= near:
            smallest = _SMALLER * size
            yield each


def _elements(type_: TensorType) -> int:
    return as_int(element_count(type_.shape)) or 0


def _weights(node: Node) -> TensorType:
    weights = node.inputs[1]
    assert weights is not None
    return weights.type


def _fitting(node: Node, constants: Mapping[Value, None]) -> Conv | None:
    """The convolution that a node is, if forms may compute it."""
    conv = conv_of(node) if len(node.inputs) > 1 and node.inputs[1] in constants else None
    image, (result, *_) = node.inputs[0] if node.inputs else None, node.outputs or (None,)
    if conv is None or image is None or image.type.dtype is not F32 or result is None:
        return None
    known = [as_int(n) for n in (*image.type.shape[1:], *result.type.shape[1:])]
    return conv if all(n is not None and n > 0 for n in known) else None


def _pools_of(graph: Graph, chosen: Mapping[Node, Form]) -> dict[Node, None]:
    """Maxima of windows side by side over results of `chosen` that nothing else reads, where tiles
    hold whole windows."""
    users = graph.users()
    whole = {node for node, form in chosen.items() if all(f.tile % 2 == 0 for f in form)}
    producers = {v: n for n in graph.nodes for v in n.outputs}

    def follows(node: Node) -> bool:
        source = node.inputs[0]
        before = producers.get(source) if source is not None else None
        if source is None or before is None or source in graph.outputs or len(users[source]) != 1:
            return False
        alone = len(before.inputs) == 1 and Trait.ELEMENTWISE in before.op.traits
        return before in whole or (alone and follows(before))

    return dict.fromkeys(n for n in graph.nodes if _side_by_side(n) and follows(n))


def _side_by_side(node: Node) -> bool:
    """Whether a node takes maxima of windows of 2 x 2 that neither overlap nor leave the image."""
    attrs = node.attrs
    return (
        node.op.name == "max_pool"
        and (attrs.kernel, attrs.strides, attrs.dilations) == ((2, 2), (2, 2), (1, 1))
        and all(as_int(n) == 0 for n in (*attrs.before, *attrs.after))
        and not attrs.ceil_mode
    )


# ---- how ----------------------------------------------------------------------------------------


def _replaced(b: GraphBuilder, node: Node, inputs: Inputs, form: Form) -> Replacement:
    source, conv = inputs[1], conv_of(node)
    assert source is not None
    assert conv is not None
    weights = b.array(source)
    if weights is None:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        found = transformed_weights(conv, form, weights).astype(F32.carrier)
    if not np.isfinite(found).all():  # weights that are, or sums of them beyond the range
        return None
    return with_form(b, node, inputs, found, form)


def _formula(b: GraphBuilder, node: Node, image: Value | None) -> Sequence[Value]:
    """A pool as a point by point expression, which goes where the image is computed: there four
    points of it are made at a time, and none need be stored."""
    assert image is not None
    return express(b, largest_of_four(image.type, node.outputs[0].type), image)
