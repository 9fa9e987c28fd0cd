"""Language models with a growing cache, exported by torch, agree with transformers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tcc
import torch
from tcc import cli
from tcc.errors import UserError
from torch.export import Dim
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

# One worker loads and warms torch's export and its compiler.
pytestmark = pytest.mark.xdist_group("torch")
LAYERS, KEY_HEADS, WIDTH, CAPACITY = 2, 2, 8, 24
WORDS = 50
STATES = {"past_*_*": "present_*_*"}


class Step(torch.nn.Module):
    """Computes any number of tokens after caches of [1, head, past, width]."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, past_k: Any, past_v: Any) -> Any:
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(zip(past_k, past_v, strict=True)):
            cache.update(keys, values, layer)
        result = self.model(input_ids, past_key_values=cache)
        layers = result.past_key_values.layers
        present = {"k": [layer.keys for layer in layers], "v": [layer.values for layer in layers]}
        return {"logits": result.logits, "present": present}


def llama() -> LlamaForCausalLM:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).eval()


def exported(model: LlamaForCausalLM, past: Any, seq: Any) -> Any:
    keys, values = ([torch.randn(1, KEY_HEADS, 3, WIDTH) for _ in range(LAYERS)] for _ in "kv")
    example = torch.ones(1, 5, dtype=torch.long), keys, values
    shapes = {1: seq}, [{2: past}] * LAYERS, [{2: past}] * LAYERS
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # warnings of torch itself, at export
        program = torch.export.export(Step(model), example, dynamic_shapes=shapes, strict=False)
        return program.run_decompositions()


def caches() -> dict[str, Any]:
    names = (f"past_{kind}_{layer}" for kind in "kv" for layer in range(LAYERS))
    return {n: torch.full((1, KEY_HEADS, CAPACITY, WIDTH), np.nan) for n in names}


def views(memory: dict[str, Any], length: int) -> dict[str, Any]:
    return {name: array[:, :, :length] for name, array in memory.items()}


def test_prompts_of_three_lengths_and_steps_behind_a_prefix() -> None:
    model = llama()
    module = tcc.compile(exported(model, Dim("past"), Dim("seq")), state=STATES, jobs=1)
    memory = caches()
    for prompt, prefix in ((1, 0), (4, 1), (13, 6)):
        words = torch.randint(0, WORDS, (1, CAPACITY))
        lengths = [prompt, *range(prefix + 1, prefix + 8)]
        starts = [0, *range(prefix, prefix + 7)]
        for start, length in zip(starts, lengths, strict=True):
            outputs = module.run({"input_ids": words[:, start:length], **views(memory, length)})
            with torch.no_grad():
                reference = model(words[:, :length]).logits[:, start:]
            torch.testing.assert_close(outputs["logits"], reference, rtol=1e-4, atol=1e-4)


def test_a_past_of_at_least_one_row_names_the_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The range of Dim.DYNAMIC begins at 1; the compile and the first prompt both say so."""
    program = exported(llama(), Dim.DYNAMIC, Dim.DYNAMIC)
    torch.export.save(program, tmp_path / "m.pt2")
    command = ["compile", str(tmp_path / "m.pt2"), "-o", str(tmp_path / "m.so"), "--jobs=1", "-O1"]
    assert cli.execute([*command, *(f"--state={a}={b}" for a, b in STATES.items())]) == 0
    text = " ".join(capsys.readouterr().err.split())
    assert "state past_k_0 and 3 more cannot be empty: it has at least 1 rows" in text
    assert "whose range begins at 0" in text
    module = tcc.load(tmp_path / "m.so")
    memory = caches()
    with pytest.raises(UserError, match=r"at least 1 is due; .*torch\.export\.Dim\('past'\)"):
        module.run({"input_ids": torch.ones(1, 4, dtype=torch.long), **views(memory, 4)})
    module.run({"input_ids": torch.ones(1, 4, dtype=torch.long), **views(memory, 5)})
