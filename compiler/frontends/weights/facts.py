"""The facts of a model by GGUF's keys, read from a GGUF file or translated from config.json.

A key without a row below, which could change what the model computes, is refused by name.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tcc.errors import UserError
from tcc.frontends.weights.checkpoint import Checkpoint
from tcc.frontends.weights.families import Family
from tcc.frozen import frozen

# No fact is a number above this one; it keeps products of two facts below 2**63.
_LARGEST = 1 << 30

# GGUF's keys without the architecture, and the same facts of config.json.
_KEYS = MappingProxyType(
    {
        "block_count": ("num_hidden_layers", "n_layer"),
        "embedding_length": ("hidden_size", "n_embd"),
        "context_length": ("max_position_embeddings", "n_positions"),
        "attention.head_count": ("num_attention_heads", "n_head"),
        "attention.head_count_kv": ("num_key_value_heads",),
        "attention.key_length": ("head_dim",),
        "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
        "attention.layer_norm_epsilon": ("layer_norm_epsilon",),
        "attention.sliding_window": ("sliding_window",),
        "attention.sliding_window_pattern": ("sliding_window_pattern",),
        "attn_logit_softcapping": ("attn_logit_softcapping",),
        "final_logit_softcapping": ("final_logit_softcapping",),
        "expert_used_count": ("num_experts_per_tok",),
        "expert_weights_norm": ("norm_topk_prob",),
    }
)
# GGUF's other keys.  The shapes of tensors tell what the first ones say.
_OTHERS = frozenset(
    {
        "vocab_size", "feed_forward_length", "expert_count", "expert_feed_forward_length",
        "expert_shared_feed_forward_length", "rope.scaling.finetuned", "tensor_data_layout",
        "attention.value_length", "rope.dimension_count", "rope.freq_base", "rope.freq_base_swa",
        "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    }
)  # fmt: skip
# Keys of config.json with the only values that tcc supports.  An absent key is supported.
_ONLY: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "is_encoder_decoder": (False,),
        "is_decoder": (True, False),
        "use_bidirectional_attention": (None, False),
        "quantization_config": (None,),
        "router_jitter_noise": (0, 0.0),
    }
)
_ACTIVATIONS = MappingProxyType(
    {"silu": "silu", "swish": "silu", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu"}
)


@frozen
class Facts:
    """The facts of a model by GGUF's keys without the architecture; `where` is for errors."""

    values: Mapping[str, Any]
    where: str

    def number(self, key: str, default: float | None = None) -> float:
        """Returns a finite number of at least 0.

        Raises `UserError` for another value, and for an absent one without a default.
        """
        value = self.values.get(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= _LARGEST:
            raise self.fault(key, f"{str(value)[:80]} is no number from 0 to {_LARGEST}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """Returns an integer of at least 1; raises `UserError` like `number`."""
        value = self.number(key, default)
        if value != int(value) or value < 1:
            raise self.fault(key, f"{value} is no count from 1 on")
        return int(value)

    def fault(self, key: str, why: str) -> UserError:
        """Returns the error to raise for a fact."""
        return UserError(
            "the model's description cannot be used",
            where=f"{self.where}: {key}",
            why="the key is missing" if key not in self.values else why,
            hint="convert the model again from its source, or export it with torch.export",
        )


def facts_of(checkpoint: Checkpoint, family: Family) -> Facts:
    """Returns the facts of a model; raises `UserError` for a key that is not supported."""
    facts, where = checkpoint.facts, checkpoint.where
    if checkpoint.form != "gguf":
        _check_folder(facts, family, where)
        pairs = ((key, facts.get(name)) for key, names in _KEYS.items() for name in names)
        return Facts({key: value for key, value in pairs if value is not None}, where)
    start = f"{family.architecture}."
    values = {k.removeprefix(start): v for k, v in facts.items() if k.startswith(start)}
    for key in values:
        if key not in _KEYS and key not in _OTHERS:
            raise Facts(values, where).fault(key, "tcc does not know what this key changes")
    return Facts(values, where)


def _check_folder(facts: Mapping[str, Any], family: Family, where: str) -> None:
    for key, values in _ONLY.items():
        if key in facts and facts[key] not in values:
            raise Facts(facts, where).fault(key, f"{str(facts[key])[:80]} is not supported")
    for key in ("hidden_act", "hidden_activation", "activation_function"):
        name = facts.get(key)
        # Configurations of Gemma have the keys of two generations, of which one may be null.
        if name is not None and _ACTIVATIONS.get(str(name)) != family.activation:
            raise Facts(facts, where).fault(key, f"{str(name)[:80]} is not supported")
