"""Adds the nodes of one source node to the graph, for the importers of all frameworks."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache, partial
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
from tcc.errors import UserError
from tcc.frontends.operand import EMITTER, EXPANDED, Operand, Operands, Refusal, current
from tcc.frontends.place import placed
from tcc.frontends.scope import Scope
from tcc.ir.graph import Graph
from tcc.ir.index import Index, IndexLike, as_index, const
from tcc.ir.types import F32, I64, STRING, DType
from tcc.ops import OPS


def joined(families: Iterable[Any]) -> Mapping[Any, Any]:
    """Merges the converter tables of the modules.

    No two modules may convert the same operator.
    """
    table: dict[Any, Any] = {}
    for family in families:
        assert table.keys().isdisjoint(family.CONVERTERS), family
        table |= family.CONVERTERS
    return MappingProxyType(table)


@cache
def parameters(converter: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Returns a converter's parameters with their annotations; those that `partial` bound are left
    out."""
    bound = converter.keywords if isinstance(converter, partial) else ()
    declared = signature(converter, eval_str=True).parameters.values()
    return tuple(p for p in declared if p.name not in bound)


def with_optional(readers: Mapping[Any, Callable[..., Any]]) -> Mapping[Any, Callable[..., Any]]:
    """Returns the readers of annotations, each for the annotation with `| None` too."""
    return {kind: reader for plain, reader in readers.items() for kind in (plain, plain | None)}


