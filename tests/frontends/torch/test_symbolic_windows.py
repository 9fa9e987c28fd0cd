"""Adaptive pools of symbolic sizes, and counts of data-dependent size, agree with PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tcc
import torch
import torch.nn.functional as F
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from .torch_samples import Call, export

pytestmark = pytest.mark.xdist_group("torch")

AUTO = torch.export.Dim.AUTO


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of torch itself, at export
        yield


def drawn(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


POOLS = {
    1: (
        lambda x: F.adaptive_avg_pool1d(x, 4),
        lambda x: F.adaptive_max_pool1d(x, 4),
        lambda x: F.adaptive_max_pool1d(x, 3, return_indices=True)[1],
    ),
    2: (
        lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
        lambda x: F.adaptive_avg_pool2d(x, (5, None)),
        lambda x: F.adaptive_avg_pool2d(x[0], 1),
        lambda x: F.adaptive_avg_pool2d(x.half(), (7, 5)).float(),
        lambda x: F.adaptive_max_pool2d(x, (3, 2)),
        lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True)[1],
    ),
    3: (
        lambda x: F.adaptive_avg_pool3d(x, (3, 2, 4)),
        lambda x: F.adaptive_max_pool3d(x, (3, 2, 4)),
        lambda x: F.adaptive_max_pool3d(x, (3, 2, 1), return_indices=True)[1],
    ),
}
SIZES: dict[int, list[Sequence[int]]] = {
    1: [(9,), (4,), (2,), (31,)],
    2: [(8, 9), (3, 2), (2, 12), (31, 30)],
    3: [(8, 9, 4), (3, 2, 5), (2, 12, 9)],
}


def opened(functions: Any, x: Any, axes: range) -> Any:
    """Returns the exported program of all functions, with symbolic sizes for `axes`."""
    module = Call(lambda x: [function(x) for function in functions])
    return export(module, x, shapes=(({axis: AUTO for axis in axes},),))


def compared(found: Sequence[Any], functions: Any, x: Any) -> None:
    for have, function in zip(found, functions, strict=True):
        reference = function(x)
        tolerance = 2e-3 if have.shape[-2:] == (7, 5) else 1e-5  # f16
        torch.testing.assert_close(torch.as_tensor(have), reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_adaptive_pools_of_symbolic_sizes(axes: int) -> None:
    functions, (first, *other_sizes) = POOLS[axes], SIZES[axes]
    graph = load_model(opened(functions, drawn(2, 3, *first), range(2, axes + 2)))
    for sizes in (first, *other_sizes):
        x = drawn(2, 3, *sizes)
        outputs = evaluate_graph(graph, {graph.inputs[0].name: x.numpy()})
        compared([*outputs.values()], functions, x)


def test_adaptive_pools_compile() -> None:
    functions = POOLS[2][:1] + POOLS[2][-1:]
    module = tcc.compile(opened(functions, drawn(2, 3, 8, 9), range(2, 4)), jobs=1, level=1)
    for sizes in SIZES[2]:
        x = drawn(2, 3, *sizes)
        compared(module(x), functions, x)


def test_a_bad_value_stays_in_its_window() -> None:
    functions = POOLS[2][:1]
    graph = load_model(opened(functions, drawn(1, 1, 8, 9), range(2, 4)))
    x = drawn(1, 1, 7, 9)
    x[0, 0, 1, 2] = float("nan")
    (have,) = evaluate_graph(graph, {graph.inputs[0].name: x.numpy()}).values()
    np.testing.assert_array_equal(np.isnan(have), np.isnan(functions[0](x).numpy()))


def test_counts_of_numbers() -> None:
    def counts(x: Any, w: Any) -> Any:
        return (
            torch.bincount(x), torch.bincount(x, minlength=9), torch.bincount(x, w),
            torch.bincount(x.int(), (w * 8).int()),
        )  # fmt: skip

    def given(count: int) -> Any:
        draw = torch.Generator().manual_seed(count)
        return torch.randint(0, 12, (count,), generator=draw), torch.rand(count, generator=draw)

    program = export(Call(counts), *given(5), shapes=(({0: AUTO},) * 2,))
    graph = load_model(program)
    module = tcc.compile(program, jobs=1, level=1)
    for count in (5, 40):
        x, w = given(count)
        arrays = {v.name: t.numpy() for v, t in zip(graph.inputs, (x, w), strict=True)}
        for outputs in (evaluate_graph(graph, arrays).values(), module(x, w)):
            for have, reference in zip(outputs, counts(x, w), strict=True):
                torch.testing.assert_close(torch.as_tensor(have), reference)
    for wrong in (torch.tensor([3, -1]), torch.tensor([-5, -4])):
        with pytest.raises(UserError, match="bincount counts numbers from zero on"):
            module(wrong, torch.ones(2))


def test_counts_of_no_number() -> None:
    program = export(
        Call(lambda x: torch.bincount(x, minlength=3)), torch.tensor([], dtype=torch.long)
    )
    graph = load_model(program)
    (output,) = evaluate_graph(graph, {graph.inputs[0].name: np.zeros(0, np.int64)}).values()
    np.testing.assert_array_equal(output, np.zeros(3, np.int64))
