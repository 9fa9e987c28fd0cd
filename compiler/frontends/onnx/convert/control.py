"""Converters of If, Loop and Scan: bodies become graphs, known conditions choose at once."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import onnx
from tcc.errors import UserError
from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.onnx.convert.lists import coerced
from tcc.frontends.scope import Operand, Scope, are_among
from tcc.ir.graph import Graph
from tcc.ir.index import Index, as_int, maximum
from tcc.ir.lists import joined
from tcc.ir.types import BOOL, I64, DType, TensorType
from tcc.ops.control import drop_axis
from tcc.record import record


@record
class _Body:
    """An imported body: its graph, and its outputs as the import knows them."""

    graph: Graph
    outputs: tuple[Operand, ...]

    @property
    def types(self) -> tuple[TensorType, ...]:
        return tuple(value.type for value in self.graph.outputs)


def _import_body(
    ctx: NodeContext,
    proto: onnx.GraphProto,
    name: str,
    types: Sequence[TensorType],
    known: set[str],
    *,
    ranks: Sequence[int] | None = None,
    due: Sequence[DType] = (),
    kept: Sequence[TensorType] = (),
) -> _Body:
    """A body for inputs of `types`, with the symbols `known` around it; outputs of one element get
    the rank that `ranks` says.  `due` are the element types of the first outputs: what may be
    absent stays an optional.  `kept` are the types of those whose sizes every run checks."""
    scope = ctx.body_scope(name, known)
    if len(proto.input) != len(types):
        raise ctx.fail(f"the body {name} has {len(proto.input)} inputs; {len(types)} are due")
    for declared, type in zip(proto.input, types, strict=True):
        value = scope.builder.input(declared.name or name, type)
        scope.define(declared.name, scope.wrap(value), ctx.loc)
    outputs = _run_body(ctx, proto, scope)
    here = ctx.inside(scope)
    carried = zip(outputs, (*due, *(o.dtype for o in outputs[len(due) :])), strict=False)
    outputs = tuple(coerced(here, operand, dtype) for operand, dtype in carried)
    states = (_kept(here, o, type) for o, type in zip(outputs, kept, strict=False))
    outputs = (*states, *outputs[len(kept) :])
    if ranks is not None:
        outputs = tuple(
            o if o.rank == rank else here.reshape(o, (1,) * rank)
            for o, rank in zip(outputs, ranks, strict=True)
        )
    return _Body(scope.builder.finish(o.value for o in outputs), outputs)


def _kept(ctx: NodeContext, state: Operand, type: TensorType) -> Operand:
    """The state after an iteration, of the sizes before: every run checks those that are open."""
    for axis, size in enumerate(type.shape if state.rank == type.rank else ()):
        if state.shape[axis].terms or size.terms:
            state = ctx.sized(state, axis, size, "an iteration keeps the sizes of a state")
    return state


def _run_body(ctx: NodeContext, proto: onnx.GraphProto, scope: Scope) -> tuple[Operand, ...]:
    scope.define_initializers(proto)
    scope.pending, scope.ends = deque(proto.node), declared_ranks(proto)
    ctx.session.run_nodes(scope)
    return tuple(_end(ctx, scope, declared.name) for declared in proto.output)


def declared_ranks(proto: onnx.GraphProto) -> dict[str, int | None]:
    """The rank of each result that the graph declares one for."""
    types = {value.name: value.type.tensor_type for value in proto.output}
    return {n: len(t.shape.dim) if t.HasField("shape") else None for n, t in types.items()}


def _end(ctx: NodeContext, scope: Scope, name: str) -> Operand:
    try:
        operand = scope.find(name)
    except KeyError:
        operand = None
    if operand is None:
        raise ctx.fail(f"the body does not define its output '{name[:200]}'")
    return operand


@dataclass(slots=True)
class _Outside:
    """Types of a node's results.  Sizes that only its bodies know become new symbols, one for all
    dimensions that are equal whichever way the run goes; `known` are the symbols around it."""

    ctx: NodeContext
    known: set[str]
    made: dict[tuple[Index, Index], Index] = field(default_factory=dict)

    def joined(self, a: TensorType, b: TensorType, name: str) -> TensorType:
        """The type of a result that is of type `a` or `b`."""
        dtype = joined(a.dtype, b.dtype)
        if dtype is None or a.rank != b.rank:
            raise self.ctx.fail(
                f"'{name}' has type {a!r} one way and {b!r} the other",
                "fix the sizes that decide which way it goes (--input NAME=SHAPE)",
            )
        dims = enumerate(zip(a.shape, b.shape, strict=True))
        return TensorType(dtype, tuple(self._dim(x, y, f"{name}.{n}") for n, (x, y) in dims))

    def _dim(self, x: Index, y: Index, name: str) -> Index:
        if x is y and are_among((x,), self.known):
            return x
        if (x, y) not in self.made:
            self.made[x, y] = self.ctx.session.fresh_symbol(name)
        return self.made[x, y]


# ---- If ------------------------------------------------------------------------------------------


def _if(ctx: NodeContext) -> Results:
    condition = ctx.input(0)
    known = ctx.truth(condition)
    if known is None and condition.equality:
        known = dict(ctx.scope.ways).get(condition.equality)
    if known is not None:
        return _inlined(ctx, "then_branch" if known else "else_branch")
    symbols = set(ctx.session.symbols)
    then, otherwise = _branches(ctx, symbols)
    if not len(then.types) == len(otherwise.types) == len(ctx.node.output):
        raise ctx.fail("the branches differ in their number of outputs")
    if _single_elements_differ(then, otherwise):
        # A value has one rank, and one element broadcasts alike under any.
        pairs = zip(then.types, otherwise.types, strict=True)
        then, otherwise = _branches(ctx, symbols, [max(a.rank, b.rank) for a, b in pairs])
    ranks = [tuple(type.rank for type in branch.types) for branch in (then, otherwise)]
    if ranks[0] != ranks[1]:
        return _two_ways(ctx, condition, symbols)
    return _joined(ctx, condition, (then, otherwise), ctx.node.output, symbols)


def _joined(
    ctx: NodeContext,
    condition: Operand,
    bodies: Iterable[_Body],
    names: Sequence[str],
    known: set[str],
) -> Sequence[Operand]:
    """The results of two bodies of which one runs; `known` are the symbols around them."""
    then, otherwise = bodies
    outside = _Outside(ctx, known)
    types = tuple(
        outside.joined(a, b, name)
        for a, b, name in zip(then.types, otherwise.types, names, strict=True)
    )
    return ctx.emit_all(
        "if",
        [ctx.reshape(condition, ())],
        then=then.graph,
        otherwise=otherwise.graph,
        types=types,
    )


_MOST_WAYS = 4  # in each other: all that follows is there twice for each


def _two_ways(ctx: NodeContext, condition: Operand, known: set[str]) -> Results:
    """An If whose branches give results of other ranks ("squeeze the axis if it is 1").

    A value has one rank, so all that follows is imported in each branch.  Where it works in one
    branch only, every run is demanded to go that way.
    """
    scope, session, equality = ctx.scope, ctx.session, condition.equality
    depth, calls = session.depth, session.calls
    names = [name for name in scope.ends if name not in scope.names]
    ways: dict[str, _Body] = {}
    for branch in ("then_branch", "else_branch") if len(scope.ways) < _MOST_WAYS else ():
        try:
            ways[branch] = _whole_way(ctx, branch, names, equality, known)
        except UserError:
            session.depth, session.calls = depth, calls
    if len(ways) == 2:
        scope.pending.clear()
        made = _joined(ctx, condition, ways.values(), names, known)
        results = dict(zip(names, made, strict=True))
        for name, result in results.items():
            if name not in ctx.node.output:
                scope.define(name, result, ctx.loc)
        # Nothing is left that reads the other results of the node.
        return [results.get(name, condition) for name in ctx.node.output]
    if equality is None:
        raise ctx.fail("its branches give results of other ranks, and what follows takes only one")
    taken = next(iter(ways), "then_branch")
    left, right = equality
    if taken == "else_branch":
        gap = maximum(left - right, right - left)
        left, right = gap, maximum(gap, 1)
    ctx.require(left, right, "the other branch gives a result of another rank")
    return _inlined(ctx, taken)


def _whole_way(
    ctx: NodeContext,
    branch: str,
    names: Sequence[str],
    equality: tuple[Index, Index] | None,
    known: set[str],
) -> _Body:
    """The branch and all nodes that follow, with the results `names` of the graph around it."""
    outer, scope = ctx.scope, ctx.body_scope(branch, known)
    scope.ways = (*scope.ways, (equality, branch == "then_branch"))
    for name, operand in zip(ctx.node.output, _inlined(ctx.inside(scope), branch), strict=False):
        scope.define(name, operand, ctx.loc)
    scope.pending, scope.ends = outer.pending.copy(), outer.ends
    ctx.session.run_nodes(scope)
    found = tuple(_end(ctx, scope, name) for name in names)
    for name, operand in zip(names, found, strict=True):
        if outer.ends[name] not in (operand.rank, None):
            raise ctx.fail(f"'{name}' is declared to have {outer.ends[name]} axes")
    return _Body(scope.builder.finish(operand.value for operand in found), found)


def _branches(
    ctx: NodeContext, known: set[str], ranks: Sequence[int] | None = None
) -> tuple[_Body, _Body]:
    def branch(name: str) -> _Body:
        return _import_body(ctx, ctx.graph(name), name, (), known, ranks=ranks)

    return branch("then_branch"), branch("else_branch")


def _single_elements_differ(then: _Body, otherwise: _Body) -> bool:
    """Whether branches differ in ranks, but only of results that have one element in both."""
    differing = [
        (a, b) for a, b in zip(then.types, otherwise.types, strict=True) if a.rank != b.rank
    ]
    ones = [all(as_int(dim) == 1 for dim in (*a.shape, *b.shape)) for a, b in differing]
    return bool(ones) and all(ones)


def _inlined(ctx: NodeContext, name: str) -> Sequence[Operand]:
    scope = Scope(ctx.session, ctx.scope.builder, ctx.scope.opsets, ctx.scope, f"{ctx.loc}/{name}/")
    return _run_body(ctx, ctx.graph(name), scope)


# ---- Loop ----------------------------------------------------------------------------------------


def _loop(ctx: NodeContext) -> Results:
    proto = ctx.graph("body")
    trips, condition = ctx.optional(0), ctx.optional(1)
    carried = [ctx.input(n) for n in range(2, len(ctx.inputs))]
    symbols = set(ctx.session.symbols)
    body = _fixed_point(ctx, proto, [operand.type for operand in carried], symbols)
    if len(body.types) < 1 + len(carried) or len(body.types) - 1 != len(ctx.node.output):
        raise ctx.fail("the body's outputs do not match the carried values and the node's outputs")
    length = _trip_count(ctx, trips, condition, body)
    outside = _Outside(ctx, symbols)
    types = [
        outside.joined(value.type, value.type, name)
        for value, name in zip(body.graph.inputs[2:], ctx.node.output, strict=False)
    ]
    for number in range(len(carried), len(ctx.node.output)):
        name = ctx.node.output[number] or "rows"
        row = outside.joined(body.types[1 + number], body.types[1 + number], name)
        length = ctx.session.fresh_symbol(f"{name}.rows") if length is None else length
        types.append(TensorType(row.dtype, (length, *row.shape)))
    heads = [None if o is None else ctx.reshape(o, ()) for o in (trips, condition)]
    return ctx.emit_all("loop", [*heads, *carried], body=body.graph, types=tuple(types))


def _fixed_point(
    ctx: NodeContext, proto: onnx.GraphProto, carried: Sequence[TensorType], known: set[str]
) -> _Body:
    """The body for types that it keeps: dimensions that an iteration changes become symbols.

    Dimensions that begin equal and that an iteration gives equal sizes share one, which the next
    import of the body has to confirm.
    """
    heads = [TensorType(I64, ()), TensorType(BOOL, ())]
    types = list(carried)
    made: set[Index] = set()
    while True:
        due = [BOOL, *(t.dtype for t in types)]
        body = _import_body(ctx, proto, "body", [*heads, *types], known, due=due)
        results = body.types[1 : 1 + len(types)]
        same: dict[tuple[Index, Index], Index] = {}
        wider = [
            _widened(ctx, own, new, declared.name, made, same)
            for own, new, declared in zip(types, results, proto.input[2:], strict=False)
        ]
        if wider == types[: len(wider)]:
            return body
        types = wider


def _widened(
    ctx: NodeContext,
    own: TensorType,
    new: TensorType,
    name: str,
    made: set[Index],
    same: dict[tuple[Index, Index], Index],
) -> TensorType:
    """`own` with symbols, which are added to `made`, for sizes that differ in `new`.

    `same` holds by the sizes before and after an iteration what stands for them: of those that one
    symbol stood for and that became different, the first keep it.
    """
    dtype = joined(own.dtype, new.dtype)
    if dtype is None or own.rank != new.rank:
        raise ctx.fail(f"the carried value '{name}' changes from {own!r} to {new!r}")
    dims = []
    for axis, (x, y) in enumerate(zip(own.shape, new.shape, strict=True)):
        if x is y and x not in made:
            dims.append(x)
            continue
        if (x, y) not in same:
            kept = x in made and x not in same.values()
            same[x, y] = x if kept else ctx.session.fresh_symbol(f"{name}.{axis}.carried")
            made.add(same[x, y])
        dims.append(same[x, y])
    return TensorType(dtype, tuple(dims))


def _trip_count(
    ctx: NodeContext, trips: Operand | None, condition: Operand | None, body: _Body
) -> Index | None:
    """The number of iterations, where nothing but the trip count ends the loop."""
    if trips is None or trips.known is None:
        return None
    begins = condition is None or ctx.truth(condition) is True
    keeps = ctx.truth(body.outputs[0]) is True or (body.graph.outputs[0] is body.graph.inputs[1])
    return maximum(trips.known.item(), 0) if begins and keeps else None


# ---- Scan ----------------------------------------------------------------------------------------


def _scan(ctx: NodeContext) -> Results:
    if ctx.opset < 9:
        return _scan_of_batch(ctx)
    return _scan_of(ctx, ctx.present())


_LARGEST_BATCH = 64  # a scan of opset 8 is written out for each element


def _scan_of_batch(ctx: NodeContext) -> Results:
    """Opset 8: states and sequences have a leading batch axis, and each element has its scan."""
    operands = [ctx.input(n) for n in range(1, len(ctx.inputs))]
    batch = as_int(operands[0].shape[0]) if operands and operands[0].rank else None
    if ctx.optional(0) is not None or batch is None or not 0 < batch <= _LARGEST_BATCH:
        raise ctx.fail(
            f"with opset 8 it needs a batch of 1 to {_LARGEST_BATCH}, and no sequence_lens",
            "export with opset 9 or newer",
        )
    parts = []
    for n in range(batch):
        rows = [ctx.element(o, 0, n) for o in operands]
        parts.append(_scan_of(ctx, rows))
    return [ctx.stack(each, 0) for each in zip(*parts, strict=True)]


def _scan_of(ctx: NodeContext, operands: Sequence[Operand]) -> Sequence[Operand]:
    proto = ctx.graph("body")
    count = ctx.integer("num_scan_inputs")
    states = len(operands) - count
    rows = len(proto.output) - states
    if not 0 < count <= len(operands) or rows < 0:
        raise ctx.fail(f"num_scan_inputs is {count} for {len(operands)} inputs")
    axes = [
        ctx.axis(axis, o.rank)
        for axis, o in zip(_listed(ctx, "scan_input_axes", count), operands[states:], strict=True)
    ]
    backwards = "scan_input_directions" if ctx.opset >= 9 else "directions"
    # The op scans along leading axes; others are brought there, and rows back to theirs.
    sources = [_leading(ctx, o, axis) for o, axis in zip(operands[states:], axes, strict=True)]
    slices = [drop_axis(o.type, 0) for o in sources]
    symbols = set(ctx.session.symbols)
    kept = [o.type for o in operands[:states]]
    body = _import_body(ctx, proto, "body", [*kept, *slices], symbols, kept=kept)
    for name, type in zip(ctx.node.output[states:], body.types[states:], strict=False):
        if not are_among(type.shape, symbols):
            raise ctx.fail(
                f"a row of '{name}' is of type {type!r}, whose size only an iteration knows",
                "export it as a Loop",
            )
    results = ctx.emit_all(
        "scan",
        [*operands[:states], *sources],
        body=body.graph,
        num_scan_inputs=count,
        input_axes=(0,) * count,
        input_reverse=tuple(map(bool, _listed(ctx, backwards, count))),
        output_axes=(0,) * rows,
        output_reverse=tuple(map(bool, _listed(ctx, "scan_output_directions", rows))),
    )
    placed = zip(results[states:], _listed(ctx, "scan_output_axes", rows), strict=True)
    return [*results[:states], *(_placed(ctx, row, axis) for row, axis in placed)]


def _leading(ctx: NodeContext, x: Operand, axis: int) -> Operand:
    return ctx.transpose(x, (axis, *(n for n in range(x.rank) if n != axis)))


def _placed(ctx: NodeContext, x: Operand, axis: int) -> Operand:
    """`x` with its leading axis at `axis`."""
    rest = list(range(1, x.rank))
    rest.insert(ctx.axis(axis, x.rank), 0)
    return ctx.transpose(x, rest)


def _listed(ctx: NodeContext, name: str, count: int) -> tuple[int, ...]:
    values = ctx.integers(name, (0,) * count)
    if len(values) != count:
        raise ctx.fail(f"{name} has {len(values)} entries; {count} are due")
    return values


CONVERTERS: Converters = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}
