"""The importer's table of operators that are more than a row of the op table."""

from __future__ import annotations

from collections.abc import Mapping

from tcc.frontends.emitting import joined
from tcc.frontends.onnx_context import Converter

CONVERTERS: Mapping[tuple[str, str], Converter] = joined(
    "onnx",
    "movement pointwise reduce normalization selection window resize sampling signal "
    "quantize contrib contrib_bodies contrib_fused contrib_quantize contrib_attention "
    "control recurrent attention lists strings moe",
)
