"""Imported GGUF files agree with transformers, with matrices in floats and in blocks of levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tcc.frontends.weights.gguf_file import read_gguf
from tcc.frontends.weights.importer import import_checkpoint

from tests.frontends.weights.gguf_models import ARCHITECTURES, write_gguf
from tests.frontends.weights.sessions import evaluated
from tests.frontends.weights.tiny import VOCABULARY

_TOKENS = [(7 * n * n + 3 * n + 5) % VOCABULARY for n in range(9)]
# A row is several whole blocks of 32.
_WIDE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    _check(write_gguf(name, tmp_path / "model.gguf"), tmp_path)


@pytest.mark.parametrize("stored", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_matrices_are_multiplied_as_stored(stored: str, tmp_path: Path) -> None:
    _check(write_gguf("llama", tmp_path / "model.gguf", stored, **_WIDE), tmp_path)


@pytest.mark.parametrize("stored", ["Q4_K", "Q5_K", "Q6_K"])
def test_blocks_of_256_levels_are_multiplied_as_stored(stored: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 256}
    _check(write_gguf("llama", tmp_path / "model.gguf", stored, **_WIDE | sizes), tmp_path)


@pytest.mark.parametrize("stored", ["Q8_0", "Q4_1"])
def test_experts_are_multiplied_as_stored(stored: str, tmp_path: Path) -> None:
    _check(write_gguf("mixtral", tmp_path / "model.gguf", stored, **_WIDE), tmp_path)


def _check(model: Any, folder: Path) -> None:
    """Fails unless the logits of a prompt and of two rows after it are equal."""
    session = evaluated(import_checkpoint(read_gguf(folder / "model.gguf")))
    for start, end in ((0, 7), (7, 9)):
        with torch.no_grad():
            expected = model(torch.tensor([_TOKENS[:end]])).logits[0, start:].numpy()
        logits = session.run(_TOKENS[start:end], range(end - start))
        bar = 1e-4 * float(np.abs(expected).max())
        np.testing.assert_allclose(logits, expected, rtol=0, atol=bar)
