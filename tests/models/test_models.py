"""The light models are built and checked completely; for other models, only properties that need no
build are checked.

`scripts/check_models` checks all models completely, in minutes.
"""

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from models import build as builds
from models import check
from models.export import Recipe, export_onnx
from models.inputs import make_input, make_inputs
from models.manifest import manifest, model_spec, opened
from models.open_sizes import check_open_sizes

# One worker loads the modules that export models.
pytestmark = pytest.mark.xdist_group("torch")
ROOT = Path(__file__).resolve().parents[2]
LIGHT = ("fsrcnn", "infogan", "lstm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("name", LIGHT)
def test_light_models_keep_their_promises(name: str, folder: Path) -> None:
    model = onnx.load(builds.build(name, folder))
    report = check.examine(model_spec(name), model)
    assert len(report.weights) >= 8
    assert list(check.findings(model_spec(name), report)) == []


def test_the_check_sees_dead_weights_and_deaf_outputs(folder: Path) -> None:
    spec = model_spec("infogan")
    model = onnx.load(builds.build(spec.name, folder))
    for tensor in model.graph.initializer:  # scales a layer below its bias tolerance
        if tensor.name == "layers.10.weight":
            values = onnx.numpy_helper.to_array(tensor) * np.float32(1e-6)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    lines = list(check.findings(spec, check.examine(spec, model)))
    assert any(line.startswith("other inputs move output image by 0.00%") for line in lines)
    assert any(line.startswith("zeroing layers.10.weight") for line in lines)


def test_lstm_is_the_onnx_operator(folder: Path) -> None:
    model = onnx.load(builds.build("lstm", folder))
    lstms = [node for node in model.graph.node if node.op_type == "LSTM"]
    assert len(lstms) == 2
    assert all(b"bidirectional" in [a.s for a in node.attribute] for node in lstms)


@pytest.mark.parametrize("name", LIGHT)
def test_builds_are_reproducible_and_hold_no_paths(name: str, folder: Path) -> None:
    data = builds.build(name, folder).read_bytes()
    again = builds.build_proto(name).SerializeToString(deterministic=True)
    assert data == again
    assert str(ROOT).encode() not in data


def test_build_skips_current_files_and_replaces_stale_ones(folder: Path) -> None:
    path = builds.build("fsrcnn", folder)
    data = path.read_bytes()
    path.write_bytes(b"current by its hash")
    assert builds.build("fsrcnn", folder).read_bytes() == b"current by its hash"
    path.with_suffix(".hash").write_text("stale", encoding="utf-8")
    assert builds.build("fsrcnn", folder).read_bytes() == data
    assert {entry.suffix for entry in folder.iterdir()} <= {".onnx", ".hash"}


def test_a_batch_keeps_the_weights(folder: Path) -> None:
    one, two = (onnx.load(builds.build(name, folder)) for name in ("infogan", "infogan.b2"))
    names = [{t.name: t.raw_data for t in model.graph.initializer} for model in (one, two)]
    assert names[0] == names[1]
    dims = two.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in dims] == [2, 228]
    assert make_inputs("infogan.b2", 0)["z"].shape == (2, 228)
    assert model_spec("infogan.b2").gmac == 2 * model_spec("infogan").gmac


def test_an_open_batch_is_any_batch(folder: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name in ("infogan.b3", "fsrcnn"):
        inputs = make_inputs(name, 1)
        outputs = [
            onnxruntime.InferenceSession(builds.build(which, folder), options).run(None, inputs)
            for which in (name, name.partition(".")[0] + ".bn")
        ]
        np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-5)


class Reshaped(torch.nn.Module):
    """Reshapes to sizes of its input; a tracer records the sizes of its example."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = (int(size) for size in x.shape[2:])
        return x.reshape(x.shape[0], 3, rows * columns).cumsum(2)


class Scaled(torch.nn.Module):
    """Divides by a size of its input; a tracer records the size of its example."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(2) / int(x.shape[2])


