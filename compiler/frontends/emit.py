"""Adds to the graph the nodes of one source node, whatever the framework it comes from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from tcc.errors import UserError
from tcc.frontends.scope import LARGEST_SIZE, Operand, Operands, Scope
from tcc.ir.graph import GraphBuilder
from tcc.ir.index import Index, IndexLike, as_index, as_int, const, maximum
from tcc.ir.types import F32, I32, I64, STRING, DType, element_count
from tcc.ops import OPS

_EXPANDED = "an operand is expanded to another shape"


def joined(families: Iterable[Any]) -> Mapping[Any, Any]:
    """The converters of the modules, each of an operator of its own."""
    table: dict[Any, Any] = {}
    for family in families:
        assert table.keys().isdisjoint(family.CONVERTERS), family
        table |= family.CONVERTERS
    return MappingProxyType(table)


class Emitter:
    """What every converter needs to write a source node as nodes of the graph.

    `operation` is the source's name of the node's op, `loc` where it is, for messages; `names` are
    those of its results.
    """

    scope: Scope
    loc: str
    operation: str
    names: Sequence[str]

    def fail(self, why: str, hint: str = "") -> UserError:
        """The error to raise where the node cannot be imported."""
        return UserError(f"{self.operation} cannot be imported", where=self.loc, why=why, hint=hint)

    # ---- bodies

    def inside(self, scope: Scope) -> Self:
        """The same node, emitting into `scope` (that of a body it builds)."""
        other = copy(self)
        other.scope = scope
        return other

    def body_scope(self, name: str, known: set[str] | None = None) -> Scope:
        """A scope for a body of this node; it sees the names around it, and of the symbols those
        `known`: all there are, unless the body's inputs brought some.  The name of a body that a
        loop repeats is "body"."""
        outer, path = self.scope, f"{self.loc}/{name}"
        builder = GraphBuilder(path, parent=outer.builder)
        outside = set(outer.session.symbols) if known is None else known
        scope = Scope(outer.session, builder, outer.opsets, outer, f"{path}/", outside=outside)
        scope.repeats = name == "body"
        return scope

    # ---- axes and sizes

    def axis(self, value: int, rank: int) -> int:
        """`value` counted from the front; raises `UserError` outside `[-rank, rank)`."""
        if not -rank <= value < rank:
            raise self.fail(f"axis {value} is outside a tensor of rank {rank}")
        return value % rank

    def axes(self, values: Sequence[int], rank: int) -> tuple[int, ...]:
        """Distinct axes counted from the front, in the order given."""
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
        """The elements of an integer vector; where only the run knows them, new size symbols.

        `lo` and `hi` are the ends of what such a symbol may be; the run refuses others, but not
        those below zero where numbers are `signed`: they may be no array's size.
        """
        known = operand.known
        if known is not None:
            return tuple(known.reshape(-1))
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
        """The only element of an integer scalar or vector, as `sizes` has it."""
        found = self.sizes(operand, hint, lo)
        if len(found) != 1:
            raise self.fail(f"{hint} is one number, not {operand.type!r}")
        return found[0]

    def ranked(self, operand: Operand, *ranks: int) -> Operand:
        """The operand; raises `UserError` where it has another number of axes."""
        if operand.rank not in ranks:
            due = " or ".join(map(str, ranks))
            raise self.fail(f"{operand.type!r} has {operand.rank} axes; {due} are due")
        return operand

    # ---- nodes

    def constant(self, array: Any, dtype: DType | None = None) -> Operand:
        return self.scope.constant(array, dtype, next(iter(self.names), "const"))

    def part_of(self, operand: Operand, array: Any) -> Operand:
        """`array`, a part or a turn of a constant operand, under that one's name."""
        return self.scope.constant(array, operand.dtype, operand.name)

    def filled(self, value: float | int | bool, dtype: DType) -> Operand:
        """A scalar constant of `dtype`; an empty string stands for any value of strings."""
        if dtype is STRING:
            return self.constant(np.array("", object), STRING)
        return self.constant(np.array(value).astype(dtype.carrier), dtype)

    def full(self, value: float, dtype: DType, shape: Sequence[IndexLike]) -> Operand:
        """A tensor of one value."""
        return self.expand(self.filled(value, dtype), shape)

    def size_vector(self, values: Sequence[IndexLike], dtype: DType = I64) -> Operand:
        return self.scope.sizes([as_index(v) for v in values], dtype)

    def size_scalar(self, value: IndexLike, dtype: DType = I64) -> Operand:
        return self.scope.sizes([as_index(value)], dtype, scalar=True)

    def counted(self, size: Index) -> Operand:
        """0, 1, ... below `size`, as i64."""
        ends = (self.filled(0, I64), self.size_scalar(size), self.filled(1, I64))
        return self.emit("range", *ends, size=size)

    def emit_all(self, op: str, operands: Operands, **attrs: Any) -> tuple[Operand, ...]:
        """All results of a node of `op`; `attrs` are the fields of its attribute type."""
        row = OPS.get(op)
        if row is None:
            raise self.fail(f"it needs the op {op}, which this tcc does not have")
        try:
            made = row.attrs(**attrs)
        except ValueError as error:
            raise self.fail(str(error)) from error
        return self.scope.emit(op, operands, made, loc=self.loc, names=self.names)

    @contextmanager
    def writing(self) -> Iterator[Self]:
        """Arithmetic between operands becomes nodes of this source node."""
        session = self.scope.session
        before, session.write = session.write, self.emit
        try:
            yield self
        finally:
            session.write = before

    def emit(self, op: str, *operands: Operand | float | None, **attrs: Any) -> Operand:
        """The first result of a node of `op`; numbers are of the first operand's element type."""
        dtype = next((o.dtype for o in operands if isinstance(o, Operand)), F32)
        given = [self.filled(o, dtype) if isinstance(o, int | float) else o for o in operands]
        return self.emit_all(op, given, **attrs)[0]

    def reduce(
        self, op: str, x: Operand, axes: int | Sequence[int], *, keepdims: bool = False
    ) -> Operand:
        """The reduction `reduce_OP` of `x` over one axis or several."""
        over = (axes,) if isinstance(axes, int) else tuple(axes)
        return self.emit(f"reduce_{op}", x, axes=over, keepdims=keepdims)

    def where(self, condition: Operand, x: Operand | float, y: Operand | float) -> Operand:
        """`x` where the condition holds, else `y`; a number is of the other's element type."""
        if isinstance(x, int | float):
            assert isinstance(y, Operand)
            x = self.filled(x, y.dtype)
        if isinstance(y, int | float):
            y = self.filled(y, x.dtype)
        return self.emit("where", condition, x, y)

    def reshape(self, x: Operand, shape: Sequence[IndexLike]) -> Operand:
        """The elements of `x` in another shape; where sizes leave open whether these are as many,
        every run checks it."""
        target = tuple(as_index(d) for d in shape)
        if target == x.shape:
            return x
        counts = element_count(x.shape), element_count(target)
        if as_int(counts[0] - counts[1]) is None:
            self.require(*counts, "a reshape keeps all elements")
        return self.emit("reshape", x, shape=target)

    def squeeze(self, x: Operand, axes: Sequence[int]) -> Operand:
        """`x` without axes of extent one."""
        return self.reshape(x, [dim for n, dim in enumerate(x.shape) if n not in axes])

    def unsqueeze(self, x: Operand, axis: int) -> Operand:
        """`x` with an axis of extent one more."""
        return self.reshape(x, [*x.shape[:axis], const(1), *x.shape[axis:]])

    def flat(self, x: Operand) -> Operand:
        """The elements of `x` along one axis."""
        return self.reshape(x, (element_count(x.shape),))

    def transpose(self, x: Operand, perm: Sequence[int]) -> Operand:
        if tuple(perm) == tuple(range(x.rank)):
            return x
        return self.emit("transpose", x, perm=tuple(perm))

    def broadcast(self, *shapes: Sequence[Index]) -> tuple[Index, ...]:
        """The shape to which all broadcast, which every run checks."""
        found: list[Index] = []
        for axis in range(max(map(len, shapes))):
            size = const(1)
            for dim in (shape[-1 - axis] for shape in shapes if len(shape) > axis):
                if not (dim.terms or size.terms or dim is size or const(1) in (dim, size)):
                    raise self.fail(f"dimensions {size.key} and {dim.key} do not broadcast")
                wide = self.scope.joined(size, dim, _EXPANDED, self.loc)
                if wide is None:
                    self.require(size, dim, _EXPANDED)
                size = wide or (size if dim.terms else dim)
            found.append(size)
        return tuple(reversed(found))

    def expand(self, x: Operand, shape: Sequence[IndexLike]) -> Operand:
        """`x` repeated to fill `shape`; every run checks that sizes that are not equal are one."""
        target = tuple(as_index(d) for d in shape)
        for back in range(1, min(x.rank, len(target)) + 1):
            own, due = x.shape[-back], target[-back]
            known = own is due or const(1) in (own, due) or not (own.terms or due.terms)
            if not known and not self.scope.fits(own, due, _EXPANDED, self.loc):
                x = self.sized(x, -back, due, _EXPANDED)
        return x if target == x.shape else self.emit("expand", x, shape=target)

    def cast(self, x: Operand, dtype: DType) -> Operand:
        if x.dtype is dtype:
            return x
        if STRING in (x.dtype, dtype):
            return self._cast_text(x, dtype)
        return self.emit("cast", x, to=dtype)

    def _cast_text(self, x: Operand, dtype: DType) -> Operand:
        """Numbers from strings, or strings of numbers; narrow ones by way of wider ones."""
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
        """`size` elements of one axis from `start` on, each `step` behind the last."""
        starts, sizes, steps = [const(0)] * x.rank, list(x.shape), [1] * x.rank
        starts[axis], sizes[axis], steps[axis] = as_index(start), as_index(size), step
        if tuple(sizes) == x.shape and not as_int(starts[axis]) and step == 1:
            return x
        return self.emit("slice", x, starts=tuple(starts), steps=tuple(steps), sizes=tuple(sizes))

    def element(self, x: Operand, axis: int, number: IndexLike) -> Operand:
        """One element of an axis, which is gone."""
        return self.squeeze(self.slice_axis(x, axis, number, 1), (axis,))

    def stack(self, parts: Sequence[Operand], axis: int) -> Operand:
        """`parts` as the elements of a new axis."""
        return self.concat([self.unsqueeze(part, axis) for part in parts], axis)

    def concat(self, parts: Sequence[Operand], axis: int) -> Operand:
        return parts[0] if len(parts) == 1 else self.emit_all("concat", parts, axis=axis)[0]

    def require(self, left: Index, right: Index, reason: str) -> None:
        """Demands that two sizes are equal; every run checks it."""
        self.scope.require(left, right, reason, self.loc)

    def sized(self, x: Operand, axis: int, size: Index, reason: str) -> Operand:
        """`x`, of which every run checks that an axis has so many elements."""
        if x.shape[axis] is not size:
            self.require(x.shape[axis], size, reason)
        return self.slice_axis(x, axis, 0, size)

    def holds(self, x: Operand, axis: int, count: int) -> Operand:
        """`x`, of which every run checks that an axis of symbolic size has as many elements or
        more."""
        size = x.shape[axis]
        if as_int(size) is None:
            self.require(maximum(size, count), size, f"an axis holds {count} elements")
        return x
