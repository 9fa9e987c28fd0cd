"""GGUF files by llama.cpp's own converter agree with transformers, if the converter is
installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tcc.frontends.weights.gguf_file import read_gguf
from tcc.frontends.weights.importer import import_checkpoint

from tests.draws import RNG
from tests.frontends.weights.converter import CONVERTER, converted
from tests.frontends.weights.sessions import evaluated
from tests.frontends.weights.tiny import VOCABULARY


@pytest.mark.skipif(
    not CONVERTER.exists(), reason="scripts/language_families fetches llama.cpp's converter"
)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model, path = converted(name, tmp_path)
    tokens = RNG.integers(0, VOCABULARY, 9).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    session = evaluated(import_checkpoint(read_gguf(path)))
    bar = 1e-4 * float(np.abs(expected).max())
    for start, end in ((0, 7), (7, 9)):
        logits = session.run(tokens[start:end], range(end - start))
        np.testing.assert_allclose(logits, expected[start:end], rtol=0, atol=bar)
