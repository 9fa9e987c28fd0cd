"""Evaluates nodes that do not depend on the model's inputs.

    %y = add(%a, %b), both constant        %y constant

A node with an operand that differs by rank is evaluated for every rank.  A node that casts or moves
the elements of a large constant becomes a derived constant: its array is computed when it is read.

Requires nothing.  Establishes that every node whose operands are all constant is folded, in bodies
too.  These nodes are not folded:

- opaque nodes;
- nodes that widen large constants of narrow types;
- nodes whose results are much larger than their operands, such as a broadcast of a weight;
- nodes whose results, all together, are much larger than the model's constants;
- large nodes whose NumPy reference is slow;
- nodes of much work for few results, such as a pooling window of 2^30;
- nodes whose operands the reference rejects: they fail at run time.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from tcc.frozen import field_names
from tcc.ir.graph import (
    Graph,
    GraphBuilder,
    Handle,
    Node,
    Value,
    bodies,
    carrier,
    constant_bytes,
    on_each_rank,
    types_of,
)
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import Index, free_vars
from tcc.ir.op import Array, Arrays, OpSpec, Trait, Types
from tcc.ir.types import TensorType
from tcc.known import all_known
from tcc.ops.effort import FAST, is_laborious
from tcc.zipped import zip_equal

# Results of at most _SMALL bytes are always stored. Larger results are stored under two conditions.
# They take at most _GROWTH times the bytes of their operands, as f32 from i8 weights does. Their
# reference runs in NumPy's own loops; references of windows and `_SLOW` ops loop over elements.
_SMALL = 1 << 20
_GROWTH = 4
# Results of more than _TINY bytes may take _SPARE bytes together, plus _TOTAL times the bytes of
# the constants. Without this limit, a chain of nodes that each grow a little would grow without
# end.
_TINY, _TOTAL, _SPARE = 1 << 12, 16, 64 << 20
# Narrow constants of at least _LARGE elements stay as they are.
_LARGE = 1 << 14
_SLOW = frozenset({"gather_elements", "gather_nd", "pow"})
_FAST = FAST | Trait.REDUCTION | Trait.CONTRACTION


def fold_constants(graph: Graph) -> Graph:
    """Returns `graph` with nodes of constant operands replaced by constants."""
    room = _SPARE + _TOTAL * constant_bytes(graph)

    def visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        nonlocal room
        results = _folded(b, node, inputs, room)
        size = _stored_bytes([value.type for value in results or ()]) or 0
        room -= size * (size > _TINY)
        return results

    return rewritten(graph, visit)


def _folded(b: GraphBuilder, node: Node, inputs: Inputs, room: int) -> Replacement:
    if not node.outputs or Trait.OPAQUE in node.op.traits or bodies(node):
        return None
    handles = all_known(b.handle(v) for v in inputs if v)
    if handles is None or _symbolic(node.attrs) or _widens(node, inputs):
        return None
    operand_types = types_of(inputs)
    if is_laborious(node.op, operand_types, node.attrs):
        return None
    types = node.op.infer(operand_types, node.attrs)
    size = _stored_bytes(types)
    if size is None or not _worth_storing(node.op, size, operand_types, room):
        return None
    if size > _SMALL and len(inputs) == len(types) == 1 and FAST & node.op.traits:
        return [_derived(b, node, handles, types[0])]
    results = on_each_rank([b.arrays(v) for v in inputs], partial(_evaluate, node))
    if results is None or len({tuple(np.shape(a) for a in rank) for rank in results}) > 1:
        return None
    sources = [s for v in inputs for s in b.sources(v)]
    return [
        b.constant_per_rank(
            [carrier(np.asarray(a), t.dtype) for a in arrays], v.name, t.dtype, sources
        )
        for arrays, t, v in zip_equal(zip_equal(*results), types, node.outputs)
    ]


def _derived(b: GraphBuilder, node: Node, operands: Sequence[Handle], type: TensorType) -> Value:
    """Returns the result of an op that rejects no operand; nothing evaluates it here."""

    def make(*arrays: Array) -> Array:
        (result,) = _evaluate(node, arrays) or ()
        return carrier(result, type.dtype)

    derived = b.store.derive(make, f"{node.op.name} {node.attrs!r}", operands)
    return b.constant_handle(derived, type, node.result.name)


def _widens(node: Node, inputs: Inputs) -> bool:
    """Returns True if a node widens a large constant that is stored in a narrow type."""
    narrow = [v.type for v in inputs if v and v.dtype.is_narrow]
    stays_narrow = all(v.dtype.is_narrow for v in node.outputs)
    return not stays_narrow and any((t.count or 0) >= _LARGE for t in narrow)


def _evaluate(node: Node, arrays: Arrays) -> Sequence[Array] | None:
    """Returns the results of a node for operands `arrays`.

    Returns None if the reference rejects a value, for example an index outside its axis, or if
    there is too little memory.
    """
    try:
        with np.errstate(all="ignore"):
            return node.op.reference(arrays, node.attrs)
    except (ValueError, IndexError, ArithmeticError, MemoryError):
        return None


def _stored_bytes(types: Types) -> int | None:
    """Returns the bytes of arrays of the given types; None for a symbolic size."""
    present = [t for t in types if t]
    if any(t.static_shape is None for t in present):
        return None
    return sum((t.count or 0) * int(t.dtype.carrier.itemsize) for t in present)


def _worth_storing(op: OpSpec, size: int, operands: Types, room: int) -> bool:
    """Returns True if results of `size` bytes are small enough to store.

    `operands` are the types of constants.  `room` is the number of bytes that larger results may
    still take.
    """
    if size > max(room, _TINY):
        return False
    if size <= _SMALL:
        return True
    fast = _FAST & op.traits and Trait.WINDOW not in op.traits and op.name not in _SLOW
    return bool(fast) and size <= _GROWTH * (_stored_bytes(operands) or 0)


def _symbolic(item: Any) -> bool:
    """Returns True if a size symbol occurs in `item`: a node's attributes or a part of them."""
    if isinstance(item, Index):
        return bool(free_vars(item))
    if isinstance(item, tuple):
        return any(map(_symbolic, item))
    if isinstance(item, TensorType):
        return any(map(_symbolic, item.shape))
    return any(_symbolic(getattr(item, name)) for name in field_names(item))
