"""The values of a model during its import.

Constants and tensors of sizes become graph values only when a node reads them, so computations on
shapes leave no trace in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from tcc.errors import InternalError, UserError
from tcc.frontends.shapes import MAX_SIZES, sizes_of_array
from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.index import Index, IndexLike, as_index, as_int, const, maximum
from tcc.ir.lists import ListType
from tcc.ir.op import Array
from tcc.ir.types import F32, F64, I32, STRING, DType, TensorType, element_count
from tcc.ops import OPS
from tcc.ops.shapes import Shape

EXPANDED = "an operand is expanded to another shape"
# The largest size that a run accepts.  Exporters write slices "to the end of the axis" with ends
# from 10**9 on, which are then provably behind the end of any axis.
LARGEST_SIZE = 10**9 - 1


class Refusal(UserError):
    """The reason why the current source node cannot be imported, and a hint.

    `Emitter.writing` adds the node and its location.
    """

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why, hint=hint)


EMITTER: ContextVar[Any] = ContextVar("emitter")  # set by `Emitter.writing`


def current() -> Any:
    """Returns the emitter of the source node under import."""
    emitter = EMITTER.get(None)
    if emitter is None:
        raise InternalError("nodes are added outside a source node")
    return emitter


def _reduction(op: str) -> Callable[..., Operand]:
    return lambda x, *arguments, **options: x.reduce(op, *arguments, **options)


def _operator(op: str, swapped: bool = False) -> Callable[..., Operand]:
    """Returns an operator method that adds a node of `op`; a number gets the operand's dtype."""
    return lambda x, *y: current().emit(op, *((*y, x) if swapped else (x, *y)))


