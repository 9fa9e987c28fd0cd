"""Computes convolutions with fewer products.

    %y = conv(%x, %w, %bias)      %v = expression(%x)           ; input transform
                                  %m = expression(%v, %u)       ; a matmul for each tile element
                                  %t = expression(%m, %bias)    ; output transform
                                  %f = expression(...)          ; true if a tile fails (`guard`)
                                  %y = guarded(%t, %f, %x, %w, ...)    ; direct sums if so

There is a matmul for each element of a transformed tile, which sums over channels.  F(4 x 4, 3 x 3)
needs a quarter of a convolution's products, and F(3 x 3, 2 x 2) needs 4 of 9.  All forms round more
than direct sums.  Most have larger weights, %u, which are computed here in f64.  An infinity or a
NaN spreads to all results of its tile.  The candidates are the forms whose rounding errors are
allowed (`conv_forms`).  Only a few with the lowest bounds on their time are priced.

Requires folded constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf

import numpy as np
from tcc.frozen import frozen
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, on_each_rank
from tcc.ir.index import as_int
from tcc.ir.op import Array, Arrays, Trait
from tcc.ir.types import F32
from tcc.ops import OPS
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
from tcc.passes.derive.candidate import Candidate, RankArrays, SearchResult, price_factor
from tcc.passes.derive.sites import DerivationSite, SiteScope
from tcc.passes.fuse.node_kinds import NodeKind, classify
from tcc.passes.graph.emit import express
from tcc.passes.program.price import unread
from tcc.schedule.alternatives import IMPOSSIBLE, Seconds, cheapest_first, saves
from tcc.schedule.nest import typical
from tcc.zipped import zip_equal

# At most `_PRICED` forms of a convolution are priced. The lower bound of a priced form is at most
# `_NEAR` times the smallest bound among forms whose weights are within the limit. The second priced
# form has at most `_SMALLER` times the weights of the first.
_PRICED, _NEAR, _SMALLER = 2, 1.3, 0.75
# At most this many nodes after a convolution count as its epilogue.
_MOST = 8


@frozen
class Tiled(Candidate):
    """A convolution that is computed in a bilinear form."""

    conv: Conv
    form: Form

    @property
    def amplification(self) -> float:
        return amplification(self.conv, self.form)

    @property
    def guarded(self) -> bool:
        return True

    def growth(self, site: DerivationSite) -> int:
        """Returns the bytes of the form's weights.

        They come on top of the convolution's own weights, which the direct sums read if a tile
        fails the guard.
        """
        return 4 * _weights(self.conv, self.form)

    def emit(
        self, b: GraphBuilder, operands: Sequence[Value], arrays: RankArrays | None
    ) -> Value | None:
        image, source, *biases = operands
        conv, form = self.conv, self.form
        u, w = (
            self._weights(b, source, each_form, arrays)
            for each_form in (form, (DIRECT,) * len(form))
        )
        if u is None or w is None:  # the weights, or their sums, are beyond the range of f32
            return None
        # The guard comes first: the image is then still in the caches of the cores that computed
        # it.
        kernel = [as_int(n) or 0 for n in source.shape[2:]]
        lacking = [
            None if mask is None else b.constant(mask.astype(F32.carrier), "taps")
            for mask in masks(conv, kernel)
        ]
        failed = fails(b, conv, form, image, lacking)
        (v,) = express(b, input_transform(conv, form, image.type), image)
        (m,) = express(b, products(conv, form, v.type, u.type), v, u)
        bias = biases[0] if biases else None
        shift, *types = (None if value is None else value.type for value in (bias, *lacking))
        (y,) = express(b, output_transform(conv, form, m.type, shift), m, bias)
        row, direct = OPS["guarded"], direct_sums(conv, image.type, w.type, shift, types)
        inputs: list[Value | None] = [y, failed, image, w, bias, *lacking]
        (guarded,) = b.add(row, inputs, row.attrs(direct))
        return guarded

    def _weights(
        self, b: GraphBuilder, source: Value, form: Form, arrays: RankArrays | None
    ) -> Value | None:
        """Returns the weights of a form; None if some are beyond the range of f32.

        With `arrays` None, they have a type and no data.
        """
        if arrays is None:
            return unread(b, self.conv.weights_type(form))
        transformed = on_each_rank(arrays[1:2], partial(_transformed, self.conv, form))
        if transformed is None:
            return None
        return b.constant_per_rank(transformed, source.name, F32, b.scaled_sources(source))


def _transformed(conv: Conv, form: Form, arrays: Arrays) -> Array | None:
    """Returns the weights of a form for one rank's weights; None where they leave the range."""
    (weights,) = arrays
    assert weights is not None
    with np.errstate(over="ignore", invalid="ignore"):
        transformed = transformed_weights(conv, form, weights).astype(F32.carrier)
    return transformed if np.isfinite(transformed).all() else None


def convolutions(scope: SiteScope) -> Iterator[DerivationSite]:
    """Yields a site for each convolution that bilinear forms may compute.

    The site's neighbours are the nodes after the convolution that may share its kernel.  Values
    that other kernels compute or read have the role STORED.
    """
    for node in scope.graph.nodes:
        if conv_of(node) is not None:
            site = scope.site((node,), epilogue(scope, node), stored=True)
            if convolution_of(site) is not None:
                yield site


