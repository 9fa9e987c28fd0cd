"""The forms in which torch is timed beside tcc; needs torch.

A graph of ONNX operators is rarely what a user of torch would write: for matmuls of eight or four
bits and for sums of embeddings, torch has functions of its own. Graphs with convolutions are timed
in both layouts of their images, and the faster layout counts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Computes from the inputs of an item; calls with the same inputs give equal results.
Form = Callable[..., Any]
# Returns an input as a form takes it.
Prepare = Callable[[Tensor], Tensor]
_CHANNELS_LAST = torch.channels_last


def forms(
    reference: Any, item: Mapping[str, Any], graph: Mapping[str, Any]
) -> dict[str, tuple[Form, Prepare]]:
    """Returns the forms to time, by name: pairs (function, preparation of each input).

    The preparation is not timed. `reference` is the module of the item's graph.
    """
    name = item.get("peer", "")
    if name:
        return {name: (PEERS[name](graph), _half if name == "int4_mm" else _unchanged)}
    plain: dict[str, tuple[Form, Prepare]] = {"eager": (reference, _unchanged)}
    if has_images(graph):
        module = copy.deepcopy(reference).to(memory_format=_CHANNELS_LAST)
        plain["channels-last"] = module, channels_last
    return plain


def has_images(graph: Mapping[str, Any]) -> bool:
    """Returns True if the graph convolves, so that the layout of its images matters."""
    return any(node["op"] == "Conv" for node in graph["nodes"])


def channels_last(x: Tensor) -> Tensor:
    """Returns `x`; images and filters lie in memory with their channels last."""
    return x.to(memory_format=_CHANNELS_LAST) if x.ndim == 4 else x


def _unchanged(x: Tensor) -> Tensor:
    return x


def _half(x: Tensor) -> Tensor:
    return x.bfloat16()


def _int_mm(graph: Mapping[str, Any]) -> Form:
    return lambda a, b: (torch._int_mm(a, b),)


def _scaled_mm(graph: Mapping[str, Any]) -> Form:
    """Returns the matmul of two matrices in f8, of which the second is stored transposed."""

    def multiply(a: Tensor, b: Tensor, scale: Tensor) -> tuple[Tensor]:
        return (torch._scaled_mm(a, b.T, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16),)

    return multiply


def _int4_mm(graph: Mapping[str, Any]) -> Form:
    """Returns the matmul with random weights of four bits in blocks of 32, in the layout of torch.

    The sizes are those of the graph's node. The results differ from those of the graph, because
    torch stores zero points of another kind; only the time counts.
    """
    (node,) = (node for node in graph["nodes"] if node["op"] == "MatMulNBits")
    n, k, block = (node["at"][name] for name in ("N", "K", "block_size"))
    state: dict[str, Any] = {}

    def multiply(x: Tensor) -> tuple[Tensor]:
        if not state:
            state.update(_packed(n, k, block, x.device))
        function = state["function"]
        return (function(x, state["weights"], block, state["scales"]),)

    return multiply


def _packed(n: int, k: int, block: int, device: torch.device) -> dict[str, Any]:
    """Returns the weights, the scales and the matmul that torch has for the device."""
    scales = torch.full((k // block, n, 2), 0.01, device=device, dtype=torch.bfloat16)
    if device.type == "cpu":
        digits = torch.randint(0, 16, (n, k), dtype=torch.int32)
        weights = torch._convert_weight_to_int4pack_for_cpu(digits, 1)
        function = torch._weight_int4pack_mm_for_cpu
    else:
        digits = torch.randint(0, 256, (n, k // 2), device=device, dtype=torch.uint8)
        weights = torch._convert_weight_to_int4pack(digits, 8)
        function = torch._weight_int4pack_mm
    return {"function": function, "weights": weights, "scales": scales}


def _embedding_bag(graph: Mapping[str, Any]) -> Form:
    return lambda table, index: (F.embedding_bag(index, table, mode="sum"),)


PEERS: dict[str, Callable[[Mapping[str, Any]], Form]] = {
    "int_mm": _int_mm, "scaled_mm": _scaled_mm, "int4_mm": _int4_mm,
    "embedding_bag": _embedding_bag,
}  # fmt: skip


def reason_of_failure(form: Form, inputs: Sequence[Tensor]) -> str:
    """Returns why torch refuses a form on this device, or "".

    A device may lack an instruction that a form needs, and that must not cost tcc's own time.
    """
    try:
        with torch.inference_mode():
            form(*inputs)
    except (RuntimeError, ValueError, NotImplementedError) as failure:
        return f"{type(failure).__name__}: {failure}"[:300]
    return ""
