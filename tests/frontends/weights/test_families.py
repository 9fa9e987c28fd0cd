"""Each model family agrees with transformers, for prompts and for steps after a cached prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tcc.frontends.weights.importer import import_checkpoint

from tests.frontends.weights.sessions import evaluated
from tests.frontends.weights.tiny import CONFIGS, VOCABULARY, saved, tiny_model

_PROMPTS, _STEPS = (1, 2, 9), 7


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    graph = import_checkpoint(saved(model, tmp_path))
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, _PROMPTS[-1] + _STEPS).tolist()
    for length in _PROMPTS:
        session, cache = evaluated(graph), None
        rows = [0, -1] if length > 1 else [0]
        logits, cache = _expected(model, tokens[:length], cache)
        _check(session.run(tokens[:length], rows), logits[rows])
    for token in tokens[_PROMPTS[-1] :]:
        logits, cache = _expected(model, [token], cache)
        _check(session.run([token]), logits)


def _expected(model: Any, tokens: list[int], cache: Any) -> tuple[Any, Any]:
    """Returns the transformers logits of tokens after a cache, and the longer cache."""
    with torch.no_grad():
        result = model(torch.tensor([tokens]), cache=cache, use_cache=True)
    return result.logits[0].numpy(), result.past_key_values


def _check(logits: Any, expected: Any) -> None:
    bar = 1e-4 * float(np.abs(expected).max())
    np.testing.assert_allclose(logits, expected, rtol=0, atol=bar)
