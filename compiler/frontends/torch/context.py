"""One call of an exported program as its converter sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tcc.frontends.emit import Emitter
from tcc.frontends.onnx.convert.movement import forward_range
from tcc.frontends.scope import Operand, Scope
from tcc.frontends.torch.calls import Call, ElementType, Known, Ref, Tensor
from tcc.frontends.torch.symbols import Symbols
from tcc.frontends.torch.tensors import computed_type, element_type
from tcc.ir.index import Index, as_index, as_int, const
from tcc.ir.op import Array
from tcc.ir.types import BOOL, F32, F64, I64, DType
from tcc.record import record

_MOST_NODES = 20_000  # of one call


@record
class Names:
    """What the names of a block stand for, and what the program knows of each."""

    values: dict[str, Any]
    known: dict[str, Known]

    def resolve(self, value: Any) -> Any:
        """An argument with its refs replaced by what they stand for."""
        if isinstance(value, Ref):
            return self.values[value.name]
        if isinstance(value, list | tuple):
            return [self.resolve(item) for item in value]
        return value


class CallContext(Emitter):
    """What a converter may ask about its call; arguments are named as in the operator's schema.

    Arguments are operands, sizes (`Index`), Python numbers, or lists of these.
    """

    def __init__(self, call: Call, scope: Scope, names: Names, symbols: Symbols) -> None:
        self.call = call
        self.scope = scope
        self.symbols = symbols
        self.operation = call.target
        self.loc = call.location
        self.names = [call.name]
        self._known = names.known
        self._made = 0
        self.arguments = {name: names.resolve(value) for name, value in call.arguments.items()}

    def emit_all(
        self, op: str, operands: Sequence[Operand | None], **attrs: Any
    ) -> tuple[Operand, ...]:
        self._made += 1
        if self._made > _MOST_NODES:
            raise self.fail(f"it would become more than {_MOST_NODES} nodes")
        return super().emit_all(op, operands, **attrs)

    # ---- results

    def result(self, number: int | None = None) -> Any:
        """What the program knows of the call's result: a tensor without contents."""
        value = self.call.result
        return value if number is None else value[number]

    def result_dtype(self, number: int | None = None) -> DType:
        return element_type(self.result(number).dtype, self.loc)

    def result_shape(self, number: int | None = None) -> tuple[Index, ...]:
        return self.symbols.shape(self.result(number).shape, self.loc)

    def typed(self, *found: Operand | None) -> Results:
        """Results in the element types that torch gives them, where they were computed wider."""
        return tuple(
            value if value is None else self.cast(value, self.result_dtype(number))
            for number, value in enumerate(found)
        )

    def known(self, name: str) -> Tensor:
        """What the program knows of a tensor among the arguments."""
        given = self.call.arguments[name]
        found = self._known[given.name] if isinstance(given, Ref) else None
        if not isinstance(found, Tensor):
            raise self.fail(f"argument {name} is no tensor")
        return found

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

    def both(self, dtype: DType | None = None) -> list[Operand]:
        """The first two arguments, of the result's element type unless another is given."""
        return [self.operand(n, dtype or self.result_dtype()) for n in [*self.arguments][:2]]

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
            raise self.fail(f"argument {name} must be known; it depends on symbolic sizes")
        return value

    def integers(self, name: str, count: int | None = None) -> tuple[int, ...]:
        """Numbers; a single one stands for `count` equal ones."""
        found = tuple(as_int(i) for i in self.indices(name))
        known = tuple(n for n in found if n is not None)
        if len(known) != len(found):
            raise self.fail(f"argument {name} must be known; it depends on symbolic sizes")
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
        if value is None:
            return None
        if not isinstance(value, ElementType):
            raise self.fail(f"{value!r} is no element type")
        return element_type(value.name, self.loc)

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
        given = [self.call.arguments[name] for name in names]
        known = [self._known[v.name] if isinstance(v, Ref) else v for v in given]
        return computed_type(known, self.loc)

    # ---- more ways to emit

    def scalar(self, value: float, like: Operand) -> Operand:
        """A number in the element type of `like`."""
        return self.filled(value, like.dtype)

    def widened(self, x: Operand) -> Operand:
        """`x` in f32 where it is of a narrower floating type, whose squares and sums overflow."""
        return self.cast(x, F32) if x.dtype.is_float and x.dtype.bits < F32.bits else x

    def cut(self, x: Operand, axis: int, start: Index, end: Index, step: int = 1) -> Operand:
        """`x[start:end:step]` along an axis, with Python's rules for what lies outside."""
        dim = x.shape[axis]
        begin, size = forward_range(start, end, step, dim)
        if begin.key == "0" and size is dim and step == 1:
            return x
        starts, sizes, steps = [const(0)] * x.rank, list(x.shape), [1] * x.rank
        starts[axis], sizes[axis], steps[axis] = begin, size, step
        return self.emit("slice", x, starts=tuple(starts), steps=tuple(steps), sizes=tuple(sizes))


Results: TypeAlias = Sequence[Operand | None]
Converter: TypeAlias = Callable[[CallContext], Any]
