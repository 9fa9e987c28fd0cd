"""Decides if storing weights in half the bytes makes their matmuls faster."""

from math import inf, sqrt

from tcc.ir.types import BF16, F16, DType
from tcc.schedule.cpu.machine import Machine

# Instructions that widen a vector of a weight to f32: one shift for bf16, two conversions for f16.
_WIDENING = {BF16: 1, F16: 2}
# Rows of results that use a widened vector before it is loaded and widened again.
_ROWS = 6


def most_uses(machine: Machine, dtype: DType, constants: int) -> float:
    """Returns how many results of a run may use each element of a weight, at most, if storing the
    weight as `dtype` is to save time.

    With more uses, widening the weight to f32 takes longer than reading fewer bytes saves. The
    result is infinite if `dtype` is f32. `constants` are the bytes of all the model's weights in
    f32. Weights that the last cache does not keep come from memory in every run. Reading a weight
    and multiplying it overlap in part: together they take about the root of the sum of their
    squares.
    """
    if dtype not in _WIDENING:
        return inf
    rate = machine.constants(constants, machine.memory.reading(together=True))
    multiply = 2 / machine.peak
    widen = multiply * (1 + _WIDENING[dtype] / _ROWS)
    saved = (4 / rate) ** 2 - (dtype.bytes / rate) ** 2
    return sqrt(saved / (widen**2 - multiply**2))
