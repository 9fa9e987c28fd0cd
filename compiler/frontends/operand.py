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

from tcc.errors import InternalError
from tcc.frontends.shapes import MAX_SIZES, sizes_of_array
from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.index import Index, Indices, const
from tcc.ir.lists import ListType
from tcc.ir.op import Array
from tcc.ir.types import DType, TensorType
from tcc.ops import OPS
from tcc.ops.shapes import Shape

EMITTER: ContextVar[Any] = ContextVar("emitter")  # set by `Emitter.writing`


def current() -> Any:
    """Returns the emitter of the source node under import."""
    emitter = EMITTER.get(None)
    if emitter is None:
        raise InternalError("nodes are added outside a source node")
    return emitter


def _reduction(op: str) -> Callable[..., Operand]:
    return lambda x, *arguments, **options: x.reduce(op, *arguments, **options)


def _method(name: str) -> Callable[..., Operand]:
    """Returns a method of operands that calls the method `name` of the current emitter.

    The emitter's method gets the operand and the arguments of the call.
    """
    return lambda x, *arguments, **options: getattr(current(), name)(x, *arguments, **options)


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
        if self.dtype is not value.type.dtype:
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

    def emit(self, op: str, *others: Operand | float | None, **attrs: Any) -> Operand:
        """Adds a node of `op` with this operand as its first; returns the first result."""
        result: Operand = current().emit(op, self, *others, **attrs)
        return result

    def emit_all(self, op: str, *others: Operand | None, **attrs: Any) -> tuple[Operand, ...]:
        """Adds a node of `op` with this operand as its first; returns all results."""
        results: tuple[Operand, ...] = current().emit_all(op, [self, *others], **attrs)
        return results

    def reduce(self, op: str, *arguments: Any, **options: Any) -> Operand:
        """Calls `Emitter.reduce` with this operand."""
        result: Operand = current().reduce(op, self, *arguments, **options)
        return result

    def as_sizes(self, hint: str, lo: int = 0, *arguments: Any, **options: Any) -> Indices:
        """Calls `Emitter.sizes` with this operand."""
        sizes: Indices = current().sizes(self, hint, lo, *arguments, **options)
        return sizes

    def as_size(self, hint: str, lo: int = 0) -> Index:
        """Calls `Emitter.size` with this operand."""
        size: Index = current().size(self, hint, lo)
        return size

    __add__, __sub__, __mul__, __truediv__ = map(_operator, ("add", "sub", "mul", "div"))
    __rsub__, __rmul__, __rtruediv__ = (_operator(op, True) for op in ("sub", "mul", "div"))
    __lt__, __le__ = _operator("less"), _operator("less_or_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_or_equal")
    __and__, __or__, __xor__ = map(_operator, ("and", "or", "xor"))
    __matmul__, __pow__ = _operator("matmul"), _operator("pow")
    __neg__, __invert__, __abs__ = map(_operator, ("neg", "not", "abs"))
    maximum, minimum = _operator("max"), _operator("min")
    equals = _operator("equal")  # element by element; `==` compares the Python objects

    # The emitter's methods of these names, with the operand as their first argument.
    cast, reshape, expand, flat = map(_method, ("cast", "reshape", "expand", "flat"))
    squeeze, unsqueeze = map(_method, ("squeeze", "unsqueeze"))
    transpose, moved, swap_axes = map(_method, ("transpose", "moved", "swap_axes"))
    slice_axis, element, holds = map(_method, ("slice_axis", "element", "holds"))
    sized, ranked, like = map(_method, ("sized", "ranked", "like"))
    select = _method("where")  # for a condition: elements of two operands
    sum, mean, max, min = map(_reduction, ("sum", "mean", "max", "min"))

    @property
    def rank(self) -> int:
        return self.type.rank

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def is_empty(self) -> bool:
        """True if it provably has no elements."""
        return const(0) in self.shape


Operands: TypeAlias = Sequence[Operand | None]  # None: an absent optional operand
