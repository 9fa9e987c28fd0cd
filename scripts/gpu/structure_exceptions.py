"""The kernels whose structure breaks a rule of `gpu_structure` for now, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StructureException:
    """A rule that kernels break for now, and the reason.

    It holds for the kernels of items whose names begin with `item`, if their source contains
    `source`.
    """

    item: str
    source: str
    rule: str
    why: str


_WAITING = "matrix units are not kept waiting"
_WINDOW = "the loop computes addresses and masks of a window for few columns of filters"

EXCEPTIONS: tuple[StructureException, ...] = (
    StructureException(
        "gemm_f8", "m (MatMul)", _WAITING,
        "lanes take 73 instructions for each product in f8; the cause is not known yet",
    ),
    StructureException(
        "conv_chain_bf16", "c0 (Conv)", _WAITING,
        "the image is read as given, with its channels first, so lanes copy two bytes each",
    ),
    StructureException("csrnet_bf16", "node_conv2d", _WAITING, _WINDOW),
    StructureException("unet_bf16", "up.0/ConvTranspose", _WAITING, _WINDOW),
    StructureException("unet_bf16", "merge.1.0/Conv", _WAITING, _WINDOW),
    StructureException(
        "unet_bf16", "down.0.0/Conv", "wide copies",
        "three channels: the block of filters has rows of 27 terms, and passes through registers",
    ),
    StructureException(
        "gpt2_prefill_bf16", "node_linear", _WAITING,
        "rows of 50,257 columns are not aligned, so lanes copy two bytes each",
    ),
)  # fmt: skip
