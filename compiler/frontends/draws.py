"""Random operators of all frameworks, written with the bits of `tcc.ops.random`.

    z = normal(%shape)     %s = run_seed() ; %n = stream_number(hash of the node's name)
                           %u, %v = random_bits(%s, %n), halves 0 and 1
                           sqrt(-2 log %u) cos(2 pi %v)

Each iteration of a loop has its own seed, drawn from the seed outside the loop, the loop's stream
and the iteration's number. Streams are hashes of names, so a node draws the same numbers however
the rest of the model is compiled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from math import pi

from tcc.frontends.emit import emit, filled
from tcc.frontends.operand import Operand, current
from tcc.frontends.scope import Scope
from tcc.frozen import frozen
from tcc.ir.index import Index
from tcc.ir.types import BF16, F16, F32, F64, I32, I64, DType
from tcc.ops import OPS

# The number of bits of the significand, by type. A random integer of n bits, divided by 2**n, is
# exact in a type with n bits.
_DIGITS = {F16: 11, BF16: 8, F32: 24, F64: 53}
_BITS = OPS["random_bits"].attrs


def _stream(scope: Scope, key: str) -> Operand:
    """Returns the number of a random stream; no other node of the model has the same number."""
    drawn = scope.session.drawn
    drawn[key] += 1
    text = f"{drawn[key]}:{key}".encode()
    return _number(scope, int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1)


def _number(scope: Scope, number: int) -> Operand:
    return scope.emit("stream_number", (), OPS["stream_number"].attrs(number))[0]


def _seed(scope: Scope, fixed: int | None) -> Operand:
    """Returns the seed for nodes in `scope`: the model's `fixed` seed, else the seed of the run."""
    if fixed is None and scope.seed:
        return scope.seed
    if scope.enclosing is None:
        if fixed is not None:
            return _number(scope, fixed)
        # All random nodes share this one, so it has no place.
        run_seed = OPS["run_seed"]
        seed = scope.wrap(*scope.builder.add(run_seed, (), run_seed.attrs()))
    else:
        seed = _seed(scope.enclosing, fixed)
        if scope.repeats:
            stream = _stream(scope.enclosing, scope.path)
            trip = scope.emit("trip_number", (), OPS["trip_number"].attrs())[0]
            (bits,) = scope.emit("random_bits", (seed, stream, trip), _BITS(()))
            (seed,) = scope.emit("cast", (bits,), OPS["cast"].attrs(I64))
    if fixed is None:
        scope.seed = seed
    return seed


@frozen
class Draws:
    """The random numbers of a source node.

    Each method returns a tensor of `shape`. All methods use the same random bits.
    """

    shape: tuple[Index, ...]
    seed: Operand
    stream: Operand

    def bits(self, count: int = 64, half: int = 0) -> Operand:
        """Returns random integers in [0, 2**count), as u64.

        The generator gives 128 bits for each element; `half` 0 or 1 selects 64 of them.
        """
        operands = (self.seed, self.stream)
        return emit("random_bits", *operands, shape=self.shape, half=half, count=count)

    def _fraction(self, dtype: DType, digits: int, half: int = 0) -> Operand:
        """Returns random multiples of 2**-`digits` in [0, 1); `half` selects bits (see `bits`)."""
        integers = self.bits(digits, half).cast(I32 if digits < 32 else I64)
        return integers.cast(dtype) * 2.0**-digits

    def inside(self, dtype: DType) -> Operand:
        """Returns f32 or f64 numbers in (0, 1], with finer steps near 0."""
        digits = 53 if dtype is F64 else 31
        return self._fraction(dtype, digits) + 0.5 ** (digits + 1)

    def uniform(self, dtype: DType, low: float = 0.0, high: float = 1.0) -> Operand:
        """Returns uniform numbers in [low, high)."""
        numbers = self._fraction(_wide(dtype), _DIGITS[dtype])
        if (low, high) == (0.0, 1.0):
            return numbers.cast(dtype)
        numbers = (numbers * (high - low) + low).cast(dtype)
        # Rounding of the sum may reach `high`, which lies outside of the range.
        return (numbers < high).select(numbers, low)

    def normal(self, dtype: DType, mean: float = 0.0, deviation: float = 1.0) -> Operand:
        """Returns normally distributed numbers, by Box and Muller's transform of two uniform ones
        (1958)."""
        wide = _wide(dtype)
        angle = self._fraction(wide, _DIGITS[wide], 1) * (2 * pi)
        radius = (self.inside(wide).log() * -2.0).sqrt()
        numbers = radius * emit("cos", angle)
        if (mean, deviation) != (0.0, 1.0):
            numbers = numbers * deviation + mean
        return numbers.cast(dtype)

    def integers(self, low: int, high: int) -> Operand:
        """Returns integers in [low, high), as i64."""
        return emit("mod", self.bits(), high - low).cast(I64) + low


def draws(shape: Iterable[Index], fixed: int | None = None) -> Draws:
    """Returns the random numbers of a source node, from the run's seed or from a `fixed` one."""
    ctx = current()
    key = f"{ctx.scope.path}{next(iter(ctx.names), ctx.loc)}"
    stream = _stream(ctx.scope, key)
    return Draws(tuple(shape), _seed(ctx.scope, fixed), stream)


def dropped(
    x: Operand,
    ratio: Operand | float,
    training: Operand | None = None,
    fixed: int | None = None,
) -> tuple[Operand, Operand]:
    """Returns `x` with dropout, and the mask of the elements that are not dropped.

    Elements are set to 0 at the rate `ratio`; the others are scaled so that the mean does not
    change. If `training` is false, no element is dropped or scaled.
    """
    one = filled(1.0, F32)
    chance = filled(ratio, F32) if isinstance(ratio, float) else ratio.cast(F32)
    chance = chance.reshape(())
    mask = chance <= draws(x.shape, fixed).uniform(F32)
    scale = one / (one - chance)
    if training:
        drops = training.reshape(())
        mask, scale = mask | ~drops, drops.select(scale, one)
    return mask.select(x * scale.cast(x.dtype), 0.0), mask


def race(logarithms: Operand, count: Index, fixed: int | None = None) -> Operand:
    """Returns random scores of classes, [batch, count, classes], from log weights [batch, classes].

    The class with the largest score is drawn in proportion to its weight.  The classes with the k
    largest scores are k classes drawn without replacement.  The score of a class with weight w is
    log(w / e) with exponentially distributed e (Efraimidis and Spirakis 2006). Weights need not sum
    to 1; a class of weight 0 has the score -inf.
    """
    wide = _wide(logarithms.dtype)
    batch, classes = logarithms.shape
    limit = 1 - 2.0 ** -_DIGITS[wide]
    u = draws((batch, count, classes), fixed).inside(wide).minimum(limit)
    # This is half of -log(1 - u).  atanh avoids cancellation: small results are as precise as u.
    noise = (u / (2.0 - u)).atanh().log()
    return logarithms.cast(wide).unsqueeze(1) - noise


def _wide(dtype: DType) -> DType:
    """Returns the float type in which random numbers for results of `dtype` are computed."""
    return F64 if dtype is F64 else F32
