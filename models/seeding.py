"""Seeded weights under which signals reach the outputs.

Plain random initialisation makes deep models nearly constant: biases are zero, batch-norm
statistics describe no data, attention is uniform. Here every bias is random, linear maps keep the
variance, attention scores are spread, and normalisation statistics come from seeded batches.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt

import torch
from torch import Tensor, nn

BIAS_STD = 0.2


def generator(seed: int) -> torch.Generator:
    """Returns a separate CPU generator, so that nothing depends on torch's global state."""
    return torch.Generator().manual_seed(seed)


def normal_(tensor: Tensor, std: float, rng: torch.Generator) -> None:
    """Fills a tensor with N(0, std^2) in place."""
    with torch.no_grad():
        tensor.normal_(0.0, std, generator=rng)


def uniform_(tensor: Tensor, low: float, high: float, rng: torch.Generator) -> None:
    """Fills a tensor uniformly from [low, high) in place."""
    with torch.no_grad():
        tensor.uniform_(low, high, generator=rng)


def _fan_in(module: nn.Module, weight: Tensor) -> float:
    """Returns the number of terms in one output element of a convolution or a linear map."""
    if isinstance(module, nn.ConvTranspose2d):
        stride = module.stride[0] * module.stride[1]
        return weight.shape[0] * weight[0, 0].numel() / stride
    return weight[0].numel()


def seed_convolutions(model: nn.Module, rng: torch.Generator) -> None:
    """Sets Kaiming weights and random biases of convolutions, linear maps and batch norms."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            normal_(module.weight, sqrt(2.0 / _fan_in(module, module.weight)), rng)
            if module.bias is not None:
                normal_(module.bias, BIAS_STD, rng)
        elif isinstance(module, nn.BatchNorm2d):
            uniform_(module.weight, 0.5, 1.5, rng)
            normal_(module.bias, BIAS_STD, rng)
        elif isinstance(module, nn.PReLU):
            uniform_(module.weight, 0.1, 0.4, rng)


def _round(tensor: Tensor) -> Tensor:
    """Drops the low bits, which differ between CPUs and thread counts, so that the model is the
    same."""
    return tensor.to(torch.bfloat16).to(torch.float32)


@torch.no_grad()
def calibrate_batch_norms(model: nn.Module, batch: Tensor) -> None:
    """Sets the running statistics of every batch norm to those seen on `batch`."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        norm.reset_running_stats()
    model.train()
    model(batch)
    model.eval()
    for norm in norms:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(_round(norm.running_mean))
        norm.running_var.copy_(_round(norm.running_var))


@contextmanager
def _normalising_hooks(model: nn.Module) -> Iterator[None]:
    """Rescales each convolution to unit-variance channels in forward passes within the context."""

    def normalise(module: nn.Module, _args: object, output: Tensor) -> Tensor:
        assert isinstance(module, nn.Conv2d | nn.ConvTranspose2d)
        assert module.bias is not None
        transposed = isinstance(module, nn.ConvTranspose2d)
        mean = output.mean((0, 2, 3))
        scale = _round(1.0 / output.std((0, 2, 3)))
        old, kept = module.bias.clone(), module.bias.clone()
        module.weight.mul_(scale.view((1, -1, 1, 1) if transposed else (-1, 1, 1, 1)))
        module.bias.copy_(_round((old - mean) * scale) + kept)
        shift = module.bias - old * scale
        return output * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)

    convolutions = (nn.Conv2d, nn.ConvTranspose2d)
    handles = [
        module.register_forward_hook(normalise)
        for module in model.modules()
        if isinstance(module, convolutions)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def calibrate_convolutions(model: nn.Module, batch: Tensor) -> None:
    """Gives every channel of a model without batch norm unit variance on `batch`.

    The seeded bias stays as the channel's mean, so a deep stack neither dies nor turns constant.
    """
    model.eval()
    with _normalising_hooks(model):
        model(batch)


def seed_transformer(
    model: nn.Module, rng: torch.Generator, *, embedding_std: float, bias_std: float = BIAS_STD
) -> None:
    """Sets a transformer's weights: spread norms, random biases, variance-keeping linear maps.

    Parameters outside linear, norm and embedding modules (class tokens, learned positions) get unit
    variance. The builder adds attention gains.
    """
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:  # Tied weights keep their first values.
                continue
            seen.add(id(parameter))
            if isinstance(module, nn.Embedding):
                normal_(parameter, embedding_std, rng)
            elif name == "bias":
                normal_(parameter, bias_std, rng)
            else:
                _seed_weight(module, parameter, rng)


def _seed_weight(module: nn.Module, parameter: Tensor, rng: torch.Generator) -> None:
    kind = type(module).__name__
    if "Norm" in kind:
        uniform_(parameter, 0.5, 1.5, rng)
    elif kind == "Conv1D":  # GPT-2's linear map stores its weight as [in, out]
        normal_(parameter, sqrt(1.0 / parameter.shape[0]), rng)
    elif isinstance(module, nn.Linear | nn.Conv2d):
        normal_(parameter, sqrt(1.0 / parameter[0].numel()), rng)
    else:
        normal_(parameter, 1.0, rng)


@torch.no_grad()
def scale_(tensor: Tensor, gain: float) -> None:
    """Multiplies a tensor in place."""
    tensor.mul_(gain)


@torch.no_grad()
def centre_(weight: Tensor) -> None:
    """Makes each row of a linear map's weight sum to zero, which removes a mean shared by all
    inputs."""
    weight.sub_(weight.mean(1, keepdim=True))
