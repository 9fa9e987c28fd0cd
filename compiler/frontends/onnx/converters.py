"""The table of converters, for operators that are not just a row of the op table."""

from collections.abc import Mapping
from types import MappingProxyType

from tcc.frontends.emit import joined
from tcc.frontends.onnx.context import Converter
from tcc.frontends.onnx.contrib import attention as contrib_attention
from tcc.frontends.onnx.contrib import bodies, collectives, fused, moe, packed_weights
from tcc.frontends.onnx.contrib import quantize as contrib_quantize
from tcc.frontends.onnx.convert import (
    attention,
    contract,
    control,
    lists,
    loop,
    movement,
    normalization,
    pointwise,
    quantize,
    random,
    recurrent,
    reduce,
    resize,
    sampling,
    selection,
    signal,
    strings,
    window,
)

# The modules of converters by domain. Keys of their tables are operators of that domain, or
# `DOMAIN.OPERATOR` for operators of another domain.
_FAMILIES = (
    ("", (attention, contract, control, lists, loop, movement, normalization, pointwise, quantize,
          random, recurrent, reduce, resize, sampling, selection, signal, strings, window)),
    ("com.microsoft", (bodies, collectives, contrib_attention, contrib_quantize, fused, moe,
                       packed_weights)),
)  # fmt: skip
CONVERTERS: Mapping[tuple[str, str], Converter] = MappingProxyType(
    {
        (key_domain or domain, name): converter
        for domain, families in _FAMILIES
        for key, converter in joined(families).items()
        for key_domain, _, name in [key.rpartition(".")]
    }
)
