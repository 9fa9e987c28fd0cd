"""The answering side of `asked.py`: names come in, one JSON line for each goes out."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

LONGEST = 400  # characters of a reason


def brief(error: BaseException) -> str:
    """An error on one line, without the paths of this run."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("at: /")]
    return f"{type(error).__name__}: " + " | ".join(lines)[:LONGEST]


def answer(
    cases: Mapping[str, Any], listed: Iterable[str], check: Callable[[Any], tuple[str, str]]
) -> None:
    """Answers `?` with what is listed and a name with the outcome of its check."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print stays apart from the answers
    warnings.simplefilter("ignore")
    names = list(listed)
    for line in sys.stdin:
        name = line.strip()
        try:
            outcome = ["listed", names] if name == "?" else list(check(cases[name]))
        except Exception as error:  # a defect of the compiler: reported, the next one is tried
            outcome = ["crash", brief(error)]
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()
