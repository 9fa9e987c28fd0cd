"""The angles by which queries and keys are rotated, in all forms of scaling.

    pair k at position p turns by p * frequencies[k], and cos and sin are multiplied by a magnitude

Su et al. 2021 (RoFormer); linear: Chen et al. 2023; yarn: Peng et al. 2023; longrope: Ding et al.
2024; llama3: the rule of Llama 3.1's reference code.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from tcc.frontends.weights.facts import Facts
from tcc.frozen import entity
from tcc.ir.op import Array


@entity
class Rotary:
    """The first `dims` elements of each head turn; `frequencies` has f32 `[dims // 2]`.

    Where a run ends behind position `limit`, it uses the frequencies `long`, if there are any.
    """

    dims: int
    frequencies: Array
    magnitude: float = 1.0
    long: Array | None = None
    limit: int = 0


# Keys that any form may have.  The dict of a form has the names of Hugging Face's `rope_parameters`.
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "dims"}
_ORIGINAL = "original_max_position_embeddings"


def rotary(parameters: Mapping[str, Any], facts: Facts, width: int) -> Rotary:
    """Returns the rotation of heads of `width` elements.

    `parameters` are the fields of Hugging Face's `rope_parameters`. `dims` overrides the number of
    elements that turn; `divisors` is an array by which the form "divided" divides frequencies.
    Raises `UserError` for an unknown form, an unknown parameter, and numbers that do not fit.
    """
    fields = Facts(parameters, f"{facts.where}: rotary embedding")
    form = parameters.get("rope_type", parameters.get("type", "default"))
    if not isinstance(form, str) or form not in _FORMS:
        raise fields.fault("rope_type", f"the form {str(form)[:80]!r} is none of {', '.join(_FORMS)}")
    scaled, keys = _FORMS[form]
    for key in parameters:
        if key not in _COMMON and key not in keys and key != _ORIGINAL:
            raise fields.fault(key, f"the form {form!r} has no such parameter in tcc")
    dims = parameters.get("dims") or int(width * fields.number("partial_rotary_factor", 1.0))
    if not 0 < dims <= width or dims % 2:
        raise fields.fault("dims", f"{dims} elements of a head of {width} do not pair up")
    base = fields.number("rope_theta", 10000.0)
    if base <= 1:
        raise fields.fault("rope_theta", f"{base} is not above 1")
    return scaled(fields, base ** -(np.arange(0, dims, 2) / dims), base)


def _rounded(frequencies: Array, magnitude: float = 1.0, **more: Any) -> Rotary:
    return Rotary(2 * len(frequencies), frequencies.astype(np.float32), magnitude, **more)


def _default(fields: Facts, frequencies: Array, base: float) -> Rotary:
    return _rounded(frequencies)


def _linear(fields: Facts, frequencies: Array, base: float) -> Rotary:
    return _rounded(frequencies / _factor(fields))


def _divided(fields: Facts, frequencies: Array, base: float) -> Rotary:
    return _rounded(frequencies / _vector(fields, "divisors", len(frequencies)))


def _llama3(fields: Facts, frequencies: Array, base: float) -> Rotary:
    """Divides low frequencies, keeps high ones, and blends between them."""
    factor, original = _factor(fields), fields.count(_ORIGINAL)
    low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
    if low >= high:
        raise fields.fault("high_freq_factor", f"{high} is not above low_freq_factor, {low}")
    turns = original * frequencies / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return _rounded(frequencies * (share + (1 - share) / factor))


def _yarn(fields: Facts, frequencies: Array, base: float) -> Rotary:
    """Divides frequencies of few turns, keeps those of many, and blends between them."""
    factor, original, dims = _factor(fields), fields.count(_ORIGINAL), 2 * len(frequencies)

    def pair(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    ends = pair(fields.number("beta_fast", 32) or 32), pair(fields.number("beta_slow", 1) or 1)
    first, last = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), dims - 1)
    # A ramp without a length would divide by zero.
    length = last - first or 0.001
    ramp = np.clip((np.arange(len(frequencies)) - first) / length, 0, 1)
    magnitude = fields.number("attention_factor", 0.1 * math.log(max(factor, 1)) + 1)
    return _rounded(frequencies * (1 - ramp + ramp / factor), magnitude)


def _longrope(fields: Facts, frequencies: Array, base: float) -> Rotary:
    """Divides by other numbers where a run ends behind the original context."""
    original, count = fields.count(_ORIGINAL), len(frequencies)
    factor = max(_factor(fields), 1)
    magnitude = math.sqrt(1 + math.log(factor) / math.log(max(original, 2)))
    short, long = (_vector(fields, key, count) for key in ("short_factor", "long_factor"))
    return _rounded(
        frequencies / short,
        fields.number("attention_factor", magnitude),
        long=(frequencies / long).astype(np.float32),
        limit=original,
    )


def _factor(fields: Facts) -> float:
    factor = fields.number("factor")
    if not factor:
        raise fields.fault("factor", "it is 0")
    return factor


def _vector(fields: Facts, key: str, count: int) -> Array:
    """Returns `count` positive numbers."""
    try:
        vector = np.asarray(fields.values.get(key), np.float64)
    except (TypeError, ValueError):
        vector = np.zeros(0)
    if vector.shape != (count,) or not (np.isfinite(vector) & (vector > 0)).all():
        raise fields.fault(key, f"{count} positive numbers are due")
    return vector


_Scaled = Callable[[Facts, Array, float], Rotary]
_FORMS: Mapping[str, tuple[_Scaled, tuple[str, ...]]] = MappingProxyType(
    {
        "default": (_default, ()),
        "linear": (_linear, ("factor",)),
        "divided": (_divided, ("divisors",)),
        "llama3": (_llama3, ("factor", "low_freq_factor", "high_freq_factor")),
        "yarn": (_yarn, ("factor", "attention_factor", "beta_fast", "beta_slow")),
        "longrope": (_longrope, ("factor", "attention_factor", "short_factor", "long_factor")),
        "su": (_longrope, ("factor", "attention_factor", "short_factor", "long_factor")),
    }
)
