"""Configurations and tensors that tcc cannot import raise an error that names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tcc.errors import UserError
from tcc.frontends.weights.checkpoint import Checkpoint, StoredTensor
from tcc.frontends.weights.importer import import_checkpoint

from tests.frontends.weights.sessions import evaluated

_WIDTH, _VOCABULARY = 8, 11
_FACTS: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "llama",
        "hidden_size": _WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "rms_norm_eps": 1e-6,
    }
)
_GGUF: Mapping[str, Any] = MappingProxyType(
    {
        "general.architecture": "llama",
        "llama.embedding_length": _WIDTH,
        "llama.block_count": 1,
        "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
    }
)


def _weight(
    name: str, *shape: int, format_name: str = "F32", dtype: Any = np.float32
) -> StoredTensor:
    array = np.ones(shape, dtype)
    return StoredTensor(name, shape, format_name, lambda: array)


def _checkpoint(form: str = "folder", **changes: Any) -> Checkpoint:
    """Returns a model of one layer; `changes` are fields of its configuration, and None removes a
    field."""
    matrices = {"mlp.gate_proj": 12, "mlp.up_proj": 12}
    matrices |= {f"self_attn.{part}_proj": _WIDTH for part in "qkvo"}
    layer = "model.layers.0."
    weights = [_weight(f"{layer}{name}.weight", n, _WIDTH) for name, n in matrices.items()]
    norms = ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm")
    weights += [_weight(f"model.{name}.weight", _WIDTH) for name in norms]
    weights.append(_weight(f"{layer}mlp.down_proj.weight", _WIDTH, 12))
    weights.append(_weight("model.embed_tokens.weight", _VOCABULARY, _WIDTH))
    facts = dict(_FACTS if form == "folder" else _GGUF) | changes
    facts = {key: value for key, value in facts.items() if value is not None}
    return Checkpoint(form, facts, {weight.name: weight for weight in weights}, dict, "model")


def _refused(checkpoint: Checkpoint, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        import_checkpoint(checkpoint, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model_type": "mamba"}, "'mamba' cannot be imported"),
        ({"model_type": None}, "'None' cannot be imported"),
        ({"model_type": {"a": 1}}, "cannot be imported"),
        ({"hidden_size": None}, "embedding_length"),
        ({"hidden_size": 2**60}, "is no number from 1"),
        ({"hidden_size": 8.5}, "8.5 is not whole"),
        ({"num_attention_heads": 0}, "0 is no number from 1"),
        ({"num_attention_heads": [2]}, "[2] is no number from 1"),
        ({"num_key_value_heads": 3}, "3 does not divide 2 heads"),
        ({"num_hidden_layers": 100_000}, "is above 1024"),
        ({"hidden_act": "relu"}, "relu is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is none of"),
        ({"rope_parameters": [1]}, "they are no fields"),
        ({"sliding_window": 4, "layer_types": ["chunked_attention"]}, "layer_types"),
        ({"sliding_window": 4, "layer_types": []}, "layer_types"),
        ({"sliding_window": 4, "use_sliding_window": True}, "layer_types"),
        ({"num_hidden_layers": 2}, "blk.1.attn_norm.weight"),
        ({"tie_word_embeddings": False}, "output.weight"),
    ],
)
def test_descriptions_are_refused_by_key(changes: dict[str, Any], text: str) -> None:
    assert text in _refused(_checkpoint(**changes))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.architecture", "mamba"),
        ("llama.attention.clamp_kqv", 3.0),
        ("llama.attention.value_length", 5),
        ("llama.rope.scaling.type", "dynamic"),
    ],
)
def test_facts_of_gguf_are_refused_by_key(key: str, value: Any) -> None:
    checkpoint = _checkpoint("gguf")
    facts = {**checkpoint.facts, key: value}
    assert key.split(".")[-1].split("_")[-1] in _refused(replace(checkpoint, facts=facts))


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        (_weight("model.layers.0.self_attn.sinks", 2), "self_attn.sinks"),
        (_weight("model.layers.7.self_attn.q_proj.weight", 8, 8), "layers.7"),
        (_weight("model.layers.0.mlp.experts.0.up_proj.weight", 8, 8), "experts.0.up_proj"),
        (_weight("model.layers.0.self_attn.q_proj.weight", 8, 7), "its shape is [8, 7]"),
        (_weight("model.layers.0.self_attn.k_proj.weight", 64), "its shape is [64]"),
        (_weight("model.norm.weight", 8, dtype=np.int32), "neither in f32"),
        (_weight("embed_tokens.weight", 11, 8), "embed_tokens.weight"),
    ],
)
def test_tensors_are_refused_by_name(weight: StoredTensor, text: str) -> None:
    checkpoint = _checkpoint()
    weights = {**checkpoint.weights, weight.name: weight}
    assert text in _refused(replace(checkpoint, weights=weights))


@pytest.mark.parametrize("name", list(_checkpoint().weights))
def test_a_missing_tensor_is_named(name: str) -> None:
    checkpoint = _checkpoint()
    weights = {n: weight for n, weight in checkpoint.weights.items() if n != name}
    text = _refused(replace(checkpoint, weights=weights))
    if name.endswith("gate_proj.weight"):
        # The other matrix could hold both parts; then the next matrix does not fit.
        assert "down_proj.weight" in text
        return
    assert "missing" in text
    assert "blk.0." in text or "output_norm" in text or "token_embd" in text


@pytest.mark.parametrize(
    "shapes", [{"tokens": [1, 1, 4]}, {"tokens": [0]}, {"cache.0.k": [4, 2, 4]}, {"x": [1]}]
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, Any]) -> None:
    assert next(iter(shapes)) in _refused(_checkpoint(), shapes=shapes)


def test_shapes_fix_and_name_sizes() -> None:
    graph = import_checkpoint(_checkpoint(), {"tokens": [3], "rows": ["wanted"]})
    tokens, rows, *_ = graph.inputs
    assert [dim.key for dim in (*tokens.type.shape, *rows.type.shape)] == ["3", "wanted"]


@pytest.mark.parametrize("token", [-1, _VOCABULARY])
def test_a_token_outside_of_the_vocabulary_ends_the_run(token: int) -> None:
    session = evaluated(import_checkpoint(_checkpoint()))
    assert session.run([0, _VOCABULARY - 1]).shape == (1, _VOCABULARY)
    with pytest.raises((UserError, IndexError)):
        session.run([token])
