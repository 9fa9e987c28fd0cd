"""Complex tensors of torch as pairs of real ones: arithmetic and Fourier transforms.

For operators that only move or add elements, the operator's own converter runs on each part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from tcc.frontends.einsum import explicit_equation
from tcc.frontends.emit import checked_axes, family, size_scalar, stack
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.torch.calls import Call, Known, Ref, Tensor
from tcc.frontends.torch.context import (
    CallContext,
    Computed,
    Converter,
    ResultShape,
    ResultType,
    named,
)
from tcc.frontends.torch.convert.scalar_functions import angle_of
from tcc.frontends.torch.converters import CONVERTERS, converter_of, found_in
from tcc.frontends.torch.tensors import PARTS, part_type
from tcc.frozen import frozen
from tcc.ir.index import Index, const
from tcc.ir.types import F64, DType
from tcc.zipped import zip_equal


@frozen
class Complex:
    """A complex tensor: its real and its imaginary part, of one dtype and shape.  `pairs` is the
    tensor with both parts on a last axis, if it exists already."""

    real: Operand
    imag: Operand
    pairs: Operand | None = None

    def each(self, function: Callable[[Operand], Operand]) -> Complex:
        """Applies a function to both parts."""
        return Complex(function(self.real), function(self.imag))


def parts_of(pairs: Operand) -> Complex:
    """Returns the complex tensor whose parts lie on the last axis of a real one."""
    real, imag = (pairs.element(pairs.rank - 1, n) for n in range(2))
    return Complex(real, imag, pairs)


def pairs_of(x: Complex) -> Operand:
    """Returns a real tensor with the parts on a new last axis."""
    return x.pairs or stack((x.real, x.imag), x.real.rank)


def port_of(value: Any) -> Any:
    """Returns the graph's value for an input of the program."""
    return value.pairs if isinstance(value, Complex) else value


class ComplexContext(CallContext):
    """A call with complex tensors; dtypes are those of the parts."""

    def result_dtype(self) -> DType:
        return part_type(self.result().dtype)

    def as_known(self, result: Any, described: Known) -> Any:
        if not isinstance(result, Complex):
            return super().as_known(result, described)
        part = real_part(described)
        return Complex(super().as_known(result.real, part), super().as_known(result.imag, part))

    def pair(self, name: str, dtype: DType | None = None) -> Complex:
        """Returns an argument as a complex tensor; its parts get `dtype`, by default the
        result's."""
        return self.as_pair(self.arguments[name], dtype or self.result_dtype())

    def as_pair(self, value: Any, dtype: DType) -> Complex:
        if isinstance(value, Complex):
            return value.each(lambda part: part.cast(dtype))
        if isinstance(value, complex):
            return Complex(self.filled(value.real, dtype), self.filled(value.imag, dtype))
        real = self.as_operand(value, dtype)
        return Complex(real, real.like(0).expand(real.shape))

    def part(self, part_name: str) -> ComplexContext:
        """Returns the call with the part `part_name`, real or imaginary, in place of every complex
        tensor.

        The imaginary part of a real tensor is zero.
        """

        def pick(value: Any) -> Any:
            if isinstance(value, Complex | complex):
                return getattr(value, part_name)
            if isinstance(value, list):
                return [pick(item) for item in value]
            real = isinstance(value, Operand) and value.dtype.is_float
            if part_name == "imag" and real:
                return value.like(0).expand(value.shape)
            return value

        other = copy(self)
        other.arguments = {name: pick(value) for name, value in self.arguments.items()}
        if part_name == "imag":
            filled = {"fill_value", "value", "s", "other"} & other.arguments.keys()
            numbers = (n for n in filled if isinstance(self.arguments[n], int | float))
            other.arguments |= dict.fromkeys(numbers, 0.0)
        return other


@family
def _by_parts(converter: Converter, ctx: ComplexContext) -> Any:
    real, imag = (ctx.part(name).run(converter) for name in ("real", "imag"))
    if isinstance(real, Operand):
        return Complex(real, imag)
    return tuple(Complex(*parts) for parts in zip_equal(real, imag))


# ---- arithmetic ----------------------------------------------------------------------------------


def _multiplied(x: Complex, y: Complex, op: str = "mul", **attrs: Any) -> Complex:
    real = x.real.emit(op, y.real, **attrs) - x.imag.emit(op, y.imag, **attrs)
    imag = x.real.emit(op, y.imag, **attrs) + x.imag.emit(op, y.real, **attrs)
    return Complex(real, imag)


def _product(lhs: str, rhs: str, op: str) -> Converter:
    return lambda ctx: _multiplied(ctx.pair(lhs), ctx.pair(rhs), op)


