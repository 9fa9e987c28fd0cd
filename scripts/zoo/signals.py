"""Whether signals live in a model with seeded weights, and a rule that brings them back.

A layer is a module with parameters of its own.  Its signal lives where the standard deviation of
each of its outputs lies within `BOUNDS`; that of the model, where another input moves each output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

BOUNDS = (1e-3, 1e3)  # of a layer's standard deviation
TARGET = (0.1, 10.0)  # where the rule leaves a layer as it is
LEAST_MOVE = 1e-3  # root mean square, of an output's range: ten times what rounding may do
NOISE = 0.1  # standard deviation of what constant parameters get

Inputs = Mapping[str, Tensor]
Call = Callable[[Inputs], Sequence[Tensor]]
_LINEAR = (nn.Linear, nn.Embedding, nn.modules.conv._ConvNd)


@torch.no_grad()
def seed_weights(model: nn.Module, seed: int) -> None:
    """Random values for what a constructor leaves constant: biases, gains of norms, layer scales.

    Zeros and ones would let a compiler leave work out.  Values that are not finite are drawn anew;
    the others, the constructor's own draws, stay.
    """
    generator = torch.Generator().manual_seed(seed)
    for _, weight in sorted(model.named_parameters()):
        if not weight.is_floating_point() or not weight.numel():
            continue
        noise = torch.randn(weight.shape, generator=generator) * NOISE
        if not bool(torch.isfinite(weight).all()):
            weight.copy_(noise)
        elif weight.ndim and bool((weight == weight.flatten()[0]).all()):
            weight.add_(noise)


def findings(model: nn.Module, call: Call, first: Inputs, second: Inputs) -> list[str]:
    """What is dead or exploded, one line each; none where all signals live."""
    with _watched(model) as deviations:
        before = call(first)
    lines = [
        f"layer {name}: standard deviation {value:.1e}"
        for name, values in deviations.items()
        for value in values
        if not BOUNDS[0] <= value <= BOUNDS[1]
    ]
    return [*lines, *still(before, call(second))]


def still(before: Sequence[Tensor], after: Sequence[Tensor]) -> Iterator[str]:
    """The outputs that another input does not move, or that are not finite."""
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        one, other = one.double(), other.double()
        if not bool(torch.isfinite(one).all() and torch.isfinite(other).all()):
            yield f"output {number} is not finite"
            continue
        span = float(max(one.max() - one.min(), one.abs().max() * (one.numel() == 1)))
        moved = float((one - other).square().mean().sqrt())
        if moved < LEAST_MOVE * span or moved == 0:
            yield f"another input moves output {number} by {moved / (span or 1):.1e} of its range"


@torch.no_grad()
def rescale(model: nn.Module, call: Call, inputs: Inputs) -> int:
    """Multiplies weights and biases of layers by powers of two until each output's standard
    deviation is about 1, in the order of a run; returns how many layers changed.

    Only layers that are linear in their weights and leave `TARGET` change, each tensor once.
    Powers of two keep the bytes equal where a sum is rounded otherwise.
    """
    held: set[int] = set()
    changed = 0

    def scaled(module: nn.Module, _: object, output: Any) -> Any:
        nonlocal changed
        own = [p for p in module.parameters(recurse=False) if id(p) not in held]
        complete = len(own) == len(list(module.parameters(recurse=False)))
        held.update(map(id, own))
        value = float(output.double().std()) if output.numel() > 1 else 1.0
        if not complete or TARGET[0] <= value <= TARGET[1] or not 0 < value < math.inf:
            return output
        factor = 2.0 ** -round(math.log2(value))
        for parameter in own:
            parameter.mul_(factor)
        changed += 1
        return output * factor

    with _hooked(linear_layers(model), scaled):
        call(inputs)
    return changed


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    found = (pair for pair in model.named_modules())
    return {n: m for n, m in found if isinstance(m, _LINEAR) or type(m).__name__ == "Conv1D"}


@contextmanager
def _watched(model: nn.Module) -> Iterator[dict[str, list[float]]]:
    """Inside, each layer's standard deviations are noted, one for each of its outputs in turn."""
    layers = {n: m for n, m in model.named_modules() if list(m.parameters(recurse=False))}
    names = {id(module): name for name, module in layers.items()}
    found: dict[str, list[float]] = {}

    def note(module: nn.Module, _: object, output: Any) -> None:
        for value in pytree.tree_leaves(output):
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 1:
                found.setdefault(names[id(module)], []).append(float(value.double().std()))

    with _hooked(layers, note):
        yield found


@contextmanager
def _hooked(layers: Mapping[str, nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module in layers.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
