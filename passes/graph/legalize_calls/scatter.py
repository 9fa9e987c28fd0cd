"""Scatters: every element of the result looks for the updates that are meant for it.

    none      own = max(j) (index[j] == i ? j : -1)      y[i] = own < 0 ? x[i] : update[own]
    add, ...  y[i] = x[i] + sum(j) (index[j] == i ? update[j] : 0)

That is work of the result's size times the number of updates along the axis, of which a device
does billions in a moment; no two units write to one place, so that results do not depend on who is
first.  Of several updates of one place the last one wins.  An index outside its axis is the model's
fault, and its update is dropped.
"""

from collections.abc import Callable, Sequence

from tcc.ir.expr import MONOIDS, Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, apply, cast, index_value, literal
from tcc.ir.graph import GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement
from tcc.ir.index import Index, Indices, const
from tcc.ir.types import BOOL, I32, I64, DType, DTypeKind, TensorType, element_count
from tcc.ops.data.indexing import Binding
from tcc.ops.formula import choose, widened
from tcc.ops.operands import clamped, guard, inside, wrapped
from tcc.ops.shapes import replaced
from tcc.passes.graph.emit import emit, express

_MONOIDS = {"add": ("sum", "add"), "mul": ("prod", "mul"), "max": ("max",) * 2, "min": ("min",) * 2}

# Whether the update of a number is meant for a place of the result, and the update itself; where
# data decide the number, what binds it follows.
Meant = Callable[[Indices, Index], Scalar]
Update = Callable[..., Scalar]


def express_scatter_elements(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    """Operand 0 with single elements replaced or combined; None where its type has no such
    combination."""
    x, indices, updates = _three(inputs)
    if x.type.dtype is BOOL and node.attrs.reduction != "none":
        return None
    expr = _elements(x.type, indices.type, updates.type, node.attrs.axis, node.attrs.reduction)
    return express(b, expr, x, indices, updates)


def express_scatter_nd(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    """Operand 0 with slices replaced or combined; None where its type has no such combination."""
    x, indices, updates = _three(inputs)
    if x.type.dtype is BOOL and node.attrs.reduction != "none":
        return None
    depth = indices.type.rank - 1
    count = element_count(indices.type.shape[:-1])
    tuples, slices = (
        emit(b, "reshape", v, shape=(count, *v.type.shape[depth:])) for v in (indices, updates)
    )
    expr = _slices(x.type, tuples.type, slices.type, node.attrs.reduction)
    return express(b, expr, x, tuples, slices)


def _three(inputs: Inputs) -> tuple[Value, Value, Value]:
    x, indices, updates = inputs
    assert x is not None
    assert indices is not None
    assert updates is not None
    return x, indices, updates


def _elements(
    x: TensorType, indices: TensorType, updates: TensorType, axis: int, reduction: str
) -> Expr:
    b = ExprBuilder(x, indices, updates)
    size, count = x.shape[axis], indices.shape[axis]
    # The updates may end before x does along other axes: no index is so low.
    lowest = -(1 << (indices.dtype.bits - 1))

    def meant(at: Indices, number: Index) -> Scalar:
        where = replaced(at, axis, number)
        index = wrapped(b.read(1, *where, fill=lowest), size)
        return apply("eq", index, index_value(at[axis], I64))

    def update(at: Indices, number: Index, *bindings: Binding) -> Scalar:
        return b.read(2, *replaced(at, axis, number), fill=0, indirect=bindings)

    return _scattered(b, x, count, x.rank, reduction, meant, update)


def _slices(x: TensorType, indices: TensorType, updates: TensorType, reduction: str) -> Expr:
    b = ExprBuilder(x, indices, updates)
    count, axes = indices.shape[0], range(x.rank + 1 - updates.rank)
    (tuple_,) = b.iters(count)
    flat: Scalar = literal(0, I64)
    valid: Scalar = literal(True, BOOL)
    for n in axes:  # row-major
        index = wrapped(b.read(1, tuple_, n), x.shape[n])
        size = index_value(x.shape[n], I64)
        flat = apply("add", apply("mul", flat, size), index)
        valid = apply("and", valid, inside(index, x.shape[n]))
    places = b.stage((tuple_,), choose(valid, flat, -1))

    def meant(at: Indices, number: Index) -> Scalar:
        place = const(0)
        for n in axes:
            place = place * x.shape[n] + at[n]
        return apply("eq", b.read(places, number), index_value(place, I64))

    def update(at: Indices, number: Index, *bindings: Binding) -> Scalar:
        fill = guard(count) if bindings else None
        return b.read(2, number, *at[len(axes) :], fill=fill, indirect=bindings)

    return _scattered(b, x, count, len(axes), reduction, meant, update)


def _scattered(
    b: ExprBuilder,
    x: TensorType,
    count: Index,
    decided: int,
    reduction: str,
    meant: Meant,
    update: Update,
) -> Expr:
    """The result; `decided` of its axes decide which updates are meant for an element."""
    if reduction == "none":
        own = _last(b, x.shape[:decided], count, meant)
        at = b.point(x)
        last = b.read(own, *at[:decided])
        number, binding = b.position(clamped(last, count), count)
        found = update(at, number, binding)
        return b.finish(at, choose(apply("ge", last, literal(0, I64)), found, b.read(0, *at)))
    monoid, function = _MONOIDS[reduction]
    dtype = _exact(x.dtype)
    (identity,) = MONOIDS[monoid].identity((dtype,))
    at = b.point(x)
    (number,) = b.iters(count)
    term = choose(meant(at, number), cast(update(at, number), dtype), identity)
    total = b.stage(at, term, over=(number,), monoid=monoid)
    at = b.point(x)
    old, new = cast(b.read(0, *at), dtype), b.read(total, *at)
    both: Scalar = apply(function, old, new)
    if reduction == "add":
        # minus zero plus nothing stays minus zero
        both = choose(apply("eq", new, literal(0, dtype)), old, both)
    return b.finish(at, cast(both, x.dtype))


def _last(b: ExprBuilder, shape: Sequence[Index], count: Index, meant: Meant) -> StageRef:
    """The number of the last update that is meant for a place, negative where there is none."""
    at = b.iters(*shape)
    (number,) = b.iters(count)
    term = choose(meant(at, number), index_value(number, I64), -1)
    return b.stage(at, term, over=(number,), monoid="max")


def _exact(dtype: DType) -> DType:
    """The type to combine in: integers wrap at the end as they would at every step."""
    short = dtype.kind in (DTypeKind.INT, DTypeKind.UINT) and dtype.bits < 32
    return I32 if short else widened(dtype)
