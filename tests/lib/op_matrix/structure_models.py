"""ONNX nodes of ops that move, index, contract and slide.

ONNX has sizes as inputs that are attributes here, and pads as one list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tests.ops.samples import Sample

from .oracle import OnnxNode, attributes, i64, node, plain

NodeOf = Callable[[Sample], OnnxNode | None]


def _sized(name: str, field: str) -> NodeOf:
    """Returns a node whose last input is the attribute `field`."""
    return lambda s: OnnxNode(name, (*s.inputs, i64(*getattr(s.attrs, field))), {})


def _not_scalar(make: NodeOf) -> NodeOf:
    """Returns None for scalars, which ONNX Runtime does not transpose or slice."""
    return lambda s: make(s) if s.inputs[0] is not None and s.inputs[0].ndim else None


def _slice(s: Sample) -> OnnxNode:
    starts, steps = plain(s.attrs.starts), list(s.attrs.steps)
    ends = [
        start + step * size
        for start, step, size in zip(starts, steps, plain(s.attrs.sizes), strict=True)
    ]
    # A negative end counts from the back; this end means "past the front".
    ends = [end if end >= 0 else -(1 << 40) for end in ends]
    axes = i64(*range(len(starts)))
    return OnnxNode("Slice", (*s.inputs, i64(*starts), i64(*ends), axes, i64(*steps)), {})


def _split(s: Sample) -> OnnxNode:
    inputs = (*s.inputs, i64(*s.attrs.sizes))
    return OnnxNode("Split", inputs, {"axis": s.attrs.axis}, outputs=len(s.attrs.sizes))


def _pad(s: Sample) -> OnnxNode:
    pads = i64(*s.attrs.before, *s.attrs.after)
    return OnnxNode("Pad", (s.inputs[0], pads, *s.inputs[1:]), {"mode": s.attrs.mode})


def pads(attrs: Any) -> list[int]:
    return [*plain(attrs.before), *plain(attrs.after)]


def _conv(name: str) -> NodeOf:
    def make(s: Sample) -> OnnxNode:
        fields = attributes(s.attrs, "before", "after", "border")
        return OnnxNode(name, s.inputs, {**fields, "pads": pads(s.attrs)})

    return make


def _pool(name: str, *fields: str, outputs: int = 1) -> NodeOf:
    def make(s: Sample) -> OnnxNode:
        names = ("strides", "dilations", "ceil_mode", *fields)
        attrs = {f: plain(getattr(s.attrs, f)) for f in names}
        attrs |= {"kernel_shape": list(s.attrs.kernel), "pads": pads(s.attrs)}
        return OnnxNode(name, s.inputs, attrs, outputs=outputs)

    return make


def _max_unpool(s: Sample) -> OnnxNode:
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    return OnnxNode("MaxUnpool", (*s.inputs, i64(*s.attrs.shape)), attrs)


def _col2im(s: Sample) -> OnnxNode:
    attrs = {"strides": plain(s.attrs.strides), "dilations": plain(s.attrs.dilations)}
    inputs = (*s.inputs, i64(*s.attrs.image), i64(*s.attrs.block))
    return OnnxNode("Col2Im", inputs, {**attrs, "pads": pads(s.attrs)})


def _resize(s: Sample) -> OnnxNode:
    a, (x, scales, given) = s.attrs, (*s.inputs, None, None)[:3]
    attrs = {
        "antialias": int(a.taps is not None),
        "mode": a.mode,
        "coordinate_transformation_mode": a.coordinate_mode,
        "nearest_mode": a.nearest_mode,
        "cubic_coeff_a": a.cubic_coeff_a,
        "exclude_outside": int(a.exclude_outside),
        "extrapolation_value": a.extrapolation_value,
    }
    if a.coordinate_mode == "tf_half_pixel_for_nn":  # Only opset 11 has it.
        del attrs["antialias"]
        return OnnxNode(
            "Resize", (x, np.float32([]), np.float32([]), i64(*a.sizes)), attrs, opset=11
        )
    roi = np.array([*(r[0] for r in a.roi), *(r[1] for r in a.roi)], np.float32)
    roi = roi if given is None else np.float32(given)
    if scales is None and None not in a.scales:
        scales = np.array(a.scales, np.float32)
    if scales is not None:
        return OnnxNode("Resize", (x, roi, np.float32(scales)), attrs)
    return OnnxNode("Resize", (x, roi, None, i64(*a.sizes)), attrs)


def _top_k(s: Sample) -> OnnxNode:
    attrs = attributes(s.attrs, "k")
    return OnnxNode("TopK", (*s.inputs, i64(s.attrs.k)), attrs, outputs=2)


def _roi_align(s: Sample) -> OnnxNode:
    mode = "half_pixel" if s.attrs.half_pixel else "output_half_pixel"
    attrs = {**attributes(s.attrs, "half_pixel"), "coordinate_transformation_mode": mode}
    return OnnxNode("RoiAlign", s.inputs, attrs)


def _dft(s: Sample) -> OnnxNode:
    length, axis = np.array(plain(s.attrs.length)), np.array(s.attrs.axis)
    attrs = {"inverse": int(s.attrs.inverse), "onesided": int(s.attrs.onesided)}
    return OnnxNode("DFT", (*s.inputs, length, axis), attrs)


def _attention(s: Sample) -> OnnxNode:
    attrs = {"scale": s.attrs.scale, "is_causal": int(s.attrs.is_causal)}
    attrs |= {"softcap": s.attrs.softcap} if s.attrs.softcap else {}
    offset, (q, k, v, *mask) = plain(s.attrs.offset), s.inputs
    if not offset or k is None or v is None:
        return OnnxNode("Attention", s.inputs, attrs)
    # The keys before the first query are ONNX's past, which requires all three outputs.
    past = (k[:, :, :offset], v[:, :, :offset])
    inputs = (q, k[:, :, offset:], v[:, :, offset:], *(mask or [None]), *past)
    return OnnxNode("Attention", inputs, attrs, outputs=3)


def _rotary(s: Sample) -> OnnxNode:
    attrs = {"interleaved": int(s.attrs.interleaved), "rotary_embedding_dim": s.attrs.rotary_dim}
    return OnnxNode("RotaryEmbedding", s.inputs, attrs)


DEPARTS = {
    "conv_integer-border-u8": "ONNX has no border that is not the zero point",
    "conv_integer-filters-u8": "ONNX Runtime has no zero point for each filter",
    "conv_transpose-wider-f32": "ONNX says this with output_shape, never with negative pads",
    "resize-fractional-f32": "ONNX Runtime aligns corners of whole sizes only",
    "resize-kept-f32": "ONNX has no such coordinates; PyTorch has",
    **{
        f"resize-{mode}-antialias{how}-f32": "ONNX Runtime leaves out what lies past the edge"
        for mode in ("linear", "cubic")
        for how in ("", "-sizes")
    },
}

MODELS: Mapping[str, NodeOf] = MappingProxyType(
    {
        "reshape": lambda s: OnnxNode(
            "Reshape", (*s.inputs, i64(*s.attrs.shape)), {"allowzero": 1}
        ),
        "transpose": _not_scalar(node("Transpose")),
        "expand": _sized("Expand", "shape"),
        "tile": _sized("Tile", "repeats"),
        "slice": _not_scalar(_slice),
        "concat": node("Concat"),
        "split": _split,
        "pad": _pad,
        "einsum": node("Einsum"),
        "conv": _conv("Conv"),
        "conv_transpose": _conv("ConvTranspose"),
        "col2im": _col2im,
        "max_pool": _pool("MaxPool"),
        "max_pool_indices": _pool("MaxPool", "storage_order", outputs=2),
        "average_pool": _pool("AveragePool", "count_include_pad"),
        "lp_pool": _pool("LpPool", "p"),
        "max_unpool": _max_unpool,
        "resize": _resize,
        "top_k": _top_k,
        "non_zero": node("NonZero", "size"),
        "compress": node("Compress", "size"),
        "unique": node("Unique", "size", outputs=4),
        "non_max_suppression": node("NonMaxSuppression", "size"),
        "roi_align": _roi_align,
        "max_roi_pool": node("MaxRoiPool", opset=21),
        "dft": _dft,
        "attention": _attention,
        "rotary_embedding": _rotary,
        "range": node("Range", "size"),
        "conv_integer": _conv("ConvInteger"),
    }
)
