"""Tensor maps: descriptions of arrays for NVIDIA's copy engine (TMA)."""

from collections.abc import Sequence
from math import prod

from tcc.backends.artifact.gpu_binaries import TensorMap
from tcc.backends.gpu.hopper.boxes import Box
from tcc.backends.gpu.triton.dtypes import pointer_type
from tcc.ir.tile import TileBuffer
from tcc.ir.types import DTYPES

_SPANS = (128, 64, 32)


def tensor_map(buffers: Sequence[TileBuffer], buffer: TileBuffer, box: Box) -> TensorMap:
    """Returns the tensor map of a box in `buffer`.

    Its swizzle is the widest that divides the bytes of a row. Boxes of fewer than 8 rows have no
    swizzle.
    """
    row, rows = box.shape[-1] * buffer.dtype.bytes, prod(box.shape[:-1])
    span = next((s for s in _SPANS if row % s == 0), 0) if rows >= 8 else 0
    place = buffers.index(buffer)
    return TensorMap(place, buffer.dtype.name, box.sizes, box.strides, box.shape, span)


def map_type(map_: TensorMap) -> str:
    """Returns the type of a tensor map as Triton's signatures spell it."""
    dtype = DTYPES[map_.dtype]
    layout = (
        f"NVMMASharedLayout(swizzle_byte_width={map_.swizzle}, element_bitwidth={dtype.bits}, "
        f"rank={len(map_.box)}, transposed=False, fp4_padded=False, cga_layout=[])"
    )
    return f"tensordesc<{pointer_type(dtype)[1:]}[{', '.join(map(str, map_.box))}],{layout}>"