def epilogue(scope: SiteScope, node: Node) -> list[Node]:
    """Returns the pointwise nodes after a convolution, which may share its kernel."""
    nodes = [node]
    for node_before in nodes:
        if len(nodes) > _MOST:
            break
        after = [n for v in node_before.outputs for n in scope.users.get(v, ()) if n not in nodes]
        nodes += [n for n in dict.fromkeys(after) if classify(n) is NodeKind.POINTWISE]
    return nodes[1 : _MOST + 1]


def convolution_of(site: DerivationSite) -> Conv | None:
    """Returns the convolution of a site; None if bilinear forms cannot compute it."""
    conv = conv_of(site.nodes[0]) if len(site.nodes) == 1 else None
    if conv is None or site.constants[:2] != (False, True):
        return None
    image, (result,) = site.operands[0].type, site.sink.outputs
    sizes = (*image.shape[1:], *result.shape[1:])
    positive = all(n > 0 for n in map(typical, sizes))
    return conv if image.dtype is F32 and positive else None


def tiled(
    conv: Conv, forms: Iterable[Form], bound_of: Callable[[Conv, Form], Seconds], growth: float
) -> SearchResult:
    """Returns the bilinear forms to price: their bounds are lower than the bound of direct sums.

    `bound_of` returns a lower bound of a form's seconds.  The form with the lowest bound comes
    first, and each following form has smaller weights.  `growth` is the factor by which weights may
    grow.  If any form keeps its weights within this limit, the last returned form does.
    """
    direct_bound = bound_of(conv, (DIRECT,) * len(conv.axes))
    every = [Tiled(_name(form), bound_of(conv, form), conv, form) for form in forms]
    candidates = [
        candidate
        for candidate in every
        if saves(price_factor(candidate) * candidate.estimate, direct_bound)
    ]
    candidates = cheapest_first(candidates, lambda c: price_factor(c) * c.estimate)
    return SearchResult(direct_bound, tuple(_few(candidates, growth)), len(every))


def _name(form: Form) -> str:
    """Returns the name of a form, for example F(4 x 4, 3 x 3)."""
    sizes = ([f.tile for f in form], [f.taps for f in form])
    return f"F({', '.join(' x '.join(map(str, axis_sizes)) for axis_sizes in sizes)})"


def _few(candidates: Sequence[Tiled], growth: float) -> list[Tiled]:
    """Returns the candidates to price, in the order of `candidates`; see `tiled`."""
    if not candidates:
        return []
    sizes = [_weights(candidate.conv, candidate.form) for candidate in candidates]
    first = candidates[0]
    weight_limit = (growth - 1) * _weights(first.conv, (DIRECT,) * len(first.form))
    pairs = list(zip_equal(candidates, sizes))
    within = [candidate for candidate, size in pairs if size <= weight_limit]
    bounds = cheapest_first((candidate.estimate for candidate in within), lambda bound: bound)
    bound_limit = _NEAR * next(iter(bounds), IMPOSSIBLE)
    few: list[Tiled] = []
    smallest = inf
    for candidate, size in pairs:
        if len(few) < _PRICED and size <= smallest and not saves(bound_limit, candidate.estimate):
            smallest = _SMALLER * size
            few.append(candidate)
    if within and smallest > _SMALLER * weight_limit:
        few[-1] = within[0]
    return few


def _weights(conv: Conv, form: Form) -> int:
    """Returns the number of elements of a form's weights."""
    return conv.weights_type(form).count or 0


# ---- pools -------------------------------------------------------------------------------------


def pools_of(graph: Graph, forms: Mapping[Node, Form]) -> dict[Node, None]:
    """Returns the max pools that are computed together with convolutions in `forms`.

    The windows of a returned pool are 2 x 2, adjacent and without overlap.  The tiles of the
    convolution hold whole windows.  Nothing but the pool reads the convolution.
    """
    users = graph.users()
    even_tiled = {node for node, form in forms.items() if all(f.tile % 2 == 0 for f in form)}
    producers = graph.producers()

    def follows(node: Node) -> bool:
        source = node.inputs[0]
        before = producers.get(source)
        if source is None or before is None or source in graph.outputs or len(users[source]) != 1:
            return False
        is_elementwise = len(before.inputs) == 1 and Trait.ELEMENTWISE in before.op.traits
        return before in even_tiled or (is_elementwise and follows(before))

    return dict.fromkeys(n for n in graph.nodes if _side_by_side(n) and follows(n))


def _side_by_side(node: Node) -> bool:
    """Returns True for a max pool of 2 x 2 windows that neither overlap nor leave the image."""
    attrs = node.attrs
    return (
        node.op.name == "max_pool"
        and (attrs.kernel, attrs.strides, attrs.dilations) == ((2, 2), (2, 2), (1, 1))
        and all(as_int(n) == 0 for n in (*attrs.before, *attrs.after))
        and not attrs.ceil_mode
    )


def pool_formula(b: GraphBuilder, node: Node, image: Value | None) -> Sequence[Value]:
    """Returns a pool of 2 x 2 windows as a pointwise expression of its image.

    It can be fused with the kernel that computes the image.  That kernel then computes four pixels
    at a time, and stores only their maximum.
    """
    assert image is not None
    return express(b, largest_of_four(image.type, node.result.type), image)
