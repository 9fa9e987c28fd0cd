"""The files of a language model that its artifact holds besides the weights."""

import json
from collections.abc import Iterable
from typing import Any

TOKENIZER, TEMPLATE, GENERATION = "tokenizer.json", "chat_template.jinja", "generation.json"


def json_bytes(value: Any) -> bytes:
    """Returns a value as JSON in UTF-8; equal values give equal bytes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def generation(begin: Any, ends: Iterable[Any], context: Any, unread: str = "") -> bytes:
    """Returns generation.json, whose parts may be None.

    `begin` is the number of the token that begins a text, `ends` are the numbers of the tokens that
    end one, `context` is the most tokens. `unread` names a vocabulary that has no tokenizer.json,
    for the error of a program that needs one. Raises ValueError for other values.
    """
    numbers = {value for value in ends if value is not None}
    for value in (begin, *numbers, context):
        if value is not None and (type(value) is not int or not 0 <= value < 1 << 31):
            raise ValueError(f"{str(value)[:80]} is no number of a token or of tokens")
    parts = {"bos": begin, "eos": sorted(numbers), "context": context}
    return json_bytes({**parts, "vocabulary": unread} if unread else parts)
