"""The parameters of rotary embeddings, as Hugging Face's `rope_parameters`, of files and folders."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from tcc.frontends.weights.checkpoint import Checkpoint, Levels
from tcc.frontends.weights.facts import Facts
from tcc.frontends.weights.families import Family
from tcc.frontends.weights.rotary import Rotary, rotary

_Parameters: TypeAlias = Mapping[str, Any]

_ORIGINAL = "original_max_position_embeddings"
# Parameters that a GGUF file has as facts, and those that it has as tensors.
_NUMBERS = MappingProxyType(
    {
        "factor": "rope.scaling.factor",
        _ORIGINAL: "rope.scaling.original_context_length",
        "beta_fast": "rope.scaling.yarn_beta_fast",
        "beta_slow": "rope.scaling.yarn_beta_slow",
    }
)
_TENSORS = MappingProxyType(
    {
        "divisors": "rope_freqs.weight",
        "short_factor": "rope_factors_short.weight",
        "long_factor": "rope_factors_long.weight",
    }
)
ROPE_TENSORS = frozenset(_TENSORS.values())


def rotations(
    checkpoint: Checkpoint, facts: Facts, family: Family, width: int
) -> tuple[Rotary, Rotary]:
    """Returns the rotations of heads of `width` elements: in layers that see all keys, and in layers
    with a window.

    Raises `UserError` for a form or a parameter that is not supported.
    """
    if checkpoint.form == "gguf":
        parts = _of_gguf(checkpoint, facts, family)
    else:
        parts = _of_folder(checkpoint.facts, facts)
    wide, local = (rotary(parameters, facts, width) for parameters in parts)
    return wide, local


def _of_folder(config: Mapping[str, Any], facts: Facts) -> tuple[_Parameters, _Parameters]:
    """Returns the parameters of both kinds of layers.

    Older folders have `rope_scaling` and, outside of it, the base and the base of local layers.
    """
    fields = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(fields, dict):
        raise facts.fault("rope_parameters", f"{str(fields)[:80]} has no fields")
    keys = ("rope_theta", "partial_rotary_factor")
    outside = {key: config[key] for key in keys if config.get(key) is not None}
    if isinstance(fields.get("full_attention"), dict):
        wide, local = (fields.get(f"{kind}_attention") for kind in ("full", "sliding"))
        return _completed({**outside, **wide}, config, facts), {**outside, **(local or {})}
    parameters = _completed({**outside, **fields}, config, facts)
    base = config.get("rope_local_base_freq")
    return parameters, parameters if base is None else {"rope_theta": base}


def _completed(parameters: dict[str, Any], config: Mapping[str, Any], facts: Facts) -> _Parameters:
    """Adds the original context, and the factor by which the context is longer, where they are
    not among the parameters of a form that needs them."""
    form = parameters.get("rope_type", parameters.get("type"))
    if form in ("longrope", "su", "yarn", "llama3"):
        context = facts.number("context_length", 0)
        original = parameters.get(_ORIGINAL) or config.get(_ORIGINAL) or context
        parameters[_ORIGINAL] = original
        if parameters.get("factor") is None and isinstance(original, int | float) and original:
            parameters["factor"] = context / original
    return parameters


def _of_gguf(
    checkpoint: Checkpoint, facts: Facts, family: Family
) -> tuple[_Parameters, _Parameters]:
    """Returns the parameters of both kinds of layers; a file with divisors or with long factors
    names no form."""
    plain: dict[str, Any] = {"rope_theta": facts.number("rope.freq_base", 10000.0)}
    if "rope.dimension_count" in facts.values:
        plain["dims"] = facts.count("rope.dimension_count")
    tensors = {key: name for key, name in _TENSORS.items() if name in checkpoint.weights}
    form = facts.values.get("rope.scaling.type", "none")
    form = "divided" if "divisors" in tensors else form
    form = "longrope" if "long_factor" in tensors else form
    wide = dict(plain)
    if form != "none":
        wide |= {"rope_type": form}
        wide |= {key: facts.values[name] for key, name in _NUMBERS.items() if name in facts.values}
        wide |= {key: _array(checkpoint, name) for key, name in tensors.items()}
    if form in ("yarn", "longrope"):
        magnitude = facts.number("rope.scaling.attn_factor", 1.0)
        factor = max(facts.number("rope.scaling.factor", 1.0), 1.0) if form == "yarn" else 1.0
        # llama.cpp multiplies the file's factor by the one that follows from yarn.
        wide["attention_factor"] = magnitude * (1 + 0.1 * math.log(factor))
        wide.setdefault("factor", factor)
    base = facts.number("rope.freq_base_swa", family.local_base)
    return wide, {**plain, "rope_theta": base} if base else wide


def _array(checkpoint: Checkpoint, name: str) -> Any:
    contents = checkpoint.weights[name].read()
    return None if isinstance(contents, Levels) else np.asarray(contents, np.float64)
