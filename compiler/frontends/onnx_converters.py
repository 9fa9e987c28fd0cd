"""The importer's table of operators that are more than a row of the op table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tcc.frontends import (
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
from tcc.frontends.onnx_context import Converter

_FAMILIES = (
    onnx_movement.CONVERTERS,
    onnx_pointwise.CONVERTERS,
    onnx_reduce.CONVERTERS,
    onnx_normalization.CONVERTERS,
    onnx_selection.CONVERTERS,
    onnx_window.CONVERTERS,
    onnx_resize.CONVERTERS,
    onnx_sampling.CONVERTERS,
    onnx_signal.CONVERTERS,
    onnx_quantize.CONVERTERS,
    onnx_contrib.CONVERTERS,
    onnx_contrib_bodies.CONVERTERS,
    onnx_contrib_fused.CONVERTERS,
    onnx_contrib_quantize.CONVERTERS,
    onnx_contrib_attention.CONVERTERS,
    onnx_control.CONVERTERS,
    onnx_recurrent.CONVERTERS,
    onnx_attention.CONVERTERS,
    onnx_lists.CONVERTERS,
    onnx_strings.CONVERTERS,
    onnx_moe.CONVERTERS,
)


def _join() -> Mapping[tuple[str, str], Converter]:
    table: dict[tuple[str, str], Converter] = {}
    for key, converter in (item for family in _FAMILIES for item in family.items()):
        if key in table:
            raise ValueError(f"two converters for {key}")
        table[key] = converter
    return MappingProxyType(table)


CONVERTERS: Mapping[tuple[str, str], Converter] = _join()
