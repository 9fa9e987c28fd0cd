"""Shape rules broadcast and unify dimensions, and messages name the faults."""

from __future__ import annotations

import pytest
from tcc.ir.index import Index, const, symbol
from tcc.ir.types import BOOL, F16, F32, U8, tensor
from tcc.ops import OPS
from tcc.ops.algebra.activation import GeluAttrs
from tcc.ops.algebra.arithmetic import BitShiftAttrs
from tcc.ops.algebra.movement import ConcatAttrs
from tcc.ops.algebra.quantize import QuantizeAttrs
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.composite.normalization import GroupNormAttrs
from tcc.ops.shapes import (
    AxisAttrs,
    UnequalDimsError,
    agree,
    broadcast_shapes,
    first_shape,
    reduced_shape,
)

N, M = symbol("n", 1), symbol("m", 1)


def dims(*values: Index | int) -> tuple[Index, ...]:
    return tuple(v if isinstance(v, Index) else const(v) for v in values)


@pytest.mark.parametrize(
    ("shapes", "result"),
    [
        (((), ()), ()),
        (((3, 1), (7,)), (3, 7)),
        (((N, 1), (1, M)), (N, M)),
        (((N, 5), (N, 5)), (N, 5)),
        (((N,), (1, N)), (1, N)),
        (((0, 3), (1, 3)), (0, 3)),
        (((2,), (5, 1), (4, 1, 1)), (4, 5, 2)),
    ],
)
def test_broadcasting(
    shapes: tuple[tuple[Index | int, ...], ...], result: tuple[Index | int, ...]
) -> None:
    assert broadcast_shapes(*(dims(*s) for s in shapes)) == dims(*result)


@pytest.mark.parametrize(("a", "b"), [((3,), (4,)), ((N,), (M,)), ((N,), (4,)), ((0,), (2,))])
def test_dims_that_do_not_broadcast(a: tuple[Index | int, ...], b: tuple[Index | int, ...]) -> None:
    with pytest.raises(UnequalDimsError, match=f"do not broadcast: {a[0]} and {b[0]} differ"):
        broadcast_shapes(dims(*a), dims(*b))


def test_a_reduced_axis_stays_as_one_or_goes() -> None:
    assert reduced_shape(dims(N, 3, M), (0, 2), True) == dims(1, 3, 1)
    assert reduced_shape(dims(N, 3, M), (0, 2), False) == dims(3)
    with pytest.raises(ValueError, match="repeat"):
        reduced_shape(dims(N, 3), (1, 1), True)
    with pytest.raises(ValueError, match="axis 2 is not an axis of a tensor of rank 2"):
        reduced_shape(dims(N, 3), (2,), True)


def test_only_the_same_dims_agree() -> None:
    assert agree(N + 1, 1 + N, "channels") is N + 1
    with pytest.raises(UnequalDimsError, match="channels: n and m differ") as error:
        agree(N, M, "channels")
    assert error.value.dims == (N, M)
    with pytest.raises(UnequalDimsError):
        agree(N, const(4), "channels")


def test_the_first_shape_is_not_enlarged() -> None:
    assert first_shape((tensor(F32, N, 3), tensor(F32, 3), None)) == dims(N, 3)
    with pytest.raises(ValueError, match="does not broadcast"):
        first_shape((tensor(F32, 3), tensor(F32, N, 3)))


VECTOR = tensor(F32, 3)
REFUSED = [
    ("add", (VECTOR, tensor(F16, 3)), None, "f32 and f16 differ"),
    ("sqrt", (tensor(BOOL, 3),), None, "may not be bool"),
    ("where", (VECTOR, VECTOR, VECTOR), None, "condition"),
    ("bit_shift", (VECTOR, VECTOR), BitShiftAttrs("LEFT"), "may not be f32"),
    ("reduce_sum", (VECTOR,), ReduceAttrs((1,), True), "axis 1"),
    ("softmax", (VECTOR,), AxisAttrs(1), "axis 1"),
    ("clip", (VECTOR, tensor(F32, 2, 3)), None, "does not broadcast"),
    ("group_normalization", (tensor(F32, 1, 4, 5), VECTOR, VECTOR), GroupNormAttrs(1), "channels"),
    (
        "group_normalization",
        (tensor(F32, 1, 3, 5), VECTOR, VECTOR),
        GroupNormAttrs(2),
        "3 channels are no groups of 2",
    ),
    (
        "quantize_linear",
        (tensor(F32, 6), VECTOR),
        QuantizeAttrs(U8, 0, -2),
        "block size -2 is negative",
    ),
    ("quantize_linear", (tensor(F32, 6), VECTOR), QuantizeAttrs(U8, 0), "scales along the axis"),
    ("prelu", (VECTOR,), None, "operand 1 is missing"),
    ("where", (tensor(BOOL, 3), None, VECTOR), None, "operand 1 is missing"),
    ("concat", (VECTOR, None), ConcatAttrs(0), "operand 1 is missing"),
    ("sqrt", (VECTOR, VECTOR), None, "there are 2 operands, at most 1 are due"),
]


@pytest.mark.parametrize(("name", "types", "attrs", "message"), REFUSED)
def test_inference_names_the_refused_value(
    name: str, types: tuple[object, ...], attrs: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        OPS[name].infer(types, attrs)  # type: ignore[arg-type]


@pytest.mark.parametrize("attrs", [GeluAttrs, BitShiftAttrs])
def test_attributes_refuse_unknown_words(attrs: type[object]) -> None:
    with pytest.raises(ValueError, match=r"there is no .* 'sideways'"):
        attrs("sideways")  # type: ignore[call-arg]
