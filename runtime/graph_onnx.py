"""Graphs as ONNX files for viewers such as Netron: each kernel is a function.

No runtime runs the file: its operators of the domain `tcc` say which nodes of the model a kernel
computes, and have no definition. Buffers are arrays of bytes. Weights are named in an attribute of
the steps that read them, because the file has no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import networkx
from tcc.runtime.graph_text import facts, step_label

_DOMAIN, _KERNELS, _VERSION = "tcc", "tcc.kernels", 1
_OPSET, _IR_VERSION = 17, 9
# Maps element types to ONNX's names; the others are shown as bytes.
_TYPES = {
    "bool": "BOOL", "i8": "INT8", "i16": "INT16", "i32": "INT32", "i64": "INT64", "u8": "UINT8",
    "u16": "UINT16", "u32": "UINT32", "u64": "UINT64", "f16": "FLOAT16", "bf16": "BFLOAT16",
    "f32": "FLOAT", "f64": "DOUBLE", "string": "STRING",
}  # fmt: skip


def onnx_bytes(graph: networkx.DiGraph) -> bytes:
    """Returns a graph as the bytes of an ONNX model, which passes ONNX's checker."""
    onnx = import_module("onnx")
    data: bytes = _Writer(graph, onnx).model().SerializeToString(deterministic=True)
    return data


