"""What random operators of all frameworks draw, from the bits of `tcc.ops.random`.

    z = normal(%shape)     %s = run_seed() ; %n = stream_number(hash of the node's name)
                           %u, %v = random_bits(%s, %n), halves 0 and 1
                           sqrt(-2 log %u) cos(2 pi %v)

In a body that a loop repeats each trip has a seed of its own, drawn from the seed around the loop,
the loop's stream and the trip's number.  Streams are hashes of names, so a node draws the same
however the rest of the model is compiled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from math import pi

from tcc.frontends.emit import Emitter
from tcc.frontends.scope import Operand, Scope
from tcc.ir.index import Index
from tcc.ir.types import BF16, F16, F32, F64, I32, I64, DType
from tcc.ops import OPS
from tcc.record import record

# The bits that a number in [0, 1) of each type holds exactly.
_DIGITS = {F16: 11, BF16: 8, F32: 24, F64: 53}
_BITS = OPS["random_bits"].attrs


def _stream(scope: Scope, key: str, loc: str) -> Operand:
    """The number of a stream, which no other node of the model has."""
    drawn = scope.session.drawn
    drawn[key] += 1
    text = f"{drawn[key]}:{key}".encode()
    return _number(scope, int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1, loc)


def _number(scope: Scope, number: int, loc: str) -> Operand:
    return scope.emit("stream_number", (), OPS["stream_number"].attrs(number), loc=loc)[0]


def _seed(scope: Scope, fixed: int | None, loc: str) -> Operand:
    """The seed of what runs in `scope`: a `fixed` one of the model's, else the run's."""
    if fixed is None and scope.seed is not None:
        return scope.seed
    if scope.around is None:
        if fixed is not None:
            return _number(scope, fixed, loc)
        (seed,) = scope.emit("run_seed", (), OPS["run_seed"].attrs())
    else:
        seed = _seed(scope.around, fixed, loc)
        if scope.repeats:
            stream = _stream(scope.around, scope.path, loc)
            trip = scope.emit("trip_number", (), OPS["trip_number"].attrs(), loc=loc)[0]
            (bits,) = scope.emit("random_bits", (seed, stream, trip), _BITS(()), loc=loc)
            (seed,) = scope.emit("cast", (bits,), OPS["cast"].attrs(I64), loc=loc)
    if fixed is None:
        scope.seed = seed
    return seed


@record
class Draws:
    """The draws of one source node: each method gives a tensor of `shape`, from the same bits."""

    ctx: Emitter
    shape: tuple[Index, ...]
    seed: Operand
    stream: Operand

    def bits(self, count: int = 64, half: int = 0) -> Operand:
        """Integers below 2**count, as u64."""
        operands = (self.seed, self.stream)
        return self.ctx.emit("random_bits", *operands, shape=self.shape, half=half, count=count)

    def _fraction(self, dtype: DType, digits: int, half: int = 0) -> Operand:
        """Multiples of 2**-digits in [0, 1)."""
        whole = self.ctx.cast(self.bits(digits, half), I32 if digits < 32 else I64)
        return self.ctx.cast(whole, dtype) * 2.0**-digits

    def inside(self, dtype: DType) -> Operand:
        """Numbers of f32 or f64 in (0, 1], small ones in finer steps."""
        digits = 53 if dtype is F64 else 31
        return self._fraction(dtype, digits) + 0.5 ** (digits + 1)

    def uniform(self, dtype: DType, low: float = 0.0, high: float = 1.0) -> Operand:
        """Numbers in [low, high)."""
        found = self._fraction(_wide(dtype), _DIGITS[dtype])
        if (low, high) == (0.0, 1.0):
            return self.ctx.cast(found, dtype)
        found = self.ctx.cast(found * (high - low) + low, dtype)
        # The sum may round to the end, which is outside.
        return self.ctx.where(found < high, found, low)

    def normal(self, dtype: DType, mean: float = 0.0, deviation: float = 1.0) -> Operand:
        """Box and Muller's transform of two uniform numbers (1958)."""
        wide = _wide(dtype)
        angle = self._fraction(wide, _DIGITS[wide], 1) * (2 * pi)
        radius = self.ctx.emit("sqrt", self.ctx.emit("log", self.inside(wide)) * -2.0)
        found = radius * self.ctx.emit("cos", angle)
        if (mean, deviation) != (0.0, 1.0):
            found = found * deviation + mean
        return self.ctx.cast(found, dtype)

    def integers(self, low: int, high: int) -> Operand:
        """Integers in [low, high), as i64."""
        return self.ctx.cast(self.ctx.emit("mod", self.bits(), high - low), I64) + low


def draws(ctx: Emitter, shape: Iterable[Index], fixed: int | None = None) -> Draws:
    """The draws of a source node, with the run's seed or a `fixed` one."""
    key = f"{ctx.scope.path}{next(iter(ctx.names), ctx.loc)}"
    stream = _stream(ctx.scope, key, ctx.loc)
    return Draws(ctx, tuple(shape), _seed(ctx.scope, fixed, ctx.loc), stream)


def dropped(
    ctx: Emitter,
    x: Operand,
    ratio: Operand | float,
    training: Operand | None = None,
    fixed: int | None = None,
) -> tuple[Operand, Operand]:
    """`x` with elements that are 0 at the rate `ratio` and others scaled for their mean to stay,
    and which are kept; where `training` is given and false, all are and stay as they are."""
    one = ctx.filled(1.0, F32)
    chance = ctx.filled(ratio, F32) if isinstance(ratio, float) else ctx.cast(ratio, F32)
    chance = ctx.reshape(chance, ())
    kept = chance <= draws(ctx, x.shape, fixed).uniform(F32)
    scale = one / (one - chance)
    if training is not None:
        drops = ctx.reshape(training, ())
        kept, scale = kept | ~drops, ctx.where(drops, scale, one)
    return ctx.where(kept, x * ctx.cast(scale, x.dtype), 0.0), kept


def race(ctx: Emitter, logarithms: Operand, count: Index, fixed: int | None = None) -> Operand:
    """The scores of classes by which the largest is a draw of one, in proportion to its weight,
    and the k largest are k draws without replacement: log(w / e), e exponential (Efraimidis and
    Spirakis 2006).  `logarithms` [batch, classes] are of weights that need no sum of 1; the result
    is [batch, count, classes].  A class of weight 0 has a score of -inf."""
    wide = _wide(logarithms.dtype)
    batch, classes = logarithms.shape
    most = 1 - 2.0 ** -_DIGITS[wide]
    u = ctx.emit("min", draws(ctx, (batch, count, classes), fixed).inside(wide), most)
    # Half of -log(1 - u), without cancelling: small ones are as fine as u is.
    noise = ctx.emit("log", ctx.emit("atanh", u / (2.0 - u)))
    return ctx.unsqueeze(ctx.cast(logarithms, wide), 1) - noise


def _wide(dtype: DType) -> DType:
    """The type to compute in."""
    return F64 if dtype is F64 else F32
