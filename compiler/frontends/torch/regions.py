"""Operators of torch that hold blocks: regions, cond, while_loop, scan, map."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tcc.frontends.scope import Operand, Scope
from tcc.frontends.torch.calls import Block, Tensor
from tcc.frontends.torch.context import CallContext
from tcc.frontends.torch.tensors import element_type
from tcc.ir.graph import Graph
from tcc.ir.types import BOOL, I64, TensorType

# (scope, block, what its inputs stand for) -> what it returns
Run: TypeAlias = Callable[[Scope, Block, Sequence[Any]], list[Any]]
Region: TypeAlias = Callable[[CallContext, Run], Any]


def _arguments(ctx: CallContext, *kinds: type) -> list[Any]:
    """The first arguments by position, each of the kind that is due, and one more or an empty
    list."""
    given = list(ctx.arguments.values())
    if len(given) < len(kinds) or not all(map(isinstance, given, kinds)):
        raise ctx.fail("its arguments are not those that are due")
    return [*given, []][: len(kinds) + 1]


def _finished(ctx: CallContext, scope: Scope, results: Sequence[Any]) -> Graph:
    inner = ctx.inside(scope)
    return scope.builder.finish([inner.as_operand(result).value for result in results])


def _types(ctx: CallContext, first: int = 0) -> tuple[TensorType, ...]:
    """The types of the call's results from number `first` on; sizes that data decide are new."""
    found = []
    for known in ctx.call.result[first:]:
        if not isinstance(known, Tensor):
            raise ctx.fail("it gives results that are no tensors")
        for size in known.shape:
            if not isinstance(size, int) and size.is_symbol and not ctx.symbols.knows(str(size)):
                ctx.symbols.fresh(str(size), str(size))
        shape = ctx.symbols.shape(known.shape, ctx.loc)
        found.append(TensorType(element_type(known.dtype, ctx.loc), shape))
    return tuple(found)


# ---- regions that run as they stand ----------------------------------------------------------


def _inlined(number: int, off: int | None = None) -> Region:
    """The block of argument `number`, for the arguments behind it.  What argument `off` switches
    on would change what the block computes."""

    def convert(ctx: CallContext, run: Run) -> Any:
        given = list(ctx.arguments.values())
        if len(given) <= number or not isinstance(given[number], Block):
            raise ctx.fail("it holds no block")
        if off is not None and given[off]:
            raise ctx.fail("it casts automatically", "export the model without autocast")
        return run(ctx.scope, given[number], given[number + 1 :])

    return convert


# ---- branches and loops ----------------------------------------------------------------------


def _cond(ctx: CallContext, run: Run) -> Any:
    condition, then, otherwise, operands = _arguments(ctx, object, Block, Block)
    if isinstance(condition, bool):
        return run(ctx.scope, then if condition else otherwise, operands)
    graphs = []
    for name, block in (("then", then), ("otherwise", otherwise)):
        scope = ctx.body_scope(name)
        graphs.append(_finished(ctx, scope, run(scope, block, operands)))
    return ctx.emit_all(
        "if",
        [_truth(ctx, condition)],
        then=graphs[0],
        otherwise=graphs[1],
        types=_types(ctx),
    )


def _while_loop(ctx: CallContext, run: Run) -> Any:
    test, step, carried, extra = _arguments(ctx, Block, Block, list)
    start = [ctx.as_operand(value) for value in carried]
    types = [value.type for value in start]
    (begins,) = run(ctx.scope, test, [*start, *extra])
    scope = ctx.body_scope("body")
    scope.builder.input("iteration", TensorType(I64, ()))
    scope.builder.input("condition", TensorType(BOOL, ()))
    values = [scope.wrap(scope.builder.input("carried", type)) for type in types]
    inner = ctx.inside(scope)
    results = [inner.as_operand(r) for r in run(scope, step, [*values, *extra])]
    if [r.type for r in results] != types:
        raise ctx.fail("carried values change their types")
    (goes_on,) = run(scope, test, [*results, *extra])
    keeps = _truth(inner, goes_on)
    body = scope.builder.finish([keeps.value, *(r.value for r in results)])
    return ctx.emit_all("loop", [None, _truth(ctx, begins), *start], body=body, types=tuple(types))


def _truth(ctx: CallContext, condition: Any) -> Operand:
    """A condition as a scalar."""
    return ctx.reshape(ctx.as_operand(condition, BOOL), ())


def _map(ctx: CallContext, run: Run) -> Any:
    step, *rest = _arguments(ctx, Block, list)
    return _scanned(ctx, run, step, [], *rest)


def _scanned(
    ctx: CallContext,
    run: Run,
    step: Block,
    start: Sequence[Any],
    sequences: Sequence[Any],
    extra: Sequence[Any],
) -> Any:
    """A scan along the first axes of `sequences`."""
    states = [ctx.as_operand(value) for value in start]
    rows = [ctx.as_operand(value) for value in sequences]
    scope = ctx.body_scope("body")
    types = [s.type for s in states] + [TensorType(row.dtype, row.shape[1:]) for row in rows]
    values = [scope.wrap(scope.builder.input("value", type)) for type in types]
    results = run(scope, step, [*values, *extra])
    count = len(results) - len(states)
    return ctx.emit_all(
        "scan",
        [*states, *rows],
        body=_finished(ctx, scope, results),
        num_scan_inputs=len(rows),
        input_axes=(0,) * len(rows),
        input_reverse=(False,) * len(rows),
        output_axes=(0,) * count,
        output_reverse=(False,) * count,
    )


REGIONS: Mapping[str, Region] = {
    "higher_order.wrap_with_set_grad_enabled": _inlined(1),
    "higher_order.wrap_with_autocast": _inlined(4, off=2),
    "higher_order.cond": _cond,
    "higher_order.while_loop": _while_loop,
    "higher_order.scan": lambda ctx, run: _scanned(ctx, run, *_arguments(ctx, Block, list, list)),
    "higher_order.map_impl": _map,
}
