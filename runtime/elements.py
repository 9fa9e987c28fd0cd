"""Values of pictures and sounds as elements of a port."""

from __future__ import annotations

from typing import Any

import numpy as np
from tcc.runtime import abi
from tcc.runtime.arrays import Array
from tcc.runtime.input_settings import Settings
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import InputError


def converted(values: Array, port: ModulePort, settings: Settings, where: str) -> Array:
    """Returns (v * scale - mean) / std for each of `values`, in the element type of `port`.

    The last axis of `values` has the channels, to which the numbers of `mean` and `std` belong.
    The arithmetic is in f64 for ports of f64, else in f32. Integers are rounded to the nearest, a
    tie to the even one. For floats that NumPy lacks the result is f32.

    Raises InputError for a port of booleans, strings or packed integers, for numbers of `mean` or
    `std` that are not those of the channels, and for values that do not fit the port's integers.
    """
    code = abi.DTYPE_CODES[port.dtype][0]
    is_integer = code in (0, 1)
    if port.dtype in ("bool", "string") or (is_integer and port.dtype in abi.EXTENSIONS):
        raise InputError(f"the input {port.name!r} takes {port.dtype}", where=where,
                         why="a picture or a sound gives numbers",
                         hint="save an array with np.save")  # fmt: skip
    element = np.dtype(np.float32) if port.dtype in abi.EXTENSIONS else abi.numpy_dtype(port.dtype)
    wide = np.dtype(np.float64 if port.dtype == "f64" else np.float32)
    numbers: Array = values.astype(wide)
    scale, mean, std = (
        _by_channel(name, numbers.shape[-1], constants, wide, where)
        for name, constants in (
            ("scale", (settings.scale,)),
            ("mean", settings.mean),
            ("std", settings.std),
        )
    )
    numbers = (numbers * scale - mean) / std
    if is_integer:
        numbers = np.rint(numbers)
        _check_range(numbers, element, port, where)
    with np.errstate(over="ignore"):
        elements: Array = numbers.astype(element)
    return elements


def _by_channel(
    name: str, channels: int, numbers: tuple[float, ...], wide: np.dtype[Any], where: str
) -> Array:
    if len(numbers) not in (1, channels):
        raise InputError(
            f"{name} has {len(numbers)} numbers",
            where=where,
            why=f"there are {channels} channels",
            hint="give one number, or one for each channel",
        )
    return np.array(numbers, wide)


def _check_range(numbers: Array, element: np.dtype[Any], port: ModulePort, where: str) -> None:
    limits = np.iinfo(element)
    if numbers.size and not (limits.min <= numbers.min() and numbers.max() <= limits.max):
        raise InputError(
            f"the values do not fit {port.dtype}",
            where=where,
            why=f"they reach from {numbers.min():g} to {numbers.max():g}",
            hint="move them by mean or scale: (v * scale - mean) / std",
        )
