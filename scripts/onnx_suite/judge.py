"""Compiles, runs and compares a case; needs tcc. A crash may end the calling process."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np
from tcc import onnx_backend
from tcc.backends.cpu import compile as cpu_compile
from tcc.errors import ToolError, UserError

from onnx_suite.cases import SuiteCase, category, mismatch
from onnx_suite.exact import exact
from onnx_suite.modes import MODES
from tests.lib.pool_here import PoolHere

# The outcomes of a case, from good to bad.
OUTCOMES = MappingProxyType(
    {
        "pass": "agrees with the stored outputs",
        "drawn": "random numbers of the stored shapes and types",
        "exact": "does not, but agrees as well with the outputs that no rounding would give",
        "refused": "a clear error of the user's kind",
        "wrong": "other values, shapes or types",
        "internal": "an internal error or a traceback",
        "hang": "not done in time",
        "crash": "the process died",
    }
)


_RANDOM = frozenset(("Bernoulli", "Dropout", "Multinomial"))


@dataclass(frozen=True, slots=True)
class SuiteRow:
    """The outcome of a case in a mode.

    `category` is its row in the summary, and `why` the reason of the outcome, in one line.
    """

    name: str
    category: str
    outcome: str
    seconds: float
    why: str = ""


def judge(case: SuiteCase, mode: str, level: int) -> SuiteRow:
    """Compiles, runs and compares a case in the mode `mode` of MODES; returns its row.

    `level` is the number after -O. Any exception becomes an outcome of the row.
    """
    started = time.perf_counter()
    model, data = case.load()
    try:
        # A fixed seed: otherwise a few random numbers may agree with the stored ones by chance.
        with (
            np.errstate(all="ignore"),
            patch.object(cpu_compile, "WorkerPool", PoolHere),
            patch.dict(os.environ, {"TCC_SEED": "0"}),
        ):
            outcome, why = _compare(case, model, data, mode, level)
    except UserError as error:
        outcome, why = "refused", _line(error)
    except Exception as error:
        # A ToolError counts as tcc's failure too: the tool failed on tcc's output.
        kind = "ToolError" if isinstance(error, ToolError) else type(error).__name__
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""
        outcome, why = "internal", f"{kind} {place}: {_line(error)}"
    return SuiteRow(case.name, category(case, model), outcome, time.perf_counter() - started, why)


def _compare(
    case: SuiteCase, model: Any, data: Sequence[Any], mode: str, level: int
) -> tuple[str, str]:
    outcome, reason = "pass", ""
    for inputs, expected in data:
        changed, run_inputs = MODES[mode](model, inputs)
        prepared = onnx_backend.prepare(changed, level=level, jobs=1, threads=2)
        results = prepared.run(run_inputs)
        why = mismatch(results, expected, case.rtol, case.atol)
        if why and _draws(model) and _forms(results) == _forms(expected):
            outcome, reason = "drawn", why
        elif why:
            exact_results = exact(model, inputs, expected)
            if exact_results is None or mismatch(results, exact_results, case.rtol, case.atol):
                return "wrong", why
            outcome, reason = "exact", why
    return outcome, reason


def _draws(model: Any) -> bool:
    """Returns True if the model or one of its functions has a node that may draw random numbers."""
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    return any(node.op_type in _RANDOM or node.op_type.startswith("Random") for node in nodes)


def _forms(values: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(np.shape(value), np.asarray(value).dtype) for value in values]


def _line(error: BaseException) -> str:
    return " | ".join(line.strip() for line in str(error).splitlines())[:400]