class _Writer:
    """Writes one graph with the module `onnx`."""

    def __init__(self, graph: networkx.DiGraph, onnx: Any) -> None:
        self._graph, self._onnx, self._helper = graph, onnx, onnx.helper
        self._functions: dict[str, Any] = {}
        # The operator of each kernel or function, which is named by its first step.
        self._operators: dict[str, str] = {}
        self._nodes: list[Any] = []

    def model(self) -> Any:
        """Returns the model."""
        graph, helper = self._graph, self._helper
        buffers = [node for node, data in graph.nodes(data=True) if data["kind"] == "buffer"]
        for node, data in graph.nodes(data=True):
            if data["kind"] != "buffer":
                self._step(node)
        inputs = [node for node in buffers if not graph.in_degree(node) and self._is_fed(node)]
        outputs = self._outputs(buffers)
        other_values = [n for n in buffers if n not in {*inputs, *outputs} and self._is_fed(n)]
        model_graph = helper.make_graph(
            self._nodes,
            graph.graph["name"] or "model",
            [self._value(node) for node in inputs],
            [self._value(node) for node in outputs],
            value_info=[self._value(node) for node in other_values],
        )
        return helper.make_model(
            model_graph,
            functions=list(self._functions.values()),
            opset_imports=self._opsets(),
            ir_version=_IR_VERSION,
            producer_name="tcc",
            doc_string=f"kernels of {graph.graph['name']} for {graph.graph['target']}",
        )

    def _opsets(self) -> list[Any]:
        make = self._helper.make_opsetid
        return [make("", _OPSET), make(_DOMAIN, _VERSION), make(_KERNELS, _VERSION)]

    def _is_fed(self, node: str) -> bool:
        return bool(self._graph.nodes[node]["place"] != "weight")

    def _outputs(self, buffers: Sequence[str]) -> list[str]:
        """Returns the last value of each output."""
        last: dict[int, str] = {}
        for node in buffers:
            data = self._graph.nodes[node]
            if data["place"] == "output":
                last[data["buffer"]] = node
        return list(last.values())

    def _name(self, node: str) -> str:
        label = self._graph.nodes[node]["label"]
        return f"{node} {label}".strip()

    def _value(self, node: str) -> Any:
        data = self._graph.nodes[node]
        types = self._onnx.TensorProto
        kind = _TYPES.get(data.get("dtype", ""))
        if kind is None:
            sizes = [data.get("bytes")]
            return self._helper.make_tensor_value_info(self._name(node), types.UINT8, sizes)
        return self._helper.make_tensor_value_info(
            self._name(node), getattr(types, kind), data["shape"]
        )

    # ---- steps ----------------------------------------------------------------------------------

    def _step(self, node: str) -> None:
        data = self._graph.nodes[node]
        inputs, weights, controls = self._inputs(node)
        outputs = [self._name(value) for value in self._graph.successors(node) if value[0] == "b"]
        attributes: dict[str, Any] = {name.replace(" ", "_"): text for name, text in facts(data)}
        extra = {"weights": weights, "waits_for": controls}
        attributes |= {name: texts for name, texts in extra.items() if texts}
        kernel = data["kind"] == "kernel"
        operator = self._operators.setdefault(data["name"], _operator_of(data))
        step = self._helper.make_node(
            operator,
            inputs,
            outputs,
            name=f"{node}: {step_label(data)}",
            domain=_KERNELS if kernel else _DOMAIN,
            **({} if kernel else attributes),
        )
        if kernel:
            self._note(step, attributes)
            self._function(operator, data, len(inputs), len(outputs))
        self._nodes.append(step)

    def _note(self, step: Any, attributes: dict[str, Any]) -> None:
        """Adds facts as metadata: a call of a function may have its declared attributes only."""
        for name, value in attributes.items():
            entry = step.metadata_props.add()
            entry.key, entry.value = name, value if isinstance(value, str) else ", ".join(value)

    def _function(self, name: str, data: Any, inputs: int, outputs: int) -> None:
        """Adds the function of a kernel; a later launch may have more inputs than the first."""
        earlier = self._functions.get(name)
        if earlier is not None and len(earlier.input) >= inputs:
            return
        names = [f"input_{n}" for n in range(inputs)], [f"output_{n}" for n in range(outputs)]
        body = self._helper.make_node(
            _model_operator(data), *names, name=step_label(data), domain=_DOMAIN
        )
        self._functions[name] = self._helper.make_function(
            _KERNELS, name, *names, [body], self._opsets(),
            doc_string="\n".join(f"{name}: {text}" for name, text in facts(data)),
        )  # fmt: skip

    def _inputs(self, node: str) -> tuple[list[str], list[str], list[str]]:
        """Returns (inputs, weights, controls) of a step.

        An input is a value's name for each argument; "" stands for a weight.  An argument that
        reads several values reads them joined by an operator. `weights` and `controls` are texts.
        """
        arguments: dict[int, list[str]] = {}
        weights, controls = [], []
        for value in self._graph.predecessors(node):
            data, edge = self._graph.nodes[value], self._graph.edges[value, node]
            if edge["kind"] == "control" or data["kind"] != "buffer":
                controls.append(value)
                continue
            if data["place"] == "weight":
                weights.append(f"{data['label']} ({data['bytes']:,} bytes)")
            for argument in edge["arguments"]:
                arguments.setdefault(argument, []).append(value)
        inputs = [
            self._joined(node, argument, arguments[argument]) for argument in sorted(arguments)
        ]
        return inputs, weights, controls

    def _joined(self, node: str, argument: int, values: Sequence[str]) -> str:
        fed = [self._name(value) for value in values if self._is_fed(value)]
        if len(fed) < 2:
            return fed[0] if fed else ""
        name = f"{node} argument {argument}"
        parts = self._helper.make_node("Parts", fed, [name], name=name, domain=_DOMAIN)
        self._nodes.append(parts)
        return name


def _operator_of(data: Any) -> str:
    """Returns the operator of a step, as in "Conv_kernel_3" or "top_k"."""
    name = str(data["name"]).replace(" ", "_")
    return f"{_model_operator(data)}_{name}" if data["kind"] == "kernel" else name


def _model_operator(data: Any) -> str:
    """Returns the operator in a step's location: Conv of "/block/conv/Conv (Conv) (+1)"."""
    parts = step_label(data).split(" (")
    name = parts[1].partition(")")[0] if len(parts) > 1 else ""
    return name if name.isidentifier() else "Fused"
