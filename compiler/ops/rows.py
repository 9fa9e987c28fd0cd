"""Builds rows of the op table from functions whose parameters are an op's operands.

    infer(attrs, x, w, bias=None)        the type of the result
    reference(attrs, x, w, bias)         the result, a NumPy array
    expr(b, attrs, x, w, bias)           the stage of the result, appended to the builder b
    element(b, at, attrs, x, w, bias)    the scalar at the point `at` of the result

An absent operand is None. An op with several results returns tuples.
"""

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any

import numpy as np
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import StageRef, cast
from tcc.ir.op import Arity, Arrays, OpSpec, OutArrays, OutTypes, T, Tolerance, Types
from tcc.ir.types import DType, TensorType
from tcc.ops.reference import as_tuple
from tcc.ops.shapes import present
from tcc.zipped import zip_equal

# A function of the operands in the order that the module's docstring shows.
Function = Callable[..., Any]


def op_row(
    name: str,
    attrs: type[Any],
    infer: Function,
    reference: Function,
    dtypes: Sequence[DType],
    doc: str,
    tolerance: Tolerance = Tolerance.EXACT,
    expr: Function | None = None,
    *,
    element: Function | None = None,
    arity: Arity | None = None,
    **more: Any,
) -> OpSpec:
    """Returns the row of an op; `more` are further fields of `OpSpec`.

    The parameters of `infer` are the operands, and those with a default are optional. The functions
    of the row get None for an optional operand that the node leaves out at its end. `arity` is due
    where `infer` takes any number of operands; then `infer` checks that they are present. An
    `element` is the expression of a single stage. The results of `expr` and `element` are rounded
    to the types that `infer` gives. `calls` and `free_axes` take the arguments of `infer`.

    An op without an expression is the C function of its name, unless `call` says otherwise.

    The functions of the row raise ValueError for a missing operand and for too many operands.
    """
    minimum, maximum = arity or arity_of(infer)
    absent = () if arity else (None,) * maximum

    def checked(operands: Sequence[T | None]) -> Sequence[T | None]:
        present(operands, minimum)
        if len(operands) > maximum:
            raise ValueError(f"there are {len(operands)} operands, at most {maximum} are due")
        return (*operands, *absent[len(operands) :])

    def results(types: Types, attributes: Any) -> OutTypes:
        return as_tuple(infer(attributes, *checked(types)))

    def computed(arrays: Arrays, attributes: Any) -> OutArrays:
        return tuple(map(np.asarray, as_tuple(reference(attributes, *checked(arrays)))))

    def expression(types: Types, attributes: Any) -> Expr:
        b, declared = ExprBuilder(*types), results(types, attributes)
        if element is not None:
            at = b.point(declared[0])
            value = element(b, at, attributes, *checked(types))
            return b.finish(at, cast(value, declared[0].dtype))
        assert expr is not None
        stages = as_tuple(expr(b, attributes, *checked(types)))
        return b.done(*(_rounded(b, *pair) for pair in zip_equal(stages, declared)))

    for field in more.keys() & {"calls", "free_axes"}:
        more[field] = _of_operands(more[field])
    return OpSpec(
        name, attrs, (minimum, maximum), results, computed, tuple(dtypes), doc, tolerance,
        expression if expr or element else None,
        **{"call": None if expr or element else name, **more},
    )  # fmt: skip


def _rounded(b: ExprBuilder, stage: StageRef, y: TensorType) -> StageRef:
    """Returns `stage`, or a new stage that rounds it to the element type of `y`, its type."""
    at = b.point(y)
    value = b.read(stage, *at)
    return stage if value.dtype is y.dtype else b.stage(at, cast(value, y.dtype))


def _of_operands(function: Function) -> Callable[[Types, Any], Any]:
    return lambda types, attrs: function(attrs, *types)


def arity_of(function: Function) -> Arity:
    """Returns the number of operands of a function, which follow the attributes."""
    _, *operands = signature(function).parameters.values()
    return sum(p.default is Parameter.empty for p in operands), len(operands)
