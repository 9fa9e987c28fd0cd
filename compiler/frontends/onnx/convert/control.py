"""Converters of If and Scan: branches become graphs; a constant condition selects one at once."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from tcc.errors import UserError
from tcc.frontends.emit import checked_axis, require, scan, stack
from tcc.frontends.onnx.context import Converters, NodeContext, Results, named
from tcc.frontends.onnx.convert.bodies import (
    Body,
    Outside,
    end,
    finished,
    import_body,
    inlined,
    is_single,
)
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.scope import are_among
from tcc.ir.index import Index, as_int, const, maximum
from tcc.ir.types import I64
from tcc.ops.control import drop_axis
from tcc.zipped import zip_equal

# Writes the nodes of a branch into the context's scope and returns the branch's results.
Branch: TypeAlias = Callable[[NodeContext], Sequence[Operand]]
_NAMES = ("then_branch", "else_branch")

# ---- If ------------------------------------------------------------------------------------------


def _if(ctx: NodeContext, condition: Operand) -> Results:
    truth = ctx.truth(condition)
    if truth is None and condition.equality:
        truth = dict(ctx.scope.ways).get(condition.equality)
    branches = [partial(inlined, proto=ctx.graph(name), name=name) for name in _NAMES]
    if truth is not None:
        return branches[not truth](ctx)
    return choose(ctx, condition, branches)


def choose(
    ctx: NodeContext, condition: Operand, branches: Sequence[Branch], demand: str = ""
) -> Sequence[Operand]:
    """Returns the results of the first branch where the condition holds, else of the second.

    If the branches return results of different ranks, all following nodes are imported in each
    branch. If that import fails in one branch, every run checks that it does not take this branch.
    With a `demand` only the second branch may fail; the text is the reason that the check gives.
    """
    symbols = set(ctx.session.symbols)
    bodies = [_body(ctx, *pair, symbols) for pair in zip_equal(branches, _NAMES)]
    if {len(body.types) for body in bodies} != {len(ctx.node.output)}:
        raise Refusal("the branches differ in their number of outputs")
    pairs = list(zip_equal(*(body.types for body in bodies)))
    if all(a.rank == b.rank or (is_single(a) and is_single(b)) for a, b in pairs):
        if any(a.rank != b.rank for a, b in pairs):
            # A value has one rank. Values of one element broadcast equally with any number of axes.
            ranks = [max(a.rank, b.rank) for a, b in pairs]
            bodies = [_body(ctx, *pair, symbols, ranks) for pair in zip_equal(branches, _NAMES)]
        return _if_node(ctx, condition, bodies, ctx.node.output, symbols)
    return _with_rest_of_graph(ctx, condition, branches, symbols, demand)


def _body(
    ctx: NodeContext, branch: Branch, name: str, symbols: set[str], ranks: Sequence[int | None] = ()
) -> Body:
    scope = ctx.scope.body(name, symbols)
    scope.ends = dict.fromkeys(ctx.node.output)
    with ctx.inside(scope).writing() as inner:
        return finished(inner, branch(inner), ranks)


def _if_node(
    ctx: NodeContext,
    condition: Operand,
    bodies: Sequence[Body],
    names: Sequence[str],
    symbols: set[str],
) -> Sequence[Operand]:
    """Emits an If of two bodies and returns its results; `symbols` are the enclosing symbols."""
    then, otherwise = bodies
    outside = Outside(ctx, symbols)
    types = tuple(
        outside.joined(a, b, name) for a, b, name in zip_equal(then.types, otherwise.types, names)
    )
    return condition.reshape(()).emit_all(
        "if", then=then.graph, otherwise=otherwise.graph, types=types
    )


# At most this many nested branches repeat the nodes behind them: each branch doubles these nodes.
_MOST_WAYS = 4


def _with_rest_of_graph(
    ctx: NodeContext,
    condition: Operand,
    branches: Sequence[Branch],
    symbols: set[str],
    demand: str,
) -> Sequence[Operand]:
    """Imports branches with results of different ranks ("squeeze the axis if it is 1").

    A value has one rank, so all following nodes are imported in each branch. If that succeeds in
    one branch only, every run checks that it takes that branch.
    """
    scope, session, equality = ctx.scope, ctx.session, condition.equality
    depth, calls = session.depth, session.calls
    names = [name for name in scope.ends if name not in scope.names]
    ways: dict[str, Body] = {}
    for name, branch in zip_equal(_NAMES, branches) if len(scope.ways) < _MOST_WAYS else ():
        try:
            ways[name] = _branch_with_rest(ctx, branch, name, names, equality, symbols)
        except UserError:
            if demand and not ways:
                raise
            session.depth, session.calls = depth, calls
    types = [[type.rank for type in way.types] for way in ways.values()]
    if len(ways) == 2 and not (demand and types[0] != types[1]):
        scope.pending.clear()
        joined_results = _if_node(ctx, condition, list(ways.values()), names, symbols)
        results = dict(zip_equal(names, joined_results))
        for name, result in results.items():
            if name not in ctx.node.output:
                scope.define(name, result)
        # The branches contain all following nodes. So only the graph's outputs read results of
        # this node. A result that is no output of the graph is never read: the condition stands
        # for it.
        return [results.get(name, condition) for name in ctx.node.output]
    if equality is None and not ways:
        raise Refusal("its branches give results of other ranks, and what follows takes neither")
    first = next(iter(ways), _NAMES[0]) == _NAMES[0]
    a, b = equality or (_truth_as_size(condition), const(1))
    if not first:
        gap = maximum(a - b, b - a)
        a, b = gap, maximum(gap, 1)
    require(a, b, demand or "the other branch gives a result of another rank")
    return branches[not first](ctx)


def _truth_as_size(condition: Operand) -> Index:
    """Returns a symbol that the run binds: 1 where the condition holds, else 0."""
    return condition.cast(I64).as_size("a condition")


def _branch_with_rest(
    ctx: NodeContext,
    branch: Branch,
    name: str,
    names: Sequence[str],
    equality: tuple[Index, Index] | None,
    symbols: set[str],
) -> Body:
    """Imports a branch and all nodes that follow it, as a body.

    The body returns the results `names` of the outer graph. `equality` has the two sizes that are
    equal if the first branch is taken, or is None.
    """
    outer, scope = ctx.scope, ctx.scope.body(name, symbols)
    scope.ways = (*scope.ways, (equality, name == _NAMES[0]))
    scope.pending, scope.ends = outer.pending.copy(), outer.ends
    with ctx.inside(scope).writing() as inner:
        for output, operand in zip(ctx.node.output, branch(inner), strict=False):
            scope.define(output, operand)
        ctx.session.run_nodes(scope)
        operands = tuple(end(scope, name) for name in names)
        for name, operand in zip_equal(names, operands):
            if outer.ends[name] not in (operand.rank, None):
                raise Refusal(f"'{name}' is declared to have {outer.ends[name]} axes")
        return finished(inner, operands)


# ---- Scan ----------------------------------------------------------------------------------------


def _scan(ctx: NodeContext) -> Results:
    if ctx.opset < 9:
        return _scan_of_batch(ctx)
    return _scan_of(ctx, ctx.present())


# The largest batch of a scan of opset 8, which is unrolled over the elements of the batch.
_LARGEST_BATCH = 64


def _scan_of_batch(ctx: NodeContext) -> Results:
    """Converts Scan of opset 8, whose states and sequences have a leading batch axis.

    Each element of the batch is scanned by itself.
    """
    operands = [ctx.input(n) for n in range(1, len(ctx.inputs))]
    batch = as_int(operands[0].shape[0]) if operands and operands[0].rank else None
    if ctx.optional(0) is not None or batch is None or not 0 < batch <= _LARGEST_BATCH:
        raise Refusal(
            f"with opset 8 it needs a batch of 1 to {_LARGEST_BATCH}, and no sequence_lens",
            "export with opset 9 or newer",
        )
    parts = [_scan_of(ctx, [o.element(0, n) for o in operands]) for n in range(batch)]
    return [stack(element_results, 0) for element_results in zip_equal(*parts)]


def _scan_of(ctx: NodeContext, operands: Sequence[Operand]) -> Sequence[Operand]:
    proto = ctx.graph("body")
    count = ctx.integer("num_scan_inputs")
    states = len(operands) - count
    rows = len(proto.output) - states
    if not 0 < count <= len(operands) or rows < 0:
        raise Refusal(f"num_scan_inputs is {count} for {len(operands)} inputs")
    axes = [
        checked_axis(axis, o.rank)
        for axis, o in zip_equal(_listed(ctx, "scan_input_axes", count), operands[states:])
    ]
    backwards = "scan_input_directions" if ctx.opset >= 9 else "directions"
    # The op scans along leading axes: other axes are moved to the front, and back in the results.
    sources = [o.moved(axis, 0) for o, axis in zip_equal(operands[states:], axes)]
    slices = [drop_axis(o.type, 0) for o in sources]
    symbols = set(ctx.session.symbols)
    state_types = [o.type for o in operands[:states]]
    body = import_body(
        ctx, proto, "body", [*state_types, *slices], symbols, fixed_types=state_types
    )
    for name, type in zip(ctx.node.output[states:], body.types[states:], strict=False):
        if not are_among(type.shape, symbols):
            raise Refusal(
                f"a row of '{name}' is of type {type!r}, whose size only an iteration knows",
                "export it as a Loop",
            )
    results = scan(
        operands[:states],
        sources,
        body.graph,
        [*map(bool, _listed(ctx, backwards, count))],
        [*map(bool, _listed(ctx, "scan_output_directions", rows))],
    )
    placed = zip_equal(results[states:], _listed(ctx, "scan_output_axes", rows))
    return [
        *results[:states],
        *(row.moved(0, checked_axis(axis, row.rank)) for row, axis in placed),
    ]


def _listed(ctx: NodeContext, name: str, count: int) -> tuple[int, ...]:
    values = ctx.integers(name, (0,) * count)
    if len(values) != count:
        raise Refusal(f"{name} has {len(values)} entries; {count} are due")
    return values


CONVERTERS: Converters = named(_if, _scan)
