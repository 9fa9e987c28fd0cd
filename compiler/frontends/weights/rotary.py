"""The angles by which queries and keys are rotated, in all forms of scaling.

    pair k at position p turns by p * frequencies[k], and cos and sin are multiplied by a magnitude

Su et al. 2021 (RoFormer); linear: Chen et al. 2023; yarn: Peng et al. 2023; longrope: Ding et al.
2024; llama3: the rule of Llama 3.1's reference code.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from tcc.frontends.weights.facts import Facts
from tcc.frontends.weights.families import TABLES
from tcc.frozen import entity
from tcc.ir.op import Array


@entity
class Rotary:
    """The first `dims` elements of each head turn; `frequencies` has f32 `[dims // 2]`.

    Where a run ends behind position `limit`, it uses the frequencies `long`, if there are any.
    """

    dims: int
    frequencies: Array
    magnitude: float
    long: Array | None = None
    limit: int = 0


_ORIGINAL = "original_max_position_embeddings"
# The parameters that any form may have.
_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "dims", _ORIGINAL)


def rotary(parameters: Mapping[str, Any], facts: Facts, width: int) -> Rotary:
    """Returns the rotation of heads of `width` elements.

    `parameters` are the fields of Hugging Face's `rope_parameters`. `dims` overrides the number of
    elements that turn. The form "divided" divides frequencies by the array `divisors`, and
    `attn_factor` multiplies the magnitude that a form implies. Raises `UserError` for an unknown
    form, an unknown parameter, and numbers that do not fit.
    """
    parameters = {key: value for key, value in parameters.items() if value is not None}
    fields = Facts(parameters, f"{facts.where}: rotary embedding")
    form = str(parameters.get("rope_type", parameters.get("type", "default")))
    if form not in TABLES["rotary_fields"]:
        known_forms = ", ".join(TABLES["rotary_fields"])
        raise fields.fault("rope_type", f"the form '{form[:80]}' is none of {known_forms}")
    for key in parameters.keys() - {*_COMMON, *TABLES["rotary_fields"][form]}:
        raise fields.fault(key, f"the form '{form}' has no such parameter in tcc")
    dims = fields.number("dims", int(width * fields.number("partial_rotary_factor", 1.0)))
    if not 0 < dims <= width or dims % 2:
        raise fields.fault("dims", f"{dims} elements of a head of {width} do not pair up")
    base = fields.number("rope_theta", 10000.0, 1.001)
    frequencies = base ** -(np.arange(0, dims, 2) / dims)
    magnitude, other = 1.0, None
    match form:
        case "linear":
            frequencies = frequencies / _factor(fields)
        case "divided":
            frequencies = frequencies / _vector(fields, "divisors", frequencies)
        case "llama3":
            frequencies = frequencies * _llama3(fields, frequencies)
        case "yarn":
            frequencies = frequencies * _yarn(fields, frequencies, base)
            magnitude = _magnitude(fields, 0.1 * math.log(max(_factor(fields), 1)) + 1)
        case "longrope" | "su":
            ratio = math.log(max(_factor(fields), 1)) / math.log(fields.number(_ORIGINAL, lowest=2))
            magnitude = _magnitude(fields, math.sqrt(1 + ratio))
            other = (frequencies / _vector(fields, "long_factor", frequencies)).astype(np.float32)
            frequencies = frequencies / _vector(fields, "short_factor", frequencies)
    limit = 0 if other is None else fields.count(_ORIGINAL)
    return Rotary(int(dims), frequencies.astype(np.float32), magnitude, other, limit)


def _llama3(fields: Facts, frequencies: Array) -> Array:
    """Returns factors: low frequencies are divided, high ones stay, and others are between."""
    low = fields.number("low_freq_factor")
    turns = fields.count(_ORIGINAL) * frequencies / (2 * math.pi)
    distance = fields.number("high_freq_factor", lowest=low) - low or 1e-3
    return _blended(fields, (turns - low) / distance)


def _yarn(fields: Facts, frequencies: Array, base: float) -> Array:
    """Returns factors: frequencies of few turns are divided, those of many stay."""
    original, dims = fields.count(_ORIGINAL), 2 * len(frequencies)
    pairs = [
        dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (fields.number("beta_fast", 32, 1e-3), fields.number("beta_slow", 1, 1e-3))
    ]
    first, last = max(math.floor(pairs[0]), 0), min(math.ceil(pairs[1]), dims - 1)
    # A ramp without a length would divide by zero.
    return _blended(fields, 1 - (np.arange(len(frequencies)) - first) / (last - first or 1e-3))


def _blended(fields: Facts, share: Array) -> Array:
    share = np.clip(share, 0, 1)
    return share + (1 - share) / _factor(fields)


def _factor(fields: Facts) -> float:
    return fields.number("factor", lowest=1e-3)


def _magnitude(fields: Facts, implied: float) -> float:
    return fields.number("attention_factor", implied * fields.number("attn_factor", 1.0))


def _vector(fields: Facts, key: str, frequencies: Array) -> Array:
    """Returns a positive number for each frequency."""
    numbers = fields.values.get(key, ())
    is_list = isinstance(numbers, list)
    if not is_list or not all(type(n) in (int, float) and n > 0 for n in numbers):
        numbers = ()
    if len(numbers) != len(frequencies):
        raise fields.fault(key, f"{len(frequencies)} positive numbers are due")
    return np.array(numbers, np.float64)
