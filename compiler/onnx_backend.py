"""ONNX's interface for backends: what its test suite and public scoreboard drive.

    from onnx.backend.test import BackendTest
    import tcc.onnx_backend
    tests = BackendTest(tcc.onnx_backend, __name__)

Every model is compiled to native code for this machine's CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep
from tcc.driver import compile
from tcc.errors import UserError
from tcc.runtime import Module

_DEVICE = "CPU"


class CompiledModel(BackendRep):
    """A compiled model; `run` takes and returns values in the model's order."""

    def __init__(self, module: Module, names: Sequence[str]) -> None:
        self.module = module
        self._names = tuple(names)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for `inputs`: by name, or in the order of the inputs without initialiser.

        Trailing inputs may be left out where nothing reads them.  Raises UserError for inputs that
        the model does not take.
        """
        given = inputs
        if not isinstance(inputs, dict):
            if not isinstance(inputs, list | tuple):
                inputs = [inputs]
            given = dict(zip(self._names, inputs, strict=False))
        found = self.module.run(given)
        return tuple(found[port.name] for port in self.module.outputs)


class TccBackend(Backend):
    """tcc as an ONNX backend.  Options of `tcc.compile` are taken as keywords."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = _DEVICE, **kwargs: Any) -> bool:
        """Whether `prepare` would not refuse the model; compiles it to know."""
        try:
            cls.prepare(model, device, **kwargs)
        except UserError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = _DEVICE, **kwargs: Any) -> CompiledModel:
        """`model` compiled and loaded.

        Raises UserError for a model that tcc refuses, and for a device other than the CPU.
        """
        if not cls.supports_device(device):
            raise UserError(f"the ONNX backend has no device '{device}'", hint="there is: CPU")
        module = compile(model, **kwargs)
        fixed = {t.name for t in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in fixed]
        return CompiledModel(module, names)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = _DEVICE, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The outputs of `model` for `inputs`; raises as `prepare` and `run` do."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = _DEVICE,
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """The outputs of a model of this node alone.

        `opset_version` is the version of the node's domain (default: the newest); the results'
        types follow from the node's, so `outputs_info` is not needed.
        """
        version = kwargs.pop("opset_version", None)
        return cls.run_model(_model_of(node, inputs, version), inputs, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """CPU only."""
        return device.split(":")[0] == _DEVICE


def _model_of(node: onnx.NodeProto, inputs: Sequence[Any], version: int | None) -> onnx.ModelProto:
    names = [name for name in node.input if name]
    given = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in zip(names, inputs, strict=True)
    ]
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", given, results)
    newest = onnx.defs.onnx_opset_version() if not node.domain else 1
    opset = helper.make_opsetid(node.domain, version or newest)
    return helper.make_model(graph, opset_imports=[opset])


is_compatible = TccBackend.is_compatible
prepare = TccBackend.prepare
run_model = TccBackend.run_model
run_node = TccBackend.run_node
supports_device = TccBackend.supports_device