def _added(ctx: ComplexContext, scaled_matmul: Complex, name: str) -> Complex:
    """Adds an argument to a matmul, with the factors alpha and beta if the call has them."""
    alpha, beta = ctx.real("alpha", 1.0), ctx.real("beta", 1.0)
    if alpha != 1:
        scaled_matmul = scaled_matmul.each(lambda part: part * alpha)
    if not ctx.has(name) or not beta:
        return scaled_matmul
    x = ctx.pair(name).each(lambda part: part * beta)
    return Complex(scaled_matmul.real + x.real, scaled_matmul.imag + x.imag)


def _linear(ctx: ComplexContext) -> Complex:
    transposed = ctx.pair("weight").each(lambda part: part.swap_axes(0, 1))
    return _added(ctx, _multiplied(ctx.pair("input"), transposed, "matmul"), "bias")


def _einsum(ctx: ComplexContext, equation: str) -> Complex:
    operands = [ctx.as_pair(x, ctx.result_dtype()) for x in ctx.arguments["tensors"]]
    if len(operands) != 2:
        raise Refusal("it takes two complex tensors", "write it as several einsums of two operands")
    equation = explicit_equation(equation, [x.real.rank for x in operands])
    return _multiplied(operands[0], operands[1], "einsum", equation=equation)


def _div(ctx: ComplexContext) -> Complex:
    if not isinstance(ctx.arguments["other"], Complex | complex):
        x, y = ctx.pair("self"), ctx.pair("other")
        return x.each(lambda part: part / y.real)
    return _quotient(ctx.pair("self", F64), ctx.pair("other", F64))


def _quotient(x: Complex, y: Complex) -> Complex:
    top, size = _multiplied(x, Complex(y.real, -y.imag)), _square(y)
    return top.each(lambda part: part / size)


def _equal(ctx: ComplexContext) -> Operand:
    x, y = ctx.pair("self", F64), ctx.pair("other", F64)
    return x.real.equals(y.real) & x.imag.equals(y.imag)


def _power(exponent: float | None = None) -> Converter:
    """Returns a converter of powers, from absolute value and angle.

    The exponent is real; without one, the call has it.
    """

    def convert(ctx: ComplexContext) -> Complex:
        x, power = ctx.pair("self", F64), exponent or ctx.real("exponent")
        return _rotated(_square(x) ** (power / 2), angle_of(x.imag, x.real) * power)

    return convert


def _log(ctx: ComplexContext) -> Complex:
    x = ctx.pair("self", F64)
    return Complex(_square(x).log() * 0.5, angle_of(x.imag, x.real))


def _of_absolute_values(ctx: ComplexContext) -> Any:
    """Applies the operator to the absolute values of complex arguments."""
    ctx.arguments = ctx.arguments | {"self": _size(ctx)}
    converter = converter_of(ctx.call.target)
    assert converter is not None
    return ctx.run(converter)


def _size(ctx: ComplexContext) -> Operand:
    return _square(ctx.pair("self", F64)).sqrt()


def _square(x: Complex) -> Operand:
    """Returns |x| squared."""
    return x.real * x.real + x.imag * x.imag


def _angle(ctx: ComplexContext) -> Operand:
    x = ctx.pair("self")
    return angle_of(x.imag, x.real)


def _conjugate(ctx: ComplexContext) -> Complex:
    x = ctx.pair("self")
    return Complex(x.real, -x.imag)


def _rotated(size: Operand, angle: Operand) -> Complex:
    """Returns the complex number with this absolute value and angle."""
    real, imag = (size * angle.emit(op) for op in ("cos", "sin"))
    return Complex(real, imag)


def _exp(ctx: ComplexContext) -> Complex:
    x = ctx.pair("self")
    return _rotated(x.real.exp(), x.imag)


def _polar(ctx: ComplexContext, dtype: ResultType) -> Complex:
    return _rotated(ctx.operand("abs", dtype), ctx.operand("angle", dtype))


# ---- from and to real tensors --------------------------------------------------------------------


def _complex(ctx: ComplexContext, dtype: ResultType, shape: ResultShape) -> Complex:
    return Complex(*(ctx.operand(name, dtype).expand(shape) for name in ("real", "imag")))


def _bits(ctx: ComplexContext, shape: ResultShape) -> Any:
    """Reinterprets complex elements as real pairs, or real pairs as complex elements."""
    x = ctx.arguments["self"]
    if isinstance(x, Complex):
        return pairs_of(x).reshape(shape)
    return parts_of(x.reshape((*shape, 2)))


# ---- Fourier transforms --------------------------------------------------------------------------


def _scaled(
    ctx: ComplexContext, x: Operand, sizes: Sequence[Index], inverse: bool, norm: int
) -> Operand:
    """Scales a Fourier transform by torch's `normalization`: 0 by nothing, 1 by the root of the
    size, 2 by the size.

    The op `dft` already divides inverse transforms by the size.
    """
    count = size_scalar(math.prod(sizes, start=const(1))).cast(F64)
    power = -norm / 2 + inverse
    if power == 0:
        return x
    factor = count ** ctx.filled(power, F64)
    return x * factor.cast(x.dtype)


