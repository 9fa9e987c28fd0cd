"""Evaluates the bodies of stages exactly, as integers modulo a prime, to check derivations.

Values are int64 in `[0, p)` for a prime p.  In comparisons, a value v above p/2 stands for the
negative number `v - p`, so small integers compare as usual.  `INFINITY` and `MINUS_INFINITY` are
two more values.  A function that integers modulo p do not have, such as `sin`, is replaced by a
hash of its arguments.  So equal arguments give equal results, and different arguments give equal
results with a probability of 1/p.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from hashlib import blake2b
from math import isfinite, isinf
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from tcc.frozen import entity
from tcc.ir.expr import MONOIDS
from tcc.ir.expr.scalar import Apply, Arg, Cast, Const, Scalar, Scalars, walk
from tcc.ir.region import Literal, widens
from tcc.ir.types import BOOL, DType
from tcc.zipped import zip_equal

PRIMES = (2147483647, 2147483629)  # the largest two below 2^31, so that products fit 64 bits
INFINITY, MINUS_INFINITY = -1, -2

Values: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def key_of(*parts: object) -> int:
    """Returns a hash of `parts` with 64 bits."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def scattered(key: int, numbers: Values, prime: int) -> Values:
    """Returns a hash of each number modulo `prime`; `key` selects the hash function.

    The hash is splitmix64 (Steele, Lea and Flood 2014).
    """
    with np.errstate(over="ignore"):
        x = numbers.astype(np.uint64) + np.uint64(key)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x ^= x >> np.uint64(31)
    return (x % np.uint64(prime)).astype(np.int64)


def element(value: Literal, prime: int) -> int:
    """Returns the value modulo `prime` of a literal.

    A finite float is an exact fraction, whose quotient exists modulo `prime`. NaN gives a fixed
    value.
    """
    if isinstance(value, float) and not isfinite(value):
        if isinf(value):
            return INFINITY if value > 0 else MINUS_INFINITY
        return key_of("nan") % prime
    fraction = Fraction(value)
    return fraction.numerator * pow(fraction.denominator, -1, prime) % prime


