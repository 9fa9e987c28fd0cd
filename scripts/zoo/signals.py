"""Whether signals live in a model with seeded weights, and a rule that brings them back.

A layer is a module with parameters of its own.  Its signal lives where the standard deviation of
each of its outputs lies within `BOUNDS`; that of the model, where another input moves each output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

BOUNDS = (1e-3, 1e3)  # of a layer's standard deviation
TARGET = (0.1, 10.0)  # where the rule leaves a layer as it is
LEAST_MOVE = 1e-4  # root mean square, of an output's range: ten times what rounding does
LEAST_VARIANCE = 1e-8  # of a channel: below it a batch norm keeps its statistics
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
    """Brings signals back in the order of one run; returns how many layers changed.

    Weights and biases of layers that are linear in them, and whose outputs leave `TARGET`, are
    multiplied by a power of two that gives a standard deviation of about 1, each tensor once.
    Batch norms take the statistics of `inputs`: with those of nothing, biases drown what depends
    on the input.  Powers of two, and statistics rounded to bfloat16, keep the bytes equal where a
    sum is rounded otherwise.
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

    def calibrated(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        nonlocal changed
        value = arguments[0]
        others = [axis for axis in range(value.ndim) if axis != 1]
        if value.numel() > value.shape[1]:
            mean, variance = value.mean(others), value.var(others, correction=0)
            lives = variance > LEAST_VARIANCE
            for kept, found in ((module.running_mean, mean), (module.running_var, variance)):
                kept.copy_(torch.where(lives, found.bfloat16().to(kept.dtype), kept))
            changed += 1

    with ExitStack() as stack:
        stack.enter_context(_hooked(linear_layers(model), scaled))
        for module in model.modules():
            if isinstance(getattr(module, "running_var", None), Tensor):
                handle = module.register_forward_pre_hook(calibrated)
                stack.callback(handle.remove)
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