def _transformed(x: Operand, axes: Sequence[int], inverse: bool) -> Operand:
    for axis in axes:
        x = x.dft(axis=axis, length=x.shape[axis], inverse=inverse, onesided=False)
    return x


def _fft_complex(
    ctx: ComplexContext, dim: tuple[int, ...], normalization: int, forward: bool
) -> Complex:
    x = pairs_of(ctx.pair("self"))
    axes, inverse = checked_axes(dim, x.rank - 1), not forward
    spectrum = _transformed(x, axes, inverse)
    return parts_of(_scaled(ctx, spectrum, [x.shape[n] for n in axes], inverse, normalization))


def _fft_real(
    ctx: ComplexContext, x: Computed, dim: tuple[int, ...], normalization: int, onesided: bool
) -> Complex:
    axes = checked_axes(dim, x.rank)
    *other_axes, last = axes
    spectrum = x.unsqueeze(x.rank).dft(
        axis=last, length=x.shape[last], inverse=False, onesided=onesided
    )
    spectrum = _transformed(spectrum, other_axes, False)
    return parts_of(_scaled(ctx, spectrum, [x.shape[n] for n in axes], False, normalization))


def _fft_to_real(
    ctx: ComplexContext, dim: tuple[int, ...], normalization: int, last_dim_size: Index
) -> Operand:
    x = pairs_of(ctx.pair("self"))
    *other_axes, last = checked_axes(dim, x.rank - 1)
    x = _transformed(x, other_axes, True)
    signal = x.dft(axis=last, length=last_dim_size, inverse=True, onesided=True)
    return _scaled(
        ctx, signal, [*(x.shape[n] for n in other_axes), last_dim_size], True, normalization
    )


_MOVED = (
    "clone alias lift_fresh_copy view squeeze unsqueeze permute expand slice select.int flip roll "
    "diagonal unfold cat repeat split_with_sizes index_select index.Tensor gather where.self "
    "slice_scatter select_scatter scatter scatter_add index_put full full_like fill scalar_tensor "
    "embedding copy sum mean neg add sub as_strided constant_pad_nd cumsum tril triu"
).split()

_CONVERTERS: dict[str, Converter] = {
    **named(_linear, _einsum, _div, _log, _angle, _exp, _complex, _polar),
    **{name: _by_parts(CONVERTERS[name]) for name in _MOVED},
    "_conj": _conjugate,
    "conj_physical": _conjugate,
    "_conj_physical": _conjugate,
    "mul": _product("self", "other", "mul"),
    "addmm": lambda ctx: _added(
        ctx, _multiplied(ctx.pair("mat1"), ctx.pair("mat2"), "matmul"), "self"
    ),
    "mm": _product("self", "mat2", "matmul"),
    "bmm": _product("self", "mat2", "matmul"),
    "matmul": _product("self", "other", "matmul"),
    "reciprocal": lambda ctx: _quotient(ctx.as_pair(1.0, F64), ctx.pair("self", F64)),
    "pow.Tensor_Scalar": _power(),
    "sqrt": _power(0.5),
    "eq": _equal,
    "ne": lambda ctx: ~_equal(ctx),
    "isnan": _of_absolute_values,
    "linalg_vector_norm": _of_absolute_values,
    "abs": _size,
    "_to_copy": lambda ctx: ctx.pair("self"),
    "real": lambda ctx: ctx.pair("self").real,
    "imag": lambda ctx: ctx.pair("self").imag,
    "view.dtype": _bits,
    "view_as_real": lambda ctx: pairs_of(ctx.pair("self")),
    "view_as_complex": lambda ctx: parts_of(ctx.operand("self")),
    "_fft_c2c": _fft_complex,
    "_fft_r2c": _fft_real,
    "_fft_c2r": _fft_to_real,
}


def complex_converter_of(target: str) -> Converter | None:
    """Returns the converter of an overload for complex tensors, None if there is none."""
    return found_in(_CONVERTERS, target)


def real_part(described: Tensor) -> Tensor:
    """Returns the description of either part of a complex tensor."""
    return Tensor(PARTS.get(described.dtype, described.dtype), described.shape)


def has_complex(call: Call, metas: Mapping[str, Known]) -> bool:
    """True if a call takes or returns complex tensors, or its operator computes with them
    internally.

    `metas` are the program's descriptions of its values, by name.
    """
    if converter_of(call.target) is None and complex_converter_of(call.target) is not None:
        return True
    return _is_complex(call.result, metas) or _is_complex([*call.arguments.values()], metas)


def _is_complex(value: Any, metas: Mapping[str, Known]) -> bool:
    if isinstance(value, Ref):
        return _is_complex(metas.get(value.name), metas)
    if isinstance(value, list | tuple):
        return any(_is_complex(item, metas) for item in value)
    return isinstance(value, Tensor) and value.dtype in PARTS
