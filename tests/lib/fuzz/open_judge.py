"""Checks a model with symbolic sizes at each of its runs against unoptimised ONNX Runtime."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.passes.graph.settle_sizes import settle_sizes

from .open_sizes import Arrays, OpenModel

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Any]], Arrays]
Outputs = Sequence[Array] | None  # None means a refusal.
# ONNX Runtime accepts pool windows larger than the image, with meaningless results.
_SHORT = re.compile(r"\((Max|Average)Pool\).*a window must not be larger than its padded image")
# A refusal must name an input, or a node and its operator.
_NAMED = re.compile(r"'\w+'|\w+ \(\w+\)")


def differences(case: OpenModel, run: Run, tolerance: float = 0.0) -> list[str]:
    """Returns the runs in which `run` differs from ONNX Runtime, or refuses without a reason.

    `tolerance` is relative to the largest result.
    """
    texts = []
    for sizes, reference in zip(case.runs, expected(case), strict=True):
        what, feeds = "", case.feeds(sizes)
        try:
            results: Outputs = list(run(feeds).values())
        except UserError as error:
            results, what = None, f"{error.what} at {error.where}"
        if results is None and reference is not None:
            what = "" if _SHORT.search(what) else f"refused: {what}"
        elif results is None:
            what = "" if _NAMED.search(what) else f"refused without a name: {what}"
        elif reference is None:
            what = _unless_empty(case, feeds, results, tolerance)
        else:
            what = _different(results, reference, tolerance)
        texts += [f"{sizes}: {what}"] if what else []
    return texts


def _unless_empty(
    case: OpenModel, feeds: Arrays, results: Sequence[Array], tolerance: float
) -> str:
    """Returns the fault of results where ONNX Runtime gives none.

    ONNX Runtime refuses empty operands, and padding that mirrors an axis more than once. Then the
    graph evaluator is the oracle.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    outputs = [value.name for value in model.graph.output]
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in dict.fromkeys(case.values)
        if name not in outputs
    )
    try:
        values = evaluate_graph(settle_sizes(load_model(model)), feeds)
    except UserError:
        return "taken"
    if (
        all(a.size for a in (*feeds.values(), *values.values()))
        and b"reflect" not in model.SerializeToString()
    ):
        return "taken"
    return _different(results, [values[name] for name in outputs], tolerance)


def expected(case: OpenModel) -> list[Outputs]:
    """Returns ONNX Runtime's outputs at each run, or None for a refusal."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(case.model.SerializeToString(), options)
    dies = any(n.op_type == "InstanceNormalization" for n in case.model.graph.node)
    once = _apart if dies else _once
    return [once(session, case.feeds(sizes)) for sizes in case.runs]


def _once(session: ort.InferenceSession, feeds: Arrays) -> Outputs:
    try:
        outputs: Outputs = session.run(None, feeds)
    except Exception:  # ONNX Runtime raises several classes without meaning.
        return None
    return outputs


def _apart(session: ort.InferenceSession, feeds: Arrays) -> Outputs:
    """Runs `_once` in a child process, because norms over no elements kill ONNX Runtime."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            outputs, data = _once(session, feeds), io.BytesIO()
            np.savez(data, *(outputs or ()))
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(data.getvalue() if outputs is not None else b"")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = io.BytesIO(pipe.read())
    os.waitpid(child, 0)
    return list(np.load(data).values()) if data.getbuffer() else None


def _different(actual: Sequence[Array], reference: Sequence[Array], tolerance: float) -> str:
    for a, b in zip(actual, reference, strict=True):
        if a.shape != b.shape:
            return f"shape {a.shape} instead of {b.shape}"
        if not tolerance and not np.array_equal(a, b):
            return f"{a.shape} differs"
        if tolerance and b.size:
            equal = np.isnan(a) & np.isnan(b) | (a == b)
            with np.errstate(invalid="ignore"):
                distance = np.where(equal, 0, np.abs(a - b)).max() / max(1e-3, np.abs(b).max())
            if not distance <= tolerance:
                return f"{a.shape} differs by {distance:.2g} of the largest"
    return ""
