"""Symbolic sizes, sizes of zero, scalars, and outputs that no node computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import tcc
from onnx import TensorProto, helper
from tcc.errors import UserError

from tests.draws import RNG
from tests.lib.agreement import (
    BOOL,
    FLOAT,
    INT64,
    Array,
    assert_agree,
    expected,
    model_of,
    session,
    value,
)

node = helper.make_node


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def check(
    model: onnx.ModelProto, *feeds: Mapping[str, Array], tolerance: float = 1e-5
) -> tcc.Module:
    module = tcc.compile(model, jobs=1)
    runner = session(model)
    for inputs in feeds:
        assert_agree(module.run(inputs), expected(runner, inputs), tolerance)
    return module


# ---- symbolic sizes ------------------------------------------------------------------------------


def test_a_repeated_operand_of_a_concat_may_be_empty() -> None:
    """One kernel computes both operands of the concat, and divides indices by the size of the
    repeated operand, which may be 0."""
    model = model_of(
        [
            node("Tile", ["x", "two"], ["t"]),
            node("Concat", ["t", "w"], ["y"], axis=0),
        ],
        [value("x", FLOAT, ["n"]), value("w", FLOAT, ["m"])],
        [value("y", FLOAT, ["k"])],
        {"two": np.array([2])},
    )
    check(model, *({"x": normal(n), "w": normal(m)} for n, m in ((0, 3), (2, 3), (2, 0))))


def test_a_chain_of_doubling_concats_is_analysed_in_linear_time() -> None:
    nodes = [node("Concat", [f"x{n}", f"x{n}"], [f"x{n + 1}"], axis=0) for n in range(30)]
    model = model_of(nodes, [value("x0", FLOAT, ["n"])], [value("x30", FLOAT, ["k"])])
    module = tcc.compile(model, jobs=1)
    assert module.run({"x0": np.zeros(0, np.float32)})["x30"].size == 0


def test_convolutions_of_symbolic_batch_and_image() -> None:
    weights = {"w": normal(8, 3, 3, 3), "b": normal(8), "d": normal(8, 1, 3, 3)}
    model = model_of(
        [
            node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["r"]),
            node("Conv", ["r", "d"], ["e"], group=8, strides=[2, 2], pads=[1, 1, 1, 1]),
            node("MaxPool", ["e"], ["m"], kernel_shape=[2, 2], strides=[1, 1]),
            node("GlobalAveragePool", ["m"], ["g"]),
            node("Resize", ["m", "", "scales"], ["y"], mode="nearest"),
        ],
        [value("x", FLOAT, ["n", 3, "h", "w"])],
        [value("g", FLOAT, ["n", 8, 1, 1]), value("y", FLOAT, ["n", 8, "h2", "w2"])],
        {**weights, "scales": np.array([1, 1, 2, 2], np.float32)},
    )
    sizes = ((1, 8, 8), (2, 13, 9), (3, 4, 33))
    check(model, *({"x": normal(n, 3, h, w)} for n, h, w in sizes))


def attention() -> onnx.ModelProto:
    """Returns one head of attention over a symbolic batch and sequence: [b, s, 16]."""
    names = ("q", "k", "v")
    return model_of(
        [
            *(node("MatMul", ["x", f"w{n}"], [n]) for n in names),
            node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
            node("MatMul", ["q", "kt"], ["a"]),
            node("Mul", ["a", "scale"], ["s"]),
            node("Softmax", ["s"], ["p"], axis=-1),
            node("MatMul", ["p", "v"], ["o"]),
            node("Add", ["o", "x"], ["sum"]),
            node("LayerNormalization", ["sum", "gain", "bias"], ["y"]),
        ],
        [value("x", FLOAT, ["b", "s", 16])],
        [value("y", FLOAT, ["b", "s", 16])],
        {
            **{f"w{n}": normal(16, 16) for n in names},
            "scale": np.array(0.25, np.float32),
            "gain": normal(16),
            "bias": normal(16),
        },
    )


def test_attention_of_symbolic_batch_and_sequence() -> None:
    check(attention(), *({"x": normal(b, s, 16)} for b, s in ((1, 1), (2, 7), (1, 64), (3, 33))))


def test_rows_of_a_symbolic_batch_are_normalised_where_they_are_made() -> None:
    """One kernel holds a matmul with delayed sums, a residual and a norm.

    The batch is 0, 1, a block less one, a block, a tile less one, a tile, a tile plus one, and two
    tiles.
    """
    model = model_of(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Add", ["m", "r"], ["sum"]),
            node("LayerNormalization", ["sum", "gain", "bias"], ["y"]),
        ],
        [value("x", FLOAT, ["n", 384]), value("r", FLOAT, ["n", 192])],
        [value("y", FLOAT, ["n", 192])],
        {"w": normal(384, 192), "gain": normal(192), "bias": normal(192)},
    )
    sizes = (1, 5, 6, 7, 63, 64, 65, 128, 0)
    module = check(model, *({"x": normal(n, 384), "r": normal(n, 192)} for n in sizes))
    assert module.manifest["variants"][0]["kernel_count"] == 1


def test_scores_by_one_element_that_a_convolution_made() -> None:
    """One kernel has several forms; the first needs scratch of a symbolic size."""
    model = model_of(
        [
            node("Conv", ["x", "w"], ["q"], pads=[1, 0, 0, 1], dilations=[2, 1]),
            node("MatMul", ["q", "k"], ["s"]),
            node("Mul", ["s", "s"], ["squared"]),
            node("Softmax", ["squared"], ["p"], axis=3),
            node("MatMul", ["p", "v"], ["y"]),
        ],
        [
            value("x", FLOAT, [3, 5, 8, 2]),
            value("k", FLOAT, [3, 5, 1, "n"]),
            value("v", FLOAT, [3, 5, "n", 4]),
        ],
        [value("y", FLOAT, [3, 5, 5, 4])],
        {"w": normal(5, 5, 3, 3) / 4},
    )
    x = normal(3, 5, 8, 2)
    check(model, *({"x": x, "k": normal(3, 5, 1, n), "v": normal(3, 5, n, 4)} for n in (1, 37)))


def test_a_deep_product_of_symbolic_rows() -> None:
    model = model_of(
        [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])],
        [value("x", FLOAT, ["b", "s", 400])],
        [value("y", FLOAT, ["b", "s", 96])],
        {"w": normal(400, 96)},
    )
    sizes = ((1, 1), (1, 127), (2, 64), (1, 129), (3, 43), (0, 5), (5, 0))
    check(model, *({"x": normal(b, s, 400)} for b, s in sizes))


def test_images_of_a_symbolic_batch_share_strips() -> None:
    """The model is a matmul and windows over each of its channels."""
    model = model_of(
        [
            node("Conv", ["x", "p"], ["c"]),
            node("Relu", ["c"], ["r"]),
            node("Conv", ["r", "d"], ["y"], group=64, pads=[1, 1, 1, 1]),
        ],
        [value("x", FLOAT, ["n", 16, 16, 16])],
        [value("y", FLOAT, ["n", 64, 16, 16])],
        {"p": normal(64, 16, 1, 1), "d": normal(64, 1, 3, 3)},
    )
    check(model, *({"x": normal(n, 16, 16, 16)} for n in (1, 2, 3, 7, 0)))


def test_shape_arithmetic() -> None:
    model = model_of(
        [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "one"], ["n"]),
            node("Mul", ["n", "two"], ["twice"]),
            node("Concat", ["minus", "twice"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["r"]),
            node("ReduceMean", ["r", "axes"], ["m"], keepdims=1),
            node("Sub", ["r", "m"], ["y"]),
        ],
        [value("x", FLOAT, [4, "n"])],
        [value("y", FLOAT, [2, "m"]), value("shape", INT64, [2])],
        {
            "one": np.array([1]),
            "two": np.array([2]),
            "minus": np.array([-1]),
            "axes": np.array([-1]),
        },
    )
    check(model, *({"x": normal(4, n)} for n in (1, 5, 32)))


def test_data_decides_sizes() -> None:
    model = model_of(
        [
            node("Relu", ["x"], ["r"]),
            node("NonZero", ["r"], ["places"]),
            node("Transpose", ["places"], ["t"], perm=[1, 0]),
            node("GatherND", ["x", "t"], ["found"]),
            node("Mul", ["found", "found"], ["squares"]),
            node("ReduceSum", ["squares"], ["sum"], keepdims=0),
        ],
        [value("x", FLOAT, ["n", 4])],
        [
            value("t", INT64, ["k", 2]),
            value("squares", FLOAT, ["k"]),
            value("sum", FLOAT, []),
        ],
    )
    nothing = -np.ones((2, 4), np.float32)
    check(model, {"x": normal(3, 4)}, {"x": nothing}, {"x": normal(1, 4)})


def test_inputs_that_share_a_size_must_agree() -> None:
    model = model_of(
        [node("Add", ["x", "z"], ["y"])],
        [value("x", FLOAT, ["n", 3]), value("z", FLOAT, ["n", 3])],
        [value("y", FLOAT, ["n", 3])],
    )
    module = check(model, {"x": normal(2, 3), "z": normal(2, 3)})
    with pytest.raises(UserError, match="input z, dimension 0"):
        module.run({"x": normal(2, 3), "z": normal(4, 3)})


def test_windows_larger_than_an_open_image_are_refused() -> None:
    """Images with both sizes negative after the window are refused too, although their number of
    elements is positive."""
    window = {"w": np.ones((1, 1, 5, 5), np.float32)}
    model = model_of(
        [node("Conv", ["x", "w"], ["c"]), node("GlobalMaxPool", ["c"], ["y"])],
        [value("x", FLOAT, [1, 1, "h", "w0"])],
        [value("y", FLOAT, [1, 1, 1, 1])],
        window,
    )
    module = check(model, {"x": normal(1, 1, 5, 7)})
    for size in ((3, 3), (3, 9), (9, 3)):
        with pytest.raises(UserError, match="must not be larger than its padded image"):
            module.run({"x": normal(1, 1, *size)})


def test_indices_and_blocks_that_no_open_size_has_room_for_are_refused() -> None:
    model = model_of(
        [
            node("GatherElements", ["x", "at"], ["g"], axis=0),
            node("DepthToSpace", ["y"], ["d"], blocksize=2),
            node("SpaceToDepth", ["z"], ["s"], blocksize=2),
        ],
        [
            value("x", FLOAT, ["n", "m"]),
            value("at", INT64, ["a", "b"]),
            value("y", FLOAT, [1, "c", 1, 1]),
            value("z", FLOAT, [1, 1, "h", "w"]),
        ],
        [
            value("g", FLOAT, ["a", "b"]),
            value("d", FLOAT, [1, "e", 2, 2]),
            value("s", FLOAT, [1, 4, "u", "v"]),
        ],
    )
    fitting = {
        "x": normal(3, 3),
        "at": np.zeros((5, 2), np.int64),
        "y": normal(1, 8, 1, 1),
        "z": normal(1, 1, 4, 6),
    }
    module = check(model, fitting)
    for name, array, why in (
        ("at", np.zeros((2, 4), np.int64), "more indices than elements"),
        ("y", normal(1, 6, 1, 1), r"DepthToSpace.*all elements"),
        ("z", normal(1, 1, 3, 2), r"SpaceToDepth.*all elements"),
        ("z", normal(1, 1, 2, 3), r"SpaceToDepth.*all elements"),
    ):
        with pytest.raises(UserError, match=why):
            module.run({**fitting, name: array})


def test_filters_of_groups_and_lengths_of_sequences_fit_symbolic_sizes() -> None:
    model = model_of(
        [
            node("Conv", ["x", "w"], ["c"], group=2),
            node("ConvTranspose", ["x", "v"], ["t"], group=2),
            node("ReverseSequence", ["z", "k"], ["r"]),
        ],
        [
            value("x", FLOAT, [1, "c0", 4, 4]),
            value("w", FLOAT, ["o", "i", 3, 3]),
            value("v", FLOAT, ["c1", 1, 3, 3]),
            value("z", FLOAT, [3, "b", 2]),
            value("k", INT64, ["l"]),
        ],
        [
            value("c", FLOAT, [1, "o", 2, 2]),
            value("t", FLOAT, [1, 2, 6, 6]),
            value("r", FLOAT, [3, "b", 2]),
        ],
    )
    fitting = {
        "x": normal(1, 4, 4, 4),
        "w": normal(6, 2, 3, 3),
        "v": normal(4, 1, 3, 3),
        "z": normal(3, 2, 2),
        "k": np.array([3, 2]),
    }
    module = check(model, fitting)
    odd = {"x": normal(1, 3, 4, 4), "w": normal(2, 1, 3, 3), "v": normal(3, 1, 3, 3)}
    for wrong in ({"w": normal(5, 2, 3, 3)}, odd, {"k": np.array([3])}):
        with pytest.raises(UserError, match="because the"):
            module.run({**fitting, **wrong})


# ---- empty arrays, and scalars -------------------------------------------------------------------


def test_arrays_of_size_zero() -> None:
    model = model_of(
        [
            node("Exp", ["x"], ["e"]),
            node("ReduceSum", ["x", "axes"], ["s"], keepdims=0),
            node("MatMul", ["x", "w"], ["p"]),
            node("Transpose", ["x"], ["t"], perm=[1, 0]),
            node("MatMul", ["t", "x"], ["q"]),
            node("Concat", ["x", "x"], ["c"], axis=0),
        ],
        [value("x", FLOAT, ["n", 3])],
        [
            value("e", FLOAT, ["n", 3]),
            value("s", FLOAT, [3]),
            value("p", FLOAT, ["n", 2]),
            value("q", FLOAT, [3, 3]),
            value("c", FLOAT, ["m", 3]),
        ],
        {"axes": np.array([0]), "w": normal(3, 2)},
    )
    check(model, *({"x": normal(n, 3)} for n in (0, 1, 5)))


def test_scalars() -> None:
    model = model_of(
        [
            node("Mul", ["x", "k"], ["p"]),
            node("Sqrt", ["p"], ["r"]),
            node("Unsqueeze", ["r", "axes"], ["u"]),
            node("Greater", ["x", "k"], ["g"]),
        ],
        [value("x", FLOAT, [])],
        [value("r", FLOAT, []), value("u", FLOAT, [1]), value("g", BOOL, [])],
        {"k": np.array(3, np.float32), "axes": np.array([0])},
    )
    check(model, {"x": np.array(2, np.float32)}, {"x": np.array(7, np.float32)})


# ---- outputs -------------------------------------------------------------------------------------


def test_outputs_that_are_inputs_constants_and_each_other() -> None:
    model = model_of(
        [
            node("Identity", ["x"], ["same"]),
            node("Relu", ["x"], ["r"]),
            node("Identity", ["r"], ["again"]),
            node("Constant", [], ["k"], value_floats=[1.0, 2.0]),
            node("Neg", ["r"], ["n"]),
        ],
        [value("x", FLOAT, ["n"]), value("unused", INT64, [2])],
        [
            value("same", FLOAT, ["n"]),
            value("r", FLOAT, ["n"]),
            value("again", FLOAT, ["n"]),
            value("k", FLOAT, [2]),
            value("n", FLOAT, ["n"]),
        ],
    )
    check(model, {"x": normal(5), "unused": np.array([1, 2])})


def test_weights_in_another_file(tmp_path: Path) -> None:
    model = attention()
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").stat().st_size >= 3 * 16 * 16 * 4
    module = tcc.compile(path, jobs=1)
    inputs = {"x": normal(2, 5, 16)}
    assert_agree(module.run(inputs), expected(session(path), inputs), 1e-5)


# ---- element types -------------------------------------------------------------------------------


def chain(element: int) -> onnx.ModelProto:
    """Returns arithmetic, a reduction and a contraction in one element type."""
    return model_of(
        [
            node("Add", ["x", "z"], ["a"]),
            node("Mul", ["a", "x"], ["m"]),
            node("ReduceSum", ["m", "axes"], ["s"], keepdims=0),
            node("MatMul", ["a", "w"], ["p"]),
            node("Max", ["p", "p"], ["q"]),
        ],
        [
            value("x", element, ["n", 4]),
            value("z", element, ["n", 4]),
            value("w", element, [4, 4]),
        ],
        [value("m", element, ["n", 4]), value("s", element, [4]), value("q", element, ["n", 4])],
        {"axes": np.array([0])},
    )


@pytest.mark.parametrize(
    ("element", "dtype", "tolerance"),
    [
        (TensorProto.DOUBLE, np.float64, 1e-14),
        (TensorProto.INT32, np.int32, 0),
        (TensorProto.INT64, np.int64, 0),
    ],
    ids=["f64", "i32", "i64"],
)
def test_element_types(element: int, dtype: type, tolerance: float) -> None:
    def draw(*shape: int) -> Array:
        return (RNG.standard_normal(shape) * 100).astype(dtype)

    feeds = [{"x": draw(n, 4), "z": draw(n, 4), "w": draw(4, 4)} for n in (1, 19)]
    check(chain(element), *feeds, tolerance=tolerance)


@pytest.mark.parametrize(
    "element", [TensorProto.FLOAT16, TensorProto.BFLOAT16], ids=["f16", "bf16"]
)
def test_half_precision(element: int) -> None:
    """The model casts from and to f32, so that NumPy can hold inputs and outputs."""
    model = model_of(
        [
            node("Cast", ["x"], ["h"], to=element),
            node("Mul", ["h", "h"], ["m"]),
            node("Sigmoid", ["m"], ["s"]),
            node("Cast", ["s"], ["y"], to=FLOAT),
        ],
        [value("x", FLOAT, ["n"])],
        [value("y", FLOAT, ["n"])],
    )
    x = normal(67)
    y = tcc.compile(model, jobs=1)(x)
    assert np.max(np.abs(y - 1 / (1 + np.exp(-np.square(x))))) < 2.0**-7


def test_a_large_reduction() -> None:
    model = model_of(
        [
            node("ReduceSum", ["x"], ["sum"], keepdims=0),
            node("ReduceMax", ["x"], ["max"], keepdims=0),
            node("ArgMax", ["x"], ["place"], axis=0, keepdims=0),
            node("ReduceL2", ["x"], ["norm"], keepdims=0),
        ],
        [value("x", FLOAT, ["n"])],
        [
            value("sum", FLOAT, []),
            value("max", FLOAT, []),
            value("place", INT64, []),
            value("norm", FLOAT, []),
        ],
    )
    x = RNG.random(3_000_001).astype(np.float32)
    outputs = tcc.compile(model, jobs=1).run({"x": x})
    # at least 32 partial sums, with 4 times the error of random roundings
    bound = 4 * math.sqrt(x.size / 32) * 2.0**-24
    assert abs(outputs["sum"] / x.sum(dtype=np.float64) - 1) < bound
    assert abs(outputs["norm"] / np.linalg.norm(x.astype(np.float64)) - 1) < bound
    assert outputs["max"] == x.max()
    assert outputs["place"] == x.argmax()