@dataclass(slots=True, eq=False)
class Operand:
    """A tensor of type `type`, that a graph of `builder` gets.

    `array`: the contents of a constant.  `sizes`: the elements (an object array of `Index`) of a
    tensor computed from shapes.  `graph_value`: the value in the graph, once a node has read the
    operand. `equality`: the two sizes that this condition compares.  `items`: the entries of a
    list, where known.  `sources`: names of the model's constants from which a folded constant was
    computed.
    """

    type: TensorType
    builder: GraphBuilder
    name: str
    array: Array | None = None
    sizes: Array | None = None
    graph_value: Value | None = None
    equality: tuple[Index, Index] | None = None
    items: tuple[Operand, ...] | None = None
    sources: tuple[str, ...] = ()

    @property
    def value(self) -> Value:
        """The graph value; the first access creates it in the scope that owns the operand."""
        if self.graph_value is None:
            builder = self.builder
            if self.array is not None:
                sources = self.sources or (self.name,)
                self.graph_value = builder.constant(self.array, self.name, self.type.dtype, sources)
            elif self.sizes is not None:
                self.graph_value = self._made_of_sizes(self.sizes)
            elif self.items is not None:
                self.graph_value = self._made_of_items(self.items)
            else:
                raise InternalError(f"{self.name} has neither contents nor a value")
        return self.graph_value

    def _made_of_items(self, items: tuple[Operand, ...]) -> Value:
        kind = self.type.dtype
        assert isinstance(kind, ListType)
        return self._node("list_make", [item.value for item in items], kind.item, kind.optional)

    def _made_of_sizes(self, sizes: Array) -> Value:
        value = self._node("dims", (), tuple(sizes.reshape(-1)))
        if sizes.ndim != 1:
            value = self._node("reshape", (value,), self.type.shape)
        if self.dtype is not value.dtype:
            value = self._node("cast", (value,), self.dtype)
        return value

    def _node(self, op: str, values: Sequence[Value], *attrs: Any) -> Value:
        row, names = OPS[op], (self.name,)
        (value,) = self.builder.add(row, values, row.attrs(*attrs), names=names)
        return value

    @property
    def index_elements(self) -> Array | None:
        """Returns the elements as an object array of `Index`.

        Returns None if they are unknown or too many.
        """
        array = self.array
        if self.sizes is None and array is not None and array.size <= MAX_SIZES:
            if self.dtype.is_handle:
                return None
            return sizes_of_array(array)
        return self.sizes

    # ---- nodes for the source node under import; a number gets the operand's dtype

    def __getattr__(self, op: str) -> Callable[..., Operand]:
        """Returns a method that adds a node of `op`, an op of the table.

        The method takes the op's other operands and its attributes, and returns its first result.
        """
        if op not in OPS:
            raise AttributeError(f"there is no op {op}")
        return partial(self.emit, op)

    def emit(self, op: str, *operands: Operand | float | None, **attrs: Any) -> Operand:
        """Adds a node of `op` with this operand as its first; returns the first result."""
        result: Operand = current().emit(op, self, *operands, **attrs)
        return result

    def emit_all(self, op: str, *operands: Operand | None, **attrs: Any) -> tuple[Operand, ...]:
        """Adds a node of `op` with this operand as its first; returns all results."""
        results: tuple[Operand, ...] = current().emit_all(op, [self, *operands], **attrs)
        return results

    def reduce(self, op: str, axes: int | Sequence[int], *, keepdims: bool = False) -> Operand:
        """Reduces with `reduce_OP` over one axis or several, negative ones counted from the end.

        The reduction `log_sum_exp` is composed of others.
        """
        axes = (axes,) if isinstance(axes, int) else axes
        over = tuple(axis + self.rank if axis < 0 else axis for axis in axes)
        if op == "log_sum_exp":
            return self._log_sum_exp(over, keepdims)
        return self.emit(f"reduce_{op}", axes=over, keepdims=keepdims)

    def ordered(self, axis: int, k: IndexLike, largest: bool = True) -> tuple[Operand, ...]:
        """Returns the `k` largest or smallest elements along an axis, sorted, and their
        positions."""
        return self.emit_all("top_k", axis=axis, k=as_index(k), largest=largest, sorted=True)

    def _log_sum_exp(self, axes: Sequence[int], keepdims: bool) -> Operand:
        """Returns log(sum(exp(x))); the largest x is subtracted, so that no exponential overflows.

        Integers are computed in f64, and narrow floats in f32.
        """
        narrow = self.dtype.bits < F32.bits
        wide = self.cast(F64 if self.dtype.is_integer else F32 if narrow else self.dtype)
        top = wide.max(axes, keepdims=True)
        top = top.is_inf().select(0, top)  # because infinity minus infinity is NaN
        exponential_sum = (wide - top).exp().sum(axes, keepdims=True)
        result = (exponential_sum.log() + top).cast(self.dtype)
        return result if keepdims else result.squeeze(axes)

    __add__, __sub__, __mul__, __truediv__ = map(_operator, ("add", "sub", "mul", "div"))
    __rsub__, __rmul__, __rtruediv__ = (_operator(op, True) for op in ("sub", "mul", "div"))
    __lt__, __le__ = _operator("less"), _operator("less_or_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_or_equal")
    __and__, __or__, __xor__ = map(_operator, ("and", "or", "xor"))
    __matmul__, __pow__ = _operator("matmul"), _operator("pow")
    __neg__, __invert__, __abs__ = map(_operator, ("neg", "not", "abs"))
    maximum, minimum = _operator("max"), _operator("min")
    equals = _operator("equal")  # element by element; `==` compares the Python objects

    sum, mean, max, min = map(_reduction, ("sum", "mean", "max", "min"))

    def like(self, value: float | int | bool) -> Operand:
        """Returns a scalar constant in the operand's dtype."""
        constant: Operand = current().filled(value, self.dtype)
        return constant

    def part(self, array: Any) -> Operand:
        """Returns `array` as a constant with the operand's name and dtype.

        `array` is a part or a transpose of the operand's elements.
        """
        constant: Operand = current().scope.constant(array, self.dtype, self.name)
        return constant

    def select(self, x: Operand | float, y: Operand | float) -> Operand:
        """Selects `x` where this condition holds, else `y`; a number gets the dtype of the other
        operand."""
        if isinstance(x, int | float):
            assert isinstance(y, Operand)
            x = y.like(x)
        return self.emit("where", x, x.like(y) if isinstance(y, int | float) else y)

    # ---- sizes that nodes read from the operand

    def as_sizes(
        self, hint: str, lo: int = 0, hi: int = LARGEST_SIZE, *, signed: bool = False
    ) -> tuple[Index, ...]:
        """Returns the elements of an integer vector; elements that are known only at run time get
        new symbols.

        A new symbol is in [lo, hi]; the run refuses other values. If `signed`, the run accepts
        numbers below zero, which cannot be the size of an array. `hint` is the message's noun for
        the operand.
        """
        elements = self.index_elements
        if elements is not None:
            return tuple(elements.reshape(-1))
        ctx = current()
        bound: dict[tuple[Operand, int], tuple[Index, ...]] = ctx.scope.bound
        if (self, lo) not in bound:
            shape = self.type.static_shape
            if shape is None or len(shape) > 1:
                raise Refusal(f"{hint} is a tensor of type {self.type!r}, not a short vector")
            symbols = []
            for element in range(shape[0] if shape else 1):
                fresh = ctx.scope.session.fresh_symbol(f"{self.name}.{element}", lo, hi)
                ctx.scope.add("bind_size", [self.value], fresh, element, signed)
                symbols.append(fresh)
            bound[self, lo] = tuple(symbols)
        return bound[self, lo]

    def as_size(self, hint: str, lo: int = 0) -> Index:
        """Returns the only element of an integer scalar or vector; `as_sizes` explains `lo`."""
        elements = self.as_sizes(hint, lo)
        if len(elements) != 1:
            raise Refusal(f"{hint} is one number, not {self.type!r}")
        return elements[0]

    # ---- axes

    def ranked(self, *ranks: int) -> Operand:
        """Returns the operand; raises `UserError` unless its rank is in `ranks`."""
        if self.rank not in ranks:
            due = " or ".join(map(str, ranks))
            raise Refusal(f"{self.type!r} has {self.rank} axes; {due} are due")
        return self

    def reshape(self, shape: Sequence[IndexLike]) -> Operand:
        """Reshapes the operand. The run checks equal element counts if the import cannot prove them
        equal."""
        target = tuple(map(as_index, shape))
        if target == self.shape:
            return self
        counts = element_count(self.shape), element_count(target)
        if as_int(counts[0] - counts[1]) is None:
            current().require(*counts, "a reshape keeps all elements")
        return self.emit("reshape", shape=target)

    def squeeze(self, axes: Sequence[int]) -> Operand:
        """Removes axes of extent one; negative ones count from the end."""
        dropped = {axis + self.rank if axis < 0 else axis for axis in axes}
        return self.reshape([dim for n, dim in enumerate(self.shape) if n not in dropped])

    def unsqueeze(self, axis: int) -> Operand:
        """Inserts an axis of extent one before `axis`."""
        return self.reshape([*self.shape[:axis], const(1), *self.shape[axis:]])

    def merged(self, axis: int) -> Operand:
        """Merges the axes from `axis` on to one."""
        return self.reshape((*self.shape[:axis], element_count(self.shape[axis:])))

    def flat(self) -> Operand:
        """Flattens the operand to one axis."""
        return self.merged(0)

    def trailing(self, count: int) -> Operand:
        """Appends axes of extent one."""
        return self.reshape((*self.shape, *[1] * count))

    def transpose(self, perm: Sequence[int]) -> Operand:
        is_identity = tuple(perm) == tuple(range(self.rank))
        return self if is_identity else self.emit("transpose", perm=tuple(perm))

    def swap_axes(self, a: int, b: int) -> Operand:
        """Exchanges two axes."""
        perm = [*range(self.rank)]
        perm[a], perm[b] = perm[b], perm[a]
        return self.transpose(perm)

    def moved(self, source: int, target: int) -> Operand:
        """Moves axis `source` to `target`; other axes keep their order."""
        perm = [*range(self.rank)]
        axis = perm.pop(source)
        perm.insert(target if target >= 0 else self.rank + target, axis)
        return self.transpose(perm)

    def expand(self, shape: Sequence[IndexLike]) -> Operand:
        """Repeats the operand to fill `shape`.

        If the import cannot prove that a size is 1 or the size in `shape`, every run checks it.
        """
        x, target, ctx = self, tuple(map(as_index, shape)), current()
        for back in range(1, min(x.rank, len(target)) + 1):
            size, due = x.shape[-back], target[-back]
            is_proved = size is due or const(1) in (size, due) or not (size.terms or due.terms)
            if not is_proved and not ctx.scope.fits(size, due, EXPANDED):
                x = x.sized(-back, due, EXPANDED)
        return x if target == x.shape else x.emit("expand", shape=target)

    def slice_axis(self, axis: int, start: IndexLike, size: IndexLike, step: int = 1) -> Operand:
        """Returns `size` elements of an axis: start, start + step, ..."""
        starts, sizes, steps = [const(0)] * self.rank, list(self.shape), [1] * self.rank
        starts[axis], sizes[axis], steps[axis] = as_index(start), as_index(size), step
        if tuple(sizes) == self.shape and not as_int(starts[axis]) and step == 1:
            return self
        return self.emit("slice", starts=tuple(starts), steps=tuple(steps), sizes=tuple(sizes))

    def element(self, axis: int, number: IndexLike) -> Operand:
        """Returns element `number` along an axis, without that axis."""
        return self.slice_axis(axis, number, 1).squeeze((axis,))

    def sized(self, axis: int, size: Index, reason: str) -> Operand:
        """Returns the operand with `size` as the size of an axis; every run checks that they are
        equal."""
        if self.shape[axis] is not size:
            current().require(self.shape[axis], size, reason)
        return self.slice_axis(axis, 0, size)

    def holds(self, axis: int, count: int) -> Operand:
        """Returns the operand; every run checks that a symbolic axis has at least `count`
        elements."""
        size = self.shape[axis]
        if as_int(size) is None:
            current().require(maximum(size, count), size, f"an axis holds {count} elements")
        return self

    # ---- element types

    def cast(self, dtype: DType) -> Operand:
        if self.dtype is dtype:
            return self
        if STRING in (self.dtype, dtype):
            return self._cast_text(dtype)
        return self.emit("cast", to=dtype)

    def _cast_text(self, dtype: DType) -> Operand:
        """Parses strings as numbers or formats numbers as strings; narrow types go by way of f32 or
        i32."""
        other = self.dtype if dtype is STRING else dtype
        wide = other
        if other.is_packed or (other.is_float and other.bits < F32.bits):
            wide = F32 if other.is_float else I32
        if dtype is STRING:
            return self.cast(wide).emit("string_format")
        return self.emit("string_parse", to=wide).cast(dtype)

    @property
    def rank(self) -> int:
        return self.type.rank

    @property
    def shape(self) -> Shape:
        return self.type.shape

    def extent(self, axis: int) -> int | None:
        """Returns the size of an axis; None if it is symbolic."""
        return as_int(self.shape[axis])

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def is_empty(self) -> bool:
        """True if it provably has no elements."""
        return const(0) in self.shape


Operands: TypeAlias = Sequence[Operand | None]  # None: an absent optional operand
