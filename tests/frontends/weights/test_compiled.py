"""Compiled language models agree with transformers: one artifact for prompts and for steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tcc
import torch

from tests.frontends.weights.gguf_models import write_gguf
from tests.frontends.weights.sessions import compiled
from tests.frontends.weights.tiny import VOCABULARY

# A row is several whole blocks of 32.
_WIDE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(("name", "stored"), [("llama", "Q4_1"), ("mixtral", "F16")])
def test_one_artifact_serves_prompts_and_steps(name: str, stored: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    model = write_gguf(name, path, stored, **_WIDE)
    module = tcc.compile(str(path))
    tokens = np.random.default_rng(8).integers(0, VOCABULARY, 16).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    bar = 1e-4 * float(np.abs(expected).max())
    for length in (1, 2, 9):
        session = compiled(module)
        logits = session.run(tokens[:length], range(length))
        np.testing.assert_allclose(logits, expected[:length], rtol=0, atol=bar)
    for number in range(9, 16):
        logits = session.run([tokens[number]])
        np.testing.assert_allclose(logits[0], expected[number], rtol=0, atol=bar)
    with pytest.raises(tcc.TccError):
        session.run([VOCABULARY])
