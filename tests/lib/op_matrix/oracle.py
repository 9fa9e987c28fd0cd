"""The independent oracle of the op matrix: ONNX Runtime runs an ONNX model of one node.

Where ONNX Runtime has no kernel for a dtype, the reference evaluator of the onnx package answers
instead. `MODELS` maps ops to ONNX nodes where a copy of inputs and attributes does not suffice; it
gives None for samples without an equal ONNX node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from tcc.ir.index import Index, as_int
from tcc.ir.op import OpSpec
from tcc.ir.types import DType, TensorType, dtype_of

from tests.ops.samples import Sample

Array = np.ndarray[Any, np.dtype[Any]]
OPSET = 23
ELEMENT_TYPES = MappingProxyType(
    {
        "bool": TensorProto.BOOL,
        "i8": TensorProto.INT8,
        "i16": TensorProto.INT16,
        "i32": TensorProto.INT32,
        "i64": TensorProto.INT64,
        "u8": TensorProto.UINT8,
        "u16": TensorProto.UINT16,
        "u32": TensorProto.UINT32,
        "u64": TensorProto.UINT64,
        "f16": TensorProto.FLOAT16,
        "bf16": TensorProto.BFLOAT16,
        "f32": TensorProto.FLOAT,
        "f64": TensorProto.DOUBLE,
        "string": TensorProto.STRING,
        "i2": TensorProto.INT2,
        "i4": TensorProto.INT4,
        "u2": TensorProto.UINT2,
        "u4": TensorProto.UINT4,
        "f4e2m1": TensorProto.FLOAT4E2M1,
        "f8e4m3fn": TensorProto.FLOAT8E4M3FN,
        "f8e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
        "f8e5m2": TensorProto.FLOAT8E5M2,
        "f8e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
    }
)


@dataclass(frozen=True)
class OnnxNode:
    """An ONNX node: `inputs` are arrays (None for absent optional inputs), `outputs` a count.

    `opset` 0 stands for the oracle's newest opset; a later since-version wins.
    """

    name: str
    inputs: tuple[Array | None, ...]
    attrs: Mapping[str, Any]
    domain: str = ""
    outputs: int = 1
    opset: int = 0


NodeOf = Callable[[Sample], OnnxNode | None]


def plain(value: Any) -> Any:
    """Returns an attribute value as ONNX takes it: indices as ints, tuples as lists, dtypes as
    numbers."""
    if isinstance(value, Index):
        return as_int(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, DType):
        return ELEMENT_TYPES[value.name]
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    return value


def i64(*values: Any) -> Array:
    """Returns a vector of integers for an ONNX input such as a shape or axes."""
    return np.array([plain(v) for v in values], np.int64)


def attributes(attrs: Any, *leave_out: str) -> dict[str, Any]:
    """Returns the fields of `attrs` by name, without fields of value None."""
    values = {f.name: getattr(attrs, f.name) for f in fields(attrs) if f.name not in leave_out}
    return {name: plain(v) for name, v in values.items() if v is not None}


def node(name: str, *leave_out: str, **options: Any) -> NodeOf:
    """Returns a maker of the ONNX op `name` with equal inputs and attributes of equal names."""
    return lambda s: OnnxNode(name, s.inputs, attributes(s.attrs, *leave_out), **options)


def bound(op: OpSpec) -> NodeOf:
    """Returns a maker of nodes according to the op's ONNX binding."""
    binding = op.onnx
    assert binding is not None
    rename = {field: name for name, field in binding.attrs}

    def make(sample: Sample) -> OnnxNode:
        attrs = {rename.get(k, k): v for k, v in attributes(sample.attrs).items()}
        return OnnxNode(binding.name, sample.inputs, attrs, opset=max(binding.since, OPSET))

    return make


def _group_normalization(s: Sample) -> OnnxNode:
    x = s.inputs[0]
    assert x is not None
    groups = x.shape[1] // s.attrs.channels
    attrs = {"num_groups": groups, "epsilon": s.attrs.epsilon}
    return OnnxNode("GroupNormalization", s.inputs, attrs)