@entity
class PrimeField:
    """Evaluates bodies modulo `prime`; `seed` selects the hashes that stand for functions."""

    prime: int
    seed: int

    def body(self, scalars: Scalars, factors: Sequence[Values]) -> list[Values]:
        """Returns the values of `scalars`; `factors[n]` is the array that `Arg` n stands for.

        The arrays broadcast.
        """
        value_of: dict[Scalar, Values] = {}
        for scalar in walk(*scalars):
            value_of[scalar] = self._scalar(scalar, value_of, factors)
        return [value_of[s] for s in scalars]

    def _scalar(
        self, scalar: Scalar, value_of: Mapping[Scalar, Values], factors: Sequence[Values]
    ) -> Values:
        match scalar:
            case Arg():
                return factors[scalar.number]
            case Const():
                return np.array(element(scalar.value, self.prime), np.int64)
            case Cast():
                return self._cast(value_of[scalar.arg], scalar.arg.dtype, scalar.dtype)
            case Apply():
                return self.apply(scalar.function, scalar.dtype, [value_of[a] for a in scalar.args])
            case _:
                raise TypeError(f"{type(scalar).__name__} is no scalar of a stage")

    def _cast(self, value: Values, source: DType, target: DType) -> Values:
        if target is BOOL:
            return self._truth(value != 0)
        if widens(source, target):
            return value
        return self.random(f"cast {source.name} {target.name}", [value])

    def apply(self, function: str, dtype: DType, args: list[Values]) -> Values:
        """Returns the results of a function of `FUNCTIONS`, which have type `dtype`."""
        if function in _ORDERED:
            return self._truth(_ORDERED[function](*map(self.signed, args)))
        if function in _LOGICAL:
            return _LOGICAL[function](*args)
        ring = _RING.get(function)
        if ring is not None and all(np.all(a >= 0) for a in args):
            return ring(*args) % self.prime
        if function in ("add", "sub", "neg", "exp"):
            return self._with_infinities(function, args)
        if function in ("max", "min", "abs"):
            return self._extremum(function, args)
        if function == "div" and dtype.is_float and np.all(args[0] >= 0):
            return self._quotient(*args)
        return self.random(f"{function} {dtype.name}", args)

    @staticmethod
    def _truth(value: Any) -> Values:
        return np.asarray(value, np.int64)

    def random(self, name: str, args: Sequence[Values]) -> Values:
        """Returns hashes of `name` and `args`, which stand for the results of a function `name`.

        Equal names and arguments give equal results.
        """
        mixed = np.zeros((), np.int64)
        for place, arg in enumerate(args):
            mixed = scattered(key_of(self.seed, name, place), mixed ^ (arg + 2), self.prime)
        return mixed

    def signed(self, value: Values) -> Values:
        """Returns the integers from -p/2 to p/2 for which the values stand.

        The infinities become -p and p.
        """
        p = self.prime
        centred = np.where(value > p // 2, value - p, value)
        return np.where(value >= 0, centred, np.where(value == INFINITY, p, -p))

    def _with_infinities(self, function: str, args: list[Values]) -> Values:
        if function == "exp":
            return np.where(args[0] == MINUS_INFINITY, 0, self.random("exp", args))
        a, b = (np.zeros((), np.int64), args[0]) if function == "neg" else args
        if function != "add":
            b = np.where(b < 0, INFINITY + MINUS_INFINITY - b, b)
            function = "sub"
        plain = _RING[function](np.maximum(a, 0), np.maximum(b, 0)) % self.prime
        opposite = (a < 0) & (b < 0) & (a != b)
        infinite = np.where(a < 0, a, np.where(b < 0, b, plain))
        return np.where(opposite, self.random("nan", [a, b]), infinite)

    def _extremum(self, function: str, args: list[Values]) -> Values:
        signed = [self.signed(a) for a in args]
        if function == "abs":
            return np.where(signed[0] < 0, self.apply("neg", BOOL, args), args[0])
        first = signed[0] >= signed[1] if function == "max" else signed[0] <= signed[1]
        return np.where(first, args[0], args[1])

    def _quotient(self, a: Values, b: Values) -> Values:
        """Returns a/b; where b is 0 or an infinity, a hash of a and b stands for the quotient."""
        power, exponent, inverse = np.maximum(b, 0), self.prime - 2, np.ones_like(b)
        while exponent:
            if exponent & 1:
                inverse = inverse * power % self.prime
            power, exponent = power * power % self.prime, exponent >> 1
        return np.where(b > 0, a * inverse % self.prime, self.random("div", [a, b]))

    def combined(
        self, monoid: str, dtypes: tuple[DType, ...], values: list[Values]
    ) -> list[Values]:
        """Returns the monoid's combination of `values` over the last axis.

        `values` has an array for each component, and `dtypes` its type.
        """
        if monoid == "sum" and np.all(values[0] >= 0):
            return [np.sum(values[0], axis=-1) % self.prime]  # up to 2^32 terms fit 64 bits
        row = MONOIDS[monoid]
        if not values[0].shape[-1]:
            shape = values[0].shape[:-1]
            return [np.broadcast_to(v, shape) for v in self.body(row.identity(dtypes), ())]
        while values[0].shape[-1] > 1:
            half = values[0].shape[-1] // 2
            pairs = [v[..., :half] for v in values] + [v[..., half : 2 * half] for v in values]
            values = [
                np.concatenate([new, old[..., 2 * half :]], axis=-1)
                for new, old in zip_equal(self.body(row.combine(dtypes), pairs), values)
            ]
        return [v[..., 0] for v in values]


_Function: TypeAlias = Callable[..., Values]
_RING: Mapping[str, _Function] = MappingProxyType(
    {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "neg": lambda a: -a,
    }
)
_ORDERED: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
        "eq": np.equal, "ne": np.not_equal,
    }
)  # fmt: skip
_LOGICAL: Mapping[str, _Function] = MappingProxyType(
    {
        "select": lambda c, a, b: np.asarray(np.where(c != 0, a, b)),
        "not": lambda a: 1 - a,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "is_nan": lambda a: 0 * a,
        "is_inf": lambda a: np.asarray(a < 0, np.int64),
    }
)
