"""In batches of texts with different lengths, each text has the logits that transformers gives for
the text alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tcc
import torch
from tcc.errors import UserError
from tcc.frontends.weights.checkpoint import Checkpoint
from tcc.frontends.weights.importer import import_checkpoint
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.runtime.language import TextBatch, TextContext
from tcc.runtime.reports import InputError

from tests.draws import RNG
from tests.frontends.weights.gguf_models import write_gguf
from tests.frontends.weights.tiny import CONFIGS, VOCABULARY, saved, tiny_model

# The tokens that each run appends to each of four texts.
_RUNS = ((1, 2, 7, 20), (1, 1, 1, 1), (3, 1, 2, 1))
_WIDE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_each_text_of_a_batch_is_as_alone(name: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    graph = import_checkpoint(saved(model, tmp_path), None, ["batch"])
    sizes = {v.name: v.type.shape[2:] for v in graph.inputs[3:]}
    # Rows that belong to no text hold arbitrary numbers, which no token may see.
    caches = {
        n: np.full((32, 4, *(int(d.key) for d in s)), 9, np.float32) for n, s in sizes.items()
    }
    caches_of_texts: list[Any] = [None] * 4
    for lengths, pieces in _pieces(_RUNS):
        padded = np.full((4, max(map(len, pieces))), VOCABULARY - 1)
        for row, piece in zip(padded, pieces, strict=True):
            row[: len(piece)] = piece
        feeds = {
            "tokens": padded,
            "rows": np.array([[0, len(piece) - 1] for piece in pieces]),
            "lengths": np.array(lengths),
        }
        end = max(lengths) + padded.shape[1]
        results = evaluate_graph(graph, {**feeds, **{n: c[:end] for n, c in caches.items()}})
        for n, cache in caches.items():
            cache[:end] = results[f"{n}.next"]
        for text, piece in enumerate(pieces):
            with torch.no_grad():
                result = model(torch.tensor([piece]), cache=caches_of_texts[text], use_cache=True)
            caches_of_texts[text] = result.past_key_values
            expected = result.logits[0, [0, -1]].numpy()
            bar = 1e-4 * float(np.abs(expected).max())
            np.testing.assert_allclose(results["logits"][text], expected, rtol=0, atol=bar)


def test_a_compiled_batch_is_as_its_texts_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf("llama", path, "Q4_1", **_WIDE)
    module = tcc.compile(str(path), buckets={"batch": [4]})
    single = tcc.compile(str(path))
    for texts in (4, 1):
        batch = TextBatch(module, texts, 128)
        contexts = [TextContext(single, 128) for _ in range(texts)]
        for _, pieces in _pieces(((100, 1, 2, 7), (1, 1, 1, 1), (1, 3, 1, 2))):
            logits = batch.append(pieces[:texts])
            for context, row, piece in zip(contexts, logits, pieces, strict=False):
                expected = context.append(piece)[0]
                bar = 1e-5 * float(np.abs(expected).max())
                np.testing.assert_allclose(row, expected, rtol=0, atol=bar)
        batch.truncate(0, 5)
        contexts[0].truncate(5)
        logits = batch.append([[3, 4], *[[]] * (texts - 1)])
        expected = contexts[0].append([3, 4])[0]
        bar = 1e-5 * float(np.abs(expected).max())
        np.testing.assert_allclose(logits[0], expected, rtol=0, atol=bar)
        assert np.isnan(logits[1:]).all()
        assert batch.lengths == [7, *(context.length for context in contexts[1:])]
    _check_refusals(module, single)


def _check_refusals(module: tcc.Module, single: tcc.Module) -> None:
    batch = TextBatch(module, 2, 4)
    batch.append([[1], [2, 3]])
    for pieces, why in (
        ([[1, 2, 3], [4]], "room for 4 tokens, and holds 2 before 3"),
        ([[1]], "1 lists with 1 tokens are given for 2 texts"),
        ([[], []], "2 lists with 0 tokens"),
        ([[1], [VOCABULARY]], "not in the vocabulary"),
    ):
        with pytest.raises(InputError, match=why):
            batch.append(pieces)
        assert batch.lengths == [1, 2]
    with pytest.raises(InputError, match="it has 1 tokens, not 2"):
        batch.truncate(0, 2)
    with pytest.raises(InputError, match="use TextBatch"):
        TextContext(module, 4)
    with pytest.raises(InputError, match="--bucket batch"):
        TextBatch(single, 1, 4)
    feeds = {"tokens": np.zeros((2, 2), np.int64), "rows": np.zeros((2, 1), np.int64)}
    caches = {p.name: np.zeros((4, 2, 2, 16), np.float32) for p in module.inputs[3:]}
    for lengths in ([-1, 0], [0, 3]):
        with pytest.raises(tcc.TccError, match="index"):
            module.run({**feeds, **caches, "lengths": np.array(lengths)})
    lengths = np.zeros(2, np.int64)
    for row in (2, -3):
        with pytest.raises(tcc.TccError, match="index"):
            module.run({**feeds, **caches, "lengths": lengths, "rows": np.array([[0], [row]])})


def _pieces(runs: tuple[tuple[int, ...], ...]) -> Iterator[tuple[list[int], list[list[int]]]]:
    """Yields the lengths of the texts before each run, and the tokens that it appends."""
    lengths = [0] * len(runs[0])
    for counts in runs:
        yield lengths, [RNG.integers(0, VOCABULARY, count).tolist() for count in counts]
        lengths = [a + b for a, b in zip(lengths, counts, strict=True)]


def test_sizes_of_a_batch(tmp_path: Path) -> None:
    checkpoint = saved(tiny_model("llama"), tmp_path)
    graph = import_checkpoint(checkpoint, {"tokens": (3, "count")})
    assert [str(v.type) for v in graph.inputs[:3]] == ["i64[3,count]", "i64[3,n]", "i64[3]"]
    _refused(checkpoint, {"tokens": (3, 0)}, "0 given, the model declares at least 1")
    _refused(checkpoint, {"tokens": (1, 2, 3)}, "3 dimensions given")
    _refused(
        checkpoint, {"tokens": (3, 2), "rows": (1,)}, "1 dimensions given, the model declares 2"
    )
    _refused(checkpoint, {"tokens": (3, 2), "rows": (2, 1)}, "2 given, the tokens declare 3")


def _refused(checkpoint: Checkpoint, shapes: Any, why: str) -> None:
    with pytest.raises(UserError) as error:
        import_checkpoint(checkpoint, shapes)
    assert why in str(error.value)
