"""Static quantisation of chosen layers of an ONNX model, by ONNX Runtime's quantiser.

    quantizer = StaticQuantizer(Path("model.onnx"), folder)
    ranges = quantizer.ranges("MinMax", samples)
    data = quantizer.quantized(ranges, [*quantizer.layers][1:], per_channel=True)

A layer reads its weights as int8 and its activations as uint8, and its results stay in f32:
QuantizeLinear and DequantizeLinear stand before it
(https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html).

The file is read by onnx without limits, so a process of its own uses this module, after the
importer has accepted the file.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationMethod, QuantType, create_calibrator
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import load_model_with_shape_infer, optimize_model
from tcc.ir.op import NamedArrays

# Operators with weights for which runtimes have integer kernels. Other operators gain no time from
# int8, and often lose much accuracy.
_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# Parts of the names of operators on integers that stand for floats.
_INTEGER = ("QuantizeLinear", "QLinear", "Integer")
_OPSET = 13  # the first opset with a scale for each channel
_OPTIONS = {
    # Results feed functions such as SiLU, for which a range of one layer is coarse.
    "OpTypesToExcludeOutputQuantization": _OPERATORS,
    # A bias in int32 saves nothing, and fails for a Gemm whose bias has two axes.
    "QuantizeBias": False,
    "QDQDisableWeightAdjustForInt32Bias": True,
}


class StaticQuantizer:
    """The quantiser of one model.

    `layers` has the names of the nodes that can be quantised, in order. `integer_nodes` has the
    names of nodes that are quantised in the file.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        """Reads the model at `path`, and writes temporary files to `folder`.

        The model gets opset 13 if it has an older one, and ONNX Runtime folds its constants. Raises
        an error of onnx or onnxruntime for a file that they do not read.
        """
        model = onnx.load(path)
        self.integer_nodes = [
            node.name or node.output[0]
            for node in model.graph.node
            if any(word in node.op_type for word in _INTEGER)
        ]
        if min(item.version for item in model.opset_import if not item.domain) < _OPSET:
            model = onnx.version_converter.convert_version(model, _OPSET)
        self._folder, self._path = folder, folder / "optimised.onnx"
        named = folder / "named.onnx"
        onnx.save(_with_names(model), named)
        optimize_model(named, self._path)
        self._model = _with_names(load_model_with_shape_infer(self._path))
        graph = self._model.graph
        weights = {
            item.name
            for item in graph.initializer
            if len(item.dims) > 1 and item.data_type == onnx.TensorProto.FLOAT
        }
        self.layers = tuple(
            node.name
            for node in graph.node
            if node.op_type in _OPERATORS and not weights.isdisjoint(node.input)
        )

    def ranges(self, method: str, samples: Iterable[NamedArrays]) -> Any:
        """Returns the ranges of the values that layers read, for `quantized`.

        `method` is a name of onnxruntime's `CalibrationMethod`. `samples` are sets of inputs.
        """
        augmented = self._folder / "augmented.onnx"
        calibrator = create_calibrator(
            self._path, _OPERATORS, str(augmented), CalibrationMethod[method],
            extra_options={"symmetric": False},
        )  # fmt: skip
        for sample in samples:
            # Each sample for itself, because the values of all exceed the memory.
            calibrator.collect_data(SimpleNamespace(get_next=iter([sample, None]).__next__))
        return calibrator.compute_data()

    def quantized(self, ranges: Any, layers: Sequence[str], per_channel: bool) -> bytes:
        """Returns the file of the model in which the nodes named in `layers` are quantised.

        `ranges` come from the method `ranges`. With `per_channel` each output channel of a weight
        has a scale. Equal arguments give equal bytes.
        """
        quantizer = QDQQuantizer(
            deepcopy(self._model), per_channel, False, QuantType.QInt8, QuantType.QUInt8,
            ranges, [*layers], [], _OPERATORS, _OPTIONS,
        )  # fmt: skip
        quantizer.quantize_model()
        quantizer.model.topological_sort()
        data: bytes = quantizer.model.model.SerializeToString(deterministic=True)
        return data


def _with_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model, whose nodes without a name get that of their first output."""
    for node in model.graph.node:
        node.name = node.name or node.output[0]
    return model