def family(converter: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """Returns a function that binds the first parameters of a converter, which tell the members of
    a family of operators apart."""
    return partial(partial, converter)


class Emitter:
    """Base class of the converters' contexts: writes one source node as nodes of the graph.

    `operation` is the source's name of the operator, `loc` the node's location for messages,
    `names` the names of its results.
    """

    scope: Scope
    names: Sequence[str]

    def __init__(
        self, scope: Scope, loc: str, names: Sequence[str] = (), operation: str = ""
    ) -> None:
        self.scope, self.loc, self.names, self.operation = scope, loc, names, operation or loc

    def fail(self, why: str, hint: str = "") -> UserError:
        """Returns the error to raise where the node cannot be imported."""
        return UserError(f"{self.operation} cannot be imported", where=self.loc, why=why, hint=hint)

    # ---- bodies

    def inside(self, scope: Scope) -> Self:
        """Returns a copy for the same source node that emits into `scope`, the scope of a body."""
        other = copy(self)
        other.scope = scope
        return other

    # ---- nodes

    def constant(self, array: Any, dtype: DType | None = None) -> Operand:
        return self.scope.constant(array, dtype, next(iter(self.names), "const"))

    def filled(self, value: float | int | bool, dtype: DType) -> Operand:
        """Returns a scalar constant of `dtype`; every string constant is the empty string."""
        if dtype is STRING:
            return self.constant(np.array("", object), STRING)
        return self.constant(np.array(value).astype(dtype.carrier), dtype)

    def emit_all(self, /, op: str, operands: Operands, **attrs: Any) -> tuple[Operand, ...]:
        """Adds a node of `op` and returns all its results; `attrs` are the fields of its
        attributes."""
        row = OPS.get(op)
        if row is None:
            raise self.fail(f"it needs the op {op}, which this tcc does not have")
        try:
            attributes = row.attrs(**attrs)
        except ValueError as error:
            raise self.fail(str(error)) from error
        return self.scope.emit(op, operands, attributes, names=self.names)

    @contextmanager
    def writing(self) -> Iterator[Self]:
        """Makes operands' methods and the functions of this module add nodes for this source node.

        A `Refusal` becomes the error of this node.
        """
        before = EMITTER.set(self)
        try:
            with placed(self.loc):
                yield self
        except Refusal as error:
            raise self.fail(error.what, error.hint) from error.__cause__
        finally:
            EMITTER.reset(before)

    def emit(self, /, op: str, *operands: Operand | float | None, **attrs: Any) -> Operand:
        """Adds a node of `op`; returns its first result.  Numbers get the first operand's dtype."""
        dtype = next((o.dtype for o in operands if isinstance(o, Operand)), F32)
        inputs = [self.filled(o, dtype) if isinstance(o, int | float) else o for o in operands]
        return self.emit_all(op, inputs, **attrs)[0]

    def require(self, a: Index, b: Index, reason: str) -> None:
        """Adds a check that two sizes are equal in every run."""
        self.scope.require(a, b, reason)


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _of_current(method: Callable[Concatenate[Emitter, _P], _R]) -> Callable[_P, _R]:
    """Returns a function that calls a method of the current source node's emitter."""

    def call(*arguments: _P.args, **options: _P.kwargs) -> _R:
        result: _R = getattr(current(), method.__name__)(*arguments, **options)
        return result

    return call


emit, emit_all = _of_current(Emitter.emit), _of_current(Emitter.emit_all)
constant, filled = _of_current(Emitter.constant), _of_current(Emitter.filled)
require = _of_current(Emitter.require)


def checked_axis(value: int, rank: int) -> int:
    """Returns `value` counted from the front; raises `UserError` outside of `[-rank, rank)`."""
    if not -rank <= value < rank:
        raise Refusal(f"axis {value} is outside a tensor of rank {rank}")
    return value % rank


def checked_axes(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """Returns distinct axes counted from the front, in the order of `values`."""
    axes = tuple(checked_axis(v, rank) for v in values)
    if len(set(axes)) != len(axes):
        raise Refusal(f"axes {tuple(values)} name an axis twice")
    return axes


def fresh_count(lo: int = 0) -> Index:
    """Returns a new symbol for the number of elements of the node's results, which depends on
    data."""
    ctx = current()
    name = next(iter(ctx.names), "size")
    symbol: Index = ctx.scope.session.fresh_symbol(f"{name}.count", lo)
    return symbol


def full(value: float, dtype: DType, shape: Sequence[IndexLike]) -> Operand:
    """Returns a tensor with `value` in all elements."""
    return filled(value, dtype).expand(shape)


def size_vector(values: Sequence[IndexLike], dtype: DType = I64) -> Operand:
    sizes: Operand = current().scope.sizes([as_index(v) for v in values], dtype)
    return sizes


def size_scalar(value: IndexLike, dtype: DType = I64) -> Operand:
    size: Operand = current().scope.sizes([as_index(value)], dtype, scalar=True)
    return size


def counted(size: Index) -> Operand:
    """Returns the integers 0, 1, ... below `size`, as i64."""
    ends = (filled(0, I64), size_scalar(size), filled(1, I64))
    return emit("range", *ends, size=size)


def widened(x: Operand) -> Operand:
    """Returns `x`, in f32 if it is of a narrower float type, whose squares and sums overflow."""
    return x.cast(F32) if x.dtype.is_float and x.dtype.bits < F32.bits else x


def p_norm(x: Operand, p: float, axes: Sequence[int], keepdim: bool) -> Operand:
    """Returns the p-norm over axes."""
    if p == 0:
        x = (~x.equals(0)).cast(x.dtype)
        return x.sum(axes, keepdims=keepdim) if axes else x
    if not axes:
        return abs(x)
    if math.isinf(p):
        return abs(x).reduce("max" if p > 0 else "min", axes, keepdims=keepdim)
    if p in (1, 2):
        return x.reduce(f"l{int(p)}", axes, keepdims=keepdim)
    return (widened(abs(x)) ** p).sum(axes, keepdims=keepdim) ** (1 / p)


def broadcast(*shapes: Sequence[Index]) -> tuple[Index, ...]:
    """Returns the shape to which all `shapes` broadcast; the run checks what the import cannot
    prove."""
    ctx, reversed_shape = current(), list[Index]()
    for axis in range(max(map(len, shapes))):
        size = const(1)
        for dim in (shape[-1 - axis] for shape in shapes if len(shape) > axis):
            if not (dim.terms or size.terms or dim is size or const(1) in (dim, size)):
                raise Refusal(f"dimensions {size.key} and {dim.key} do not broadcast")
            wide = ctx.scope.joined(size, dim, EXPANDED)
            if wide is None:
                require(size, dim, EXPANDED)
            size = wide or (size if dim.terms else dim)
        reversed_shape.append(size)
    return tuple(reversed(reversed_shape))


def group_norm(x: Operand, scale: Operand, bias: Operand, groups: int, epsilon: float) -> Operand:
    """Normalises groups of channels (axis 1); scale and bias have an entry for each channel."""
    channels = x.extent(1) if x.rank > 1 else None
    if channels is None or groups < 1 or channels % groups:
        raise Refusal(f"{groups} groups do not divide the channels of {x.type!r}")
    return x.group_normalization(scale, bias, channels=max(channels // groups, 1), epsilon=epsilon)


def stack(parts: Sequence[Operand], axis: int) -> Operand:
    """Stacks `parts` along a new axis."""
    return concat([part.unsqueeze(axis) for part in parts], axis)


def concat(parts: Sequence[Operand], axis: int) -> Operand:
    return parts[0] if len(parts) == 1 else emit_all("concat", parts, axis=axis)[0]


def scan(
    states: Sequence[Operand],
    rows: Sequence[Operand],
    body: Graph,
    input_reverse: Sequence[bool] = (),
    output_reverse: Sequence[bool] = (),
) -> tuple[Operand, ...]:
    """Runs `body` for each row along the first axes of `rows`.

    Returns the last states, then the stacked rows that the body returns. `input_reverse` and
    `output_reverse` say for each of `rows` and of the stacked results if it is traversed
    backwards; by default none is.
    """
    outputs = len(body.outputs) - len(states)
    return emit_all(
        "scan",
        [*states, *rows],
        body=body,
        num_scan_inputs=len(rows),
        input_axes=(0,) * len(rows),
        input_reverse=tuple(input_reverse) or (False,) * len(rows),
        output_axes=(0,) * outputs,
        output_reverse=tuple(output_reverse) or (False,) * outputs,
    )
