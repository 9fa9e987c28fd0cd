"""One call of an exported program as its converter sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import torch
from tcc.frontends.emitting import Emitter
from tcc.frontends.onnx_movement import forward_range
from tcc.frontends.onnx_scope import Operand, Scope
from tcc.frontends.torch_symbols import Symbols
from tcc.frontends.torch_tensors import element_type
from tcc.ir.index import Index, IndexLike, as_index, as_int, const
from tcc.ir.op import Array
from tcc.ir.types import BOOL, F64, I64, DType

Values: TypeAlias = Mapping[Any, Any]


class CallContext(Emitter):
    """What a converter may ask about its call; arguments are named as in the operator's schema.

    Arguments are operands, sizes (`Index`), Python numbers, or lists of these.
    """

    def __init__(self, node: Any, scope: Scope, values: Values, symbols: Symbols) -> None:
        self.node = node
        self.target, self._given = call_of(node)
        self.scope = scope
        self.symbols = symbols
        self.operation = str(self.target)
        self.loc = call_location(node)
        self.names = [node.name]
        self._values = values
        self._nodes = self._bind()
        self.arguments = {name: self._resolve(value) for name, value in self._nodes.items()}

    def _bind(self) -> dict[str, Any]:
        """The call's arguments by name, those it leaves out at their defaults."""
        declared = self.target._schema.arguments
        bound = {a.name: a.default_value for a in declared}
        bound.update(zip((a.name for a in declared), self._given, strict=False))
        bound.update(self.node.kwargs)
        return bound

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return self._values[value]
        if isinstance(value, list | tuple):
            return [self._resolve(item) for item in value]
        return value

    # ---- results

    def result(self, number: int | None = None) -> Any:
        """What torch knows of the call's result: a tensor without contents."""
        value = self.node.meta["val"]
        return value if number is None else value[number]

    def result_dtype(self, number: int | None = None) -> DType:
        return element_type(self.result(number).dtype, self.loc)

    def result_shape(self, number: int | None = None) -> tuple[Index, ...]:
        return self.symbols.shape(self.result(number).shape, self.loc)

    # ---- arguments

    def first(self) -> str:
        """The name of the first argument."""
        return next(iter(self.arguments))

    def has(self, name: str) -> bool:
        """Whether the call gives the argument, and not None."""
        return self.arguments.get(name) is not None

    def operand(self, name: str, dtype: DType | None = None) -> Operand:
        """A tensor or number as an operand, of element type `dtype` if given."""
        if not self.has(name):
            raise self.fail(f"argument {name} is missing")
        return self.as_operand(self.arguments[name], dtype)

    def optional(self, name: str, dtype: DType | None = None) -> Operand | None:
        return self.operand(name, dtype) if self.has(name) else None

    def operands(self, name: str, dtype: DType | None = None) -> list[Operand]:
        """A list of tensors."""
        return [self.as_operand(value, dtype) for value in self.arguments[name]]

    def as_operand(self, value: Any, dtype: DType | None = None) -> Operand:
        if isinstance(value, Operand):
            return value if dtype is None else self.cast(value, dtype)
        if isinstance(value, Index):
            return self.cast(self.size_scalar(value), dtype or I64)
        if isinstance(value, bool):
            return self.filled(value, dtype or BOOL)
        if isinstance(value, int | float):
            return self.filled(value, dtype or (I64 if isinstance(value, int) else F64))
        raise self.fail(f"{value!r} is no tensor")

    def index(self, name: str) -> Index:
        """A size, known or not."""
        return self.as_size(self.arguments[name])

    def as_size(self, value: Any) -> Index:
        if isinstance(value, int | Index):
            return as_index(value)
        if isinstance(value, float) and value.is_integer():
            return const(int(value))
        raise self.fail(f"{value!r} is no size")

    def indices(self, name: str) -> tuple[Index, ...]:
        value = self.arguments[name]
        return tuple(map(self.as_size, value if isinstance(value, list) else [value]))

    def integer(self, name: str) -> int:
        value = as_int(self.index(name))
        if value is None:
            raise self.fail(f"argument {name} must be known; it depends on open sizes")
        return value

    def integers(self, name: str, count: int | None = None) -> tuple[int, ...]:
        """Numbers; a single one stands for `count` equal ones."""
        found = tuple(as_int(i) for i in self.indices(name))
        known = tuple(n for n in found if n is not None)
        if len(known) != len(found):
            raise self.fail(f"argument {name} must be known; it depends on open sizes")
        return known * count if count is not None and len(known) == 1 else known

    def real(self, name: str) -> float:
        value = self.arguments[name]
        if isinstance(value, Index):
            value = as_int(value)
        if isinstance(value, Operand) and value.array is not None and value.array.size == 1:
            value = value.array.item()
        if not isinstance(value, int | float):
            raise self.fail(f"argument {name} must be known")
        return float(value)

    def flag(self, name: str) -> bool:
        return bool(self.arguments[name])

    def text(self, name: str) -> str:
        return str(self.arguments[name])

    def dtype(self, name: str) -> DType | None:
        """An element type, None where the call leaves it open."""
        value = self.arguments.get(name)
        return None if value is None else element_type(value, self.loc)

    def static(self, name: str) -> Array:
        """The contents of a tensor that must be constant."""
        found = self.operand(name).array
        if found is None:
            raise self.fail(f"argument {name} must be constant; it is computed")
        return found

    def axis_of(self, name: str, rank: int) -> int:
        """An axis counted from the front; a scalar counts as having one."""
        return self.axis(self.integer(name), max(rank, 1))

    def axes_of(self, name: str, rank: int) -> tuple[int, ...]:
        """Axes in rising order; all of them where the call gives none."""
        given = self.integers(name) if self.has(name) else ()
        if not given:
            return tuple(range(rank))
        return tuple(sorted(self.axes(given, max(rank, 1)))) if rank else ()

    def promoted(self, *names: str) -> DType:
        """The element type that torch computes in for these arguments together."""
        known = [self._example(self._nodes[name]) for name in names]
        found = known[0].dtype if len(known) == 1 else reduce(torch.result_type, known)
        return element_type(found, self.loc)

    def _example(self, value: Any) -> Any:
        known = value.meta["val"] if isinstance(value, torch.fx.Node) else value
        if isinstance(known, torch.SymInt):
            return 1
        return 1.0 if isinstance(known, torch.SymFloat) else known

    # ---- more ways to emit

    def squeeze(self, x: Operand, axes: Sequence[int]) -> Operand:
        return self.reshape(x, [dim for n, dim in enumerate(x.shape) if n not in axes])

    def unsqueeze(self, x: Operand, axis: int) -> Operand:
        return self.reshape(x, [*x.shape[:axis], const(1), *x.shape[axis:]])

    def scalar(self, value: float, like: Operand) -> Operand:
        """A number in the element type of `like`."""
        return self.filled(value, like.dtype)

    def where(self, condition: Operand, x: Operand, y: Operand) -> Operand:
        return self.emit("where", condition, x, y)

    def spread(self, x: Operand, shape: Sequence[IndexLike]) -> Operand:
        """`x` repeated to `shape`."""
        return self.expand(x, shape)

    def cut(self, x: Operand, axis: int, start: Index, end: Index, step: int = 1) -> Operand:
        """`x[start:end:step]` along an axis, with Python's rules for what lies outside."""
        dim = x.shape[axis]
        begin, size = forward_range(start, end, step, dim)
        if begin.key == "0" and size is dim and step == 1:
            return x
        starts, sizes, steps = [const(0)] * x.rank, list(x.shape), [1] * x.rank
        starts[axis], sizes[axis], steps[axis] = begin, size, step
        return self.emit("slice", x, starts=tuple(starts), steps=tuple(steps), sizes=tuple(sizes))


Converter: TypeAlias = Callable[[CallContext], Any]


_EFFECTS = "with_effects"


def call_of(node: Any) -> tuple[Any, Sequence[Any]]:
    """The operator that a node calls, and the arguments by position.

    One that may fail is called by way of `with_effects`, which keeps the order of such calls: it
    takes a token, the operator and its arguments, and gives a token before the results.
    """
    if is_effect(node):
        return node.args[1], node.args[2:]
    return node.target, node.args


def is_effect(node: Any) -> bool:
    higher = isinstance(node.target, torch._ops.HigherOrderOperator)
    return higher and node.target.name() == _EFFECTS


def call_location(node: Any) -> str:
    """Where a call is, for messages: the path of its module, its name, its operator."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed([entry[0] for entry in stack.values()]), "") if stack else ""
    path = path.removeprefix("L['self']").lstrip(".")
    return f"{path + '/' if path else ''}{node.name} ({node.target})"
