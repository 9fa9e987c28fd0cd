"""Element types of torch, and the type in which torch computes with operands of several types."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

from tcc.errors import UserError
from tcc.frontends.torch.calls import Number, Tensor
from tcc.ir.types import BF16, BOOL, DTYPES, F32, I64, DType, DTypeKind

_KINDS = {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64)}
_DTYPES = {"bool": BOOL, "bfloat16": BF16} | {
    f"{kind}{bits}": DTYPES[f"{kind[0]}{bits}"] for kind, sizes in _KINDS.items() for bits in sizes
}


# A complex tensor is a real one with a last axis of two: real and imaginary part.
PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def element_type(name: str) -> DType:
    """Returns the dtype of torch's element type `name`; raises `UserError` for a type that tcc
    lacks."""
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise UserError(f"elements of type torch.{name} are not supported")
    return dtype


def part_type(name: str) -> DType:
    """Returns the dtype of torch's element type `name`, of either part if it is complex."""
    return element_type(PARTS.get(name, name))


def computed_type(operands: Sequence[Any]) -> DType:
    """Returns the dtype in which torch computes with tensors and numbers together.

    There are three groups of operands: tensors with axes, tensors without axes, and numbers. The
    first group that has operands gives the dtype, unless a later group has a higher kind. Kinds are
    in ascending order booleans, integers, and reals.
    """
    tiers: tuple[list[DType], list[DType], list[DType]] = ([], [], [])
    for operand in operands:
        if isinstance(operand, Tensor):
            tiers[0 if operand.shape else 1].append(element_type(operand.dtype))
        else:
            tiers[2].append(_number_type(operand))
    return max((reduce(_promoted, tier) for tier in tiers if tier), key=_rank)


def _number_type(value: Any) -> DType:
    kind = value.kind if isinstance(value, Number) else type(value).__name__
    return {"bool": BOOL, "int": I64}.get(kind, F32)


def _rank(dtype: DType) -> int:
    if dtype is BOOL:
        return 0
    return 1 if dtype.is_integer else 2


def _promoted(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if _rank(a) != _rank(b):
        return max(a, b, key=_rank)
    if a.is_float and a.bits == b.bits:
        return F32
    if a.kind is b.kind:
        return max(a, b, key=lambda d: d.bits)
    signed, other = (a, b) if a.kind is DTypeKind.INT else (b, a)
    if signed.bits > other.bits:
        return signed
    return DTYPES[f"i{min(2 * other.bits, 64)}"]
