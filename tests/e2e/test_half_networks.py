"""Float16 networks round once per operator, as PyTorch does, and no more often."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tcc
import torch

pytestmark = pytest.mark.xdist_group("torch")


def layers() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        sizes = ((1, 48, 10, 5), (48, 48, 3, 2), (48, 48, 3, 2))
        return [torch.nn.Conv1d(*size).half() for size in sizes]


def test_operators_of_f16_round_their_results_alone() -> None:
    """The float64 reference rounds the result of each convolution, norm and GELU to f16."""
    convolutions, norm, gelu = layers(), torch.nn.GroupNorm(48, 48).half(), torch.nn.GELU()
    parts = [part for layer in convolutions for part in (layer, norm, gelu)]
    x = torch.randn(1, 1, 1200, generator=torch.Generator().manual_seed(6)).half()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # warnings of torch itself, at export
        module = tcc.compile(torch.nn.Sequential(*parts).eval(), inputs=(x,), jobs=1, level=1)
        output = module(x).double()
        exact = rounded = x.double()
        for part in parts:
            part.double()
            exact, rounded = part(exact), part(rounded).half().double()
    size = exact.abs().max()
    due, have = ((value - exact).square().mean().sqrt() / size for value in (rounded, output))
    assert np.finfo(np.float16).eps / 16 < due < np.finfo(np.float16).eps
    assert have < 1.25 * due
