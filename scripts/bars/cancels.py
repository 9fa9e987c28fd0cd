"""Limits for cancelled runs: the time from the request to end a run until the run ends."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import tcc
from onnx import ModelProto, TensorProto, helper, numpy_helper

from bars.figures import Figure, at_most

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
MOMENTS = (0.05, 0.08, 0.13, 0.2, 0.25, 0.31, 0.4, 0.5)
node, value = helper.make_node, helper.make_tensor_value_info
Case = tuple[ModelProto, dict[str, Any]]


def cancels(folder: Path) -> Iterator[Figure]:
    """Yields how many milliseconds a run takes to end once its end is requested.

    There is a figure for each case (a model) and each way to end a run in WAYS. The case runs eight
    times; the request comes at each of the MOMENTS (seconds after the start) once. The figure is
    the second longest time.
    """
    del folder
    for name, case in CASES.items():
        model, feeds = case()
        module = tcc.compile(model, jobs=1)
        for how, end in WAYS.items():
            times = [end(module, feeds, moment) for moment in MOMENTS]
            durations = sorted(t for t in times if t is not None)
            middle = f"(median {statistics.median(durations):.1f})"
            yield at_most(f"{name}, ended by {how}", durations[-2], 50, "ms", middle)


def _cancel(module: Any, feeds: dict[str, Any], moment: float) -> float | None:
    """Returns the milliseconds from instance_cancel, called in another thread, to the end of the
    run.

    Returns None if the run ended before.
    """
    instance, cancelled = module._idle[-1], [0.0]

    def cancel() -> None:
        cancelled[0] = time.monotonic()
        module._api.instance_cancel(instance)

    timer = Timer(moment, cancel)
    timer.start()
    try:
        module.run(feeds)
    except tcc.TccError:
        return (time.monotonic() - cancelled[0]) * 1e3
    finally:
        timer.cancel()
        timer.join()
    return None


def _interrupt(module: Any, feeds: dict[str, Any], moment: float) -> float | None:
    """Returns the milliseconds from a signal, whose handler raises KeyboardInterrupt, to the
    run's end.

    Returns None if the run ended before the signal.
    """
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    due = time.monotonic() + moment
    signal.setitimer(signal.ITIMER_REAL, moment)
    try:
        module.run(feeds)
    except KeyboardInterrupt:
        return (time.monotonic() - due) * 1e3
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return None


def _time_out(module: Any, feeds: dict[str, Any], moment: float) -> float | None:
    """Returns the milliseconds from the run's timeout to its end, or None if it ended before."""
    due = time.monotonic() + moment
    try:
        module.run(feeds, timeout=moment)
    except TimeoutError:
        return (time.monotonic() - due) * 1e3
    return None


WAYS: dict[str, Callable[[Any, dict[str, Any], float], float | None]] = {
    "instance_cancel": _cancel, "a signal": _interrupt, "its timeout": _time_out,
}  # fmt: skip


def _model(nodes: list[Any], inputs: list[Any], output: Any, **constants: Any) -> ModelProto:
    initializers = [
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    ]
    graph = helper.make_graph(nodes, "long", inputs, [output], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _loop() -> Case:
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), node("Add", ["a", "one"], ["b"])],
        "body",
        [value("i", INT64, []), value("c", BOOL, []), value("a", FLOAT, [])],
        [value("d", BOOL, []), value("b", FLOAT, [])],
    )
    inputs = [value("x", FLOAT, []), value("m", INT64, [])]
    loop = node("Loop", ["m", "", "x"], ["y"], body=body)
    model = _model([loop], inputs, value("y", FLOAT, []), one=np.float32(1))
    return model, {"x": np.float32(0), "m": np.array(1 << 62)}


def _kernel() -> Case:
    inputs = [value("x", FLOAT, ["n", 4096])]
    matmul = node("MatMul", ["x", "w"], ["y"])
    weights = np.ones((4096, 4096), np.float32)
    model = _model([matmul], inputs, value("y", FLOAT, ["n", 4096]), w=weights)
    return model, {"x": np.ones((32768, 4096), np.float32)}


def _one_tile() -> Case:
    chain = [node("Tanh" if n % 2 else "Exp", [f"x{n}"], [f"x{n + 1}"]) for n in range(12)]
    chain.append(node("ReduceSum", ["x12"], ["y"], keepdims=0))
    model = _model(chain, [value("x0", FLOAT, ["n"])], value("y", FLOAT, []))
    return model, {"x0": np.ones(100_000_000, np.float32)}


def _sort() -> Case:
    inputs = [value("x", FLOAT, ["n"]), value("k", INT64, [1])]
    model = _model([node("TopK", ["x", "k"], ["v", "i"])], inputs, value("v", FLOAT, ["k"]))
    x = np.random.default_rng(0).standard_normal(50_000_000).astype(np.float32)
    return model, {"x": x, "k": np.array([x.size])}


def _boxes() -> Case:
    inputs = [value("b", FLOAT, [1, "n", 4]), value("s", FLOAT, [1, 1, "n"])]
    suppression = node("NonMaxSuppression", ["b", "s", "most", "overlap"], ["y"])
    limits = {"most": np.array(400_000), "overlap": np.float32(0.5)}
    model = _model([suppression], inputs, value("y", INT64, ["k", 3]), **limits)
    rng = np.random.default_rng(0)
    boxes = rng.random((1, 400_000, 4)).astype(np.float32) * 1000
    boxes[..., 2:] = boxes[..., :2] + 2
    return model, {"b": boxes, "s": rng.random((1, 1, 400_000)).astype(np.float32)}


CASES: dict[str, Callable[[], Case]] = {
    "a loop": _loop, "a kernel": _kernel, "a kernel of one unit": _one_tile, "a sort": _sort,
    "non-max suppression": _boxes,
}  # fmt: skip
