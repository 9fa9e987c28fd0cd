"""The parameters of rotary embeddings of files and folders, as Hugging Face names them."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from tcc.frontends.weights.checkpoint import Checkpoint
from tcc.frontends.weights.facts import Facts
from tcc.frontends.weights.families import TABLES
from tcc.frontends.weights.rotary import Rotary, rotary

_Parameters: TypeAlias = dict[str, Any]

_ORIGINAL = "original_max_position_embeddings"


def rotations(checkpoint: Checkpoint, facts: Facts, local_base: float, width: int) -> list[Rotary]:
    """Returns two rotations of heads of `width` elements.

    The first is for layers that see all keys, the second for layers with a window.

    `local_base` is the base of layers with a window where a GGUF file has none; 0 is that of other
    layers. Raises `UserError` for a form or a parameter that is not supported.
    """
    if checkpoint.form == "gguf":
        parts = _of_gguf(checkpoint, facts, local_base)
    else:
        parts = _of_folder(Facts(checkpoint.facts, facts.where), facts)
    return [rotary(parameters, facts, width) for parameters in parts]


def _of_folder(config: Facts, facts: Facts) -> tuple[_Parameters, _Parameters]:
    """Returns the parameters of both kinds of layers.

    Older folders have `rope_scaling` and, outside of it, the base and the base of local layers.
    """
    values = config.values
    fields = values.get("rope_parameters") or values.get("rope_scaling") or {}
    common = {key: values[key] for key in ("rope_theta", "partial_rotary_factor") if key in values}
    parts = [fields, fields]
    if isinstance(fields, dict) and "full_attention" in fields:
        parts = [fields.get(f"{kind}_attention") or {} for kind in ("full", "sliding")]
    elif "rope.freq_base_swa" in facts.values:
        parts = [fields, {"rope_theta": facts.values["rope.freq_base_swa"]}]
    if not all(isinstance(part, dict) for part in parts):
        raise config.fault("rope_parameters", "they are no fields")
    wide, local = ({**common, **part} for part in parts)
    return _completed(wide, values, facts), _completed(local, values, facts)


def _completed(parameters: _Parameters, config: Mapping[str, Any], facts: Facts) -> _Parameters:
    """Adds the original context and the factor by which the context is longer, where a form needs
    them and does not have them."""
    form = parameters.get("rope_type", parameters.get("type"))
    if form in ("longrope", "su", "yarn", "llama3"):
        context = facts.count("context_length")
        parameters[_ORIGINAL] = parameters.get(_ORIGINAL) or config.get(_ORIGINAL) or context
        if parameters.get("factor") is None:
            parameters["factor"] = context / Facts(parameters, facts.where).count(_ORIGINAL)
    return parameters


def _of_gguf(
    checkpoint: Checkpoint, facts: Facts, local_base: float
) -> tuple[_Parameters, _Parameters]:
    """Returns the parameters of both kinds of layers; a file with divisors or with long factors
    names no form."""
    values, weights = facts.values, checkpoint.weights
    wide = {name: values[key] for key, name in TABLES["rotary"].items() if key in values}
    for key, name in TABLES["rotary_tensors"].items():
        if key in weights:
            wide[name] = np.asarray(weights[key].load()).tolist()
    if "divisors" in wide:
        wide["rope_type"] = "divided"
    if "long_factor" in wide:
        wide["rope_type"] = "longrope"
        wide.setdefault("factor", 1.0)
    base = values.get("rope.freq_base_swa", local_base)
    plain = {key: wide[key] for key in ("rope_theta", "dims") if key in wide}
    return wide, {**plain, "rope_theta": base} if base else wide
