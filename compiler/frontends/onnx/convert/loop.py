"""Converter of Loop.

    y = Loop(n, c, x)       ->  loop(n, c, x), where an iteration keeps the rank of x
    y : f32[1], x : f32[]   ->  loop(n, c, reshape(x)): one element has the rank of trips
    y : f32[1, k], x : f32[k]
                            ->  if n > 0 and c: x' = body(x) ; loop(n - 1, c', x')  else: x

A value has one rank.  So the first trips are unrolled until an iteration keeps the ranks of all
carried values.
"""

import itertools
from collections.abc import Sequence
from functools import reduce

import numpy as np
import onnx
from tcc.errors import UserError
from tcc.frontends.emit import concat, constant, emit_all, full, stack
from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.onnx.convert.bodies import (
    Body,
    Outside,
    import_body,
    inlined,
    is_single,
    of_rank,
)
from tcc.frontends.onnx.convert.control import choose
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.scope import are_among
from tcc.frozen import frozen
from tcc.ir.index import Index, as_int, const, maximum
from tcc.ir.index.compare import is_less
from tcc.ir.lists import joined
from tcc.ir.types import BOOL, I64, TensorType, element_count
from tcc.known import all_known
from tcc.ops.shapes import Shape
from tcc.zipped import zip_equal

# The most trips that are unrolled: the first number if each of them certainly runs, the second if
# some may not run.
_MOST_WRITTEN = 8
_MOST_BRANCHES = 4
# After this many imports of a body, its one-element values may no longer change their ranks.
_MOST_CHANGES = 3


@frozen
class _LoopState:
    """The remainder of a Loop, after its first trips are unrolled.

    At most `trips` trips follow, with the loop-carried values `carried`. The first of them runs
    only if `condition` is true. `rows` has the scan outputs of each unrolled trip.
    """

    proto: onnx.GraphProto
    trips: Operand | None
    condition: Operand | None
    carried: Sequence[Operand]
    rows: tuple[Sequence[Operand], ...] = ()

    @property
    def written(self) -> int:
        """The number of unrolled trips."""
        return len(self.rows)


def _loop(ctx: NodeContext) -> Results:
    if ctx.optional(1):
        ctx.truth(ctx.input(1))
    trips, condition = (o and o.reshape(()) for o in (ctx.optional(0), ctx.optional(1)))
    carried = [ctx.input(n) for n in range(2, len(ctx.inputs))]
    proto = ctx.graph("body")
    if len(proto.input) != len(ctx.inputs):
        raise Refusal(f"the body has {len(proto.input)} inputs; {len(ctx.inputs)} are due")
    return _repeated(ctx, _LoopState(proto, trips, condition, carried))


def _repeated(ctx: NodeContext, loop: _LoopState) -> Sequence[Operand]:
    """Returns the results of the remaining trips."""
    symbols, begins = set(ctx.session.symbols), _known_begin(ctx, loop)
    carried_types = [operand.type for operand in loop.carried]
    if begins is False and loop.rows:
        return _ended(loop, carried_types, symbols)
    body, steady = _fixed_point(ctx, loop, symbols)
    if begins is False:
        return _ended(loop, [*carried_types, *body.types[1 + len(carried_types) :]], symbols)
    if steady:
        return _as_loop(ctx, loop, body, symbols)
    if loop.written == (_MOST_WRITTEN if begins else _MOST_BRANCHES):
        raise _unsteady(loop, body)
    if begins:
        return _repeated(ctx, _after_trip(ctx, loop))
    branches = (
        lambda inner: _repeated(inner, _after_trip(inner, loop)),
        lambda inner: _ended(loop, body.types[1:], symbols),
    )
    demand = f"a loop that ends before trip {loop.written + 1} leaves a value of another rank"
    return choose(ctx, _begins(ctx, loop), branches, demand)


def _known_begin(ctx: NodeContext, loop: _LoopState) -> bool | None:
    """True or False if the import knows that another trip does or does not run, else None."""
    truths = [ctx.truth(loop.condition)] if loop.condition else []
    if loop.trips:
        count = loop.trips.index_elements
        truths.append(None if count is None else is_less(const(0), count.item()))
    return False if False in truths else None if None in truths else True


