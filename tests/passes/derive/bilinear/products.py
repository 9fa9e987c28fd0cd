"""Prices that count only the multiplications of convolutions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf, prod

from tcc.ir.graph import Graph, Node
from tcc.ir.index import as_int
from tcc.passes.derive.bilinear.convolutions import Tiled
from tcc.passes.derive.bilinear.tiled_conv import AxisForm, Conv, Form, conv_of
from tcc.passes.derive.derive import Derivations
from tcc.passes.derive.prices import Prices, Replacements
from tcc.passes.derive.sites import DerivationSite
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.schedule.cpu.core import TYPICAL_CORE

F2: Form = (AxisForm(2, 3),) * 2
F4: Form = (AxisForm(4, 3),) * 2


class Products(Prices):
    """Prices a site by the multiplications of its convolutions per pair of channels; forms outside
    `allowed` have an infinite price."""

    def __init__(self, allowed: Collection[Form] = (F2, F4)) -> None:
        super().__init__(CoreChooser(TYPICAL_CORE))
        self._allowed = allowed

    def seconds(self, site: DerivationSite, replacements: Replacements = ()) -> float:
        forms = forms_in(replacements)
        return sum(products(n, forms.get(n)) for n in site.nodes if conv_of(n) is not None)

    def least_seconds(self, conv: Conv, form: Form) -> float:
        return counted(conv, form) if form in self._allowed else inf


class Only(Products):
    """Makes a single form almost free."""

    def __init__(self, form: Form) -> None:
        super().__init__((form,))

    def seconds(self, site: DerivationSite, replacements: Replacements = ()) -> float:
        return 0.0 if len(replacements) == len(site.nodes) else 1.0

    def least_seconds(self, conv: Conv, form: Form) -> float:
        return 0.0 if form in self._allowed else inf


def forms_in(replacements: Replacements) -> Mapping[Node, Form]:
    """Returns the forms of the replaced convolutions."""
    return {site.sink: c.form for site, c in replacements if isinstance(c, Tiled)}


def products(node: Node, form: Form | None) -> float:
    conv = conv_of(node)
    assert conv is not None
    if form is None:
        return prod((as_int(axis.results) or 0) * axis.taps for axis in conv.axes)
    return counted(conv, form)


def counted(conv: Conv, form: Form) -> float:
    return prod(
        each.points * each.pieces(axis) * axis.phases * (as_int(each.tiles(axis)) or 0)
        for each, axis in zip(form, conv.axes, strict=True)
    )


def form_nodes(graph: Graph) -> list[Node]:
    """Returns the nodes of a graph without its guards and the nodes that compute flags of
    guards."""
    left = dict.fromkeys(graph.nodes)
    flags = {n.inputs[1] for n in graph.nodes if n.op.name == "guarded"}
    for node in reversed(graph.nodes):
        if node.op.name == "guarded":
            del left[node]
        elif node.outputs and not flags.isdisjoint(node.outputs):
            del left[node]
            flags.update(v for v in node.inputs if v in graph.producers())
    return list(left)


FREE = Derivations(Products(), growth=100)
