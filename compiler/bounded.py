"""Parses JSON of untrusted files within a bound of memory."""

import json
import re
from typing import Any

# JSON's share of the 256 MiB that reading a file, without its weights, may take.
_MOST_MEMORY = 96 << 20
# The bytes of memory of the Python object that a character stands for: a dictionary, a list, and
# the number or entry that a comma ends.
_COSTS = ((b"{", 240), (b"[", 80), (b",", 48))
_STRING_COST = 100  # bytes of a string, and of the text around it, which `_STRING.sub` copies
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def parse_json(data: bytes) -> Any:
    """Returns the value of a JSON text.

    Raises ValueError where `data` is not JSON or may take more than 96 MiB of memory, and
    RecursionError where it nests too deep.
    """
    memory = len(data) * (1 if data.isascii() else 5) + data.count(b'"') * _STRING_COST // 2
    if memory <= _MOST_MEMORY:
        marks = _STRING.sub(b'"', data)
        memory += sum(marks.count(mark) * cost for mark, cost in _COSTS)
    if memory > _MOST_MEMORY:
        raise ValueError(f"its JSON takes up to {memory >> 20} MiB")
    return json.loads(data)
