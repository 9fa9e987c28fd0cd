"""The numbers of a language model that its builder reads, beside the tensors."""

from collections.abc import Sequence

from tcc.frontends.weights.checkpoint import Checkpoint
from tcc.frontends.weights.facts import MISSING, Facts, facts_of
from tcc.frontends.weights.families import ModelFamily, family_of
from tcc.frontends.weights.rope_facts import rotations
from tcc.frontends.weights.rotary import Rotary
from tcc.frozen import entity

# The most layers of a model.  Each layer adds two inputs, and the largest known model has 126.
_MOST_LAYERS = 1024
_WINDOW, _ALL = "sliding_attention", "full_attention"


@entity
class Config:
    """The numbers of a language model.

    `width` is the width of rows, and `scale` the factor of scores. `windows` has for each layer the
    number of keys that a query sees, or 0 for all. The caps bound scores and logits, unless they
    are 0. `experts` of them compute each row in layers with experts; `renormalised` divides their
    weights by the sum. `rotary` rotates in layers that see all keys, `local` in the others; None
    for a model with learned positions. `is_tied`: the table of tokens also makes the logits; None
    if the file does not say.
    """

    family: ModelFamily
    layers: int
    width: int
    heads: int
    key_heads: int
    head_width: int
    epsilon: float
    scale: float
    windows: Sequence[int]
    score_cap: float
    logit_cap: float
    experts: int
    renormalised: bool
    rotary: Rotary | None
    local: Rotary | None
    is_tied: bool | None


def read_config(checkpoint: Checkpoint) -> Config:
    """Returns the numbers of a model; raises `UserError` where tcc cannot build the model."""
    family = family_of(checkpoint)
    facts = facts_of(checkpoint, family)
    layers, width = facts.count("block_count"), facts.count("embedding_length")
    folder = Facts(checkpoint.facts if checkpoint.form == "folder" else {}, checkpoint.where)
    heads = facts.count("attention.head_count")
    key_heads = facts.count("attention.head_count_kv", heads)
    head_width = facts.count("attention.key_length", max(width // heads, 1))
    if layers > _MOST_LAYERS:
        raise facts.fault("block_count", f"{layers} is above {_MOST_LAYERS}")
    if heads % key_heads:
        raise facts.fault("attention.head_count_kv", f"{key_heads} does not divide {heads} heads")
    if facts.number("attention.value_length", head_width) != head_width:
        raise facts.fault("attention.value_length", f"it is not the width of keys, {head_width}")
    rotary_of: Sequence[Rotary | None] = (None, None)
    if not family.learned:
        rotary_of = rotations(checkpoint, facts, family.local_base, head_width)
    kind = "layer_norm" if family.norm == "layer_normalization" else "layer_norm_rms"
    divisor = width / heads if layers == family.wide_layers else head_width
    return Config(
        family, layers, width, heads, key_heads, head_width,
        facts.number(f"attention.{kind}_epsilon"),
        folder.number("query_pre_attn_scalar", divisor, 1e-3) ** -0.5,
        _windows(folder, facts, family, layers),
        facts.number("attn_logit_softcapping", 0),
        facts.number("final_logit_softcapping", 0),
        facts.count("expert_used_count", 1),
        bool(facts.values.get("expert_weights_norm", family.renormalised)),
        rotary_of[0],
        rotary_of[1],
        folder.values.get("tie_word_embeddings"),
    )  # fmt: skip


def _windows(folder: Facts, facts: Facts, family: ModelFamily, layers: int) -> list[int]:
    """Returns the number of keys that a query of each layer sees, 0 for all.

    `folder` has the facts of config.json, and none for a GGUF file.
    """
    window, types = facts.number("attention.sliding_window", 0), folder.values.get("layer_types")
    if types is None:
        uses_windows = folder.values.get("use_sliding_window")
        if window and uses_windows:
            raise folder.fault("layer_types", MISSING)
        window = 0 if uses_windows is False else window
        pattern = facts.number("attention.sliding_window_pattern", family.pattern)
        types = [_WINDOW if not pattern or n % pattern else _ALL for n in range(1, layers + 1)]
    is_list = isinstance(types, list) and len(types) == layers
    if not is_list or not {*map(str, types)} <= {_WINDOW, _ALL}:
        raise folder.fault("layer_types", f"{layers} of {_WINDOW} and {_ALL} are due")
    return [int(window) if name == _WINDOW else 0 for name in types]
