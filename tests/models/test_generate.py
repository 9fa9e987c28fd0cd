"""The examples that generate text give the tokens that NumPy computes without a cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tcc import driver
from tcc.cli import execute
from tcc.frontends.weights.vocabulary import gguf_assets
from tokenizers import Tokenizer

from tests.lib.language_model import (
    CONTEXT,
    STATES,
    byte_tokenizer,
    expected_logits,
    greedy_tokens,
    language_model,
)

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "models" / "examples"
EOS, VOCABULARY = 256, 257
CHAT = "<{{ bos_token }}>{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"


def tokenizer() -> Tokenizer:
    """Returns a tokenizer with a token for each byte and a token that ends texts."""
    result = byte_tokenizer()
    assert result.add_special_tokens(["<end>"]) == 1
    assert result.token_to_id("<end>") == EOS
    return result


def ids(text: str) -> list[int]:
    numbers: list[int] = tokenizer().encode(text).ids
    return numbers


def artifact(folder: Path, monkeypatch: pytest.MonkeyPatch, assets: Mapping[str, bytes]) -> Path:
    """Compiles the model with the assets that the import of a language model would add."""
    path = folder / "lm.onnx"
    onnx.save(language_model(VOCABULARY), path)
    monkeypatch.setattr(driver, "assets_of", lambda model: assets)
    flags = [word for state in STATES for word in ("--state", state)]
    assert execute(["compile", str(path), "-o", str(folder / "lm.so"), *flags]) == 0
    return folder / "lm.so"


def settings(**values: Any) -> bytes:
    return json.dumps({"bos": EOS, "eos": [EOS], "context": CONTEXT, **values}).encode()


TOKENIZER = tokenizer().to_str().encode()
ASSETS = {"tokenizer.json": TOKENIZER, "generation.json": settings()}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles an artifact without a chat template."""
    with pytest.MonkeyPatch.context() as patch:
        return artifact(tmp_path_factory.mktemp("raw"), patch, ASSETS)


def generate(path: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "generate"), str(path), *words]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result


