"""The importer's table of operators that are more than a row of the op table."""

from __future__ import annotations

from collections.abc import Mapping

from tcc.frontends import (  # noqa: F401
    onnx_attention,
    onnx_contrib,
    onnx_contrib_attention,
    onnx_contrib_bodies,
    onnx_contrib_fused,
    onnx_contrib_quantize,
    onnx_control,
    onnx_lists,
    onnx_moe,
    onnx_movement,
    onnx_normalization,
    onnx_pointwise,
    onnx_quantize,
    onnx_recurrent,
    onnx_reduce,
    onnx_resize,
    onnx_sampling,
    onnx_selection,
    onnx_signal,
    onnx_strings,
    onnx_window,
)
from tcc.frontends.emitting import joined
from tcc.frontends.onnx_context import Converter

CONVERTERS: Mapping[tuple[str, str], Converter] = joined(globals())
