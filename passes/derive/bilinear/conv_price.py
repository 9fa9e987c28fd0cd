"""What a convolution takes directly and in a bilinear form, with what is computed around it.

    region    max_pool -> conv -> add, relu -> max_pool    of the conv and what follows it
    direct    one kernel                                   priced like the kernels of a model
    F(4, 3)   input transform, products, output transform

A region is the graph of a few nodes, placed and scheduled like a whole model, and its price the sum
of its kernels' prices: epilogues, halos, layouts and joined kernels count as they will be.  Where
others make or read its values, a pool of one element stands for them, so that values are stored as
between kernels; what pools take by themselves is left out.  Inputs and outputs of the graph keep
their layout.

`least_seconds` needs no graph: what a form takes where its products and sums run at the processor's
peak, and what they exchange moves at the pace of the second-level caches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any, TypeAlias

from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs
from tcc.ir.index import as_index, as_int
from tcc.ir.op import Array
from tcc.ir.types import F32
from tcc.ops import OPS
from tcc.passes.choose.price import priced_kernels, unread
from tcc.passes.derive.bilinear.tiled_conv import (
    Conv,
    Form,
    conv_of,
    facts_of,
    input_transform,
    output_transform,
    points,
    products,
)
from tcc.passes.fuse.partition import NodeKind, classify
from tcc.passes.graph.emit import express
from tcc.passes.tile.plan import KernelPlanner
from tcc.record import record
from tcc.schedule.cpu.machine import Machine

# Nodes after a convolution that are taken for its epilogue.
_MOST = 8
# Elements along an axis that stand-ins for readers look at: pointwise work of the region would be
# done so many times over in their kernels, and stays in its own.
_READ = 3
# Where nodes of regions come from.
_DIRECT, _POOL = "direct", "pool"

Forms: TypeAlias = tuple[Form | None, ...]


class Role(Enum):
    """What a value is to a region that reads it."""

    MADE = "made"
    CONSTANT = "constant"
    GIVEN = "given"  # an input of the graph, in the caller's layout
    OTHER = "other"


@dataclass(frozen=True, slots=True, eq=False)
class ConvRegion:
    """Convolutions, and the nodes after them that may run in their kernels, in order.

    `roles` are of the values they read and `shown` those that others read; True: results of the
    graph, in the caller's layout."""

    nodes: tuple[Node, ...]
    convolutions: tuple[Node, ...]
    roles: Mapping[Value, Role]
    shown: Mapping[Value, bool]


def region_of(
    graph: Graph,
    users: Mapping[Value, Sequence[Node]],
    constants: Collection[Value],
    convolutions: Sequence[Node],
) -> ConvRegion:
    """The region of some convolutions of `graph`; `users` are its values' readers, `constants` also
    those of the graphs around it."""
    chosen = dict.fromkeys(convolutions)
    for convolution in convolutions:
        chosen.update(dict.fromkeys(epilogue(users, convolution)))
    nodes = tuple(n for n in graph.nodes if n in chosen)
    outputs = dict.fromkeys(graph.outputs)
    shown = {
        v: v in outputs
        for n in nodes
        for v in n.outputs
        if v in outputs or any(u not in chosen for u in users.get(v, ())) or v not in users
    }
    roles = dict.fromkeys((v for n in nodes for v in n.inputs if v is not None), Role.OTHER)
    roles |= {v: Role.GIVEN for v in graph.inputs if v in roles}
    roles |= {v: Role.CONSTANT for v in roles if v in constants}
    roles |= {v: Role.MADE for n in nodes for v in n.outputs if v in roles}
    return ConvRegion(nodes, tuple(convolutions), roles, shown)


def epilogue(users: Mapping[Value, Sequence[Node]], node: Node) -> list[Node]:
    """Nodes after a convolution that change its result element by element."""
    found = [node]
    for seen in found:
        if len(found) > _MOST:
            break
        after = [n for v in seen.outputs for n in users.get(v, ()) if n not in found]
        found += [n for n in dict.fromkeys(after) if classify(n).kind is NodeKind.POINTWISE]
    return found[1 : _MOST + 1]


