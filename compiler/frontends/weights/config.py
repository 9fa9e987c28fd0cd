"""What the builder of a language model has to know beside the tensors."""

import math

from tcc.frontends.weights.checkpoint import Checkpoint
from tcc.frontends.weights.facts import Facts, facts_of
from tcc.frontends.weights.families import Family, family_of
from tcc.frontends.weights.rope_facts import rotations
from tcc.frontends.weights.rotary import Rotary
from tcc.frozen import entity

# The most layers of a model.  Each layer adds two inputs, and the largest known model has 126.
_MOST_LAYERS = 1024


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

    family: Family
    layers: int
    width: int
    heads: int
    key_heads: int
    head_width: int
    epsilon: float
    scale: float
    windows: tuple[int, ...]
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
    heads = facts.count("attention.head_count")
    key_heads = facts.count("attention.head_count_kv", heads)
    head_width = facts.count("attention.key_length", max(width // heads, 1))
    if layers > _MOST_LAYERS:
        raise facts.fault("block_count", f"{layers} is above {_MOST_LAYERS}")
    if heads % key_heads:
        raise facts.fault("attention.head_count_kv", f"{key_heads} does not divide {heads} heads")
    if facts.number("attention.value_length", head_width) != head_width:
        raise facts.fault("attention.value_length", f"it is not the width of keys, {head_width}")
    rotary_of = (None, None) if family.learned else rotations(checkpoint, facts, family, head_width)
    is_layer_norm = family.norm == "layer_normalization"
    return Config(
        family, layers, width, heads, key_heads, head_width,
        facts.number(f"attention.layer_norm_{'' if is_layer_norm else 'rms_'}epsilon"),
        _scale(checkpoint, facts, family, layers, width / heads, head_width),
        _windows(checkpoint, facts, family, layers),
        facts.number("attn_logit_softcapping", 0),
        facts.number("final_logit_softcapping", 0),
        facts.count("expert_used_count", 1),
        bool(facts.values.get("expert_weights_norm", family.renormalised)),
        *rotary_of,
        checkpoint.facts.get("tie_word_embeddings") if checkpoint.form == "folder" else None,
    )  # fmt: skip


def _scale(
    checkpoint: Checkpoint, facts: Facts, family: Family, layers: int, share: float, width: int
) -> float:
    """Returns the factor of scores: 1 / sqrt of the head's width or of the number that the model
    has in its place."""
    divisor: float = share if layers == family.wide_layers else width
    if checkpoint.form == "folder" and "query_pre_attn_scalar" in checkpoint.facts:
        divisor = Facts(checkpoint.facts, facts.where).number("query_pre_attn_scalar")
    if not divisor:
        raise facts.fault("query_pre_attn_scalar", "it is 0")
    return 1 / math.sqrt(divisor)


def _windows(
    checkpoint: Checkpoint, facts: Facts, family: Family, layers: int
) -> tuple[int, ...]:
    """Returns the number of keys that a query of each layer sees, 0 for all."""
    folder = checkpoint.facts if checkpoint.form == "folder" else {}
    types = folder.get("layer_types")
    window = int(facts.number("attention.sliding_window", 0))
    if folder.get("use_sliding_window", True) is False:
        window = 0
    if types is None:
        if window and folder.get("use_sliding_window"):
            raise facts.fault("layer_types", "")
        pattern = facts.number("attention.sliding_window_pattern", family.pattern)
        return tuple(0 if pattern and n % pattern == 0 else window for n in range(1, layers + 1))
    kinds = {"full_attention": 0, "sliding_attention": window}
    if not isinstance(types, list) or len(types) != layers or not {*map(str, types)} <= {*kinds}:
        raise Facts(folder, facts.where).fault(
            "layer_types", f"{layers} of {', '.join(kinds)} are due, not {str(types)[:80]}"
        )
    return tuple(kinds[str(name)] for name in types)


