"""The files of a language model that its artifact holds besides the weights."""

import json
from collections.abc import Iterable
from typing import Any

TOKENIZER, TEMPLATE, GENERATION = "tokenizer.json", "chat_template.jinja", "generation.json"


def json_bytes(value: Any) -> bytes:
    """Returns a value as JSON in UTF-8; equal values give equal bytes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def generation(begin: Any, ends: Iterable[Any], context: Any) -> bytes:
    """Returns generation.json.

    `begin` is the number of the token that begins a text, or None; `ends` are the numbers of the
    tokens that end one, or None; `context` is the most tokens, or None. Raises ValueError for other
    values.
    """
    numbers = sorted({_count(end) for end in ends if end is not None})
    first, length = (None if n is None else _count(n) for n in (begin, context))
    return json_bytes({"bos": first, "eos": numbers, "context": length})


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError(f"{str(value)[:80]} is no number of a token or of tokens")
    return value
