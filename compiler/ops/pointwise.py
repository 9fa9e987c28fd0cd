"""Builds op-table rows of pointwise ops from a scalar formula and a NumPy function."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar
from tcc.ir.op import (
    Arity,
    Arrays,
    NoAttrs,
    OnnxBinding,
    OpSpec,
    OutArrays,
    OutTypes,
    Tolerance,
    Trait,
    Types,
)
from tcc.ir.types import DType, TensorType
from tcc.ops.formula import by_element, read_aligned, wide
from tcc.ops.reference import in_f32
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
    arity: Arity = 1,
    result: DType | None = None,
    shape: Callable[[Types], Shape] = broadcast_types,
    tolerance: Tolerance = Tolerance.ELEMENTWISE,
    onnx: OnnxBinding | None = None,
) -> OpSpec:
    """Returns the op-table row of a pointwise op whose operands have one element type.

    `formula(attrs, *scalars)` and `numpy(attrs, *arrays)` compute the same function. Both get None
    for an absent optional operand. `result` is the result's element type if it differs from the
    operands' type. `shape` returns the shape of the result.
    """

    def infer(types: Types, _: Any) -> OutTypes:
        dtype = same_dtype(types)
        check_dtype(dtype, dtypes)
        return (TensorType(result or dtype, shape(types)),)

    def element(b: ExprBuilder, at: Point, attributes: Any) -> Scalar:
        operands = (t and wide(read_aligned(b, n, t, at)) for n, t in enumerate(b.params))
        return formula(attributes, *operands)

    @in_f32
    def reference(arrays: Arrays, attributes: Any) -> OutArrays:
        return (np.asarray(numpy(attributes, *arrays)),)

    return by_element(
        name, attrs, arity, infer, reference, tuple(dtypes), doc, tolerance,
        element=element, traits=Trait.ELEMENTWISE, onnx=onnx,
    )  # fmt: skip
