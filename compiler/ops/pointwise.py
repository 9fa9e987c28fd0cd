"""Builds op-table rows of pointwise ops from a scalar formula and a NumPy function."""

from collections.abc import Callable, Sequence
from typing import Any

from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar
from tcc.ir.op import (
    Arity,
    NoAttrs,
    OnnxBinding,
    OpSpec,
    Tolerance,
    Trait,
    Types,
)
from tcc.ir.types import DType, TensorType
from tcc.ops.formula import read_aligned, wide
from tcc.ops.reference import in_f32
from tcc.ops.rows import arity_of, op_row
from tcc.ops.shapes import Point, Shape, broadcast_types, check_dtype, same_dtype

Formula = Callable[..., Scalar]
NumpyFunction = Callable[..., Any]


def pointwise_op(
    name: str,
    formula: Formula,
    numpy: NumpyFunction,
    doc: str,
    *,
    dtypes: Sequence[DType],
    attrs: type[Any] = NoAttrs,
    arity: Arity | None = None,
    result: DType | None = None,
    shape: Callable[[Types], Shape] = broadcast_types,
    tolerance: Tolerance = Tolerance.ELEMENTWISE,
    onnx: str = "",
    since: int = 1,
) -> OpSpec:
    """Returns the op-table row of a pointwise op whose operands have one element type.

    `formula(attrs, *scalars)` and `numpy(attrs, *arrays)` compute the same function. Both get None
    for an absent optional operand. The parameters of `numpy` give the arity; `arity` is due where
    `numpy` takes any number of operands. `result` is the result's element type if it differs from
    the operands' type. `shape` returns the shape of the result. `onnx` is the ONNX operator, and
    `since` its oldest opset; without `onnx`, it has the op's name, as LeakyRelu for `leaky_relu`.
    """

    def infer(_: Any, *types: TensorType | None) -> TensorType:
        dtype = same_dtype(*types)
        check_dtype(dtype, dtypes)
        return TensorType(result or dtype, shape(types))

    def element(b: ExprBuilder, at: Point, attributes: Any, *types: TensorType | None) -> Scalar:
        operands = (t and wide(read_aligned(b, n, t, at)) for n, t in enumerate(types))
        return formula(attributes, *operands)

    return op_row(
        name, attrs, infer, in_f32(numpy), dtypes, doc, tolerance, element=element,
        arity=arity or arity_of(numpy), traits=Trait.ELEMENTWISE,
        onnx=OnnxBinding(onnx or "".join(map(str.capitalize, name.split("_"))), since),
    )  # fmt: skip
