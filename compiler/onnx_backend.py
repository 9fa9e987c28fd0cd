"""ONNX's interface for backends, which its test suite and public scoreboard use.

    from onnx.backend.test import BackendTest
    import tcc.onnx_backend
    tests = BackendTest(tcc.onnx_backend, __name__)

Every model is compiled to native code for this machine's CPU.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep
from tcc.driver import compile
from tcc.errors import UserError
from tcc.runtime import Module
from tcc.zipped import zip_equal

_DEVICE = "CPU"


class CompiledModel(BackendRep):
    """A compiled model; `run` takes and returns values in the model's order."""

    def __init__(self, module: Module, names: Sequence[str]) -> None:
        self.module = module
        self._names = tuple(names)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Returns the outputs for `inputs`.

        They are given by name, or in the order of the inputs without initialiser. Trailing inputs
        may be left out if nothing reads them. Raises UserError for inputs that the model does not
        take.
        """
        feeds = inputs
        if not isinstance(inputs, dict):
            if not isinstance(inputs, list | tuple):
                inputs = [inputs]
            if len(inputs) > len(self._names):
                raise UserError(
                    f"the model takes {len(self._names)} inputs, got {len(inputs)}",
                    hint=f"they are: {', '.join(self._names)}",
                )
            feeds = dict(zip(self._names, inputs, strict=False))
        outputs = self.module.run(feeds)
        return tuple(outputs[port.name] for port in self.module.outputs)


class TccBackend(Backend):
    """tcc as an ONNX backend; keywords are options of `tcc.compile`."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = _DEVICE, **kwargs: Any) -> bool:
        """True where `prepare` accepts the model; it compiles the model to decide."""
        try:
            cls.prepare(model, device, **kwargs)
        except UserError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = _DEVICE, **kwargs: Any) -> CompiledModel:
        """Compiles and loads `model`.

        Raises UserError for a model that tcc refuses, and for a device other than the CPU.
        """
        if not cls.supports_device(device):
            raise UserError(f"the ONNX backend has no device '{device}'", hint="there is: CPU")
        module = compile(model, **kwargs)
        fixed = {t.name for t in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in fixed]
        return CompiledModel(module, names)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = _DEVICE,
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Returns the outputs of a model of one node; `inputs` are by name, or in the node's order.

        `opset_version` is the version of the node's domain (default: the newest).  `outputs_info`
        is not needed, because the types of the results follow from the node.
        """
        version = kwargs.pop("opset_version", None)
        arrays = _by_name(node, inputs)
        return cls.prepare(_model_of(node, arrays, version), device, **kwargs).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for the CPU."""
        return device.split(":")[0] == _DEVICE


def _by_name(node: onnx.NodeProto, inputs: Any) -> dict[str, Any]:
    """Returns the arrays by name.

    `inputs` has an array for each input of the node in order, or for each name.
    """
    if isinstance(inputs, dict):
        return {name: np.asarray(value) for name, value in inputs.items()}
    places = [name for name in node.input if name]
    names = list(dict.fromkeys(places))
    arrays = list(map(np.asarray, inputs))
    if len(arrays) not in (len(places), len(names)):
        raise UserError(f"the node takes {len(places)} inputs, got {len(arrays)}", where="run_node")
    return dict(zip_equal(places if len(arrays) == len(places) else names, arrays))


def _newest(domain: str) -> int:
    """Returns the newest version of a domain; 1 for a domain that ONNX does not define."""
    versions = [s.since_version for s in onnx.defs.get_all_schemas() if s.domain == domain]
    return max(versions, default=1)


def _model_of(
    node: onnx.NodeProto, arrays: Mapping[str, Any], version: int | None
) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in arrays.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, results)
    standard = node.domain in ("", "ai.onnx")
    newest = onnx.defs.onnx_opset_version() if standard else _newest(node.domain)
    opset = helper.make_opsetid(node.domain, version or newest)
    return helper.make_model(graph, opset_imports=[opset])


is_compatible = TccBackend.is_compatible
prepare = TccBackend.prepare
run_model = TccBackend.run_model
run_node = TccBackend.run_node
supports_device = TccBackend.supports_device
