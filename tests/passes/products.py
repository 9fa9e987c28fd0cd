"""Prices for which products of a convolution are all that counts."""

from __future__ import annotations

from math import prod

from tcc.ir.graph import Node
from tcc.ir.index import as_int
from tcc.passes.derive.bilinear_conv import Limits
from tcc.passes.derive.conv_price import ConvPrices, ConvRegion, Forms
from tcc.passes.derive.winograd_forms import WinogradForm


class Products(ConvPrices):
    """A region's price is the number of its convolutions' products, for one pair of channels."""

    def __init__(self) -> None:
        pass

    def seconds(self, region: ConvRegion, forms: Forms) -> float:
        return sum(map(products, region.convolutions, forms))


def products(node: Node, form: WinogradForm | None) -> float:
    results = [as_int(n) or 0 for n in node.outputs[0].type.shape[2:]]
    if form is None:
        return 9 * prod(results)
    along = zip(results, node.attrs.dilations, strict=True)
    return form.points * prod(d * -(-n // (d * form.m)) for n, d in along)


FREE = Limits(Products(), growth=100)
