"""The context of a converter for one call of an exported program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Annotated, Any, TypeAlias

import numpy as np
from tcc.frontends.emit import Emitter, checked_axis, parameters, size_scalar, with_optional
from tcc.frontends.extents import forward_range
from tcc.frontends.operand import Operand, Operands, Refusal, current
from tcc.frontends.scope import Scope
from tcc.frontends.torch.calls import Call, Known, Ref, Tensor
from tcc.frontends.torch.symbols import Symbols
from tcc.frontends.torch.tensors import computed_type, element_type
from tcc.frozen import frozen
from tcc.ir.index import Index, IndexLike, Indices, as_index, as_int, const
from tcc.ir.types import BOOL, F64, I64, U8, DType
from tcc.known import all_known
from tcc.ops.shapes import Shape

_MOST_NODES = 20_000  # one call becomes at most this many nodes of the graph


@frozen
class NamedValues:
    """The values of a block's names, and the program's description of each in `metas`."""

    values: dict[str, Any]
    metas: dict[str, Known]

    def resolve(self, value: Any) -> Any:
        """Returns an argument with its refs replaced by their values."""
        if isinstance(value, Ref):
            return self.values[value.name]
        if isinstance(value, list | tuple):
            return [self.resolve(item) for item in value]
        return value


Results: TypeAlias = Operands
# Annotations of converters' parameters.
Truths: TypeAlias = Annotated[Operand, "converted to bool"]
Integers: TypeAlias = Annotated[Operand, "converted to i64"]
Doubles: TypeAlias = Annotated[Operand, "converted to f64"]
Computed: TypeAlias = Annotated[Operand, "converted to the dtype of the result"]
ResultType: TypeAlias = Annotated[DType, "the dtype of the result"]
ResultShape: TypeAlias = Annotated[Shape, "the shape of the result"]
Start: TypeAlias = Annotated[Index, "0 by default"]
Line: TypeAlias = Annotated[tuple[Operand, int], "see CallContext.along"]
# A function whose parameters `CallContext.run` fills.
Converter: TypeAlias = Callable[..., Any]
Converters: TypeAlias = dict[str, Converter]


class CallContext(Emitter):
    """Reads the arguments of one call, by the names of the operator's schema, and adds nodes.

    Arguments are operands, sizes (`Index`), Python numbers, or lists of these.
    """

    def __init__(self, call: Call, scope: Scope, names: NamedValues, symbols: Symbols) -> None:
        self.call = call
        self.scope = scope
        self.symbols = symbols
        self.operation = call.target
        self.loc = call.location
        self.names = [call.name]
        self._known = names.metas
        self._made = 0
        self.arguments = {name: names.resolve(value) for name, value in call.arguments.items()}

    def emit_all(self, op: str, operands: Operands, **attrs: Any) -> tuple[Operand, ...]:
        self._made += 1
        if self._made > _MOST_NODES:
            raise Refusal(f"it would become more than {_MOST_NODES} nodes")
        return super().emit_all(op, operands, **attrs)

    def run(self, converter: Converter) -> Any:
        """Returns a converter's results for this call.

        The converter's parameter `ctx` is this context, `x` the tensor that the operator works on:
        the argument `self` or `input`.  Other parameters are arguments of the call by their names,
        read as their annotations say.  A parameter with a default may be absent or None.
        """
        return converter(*map(self._argument, parameters(converter)))

    def _argument(self, parameter: Parameter) -> Any:
        name, kind = parameter.name, parameter.annotation
        if name == "ctx":
            return self
        if name == "x":
            name = "self" if "self" in self.arguments else "input"
        if parameter.default is not parameter.empty and not self.has(name):
            return parameter.default
        return _READERS[kind](self, name)

    # ---- results

    def result(self, number: int | None = None) -> Any:
        """Returns the program's description of the call's result: a tensor without contents."""
        value = self.call.result
        return value if number is None else value[number]

    def result_dtype(self) -> DType:
        return element_type(self.result().dtype)

    def result_shape(self, number: int | None = None) -> tuple[Index, ...]:
        return self.symbols.shape(self.result(number).shape)

    def finished(self, results: Any) -> Any:
        """Returns a converter's results in torch's dtypes, and with torch's axes of extent one.

        A result that nothing reads is None, or has no elements.
        """
        described = self.result()
        if not isinstance(described, tuple):
            return self.as_known(results, described)
        return tuple(self.as_known(*pair) for pair in zip(results, described, strict=False))

    def as_known(self, result: Any, described: Known) -> Any:
        """Returns one result with torch's dtype and torch's axes of extent one."""
        if not isinstance(described, Tensor):
            return result
        if result is None and described.shape == (0,):
            result = self.constant(np.zeros(0))
        if not isinstance(result, Operand):
            return result
        result = result.cast(element_type(described.dtype))
        if result.rank == len(described.shape):
            return result
        target = self.symbols.shape(described.shape)
        one = const(1)
        dims = [dim for dim in result.shape if dim is not one]
        if len(dims) != sum(dim is not one for dim in target):
            return result
        remaining = iter(dims)
        return result.reshape([one if dim is one else next(remaining) for dim in target])

    def known(self, name: str) -> Tensor:
        """Returns the program's description of an argument that is a tensor."""
        argument = self.call.arguments[name]
        described = self._known[argument.name] if isinstance(argument, Ref) else None
        if not isinstance(described, Tensor):
            raise Refusal(f"argument {name} is no tensor")
        return described

    # ---- arguments

    def first(self) -> str:
        """Returns the name of the first argument."""
        return next(iter(self.arguments))

    def has(self, name: str) -> bool:
        """True if the call has the argument, and it is not None."""
        return self.arguments.get(name) is not None

    def given(self, name: str, default: Any = None) -> Any:
        """Returns an argument, or the default where the call has none."""
        return self.arguments[name] if self.has(name) else default

    def operand(self, name: str, dtype: DType | None = None, default: Any = None) -> Operand:
        """Returns a tensor or number as an operand, converted to `dtype` if given."""
        value = self.given(name, default)
        if value is None:
            raise Refusal(f"argument {name} is missing")
        return self.as_operand(value, dtype)

    def input(self) -> Operand:
        """Returns the first argument, converted to the dtype of the result."""
        return self.operand(self.first(), self.result_dtype())

    def both(self, dtype: DType | None = None) -> list[Operand]:
        """Returns the first two arguments, converted to `dtype` (None: the result's dtype)."""
        return [self.operand(n, dtype or self.result_dtype()) for n in [*self.arguments][:2]]

    def lined(self, name: str, dtype: DType | None = None) -> Operand:
        """Returns a tensor or number as an operand with at least one axis."""
        x = self.operand(name, dtype)
        return x if x.rank else x.reshape((1,))

    def along(self, dtype: DType | None = None) -> tuple[Operand, int]:
        """Returns the first argument and its axis `dim`.

        Without `dim` the argument is flattened to one axis. A scalar gets one axis.
        """
        x = self.lined(self.first(), dtype)
        return (x, self.axis_of("dim", x.rank)) if self.has("dim") else (x.flat(), 0)

    def operands(self, name: str, dtype: DType | None = None) -> list[Operand]:
        """Returns a list of tensors as operands."""
        return [self.as_operand(value, dtype) for value in self.arguments[name]]

    def as_operand(self, value: Any, dtype: DType | None = None) -> Operand:
        if isinstance(value, Operand):
            return value if dtype is None else value.cast(dtype)
        if isinstance(value, Index):
            return size_scalar(value).cast(dtype or I64)
        if isinstance(value, bool):
            return self.filled(value, dtype or BOOL)
        if isinstance(value, int | float):
            return self.filled(value, dtype or (I64 if isinstance(value, int) else F64))
        raise Refusal(f"{value!r} is no tensor")

    def index(self, name: str, default: IndexLike | None = None) -> Index:
        """Returns an argument that is a size, constant or symbolic."""
        return self.as_size(self.given(name, default))

    def as_size(self, value: Any) -> Index:
        if isinstance(value, int | Index):
            return as_index(value)
        if isinstance(value, float) and value.is_integer():
            return const(int(value))
        raise Refusal(f"{value!r} is no size")

    def indices(self, name: str) -> Indices:
        value = self.arguments[name]
        return tuple(map(self.as_size, value if isinstance(value, list) else [value]))

    def integer(self, name: str) -> int:
        (value,) = self.integers(name)
        return value

    def integers(self, name: str, count: int | None = None) -> tuple[int, ...]:
        """Returns an argument of constant integers.

        If the argument is a single integer, the result has `count` of it.
        """
        numbers = all_known(map(as_int, self.indices(name)))
        if numbers is None:
            raise Refusal(f"argument {name} must be known; it depends on symbolic sizes")
        return numbers * count if count is not None and len(numbers) == 1 else numbers

    def real(self, name: str, default: float | None = None) -> float:
        value = self.given(name, default)
        if isinstance(value, Index):
            value = as_int(value)
        if isinstance(value, Operand) and value.array is not None and value.array.size == 1:
            value = value.array.item()
        if not isinstance(value, int | float):
            raise Refusal(f"argument {name} must be known")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.given(name, default))

    def text(self, name: str) -> str:
        return str(self.arguments[name])

    def axis_of(self, name: str, rank: int) -> int:
        """Returns an axis counted from the front; a scalar counts as having one axis."""
        return checked_axis(self.integer(name), max(rank, 1))

    def promoted(self, *names: str) -> DType:
        """Returns the dtype in which torch computes with these arguments together."""
        arguments = [self.call.arguments[name] for name in names]
        return computed_type([self._known[v.name] if isinstance(v, Ref) else v for v in arguments])