def facts(path: Path, *words: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(generate(path, *words, "--json").stdout)
    return record


def margin(prompt: list[int], tokens: list[int]) -> float:
    """Returns the least distance between the logits of the two likeliest tokens."""
    logits = np.sort(expected_logits(prompt + tokens, VOCABULARY)[len(prompt) - 1 :])
    return float((logits[:, -1] - logits[:, -2]).min())


# ---- the example in Python ---------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["a", "né", "The capital of France is" * 4])
def test_greedy_tokens_are_those_of_numpy(raw: Path, prompt: str) -> None:
    expected = greedy_tokens(ids(prompt), 20, VOCABULARY)
    expected = expected[: expected.index(EOS)] if EOS in expected else expected
    assert margin(ids(prompt), expected) > 1e-4, "rounding may decide; take another prompt"
    record = facts(raw, "--prompt", prompt, "--greedy", "--tokens", "20")
    assert record["tokens"] == expected
    assert record["prompt_tokens"] == len(ids(prompt))
    assert record["text"] == tokenizer().decode(expected).rstrip("\ufffd")
    assert record["peak_memory_bytes"] > 1 << 20
    assert record["seconds_to_first_token"] > 0
    assert record["tokens_per_second"] > 0


def test_a_text_streams_without_control_characters(raw: Path) -> None:
    words = ("--prompt", "stream", "--temperature", "3", "--top-p", "1", "--seed", "5")
    text = facts(raw, *words, "--tokens", "120")["text"]
    printed = generate(raw, *words, "--tokens", "120")
    assert any(unicodedata.category(c) == "Cc" for c in text), "take another seed"
    visible = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf"))
    assert printed.stdout == visible + "\n"
    assert "tokens/s" in printed.stderr


def test_equal_seeds_give_equal_texts(raw: Path) -> None:
    words = ("--prompt", "seed", "--temperature", "2", "--tokens", "20", "--seed")
    first = facts(raw, *words, "1")["tokens"]
    assert facts(raw, *words, "1")["tokens"] == first
    assert facts(raw, *words, "2")["tokens"] != first


def test_a_template_makes_the_prompt_and_the_last_token_ends_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tokenizer().encode("<<end>>s:brief;u:hi;", add_special_tokens=False).ids
    assert EOS in prompt
    expected = greedy_tokens(prompt, 6, VOCABULARY)
    last = next(token for token in expected[2:] if token not in expected[:2])
    assets = {
        "tokenizer.json": TOKENIZER,
        "chat_template.jinja": CHAT.encode(),
        "generation.json": settings(eos=[EOS, last]),
    }
    path = artifact(tmp_path, monkeypatch, assets)
    words = ("--prompt", "hi", "--system", "brief", "--greedy")
    record = facts(path, *words)
    assert record["prompt_tokens"] == len(prompt)
    assert record["tokens"] == expected[: expected.index(last)]
    assert record["ended_by"] == "end"
    assert facts(path, "--prompt", "hi", "--raw", "--tokens", "1")["prompt_tokens"] == 2
    hostile = {**assets, "chat_template.jinja": b"{{ ''.__class__.x }}"}
    path = artifact(tmp_path, monkeypatch, hostile)
    refused = generate(path, *words, code=2)
    assert "the chat template cannot be rendered" in refused.stderr
    assert refused.stdout == ""


def test_a_text_ends_before_a_stop(raw: Path) -> None:
    words = ("--prompt", "seed", "--temperature", "2", "--seed", "1", "--tokens", "40")
    text = facts(raw, *words)["text"]
    stop = text[10:12]
    record = facts(raw, *words, "--stop", "not there", "--stop", stop)
    assert record["text"] == text[: text.index(stop)]
    assert record["ended_by"] == "stop"


def test_a_full_context_is_an_error_behind_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = artifact(tmp_path, monkeypatch, {**ASSETS, "generation.json": settings(context=6)})
    full = generate(path, "--prompt", "full", "--greedy", code=2)
    assert "the context is full" in full.stderr
    assert "room for 6 tokens" in full.stderr
    longer = generate(path, "--prompt", "longer prompt", code=2)
    assert "holds 0 before 13 more" in longer.stderr


def test_an_empty_prompt_is_refused(raw: Path) -> None:
    assert "the prompt has no tokens" in generate(raw, "--prompt", "", code=2).stderr
    assert "--tokens" in generate(raw, "--prompt", "a", "--tokens", "0", code=2).stderr


def test_a_tokenizer_may_be_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts_of_file = {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": ["a"]}
    path = artifact(tmp_path, monkeypatch, gguf_assets(facts_of_file))
    words = ("--prompt", "né", "--greedy", "--tokens", "5")
    refused = generate(path, *words, code=2)
    assert "there is no tokenizer for the vocabulary rwkv" in refused.stderr
    assert "--tokenizer" in refused.stderr
    (tmp_path / "t.json").write_bytes(TOKENIZER)
    record = facts(path, *words, "--tokenizer", str(tmp_path / "t.json"))
    assert record["tokens"] == greedy_tokens(ids("né"), 5, VOCABULARY)
    (tmp_path / "t.json").write_bytes(b"{}")
    bad = generate(path, *words, "--tokenizer", str(tmp_path / "t.json"), code=2)
    assert "the tokenizer cannot be read" in bad.stderr


def test_the_example_has_at_most_200_lines() -> None:
    assert len((EXAMPLES / "generate").read_text().splitlines()) <= 200
    assert os.access(EXAMPLES / "generate", os.X_OK)


# ---- the example in C --------------------------------------------------------------------------


def test_the_c_program_continues_token_numbers(raw: Path, tmp_path: Path) -> None:
    program = tmp_path / "generate"
    command = (
        "gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
        EXAMPLES / "generate.c", f"-I{raw.parent}", raw, f"-Wl,-rpath,{raw.parent}", "-o", program,
    )  # fmt: skip
    subprocess.run(command, check=True)

    def ran(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *map(str, words)], capture_output=True, text=True, check=False
        )

    for prompt in ([7], [3, 250, 7, 7, 19]):
        expected = greedy_tokens(prompt, 12, VOCABULARY)
        assert margin(prompt, expected) > 1e-4, "rounding may decide; take another prompt"
        result = ran(12, *prompt)
        assert [*map(int, result.stdout.split())] == expected, result.stderr
    assert "an index is outside" in ran(3, 1000).stderr
    assert ran(3).returncode == 2
