"""Answers the questions of `worker_process.py`: reads names and writes a line of JSON for each."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

LONGEST = 400  # how many characters of a reason are kept


def brief(error: BaseException) -> str:
    """Returns an error as one line, without paths of this run."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("at: /")]
    return f"{type(error).__name__}: " + " | ".join(lines)[:LONGEST]


def answer(
    cases: Mapping[str, Any], case_names: Iterable[str], check: Callable[[Any], tuple[str, str]]
) -> None:
    """Answers each line of stdin with a line of JSON on stdout.

    A line "?" gets ["listed", names of all cases]. The name of a case gets what `check(case)`
    returns: [outcome, reason].
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries goes to stderr, so that stdout has only answers
    warnings.simplefilter("ignore")
    names = list(case_names)
    for line in sys.stdin:
        name = line.strip()
        try:
            outcome = ["listed", names] if name == "?" else list(check(cases[name]))
        # Any exception is a defect of the compiler, so the outcome is "crash".
        except Exception as error:
            outcome = ["crash", brief(error)]
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()
