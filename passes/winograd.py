"""Computes 3 x 3 convolutions with fewer products.

    %y = conv(%x, %w, %bias)      %v = expression(%x)           ; input transform
                                  %m = expression(%v, %u)       ; 36 products of matrices
                                  %y = expression(%m, %bias)    ; output transform

F(4 x 4, 3 x 3) needs a quarter of a convolution's products, F(2 x 2, 3 x 3) 16 in 36; both round
more and take larger weights, %u, which are computed here in f64.  Infinities and NaN spread over
the tile of results they touch.  Requires folded constants.  A convolution is replaced where that is
predicted to pay (`tcc.passes.winograd_price`) and all weights together grow within bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tcc.ir.graph import Graph, GraphBuilder, Node, Value, bodies, walk_nodes
from tcc.ir.index import as_index, as_int
from tcc.ir.op import Array, Trait
from tcc.ir.rewrite import Inputs, rewritten
from tcc.ir.types import F32, element_count
from tcc.ops import OPS
from tcc.passes.winograd_forms import (
    FORMS,
    Form,
    Tiling,
    input_transform,
    largest_of_four,
    output_transform,
    products,
    transformed_filters,
)
from tcc.passes.winograd_price import Rates, Sizes, direct_price, winograd_price


@dataclass(frozen=True, slots=True)
class Limits:
    """What prices are made of, and how many times their size all weights together may take."""

    rates: Rates
    growth: float = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """One convolution that a form would make faster by `gain`, for `extra` bytes of weights."""

    node: Node
    form: Form
    gain: float
    extra: int


def winograd(graph: Graph, limits: Limits) -> Graph:
    """`graph` with the convolutions replaced that gain from it within the limits."""
    chosen = _choose(graph, limits)
    pools = _pools_of(graph, chosen)

    def visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Sequence[Value] | None:
        if node in pools:
            return _formula(b, node, inputs)
        form = chosen.get(node)
        return None if form is None else _replaced(b, node, inputs, form)

    return rewritten(graph, visit) if chosen else graph


def constant_bytes(graph: Graph) -> int:
    """Bytes of all constants of a graph and its bodies."""
    sizes = ((as_int(element_count(v.type.shape)) or 0, v.type.dtype) for v in _constants(graph))
    return sum(-(-count * dtype.bits // 8) for count, dtype in sizes)


# ---- which --------------------------------------------------------------------------------------


def _choose(graph: Graph, limits: Limits) -> Mapping[Node, Form]:
    """The most time saved for a byte first, as long as the weights stay within bounds."""
    constants = dict.fromkeys(_constants(graph))
    room = (limits.growth - 1) * constant_bytes(graph)
    found = [_best(node, limits.rates) for node in walk_nodes(graph) if _fits(node, constants)]
    candidates = [c for c in found if c is not None]
    candidates.sort(key=lambda c: -c.gain / max(c.extra, 1))
    chosen: dict[Node, Form] = {}
    for candidate in candidates:
        if candidate.extra <= room:
            room -= candidate.extra
            chosen[candidate.node] = candidate.form
    return chosen


def _constants(graph: Graph) -> Iterator[Value]:
    """The constants of a graph and its bodies."""
    yield from graph.constants
    for node in graph.nodes:
        for body in bodies(node):
            yield from _constants(body)


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
        and attrs.group == 1
        and image.type.dtype is F32
        and all(n is not None and n > 0 for n in known)
    )


def _best(node: Node, rates: Rates) -> _Candidate | None:
    """The form that gains most, if one does."""
    sizes = _sizes(node)
    direct = direct_price(sizes, rates)
    options = [
        _Candidate(
            node,
            form,
            direct - winograd_price(sizes, form, rates),
            (form.points - 9) * 4 * sizes.channels * sizes.filters,
        )
        for form in FORMS.values()
    ]
    best = max(options, key=lambda c: c.gain)
    return best if best.gain > 0 else None


def _sizes(node: Node) -> Sizes:
    image, weights = node.inputs[0], node.inputs[1]
    assert image is not None
    assert weights is not None
    filters, channels = (as_int(n) or 0 for n in weights.type.shape[:2])
    high, wide = (as_int(n) or 0 for n in node.outputs[0].type.shape[2:])
    images = as_int(image.type.shape[0]) or 1
    return Sizes(images, channels, filters, (high, wide), node.attrs.dilations)


def _pools_of(graph: Graph, chosen: Mapping[Node, Form]) -> dict[Node, None]:
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


def _replaced(b: GraphBuilder, node: Node, inputs: Inputs, form: Form) -> Sequence[Value] | None:
    image, source = inputs[0], inputs[1]
    assert image is not None
    assert source is not None
    weights = b.array(source)
    if weights is None:
        return None
    attrs, (result,) = node.attrs, node.outputs
    before = (as_index(attrs.before[0]), as_index(attrs.before[1]))
    high, wide = result.type.shape[2:]
    tiling = Tiling(image.type, before, attrs.dilations, (high, wide))
    u = b.constant(_rounded(form, weights), source.name, F32)
    op, form_of = OPS["expression"], OPS["expression"].attrs
    (v,) = b.add(op, [image], form_of(input_transform(form, tiling)), loc=node.loc)
    (m,) = b.add(op, [v, u], form_of(products(v.type, u.type)), loc=node.loc)
    bias = inputs[2] if len(inputs) > 2 else None
    shift = None if bias is None else bias.type
    last = form_of(output_transform(form, tiling, m.type, shift))
    return b.add(op, [m, bias], last, loc=node.loc)


def _formula(b: GraphBuilder, node: Node, inputs: Inputs) -> Sequence[Value]:
    """A pool as a point by point expression, which goes where the image is computed: there four
    points of it are made at a time, and none need be stored."""
    (image,) = inputs
    assert image is not None
    op = OPS["expression"]
    expr = largest_of_four(image.type, node.outputs[0].type)
    return b.add(op, [image], op.attrs(expr), loc=node.loc)


def _rounded(form: Form, weights: Array) -> Array:
    return transformed_filters(form, weights).astype(F32.carrier)
