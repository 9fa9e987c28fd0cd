"""Computes convolutions with fewer products.

    %y = conv(%x, %w, %bias)      %v = expression(%x)           ; input transform
                                  %m = expression(%v, %u)       ; as many products of matrices
                                  %t = expression(%m, %bias)    ; output transform
                                  %f = expression(...)          ; whether a tile fails (`guard`)
                                  %y = guarded(%t, %f, %x, %w, ...)    ; direct sums where so

F(4 x 4, 3 x 3) needs a quarter of a convolution's products, F(3 x 3, 2 x 2) 4 in 9; all forms round
more and most take larger weights, %u, which are computed here in f64.  Infinities and NaN spread
over the tile of results they touch.  Requires folded constants.  The candidates are the forms
within the error policy (`conv_forms`) of which the least bounds are few enough to be priced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.index import as_int
from tcc.ir.op import Trait
from tcc.ir.types import F32, element_count
from tcc.ops import OPS
from tcc.passes.choose.price import unread
from tcc.passes.derive.bilinear.conv_forms import amplification
from tcc.passes.derive.bilinear.guard import fails
from tcc.passes.derive.bilinear.tiled_conv import (
    DIRECT,
    Conv,
    Form,
    conv_of,
    direct_sums,
    input_transform,
    largest_of_four,
    masks,
    output_transform,
    products,
    transformed_weights,
)
from tcc.passes.derive.candidate import Arrays, Candidate, Found, dearer
from tcc.passes.derive.sites import Scope, Site
from tcc.passes.fuse.partition import NodeKind, classify
from tcc.passes.graph.emit import express
from tcc.record import record
from tcc.schedule.nest import typical

# Forms of a convolution whose kernels are made to be priced: at most so many, whose bounds are at
# most so many times the least of those that may grow all weights so far, each with weights of at
# most so many times the one's before.
_PRICED, _NEAR, _SMALLER = 2, 1.3, 0.75
# Nodes after a convolution that are taken for its epilogue.
_MOST = 8


@record
class Tiled(Candidate):
    """A convolution in a form."""

    conv: Conv
    form: Form

    @property
    def amplification(self) -> float:
        return amplification(self.conv, self.form)

    @property
    def guarded(self) -> bool:
        return True

    def growth(self, site: Site) -> int:
        """The weights of the direct sums stay, for tiles that fail the guard."""
        return 4 * _weights(self.conv, self.form)

    def emit(
        self, b: GraphBuilder, operands: Sequence[Value], arrays: Arrays | None
    ) -> Value | None:
        image, source, *rest = operands
        conv, form = self.conv, self.form
        u, w = (self._weights(b, source, each, arrays) for each in (form, (DIRECT,) * len(form)))
        if u is None or w is None:  # weights that are, or sums of them beyond the range
            return None
        # First, while the image lies in the caches of the cores that made it.
        kernel = [as_int(n) or 0 for n in source.type.shape[2:]]
        lacking = [
            None if mask is None else b.constant(mask.astype(F32.carrier), "taps")
            for mask in masks(conv, kernel)
        ]
        failed = fails(b, conv, form, image, lacking)
        (v,) = express(b, input_transform(conv, form, image.type), image)
        (m,) = express(b, products(conv, form, v.type, u.type), v, u)
        bias = rest[0] if rest else None
        shift, *types = (None if value is None else value.type for value in (bias, *lacking))
        (y,) = express(b, output_transform(conv, form, m.type, shift), m, bias)
        row, direct = OPS["guarded"], direct_sums(conv, image.type, w.type, shift, types)
        read: list[Value | None] = [y, failed, image, w, bias, *lacking]
        (guarded,) = b.add(row, read, row.attrs(direct))
        return guarded

    def _weights(
        self, b: GraphBuilder, source: Value, form: Form, arrays: Arrays | None
    ) -> Value | None:
        """The weights of a form; None where they leave the range of f32."""
        if arrays is None:
            return unread(b, self.conv.weights_type(form))
        weights = arrays[1]
        assert weights is not None
        with np.errstate(over="ignore", invalid="ignore"):
            found = transformed_weights(self.conv, form, weights).astype(F32.carrier)
        return b.constant(found, source.name, F32) if np.isfinite(found).all() else None


def convolutions(scope: Scope) -> Iterator[Site]:
    """The convolutions that forms may compute, with the nodes behind that may be in their kernels:
    what is stored between kernels stays so."""
    for node in scope.graph.nodes:
        if conv_of(node) is not None:
            site = scope.site((node,), epilogue(scope, node), stored=True)
            if fitting(site) is not None:
                yield site


def epilogue(scope: Scope, node: Node) -> list[Node]:
    """Nodes after a convolution that change its result element by element."""
    found = [node]
    for seen in found:
        if len(found) > _MOST:
            break
        after = [n for v in seen.outputs for n in scope.users.get(v, ()) if n not in found]
        found += [n for n in dict.fromkeys(after) if classify(n).kind is NodeKind.POINTWISE]
    return found[1 : _MOST + 1]


def fitting(site: Site) -> Conv | None:
    """The convolution that a site is, if forms may compute it."""
    conv = conv_of(site.nodes[0]) if len(site.nodes) == 1 else None
    if conv is None or site.constants[:2] != (False, True):
        return None
    image, (result,) = site.operands[0].type, site.sink.outputs
    sizes = (*image.shape[1:], *result.type.shape[1:])
    positive = all(n > 0 for n in map(typical, sizes))
    return conv if image.dtype is F32 and positive else None


def tiled(
    conv: Conv, forms: Iterable[Form], least: Callable[[Conv, Form], float], growth: float
) -> Found:
    """The `forms` with lower bounds than the direct one, `least`, that are worth a price: the least
    first, those after it with ever smaller weights, the last within `growth` if any form is."""
    most = least(conv, (DIRECT,) * len(conv.axes))
    every = [Tiled(_name(form), least(conv, form), conv, form) for form in forms]
    found = [each for each in every if dearer(each) * each.estimate < most]
    found.sort(key=lambda each: dearer(each) * each.estimate)
    return Found(most, tuple(_few(found, growth)), len(every))


def _name(form: Form) -> str:
    """F(4 x 4, 3 x 3)"""
    sizes = ([f.tile for f in form], [f.taps for f in form])
    return f"F({', '.join(' x '.join(map(str, own)) for own in sizes)})"


def _few(found: Sequence[Tiled], growth: float) -> list[Tiled]:
    """Those that are worth a price, in their order."""
    sizes = [_weights(each.conv, each.form) for each in found]
    most = (growth - 1) * _weights(found[0].conv, (DIRECT,) * len(found[0].form)) if found else 0
    pairs = list(zip(found, sizes, strict=True))
    within = [each for each, size in pairs if size <= most]
    near = _NEAR * min((each.estimate for each in within), default=inf)
    few: list[Tiled] = []
    smallest = inf
    for each, size in pairs:
        if len(few) < _PRICED and size <= smallest and each.estimate <= near:
            smallest = _SMALLER * size
            few.append(each)
    if within and smallest > _SMALLER * most:
        few[-1] = within[0]
    return few


def _weights(conv: Conv, form: Form) -> int:
    """Elements of a form's weights."""
    return as_int(element_count(conv.weights_type(form).shape)) or 0


# ---- pools -------------------------------------------------------------------------------------


def pools_of(graph: Graph, chosen: Mapping[Node, Form]) -> dict[Node, None]:
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


def pool_formula(b: GraphBuilder, node: Node, image: Value | None) -> Sequence[Value]:
    """A pool as a point by point expression, which goes where the image is computed: there four
    points of it are made at a time, and none need be stored."""
    assert image is not None
    return express(b, largest_of_four(image.type, node.outputs[0].type), image)
