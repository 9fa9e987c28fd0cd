"""Narrow element types agree with ml_dtypes for every code, every half, and packed bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from tcc.ir.narrow import decode, encode, pack, packed_size, unpack
from tcc.ir.types import DTYPES, F4E2M1, F8E8M0

TYPES = {
    "i2": ml_dtypes.int2,
    "i4": ml_dtypes.int4,
    "u2": ml_dtypes.uint2,
    "u4": ml_dtypes.uint4,
    "f4e2m1": ml_dtypes.float4_e2m1fn,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "f8e8m0": ml_dtypes.float8_e8m0fnu,
}
FLOATS = [n for n in TYPES if n.startswith("f")]
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def test_every_narrow_type_is_here() -> None:
    assert set(TYPES) == {d.name for d in DTYPES.values() if d.is_narrow}


@pytest.mark.parametrize("name", TYPES)
def test_every_code_has_its_value(name: str) -> None:
    dtype = DTYPES[name]
    codes = np.arange(1 << dtype.bits, dtype=np.uint8)
    expected = codes.view(TYPES[name]).astype(dtype.carrier)
    decoded = decode(codes, dtype)
    np.testing.assert_array_equal(decoded, expected)
    if dtype.is_float:
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(decoded[number]), np.signbit(expected[number]))
        codes, decoded = codes[number], decoded[number]
    np.testing.assert_array_equal(encode(decoded, dtype), codes)


@pytest.mark.parametrize("name", [n for n in FLOATS if n != "f8e8m0"])
def test_every_half_is_rounded_to_nearest(name: str) -> None:
    dtype = DTYPES[name]
    with np.errstate(all="ignore"):
        small = HALVES * np.float32(2.0**-7)
        values = np.concatenate([HALVES, small, np.float32([464.01, 1e30])])
        expected = values.astype(TYPES[name]).view(np.uint8)
    encoded = encode(values, dtype)
    number = ~np.isnan(values) if dtype is F4E2M1 else np.full(values.shape, True)
    np.testing.assert_array_equal(encoded[number], expected[number])


def test_powers_of_two_are_rounded_towards_zero() -> None:
    values = np.float32([1.0, 1.99, 2.0, 2.0**-127, 3e38, 0.0, np.inf, np.nan])
    assert encode(values, F8E8M0).tolist() == [127, 127, 128, 0, 254, 0, 255, 255]


@pytest.mark.parametrize("name", [n for n in TYPES if DTYPES[n].is_packed])
@pytest.mark.parametrize("count", [0, 1, 7, 16, 33])
def test_packed_bytes_are_those_of_onnx(name: str, count: int) -> None:
    dtype = DTYPES[name]
    codes = np.random.default_rng(count).integers(0, 1 << dtype.bits, count).astype(np.uint8)
    data = pack(codes, dtype)
    assert data.shape == (packed_size(count, dtype),)
    number = helper.np_dtype_to_tensor_dtype(np.dtype(TYPES[name]))
    tensor = helper.make_tensor("t", number, (count,), codes.view(TYPES[name]))
    raw = np.array(tensor.int32_data, np.int64).astype(np.uint8)
    assert tensor.data_type in (
        TensorProto.INT2, TensorProto.INT4, TensorProto.UINT2, TensorProto.UINT4,
        TensorProto.FLOAT4E2M1,
    )  # fmt: skip
    np.testing.assert_array_equal(data, raw)
    np.testing.assert_array_equal(unpack(data, count, dtype), codes)
