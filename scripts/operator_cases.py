"""Models of one operator each, at sizes of real networks, which `scripts/operators` times.

First operands are inputs. A value that is constant in the network is constant here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
OPSET = 23
_RNG = np.random.default_rng(7)


@dataclass(frozen=True, slots=True)
class NodeCase:
    """A model with one node of the operator `op`.

    The node's operands are the arrays `inputs`, which are inputs of each run, and then the arrays
    `constants`, which are initialisers. None stands for an absent operand. `outputs` is the number
    of results. If `like` is set, the result gets the type of the first input; needed for operators
    whose result type ONNX cannot infer.
    """

    name: str
    op: str
    inputs: tuple[Array, ...]
    constants: tuple[Array | None, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    like: bool = False

    @property
    def file(self) -> str:
        """Returns the name as a valid file name, without suffix."""
        return re.sub("[^a-z0-9]+", "_", self.name)

    @property
    def feed(self) -> dict[str, Array]:
        """Returns the inputs by name."""
        return {f"x{n}": array for n, array in enumerate(self.inputs)}


def model_of(case: NodeCase) -> onnx.ModelProto:
    """Returns the checked model; its results have the types that ONNX infers."""
    constants = {f"c{n}": array for n, array in enumerate(case.constants)}
    names = [*case.feed, *("" if a is None else n for n, a in constants.items())]
    results = [f"y{n}" for n in range(case.outputs)]
    node = helper.make_node(case.op, names, results, case.name, **case.attributes)
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in case.feed.items()
    ]
    typed = onnx.ValueInfoProto(name=results[0], type=values[0].type)
    open_results = [typed] if case.like else [onnx.ValueInfoProto(name=n) for n in results]
    weights = [numpy_helper.from_array(a, n) for n, a in constants.items() if a is not None]
    graph = helper.make_graph([node], "operator", values, open_results, weights)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    onnx.checker.check_model(inferred)
    return inferred


def floats(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return _RNG.uniform(0.1, 4, shape).astype(np.float32)


def below(top: int, *shape: int) -> Array:
    return _RNG.integers(0, top, shape)


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


def distinct(rows: int, columns: int) -> Array:
    """Returns indices of shape [rows, columns]; each column is a permutation of 0 ... rows - 1."""
    return np.stack([_RNG.permutation(rows) for _ in range(columns)], 1)


def boxes(count: int) -> Array:
    corner, size = _RNG.uniform(0, 500, (1, count, 2)), _RNG.uniform(20, 120, (1, count, 2))
    return np.concatenate([corner, corner + size], 2).astype(np.float32)


def _ordering() -> Iterator[NodeCase]:
    logits, scores = floats(32, 50257), floats(1, 8400, 80)
    largest = {"axis": -1, "largest": 1, "sorted": 1}
    yield NodeCase("topk 10 of 50257", "TopK", (logits[:1],), (i64(10),), largest, 2)
    yield NodeCase("topk 10 of 32x50257", "TopK", (logits,), (i64(10),), largest, 2)
    yield NodeCase("topk 100 of 672000", "TopK", (scores.reshape(1, -1),), (i64(100),), largest, 2)
    yield NodeCase("topk 100 axis 1 of 1x8400x80", "TopK", (scores,), (i64(100),), {"axis": 1}, 2)
    yield NodeCase("topk 5 of 4096x64", "TopK", (floats(4096, 64),), (i64(5),), largest, 2)
    yield NodeCase("sort 100k", "TopK", (floats(100000),), (i64(100000),), {"axis": 0}, 2)
    keys = below(1 << 40, 100000)
    yield NodeCase("sort 100k i64", "TopK", (keys,), (i64(100000),), {"axis": 0, "largest": 0}, 2)
    yield NodeCase("sort 512x256", "TopK", (floats(512, 256),), (i64(256),), {"axis": 1}, 2)
    yield NodeCase("argmax 32x50257", "ArgMax", (logits,), (), {"axis": -1})
    yield NodeCase(
        "argmax axis 0 of 21x512x512", "ArgMax", (floats(21, 512, 512),), (), {"axis": 0}
    )
    yield NodeCase("argmin 64x512x512", "ArgMin", (floats(64, 512, 512),), (), {"axis": 2})
    yield NodeCase("unique 100k", "Unique", (below(5000, 100000),), (), {}, 4)
    limits = (i64(100), np.float32([0.5]), np.float32([0.05]))
    values = _RNG.uniform(0, 1, (1, 20, 1000)).astype(np.float32)
    yield NodeCase("nms 1000 x 20", "NonMaxSuppression", (boxes(1000), values), limits)


def _selection() -> Iterator[NodeCase]:
    table, tokens = floats(50257, 768), below(50257, 1, 512)
    image = floats(1, 12, 512, 64)
    yield NodeCase("gather 512 of 50257x768", "Gather", (table, tokens))
    yield NodeCase(
        "gather axis 1", "Gather", (floats(64, 512, 256), below(512, 128)), (), {"axis": 1}
    )
    yield NodeCase(
        "gather axis -1", "Gather", (floats(512, 1024), below(1024, 256)), (), {"axis": 1}
    )
    yield NodeCase("gather elements", "GatherElements", (floats(512, 1024), below(1024, 512, 256)),
               (), {"axis": 1})  # fmt: skip
    yield NodeCase("gather nd", "GatherND", (floats(512, 512, 8), below(512, 10000, 2)))
    yield NodeCase("scatter elements", "ScatterElements",
               (floats(1024, 512), distinct(1024, 512)[:256], floats(256, 512)))  # fmt: skip
    yield NodeCase("scatter elements add", "ScatterElements",
               (floats(1024, 512), below(1024, 256, 512), floats(256, 512)),
               (), {"reduction": "add"})  # fmt: skip
    yield NodeCase("scatter nd", "ScatterND", (floats(4096, 256), below(4096, 512, 1),
                                           floats(512, 256)))  # fmt: skip
    yield NodeCase("nonzero half of 1M", "NonZero", (floats(1024, 1024) > 0,))
    yield NodeCase("nonzero f32 of 1M", "NonZero", (np.maximum(floats(1024, 1024) - 2, 0),))
    yield NodeCase("compress rows", "Compress", (floats(4096, 256), below(2, 4096) > 0), (),
               {"axis": 0})  # fmt: skip
    yield NodeCase("cumsum rows", "CumSum", (floats(512, 1024),), (i64(1).reshape(()),))
    yield NodeCase("cumsum columns", "CumSum", (floats(1024, 512),), (i64(0).reshape(()),))
    yield NodeCase("one hot", "OneHot", (below(1000, 512),), (i64(1000), np.float32([0, 1])))
    yield NodeCase(
        "where", "Where", (floats(1024, 1024) > 0, floats(1024, 1024), floats(1024, 1024))
    )
    yield NodeCase("where mask", "Where", (floats(1, 1, 512, 512) > 0, floats(1, 12, 512, 512)),
               (np.float32(-1e9),))  # fmt: skip
    yield NodeCase("trilu", "Trilu", (floats(12, 512, 512),))
    yield NodeCase(
        "slice steps", "Slice", (image,), (i64(1, 0), i64(500, 64), i64(2, 3), i64(3, 2))
    )
    yield NodeCase("slice reversed", "Slice", (image,), (i64(-1), i64(-1000), i64(3), i64(-1)))


def _movement() -> Iterator[NodeCase]:
    heads, square = floats(1, 12, 512, 64), floats(2048, 2048)
    image = floats(1, 64, 112, 112)
    yield NodeCase("transpose 0213", "Transpose", (heads,), (), {"perm": [0, 2, 1, 3]})
    yield NodeCase("transpose 0132", "Transpose", (heads,), (), {"perm": [0, 1, 3, 2]})
    yield NodeCase("transpose 2048x2048", "Transpose", (square,), (), {"perm": [1, 0]})
    yield NodeCase("transpose to channels last", "Transpose", (image,), (), {"perm": [0, 2, 3, 1]})
    yield NodeCase("transpose i8", "Transpose", (below(99, 1024, 1024).astype(np.int8),))
    yield NodeCase("concat channels", "Concat", (image, image), (), {"axis": 1})
    yield NodeCase("concat last", "Concat", (floats(4096, 64), floats(4096, 64)), (), {"axis": 1})
    yield NodeCase("split channels", "Split", (image,), (), {"axis": 1, "num_outputs": 2}, 2)
    yield NodeCase("split qkv", "Split", (floats(512, 2304),), (), {"axis": 1, "num_outputs": 3}, 3)
    yield NodeCase("pad constant", "Pad", (image,), (i64(0, 0, 1, 1, 0, 0, 1, 1),))
    yield NodeCase("pad reflect", "Pad", (image,), (i64(0, 0, 3, 3, 0, 0, 3, 3),),
               {"mode": "reflect"})  # fmt: skip
    yield NodeCase("pad edge", "Pad", (image,), (i64(0, 0, 2, 2, 0, 0, 2, 2),), {"mode": "edge"})
    yield NodeCase("expand", "Expand", (floats(1, 8, 1, 512, 64),), (i64(1, 8, 4, 512, 64),))
    yield NodeCase("tile", "Tile", (floats(64, 1024),), (i64(8, 2),))
    yield NodeCase(
        "depth to space", "DepthToSpace", (floats(1, 256, 64, 64),), (), {"blocksize": 2}
    )
    yield NodeCase(
        "space to depth", "SpaceToDepth", (floats(1, 64, 128, 128),), (), {"blocksize": 2}
    )


def _resampling() -> Iterator[NodeCase]:
    image = floats(1, 64, 128, 128)
    scales = (None, np.float32([1, 1, 2, 2]))
    for mode in ("nearest", "linear", "cubic"):
        for place in ("half_pixel", "align_corners", "asymmetric"):
            how = {"mode": mode, "coordinate_transformation_mode": place}
            how |= {"nearest_mode": "floor"} if mode == "nearest" else {}
            yield NodeCase(f"resize {mode} {place}", "Resize", (image,), scales, how)
    down = {"mode": "linear"}
    yield NodeCase(
        "resize linear down", "Resize", (image,), (None, np.float32([1, 1, 0.5, 0.5])), down
    )
    yield NodeCase(
        "resize linear 1.5", "Resize", (image,), (None, np.float32([1, 1, 1.5, 1.5])), down
    )
    theta = np.float32([[[0.9, 0.1, 0], [-0.1, 0.9, 0]]])
    rows = np.stack(np.meshgrid(np.linspace(-1, 1, 64), np.linspace(-1, 1, 64)), -1)
    grid = (rows @ theta[0, :, :2].T).astype(np.float32)[None]
    yield NodeCase("grid sample", "GridSample", (floats(1, 32, 64, 64), grid))


def _pooling() -> Iterator[NodeCase]:
    image = floats(1, 64, 112, 112)
    three = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    two = {"kernel_shape": [2, 2], "strides": [2, 2]}
    yield NodeCase("maxpool 3x3 s2", "MaxPool", (image,), (), three)
    yield NodeCase("maxpool 2x2 s2", "MaxPool", (image,), (), two)
    yield NodeCase("maxpool 5x5 s1", "MaxPool", (floats(1, 256, 20, 20),), (),
               {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]})  # fmt: skip
    yield NodeCase("maxpool with indices", "MaxPool", (image,), (), three, 2)
    yield NodeCase("averagepool 3x3 s2", "AveragePool", (image,), (), three)
    yield NodeCase("averagepool 2x2 s2", "AveragePool", (image,), (), two)
    yield NodeCase("lppool 3x3 s2", "LpPool", (image,), (), {**three, "p": 2})
    yield NodeCase("global averagepool", "GlobalAveragePool", (floats(1, 2048, 7, 7),))
    yield NodeCase("global averagepool large", "GlobalAveragePool", (image,))
    yield NodeCase("global maxpool", "GlobalMaxPool", (image,))


def _normalising() -> Iterator[NodeCase]:
    rows, scores, image = floats(512, 768), floats(12, 512, 512), floats(1, 64, 112, 112)
    scale, shift, channel = floats(768), floats(768), floats(64)
    yield NodeCase("layer norm", "LayerNormalization", (rows,), (scale, shift))
    yield NodeCase("rms norm", "RMSNormalization", (rows,), (scale,))
    yield NodeCase("softmax", "Softmax", (scores,))
    yield NodeCase("softmax axis 1", "Softmax", (floats(1, 21, 256, 256),), (), {"axis": 1})
    yield NodeCase("softmax 50257", "Softmax", (floats(8, 50257),))
    yield NodeCase("log softmax", "LogSoftmax", (scores,))
    yield NodeCase("batch norm", "BatchNormalization", (image,),
               (channel, channel, channel, positive(64)))  # fmt: skip
    yield NodeCase("instance norm", "InstanceNormalization", (image,), (channel, channel))
    yield NodeCase("group norm", "GroupNormalization", (image,), (channel, channel),
               {"num_groups": 8}, like=True)  # fmt: skip
    yield NodeCase("lp norm", "LpNormalization", (rows,), (), {"axis": 1, "p": 2})
    yield NodeCase("lrn", "LRN", (image,), (), {"size": 5})


def _pointwise() -> Iterator[NodeCase]:
    x, y = floats(1024, 1024), positive(1024, 1024)
    yield NodeCase("gelu erf", "Gelu", (x,))
    yield NodeCase("gelu tanh", "Gelu", (x,), (), {"approximate": "tanh"})
    signed = ("Exp", "Sin", "Cos", "Tan", "Tanh", "Sigmoid", "Erf", "Softplus", "Mish", "Elu",
              "Selu", "HardSwish", "Relu", "Abs", "Neg", "Floor", "Round", "Sign", "Atan",
              "Sinh", "Asinh", "Softsign", "IsNaN")  # fmt: skip
    for op in signed:
        yield NodeCase(op.lower(), op, (x,))
    for op in ("Log", "Sqrt", "Reciprocal"):
        yield NodeCase(op.lower(), op, (y,))
    for op in ("Asin", "Acos", "Atanh"):
        yield NodeCase(op.lower(), op, (np.tanh(x),))
    yield NodeCase("pow", "Pow", (y, x))
    yield NodeCase("pow 2", "Pow", (x,), (np.float32(2),))
    yield NodeCase("pow 3", "Pow", (x,), (np.float32(3),))
    yield NodeCase("pow 0.5", "Pow", (y,), (np.float32(0.5),))
    yield NodeCase("add", "Add", (x, y))
    yield NodeCase("add rows", "Add", (x, floats(1024)))
    yield NodeCase("add columns", "Add", (x, floats(1024, 1)))
    yield NodeCase("mul", "Mul", (x, y))
    yield NodeCase("div", "Div", (x, y))
    yield NodeCase("div by 8", "Div", (x,), (np.float32(8),))
    yield NodeCase("div by 3", "Div", (x,), (np.float32(3),))
    yield NodeCase("div i64", "Div", (below(1 << 20, 1 << 20), 1 + below(99, 1 << 20)))
    yield NodeCase("mod i32", "Mod", (below(999, 1 << 20).astype(np.int32),), (np.int32([7]),))
    yield NodeCase("fmod", "Mod", (x, y), (), {"fmod": 1})
    yield NodeCase("max", "Max", (x, y))
    yield NodeCase("clip", "Clip", (x,), (np.float32(-1), np.float32(1)))
    yield NodeCase("leaky relu", "LeakyRelu", (x,))
    yield NodeCase("prelu", "PRelu", (floats(1, 64, 112, 112),), (floats(64, 1, 1),))
    yield NodeCase("equal", "Equal", (x, y))
    yield NodeCase("less", "Less", (x, y))
    yield NodeCase("and", "And", (x > 0, y > 1))
    yield NodeCase("not", "Not", (x > 0,))


def _types() -> Iterator[NodeCase]:
    x = floats(1024, 1024)
    integers, bytes_ = below(99, 1 << 20), below(99, 1 << 20).astype(np.int8)
    for source, target in (
        (x, "FLOAT16"), (x, "INT8"), (x, "INT64"), (x, "BOOL"), (x, "DOUBLE"),
        (x.astype(np.float16), "FLOAT"), (bytes_, "FLOAT"), (integers, "FLOAT"),
        (integers, "INT32"), (x > 0, "FLOAT"),
    ):  # fmt: skip
        code = getattr(TensorProto, target)
        yield NodeCase(
            f"cast {source.dtype} to {target.lower()}", "Cast", (source,), (), {"to": code}
        )
    scale, zero = np.float32(0.05), np.uint8(128)
    yield NodeCase("quantize", "QuantizeLinear", (x,), (scale, zero))
    yield NodeCase("dequantize", "DequantizeLinear", (x.astype(np.uint8),), (scale, zero))
    yield NodeCase("dequantize channels", "DequantizeLinear", (x.astype(np.int8),),
               (positive(1024), np.zeros(1024, np.int8)), {"axis": 0})  # fmt: skip
    yield NodeCase("dynamic quantize", "DynamicQuantizeLinear", (x,), (), {}, 3)


def _reducing() -> Iterator[NodeCase]:
    x = floats(64, 512, 512)
    for axes in ((0,), (1,), (2,), (1, 2), (0, 1), (0, 1, 2)):
        name = "".join(map(str, axes))
        yield NodeCase(f"reduce sum {name}", "ReduceSum", (x,), (i64(*axes),))
    for op in ("Max", "Mean", "Prod", "L2", "SumSquare", "LogSumExp", "L1", "LogSum"):
        yield NodeCase(f"reduce {op.lower()} 2", f"Reduce{op}", (np.abs(x),), (i64(2),))
    yield NodeCase("reduce max 1", "ReduceMax", (x,), (i64(1),))


def _contracting() -> Iterator[NodeCase]:
    image = floats(1, 96, 56, 56)
    yield NodeCase("depthwise 3x3", "Conv", (image,), (floats(96, 1, 3, 3),),
               {"group": 96, "pads": [1] * 4})  # fmt: skip
    yield NodeCase("depthwise 5x5", "Conv", (image,), (floats(96, 1, 5, 5),),
               {"group": 96, "pads": [2] * 4})  # fmt: skip
    yield NodeCase("depthwise 7x7", "Conv", (image,), (floats(96, 1, 7, 7),),
               {"group": 96, "pads": [3] * 4})  # fmt: skip
    yield NodeCase("grouped conv", "Conv", (floats(1, 128, 56, 56),), (floats(128, 4, 3, 3),),
               {"group": 32, "pads": [1] * 4})  # fmt: skip
    yield NodeCase("conv 3x3", "Conv", (floats(1, 64, 56, 56),), (floats(64, 64, 3, 3),),
               {"pads": [1] * 4})  # fmt: skip
    yield NodeCase("transposed 4x4 s2", "ConvTranspose", (floats(1, 128, 32, 32),),
               (floats(128, 64, 4, 4),), {"strides": [2, 2], "pads": [1] * 4})  # fmt: skip
    yield NodeCase("transposed 2x2 s2", "ConvTranspose", (floats(1, 128, 32, 32),),
               (floats(128, 64, 2, 2),), {"strides": [2, 2]})  # fmt: skip
    yield NodeCase("conv 1-d", "Conv", (floats(1, 80, 3000),), (floats(384, 80, 3),),
               {"pads": [1, 1]})  # fmt: skip
    yield NodeCase("conv 1-d depthwise", "Conv", (floats(1, 256, 1000),), (floats(256, 1, 31),),
               {"group": 256, "pads": [15, 15]})  # fmt: skip
    yield NodeCase("conv 3-d", "Conv", (floats(1, 16, 16, 56, 56),), (floats(32, 16, 3, 3, 3),),
               {"pads": [1] * 6})  # fmt: skip
    yield NodeCase("matmul", "MatMul", (floats(256, 256),), (floats(256, 256),))
    yield NodeCase("matmul small batches", "MatMul", (floats(256, 16, 32), floats(256, 32, 16)))
    yield NodeCase("gemv", "MatMul", (floats(1, 1024),), (floats(1024, 1024),))
    yield NodeCase("einsum heads", "Einsum", (floats(1, 128, 12, 64), floats(1, 128, 12, 64)), (),
               {"equation": "bqhd,bkhd->bhqk"})  # fmt: skip
    yield NodeCase("einsum bilinear", "Einsum", (floats(64, 32), floats(64, 32)),
               (floats(32, 16, 32),), {"equation": "bi,bj,iaj->ba"})  # fmt: skip
    steps, hidden = floats(64, 1, 256), 256
    for op, gates, outputs in (("GRU", 3, 2), ("LSTM", 4, 3), ("RNN", 1, 2)):
        wide = (1, gates * hidden, hidden)
        yield NodeCase(op.lower(), op, (steps,), (floats(*wide) / 16, floats(*wide) / 16),
                   {"hidden_size": hidden}, outputs)  # fmt: skip


def cases() -> Sequence[NodeCase]:
    """Returns all cases in the order of the table; their arrays are the same at every call."""
    global _RNG
    _RNG = np.random.default_rng(7)
    families = (_ordering, _selection, _movement, _resampling, _pooling, _normalising, _pointwise,
                _types, _reducing, _contracting)  # fmt: skip
    return [case for family in families for case in family()]