class ConvPrices:
    """Prices regions as a planner would schedule their kernels, equal ones once.

    `direct` is how many times the operations a direct convolution does in a cycle, in a narrower
    type.  `constants` are the bytes of all weights, as of a `Pricer`.
    """

    def __init__(
        self,
        planner: KernelPlanner,
        machine: Machine,
        direct: float = 1.0,
        constants: int | None = None,
    ) -> None:
        self._planner, self._machine, self._direct = planner, machine, direct
        warm = constants is not None and constants <= machine.l3.size
        near = machine.cores * machine.hertz * machine.l3.read
        self._weights_rate = near if warm else machine.memory.read_all
        self._known: dict[Any, float] = {}
        self._pools: dict[Any, float] = {}

    def least_seconds(self, conv: Conv, form: Form) -> float:
        """Seconds of a form's parts at the machine's rates, without the kernels around it."""
        machine, work = self._machine, form_work(conv, form)
        multiplying = max(2 * work.products / machine.peak, work.weights / self._weights_rate)
        near = machine.cores * machine.hertz / (1 / machine.l2.read + 1 / machine.l2.write)
        return multiplying + max(2 * work.sums / machine.peak, work.exchanged / near)

    def seconds(self, region: ConvRegion, forms: Forms) -> float:
        """Seconds of a region whose convolutions are computed in these forms; None: directly."""
        key = _key(region)
        if (key, forms) not in self._known:
            direct = (None,) * len(forms)
            if key not in self._pools:
                parts = self._priced(_built(region, direct))
                self._pools[key] = sum(seconds for loc, seconds in parts if loc.startswith(_POOL))
                self._known[key, direct] = sum(s for _, s in parts) - self._pools[key]
            if forms != direct:
                parts = self._priced(_built(region, forms))
                self._known[key, forms] = sum(s for _, s in parts) - self._pools[key]
        return self._known[key, forms]

    def _priced(self, graph: Graph) -> list[tuple[str, float]]:
        """Where each kernel of a graph comes from, and its seconds."""
        return [
            (k.loc, seconds / (self._direct if k.loc.startswith(_DIRECT) else 1.0))
            for k, seconds in priced_kernels(graph, self._planner)
        ]


def _key(region: ConvRegion) -> tuple[Any, ...]:
    """What a region computes, whatever its values are called."""
    numbers: dict[Value, int] = {}
    parts: list[Any] = []
    for node in region.nodes:
        operands = tuple(
            v and (numbers.setdefault(v, len(numbers)), v.type, region.roles[v])
            for v in node.inputs
        )
        results = tuple((numbers.setdefault(v, len(numbers)), v.type) for v in node.outputs)
        parts.append((node.op.name, node.attrs, operands, results))
    shown = tuple((numbers[v], result) for v, result in region.shown.items())
    return (*parts, shown, tuple(region.nodes.index(n) for n in region.convolutions))


# ---- graphs of regions --------------------------------------------------------------------------


def _built(region: ConvRegion, forms: Forms) -> Graph:
    b = GraphBuilder("region")
    form_of = dict(zip(region.convolutions, forms, strict=True))
    new = {v: _outside(b, v, role) for v, role in region.roles.items() if role is not Role.MADE}
    for node in region.nodes:
        inputs = tuple(None if v is None else new[v] for v in node.inputs)
        form = form_of.get(node)
        if form is None:
            loc = _DIRECT if node in form_of else ""
            results = b.add(node.op, inputs, node.attrs, loc=loc)
        else:
            results = with_form(b, node, inputs, None, form)
        new.update(zip(node.outputs, results, strict=True))
    shown = region.shown.items()
    return b.finish([new[v] if result else _pool(b, new[v], _READ) for v, result in shown])


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
    attrs = OPS["max_pool"].attrs(window, one, zero, zero, one)
    return b.add(OPS["max_pool"], [value], attrs, loc=_POOL)[0]


def with_form(
    b: GraphBuilder, node: Node, inputs: Inputs, weights: Array | None, form: Form
) -> tuple[Value, ...]:
    """Adds what computes the convolution `node` of `inputs` in `form`, with transformed weights;
    None: a constant of any contents."""
    image, conv = inputs[0], conv_of(node)
    assert image is not None
    assert conv is not None
    type_ = conv.weights_type(form)
    if weights is None:
        u = unread(b, type_)
    else:
        source = node.inputs[1]
        assert source is not None
        u = b.constant(weights, source.name, F32)
    (v,) = express(b, input_transform(conv, form, image.type), image)
    (m,) = express(b, products(conv, form, v.type, u.type), v, u)
    bias = inputs[2] if len(inputs) > 2 else None
    shift = None if bias is None else bias.type
    return express(b, output_transform(conv, form, m.type, shift), m, bias)


# ---- what forms do ------------------------------------------------------------------------------


@record
class FormWork:
    """Multiply-adds of the products, and additions and multiplications of the transforms; bytes of
    transformed weights, and of what transforms and products exchange."""

    products: int
    sums: int
    weights: int
    exchanged: int


def form_work(conv: Conv, form: Form) -> FormWork:
    """What a form of a convolution does at each run; unknown numbers of images count as one."""
    images, axes, facts = as_int(conv.images) or 1, conv.axes, facts_of(conv, form)
    tiles, pieces = images * prod(f.tiles for f in facts), prod(f.pieces for f in facts)
    spread = tiles * pieces * prod(a.starts for a in axes) * conv.channels
    gathered = tiles * prod(a.turns for a in axes) * conv.filters
    terms = pieces * (conv.channels // conv.groups)
    inward = outward = 0
    for n, own in enumerate(facts):
        before, after = form[:n], points(form[n + 1 :])
        inward += own.inward * points(before) * after
        outward += own.outward * prod(f.tile for f in before) * after
    return FormWork(
        points(form) * gathered * terms,
        spread * inward + gathered * outward,
        4 * points(form) * prod(a.filters for a in axes) * terms * conv.filters,
        4 * points(form) * (spread + gathered),
    )
