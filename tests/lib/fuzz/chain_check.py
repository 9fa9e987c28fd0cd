"""Checks compiled models of chained shape operators against ONNX Runtime."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import tcc
from tcc.errors import UserError

from .compiled import MODES, Failure
from .open_sizes import OpenModel
from .shape_chains import generate

_SECONDS, _BYTES = 20, 2 << 30  # Limits of a compile, workers included.
_WRAPS = "a size is too large"  # ONNX Runtime's arithmetic wraps around instead.
_KIB = 1 << 10


def check(seeds: Sequence[int], modes: Sequence[str]) -> list[Failure]:
    """Returns the failures of some seeds, including compiles that exceed the limits."""
    return [
        Failure(seed, mode, what)
        for mode in modes
        for seed in seeds
        for what in chain_failures(generate(seed), mode)
    ]


def chain_failures(case: OpenModel, mode: str = "O3") -> Iterator[str]:
    """Yields a crash of the compiler, an excess of time or memory, and different results.

    A compiler may refuse a model by name.
    """
    before, peak_before = _seconds(), _peak()
    try:
        module = tcc.compile(case.model, jobs=1, **MODES[mode])
    except UserError:
        return
    except Exception as error:  # Any exception is a finding.
        yield f"{type(error).__name__}: {error}"
        return
    # Earlier work in this process may have taken more.
    took, peak = _seconds() - before, _peak() - peak_before
    if took > _SECONDS or peak > _BYTES:
        yield f"it took {took:.0f} s and {peak >> 20} MiB"
    yield from differences(case, module.run)


def _seconds() -> float:
    # Children do not count: this process compiles alone. A worker of an earlier compile that ends
    # now would add all its time.
    return sum(os.times()[:2])


def _peak() -> int:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(usage).ru_maxrss for usage in who) * _KIB


def differences(case: OpenModel, run: Any) -> Iterator[str]:
    """Yields the runs in which `run` differs from ONNX Runtime."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(case.model.SerializeToString(), options)
    for number, sizes in enumerate(case.runs):
        feeds = case.feeds(sizes)
        due = _results(session, feeds)
        try:
            outputs = list(run(feeds).values())
        except UserError as error:
            if due is not None and _WRAPS not in str(error):
                yield f"run {number} is refused: {error}"
            continue
        if due is None:
            yield f"run {number} is taken"
        elif any(not np.array_equal(a, b) for a, b in zip(outputs, due, strict=True)):
            yield f"run {number} differs"


def _results(session: ort.InferenceSession, feeds: Mapping[str, Any]) -> list[Any] | None:
    try:
        return list(session.run(None, dict(feeds)))
    except Exception:  # ONNX Runtime raises several classes without meaning.
        return None
