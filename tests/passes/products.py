"""Prices for which products of a convolution are all that counts."""

from __future__ import annotations

from collections.abc import Collection
from math import inf, prod

from tcc.ir.graph import Node
from tcc.ir.index import as_int
from tcc.passes.derive.bilinear.conv_price import ConvPrices, ConvRegion, Forms
from tcc.passes.derive.bilinear.convolutions import Limits
from tcc.passes.derive.bilinear.tiled_conv import AxisForm, Conv, Form, conv_of

F2: Form = (AxisForm(2, 3),) * 2
F4: Form = (AxisForm(4, 3),) * 2


class Products(ConvPrices):
    """A region's price is the number of its convolutions' products, for one pair of channels; of
    others than the `allowed` forms it is infinite."""

    def __init__(self, allowed: Collection[Form] = (F2, F4)) -> None:
        self._allowed = allowed

    def seconds(self, region: ConvRegion, forms: Forms) -> float:
        return sum(map(products, region.convolutions, forms))

    def least_seconds(self, conv: Conv, form: Form) -> float:
        return counted(conv, form) if form in self._allowed else inf


class Only(Products):
    """One form costs next to nothing."""

    def __init__(self, form: Form) -> None:
        super().__init__((form,))

    def seconds(self, region: ConvRegion, forms: Forms) -> float:
        return 0.0 if None not in forms else 1.0

    def least_seconds(self, conv: Conv, form: Form) -> float:
        return 0.0 if form in self._allowed else inf


def products(node: Node, form: Form | None) -> float:
    conv = conv_of(node)
    assert conv is not None
    if form is None:
        return prod((as_int(axis.results) or 0) * axis.taps for axis in conv.axes)
    return counted(conv, form)


def counted(conv: Conv, form: Form) -> float:
    return prod(
        each.points * each.pieces(axis) * axis.turns * (as_int(each.tiles(axis)) or 0)
        for each, axis in zip(form, conv.axes, strict=True)
    )


FREE = Limits(Products(), growth=100)
