"""Imports torch's higher-order operators, whose arguments include blocks of further operators.

They are cond, while_loop, scan, map, and operators that run a block in another context.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tcc.frontends.emit import scan
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.scope import Scope
from tcc.frontends.torch.calls import CallBlock, Tensor
from tcc.frontends.torch.context import CallContext
from tcc.frontends.torch.tensors import element_type
from tcc.ir.graph import Graph
from tcc.ir.types import BOOL, I64, TensorType

# A function (scope, block, values of the block's inputs) that returns the values of the block's
# outputs.
Run: TypeAlias = Callable[[Scope, CallBlock, Sequence[Any]], list[Any]]
Region: TypeAlias = Callable[[CallContext, Run], Any]


def _arguments(ctx: CallContext, *kinds: type) -> list[Any]:
    """Returns an argument of each of the types `kinds`, and the argument that follows them.

    An empty list takes the place of a missing last argument. Raises `UserError` if the first
    arguments have other types.
    """
    arguments = list(ctx.arguments.values())
    if len(arguments) < len(kinds) or not all(map(isinstance, arguments, kinds)):
        raise Refusal("its arguments are of the wrong number or kinds")
    return [*arguments, []][: len(kinds) + 1]


def _finished(ctx: CallContext, scope: Scope, results: Sequence[Any]) -> Graph:
    with ctx.inside(scope).writing() as inner:
        return scope.builder.finish([inner.as_operand(result).value for result in results])


def _types(ctx: CallContext, first: int = 0) -> tuple[TensorType, ...]:
    """Returns the types of the call's results from position `first` on.

    New symbols stand for data-dependent sizes.
    """
    types = []
    for meta in ctx.call.result[first:]:
        if not isinstance(meta, Tensor):
            raise Refusal("it gives results that are no tensors")
        for size in meta.shape:
            if not isinstance(size, int) and size.is_symbol and not ctx.symbols.knows(str(size)):
                ctx.symbols.fresh(str(size), str(size))
        types.append(TensorType(element_type(meta.dtype), ctx.symbols.shape(meta.shape)))
    return tuple(types)


# ---- blocks that are inlined -----------------------------------------------------------------


def _inlined(number: int, off: int | None = None) -> Region:
    """Returns a converter that inlines the block in argument `number`.

    The arguments after it are the block's inputs. The call is refused if the argument `off` is
    true, because it turns on automatic casts in the block.
    """

    def convert(ctx: CallContext, run_block: Run) -> Any:
        arguments = list(ctx.arguments.values())
        if len(arguments) <= number or not isinstance(arguments[number], CallBlock):
            raise Refusal("it holds no block")
        if off is not None and arguments[off]:
            raise Refusal("it casts automatically", "export the model without autocast")
        return run_block(ctx.scope, arguments[number], arguments[number + 1 :])

    return convert


# ---- branches and loops ----------------------------------------------------------------------


def _cond(ctx: CallContext, run_block: Run) -> Any:
    condition, then, otherwise, operands = _arguments(ctx, object, CallBlock, CallBlock)
    if isinstance(condition, bool):
        return run_block(ctx.scope, then if condition else otherwise, operands)
    graphs = []
    for name, block in (("then", then), ("otherwise", otherwise)):
        scope = ctx.scope.body(name)
        graphs.append(_finished(ctx, scope, run_block(scope, block, operands)))
    return ctx.emit_all(
        "if",
        [_truth(ctx, condition)],
        then=graphs[0],
        otherwise=graphs[1],
        types=_types(ctx),
    )


def _while_loop(ctx: CallContext, run_block: Run) -> Any:
    test, step, carried, extra = _arguments(ctx, CallBlock, CallBlock, list)
    start = [ctx.as_operand(value) for value in carried]
    types = [value.type for value in start]
    (begins,) = run_block(ctx.scope, test, [*start, *extra])
    scope = ctx.scope.body("body")
    scope.builder.input("iteration", TensorType(I64, ()))
    scope.builder.input("condition", TensorType(BOOL, ()))
    values = [scope.input("carried", type) for type in types]
    with ctx.inside(scope).writing() as inner:
        results = [inner.as_operand(r) for r in run_block(scope, step, [*values, *extra])]
        if [r.type for r in results] != types:
            raise Refusal("carried values change their types")
        (goes_on,) = run_block(scope, test, [*results, *extra])
        body = scope.builder.finish([_truth(inner, goes_on).value, *(r.value for r in results)])
    return ctx.emit_all("loop", [None, _truth(ctx, begins), *start], body=body, types=tuple(types))


def _truth(ctx: CallContext, condition: Any) -> Operand:
    """Returns a condition as a scalar."""
    return ctx.as_operand(condition, BOOL).reshape(())


def _map(ctx: CallContext, run_block: Run) -> Any:
    step, *sequences_and_extra = _arguments(ctx, CallBlock, list)
    return _scanned(ctx, run_block, step, [], *sequences_and_extra)


def _scanned(
    ctx: CallContext,
    run_block: Run,
    step: CallBlock,
    start: Sequence[Any],
    sequences: Sequence[Any],
    extra: Sequence[Any],
) -> Any:
    """Emits a scan along the first axes of `sequences`."""
    states = [ctx.as_operand(value) for value in start]
    rows = [ctx.as_operand(value) for value in sequences]
    scope = ctx.scope.body("body")
    types = [s.type for s in states] + [TensorType(row.dtype, row.shape[1:]) for row in rows]
    values = [scope.input("value", type) for type in types]
    return scan(states, rows, _finished(ctx, scope, run_block(scope, step, [*values, *extra])))


REGIONS: Mapping[str, Region] = {
    "higher_order.wrap_with_set_grad_enabled": _inlined(1),
    "higher_order.wrap_with_autocast": _inlined(4, off=2),
    "higher_order.cond": _cond,
    "higher_order.while_loop": _while_loop,
    "higher_order.scan": lambda ctx, run_block: _scanned(
        ctx, run_block, *_arguments(ctx, CallBlock, list, list)
    ),
    "higher_order.map_impl": _map,
}
