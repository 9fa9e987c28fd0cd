"""OpSpec: the type of one row of the op table.

A row is all that tcc knows of an op.  Importer dispatch, shape inference, verification, constant
folding, the graph evaluator, the test matrix, `tcc ops` and the support table follow from it. `ir`
has the type; the rows are in `tcc.ops`.
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
    """Facts of an op that passes read."""

    ELEMENTWISE = auto()  # output[i] depends on input[i] after broadcasting only
    REDUCTION = auto()  # combines along axes
    CONTRACTION = auto()  # sum of products
    WINDOW = auto()  # slides over spatial axes (axis 0 batch, axis 1 channel)
    MOVEMENT = auto()  # copies elements, computes nothing
    LISTS = auto()  # takes sequences and optionals
    COLLECTIVE = auto()  # all ranks of a comm compute it together
    OPAQUE = auto()  # no algebra; never folded, merged or moved


class Tolerance(Enum):
    """The comparison of an op's results in tests (compiler/ops/README.md has the bounds)."""

    EXACT = "exact"  # movement, integers, comparisons: bit for bit
    ELEMENTWISE = "elementwise"  # primitive functions: at most 4 ULP
    ACTIVATION = "activation"  # composed activations: 1e-6 absolute
    ACCUMULATE = "accumulate"  # reductions and contractions of length K: 2 * gamma_K * (|A| . |B|)


@frozen
class OnnxBinding:
    """A 1:1 binding: the ONNX operator has the same inputs and attributes.

    `since` is the oldest opset for which it holds; the importer converts opsets before 7.  `attrs`
    maps ONNX attribute names to fields of the op's attribute type where they differ.  Ops that need
    more (inputs that become attributes, defaults by opset) are in the importer's table.
    """

    name: str
    since: int = 1
    attrs: tuple[tuple[str, str], ...] = ()


@frozen
class NoAttrs:
    """The attribute type of ops that have none."""


# Operands of an op, None where an optional one is absent; and its results.
Types = Sequence[TensorType | None]
Arrays = Sequence[Array | None]
OutTypes = tuple[TensorType, ...]
OutArrays = tuple[Array, ...]
NamedArrays = Mapping[str, Array]
Arity = int | tuple[int, int]  # a number, or the minimum and the maximum

Infer = Callable[[Types, Any], OutTypes]
Reference = Callable[[Arrays, Any], OutArrays]


@entity
class OpSpec:
    """One op.

    `infer(types, attrs)` returns the output types; it raises `ValueError` with one sentence for
    operands that the op does not take (the caller adds the location).  `reference(arrays, attrs)`
    is the obvious NumPy meaning, with dims bound to integers.  `expr(types, attrs)` is the tensor
    expression.  `call` is a C function of the runtime; ops without `expr` have it unless they are
    control flow.  An op with both is called where `calls(types, attrs)` says that the expression is
    much more work.  The test cases are in `tests/ops/samples`.
    """

    name: str
    attrs: type[Any]
    arity: Arity  # of the inputs; optional ones may be None in between
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

    @property
    def numbers(self) -> tuple[int, int]:
        """The minimum and the maximum number of inputs."""
        return (self.arity, self.arity) if isinstance(self.arity, int) else self.arity

    def __repr__(self) -> str:
        return f"op {self.name}"


def exact(attrs: Any) -> Hashable:
    """Returns the fields of attributes as a key: 0.0 and -0.0 differ, and so do 1 and True."""
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
    """Raises ValueError where an operand is strings or a list and the op takes none."""
    kinds = {t.dtype.kind for t in types if t is not None}
    if DTypeKind.LIST in kinds and Trait.LISTS not in op.traits:
        raise ValueError("sequences and optionals are no operands of it")
    moves = op.traits & (Trait.MOVEMENT | Trait.LISTS)
    if DTypeKind.STRING in kinds and not moves and STRING not in op.dtypes:
        raise ValueError("strings are no operands of it")
