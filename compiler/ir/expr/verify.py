"""The verifier of expressions: scalars have valid types, the variables of indices are in scope, and
reads are inside their sources."""

from collections.abc import Iterator, Sequence

from tcc.errors import require_none
from tcc.ir.expr import MONOIDS, Expr, Stage, extent, unconditional
from tcc.ir.expr.scalar import (
    FUNCTIONS,
    Apply,
    Arg,
    Cast,
    Const,
    IndexValue,
    Read,
    Scalar,
    StageRef,
    walk,
)
from tcc.ir.graph.text import scalar_text, source_text
from tcc.ir.index import Index, Var, free_vars
from tcc.ir.index.prove import inside
from tcc.ir.types import BOOL, DType, DTypeKind, TensorType, integer_limits
from tcc.zipped import zip_equal

_LITERALS = {
    DTypeKind.BOOL: bool, DTypeKind.FLOAT: float, DTypeKind.INT: int, DTypeKind.UINT: int
}  # fmt: skip


def verify_expr(expr: Expr, types: Sequence[TensorType | None]) -> None:
    """Raises `InternalError` whose `why` lists every problem, one on each line.

    `types` are the types of the node's operands; an absent operand may not be read.  Reads without
    `fill` must be proved to be inside their source, except under a branch of `select`, which may
    drop them.
    """
    require_none("an expression is not well formed", _problems(expr, types))


def _problems(expr: Expr, types: Sequence[TensorType | None]) -> Iterator[str]:
    if tuple(expr.params) != tuple(types):
        yield f"the parameters are {expr.params}, the operands {tuple(types)}"
    for number, stage in enumerate(expr.stages):
        for problem in _stage(expr, number, stage):
            yield f"s{number}: {problem}"
    for ref in expr.outputs:
        if ref.stage >= len(expr.stages) or ref.component >= len(expr.stages[ref.stage].body):
            yield f"output {source_text(ref)} is not defined"


def _stage(expr: Expr, number: int, stage: Stage) -> Iterator[str]:
    variables = stage.loops
    if len({v.name for v in variables}) != len(variables):
        yield "two iterators have one name"
    for n, var in enumerate(variables):
        if var.extent is None:
            yield f"{var.key} is a size, not an iterator"
        else:
            yield from _scope(extent(var), set(variables[:n]))
    yield from _monoid(stage)
    scope = set(variables)
    must = unconditional(stage.body)
    for scalar in walk(*stage.body):
        for problem in _scalar(expr, number, scalar, scope, scalar in must):
            yield f"{scalar_text(scalar)}: {problem}"


def _scope(index: Index, scope: set[Var]) -> Iterator[str]:
    """Yields a problem for each iterator of `index` that is not in `scope`.

    Size symbols are in scope everywhere.
    """
    for var in free_vars(index):
        if var.extent is not None and var not in scope:
            yield f"{var.key} is not an iterator here"


def _monoid(stage: Stage) -> Iterator[str]:
    if stage.monoid is None:
        if stage.reduce or len(stage.body) != 1:
            yield "a stage without a monoid has one component and nothing to reduce"
        return
    if stage.monoid not in MONOIDS:
        yield f"no monoid is called {stage.monoid}"
        return
    monoid = MONOIDS[stage.monoid]
    if monoid.components != len(stage.body):
        yield f"{stage.monoid} has {monoid.components} components, not {len(stage.body)}"


def _scalar(expr: Expr, number: int, scalar: Scalar, scope: set[Var], must: bool) -> Iterator[str]:
    match scalar:
        case Const():
            if not _is_literal(scalar.value, scalar.dtype):
                yield f"{scalar.value!r} is no {scalar.dtype.name}"
        case IndexValue():
            yield from _scope(scalar.index, scope)
        case Apply():
            yield from _apply(scalar)
        case Read():
            yield from _read(expr, number, scalar, scope, must)
        case Arg():
            yield "a stage has no free operands"
        case Cast():
            pass


def _is_literal(value: bool | int | float, dtype: DType) -> bool:
    if type(value) is not _LITERALS.get(dtype.kind):
        return False
    lowest, largest = integer_limits(dtype)
    return dtype.is_float or lowest <= value <= largest


def _apply(scalar: Apply) -> Iterator[str]:
    row = FUNCTIONS.get(scalar.function)
    if row is None or row.arity != len(scalar.args):
        yield f"no function {scalar.function} takes {len(scalar.args)} arguments"
        return
    dtypes = [a.dtype for a in scalar.args]
    if scalar.function == "select" and dtypes.pop(0) is not BOOL:
        yield "the condition is not bool"
    kind = dtypes[0]
    if any(t is not kind for t in dtypes):
        yield f"the arguments are {', '.join(t.name for t in dtypes)}"
    if scalar.dtype is not (row.result or kind):
        yield f"the result is {scalar.dtype.name}"
    if kind.kind not in row.takes:
        yield f"{scalar.function} does not take {kind.name}"


def _read(expr: Expr, number: int, node: Read, scope: set[Var], must: bool) -> Iterator[str]:
    source = _source_type(expr, number, node)
    if source is None:
        yield "the source is not defined here"
        return
    if node.dtype is not source.dtype:
        yield f"it is {node.dtype.name}, the source {source.dtype.name}"
    if len(node.indices) != source.rank:
        yield f"{len(node.indices)} indices where the source has rank {source.rank}"
        return
    for var, scalar in node.indirect:
        if not scalar.dtype.is_integer:
            yield f"{var.key} is bound to {scalar.dtype.name}"
    inner = scope | {v for v, _ in node.indirect}
    for index, size in zip_equal(node.indices, source.shape):
        yield from _scope(index, inner)
        if node.fill is None and must and not inside(index, size):
            yield f"{index.key} is not proved inside [0, {size.key})"
    if node.fill is not None and not _is_literal(node.fill, node.dtype):
        yield f"the fill {node.fill!r} is no {node.dtype.name}"


def _source_type(expr: Expr, number: int, node: Read) -> TensorType | None:
    if isinstance(node.source, StageRef):
        stage, component = node.source.stage, node.source.component
        if stage < number and component < len(expr.stages[stage].body):
            return expr.stages[stage].types[component]
        return None
    return expr.params[node.source] if 0 <= node.source < len(expr.params) else None
