"""OpSpec: the type of one row of the op table.

A row has everything that tcc knows about an op.  Importer dispatch, shape inference, verification,
constant folding, the graph evaluator, the test matrix, `tcc ops` and the support table read it. The
rows are in `tcc.ops`.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum, Flag, auto
from typing import Any, TypeVar

import numpy as np
from tcc.errors import UserError
from tcc.frozen import entity, field_names, frozen
from tcc.ir.expr import Expr
from tcc.ir.types import STRING, DType, DTypeKind, TensorType

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")


class Trait(Flag):
    """Properties of an op on which passes rely."""

    ELEMENTWISE = auto()  # output[i] depends on element i of each broadcast input only
    REDUCTION = auto()  # combines elements along axes
    CONTRACTION = auto()  # sums products of elements of two operands
    WINDOW = auto()  # slides a window over all axes after batch (0) and channel (1)
    MOVEMENT = auto()  # copies elements and computes nothing
    LISTS = auto()  # accepts sequences and optionals
    COLLECTIVE = auto()  # all ranks of a comm compute it together
    OPAQUE = auto()  # passes never fold, merge or move it


class Tolerance(Enum):
    """The accuracy that tests demand of an op's results (see compiler/ops/README.md)."""

    EXACT = "exact"  # movement, integers, comparisons: bit for bit
    ELEMENTWISE = "elementwise"  # primitive functions: at most 4 ULP
    ACTIVATION = "activation"  # composed activations: 1e-6 absolute
    ACCUMULATE = "accumulate"  # reductions and contractions of length K: 2 * gamma_K * (|A| . |B|)


@frozen
class OnnxBinding:
    """The ONNX operator `name`, which has the same inputs and attributes as the op.

    `since` is the oldest opset in which they are the same.  Opsets before 7 count as opset 7; the
    importer has converters for the operators that differ there.  `attrs` has pairs (ONNX attribute,
    field of the op's attributes) for attributes whose names differ.  Operators with other
    differences, such as inputs that become attributes, have converters in the importer instead.
    """

    name: str
    since: int = 1
    attrs: tuple[tuple[str, str], ...] = ()


@frozen
class NoAttrs:
    """The attribute type of ops that have none."""


# The types and arrays of an op's operands (None: an absent optional operand) and of its results.
Types = Sequence[TensorType | None]
Arrays = Sequence[Array | None]
OutTypes = tuple[TensorType, ...]
OutArrays = tuple[Array, ...]
NamedArrays = Mapping[str, Array]
Arity = tuple[int, int]  # the minimum and the maximum number of inputs

# An axis of each operand or of each result; None in one that has no such axis.
Axes = tuple[int | None, ...]


@frozen
class FreeAxes:
    """Axes of operands and of results, of one size, whose elements are computed independently.

    Element i of the results depends on element i of the operands, and on operands without the axis.
    """

    operands: Axes
    results: Axes


Infer = Callable[[Types, Any], OutTypes]
Reference = Callable[[Arrays, Any], OutArrays]


@entity
class OpSpec:
    """A row of the op table.

    `infer(types, attrs)` returns the output types.  It raises `ValueError` with one sentence for
    operands that the op does not accept; the caller adds the location.  `reference(arrays, attrs)`
    returns the results by NumPy; all dims in `attrs` are integers.  `expr(types, attrs)` returns
    the tensor expression.  `call` names a C function of the runtime; ops without `expr` have one
    unless they are control flow.  If an op has both, the C function is used where `calls(types,
    attrs)` is true, because the expression does much more work there.  The test cases are in
    `tests/ops/samples`.
    """

    name: str
    attrs: type[Any]
    arity: Arity  # the number of inputs; absent inputs between others count
    infer: Infer
    reference: Reference
    dtypes: tuple[DType, ...]
    doc: str
    tolerance: Tolerance = Tolerance.EXACT
    expr: Callable[[Types, Any], Expr] | None = None
    call: str | None = None
    calls: Callable[[Types, Any], bool] | None = None
    traits: Trait = Trait(0)
    onnx: OnnxBinding | None = None
    free_axes: Callable[[Types, Any], Sequence[FreeAxes]] | None = None

    def __repr__(self) -> str:
        return f"op {self.name}"


def exact(attrs: Any) -> Hashable:
    """Returns a hashable key of the attributes in which 0.0 and -0.0 differ, and 1 and True."""
    return tuple(_exact(getattr(attrs, name)) for name in field_names(attrs))


def _exact(item: Any) -> Hashable:
    if isinstance(item, float):
        return "float", item.hex()
    if isinstance(item, bool):
        return "bool", item
    if isinstance(item, tuple):
        return tuple(map(_exact, item))
    hashable: Hashable = item
    return hashable


def result_types(op: OpSpec, types: Types, attrs: Any, loc: str) -> OutTypes:
    """Returns the types of an op's results; raises `UserError` with `loc` where the op does not
    take these operands."""
    try:
        _check_handles(op, types)
        return op.infer(types, attrs)
    except ValueError as error:
        operand_types = ", ".join(repr(t) if t else "-" for t in types)
        raise UserError(
            f"{op.name} does not take these operands",
            where=loc,
            why=f"{error} (got {operand_types})",
        ) from error


def _check_handles(op: OpSpec, types: Types) -> None:
    """Raises ValueError if an operand is a list or has strings and the op does not accept it."""
    kinds = {t.dtype.kind for t in types if t is not None}
    if DTypeKind.LIST in kinds and Trait.LISTS not in op.traits:
        raise ValueError("sequences and optionals are no operands of it")
    moves = op.traits & (Trait.MOVEMENT | Trait.LISTS)
    if DTypeKind.STRING in kinds and not moves and STRING not in op.dtypes:
        raise ValueError("strings are no operands of it")
