"""The frequencies of rotary embeddings agree with transformers; unknown scalings are refused."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from tcc.errors import UserError
from tcc.frontends.weights.facts import Facts
from tcc.frontends.weights.rotary import rotary
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_FACTS = Facts({}, "model")
_ORIGINAL = {"original_max_position_embeddings": 512}
_PAIRS = 12
_FORMS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "linear": {"factor": 4.0},
        "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_ORIGINAL},
        "yarn": {"factor": 4.0, "beta_fast": 16, **_ORIGINAL},
        "longrope": {
            "factor": 4.0,
            "short_factor": [1 + n / 16 for n in range(_PAIRS)],
            "long_factor": [2.0 + n for n in range(_PAIRS)],
            **_ORIGINAL,
        },
    }
)


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("base", [500.0, 1e6])
def test_frequencies_are_those_of_transformers(form: str, base: float) -> None:
    fields = {"rope_type": form, "rope_theta": base, **_FORMS[form]}
    config = LlamaConfig(hidden_size=96, num_attention_heads=4, max_position_embeddings=2048)
    config.rope_parameters = dict(fields)
    turns = rotary(fields, _FACTS, 2 * _PAIRS)
    for length, frequencies in ((1, turns.frequencies), (513, turns.long)):
        if frequencies is not None:
            expected, magnitude = ROPE_INIT_FUNCTIONS[form](config, torch.device("cpu"), length)
            np.testing.assert_allclose(frequencies, expected.numpy(), rtol=1e-6, atol=1e-12)
            assert turns.magnitude == pytest.approx(magnitude, rel=1e-6)


def test_divisors_divide_the_frequencies() -> None:
    divisors = [1.0 + n for n in range(_PAIRS)]
    fields = {"rope_type": "divided", "divisors": divisors, "rope_theta": 1e4}
    turns = rotary(fields, _FACTS, 2 * _PAIRS)
    expected = [1e4 ** (-n / _PAIRS) / (1 + n) for n in range(_PAIRS)]
    np.testing.assert_allclose(turns.frequencies, expected, rtol=1e-6, atol=1e-12)


def test_a_part_of_each_head_is_rotated() -> None:
    assert rotary({"partial_rotary_factor": 0.5}, _FACTS, 24).dims == 12
    assert rotary({"dims": 8}, _FACTS, 24).dims == 8


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic' is none of"),
        ({"rope_type": ["yarn"]}, "is none of"),
        ({"rope_type": "linear"}, "the key is missing"),
        ({"rope_type": "linear", "factor": 0}, "0 is no number"),
        ({"rope_type": "linear", "factor": float("nan")}, "nan is no number"),
        ({"rope_type": "linear", "factor": True}, "True is no number"),
        ({"rope_type": "default", "mrope_section": [2, 2]}, "no such parameter"),
        ({"rope_type": "divided", "divisors": 3}, "12 positive numbers"),
        ({"rope_type": "divided", "divisors": [0.0] * _PAIRS}, "12 positive numbers"),
        ({"rope_theta": "1e4"}, "1e4 is no number"),
        ({"rope_theta": 1}, "1 is no number"),
        ({"dims": 25}, "do not pair up"),
        ({"partial_rotary_factor": 0}, "do not pair up"),
        ({"rope_type": "yarn", "factor": 2.0}, "the key is missing"),
    ],
)
def test_unsupported_parameters_are_refused_by_name(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError) as caught:
        rotary(fields, _FACTS, 2 * _PAIRS)
    assert text in str(caught.value)
    assert "model: rotary embedding: " in str(caught.value)
