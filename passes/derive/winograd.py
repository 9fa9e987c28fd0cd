"""Computes 3 x 3 convolutions with fewer products.

    %y = conv(%x, %w, %bias)      %v = expression(%x)           ; input transform
                                  %m = expression(%v, %u)       ; 36 products of matrices
                                  %y = expression(%m, %bias)    ; output transform

F(4 x 4, 3 x 3) needs a quarter of a convolution's products, F(2 x 2, 3 x 3) 16 in 36; both round
more and take larger weights, %u, which are computed here in f64.  Infinities and NaN spread over
the tile of results they touch.  Requires folded constants.  A convolution is replaced where that is
predicted to pay (`winograd_price`), all weights together grow within bounds, and %u is finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, walk_graphs
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int
from tcc.ir.op import Array, Trait
from tcc.ir.types import F32, element_count
from tcc.passes.choose.beam import Link, choose_together
from tcc.passes.derive.winograd_forms import (
    FORMS,
    WinogradForm,
    largest_of_four,
    transformed_filters,
)
from tcc.passes.derive.winograd_price import ConvPrices, ConvRegion, Forms, region_of, with_form
from tcc.passes.graph.emit import express
from tcc.record import record
from tcc.schedule.alternatives import Alternative, in_order

# By how much of its price a form counts as dearer: prices err, and larger filters take memory.
_MARGINS = MappingProxyType({2: 0.08, 4: 0.15})
# An option that is so many times as dear as the best is not looked at together with others.
_HOPELESS = 1.15
# Rows of products that keep the multipliers busy while the filters come from memory: where there
# are as many tiles, a form of smaller ones is only dearer.
_MANY = 48
# Channels of a group below which F(4 x 4) may round by more than sums of so few products are
# allowed to: 0.4 of twice their bound at 8 channels, 1.3 times it at 4.
_FEWEST = 8


@record
class Limits:
    """What prices are made by, and how many times their size all weights together may take."""

    prices: ConvPrices
    growth: float = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """A convolution that forms compute, and its seconds directly (first) and in some of them."""

    node: Node
    forms: Forms
    seconds: tuple[float, ...]

    @property
    def alternatives(self) -> tuple[Alternative[Node, WinogradForm | None], ...]:
        """What is chosen from: forms count as dearer than they are priced."""
        priced = zip(self.forms, self.seconds, strict=True)
        return tuple(
            Alternative(self.node, form, s)
            if form is None
            else Alternative(self.node, form, s * (1 + _MARGINS[form.m]), _extra(self.node, form))
            for form, s in priced
        )

    @property
    def contested(self) -> bool:
        """Whether a neighbour may tip the scales."""
        least, *others = (each.price for each in in_order(self.alternatives))
        return any(price <= _HOPELESS * least for price in others)


def winograd(graph: Graph, limits: Limits) -> Graph:
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


def _choose(graph: Graph, limits: Limits) -> Mapping[Node, WinogradForm]:
    """The cheapest forms of all convolutions together, with weights within bounds."""
    constants = {v: None for part in walk_graphs(graph) for v in part.constants}
    room = (limits.growth - 1) * constant_bytes(graph)
    choice = _Choice(limits.prices, constants)
    for part in walk_graphs(graph):
        choice.add(part)
    return choice.forms(room)


class _Choice:
    """The convolutions of a graph and its bodies, with their prices."""

    def __init__(self, prices: ConvPrices, constants: Mapping[Value, None]) -> None:
        self._prices, self._constants = prices, constants
        self._sites: list[_Site] = []
        self._links: dict[tuple[int, int], Link] = {}

    def add(self, graph: Graph) -> None:
        """Takes up the convolutions of one graph, without its bodies."""
        users = graph.users()
        sites: dict[Value, int] = {}  # of values that are a site's results
        for node in (n for n in graph.nodes if _fits(n, self._constants)):
            region = region_of(graph, users, self._constants, (node,))
            number = len(self._sites)
            self._sites.append(self._site(node, region))
            image = node.inputs[0]
            before = None if image is None else sites.get(image)
            if before is not None and (
                self._sites[before].contested or self._sites[number].contested
            ):
                nodes = (self._sites[before].node, node)
                both = region_of(graph, users, self._constants, nodes)
                self._links[before, number] = self._link(both, before, number)
            sites.update((v, number) for n in region.nodes for v in n.outputs)

    def forms(self, room: float) -> Mapping[Node, WinogradForm]:
        """The form to take for each convolution that one is taken for."""
        places = [site.alternatives for site in self._sites]
        picks = choose_together(places, self._links, room)
        taken = [place[pick] for place, pick in zip(places, picks, strict=True)]
        return {each.region: each.replacement for each in taken if each.replacement is not None}

    def _site(self, node: Node, region: ConvRegion) -> _Site:
        """Priced are the largest form, and smaller ones if its products are of few rows."""
        direct = self._prices.seconds(region, (None,))
        priced: dict[WinogradForm | None, float] = {None: direct}
        for form in sorted(FORMS.values(), key=lambda f: -f.m):
            if len(priced) == 1 or _tiles(node, FORMS[max(FORMS)]) < _MANY:
                priced[form] = self._prices.seconds(region, (form,))
        return _Site(node, tuple(priced), tuple(priced.values()))

    def _link(self, both: ConvRegion, before: int, after: int) -> Link:
        """What two neighbours take together beyond what they take alone, if both have a form."""
        first, second = self._sites[before], self._sites[after]

        def beyond(a: int, b: int) -> float:
            if first.forms[a] is None or second.forms[b] is None:
                return 0.0
            together = self._prices.seconds(both, (first.forms[a], second.forms[b]))
            plain = self._prices.seconds(both, (None, second.forms[b]))
            return together - plain - (first.seconds[a] - first.seconds[0])

        return beyond


def _tiles(node: Node, form: WinogradForm) -> int:
    """Rows of the products of one image."""
    results = (as_int(n) or 0 for n in node.outputs[0].type.shape[2:])
    sizes = zip(results, node.attrs.dilations, strict=True)
    return prod(d * -(-n // (d * form.m)) for n, d in sizes)


def _extra(node: Node, form: WinogradForm) -> int:
    """Bytes by which the filters grow."""
    weights = node.inputs[1]
    assert weights is not None
    return (form.points - 9) * 4 * ((as_int(element_count(weights.type.shape)) or 0) // 9)


def _fits(node: Node, constants: Mapping[Value, None]) -> bool:
    """Whether a node is a convolution that the forms compute."""
    if node.op.name != "conv" or node.inputs[1] not in constants:
        return False
    (result,) = node.outputs
    image, weights, attrs = node.inputs[0], node.inputs[1], node.attrs
    assert image is not None
    assert weights is not None
    known = [as_int(n) for n in (*image.type.shape[1:], *result.type.shape[2:])]
    return (
        weights.type.static_shape is not None
        and weights.type.static_shape[2:] == (3, 3)
        and set(attrs.strides) == {1}
        and (as_int(weights.type.shape[1]) or 0) >= _FEWEST
        and image.type.dtype is F32
        and all(n is not None and n > 0 for n in known)
    )


def _pools_of(graph: Graph, chosen: Mapping[Node, WinogradForm]) -> dict[Node, None]:
    """Maxima of windows side by side over results of `chosen` that nothing else reads."""
    users = graph.users()
    producers = {v: n for n in graph.nodes for v in n.outputs}

    def follows(node: Node) -> bool:
        source = node.inputs[0]
        before = producers.get(source) if source is not None else None
        if source is None or before is None or source in graph.outputs or len(users[source]) != 1:
            return False
        alone = len(before.inputs) == 1 and Trait.ELEMENTWISE in before.op.traits
        return before in chosen or (alone and follows(before))

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


def _replaced(b: GraphBuilder, node: Node, inputs: Inputs, form: WinogradForm) -> Replacement:
    image, source = inputs[0], inputs[1]
    assert image is not None
    assert source is not None
    weights = b.array(source)
    if weights is None:
        return None
    filters = _rounded(form, weights)
    if not np.isfinite(filters).all():  # weights that are, or sums of them beyond the range
        return None
    u = b.constant(filters, source.name, F32)
    return with_form(b, node, inputs, u, form)


def _formula(b: GraphBuilder, node: Node, image: Value | None) -> Sequence[Value]:
    """A pool as a point by point expression, which goes where the image is computed: there four
    points of it are made at a time, and none need be stored."""
    assert image is not None
    return express(b, largest_of_four(image.type, node.outputs[0].type), image)


def _rounded(form: WinogradForm, weights: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return transformed_filters(form, weights).astype(F32.carrier)
