"""Kernels with symbolic sizes around the ends of vectors and blocks, masked or not, agree with ONNX
Runtime.

They touch no memory behind the end of an input or a result.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import TensorProto, helper

from tests.draws import RNG, seeded
from tests.lib.agreement import FLOAT, Array, assert_agree, expected, model_of, session, value
from tests.part import part
from tests.processors import distinct

# Sizes around vectors of 4, 8 and 16 elements, pairs of vectors, and blocks of 64.
SIZES = (1, 2, 3, 7, 12, 15, 16, 17, 25, 28, 32, 33, 48, 49, 63, 64, 65, 77, 96, 130, 199)
PROCESSORS = distinct("host", "x86-64-v3", "x86-64-v2")


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def one(op: str, shape: list[int | str], *weights: Array, **attributes: object) -> onnx.ModelProto:
    """Returns a model of one operator on `x`."""
    names = [f"w{n}" for n in range(len(weights))]
    element = TensorProto.INT64 if op == "ArgMax" else FLOAT
    return model_of(
        [helper.make_node(op, ["x", *names], ["y"], **attributes)],
        [value("x", FLOAT, shape)],
        [
            value(
                "y",
                element,
                [f"d{n}" for n in range(len(shape) - (attributes.get("keepdims") == 0))],
            )
        ],
        dict(zip(names, weights, strict=True)),
    )


def chain(shape: list[int | str], *rows: tuple[str, tuple[Array, ...]]) -> onnx.ModelProto:
    """Returns a model of consecutive operators, each with its weights."""
    nodes, constants = [], {}
    for n, (op, weights) in enumerate(rows):
        names = [f"w{n}_{i}" for i in range(len(weights))]
        constants |= dict(zip(names, weights, strict=True))
        source, target = f"a{n}" if n else "x", f"a{n + 1}" if n + 1 < len(rows) else "y"
        nodes.append(helper.make_node(op, [source, *names], [target]))
    result = value("y", FLOAT, [f"d{n}" for n in range(len(shape))])
    return model_of(nodes, [value("x", FLOAT, shape)], [result], constants)


with seeded("remainders"):
    MODELS = {
        "pointwise": one("Relu", ["n"]),
        "table": one("Tanh", [3, "n"]),
        "convolution": one("Conv", [1, 2, 3, "n"], normal(7, 2, 3, 3), pads=[1, 1, 1, 1]),
        "plane": one("Conv", [1, 2, "n", "n"], normal(3, 2, 1, 1)),
        "line": one("Conv", [2, 5, "n"], normal(7, 5, 5), normal(7), pads=[2, 2]),
        "channels": one("Conv", [1, 3, "n"], normal(50, 3, 3), normal(50), pads=[1, 1]),
        "depthwise": one("Conv", [1, 5, 2, "n"], normal(5, 1, 3, 3), pads=[1] * 4, group=5),
        "taps": one("Conv", [1, 12, "n", "n"], normal(40, 12, 5, 5), normal(40), pads=[2] * 4),
        "windows": one("Conv", [1, 20, "n", "n"], normal(20, 1, 3, 3), pads=[1] * 4, group=20),
        "every second": one(
            "Conv", [1, 36, "n", "n"], normal(36, 1, 5, 5), pads=[2] * 4, group=36, strides=[2, 2]
        ),
        "transposed": one("ConvTranspose", [1, 3, "n"], normal(3, 2, 2), strides=[2]),
        "phases": one("ConvTranspose", [1, 3, 2, "n"], normal(3, 5, 2, 2), strides=[2, 2]),
        "thirds": one("ConvTranspose", [1, 3, "n"], normal(3, 7, 3), strides=[3]),
        "quarters": one("ConvTranspose", [1, 3, "n"], normal(3, 4, 4), normal(4), strides=[4]),
        "enlarged": one("ConvTranspose", [1, 3, "n", "n"], normal(3, 2, 2, 2), strides=[2, 2]),
        "halved": one("Conv", [1, 3, "n", "n"], normal(5, 3, 3, 3), pads=[1] * 4, strides=[2, 2]),
        "rows": one("MatMul", ["n", 20], normal(20, 9)),
        "softmax": one("Softmax", [3, "n"], axis=-1),
        "logarithms": one("LogSoftmax", [2, "n"], axis=-1),
        "mean": one("ReduceMean", [3, "n"], np.array([1]), keepdims=0),
        "maximum": one("ReduceMax", [3, "n"], np.array([1]), keepdims=0),
        "norm": one("ReduceL2", [3, "n"], np.array([1])),
        "least": one("ReduceLogSumExp", [3, "n"], np.array([1])),
        "place": one("ArgMax", [3, "n"], axis=1, keepdims=0),
        "columns": one("ReduceSum", [5, "n"], np.array([0])),
        "turn": one("Transpose", [5, "n"], perm=[1, 0]),
        "instances": one("InstanceNormalization", [1, 3, "n"], normal(3), normal(3)),
        "norms in a row": chain(
            [1, 3, "n"], *[("InstanceNormalization", (normal(3), normal(3)))] * 3, ("Softmax", ())
        ),
        "groups": one("GroupNormalization", [1, 4, "n"], normal(4), normal(4), num_groups=2),
        "layer": one("LayerNormalization", ["n", 20], normal(20), normal(20)),
        "length": one("LayerNormalization", [3, "n"], np.ones(1, np.float32)),
    }


def sized(model: onnx.ModelProto, size: int) -> tuple[int, ...]:
    """Returns the shape of the model's input with `size` for all symbolic axes."""
    dims = model.graph.input[0].type.tensor_type.shape.dim
    return tuple(size if dim.dim_param else dim.dim_value for dim in dims)


class Fenced:
    """Allocates memory that ends at a page without access rights."""

    def __init__(self) -> None:
        self._mprotect = ctypes.CDLL(None).mprotect

    def __call__(self, size: int) -> Any:
        page = mmap.PAGESIZE
        room = -(-size // page) * page
        memory = mmap.mmap(-1, room + page)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        closed = self._mprotect(ctypes.c_void_p(address + room), ctypes.c_size_t(page), 0)
        assert closed == 0
        return memoryview(memory)[room - size : room]

    def copy(self, array: Array) -> Array:
        """Copies `array` to fenced memory."""
        fenced = np.ndarray(array.shape, array.dtype, self(array.nbytes))
        fenced[...] = array
        return fenced


# Half of the models for one processor, a third for others; `scripts/other_cpus --open` has all.
CASES = [(name, cpu) for cpu in PROCESSORS[:1] for name in part("remainders", MODELS, 2)]
CASES += [(name, cpu) for cpu in PROCESSORS[1:] for name in part(f"remainders {cpu}", MODELS, 3)]


@pytest.mark.parametrize(("name", "cpu"), CASES)
def test_sizes_around_the_ends_of_vectors(name: str, cpu: str) -> None:
    model, fence = MODELS[name], Fenced()
    module = tcc.compile(model, cpu=cpu, jobs=1)
    module._results.memory = fence
    runner = session(model)
    for size in SIZES:
        x = fence.copy(normal(*sized(model, size)))
        assert_agree(module.run({"x": x}), expected(runner, {"x": x}))
