"""Parses JSON of untrusted files within a bound of memory."""

import json
import re
from typing import Any

# Reading a file, without its weights, stays below 256 MiB.
_MOST_MEMORY = 96 << 20
# Bytes of memory for each character of a kind.  A comma stands for the number or entry in front of
# it.
_COSTS = ((b"{", 240), (b"[", 80), (b",", 48))
_STRING_COST = 100  # bytes for a string, and for the pieces while strings are removed
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