def _begins(ctx: NodeContext, loop: _LoopState) -> Operand:
    """Returns the condition that another trip runs."""
    tests = [loop.condition] if loop.condition and ctx.truth(loop.condition) is None else []
    if loop.trips:
        tests.append(loop.trips.emit("min", 1).equal(1))
    return reduce(lambda a, b: a.emit("and", b), tests)


def _after_trip(ctx: NodeContext, loop: _LoopState) -> _LoopState:
    """Unrolls one trip; returns the remainder of the loop."""
    heads = [
        constant(np.full(type.static_shape, value, type.dtype.carrier))
        for type, value in zip_equal(_head_types(loop.proto), (loop.written, True))
    ]
    outputs = inlined(ctx, loop.proto, "body", [*heads, *loop.carried])
    count = 1 + len(loop.carried)
    trips = loop.trips and loop.trips.sub(1)
    condition, carried = outputs[0].reshape(()), outputs[1:count]
    return _LoopState(loop.proto, trips, condition, carried, (*loop.rows, outputs[count:]))


def _ended(loop: _LoopState, types: Sequence[TensorType], symbols: set[str]) -> Sequence[Operand]:
    """Returns the results if no further trip runs.

    A value of one element gets the rank that it would have after a trip; `types` are the types of a
    trip's results. Without rows, the result has size 0 along each axis whose size does not follow
    from `symbols`.
    """
    count = len(loop.carried)
    pairs = zip(loop.carried, types, strict=False)
    carried = [of_rank(operand, type.rank) for operand, type in pairs]
    if loop.rows:
        return [*carried, *_written_rows(loop)]
    shapes = ((d if are_among((d,), symbols) else 0 for d in t.shape) for t in types[count:])
    rows = zip_equal(types[count:], shapes)
    return [*carried, *(full(0, t.dtype, (0, *shape)) for t, shape in rows)]


def _written_rows(loop: _LoopState) -> list[Operand]:
    """Returns the rows of the unrolled trips, each in the shape of the first trip's row."""
    return [stack([_like(row, rows[0].shape) for row in rows], 0) for rows in zip_equal(*loop.rows)]


def _like(rows: Operand, shape: Shape) -> Operand:
    """Reshapes the rows of a trip to `shape`, the shape of the first trip's rows."""
    surplus = as_int(element_count(rows.shape) - element_count(shape))
    if surplus:
        raise Refusal(f"its rows change from {TensorType(rows.dtype, shape)!r} to {rows.type!r}")
    return rows.reshape(shape)


def _as_loop(
    ctx: NodeContext, loop: _LoopState, body: Body, symbols: set[str]
) -> Sequence[Operand]:
    """Emits a loop whose iterations keep the ranks of the carried values; returns its results."""
    count, names = len(loop.carried), ctx.node.output
    length = _trip_count(ctx, loop, body)
    # The sizes of a carried value after the loop may differ from the sizes of its last row, so the
    # rows get symbols of their own.
    outside, around_rows = Outside(ctx, symbols), Outside(ctx, symbols)
    inside = [value.type for value in body.graph.inputs[2:]]
    types = [outside.joined(t, t, name) for t, name in zip(inside, names, strict=False)]
    for name, type in zip_equal(names[count:], body.types[1 + count :]):
        row = around_rows.joined(type, type, name or "rows")
        length = ctx.session.fresh_symbol(f"{name or 'rows'}.rows") if length is None else length
        types.append(TensorType(row.dtype, (length, *row.shape)))
    start = [of_rank(o, t.rank) for o, t in zip_equal(loop.carried, inside)]
    results = emit_all(
        "loop", [loop.trips, loop.condition, *start], body=body.graph, types=tuple(types)
    )
    if not loop.rows:
        return results
    later = zip_equal(_written_rows(loop), results[count:])
    rows = (concat([a, _like(b, (b.shape[0], *a.shape[1:]))], 0) for a, b in later)
    return [*results[:count], *rows]


def _head_types(proto: onnx.GraphProto) -> list[TensorType]:
    """Returns the types of the trip number and the condition.

    They are scalars, or have one axis if the body declares it.
    """
    return [
        TensorType(dtype, (const(1),) * min(1, len(value.type.tensor_type.shape.dim)))
        for dtype, value in zip((I64, BOOL), proto.input, strict=False)
    ]


