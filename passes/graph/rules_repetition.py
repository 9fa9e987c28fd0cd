"""Rules that move work in front of an expand, where it has fewer elements.

    %e = expand(%k) {shape=(2, 4, n, 64)} ; %s = mul(%e, %c)
      ->  %s = mul(%k, %c) ; %e = expand(%s) {shape=(2, 4, n, 64)}

An example is attention whose heads share keys: exports repeat the keys, then transpose and scale
them.  Behind these rules, readers of a repeated value read the value itself (`fuse/partition.py`).
"""

from collections.abc import Sequence

from tcc.ir.graph import Node, Value
from tcc.ir.graph.rewrite import Replacement, RewriteSite, Rule
from tcc.ir.index import Index, const
from tcc.ir.op import Trait
from tcc.ir.types import element_count
from tcc.passes.graph.emit import emit


def _copies(site: RewriteSite, number: int) -> list[Node]:
    """Returns the nodes from operand `number` back to the expand that repeats elements.

    All nodes between are reshapes.  Returns an empty list if there is no such expand.
    """
    node, copies = site.producer(number), list[Node]()
    while node is not None and node.op.name in ("reshape", "expand"):
        copies.append(node)
        if node.op.name == "expand":
            return copies
        node = site.builder.producer(node.inputs[0])
    return []


def _elementwise(site: RewriteSite) -> Replacement:
    """Returns expand(f(x, c)) in place of f(expand(x), c), for a scalar c or without one."""
    node, b = site.node, site.builder
    if Trait.ELEMENTWISE not in node.op.traits or len(node.outputs) != 1:
        return None
    for number, value in enumerate(site.inputs):
        copies = _copies(site, number)
        x = copies[-1].inputs[0] if copies else None
        types = [v.type for n, v in enumerate(site.inputs) if v is not None and n != number]
        if x is None or value is None or node.result.rank != value.rank:
            continue
        if all(element_count(t.shape) is const(1) and t.rank <= x.rank for t in types):
            inputs = [x if n == number else v for n, v in enumerate(site.inputs)]
            (y,) = b.add(node.op, inputs, node.attrs)
            for copy in reversed(copies):
                (y,) = b.add(copy.op, [y], copy.attrs)
            return (y,)
    return None


def _transposed(site: RewriteSite) -> Value | None:
    """Returns a repeated transpose in place of a transpose of a repeated value."""
    copies = _copies(site, 0)
    x = copies[-1].inputs[0] if copies else None
    if x is None or len(copies) > 2:
        return None
    b, repeated = site.builder, copies[-1].outputs[0].shape
    merged = _merged(repeated, copies[0].outputs[0].shape)
    if merged is None:
        return None
    perm = tuple(axis for p in site.node.attrs.perm for axis in merged[p])
    ones = (const(1),) * (len(repeated) - x.rank)
    y = emit(b, "reshape", x, shape=(*ones, *x.shape))
    y = emit(b, "transpose", y, perm=perm)
    y = emit(b, "expand", y, shape=tuple(repeated[p] for p in perm))
    return emit(b, "reshape", y, shape=site.node.result.shape)


def _merged(before: Sequence[Index], after: Sequence[Index]) -> list[list[int]] | None:
    """Returns, for each axis of `after`, the neighbouring axes of `before` that it merges.

    Returns None if a reshape from `before` to `after` does more than merge axes.
    """
    merged, axis = list[list[int]](), 0
    for size in after:
        first, count = axis, const(1)
        while axis < len(before) and (axis == first or count is not size):
            count, axis = count * before[axis], axis + 1
        if count is not size or axis == first:
            return None
        merged.append([*range(first, axis)])
    return merged if axis == len(before) else None


REPETITION = (
    Rule("work on a repeated value", _elementwise),
    Rule("transpose of a repeated value", _transposed, "transpose"),
)
