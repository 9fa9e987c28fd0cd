"""Contexts keep the keys and values of texts, and give NumPy's results without a cache."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx.parser
import pytest
import tcc
from tcc.runtime import Module
from tcc.runtime.language import TextContext, TextStream, harmless, next_token
from tcc.runtime.reports import InputError

from tests.lib.language_model import STATES, byte_tokenizer, expected_logits, language_model

VOCABULARY = 20
TEXT = [3, 5, 7, 1, 19, 0, 5, 2]


@pytest.fixture(scope="module")
def module() -> Module:
    return tcc.compile(language_model(VOCABULARY), state=list(STATES))


def check(logits: np.ndarray[Any, Any], text: Sequence[int]) -> None:
    assert logits.dtype == np.float32
    np.testing.assert_allclose(
        logits, expected_logits(text, VOCABULARY)[-len(logits) :], rtol=0, atol=1e-5
    )


# ---- contexts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [[8], [1] * 8, [3, 5], [1, 6, 1]])
def test_a_text_in_pieces_has_the_logits_of_the_whole(module: Module, pieces: list[int]) -> None:
    context, start = TextContext(module, 8), 0
    for count in pieces:
        piece = TEXT[start : start + count]
        start += count
        check(context.append(piece, count), TEXT[:start])
    assert context.length == 8
    assert context.vocabulary == VOCABULARY


def test_one_row_of_logits_by_default(module: Module) -> None:
    assert TextContext(module, 8).append(TEXT).shape == (1, VOCABULARY)


def test_a_kept_prefix_serves_other_ends(module: Module) -> None:
    context = TextContext(module, 12)
    context.append(TEXT)
    for end in ([9, 9], [4]):
        context.truncate(5)
        check(context.append(end), TEXT[:5] + end)
    context.truncate(0)
    check(context.append([8]), [8])


def test_contexts_of_one_module_are_apart(module: Module) -> None:
    first, second = TextContext(module, 8), TextContext(module, 9)
    first.append([1, 2]), second.append([3])
    check(first.append([4]), [1, 2, 4])
    check(second.append([5]), [3, 5])


def test_threads_extend_texts_of_one_module(module: Module) -> None:
    texts = [TEXT[n:] + TEXT[:n] for n in range(8)]

    def last(text: list[int]) -> np.ndarray[Any, Any]:
        context = TextContext(module, 8)
        return np.concatenate([context.append([token]) for token in text])

    with ThreadPoolExecutor(4) as threads:
        for text, logits in zip(texts, threads.map(last, texts), strict=True):
            check(logits, text)


@pytest.mark.parametrize(
    ("tokens", "rows", "why"),
    [
        ([], 1, "there are no tokens"),
        ([1], 2, "2 rows of logits are asked for, and 1 tokens"),
        ([1], 0, "0 rows of logits"),
        ([1, 2], 1, "the context is full"),
        ([VOCABULARY], 1, "numbers from 0 to 19, and those given are from 20 to 20"),
        ([-1], 1, "from -1 to -1"),
    ],
)
def test_refused_tokens_leave_the_text_as_it_was(
    module: Module, tokens: list[int], rows: int, why: str
) -> None:
    context = TextContext(module, len(TEXT) + 1)
    context.append(TEXT)
    with pytest.raises(InputError, match=why):
        context.append(tokens, rows)
    assert context.length == len(TEXT)
    check(context.append([6]), [*TEXT, 6])


def test_a_text_is_not_cut_behind_its_end(module: Module) -> None:
    context = TextContext(module, 8)
    context.append([1])
    with pytest.raises(InputError, match="it has 1 tokens, not 2"):
        context.truncate(2)


def test_another_model_is_refused() -> None:
    other = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        other (float[2] tokens) => (float[2] y) { y = Relu(tokens) }""")
    with pytest.raises(InputError, match="no language model that tcc imported"):
        TextContext(tcc.compile(other), 8)


# ---- the next token ----------------------------------------------------------------------------


def test_without_a_temperature_the_first_of_the_likeliest_is_taken() -> None:
    assert next_token(np.array([1, 3, 3, -np.inf], np.float32)) == 1


def test_draws_have_the_probabilities_of_the_nucleus() -> None:
    """Three tokens together reach 0.9; the counts of 20,000 draws are within five deviations."""
    probabilities = np.array([0.1, 0.5, 0.05, 0.3, 0.05])
    logits = (2 * np.log(probabilities)).astype(np.float32)  # a temperature of 2 halves them
    draws = np.random.default_rng(3)
    tokens = [next_token(logits, 2.0, 0.85, draws) for _ in range(20_000)]
    counts = np.bincount(tokens, minlength=5)
    nucleus = np.array([0.1, 0.5, 0, 0.3, 0]) / 0.9
    deviations = np.sqrt(20_000 * nucleus * (1 - nucleus))
    assert np.all(np.abs(counts - 20_000 * nucleus) <= 5 * deviations)


@pytest.mark.parametrize("top_p", [0.0, 1e-9])
def test_a_nucleus_has_a_token_at_least(top_p: float) -> None:
    assert next_token(np.array([0, 1, 0], np.float32), 1.0, top_p) == 1


def test_equal_seeds_draw_equal_tokens_and_all_tokens_can_be_drawn() -> None:
    logits = np.zeros(3, np.float32)

    def tokens(seed: int) -> list[int]:
        draws = np.random.default_rng(seed)
        return [next_token(logits, 1.0, 1.0, draws) for _ in range(50)]

    assert tokens(1) == tokens(1)
    assert {*tokens(1)} == {0, 1, 2}


# ---- texts -------------------------------------------------------------------------------------


def test_a_character_of_several_tokens_appears_whole() -> None:
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode("né 🙂!").ids
    stream = TextStream(tokenizer)
    parts = [stream.add(token) for token in tokens]
    assert [part for part in parts if part] == ["n", "é", " ", "🙂", "!"]
    assert stream.end() == ""
    assert stream.text == "né 🙂!"


@pytest.mark.parametrize(
    ("text", "stops", "shown", "ended"),
    [
        ("one. two", ["two"], "one. ", True),
        ("abababc", ["abc", "zz"], "abab", True),
        ("abcab", ["abd"], "abcab", False),
        ("xyz", ["yz", "xy"], "", True),
    ],
)
def test_a_text_ends_before_a_stop(text: str, stops: list[str], shown: str, ended: bool) -> None:
    tokenizer = byte_tokenizer()
    stream, printed = TextStream(tokenizer, stops), ""
    for token in tokenizer.encode(text).ids:
        printed += stream.add(token)
        assert not any(stop in printed for stop in stops)
        if stream.ended:
            break
    assert printed + stream.end() == stream.text == shown
    assert stream.ended == ended


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert harmless("a\x1b[2J\x07\r\x9b\u202eb\n\tc\ud800") == "a[2Jb\n\tc"
    assert harmless("né 👩\u200d💻") == "né 👩\u200d💻"
