"""GGUF files of tiny models, written by the library gguf with llama.cpp's rules of conversion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zlib import crc32

import gguf
import numpy as np
import torch
from tcc.frontends.weights.blocks import BLOCKS

from tests.frontends.weights.tiny import tiny_model

# llama.cpp's architecture of each model of `CONFIGS`, and metadata that its converter adds.
ARCHITECTURES: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "llama": ("llama", {}),
        "llama-scaled": ("llama", {}),
        "qwen3": ("qwen3", {"attention.key_length": 12, "attention.value_length": 12}),
        # sqrt(1 + ln(64 / 4) / ln 4), the factor in transformers.
        "phi3-long": (
            "phi3",
            {"rope.scaling.original_context_length": 4, "rope.scaling.attn_factor": 3**0.5},
        ),
        "gpt2": ("gpt2", {}),
        "gemma3": (
            "gemma3",
            {
                "attention.key_length": 12,
                "attention.sliding_window": 3,
                "attention.sliding_window_pattern": 2,
                "rope.scaling.type": "linear",
                "rope.scaling.factor": 8.0,
                "rope.freq_base_swa": 30.0,
            },
        ),
        "mixtral": ("llama", {"expert_count": 4, "expert_used_count": 2}),
    }
)


def write_gguf(name: str, path: Path, stored: str = "F32", **sizes: Any) -> Any:
    """Writes a GGUF file whose matrices have the type `stored`.

    Returns the transformers model with the values in the file. `sizes` are fields of its
    configuration.
    """
    model = tiny_model(name, **sizes)
    architecture, more = ARCHITECTURES[name]
    writer = gguf.GGUFWriter(path, architecture)
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in {**_facts(model.config, architecture), **more}.items():
        add[type(value)](f"{architecture}.{key}", value)
    for tensor, array in _rope_tensors(model).items():
        writer.add_tensor(tensor, array.astype(np.float32))
    for tensor, (array, kind) in _tensors(model, architecture, stored).items():
        writer.add_tensor(tensor, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _facts(config: Any, architecture: str) -> dict[str, Any]:
    facts = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
    }
    if architecture == "gpt2":
        return {**facts, "attention.layer_norm_epsilon": config.layer_norm_epsilon}
    rope = config.rope_parameters
    return {
        **facts,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": rope.get("full_attention", rope)["rope_theta"],
    }


def _rope_tensors(model: Any) -> dict[str, Any]:
    """Returns the tensors of rotary embeddings, which a Hugging Face folder has as configuration
    fields."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        width = model.config.hidden_size // model.config.num_attention_heads
        plain = rope["rope_theta"] ** -(np.arange(0, width, 2) / width)
        return {"rope_freqs.weight": plain / model.model.rotary_emb.inv_freq.double().numpy()}
    kinds = ("long", "short") if rope.get("rope_type") == "longrope" else ()
    return {f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"]) for kind in kinds}


def _tensors(model: Any, architecture: str, format_name: str) -> dict[str, tuple[Any, Any]]:
    """Returns tensors and their types by GGUF's names, and rounds the tensors to `format_name`.

    Blocks lie in rows, so a row keeps its bytes if llama.cpp moves it.
    """
    config = model.config
    number = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    heads = {"attn_q": config.num_attention_heads}
    heads["attn_k"] = getattr(config, "num_key_value_heads", 0)
    tensors = {}
    for name, parameter in _parameters(model):
        canonical = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert canonical is not None, name
        array = parameter.detach().numpy()
        if ".c_" in name and array.ndim == 2:  # Conv1D stores its matrix as [in, out]
            array = array.T
        if architecture.startswith("gemma") and "norm" in name:
            array = array + 1
        kind = gguf.GGMLQuantizationType[format_name if array.ndim > 1 else "F32"]
        data = _quantised(np.ascontiguousarray(array), kind)
        if format_name != "F32" and array.ndim > 1:
            with torch.no_grad():
                parameter.copy_(torch.tensor(gguf.quants.dequantize(data, kind)))
        count = heads.get(canonical.split(".")[-2], 0) if architecture == "llama" else 0
        if count:
            data = data.reshape(count, 2, -1, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
        tensors[canonical] = np.ascontiguousarray(data), kind
    return tensors


def _quantised(array: Any, kind: gguf.GGMLQuantizationType) -> Any:
    """Returns the bytes of an array, or random bytes of small values if the library cannot round to
    the type.

    The library rounds to none of the types whose blocks have 256 levels.
    """
    if kind.name not in BLOCKS or BLOCKS[kind.name][0] == 32:
        return gguf.quants.quantize(array, kind)
    columns, form = BLOCKS[kind.name]
    draws = np.random.default_rng(crc32(array.tobytes()))
    blocks = draws.integers(0, 256, array.size // columns * form.itemsize, np.uint8).view(form)
    for name in {"d", "m"} & {*form.names}:
        blocks[name] = draws.uniform(1e-5, 5e-5, blocks.shape).astype(np.float16)
    return blocks.view(np.uint8).reshape(*array.shape[:-1], -1)


def _parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields the parameters by the names in folders; matrices of experts are views of stacked
    parameters."""
    for name, parameter in model.named_parameters():
        if not name.endswith("experts.gate_up_proj"):
            end = ".weight" if name.endswith("down_proj") and parameter.ndim == 3 else ""
            yield name.replace(".mlp.gate.", ".block_sparse_moe.gate.") + end, parameter
            continue
        width = parameter.shape[1] // 2
        yield name.replace("gate_up_proj", "gate_proj.weight"), parameter[:, :width]
        yield name.replace("gate_up_proj", "up_proj.weight"), parameter[:, width:]
