"""One call of an exported program as its converter sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from tcc.frontends.emit import Emitter
from tcc.frontends.onnx.convert.movement import forward_range
from tcc.frontends.scope import Operand, Operands, Scope
from tcc.frontends.torch.calls import Call, Known, Ref, Tensor
from tcc.frontends.torch.symbols import Symbols
from tcc.frontends.torch.tensors import computed_type, element_type
from tcc.ir.index import Index, IndexLike, Indices, as_index, as_int, const
from tcc.ir.types import BOOL, F32, F64, I64, U8, DType
from tcc.known import all_known
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

    def emit_all(self, op: str, operands: Operands, **attrs: Any) -> tuple[Operand, ...]:
        self._made += 1
        if self._made > _MOST_NODES:
            raise self.fail(f"it would become more than {_MOST_NODES} nodes")
        return super().emit_all(op, operands, **attrs)

    # ---- results

    def result(self, number: int | None = None) -> Any:
        """What the program knows of the call's result: a tensor without contents."""
        value = self.call.result
        return value if number is None else value[number]

    def result_dtype(self) -> DType:
        return element_type(self.result().dtype, self.loc)

    def result_shape(self, number: int | None = None) -> tuple[Index, ...]:
        return self.symbols.shape(self.result(number).shape, self.loc)

    def finished(self, found: Any) -> Any:
        """What a converter found as torch has it: in its element types, where it was computed in
        others, without axes of one element that torch leaves out and with those that it adds.
        A result that nobody asks for is None, or of no elements."""
        known = self.result()
        if not isinstance(known, tuple):
            return self._finished(found, known)
        return tuple(self._finished(*pair) for pair in zip(found, known, strict=False))

    def _finished(self, found: Any, known: Known) -> Any:
        if not isinstance(known, Tensor):
            return found
        if found is None and known.shape == (0,):
            found = self.constant(np.zeros(0))
        return self.as_known(found, known)

    def as_known(self, found: Any, known: Tensor) -> Any:
        """One result with the element type and the axes of one element that torch gives it."""
        if not isinstance(found, Operand):
            return found
        found = self.cast(found, element_type(known.dtype, self.loc))
        if found.rank == len(known.shape):
            return found
        target = self.symbols.shape(known.shape, self.loc)
        one = const(1)
        dims = [dim for dim in found.shape if dim is not one]
        if len(dims) != sum(dim is not one for dim in target):
            return found
        rest = iter(dims)
        return self.reshape(found, [one if dim is one else next(rest) for dim in target])

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

    def given(self, name: str, default: Any = None) -> Any:
        """An argument; the default where the call gives none."""
        return self.arguments[name] if self.has(name) else default

    def operand(self, name: str, dtype: DType | None = None, default: Any = None) -> Operand:
        """A tensor or number as an operand, of element type `dtype` if given."""
        value = self.given(name, default)
        if value is None:
            raise self.fail(f"argument {name} is missing")
        return self.as_operand(value, dtype)

    def input(self) -> Operand:
        """The first argument, in the element type of the result."""
        return self.operand(self.first(), self.result_dtype())

    def both(self, dtype: DType | None = None) -> list[Operand]:
        """The first two arguments, of the result's element type unless another is given."""
        return [self.operand(n, dtype or self.result_dtype()) for n in [*self.arguments][:2]]

    def lined(self, name: str, dtype: DType | None = None) -> Operand:
        """A tensor or number as an operand of one axis or more."""
        x = self.operand(name, dtype)
        return x if x.rank else self.reshape(x, (1,))

    def along(self, dtype: DType | None = None) -> tuple[Operand, int]:
        """The first argument and the axis of it that `dim` is; all its elements along one axis
        where the call gives none.  A scalar counts as having an axis."""
        x = self.lined(self.first(), dtype)
        return (x, self.axis_of("dim", x.rank)) if self.has("dim") else (self.flat(x), 0)

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

    def index(self, name: str, default: IndexLike | None = None) -> Index:
        """A size, known or not."""
        return self.as_size(self.given(name, default))

    def as_size(self, value: Any) -> Index:
        if isinstance(value, int | Index):
            return as_index(value)
        if isinstance(value, float) and value.is_integer():
            return const(int(value))
        raise self.fail(f"{value!r} is no size")

    def indices(self, name: str) -> Indices:
        value = self.arguments[name]
        return tuple(map(self.as_size, value if isinstance(value, list) else [value]))

    def integer(self, name: str) -> int:
        (value,) = self.integers(name)
        return value

    def integers(self, name: str, count: int | None = None) -> tuple[int, ...]:
        """Numbers; a single one stands for `count` equal ones."""
        known = all_known(map(as_int, self.indices(name)))
        if known is None:
            raise self.fail(f"argument {name} must be known; it depends on symbolic sizes")
        return known * count if count is not None and len(known) == 1 else known

    def real(self, name: str, default: float | None = None) -> float:
        value = self.given(name, default)
        if isinstance(value, Index):
            value = as_int(value)
        if isinstance(value, Operand) and value.array is not None and value.array.size == 1:
            value = value.array.item()
        if not isinstance(value, int | float):
            raise self.fail(f"argument {name} must be known")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.given(name, default))

    def text(self, name: str) -> str:
        return str(self.arguments[name])

    def axis_of(self, name: str, rank: int) -> int:
        """An axis counted from the front; a scalar counts as having one."""
        return self.axis(self.integer(name), max(rank, 1))

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

    def numbers(self, x: Operand) -> Operand:
        """`x`, truth values as integers."""
        return self.cast(x, U8) if x.dtype is BOOL else x

    def cut(self, x: Operand, axis: int, start: Index, end: Index, step: int = 1) -> Operand:
        """`x[start:end:step]` along an axis, with Python's rules for what lies outside."""
        begin, size = forward_range(start, end, step, x.shape[axis])
        return self.slice_axis(x, axis, begin, size, step)


Results: TypeAlias = Operands
Converter: TypeAlias = Callable[[CallContext], Any]
Converters: TypeAlias = dict[str, Converter]
