"""Whether storing weights in half the bytes makes their products faster."""

from math import inf, sqrt

from tcc.ir.types import BF16, F16, DType
from tcc.schedule.cpu.machine import Machine

# Vector instructions that widen a vector of a weight: a shift, or a conversion of two halves.
_WIDENING = {BF16: 1, F16: 2}
# Rows of results that a widened vector serves before it is loaded again.
_ROWS = 6


def most_uses(machine: Machine, dtype: DType, constants: int) -> float:
    """How many results of a run may use each element of a weight, for its products in f32 to be
    faster with the weight stored as `dtype`.

    `constants` are the bytes of all the model's weights in f32: what the last cache does not keep
    of them comes from memory at every run.  Reading a weight and multiplying it overlap in part:
    together they take about the root of the sum of their squares.  Infinite for f32.
    """
    if dtype not in _WIDENING:
        return inf
    rate = machine.constants(constants, machine.memory.reading(together=True))
    multiply = 2 / machine.peak
    widen = multiply * (1 + _WIDENING[dtype] / _ROWS)
    saved = (4 / rate) ** 2 - (dtype.bytes / rate) ** 2
    return sqrt(saved / (widen**2 - multiply**2))