def check_indices(x: Operand, size: Index, reason: str, signed: bool = False) -> None:
    """Stops the run with an error unless the elements of `x` are positions in an axis of `size`.

    `signed`: positions may be counted from the end.
    """
    current().scope.add("check_indices", [x.value], size, 1, 0, reason, signed)


def numbers(x: Operand) -> Operand:
    """Returns `x`, with truth values as integers."""
    return x.cast(U8) if x.dtype is BOOL else x


def cut(x: Operand, axis: int, start: Index, end: Index, step: int = 1) -> Operand:
    """Returns `x[start:end:step]` along an axis, with Python's rules for positions outside."""
    begin, size = forward_range(start, end, step, x.shape[axis])
    return x.slice_axis(axis, begin, size, step)


# How the argument for a converter's parameter is read, by the parameter's annotation.
_READERS = with_optional(
    {
        Parameter.empty: CallContext.operand,
        Operand: CallContext.operand,
        list[Operand]: CallContext.operands,
        Index: CallContext.index,
        tuple[Index, ...]: CallContext.indices,
        int: CallContext.integer,
        tuple[int, ...]: CallContext.integers,
        float: CallContext.real,
        bool: CallContext.flag,
        str: CallContext.text,
        Truths: lambda ctx, name: ctx.operand(name, BOOL),
        Integers: lambda ctx, name: ctx.operand(name, I64),
        Doubles: lambda ctx, name: ctx.operand(name, F64),
        Computed: lambda ctx, name: ctx.operand(name, ctx.result_dtype()),
        ResultType: lambda ctx, _: ctx.result_dtype(),
        ResultShape: lambda ctx, _: ctx.result_shape(),
        Start: lambda ctx, name: ctx.index(name, 0),
        Line: lambda ctx, _: ctx.along(),
    }
)


def named(*converters: Converter) -> Converters:
    """Returns converters by the operators that they are called after: `_cat` converts `cat`."""
    return {converter.__name__[1:]: converter for converter in converters}


def of_axes(
    name: str, converter: Callable[[int], Converter], counts: Sequence[int] = (1, 2, 3)
) -> Converters:
    """Returns the converters of a family of operators, one for each number of spatial axes.

    `name` has `{}` in the place of the number. `converter(n)` is the converter for n axes.
    """
    return {name.format(n): converter(n) for n in counts}
