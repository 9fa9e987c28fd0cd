"""Tiny seeded models of transformers, saved as folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import safe_open
from tcc.frontends.weights.checkpoint import Checkpoint, StoredTensor
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 61
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id")
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 4}


def _rope(form: str, **fields: Any) -> dict[str, Any]:
    return {"rope_type": form, "rope_theta": 500.0, **fields}


# Windows, caps and rotary scalings are so small that short prompts show their effect.
CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {"model_type": "llama", "num_key_value_heads": 1, "attention_bias": True},
        "llama-scaled": {
            "model_type": "llama",
            "mlp_bias": True,
            "rope_parameters": _rope(
                "llama3",
                factor=4.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=16,
            ),
        },
        "llama-linear": {"model_type": "llama", "rope_parameters": _rope("linear", factor=3.0)},
        "mistral": {"model_type": "mistral", "head_dim": 12, "sliding_window": 3},
        "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
        "qwen2-yarn": {
            "model_type": "qwen2",
            "use_sliding_window": True,
            "sliding_window": 3,
            "max_window_layers": 1,
            "rope_parameters": _rope("yarn", factor=4.0, original_max_position_embeddings=16),
        },
        "qwen3": {"model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 12},
        "phi3": {
            "model_type": "phi3",
            "rope_parameters": {**_rope("default"), "partial_rotary_factor": 0.5},
        },
        "phi3-long": {
            "model_type": "phi3",
            "original_max_position_embeddings": 4,
            "rope_parameters": _rope(
                "longrope", short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[2.0, 3.0, 4.0, 5.0]
            ),
        },
        "gpt2": {"model_type": "gpt2", "n_embd": 40, "n_layer": 2, "n_head": 5, "n_positions": 64},
        "gemma2": {
            "model_type": "gemma2",
            "num_key_value_heads": 1,
            "head_dim": 12,
            "sliding_window": 3,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
        },
        "gemma3": {
            "model_type": "gemma3_text",
            "num_key_value_heads": 1,
            "head_dim": 12,
            "sliding_window": 3,
            "query_pre_attn_scalar": 12,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": _rope("linear", factor=8.0),
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            },
        },
        "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
        "qwen2-moe": {
            "model_type": "qwen2_moe",
            "shared_expert_intermediate_size": 32,
            **_EXPERTS,
        },
        "qwen2-moe-dense": {
            "model_type": "qwen2_moe",
            "shared_expert_intermediate_size": 32,
            "mlp_only_layers": [0],
            **_EXPERTS,
        },
        "qwen3-moe": {
            "model_type": "qwen3_moe",
            "head_dim": 12,
            "norm_topk_prob": True,
            **_EXPERTS,
        },
    }
)


def tiny_model(name: str, **sizes: Any) -> Any:
    """Returns the model of `CONFIGS[name]`, with `sizes` in its configuration.

    Its weights are so large that every part affects the result.
    """
    common = _SIZES if name != "gpt2" else {k: _SIZES[k] for k in ("vocab_size", *_SPECIAL)}
    config = AutoConfig.for_model(**{**common, **CONFIGS[name], **sizes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            centre = 0.0 if parameter.ndim > 1 else 0.5
            parameter.normal_(centre, 0.3, generator=generator)
    return model


def saved(model: Any, folder: Path) -> Checkpoint:
    """Saves a model as a folder, and returns the folder's contents, read by safetensors alone."""
    model.save_pretrained(folder)
    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            # A `safe_open` object is no mapping: only `keys` lists its names.
            weights |= {name: weight_of(name, file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    facts = json.loads((folder / "config.json").read_text())
    return Checkpoint("folder", facts, weights, dict, str(folder))


def weight_of(name: str, tensor: Any) -> StoredTensor:
    """Returns a torch tensor as a weight of the same type."""
    format_name = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[tensor.dtype]
    bits = tensor.view(torch.uint16) if format_name == "BF16" else tensor
    array = bits.detach().numpy()
    return StoredTensor(name, tuple(array.shape), format_name, lambda: array)
