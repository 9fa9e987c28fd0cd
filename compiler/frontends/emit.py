"""Adds the nodes of one source node to the graph, for the importers of all frameworks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache, partial
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
from tcc.errors import UserError
from tcc.frontends.operand import EMITTER, Operand, Operands, current
from tcc.frontends.scope import LARGEST_SIZE, Scope
from tcc.ir.graph import Graph
from tcc.ir.index import Index, IndexLike, as_index, as_int, const, maximum
from tcc.ir.types import F32, I32, I64, STRING, DType, element_count
from tcc.ops import OPS

_EXPANDED = "an operand is expanded to another shape"


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


class Refusal(UserError):
    """The reason why the current source node cannot be imported, and a hint.

    `Emitter.writing` adds the node and its location.
    """

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why, hint=hint)


class Emitter:
    """Base class of the converters' contexts: writes one source node as nodes of the graph.

    `operation` is the source's name of the operator, `loc` the node's location for messages,
    `names` the names of its results.
    """

    scope: Scope
    loc: str
    operation: str
    names: Sequence[str]

    def fail(self, why: str, hint: str = "") -> UserError:
        """Returns the error to raise where the node cannot be imported."""
        return UserError(f"{self.operation} cannot be imported", where=self.loc, why=why, hint=hint)

    # ---- bodies

    def inside(self, scope: Scope) -> Self:
        """Returns a copy for the same source node that emits into `scope`, the scope of a body."""
        other = copy(self)
        other.scope = scope
        return other

    def scan(
        self,
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
        return self.emit_all(
            "scan",
            [*states, *rows],
            body=body,
            num_scan_inputs=len(rows),
            input_axes=(0,) * len(rows),
            input_reverse=tuple(input_reverse) or (False,) * len(rows),
            output_axes=(0,) * outputs,
            output_reverse=tuple(output_reverse) or (False,) * outputs,
        )

    # ---- axes and sizes

    def axis(self, value: int, rank: int) -> int:
        """Returns `value` counted from the front; raises `UserError` outside of `[-rank, rank)`."""
        if not -rank <= value < rank:
            raise self.fail(f"axis {value} is outside a tensor of rank {rank}")
        return value % rank

    def axes(self, values: Sequence[int], rank: int) -> tuple[int, ...]:
        """Returns distinct axes counted from the front, in the order of `values`."""
        axes = tuple(self.axis(v, rank) for v in values)
        if len(set(axes)) != len(axes):
            raise self.fail(f"axes {tuple(values)} name an axis twice")
        return axes

    def sizes(
        self,
        operand: Operand,
        hint: str,
        lo: int = 0,
        hi: int = LARGEST_SIZE,
        *,
        signed: bool = False,
    ) -> tuple[Index, ...]:
        """Returns the elements of an integer vector; elements that are known only at run time get
        new symbols.

        A new symbol is in [lo, hi]; the run refuses other values. If `signed`, the run accepts
        numbers below zero, which cannot be the size of an array. `hint` is the message's noun for
        the operand.
        """
        elements = operand.index_elements
        if elements is not None:
            return tuple(elements.reshape(-1))
        bound = self.scope.bound
        if (operand, lo) not in bound:
            shape = operand.type.static_shape
            if shape is None or len(shape) > 1:
                raise self.fail(f"{hint} is a tensor of type {operand.type!r}, not a short vector")
            symbols = []
            for element in range(shape[0] if shape else 1):
                fresh = self.scope.session.fresh_symbol(f"{operand.name}.{element}", lo, hi)
                attrs = OPS["bind_size"].attrs(fresh, element, signed)
                self.scope.builder.add(OPS["bind_size"], [operand.value], attrs, loc=self.loc)
                symbols.append(fresh)
            bound[operand, lo] = tuple(symbols)
        return bound[operand, lo]

    def size(self, operand: Operand, hint: str, lo: int = 0) -> Index:
        """Returns the only element of an integer scalar or vector; `sizes` explains `lo`."""
        elements = self.sizes(operand, hint, lo)
        if len(elements) != 1:
            raise self.fail(f"{hint} is one number, not {operand.type!r}")
        return elements[0]

    def fresh_count(self, lo: int = 0) -> Index:
        """Returns a new symbol for the number of elements of the node's results, which depends on
        data."""
        return self.scope.session.fresh_symbol(f"{next(iter(self.names), 'size')}.count", lo)

    def ranked(self, operand: Operand, *ranks: int) -> Operand:
        """Returns the operand; raises `UserError` unless its rank is in `ranks`."""
        if operand.rank not in ranks:
            due = " or ".join(map(str, ranks))
            raise self.fail(f"{operand.type!r} has {operand.rank} axes; {due} are due")
        return operand

    # ---- nodes

    def constant(self, array: Any, dtype: DType | None = None) -> Operand:
        return self.scope.constant(array, dtype, next(iter(self.names), "const"))

    def part_of(self, operand: Operand, array: Any) -> Operand:
        """Returns `array` as a constant with the name and dtype of `operand`.

        `array` is a part or a transpose of the elements of `operand`.
        """
        return self.scope.constant(array, operand.dtype, operand.name)

    def like(self, x: Operand, value: float | int | bool) -> Operand:
        """Returns a scalar constant in the dtype of `x`."""
        return self.filled(value, x.dtype)

    def filled(self, value: float | int | bool, dtype: DType) -> Operand:
        """Returns a scalar constant of `dtype`; every string constant is the empty string."""
        if dtype is STRING:
            return self.constant(np.array("", object), STRING)
        return self.constant(np.array(value).astype(dtype.carrier), dtype)

    def full(self, value: float, dtype: DType, shape: Sequence[IndexLike]) -> Operand:
        """Returns a tensor with `value` in all elements."""
        return self.expand(self.filled(value, dtype), shape)

    def size_vector(self, values: Sequence[IndexLike], dtype: DType = I64) -> Operand:
        return self.scope.sizes([as_index(v) for v in values], dtype)

    def size_scalar(self, value: IndexLike, dtype: DType = I64) -> Operand:
        return self.scope.sizes([as_index(value)], dtype, scalar=True)

    def counted(self, size: Index) -> Operand:
        """Returns the integers 0, 1, ... below `size`, as i64."""
        ends = (self.filled(0, I64), self.size_scalar(size), self.filled(1, I64))
        return self.emit("range", *ends, size=size)

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
        return self.scope.emit(op, operands, attributes, loc=self.loc, names=self.names)

    @contextmanager
    def writing(self) -> Iterator[Self]:
        """Makes operands' methods and the functions of this module add nodes for this source node.

        A `Refusal` becomes the error of this node.
        """
        before = EMITTER.set(self)
        try:
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

    def reduce(
        self, op: str, x: Operand, axes: int | Sequence[int], *, keepdims: bool = False
    ) -> Operand:
        """Reduces `x` with `reduce_OP` over one axis or several."""
        axes = (axes,) if isinstance(axes, int) else axes
        over = tuple(axis + x.rank if axis < 0 else axis for axis in axes)
        return self.emit(f"reduce_{op}", x, axes=over, keepdims=keepdims)

    def where(self, condition: Operand, x: Operand | float, y: Operand | float) -> Operand:
        """Selects `x` where the condition holds, else `y`; a number gets the dtype of the other
        operand."""
        if isinstance(x, int | float):
            assert isinstance(y, Operand)
            x = self.filled(x, y.dtype)
        if isinstance(y, int | float):
            y = self.filled(y, x.dtype)
        return self.emit("where", condition, x, y)

    def reshape(self, x: Operand, shape: Sequence[IndexLike]) -> Operand:
        """Reshapes `x`. The run checks equal element counts if the import cannot prove them
        equal."""
        target = tuple(as_index(d) for d in shape)
        if target == x.shape:
            return x
        counts = element_count(x.shape), element_count(target)
        if as_int(counts[0] - counts[1]) is None:
            self.require(*counts, "a reshape keeps all elements")
        return self.emit("reshape", x, shape=target)

    def squeeze(self, x: Operand, axes: Sequence[int]) -> Operand:
        """Removes axes of extent one."""
        dropped = {axis + x.rank if axis < 0 else axis for axis in axes}
        return self.reshape(x, [dim for n, dim in enumerate(x.shape) if n not in dropped])

    def unsqueeze(self, x: Operand, axis: int) -> Operand:
        """Inserts an axis of extent one before `axis`."""
        return self.reshape(x, [*x.shape[:axis], const(1), *x.shape[axis:]])

    def flat(self, x: Operand) -> Operand:
        """Flattens `x` to one axis."""
        return self.reshape(x, (element_count(x.shape),))

    def transpose(self, x: Operand, perm: Sequence[int]) -> Operand:
        if tuple(perm) == tuple(range(x.rank)):
            return x
        return self.emit("transpose", x, perm=tuple(perm))

    def swap_axes(self, x: Operand, a: int, b: int) -> Operand:
        """Exchanges two axes of `x`."""
        perm = list(range(x.rank))
        perm[a], perm[b] = perm[b], perm[a]
        return self.transpose(x, perm)

    def moved(self, x: Operand, source: int, target: int) -> Operand:
        """Returns `x` with its axis `source` moved to `target`; other axes keep their order."""
        perm = [*range(x.rank)]
        axis = perm.pop(source)
        perm.insert(target if target >= 0 else x.rank + target, axis)
        return self.transpose(x, perm)

    def broadcast(self, *shapes: Sequence[Index]) -> tuple[Index, ...]:
        """Returns the shape to which all `shapes` broadcast; the run checks what the import cannot
        prove."""
        reversed_shape: list[Index] = []
        for axis in range(max(map(len, shapes))):
            size = const(1)
            for dim in (shape[-1 - axis] for shape in shapes if len(shape) > axis):
                if not (dim.terms or size.terms or dim is size or const(1) in (dim, size)):
                    raise self.fail(f"dimensions {size.key} and {dim.key} do not broadcast")
                wide = self.scope.joined(size, dim, _EXPANDED, self.loc)
                if wide is None:
                    self.require(size, dim, _EXPANDED)
                size = wide or (size if dim.terms else dim)
            reversed_shape.append(size)
        return tuple(reversed(reversed_shape))

    def expand(self, x: Operand, shape: Sequence[IndexLike]) -> Operand:
        """Repeats `x` to fill `shape`.

        If the import cannot prove that a size of `x` is 1 or the size in `shape`, every run checks
        it.
        """
        target = tuple(as_index(d) for d in shape)
        for back in range(1, min(x.rank, len(target)) + 1):
            size, due = x.shape[-back], target[-back]
            is_proved = size is due or const(1) in (size, due) or not (size.terms or due.terms)
            if not is_proved and not self.scope.fits(size, due, _EXPANDED, self.loc):
                x = self.sized(x, -back, due, _EXPANDED)
        return x if target == x.shape else self.emit("expand", x, shape=target)

    def cast(self, x: Operand, dtype: DType) -> Operand:
        if x.dtype is dtype:
            return x
        if STRING in (x.dtype, dtype):
            return self._cast_text(x, dtype)
        return self.emit("cast", x, to=dtype)

    def _cast_text(self, x: Operand, dtype: DType) -> Operand:
        """Parses strings as numbers or formats numbers as strings; narrow types go by way of f32 or
        i32."""
        other = x.dtype if dtype is STRING else dtype
        wide = other
        if other.is_packed or (other.is_float and other.bits < F32.bits):
            wide = F32 if other.is_float else I32
        if dtype is STRING:
            return self.emit("string_format", self.cast(x, wide))
        return self.cast(self.emit("string_parse", x, to=wide), dtype)

    def slice_axis(
        self, x: Operand, axis: int, start: IndexLike, size: IndexLike, step: int = 1
    ) -> Operand:
        """Returns `size` elements of an axis: start, start + step, ..."""
        starts, sizes, steps = [const(0)] * x.rank, list(x.shape), [1] * x.rank
        starts[axis], sizes[axis], steps[axis] = as_index(start), as_index(size), step
        if tuple(sizes) == x.shape and not as_int(starts[axis]) and step == 1:
            return x
        return self.emit("slice", x, starts=tuple(starts), steps=tuple(steps), sizes=tuple(sizes))

    def element(self, x: Operand, axis: int, number: IndexLike) -> Operand:
        """Returns element `number` along an axis, without that axis."""
        return self.squeeze(self.slice_axis(x, axis, number, 1), (axis,))

    def stack(self, parts: Sequence[Operand], axis: int) -> Operand:
        """Stacks `parts` along a new axis."""
        return self.concat([self.unsqueeze(part, axis) for part in parts], axis)

    def concat(self, parts: Sequence[Operand], axis: int) -> Operand:
        return parts[0] if len(parts) == 1 else self.emit_all("concat", parts, axis=axis)[0]

    def require(self, a: Index, b: Index, reason: str) -> None:
        """Adds a check that two sizes are equal in every run."""
        self.scope.require(a, b, reason, self.loc)

    def sized(self, x: Operand, axis: int, size: Index, reason: str) -> Operand:
        """Returns `x` with `size` as the size of an axis; every run checks that they are equal."""
        if x.shape[axis] is not size:
            self.require(x.shape[axis], size, reason)
        return self.slice_axis(x, axis, 0, size)

    def holds(self, x: Operand, axis: int, count: int) -> Operand:
        """Returns `x`; every run checks that a symbolic axis has at least `count` elements."""
        size = x.shape[axis]
        if as_int(size) is None:
            self.require(maximum(size, count), size, f"an axis holds {count} elements")
        return x


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
full, scan = _of_current(Emitter.full), _of_current(Emitter.scan)
concat, stack = _of_current(Emitter.concat), _of_current(Emitter.stack)
size_vector, size_scalar = _of_current(Emitter.size_vector), _of_current(Emitter.size_scalar)
require, broadcast = _of_current(Emitter.require), _of_current(Emitter.broadcast)
fresh_count = _of_current(Emitter.fresh_count)
checked_axis, checked_axes = _of_current(Emitter.axis), _of_current(Emitter.axes)
