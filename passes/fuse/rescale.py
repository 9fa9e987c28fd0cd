"""Finds the factor by which a sum changes when a value that its terms depend on changes.

    l = sum(j) exp(s[j] - m)      m -> m'      l' = l * exp(m - m')
    sum(j) exp(s[j] - m) * v[j]   m -> m'      the same factor

A term f(x, m) has a factor h if f(x, m') = f(x, m) * h(m, m') for all x.  The factor is derived
from the term by rules of algebra, and then tested on numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tcc.ir.expr import extent
from tcc.ir.expr.evaluate import evaluate_scalars
from tcc.ir.expr.scalar import (
    Apply,
    Cast,
    Const,
    IndexValue,
    Read,
    Scalar,
    apply,
    argument,
    index_value,
    literal,
    replaced,
    transform,
    uncast,
    walk,
)
from tcc.ir.index import Var, nonnegative
from tcc.ir.types import I64
from tcc.ops.formula import choose
from tcc.zipped import zip_equal

_TRIALS = 64


def rescaling(term: Scalar, state: Read) -> Scalar | None:
    """Returns the factor by which a change of `state` multiplies `term`; None if there is none.

    The factor is a scalar of `Arg(0)`, the old state, and `Arg(1)`, the new state.  Returns None
    also if `term` and `state` do not have the same floating-point type.
    """
    if term.dtype is not state.dtype or not term.dtype.is_float:
        return None
    term = transform(term, _unrounded)
    factor = _ratio(term, state)
    return factor if factor is not None and _holds(term, state, factor) else None


def _unrounded(scalar: Scalar) -> Scalar:
    """Returns the operand of a rounding to a narrower float type and back; else `scalar`.

    A sum is rescaled as if its terms were not rounded: the factor changes a term by less than one
    more rounding would.
    """
    original = uncast(scalar)
    rounds = isinstance(scalar, Cast) and scalar.arg.dtype.is_float
    return original if rounds and original.dtype is scalar.dtype else scalar


def unless_empty(over: Var, factor: Scalar) -> Scalar:
    """Returns `factor`, the factor of a sum along the loop `over`; 0 if the loop has no
    iterations."""
    if nonnegative(extent(over) - 1):
        return factor
    return choose(index_value(0, I64) < extent(over), factor, 0)


def _ratio(scalar: Scalar, state: Read) -> Scalar | None:
    """Returns the factor by which a change of `state` multiplies `scalar`; None if there is
    none."""
    if state not in walk(scalar):
        return literal(1, scalar.dtype)
    if not isinstance(scalar, Apply):
        return None
    match scalar.function:
        case "exp":
            shift = _shift(scalar.args[0], state)
            return shift and apply("exp", shift)
        case "neg":
            return _ratio(scalar.args[0], state)
        case "mul" | "div":
            a, b = (_ratio(x, state) for x in scalar.args)
            return None if a is None or b is None else _simple(scalar.function, a, b)
        case "select" if scalar.args[2] is literal(0, scalar.dtype) and state not in walk(
            scalar.args[0]
        ):
            return _ratio(scalar.args[1], state)
        case "select":
            inner = _ratio(scalar.args[2], state) if cleans(scalar) else None
            if inner is None or isinstance(inner, Const):
                return inner
            # If the state is NaN, all values are NaN, and each is replaced by 0.
            return choose(apply("is_nan", inner), 0, inner)
    return None


def cleans(scalar: Scalar) -> bool:
    """Returns True if `scalar` selects 0 in place of a NaN."""
    match scalar:
        case Apply("select", (Apply("is_nan", (tested,)), Const(0), value)):
            return tested is value
    return False


def _shift(scalar: Scalar, state: Read) -> Scalar | None:
    """Returns the term that a change of `state` adds to `scalar`; None if there is none."""
    if state not in walk(scalar):
        return literal(0, scalar.dtype)
    if scalar is state:
        old, new = (argument(n, state.dtype) for n in range(2))
        return new - old
    if not isinstance(scalar, Apply):
        return None
    match scalar.function:
        case "neg":
            inner = _shift(scalar.args[0], state)
            return inner and _negated(inner)
        case "add" | "sub":
            a, b = (_shift(x, state) for x in scalar.args)
            return a and b and _simple(scalar.function, a, b)
        case "mul":
            for factor, other in (scalar.args, scalar.args[::-1]):
                if isinstance(factor, Const):
                    inner = _shift(other, state)
                    return inner and inner * factor
    return None


def _simple(function: str, a: Scalar, b: Scalar) -> Scalar:
    """Returns `function` of both operands; if one operand is its neutral element, the other."""
    nothing = literal(1 if function in ("mul", "div") else 0, a.dtype)
    if b is nothing:
        return a
    if a is nothing and function in ("mul", "add"):
        return b
    return _negated(b) if a is nothing and function == "sub" else apply(function, a, b)


def _negated(scalar: Scalar) -> Scalar:
    if isinstance(scalar, Apply) and scalar.function == "sub":
        return apply("sub", *scalar.args[::-1])
    return -scalar


def _holds(term: Scalar, state: Read, factor: Scalar) -> bool:
    """Returns True if `factor` is correct for test values, among which are infinite values of x."""
    leaves: list[Scalar] = [
        n for n in walk(term) if isinstance(n, Read | IndexValue) and n is not state
    ]
    values: dict[Scalar, Scalar] = {s: argument(n, s.dtype) for n, s in enumerate(leaves, 2)}
    before, after = (replaced(term, {**values, state: argument(n, term.dtype)}) for n in range(2))

    rng = np.random.default_rng(0)
    old = rng.uniform(-3, 3, _TRIALS).astype(np.float32)
    args = [old, old + rng.uniform(-2, 2, _TRIALS).astype(np.float32)]
    args += [_values(rng, leaf, n == 0) for n, leaf in enumerate(leaves)]
    typed = [a.astype(s.dtype.carrier) for a, s in zip_equal(args, (state, state, *leaves))]
    with np.errstate(all="ignore"):
        old, new, ratios = evaluate_scalars((before, after, factor), {}, typed)
        want, got = np.broadcast_arrays(new, old * ratios)
        close = np.isclose(got, want, rtol=1e-3, atol=1e-6, equal_nan=True)
    return bool(close.all()) and bool(np.isfinite(want).any())


def _values(rng: np.random.Generator, leaf: Scalar, some_infinite: bool) -> np.ndarray[Any, Any]:
    values = rng.uniform(-2, 2, _TRIALS)
    if leaf.dtype.is_float and some_infinite:
        values[::8] = -np.inf
    return values
