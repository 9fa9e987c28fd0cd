"""Checks models with symbolic sizes as machine code against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import tcc
from tcc.backends.cpu import compile as cpu_compile

from tests.lib.pool_here import PoolHere

from .compiled import MODES, Failure
from .open_judge import differences
from .open_layers import generate
from .open_sizes import OpenModel

# The tolerance of whole models, relative to the largest result.
_TOLERANCE = 1e-4


def check(seeds: Sequence[int], modes: Sequence[str]) -> list[Failure]:
    """Returns the failures of some seeds."""
    cases = [(seed, generate(seed)) for seed in seeds]
    failures = [(seed, mode, failure_of(case, mode)) for mode in modes for seed, case in cases]
    return [Failure(seed, mode, what) for seed, mode, what in failures if what]


def failure_of(case: OpenModel, mode: str) -> str:
    """Returns a model's failure in a mode, or an empty text.

    The model works at its first sizes, so the compiler must accept it.
    """
    try:
        with patch.object(cpu_compile, "WorkerPool", PoolHere):
            module = tcc.compile(case.model, jobs=1, threads=1, **MODES[mode])
        return "; ".join(differences(case, module.run, _TOLERANCE))
    except Exception as error:  # Any exception is a finding.
        return f"{type(error).__name__}: {error}"


def shrink(seed: int, mode: str) -> tuple[OpenModel, str] | None:
    """Returns the shortest failing part of a seed's model and its failure; None if the seed
    passes."""
    for most in range(1, 10):
        case = generate(seed, most)
        what = failure_of(case, mode)
        if what:
            return case, what
    return None