def _fixed_point(ctx: NodeContext, loop: _LoopState, symbols: set[str]) -> tuple[Body, bool]:
    """Returns the body for types of the carried values that an iteration does not change, and True.

    Returns False with the last body if an iteration changes a rank.

    The body is imported until the types agree before and after it. Dimensions that an import
    changes are symbols in the next import. Dimensions that are equal before the iteration and equal
    after it share one symbol; the next import has to confirm that they stay equal.

    A carried value of one element takes the rank that the body gives it; after `_MOST_CHANGES`
    imports it is reshaped to the rank that the first import gave. Rows of one element are always
    reshaped to the rank of the first import. The ranks of all other outputs must not differ from
    the first import.
    """
    heads = _head_types(loop.proto)
    types = tuple(operand.type for operand in loop.carried)
    names = [declared.name for declared in loop.proto.input[2:]]
    count = 1 + len(types)
    carried_symbols: set[Index] = set()
    first: list[int] = []
    drawn = ctx.session.drawn
    for number in itertools.count():
        ctx.session.drawn = drawn.copy()  # all imports of the body use the same random streams
        body = import_body(
            ctx,
            loop.proto,
            "body",
            [*heads, *types],
            symbols,
            condition=heads[1],
            due=[BOOL, *(t.dtype for t in types)],
            ranks=first if number >= _MOST_CHANGES else [*(None,) * count, *first[count:]],
            first_trip=loop.written,
        )
        if not count <= 1 + len(ctx.node.output) == len(body.types):
            raise Refusal("the body's outputs do not match the carried values and the node's")
        symbol_of: dict[tuple[Index, Index], Index] = {}
        wider = all_known(
            _widened(ctx, old, new, name, carried_symbols, symbol_of)
            for old, new, name in zip_equal(types, body.types[1:count], names)
        )
        first = first or [type.rank for type in body.types]
        ranks = zip_equal(body.types, first)
        if wider is None or any(t.rank != rank and not is_single(t) for t, rank in ranks):
            break
        if wider == types:
            return body, True
        types = wider
    return body, False


def _widened(
    ctx: NodeContext,
    old: TensorType,
    new: TensorType,
    name: str,
    carried_symbols: set[Index],
    symbol_of: dict[tuple[Index, Index], Index],
) -> TensorType | None:
    """Returns the type `old` with symbols for sizes that differ in `new`.

    Returns None if the ranks differ and the value has more than one element. New symbols are added
    to `carried_symbols`. `symbol_of` maps a pair of sizes, before and after an iteration, to its
    symbol. If dimensions of one symbol change to different sizes, only the first pair keeps the
    symbol.
    """
    dtype = joined(old.dtype, new.dtype)
    if dtype is None:
        raise Refusal(f"the carried value '{name}' changes from {old!r} to {new!r}")
    if old.rank != new.rank:
        return TensorType(dtype, new.shape) if is_single(old) and is_single(new) else None
    dims = []
    for axis, (x, y) in enumerate(zip_equal(old.shape, new.shape)):
        if x is y and x not in carried_symbols:
            dims.append(x)
            continue
        if (x, y) not in symbol_of:
            keeps = x in carried_symbols and x not in symbol_of.values()
            symbol_of[x, y] = x if keeps else ctx.session.fresh_symbol(f"{name}.{axis}.carried")
            carried_symbols.add(symbol_of[x, y])
        dims.append(symbol_of[x, y])
    return TensorType(dtype, tuple(dims))


def _unsteady(loop: _LoopState, body: Body) -> UserError:
    names = (declared.name for declared in loop.proto.input[2:])
    triples = zip(names, loop.carried, body.types[1:], strict=False)
    changes = (f"'{n}' from {o.type!r} to {t!r}" for n, o, t in triples if o.rank != t.rank)
    return Refusal(
        f"trip {loop.written + 1} still changes the rank of {', '.join(changes)}",
        f"a value has one rank after at most {loop.written} trips; let the loop keep it",
    )


def _trip_count(ctx: NodeContext, loop: _LoopState, body: Body) -> Index | None:
    """Returns the number of iterations if only the trip count ends the loop, else None."""
    if not loop.trips or loop.trips.index_elements is None:
        return None
    begins = not loop.condition or ctx.truth(loop.condition) is True
    keeps = ctx.truth(body.outputs[0]) is True or (body.graph.outputs[0] is body.graph.inputs[1])
    return maximum(loop.trips.index_elements.item(), 0) if begins and keeps else None


CONVERTERS: Converters = {"Loop": _loop}
