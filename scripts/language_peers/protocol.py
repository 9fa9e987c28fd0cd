"""The worker's side: a process that runs one language model, whichever runtime it uses.

The arguments of a worker are the model's path, the precision and the number of threads. After
loading it prints a line of JSON, then answers each line of stdin with one:

    (start)            {"seconds": from the first call of the runtime to the first token's logits}
    run ROWS PAST N    {"seconds": [of each of N runs of ROWS tokens]}
    next TOKENS        {"token": the likeliest token after these tokens}

A run of several tokens follows PAST tokens. Runs of one token are N steps of one text, which has
PAST tokens before the first step. A failure is {"error": text}. This module needs only the standard
library.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Text(Protocol):
    """A loaded model with the tokens that it has read."""

    def clear(self) -> None:
        """Forgets all tokens."""

    def append(self, tokens: Sequence[int]) -> int:
        """Runs the model on further tokens; returns the likeliest token after them."""


# Loads the model of a path for a precision and a number of threads.
Load = Callable[[str, str, int], Text]
_FIRST = 3  # the smallest number of an ordinary token


def prompt(count: int) -> list[int]:
    """Returns `count` tokens, none of which has a meaning of its own for a runtime."""
    return [_FIRST + 7 * number % 250 for number in range(count)]


def serve(load: Load) -> None:
    """Loads the model that the command line names, and answers until stdin ends."""
    # Libraries print to descriptor 1 too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    try:
        path, precision, threads = sys.argv[1:]
        begin = time.perf_counter()
        text = load(path, precision, int(threads))
        text.append(prompt(1))
        answer({"seconds": time.perf_counter() - begin})
        for line in sys.stdin:
            answer(_answer(text, line.split()))
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})


def _answer(text: Text, words: Sequence[str]) -> dict[str, Any]:
    command, numbers = words[0], [int(word) for word in words[1:]]
    if command == "next":
        text.clear()
        return {"token": text.append(numbers)}
    rows, past, count = numbers
    seconds: list[float] = []
    for number in range(count):
        if rows > 1 or number == 0:
            text.clear()
            if past:
                text.append(prompt(past))
        tokens = prompt(rows)
        begin = time.perf_counter()
        text.append(tokens)
        seconds.append(time.perf_counter() - begin)
    return {"seconds": seconds}