def model_of(made: OnnxNode, outputs: Sequence[TensorType]) -> onnx.ModelProto:
    """Returns a model of one node; its inputs are x0, x1, ... and its outputs y0, y1, ..."""
    names = [f"x{n}" if a is not None else "" for n, a in enumerate(made.inputs)]
    while names and not names[-1]:
        names.pop()
    results = [f"y{n}" for n in range(max(made.outputs, len(outputs)))]
    proto = helper.make_node(made.name, names, results, domain=made.domain, **made.attrs)
    inputs = [
        helper.make_tensor_value_info(f"x{n}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in enumerate(made.inputs)
        if a is not None
    ]
    nodes, values = [proto], []
    for n, t in enumerate(outputs):
        # NumPy lacks bf16 and narrow types, so their results are cast to the type that carries
        # them.
        carried = t.dtype.name == "bf16" or t.dtype.is_narrow
        name = f"f{n}" if carried else f"y{n}"
        element = ELEMENT_TYPES[dtype_of(np.empty(0, t.dtype.carrier)).name]
        if carried:
            nodes.append(helper.make_node("Cast", [f"y{n}"], [name], to=element))
        values.append(helper.make_tensor_value_info(name, element, [None] * t.rank))
    graph = helper.make_graph(nodes, made.name, inputs, values)
    opsets = [helper.make_opsetid("", made.opset or OPSET)]
    if made.domain:
        opsets.append(helper.make_opsetid(made.domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(made: OnnxNode, outputs: Sequence[TensorType]) -> list[Array]:
    """Returns the node's results by unoptimised ONNX Runtime, or else by onnx.reference."""
    model = model_of(made, outputs)
    feeds = {f"x{n}": a for n, a in enumerate(made.inputs) if a is not None}
    names = [value.name for value in model.graph.output]
    try:
        if saturates(made):
            raise NoKernel("sums of pairs of bytes saturate where the processor lacks VNNI")
        results = session(model).run(names, feeds)
    except (ort.capi.onnxruntime_pybind11_state.NotImplemented, NoKernel):
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(model).run(names, feeds)
    return [np.asarray(r) for r in results]


def saturates(made: OnnxNode) -> bool:
    """Returns true if ONNX Runtime's result depends on the processor: unsigned by signed bytes."""
    types = {a.dtype.name for a in made.inputs if a is not None}
    return made.name in ("MatMulInteger", "QLinearConv") and types >= {"uint8", "int8"}


class NoKernel(Exception):
    """ONNX Runtime lacks the op, its version or the dtype."""


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(model.SerializeToString(), options)
    except (
        ort.capi.onnxruntime_pybind11_state.Fail,
        ort.capi.onnxruntime_pybind11_state.InvalidGraph,
    ) as error:
        unknown = ("is not a registered function", "Type Error", "opset", "No opset import")
        if any(text in str(error) for text in unknown):
            raise NoKernel(str(error)) from error
        raise


def _reduction(name: str) -> NodeOf:
    def make(s: Sample) -> OnnxNode:
        attrs = {"keepdims": int(s.attrs.keepdims), "noop_with_empty_axes": 1}
        return OnnxNode(name, (*s.inputs, i64(*s.attrs.axes)), attrs)

    return make


def _string_split(s: Sample) -> OnnxNode:
    most = {"maxsplit": s.attrs.most} if s.attrs.most >= 0 else {}
    return OnnxNode("StringSplit", s.inputs, {"delimiter": s.attrs.delimiter, **most}, outputs=2)


def _tf_idf(s: Sample) -> OnnxNode:
    x, pool = s.inputs
    assert pool is not None
    words = pool.dtype == object
    attrs = {
        "mode": s.attrs.mode,
        "min_gram_length": s.attrs.least,
        "max_gram_length": s.attrs.most,
        "max_skip_count": s.attrs.skips,
        "ngram_counts": s.attrs.counts,
        "ngram_indexes": s.attrs.places,
        "pool_strings" if words else "pool_int64s": pool.tolist(),
    }
    weights = {"weights": s.attrs.weights} if s.attrs.weights else {}
    return OnnxNode("TfIdfVectorizer", (x,), {**attrs, **weights})


def _arg(name: str) -> NodeOf:
    def make(s: Sample) -> OnnxNode:
        last = {"select_last_index": int(s.attrs.select_last)}
        return OnnxNode(name, s.inputs, {**attributes(s.attrs, "select_last"), **last})

    return make


def _mod(s: Sample) -> OnnxNode | None:
    """Returns None for floats without fmod, which only opset 28 allows, unlike ONNX Runtime."""
    first = s.inputs[0]
    if first is not None and first.dtype.kind == "f" and not s.attrs.fmod:
        return None
    return OnnxNode("Mod", s.inputs, {"fmod": int(s.attrs.fmod)})


def _running(name: str, opset: int = 0) -> NodeOf:
    def make(s: Sample) -> OnnxNode:
        inputs = (*s.inputs, np.asarray(s.attrs.axis, np.int64))
        return OnnxNode(
            name, inputs, attributes(s.attrs, "axis"), opset=23 if "Sum" in name else 26
        )

    return make


def _quantize(s: Sample) -> OnnxNode:
    """Returns QuantizeLinear; the result's dtype is that of the zero point, else of an
    attribute."""
    attrs = attributes(s.attrs, "to", "precision")
    if len(s.inputs) < 3:
        attrs["output_dtype"] = plain(s.attrs.to)
    return OnnxNode("QuantizeLinear", s.inputs, attrs, opset=25 if s.attrs.to.bits < 4 else 0)


def _to_narrow(s: Sample) -> OnnxNode | None:
    """Returns None for f8e8m0, where onnx.reference departs from the operator's specification."""
    if s.attrs.to.name == "f8e8m0":
        return None
    attrs = {"to": plain(s.attrs.to), "saturate": int(s.attrs.saturate)}
    return OnnxNode("Cast", s.inputs, attrs, opset=25)


def _trilu(s: Sample) -> OnnxNode:
    k = np.asarray(plain(s.attrs.k), np.int64)
    return OnnxNode("Trilu", (*s.inputs, k), {"upper": int(s.attrs.upper)})


MODELS: Mapping[str, NodeOf] = MappingProxyType(
    {
        "cast": node("Cast"),
        "string_concat": node("StringConcat"),
        "string_split": _string_split,
        "tf_idf": _tf_idf,
        "to_narrow": _to_narrow,
        "mod": _mod,
        "reduce_sum": _reduction("ReduceSum"),
        "reduce_mean": _reduction("ReduceMean"),
        "reduce_max": _reduction("ReduceMax"),
        "reduce_min": _reduction("ReduceMin"),
        "reduce_prod": _reduction("ReduceProd"),
        "reduce_l1": _reduction("ReduceL1"),
        "reduce_l2": _reduction("ReduceL2"),
        "reduce_sum_square": _reduction("ReduceSumSquare"),
        "reduce_log_sum": _reduction("ReduceLogSum"),
        "softmax": node("Softmax"),
        "log_softmax": node("LogSoftmax"),
        "layer_normalization": node("LayerNormalization", "outputs"),
        "rms_normalization": node("RMSNormalization", "outputs"),
        "group_normalization": _group_normalization,
        "batch_normalization": node("BatchNormalization"),
        "cum_sum": _running("CumSum"),
        "cum_prod": _running("CumProd", 26),
        "quantize_linear": _quantize,
        "dequantize_linear": node("DequantizeLinear"),
        "trilu": _trilu,
        "arg_max": _arg("ArgMax"),
        "arg_min": _arg("ArgMin"),
    }
)


def node_of(op: OpSpec, sample: Sample) -> OnnxNode | None:
    """Returns the ONNX node equal to `op` on `sample`, or None if there is none."""
    if op.name in MODELS:
        return MODELS[op.name](sample)
    return bound(op)(sample) if op.onnx else None
