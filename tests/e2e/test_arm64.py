"""Small networks compiled for 64-bit Arm agree with ONNX Runtime, on one thread and on several.

A processor that lacks a needed feature is refused with a message.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from tcc import runtime
from tcc.driver import compile_model
from tcc.errors import UserError
from tcc.options import read_options

from tests.draws import RNG, seeded
from tests.lib.agreement import Array, assert_agree, expected, model_of, session, value
from tests.lib.arm64 import (
    compile_emulated,
    needs_emulator,
    needs_older,
    run_emulated,
    started,
    started_older,
)

pytestmark = pytest.mark.xdist_group("emulated-models")


def weights(seed: int, *shape: int) -> Array:
    fan = np.prod(shape[1:]) if len(shape) > 2 else shape[0]
    return np.random.default_rng(seed).standard_normal(shape, np.float32) / np.float32(fan**0.5)


def residual_network() -> onnx.ModelProto:
    """Returns a stem, two residual blocks (the second with fewer pixels) and a head; the batch is
    symbolic."""
    nodes, constants = [], {}

    def conv(x: str, name: str, cin: int, cout: int, size: int, stride: int = 1) -> str:
        constants[f"{name}.w"] = weights(len(constants), cout, cin, size, size)
        for number, part in enumerate(("scale", "bias", "mean", "var")):
            constants[f"{name}.{part}"] = np.abs(weights(99 + number, cout)) + np.float32(0.5)
        pads = [size // 2] * 4
        step = [stride, stride]
        nodes.append(
            helper.make_node("Conv", [x, f"{name}.w"], [f"{name}.c"], pads=pads, strides=step)
        )
        parts = [f"{name}.{part}" for part in ("scale", "bias", "mean", "var")]
        nodes.append(helper.make_node("BatchNormalization", [f"{name}.c", *parts], [name]))
        return name

    def relu(x: str) -> str:
        nodes.append(helper.make_node("Relu", [x], [f"{x}.r"]))
        return f"{x}.r"

    x = relu(conv("image", "stem", 3, 16, 7, 2))
    nodes.append(
        helper.make_node("MaxPool", [x], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    )
    x, channels = "p", 16
    for number, out in enumerate((16, 32)):
        y = relu(conv(x, f"b{number}.1", channels, out, 3, out // channels))
        y = conv(y, f"b{number}.2", out, out, 3)
        if out != channels:
            x = conv(x, f"b{number}.s", channels, out, 1, 2)
        nodes.append(helper.make_node("Add", [x, y], [f"b{number}"]))
        x, channels = relu(f"b{number}"), out
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["g"]))
    nodes.append(helper.make_node("Flatten", ["g"], ["f"]))
    constants["head"] = weights(7, 32, 10)
    nodes.append(helper.make_node("MatMul", ["f", "head"], ["logits"]))
    return model_of(
        nodes,
        [value("image", shape=("n", 3, 32, 32))],
        [value("logits", shape=("n", 10))],
        constants,
    )


def transformer() -> onnx.ModelProto:
    """Returns token embedding, attention over four heads and GELU; batch and length are
    symbolic."""
    heads, width = 4, 64
    constants: dict[str, Array] = {
        "table": weights(0, 100, width) * np.float32(10),
        "split": np.array([0, 0, heads, width // heads], np.int64),
        "joined": np.array([0, 0, width], np.int64),
        "scale": np.array((width // heads) ** -0.5, np.float32),
        "one": np.ones(width, np.float32),
        "zero": np.zeros(width, np.float32),
        "half": np.array(0.5, np.float32),
        "root": np.array(0.5**0.5, np.float32),
        "unit": np.array(1.0, np.float32),
        "up": weights(5, width, 4 * width),
        "down": weights(6, 4 * width, width),
    }
    nodes = [helper.make_node("Gather", ["table", "tokens"], ["e"])]
    for number, (name, order) in enumerate(
        (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
    ):
        constants[f"w{name}"] = weights(number + 1, width, width)
        nodes += [
            helper.make_node("MatMul", ["e", f"w{name}"], [f"{name}0"]),
            helper.make_node("Reshape", [f"{name}0", "split"], [f"{name}1"]),
            helper.make_node("Transpose", [f"{name}1"], [name], perm=order),
        ]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["s0"]),
        helper.make_node("Mul", ["s0", "scale"], ["s1"]),
        helper.make_node("Softmax", ["s1"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["a0"]),
        helper.make_node("Transpose", ["a0"], ["a1"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["a1", "joined"], ["a2"]),
        helper.make_node("Add", ["a2", "e"], ["r"]),
        helper.make_node("LayerNormalization", ["r", "one", "zero"], ["n"]),
        helper.make_node("MatMul", ["n", "up"], ["u"]),
        helper.make_node("Mul", ["u", "root"], ["u1"]),
        helper.make_node("Erf", ["u1"], ["u2"]),
        helper.make_node("Add", ["u2", "unit"], ["u3"]),
        helper.make_node("Mul", ["u", "u3"], ["u4"]),
        helper.make_node("Mul", ["u4", "half"], ["u5"]),
        helper.make_node("MatMul", ["u5", "down"], ["d"]),
        helper.make_node("Add", ["d", "r"], ["y"]),
    ]
    tokens = value("tokens", onnx.TensorProto.INT64, ("n", "length"))
    return model_of(nodes, [tokens], [value("y", shape=("n", "length", width))], constants)


with seeded("test_emulated: inputs"):
    IMAGES = RNG.standard_normal((2, 3, 32, 32)).astype(np.float32)
    TOKENS = RNG.integers(0, 100, (2, 13))


@needs_emulator
@pytest.mark.parametrize(
    ("make", "feeds", "cpu"),
    [
        (residual_network, {"image": IMAGES}, "neoverse-n1"),
        (transformer, {"tokens": TOKENS}, "cortex-a72"),
    ],
    ids=["residual", "transformer"],
)
def test_networks_agree_and_threads_change_nothing(
    make: Callable[[], onnx.ModelProto], feeds: dict[str, Array], cpu: str, tmp_path: Path
) -> None:
    model = make()
    onnx.save(model, tmp_path / "model.onnx")
    path = compile_emulated(tmp_path / "model.onnx", tmp_path / "model.so", cpu=cpu)
    one = run_emulated(path, feeds, tmp_path / "arrays", cpu, threads=1)
    assert_agree(one, expected(session(model), feeds))
    three = run_emulated(path, feeds, tmp_path / "arrays", cpu, threads=3)
    for name, array in one.items():
        assert array.tobytes() == three[name].tobytes()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    node = helper.make_node("Relu", ["x"], ["y"])
    onnx.save(model_of([node], [value("x", shape=(4,))], [value("y", shape=(4,))]), folder / "m")
    return compile_emulated(folder / "m", folder / "m.so", cpu="neoverse-n1")


@needs_emulator
@pytest.mark.parametrize("cpu", ["cortex-a57", "cortex-a72"])
def test_an_error_names_the_missing_features_of_the_processor(
    tiny: Path, tmp_path: Path, cpu: str
) -> None:
    (tmp_path / "in0").write_bytes(np.array([4], np.int64).tobytes() + bytes(16))
    process = started(tiny, tmp_path, cpu)
    assert process.returncode == 1
    assert "was compiled for a CPU with 'lse', which this CPU" in process.stderr
    assert started(tiny, tmp_path, "neoverse-n1").returncode == 0


@needs_older
@pytest.mark.parametrize(
    ("cpu", "made_for", "lacks"),
    [("Nehalem", "x86-64-v3", "avx"), ("Haswell", "icelake-server", "avx512f")],
)
def test_an_error_names_the_missing_features_of_an_older_x86(
    cpu: str, made_for: str, lacks: str, tmp_path: Path
) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    model = model_of([node], [value("x", shape=(4,))], [value("y", shape=(4,))])
    (tmp_path / "in0").write_bytes(np.array([4], np.int64).tobytes() + bytes(16))
    for target, code in ((made_for, 1), ("x86-64-v2", 0)):
        options = read_options({"cpu": target, "jobs": 1})
        process = started_older(
            compile_model(model, options, tmp_path / "m.so").path, tmp_path, cpu
        )
        assert process.returncode == code
        assert (f"was compiled for a CPU with '{lacks}', which this CPU" in process.stderr) == bool(
            code
        )


def products_of_bytes(signed: bool) -> onnx.ModelProto:
    """Returns two matmuls of 8-bit levels with signed weights; the second has more rows."""
    rng = np.random.default_rng(3)
    constants: dict[str, Array] = {
        "w": rng.integers(-128, 128, (67, 45)).astype(np.int8),
        "v": rng.integers(-128, 128, (40, 3, 3, 3)).astype(np.int8),
    }
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w"], ["y"]),
        helper.make_node("ConvInteger", ["image", "v"], ["z"], pads=[1] * 4),
    ]
    types = onnx.TensorProto
    kind, sums = types.INT8 if signed else types.UINT8, types.INT32
    return model_of(
        nodes,
        [value("x", kind, (9, 67)), value("image", kind, (1, 3, 11, 9))],
        [value("y", sums, (9, 45)), value("z", sums, (1, 40, 11, 9))],
        constants,
    )


@needs_emulator
@pytest.mark.parametrize(
    ("cpu", "signed"), [("neoverse-n1", True), ("neoverse-n1", False), ("neoverse-v1", False)]
)
def test_products_of_bytes_are_exact(cpu: str, signed: bool, tmp_path: Path) -> None:
    model = products_of_bytes(signed)
    onnx.save(model, tmp_path / "model.onnx")
    path = compile_emulated(tmp_path / "model.onnx", tmp_path / "model.so", cpu=cpu)
    rng, kind = np.random.default_rng(4), np.int8 if signed else np.uint8
    low, high = (-128, 128) if signed else (0, 256)
    feeds = {
        "x": rng.integers(low, high, (9, 67)).astype(kind),
        "image": rng.integers(low, high, (1, 3, 11, 9)).astype(kind),
    }
    results = run_emulated(path, feeds, tmp_path / "arrays", "max")
    weights = {
        i.name: onnx.numpy_helper.to_array(i).astype(np.int64) for i in model.graph.initializer
    }
    np.testing.assert_array_equal(results["y"], feeds["x"].astype(np.int64) @ weights["w"])
    padded = np.pad(feeds["image"].astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    np.testing.assert_array_equal(
        results["z"], np.einsum("nchwij,ocij->nohw", windows, weights["v"])
    )


@needs_emulator
def test_layers_in_bf16(tmp_path: Path) -> None:
    constants = {"w": weights(1, 66, 46), "v": weights(2, 46, 33)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    model = model_of(nodes, [value("x", shape=(9, 66))], [value("y", shape=(9, 33))], constants)
    onnx.save(model, tmp_path / "m")
    path = compile_emulated(tmp_path / "m", tmp_path / "m.so", cpu="neoverse-v1", precision="bf16")
    x = weights(3, 9, 66)
    (output,) = run_emulated(path, {"x": x}, tmp_path / "arrays").values()
    reference = np.maximum(x @ constants["w"], 0) @ constants["v"]
    error = np.abs(output - reference).max() / np.abs(reference).max()
    assert 1e-5 < error < 1e-2


@needs_emulator
def test_an_error_names_another_architecture(tiny: Path) -> None:
    with pytest.raises(UserError, match="aarch64"):
        runtime.load(tiny, error=UserError)
