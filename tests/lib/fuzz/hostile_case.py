"""The type of a hostile input, and the small models that hostile inputs are made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

Array = np.ndarray[Any, np.dtype[Any]]
Files = Mapping[str, bytes]


class Outcome(Enum):
    """The required outcome of a case."""

    WORKS = "works"
    REFUSED = "refused"
    EITHER = "either"


class Action(Enum):
    """The action on a case: compile `m.onnx`, compile and run it, or load and run `m.so`."""

    COMPILE = "compile"
    RUN = "run"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class Case:
    """A hostile input; `write(folder)` writes its files, and `feeds` are the arrays of a run."""

    name: str
    outcome: Outcome
    write: Callable[[Path], object]
    action: Action = Action.COMPILE
    feeds: Mapping[str, Array] = field(default_factory=dict)

    def write_to(self, folder: Path) -> None:
        """Makes the folder with the case's files, its arrays, and its required outcome."""
        folder.mkdir(parents=True, exist_ok=True)
        self.write(folder)
        for name, array in self.feeds.items():
            np.save(folder / f"{name}.npy", array)
        facts = {
            "action": self.action.value,
            "outcome": self.outcome.value,
            "feeds": list(self.feeds),
        }
        (folder / "case.json").write_text(json.dumps(facts))


def refused(name: str, model: onnx.ModelProto | bytes | Callable[[], Any]) -> Case:
    """Returns a case whose model must not compile."""
    return Case(name, Outcome.REFUSED, writer(model))


def writer(model: onnx.ModelProto | bytes | Callable[[], Any]) -> Callable[[Path], object]:
    """Returns a function that writes `m.onnx`; a callable makes the model only then."""

    def write(folder: Path) -> None:
        built = model() if callable(model) else model
        data = built if isinstance(built, bytes) else built.SerializeToString()
        (folder / "m.onnx").write_bytes(data)

    return write


def text_model(text: str, opset: int = 21, functions: str = "", ir: int = 10) -> onnx.ModelProto:
    """Returns a model from ONNX's text."""
    header = f'<ir_version: {ir}, opset_import: ["" : {opset}, "local" : 1, "com.microsoft" : 1]>'
    return parser.parse_model(f"{header}\n{text}\n{functions}")


def plain() -> onnx.ModelProto:
    """Returns a small valid model: a matmul with a weight, and a sum."""
    weight = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), "w")
    return model_of(
        [helper.make_node("MatMul", ["x", "w"], ["t"], "product"),
         helper.make_node("Add", ["t", "t"], ["y"], "sum")],
        [("x", TensorProto.FLOAT, [2, 3])],
        [("y", TensorProto.FLOAT, [2, 4])],
        [weight],
    )  # fmt: skip


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int, Sequence[Any] | None]],
    outputs: Sequence[tuple[str, int, Sequence[Any] | None]],
    weights: Sequence[onnx.TensorProto] = (),
    opset: int = 21,
) -> onnx.ModelProto:
    """Returns a model of these nodes, without any check."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(*v) for v in inputs],
        [helper.make_tensor_value_info(*v) for v in outputs],
        list(weights),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def changed(change: Callable[[onnx.ModelProto], object]) -> Callable[[], onnx.ModelProto]:
    """Returns a function that makes the plain model with a change."""

    def make() -> onnx.ModelProto:
        model = plain()
        change(model)
        return model

    return make