@pytest.mark.parametrize("module", [Reshaped(), Scaled()])
@pytest.mark.parametrize(("exporter", "right"), [("dynamo", True), ("torchscript", False)])
def test_an_export_that_writes_sizes_into_the_graph_is_refused(
    exporter: Literal["dynamo", "torchscript"], right: bool, module: torch.nn.Module
) -> None:
    spec = opened(replace(model_spec("unet"), outputs=("y",)), {"image": {2: "h", 3: "w"}})
    spec = replace(spec, inputs=(replace(spec.inputs[0], shape=(1, 3, 6, 10)),))
    recipe = Recipe(module, exporter, 18)
    image = make_input(spec.inputs[0], 0)
    model = export_onnx(recipe, (torch.from_numpy(image),), ["image"], ["y"], spec.symbols)
    output, expected = check.Oracle(model).run({"image": image})[0], module(torch.from_numpy(image))
    np.testing.assert_allclose(
        output, expected, rtol=1e-5, atol=1e-5
    )  # right at the example's sizes
    with nullcontext() if right else pytest.raises(ValueError, match="image 1x3x12x30"):
        check_open_sizes(spec, recipe.module, model)


def test_open_sizes_are_any_sizes(folder: Path) -> None:
    symbols = dict([builds.read_open("luma=2,3")])
    path = builds.build_spec(opened(model_spec("fsrcnn"), symbols), folder)
    assert path.name == "fsrcnn.luma-2-3.onnx"
    model = onnx.load(path)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == [1, 1, "luma_2", "luma_3"]
    image = np.random.default_rng(5).standard_normal((1, 1, 128, 128), np.float32)
    fixed = onnx.load(builds.build("fsrcnn", folder))
    full_image, part = (check.Oracle(m).run({"luma": x})[0]
                   for m, x in ((fixed, image), (model, image[..., :40, :33])))  # fmt: skip
    # the last rows and columns depend on the edge
    np.testing.assert_allclose(part[..., :60, :46], full_image[..., :60, :46], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("text", ["luma", "=1", "luma=", "luma=2,x", "luma=-1", "luma=2:3"])
def test_texts_that_open_nothing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"--open {text}"):
        builds.read_open(text)


@pytest.mark.parametrize(("text", "why"), [("luma=2,4", "no axis 4.*0 to 3"), ("z=0", "no input")])
def test_absent_inputs_and_axes_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        opened(model_spec("fsrcnn"), dict([builds.read_open(text)]))


def test_equal_symbols_are_equal_sizes() -> None:
    assert builds.read_open("ids=0,1:s") == ("ids", {0: "ids_0", 1: "s"})
    symbols = {"input_ids": {1: "s"}, "attention_mask": {1: "s"}}
    spec = opened(model_spec("bert_base"), symbols)
    assert spec.name == "bert_base.input_ids-1.attention_mask-1"


@pytest.mark.parametrize("name", ["infogan.b0", "infogan.b", "infogan.b2x", "infogan.2"])
def test_bad_batches_are_refused(name: str) -> None:
    with pytest.raises(KeyError, match="no model"):
        model_spec(name)


def test_unknown_models_are_refused_by_name(folder: Path) -> None:
    with pytest.raises(KeyError, match=r"no model 'resnet18'.*resnet50"):
        builds.build("resnet18", folder)


@pytest.mark.parametrize("name", list(manifest()))
def test_inputs_follow_the_manifest(name: str) -> None:
    dtypes = {"f32": np.float32, "i64": np.int64}
    first, again, other = (make_inputs(name, seed) for seed in (0, 0, 1))
    assert list(first) == [spec.name for spec in model_spec(name).inputs]
    for spec in model_spec(name).inputs:
        array = first[spec.name]
        assert array.shape == spec.shape
        assert array.dtype == dtypes[spec.dtype]
        assert np.array_equal(array, again[spec.name])
        assert not np.array_equal(array, other[spec.name])
        if spec.generator == "integers":
            assert spec.low <= array.min() <= array.max() <= spec.high


def test_multiply_adds_of_a_convolution() -> None:
    # a 3x3 convolution of three channels: 27 multiplications for each element of the output
    shapes = {"x": (1, 3, 128, 128), "w": (32, 3, 3, 3), "y": (1, 32, 128, 128)}
    values = {
        name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    }
    conv = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = onnx.helper.make_graph([conv], "conv", [values["x"], values["w"]], [values["y"]])
    model = onnx.helper.make_model(graph)
    assert check.count_macs(model) == 128 * 128 * 32 * 27
