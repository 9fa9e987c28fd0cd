"""Graphs and artifacts of language models have few bytes beside those of their files."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import tcc
import torch
from tcc.frontends.weights.gguf_file import read_gguf
from tcc.frontends.weights.importer import import_checkpoint
from tcc.ir.graph import constant_bytes

from .gguf_models import write_gguf
from .sessions import compiled

_SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "tie_word_embeddings": True,
}
_TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K"]


@pytest.mark.parametrize("stored", _TYPES)
def test_a_graph_takes_no_more_than_1_35_times_the_bytes_of_the_file(
    stored: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf("llama", path, stored, **_SIZES)
    graph = import_checkpoint(read_gguf(path))
    assert constant_bytes(graph) <= 1.35 * _tensor_bytes(path)


@pytest.mark.parametrize("stored", ["Q5_0", "F16"])
def test_an_artifact_stores_a_tied_table_once(stored: str, tmp_path: Path) -> None:
    path, outputs = tmp_path / "model.gguf", [tmp_path / n / "model.so" for n in "ab"]
    model = write_gguf("llama", path, stored, **_SIZES)
    for output in outputs:
        output.parent.mkdir()
        module = tcc.compile(str(path))
        module.save(output)
    weights = module.manifest["variants"][0]["weights"]["bytes"]
    assert weights <= 1.05 * _tensor_bytes(path)
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    tokens = np.random.default_rng(8).integers(0, 1024, 9).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    bar = 1e-4 * float(np.abs(expected).max())
    np.testing.assert_allclose(compiled(module).run(tokens, range(9)), expected, rtol=0, atol=bar)


def _tensor_bytes(path: Path) -> int:
    return sum(tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors)
