"""Element types and contents of torch tensors."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from tcc.errors import UserError
from tcc.ir.op import Array
from tcc.ir.types import BF16, DTYPES, DType

_DTYPES = MappingProxyType(
    {
        torch.bool: DTYPES["bool"],
        torch.int8: DTYPES["i8"],
        torch.int16: DTYPES["i16"],
        torch.int32: DTYPES["i32"],
        torch.int64: DTYPES["i64"],
        torch.uint8: DTYPES["u8"],
        torch.uint16: DTYPES["u16"],
        torch.uint32: DTYPES["u32"],
        torch.uint64: DTYPES["u64"],
        torch.float16: DTYPES["f16"],
        torch.bfloat16: DTYPES["bf16"],
        torch.float32: DTYPES["f32"],
        torch.float64: DTYPES["f64"],
    }
)


def element_type(dtype: Any, where: str) -> DType:
    """The dtype of a torch element type; raises `UserError` for those tcc does not have."""
    found = _DTYPES.get(dtype)
    if found is None:
        raise UserError(f"elements of type {dtype} are not supported", where=where)
    return found


def contents(tensor: Any, where: str) -> tuple[Array, DType]:
    """A tensor's elements and their type: the tensor's own memory where NumPy has the type.

    Raises `UserError` for a tensor without contents here (fake, sparse, quantised).
    """
    dtype = element_type(tensor.dtype, where)
    if type(tensor).__name__ == "FakeTensor" or tensor.layout is not torch.strided:
        raise UserError(f"a {tensor.layout} tensor has no contents to compile", where=where)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if dtype is BF16:
        plain = plain.float()
    array: Array = plain.numpy()
    return array, dtype
