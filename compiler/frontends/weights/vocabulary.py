"""The tokenizer, chat template, and begin and end tokens of a GGUF file.

The tokenizer becomes a tokenizer.json, which Hugging Face's library tokenizers reads. The file
tokenizers.json holds what is common to all of one kind, and names two kinds of vocabularies:

- "gpt2": pairs of bytes, with a list of merges; the field `pre` names how text is split before
- "llama": SentencePiece's pairs of characters; the scores of tokens give the order of merges

Other vocabularies, and other ways to split text, give no tokenizer.json.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tcc.frontends.weights.assets import GENERATION, TEMPLATE, TOKENIZER, generation, json_bytes
from tcc.frozen import frozen

# Types of tokens by SentencePiece's numbers.
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED = range(1, 6)
# Control tokens that end a turn.  llama.cpp knows them by name too, because files name only one.
_ENDS = frozenset(
    "<|im_end|> <|eot_id|> <|eom_id|> <|end|> <|end_of_text|> <|endoftext|> <end_of_turn>".split()
)
_COMMON = Path(__file__).with_name("tokenizers.json")
# The most characters that are copied to find merges: the sum of squared lengths of tokens.
_MOST_COPIES = 1 << 28


@frozen
class _Vocabulary:
    """The fields of a tokenizer without their common prefix, and its tokens with their types."""

    fields: Mapping[str, Any]
    tokens: Sequence[str]
    kinds: Sequence[int]

    def merges(self) -> list[Any]:
        """Returns the pairs of tokens that merge to a token, first the pairs that merge first.

        Without a list of merges they are the pairs that make a token, in descending order of its
        score, as in the function `generate_merges` of transformers. Control tokens do not merge.
        """
        if "merges" in self.fields:
            return _texts(self.fields, "merges")
        scores = _numbers(self.fields, "scores", len(self.tokens), 0)
        normal = {t: n for n, t in enumerate(self.tokens) if self.kinds[n] in (_NORMAL, _UNUSED)}
        if sum(len(token) ** 2 for token in normal) > _MOST_COPIES:
            raise ValueError("its tokens are too long")
        merges = [
            (-scores[n], n, -place, (token[:place], token[place:]))
            for token, n in normal.items()
            for place in range(1, len(token))
            if token[:place] in normal and token[place:] in normal
        ]
        return [pair for *_, pair in sorted(merges)]

    def specials(self) -> list[dict[str, Any]]:
        """Returns the tokens that texts hold whole."""
        shape = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return [
            {"id": n, "content": token, **shape, "special": self.kinds[n] != _USER}
            for n, token in enumerate(self.tokens)
            if token and self.kinds[n] in (_UNKNOWN, _CONTROL, _USER)
        ]

    def token(self, role: str) -> str | None:
        """Returns the token that has a role, such as "bos", or None."""
        number = self.fields.get(f"{role}_token_id")
        if number is None:
            return None
        if type(number) is not int or not 0 <= number < len(self.tokens):
            raise ValueError(f"the token {role} has the number {str(number)[:80]}")
        return self.tokens[number]

    def frame(self, begins: bool) -> dict[str, Any] | None:
        """Returns the step that puts begin and end tokens around a text, or None without them.

        `begins` is true if texts begin with the begin token unless the file says no.
        """
        specials, frames = {}, []
        for role, default in (("bos", begins), ("eos", False)):
            token = self.fields.get(f"add_{role}_token", default) and self.token(role)
            if token:
                number = self.fields[f"{role}_token_id"]
                specials[token] = {"id": token, "ids": [number], "tokens": [token]}
            frames.append([{"SpecialToken": {"id": token, "type_id": 0}}][: bool(token)])
        first, second = (
            [*frames[0], {"Sequence": {"id": name, "type_id": 0}}, *frames[1]] for name in "AB"
        )
        steps = {"single": first, "pair": first + second, "special_tokens": specials}
        return {"type": "TemplateProcessing", **steps} if specials else None


def gguf_assets(facts: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the assets of a GGUF file by name, from its fields.

    Raises ValueError, with a sentence, where the fields contradict one another.
    """
    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in facts.items()}
    tokens = _texts(fields, "tokens")
    vocabulary = _Vocabulary(fields, tokens, _numbers(fields, "token_type", len(tokens), _NORMAL))
    ends = [fields.get(f"{role}_token_id") for role in ("eos", "eot", "eom")]
    ends += [n for n, t in enumerate(tokens) if t in _ENDS and vocabulary.kinds[n] == _CONTROL]
    context = facts.get(f"{facts.get('general.architecture')}.context_length")
    assets = {GENERATION: generation(fields.get("bos_token_id"), ends, context)}
    template = facts.get("tokenizer.chat_template")
    if isinstance(template, str):
        assets[TEMPLATE] = template.encode()
    kind = str(fields.get("model"))
    if kind == "gpt2":
        kind = f"gpt2 {fields.get('pre')}"
    elif not fields.get("add_space_prefix", True):
        kind += " without prefix"
    common = json.loads(_COMMON.read_bytes()).get(kind)
    if tokens and common:
        assets[TOKENIZER] = json_bytes(_tokenizer(vocabulary, **common))
    return assets


def _tokenizer(vocabulary: _Vocabulary, begins: bool, parts: dict[str, Any]) -> dict[str, Any]:
    model = {
        **parts["model"],
        "unk_token": vocabulary.token("unknown"),
        "vocab": {token: n for n, token in enumerate(vocabulary.tokens)},
        "merges": vocabulary.merges(),
    }
    outer = {"version": "1.0", "truncation": None, "padding": None}
    specials, frame = vocabulary.specials(), vocabulary.frame(begins)
    return {**outer, **parts, "added_tokens": specials, "post_processor": frame, "model": model}


def _texts(fields: Mapping[str, Any], field: str) -> list[str]:
    texts = fields.get(field, [])
    if not isinstance(texts, list):
        raise ValueError(f"the field {field} is no list of texts")
    return texts


def _numbers(fields: Mapping[str, Any], field: str, count: int, default: int) -> list[Any]:
    """Returns a field of `count` numbers; `default` for each if there is no field."""
    numbers = fields.get(field)
    if numbers is None:
        return [default] * count
    if not isinstance(numbers, np.ndarray) or len(numbers) != count:
        raise ValueError(f"the field {field} has no number for each of {count} tokens")
    return list(numbers.tolist())
