"""Resize by scales that give fractional sizes agrees with ONNX Runtime and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.lib.import_oracle import check

COORDINATES = ("align_corners", "half_pixel", "pytorch_half_pixel", "asymmetric")
MODES = ("linear", "cubic", "floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def resize(
    x: Any,
    scales: list[float],
    *,
    opset: int = 18,
    known: bool = True,
    producer: str = "",
    sizes: list[int] | None = None,
    roi: list[float] | None = None,
    **attrs: Any,
) -> onnx.ModelProto:
    """Returns a model of one Resize of `x` by constants; the sizes of its input are symbolic unless
    `known`."""
    mode = attrs.pop("mode")
    if mode not in ("linear", "cubic"):
        attrs["nearest_mode"], mode = mode, "nearest"
    optional_operands = {
        "roi": np.float32(roi or []),
        "scales": np.float32([] if sizes else scales),
        "sizes": np.int64(sizes or []),
    }
    operands = ["x", *optional_operands] if sizes else ["x", "roi", "scales"]
    node = helper.make_node("Resize", operands, ["y"], mode=mode, **attrs)
    shape = x.shape if known else [f"d{n}" for n in range(x.ndim)]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(array, name) for name, array in optional_operands.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=producer)


def some(*shape: int) -> Any:
    return 4 * np.random.default_rng(0).standard_normal(shape, np.float32)


def result(model: onnx.ModelProto, x: Any) -> Any:
    return evaluate_graph(load_model(model), {"x": x})["y"]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("opset", [11, 13, 18, 19])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", MODES)
def test_scales_that_give_no_whole_size(
    mode: str, coordinates: str, opset: int, known: bool
) -> None:
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates, "opset": opset}
    for shape, scales in (((7,), [0.7]), ((7, 9), [1.3, 0.7]), ((3, 7, 5), [1.5, 0.3, 2.7])):
        if mode != "cubic" or len(shape) == 2:
            x = some(1, 1, *shape)
            check(resize(x, [1, 1, *scales], known=known, **attrs), {"x": x})


@pytest.mark.parametrize("mode", MODES)
def test_crops(mode: str) -> None:
    """The crop of the last axis ends outside the image, where with exclude_outside no element has a
    weight."""
    x, roi = some(1, 1, 7, 9), [0, 0, 0.1, 0.25, 1, 1, 0.8, 1.6]
    for outside in (0, 1) if mode == "cubic" else (0,):
        attrs: dict[str, Any] = {"mode": mode, "exclude_outside": outside}
        attrs["extrapolation_value"] = 9.0
        cropped = "tf_crop_and_resize"
        model = resize(
            x, [1, 1, 0.7, 1.3], roi=roi, coordinate_transformation_mode=cropped, **attrs
        )
        check(model, {"x": x})


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [0, 1])
def test_kept_ratios(mode: str, policy: str, antialias: int) -> None:
    """One scale for both axes gives one axis a fractional size."""
    x = some(1, 1, 7, 9)
    attrs = {"mode": mode, "keep_aspect_ratio_policy": policy, "axes": [2, 3]}
    attrs |= {"antialias": antialias, "coordinate_transformation_mode": "align_corners"}
    check(resize(x, [], sizes=[4, 4], **attrs), {"x": x})


def test_onnx_own_suite_aligns_corners_over_widths_that_are_not_whole() -> None:
    """`test_resize_downsample_scales_linear_align_corners` of ONNX has the sizes 1 and 3.142857."""
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    attrs: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    suite = resize(x, [1, 1, 0.6, 0.6], producer="backend-test", **attrs)
    np.testing.assert_allclose(result(suite, x), [[[[1, 3.142857]]]], rtol=1e-6, atol=1e-6)
    for producer in ("", "pytorch", "tf2onnx"):
        model = resize(x, [1, 1, 0.6, 0.6], producer=producer, **attrs)
        np.testing.assert_array_equal(result(model, x), [[[[1, 4]]]])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resizes_by_scales_agree_with_torch(mode: str, corners: bool, known: bool) -> None:
    """Scale 1.3 keeps an axis of 3 elements, and torch's linear mode then copies them."""
    x, scales = some(1, 2, 3, 8), (1.3, 0.7)
    torch_mode = {"linear": "bilinear", "cubic": "bicubic"}[mode]
    reference = torch.nn.functional.interpolate(
        torch.from_numpy(x), scale_factor=scales, mode=torch_mode, align_corners=corners
    )
    coordinates = "align_corners" if corners else "half_pixel"
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates, "known": known}
    output = result(resize(x, [1, 1, *scales], producer="pytorch", **attrs), x)
    np.testing.assert_allclose(output, reference.numpy(), rtol=1e-4, atol=1e-4)


class Interpolate(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.nn.functional.interpolate(x, scale_factor=(1.3, 0.7), mode="bilinear")


def test_modules_of_torch_leave_an_axis_whose_size_stays() -> None:
    x = torch.from_numpy(some(1, 2, 3, 8))
    outputs = evaluate_graph(load_model(torch.export.export(Interpolate(), (x,))), {"x": x.numpy()})
    (array,) = outputs.values()
    np.testing.assert_allclose(array, Interpolate()(x).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("scale", "size"), [(7 / 3, 27), (13 / 5, 45), (0.1234567, 81), (0.7, 10)])
def test_open_sizes_are_scaled_in_f32(scale: float, size: int) -> None:
    """27 times 7/3 is 63, but 62 if the multiplication rounds to f32."""
    x = some(1, 1, size)
    model = resize(x, [1, 1, scale], known=False, mode="linear")
    check(model, {"x": x})


@pytest.mark.parametrize("known", [True, False])
def test_nearest_elements_of_opset_10_are_the_next_where_axes_get_shorter(known: bool) -> None:
    x = some(1, 1, 10, 23)

    def model(scales: list[float]) -> onnx.ModelProto:
        resized = resize(x, scales, known=known, mode="floor", opset=10)
        node = resized.graph.node[0]
        node.input.remove("roi")
        node.attribute.remove(next(a for a in node.attribute if a.name == "nearest_mode"))
        return resized

    for scales in ([1, 1, 0.7, 0.29], [1, 1, 1, 0.6], [1, 1, 2.5, 1]):
        check(model(scales), {"x": x})
    mixed = model([1, 1, 2, 0.5])
    with pytest.raises(UserError, match="some axes get longer and others shorter"):
        load_model(mixed)


def test_scales_that_no_size_bears() -> None:
    model = resize(some(1, 1, 4), [1, 1, 1e30], known=False, mode="linear")
    with pytest.raises(UserError, match="too large for any size"):
        load_model(model)
