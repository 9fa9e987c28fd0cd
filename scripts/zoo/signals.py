"""Checks that signals live in a model with seeded weights, and rescales layers where they do not.

A layer is a module with parameters of its own. The signal of a layer is alive if the standard
deviation of each of its outputs lies within `BOUNDS`; otherwise it is dead. The signal of a model
is alive if each output changes when the input changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

BOUNDS = (1e-3, 1e3)  # least and greatest standard deviation of a layer's output
TARGET = (0.1, 10.0)  # `rescale` leaves layers with standard deviations between these unchanged
# Different inputs must change an output by at least this much: the root mean square of the changes,
# divided by the output's range. Rounding changes outputs by a tenth of it.
LEAST_MOVE = 1e-4
# A channel of a batch norm keeps its statistics if the variance of its inputs is smaller than this.
LEAST_VARIANCE = 1e-8
NOISE = 0.1  # standard deviation of the noise that is added to constant parameters

Inputs = Mapping[str, Tensor]
Call = Callable[[Inputs], Sequence[Tensor]]
_LINEAR = (nn.Linear, nn.Embedding, nn.modules.conv._ConvNd)


@torch.no_grad()
def seed_weights(model: nn.Module, seed: int) -> None:
    """Adds noise to each parameter whose elements are all equal.

    Constructors leave biases, gains of norms and layer scales constant, and zeros and ones would
    let a compiler skip work. Parameters with values that are not finite are replaced by noise. All
    other parameters keep the values that the constructor drew.
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
    """Returns a line for each signal that is dead or has exploded.

    There is a line for each layer whose output has a standard deviation outside BOUNDS. There is a
    line for each output of the model that is not finite or does not depend on the input (see
    `still`).
    """
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
    """Yields a line for each output that is not finite or does not depend on the input.

    `before` and `after` are the outputs for two different inputs, which must differ by LEAST_MOVE.
    """
    for number, (first, second) in enumerate(zip(before, after, strict=True)):
        first, second = first.double(), second.double()
        if not bool(torch.isfinite(first).all() and torch.isfinite(second).all()):
            yield f"output {number} is not finite"
            continue
        span = float(max(first.max() - first.min(), first.abs().max() * (first.numel() == 1)))
        shift = float((first - second).square().mean().sqrt())
        if shift < LEAST_MOVE * span or shift == 0:
            yield f"another input moves output {number} by {shift / (span or 1):.1e} of its range"


@torch.no_grad()
def rescale(model: nn.Module, call: Call, inputs: Inputs) -> int:
    """Scales layers so that signals neither vanish nor explode; returns how many layers changed.

    The layers change during one run on `inputs`, each before the next one runs. If the standard
    deviation of a linear layer's output is outside TARGET, its weights and biases are multiplied by
    a power of two that makes it about 1. Each tensor changes at most once. Batch norms take the
    statistics of `inputs`, because with those of an untrained model, biases are much larger than
    the part that depends on the input. Factors are powers of two, and statistics are rounded to
    bfloat16, so that machines that round sums differently give equal bytes.
    """
    scaled_ids: set[int] = set()
    changed = 0

    def scaled(module: nn.Module, _: object, output: Any) -> Any:
        nonlocal changed
        parameters = [p for p in module.parameters(recurse=False) if id(p) not in scaled_ids]
        complete = len(parameters) == len(list(module.parameters(recurse=False)))
        scaled_ids.update(map(id, parameters))
        value = float(output.double().std()) if output.numel() > 1 else 1.0
        if not complete or TARGET[0] <= value <= TARGET[1] or not 0 < value < math.inf:
            return output
        factor = 2.0 ** -round(math.log2(value))
        for parameter in parameters:
            parameter.mul_(factor)
        changed += 1
        return output * factor

    def calibrated(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        nonlocal changed
        value = arguments[0]
        axes = [axis for axis in range(value.ndim) if axis != 1]
        if value.numel() > value.shape[1]:
            mean, variance = value.mean(axes), value.var(axes, correction=0)
            lives = variance > LEAST_VARIANCE
            for running, statistic in ((module.running_mean, mean), (module.running_var, variance)):
                running.copy_(torch.where(lives, statistic.bfloat16().to(running.dtype), running))
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
    """Returns by name the layers that are linear in their weights: Linear, Embedding, Conv..."""
    modules = (pair for pair in model.named_modules())
    return {
        name: module
        for name, module in modules
        if isinstance(module, _LINEAR) or type(module).__name__ == "Conv1D"
    }


@contextmanager
def _watched(model: nn.Module) -> Iterator[dict[str, list[float]]]:
    """Yields a map to which runs in this context add the standard deviations of layers' outputs.

    It maps the name of a layer to a list, in the order of the outputs. Layers without parameters
    are left out.
    """
    layers = {
        name: module
        for name, module in model.named_modules()
        if list(module.parameters(recurse=False))
    }
    names = {id(module): name for name, module in layers.items()}
    deviations: dict[str, list[float]] = {}

    def note(module: nn.Module, _: object, output: Any) -> None:
        for value in pytree.tree_leaves(output):
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 1:
                deviations.setdefault(names[id(module)], []).append(float(value.double().std()))

    with _hooked(layers, note):
        yield deviations


@contextmanager
def _hooked(layers: Mapping[str, nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module in layers.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
