"""Backward operators, joint programs and training steps of torch agree with eager PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tcc
import torch
import torch.nn.functional as F
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.frontends.torch.outputs import all_names
from tcc.ir.graph.evaluate import evaluate_graph
from torch.fx.experimental.proxy_tensor import make_fx

from .torch_samples import export, forward_and_backward

pytestmark = pytest.mark.xdist_group("torch")

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of torch itself, at export
        yield


def image(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def gradients(functions: list[tuple[Function, tuple[Any, ...]]]) -> Function:
    """Returns a function of the gradients of all functions for their tensors, where elements of
    results have different weights."""

    def run(*tensors: Any) -> list[Any]:
        grads, remaining = [], iter(tensors)
        for function, inputs in functions:
            leaves = [next(remaining).detach().requires_grad_() for _ in inputs]
            result = function(*leaves)
            weights = torch.arange(result.numel()).reshape(result.shape).cos() + 1.5
            grads += torch.autograd.grad((result * weights).sum(), leaves)
        return grads

    return run


def follows(functions: list[tuple[Function, tuple[Any, ...]]], shapes: Any = None) -> Any:
    """Fails unless the traced gradients equal those of eager PyTorch."""
    step, tensors = gradients(functions), [x for _, inputs in functions for x in inputs]
    mode = "real" if shapes is None else "symbolic"
    traced = make_fx(step, tracing_mode=mode)(*tensors)
    graph = load_model(export(traced, *tensors, shapes=shapes))
    agree(graph, tensors, step(*tensors))
    return graph


def agree(graph: Any, tensors: Any, wanted: Any) -> None:
    feeds = {v.name: x.numpy() for v, x in zip(graph.inputs, tensors, strict=True)}
    outputs = evaluate_graph(graph, feeds)
    assert len(outputs) == len(wanted)
    for have, reference in zip(outputs.values(), wanted, strict=True):
        scale = float(reference.abs().max())
        torch.testing.assert_close(torch.as_tensor(have), reference, rtol=1e-5, atol=1e-5 * scale)


CONVOLUTIONS: list[tuple[Function, tuple[Any, ...]]] = [
    (lambda x, w, b: F.conv1d(x, w, b, 2, 1), (image(2, 3, 10), image(4, 3, 3), image(4))),
    (lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 2), (1, 2), 2),
     (image(2, 4, 9, 8), image(6, 2, 3, 2))),
    (lambda x, w: F.conv2d(x, w, padding=1, groups=3), (image(2, 3, 6, 6), image(3, 1, 3, 3))),
    (lambda x, w: F.conv3d(x, w, stride=2), (image(1, 2, 5, 6, 5), image(3, 2, 2, 3, 2))),
    (lambda x, w, b: F.conv_transpose1d(x, w, b, 3, 1, 1),
     (image(2, 3, 5), image(3, 4, 4), image(4))),
    (lambda x, w: F.conv_transpose2d(x, w, None, 1, 1, 2, 2, 3),
     (image(2, 4, 4, 5), image(4, 2, 3, 2))),
]  # fmt: skip
POOLS: list[tuple[Function, tuple[Any, ...]]] = [
    (lambda x: F.max_pool1d(x, 3, 2, 1), (image(2, 3, 9),)),
    (lambda x: F.max_pool2d(x, (3, 2), (2, 1), 1, (1, 2), True), (image(2, 3, 9, 8),)),
    (lambda x: F.max_pool2d(x, 3, 1, 1), (image(1, 2, 4, 2),)),
    (lambda x: F.max_pool3d(x, 2, 2, 0, 1, True), (image(1, 2, 5, 4, 3),)),
    (lambda x: F.avg_pool1d(x, 3, 2, 1, True, False), (image(2, 3, 8),)),
    (lambda x: F.avg_pool2d(x, (3, 2), 2, 1, True), (image(2, 3, 8, 7),)),
    (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), (image(2, 3, 8, 7),)),
    (lambda x: F.avg_pool2d(x, 3, 1, 0, divisor_override=7), (image(2, 3, 5, 5),)),
    (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), (image(2, 3, 8, 7),)),
    (lambda x: F.adaptive_avg_pool2d(x, (9, 2)), (image(3, 4, 7),)),
    (lambda x: F.adaptive_max_pool2d(x, (3, 5)), (image(2, 3, 8, 7),)),
    (lambda x: F.adaptive_max_pool3d(x, (2, 3, 2)), (image(1, 2, 5, 4, 3),)),
]
RESIZES: list[tuple[Function, tuple[Any, ...]]] = [
    (lambda x: F.interpolate(x, 7), (image(2, 3, 4),)),
    (lambda x: F.interpolate(x, (3, 9)), (image(2, 3, 8, 4),)),
    (lambda x: F.interpolate(x, (3, 9), mode="nearest-exact"), (image(2, 3, 8, 4),)),
    (lambda x: F.interpolate(x, 7, mode="linear"), (image(2, 3, 4),)),
    (lambda x: F.interpolate(x, (3, 9), mode="bilinear"), (image(2, 3, 8, 4),)),
    (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
     (image(2, 3, 4, 5),)),
    (lambda x: F.interpolate(x, scale_factor=(2, 1, 1.5), mode="trilinear"),
     (image(1, 2, 3, 2, 4),)),
    (lambda x: F.interpolate(x, (7, 3), mode="bicubic"), (image(2, 3, 4, 5),)),
    (lambda x: F.interpolate(x, (3, 2), mode="bilinear", antialias=True), (image(2, 3, 7, 5),)),
    (lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"), (image(2, 3, 4, 5),)),
]  # fmt: skip
MASK = image(4, 4) > -1
LAYERS: list[tuple[Function, tuple[Any, ...]]] = [
    (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (image(2, 3, 4, 5),) * 3),
    (lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
     (image(1, 2, 4, 5),) * 2),
    (lambda q: F.scaled_dot_product_attention(q, q, q, MASK, scale=0.3),
     (image(1, 2, 4, 5),)),
    (lambda x: F.silu(x) + F.mish(x) + F.softshrink(x) + F.hardshrink(x), (image(4, 5),)),
    (lambda v, g: torch._weight_norm(v, g, 1), (image(3, 4, 5), image(1, 4, 1))),
    (lambda x: torch.linalg.det(x) + torch.linalg.slogdet(x.mT)[1], (image(2, 3, 3),)),
    (lambda x: torch.linalg.solve(x, x.mT.abs()), (image(3, 3),)),
]  # fmt: skip


@pytest.mark.parametrize(
    "functions", [CONVOLUTIONS, POOLS, RESIZES, LAYERS], ids=["conv", "pool", "resize", "layer"]
)
def test_gradients(functions: Any) -> None:
    follows(functions)


def test_gradients_for_batches_of_any_size() -> None:
    functions: list[tuple[Function, tuple[Any, ...]]] = [
        (lambda x, w: F.conv2d(x, w, stride=2, padding=1), (image(3, 4, 8, 8), image(5, 4, 3, 3))),
        (lambda x: F.max_pool2d(x, 2), (image(3, 4, 8, 8),)),
    ]
    tensors = [x for _, inputs in functions for x in inputs]
    rows = [{0: torch.export.Dim.AUTO} if x.shape[0] == 3 else None for x in tensors]
    graph = follows(functions, shapes=tuple(rows))
    again = [torch.cat([x, x[:2] * 0.5]) if x.shape[0] == 3 else x for x in tensors]
    agree(graph, again, gradients(functions)(*again))


def test_a_bad_value_reaches_only_its_readers() -> None:
    """A NaN in one gradient of a resize or an adaptive pool reaches only the elements that it
    reaches in torch."""
    x, at = image(1, 1, 6, 5), torch.zeros(1, 1, 4, 7)
    at[0, 0, 1, 2] = float("nan")

    def step(x: Any, at: Any) -> list[Any]:
        leaf = x.detach().requires_grad_()
        results = [
            F.interpolate(leaf, (4, 7), mode="bilinear"),
            F.interpolate(leaf, (4, 7)),
            F.adaptive_avg_pool2d(leaf, (4, 7)),
        ]
        return [torch.autograd.grad(result, leaf, at)[0] for result in results]

    graph = load_model(export(make_fx(step)(x, at), x, at))
    feeds = {v.name: t.numpy() for v, t in zip(graph.inputs, (x, at), strict=True)}
    for have, reference in zip(evaluate_graph(graph, feeds).values(), step(x, at), strict=True):
        np.testing.assert_array_equal(np.isnan(have), np.isnan(reference.numpy()))


# ---- joint programs ------------------------------------------------------------------------------


class Network(torch.nn.Module):
    """A small CNN; `forward` returns the loss and the output from which the loss is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 6, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(6)
        self.second = torch.nn.Conv2d(6, 8, 3, stride=2, groups=2)
        self.last = torch.nn.Linear(8 * 4, 5)

    def forward(self, x: Any, y: Any) -> Any:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = F.interpolate(F.silu(self.second(x)), scale_factor=2, mode="bilinear")
        logits = self.last(F.adaptive_avg_pool2d(x, 2).flatten(1))
        return {"loss": F.cross_entropy(logits, y), "logits": logits.detach()}


def network() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return Network().train()


def test_a_joint_program_gives_its_loss_and_gradients(tmp_path: Path) -> None:
    net, x, y = network(), image(2, 3, 12, 12), torch.tensor([4, 1])
    start = {name: value.numpy().copy() for name, value in net.named_buffers()}
    joint = forward_and_backward(torch.export.export(net, (x, y), strict=False))
    torch.export.save(joint, tmp_path / "m.pt2")
    references = net(x, y)
    references["loss"].backward()
    names = [f"{name}.grad" for name, _ in net.named_parameters()]
    graphs = [load_model(model) for model in (joint, tmp_path / "m.pt2")]
    for graph in graphs:
        assert [v.name for v in graph.outputs][: len(names) + 2] == ["loss", "logits", *names]
    outputs = evaluate_graph(graphs[1], start | {"x": x.numpy(), "y": y.numpy()})
    due = {f"{name}.grad": value.grad for name, value in net.named_parameters()}
    due |= {"loss": references["loss"].detach(), "logits": references["logits"]}
    due |= {f"{name}.updated": value for name, value in net.named_buffers()}
    assert due.keys() == outputs.keys()
    scale = max(float(reference.abs().max()) for name, reference in due.items() if "grad" in name)
    for name, reference in due.items():
        torch.testing.assert_close(
            torch.as_tensor(outputs[name]), reference, rtol=1e-5, atol=1e-5 * scale
        )


def test_gradients_of_inputs_have_names() -> None:
    def loss(x: Any) -> Any:
        return F.avg_pool2d(x, 2).square().sum()

    x = image(1, 2, 4, 4).requires_grad_()
    program = torch.export.export(_AsModule(loss), (x,), strict=False)
    graph = load_model(forward_and_backward(program))
    assert [v.name for v in graph.outputs] == ["loss", "x.grad"]
    (reference,) = torch.autograd.grad(loss(x), x)
    outputs = evaluate_graph(graph, {"x": x.detach().numpy()})
    torch.testing.assert_close(torch.as_tensor(outputs["x.grad"]), reference)


class _AsModule(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def test_results_that_the_description_lacks_are_refused() -> None:
    kinds = [("loss_output", ""), ("gradient_to_parameter", "w")]
    assert all_names(kinds, ["output"], ["p_w"]) == ("loss", "w.grad")
    for kinds, user, why in (
        ([("user_output", "")] * 2, ["a"], "more results"),
        ([("user_output", "")], ["a", "b"], "fewer results"),
        ([("token", "")], ["a"], "kind token"),
    ):
        with pytest.raises(ValueError, match=why):
            all_names(kinds, user, [])


# ---- training ------------------------------------------------------------------------------------


def test_steps_of_a_small_network_follow_eager_pytorch() -> None:
    """In each of twenty SGD steps, tcc and PyTorch start from their own previous parameters."""
    net = network()
    x, y = image(4, 3, 12, 12), torch.tensor([4, 1, 0, 2])
    buffers = {name: value.clone() for name, value in net.named_buffers()}

    def step(parameters: Any, x: Any, y: Any) -> Any:
        parameters_now = {
            name: value.detach().requires_grad_() for name, value in parameters.items()
        }
        buffers_now = {name: value.clone() for name, value in buffers.items()}
        loss = torch.func.functional_call(net, parameters_now | buffers_now, (x, y))["loss"]
        slopes = torch.autograd.grad(loss, list(parameters_now.values()))
        pairs = zip(parameters_now.items(), slopes, strict=True)
        return {name: value - 0.1 * slope for (name, value), slope in pairs}, loss

    start = {name: value.detach().clone() for name, value in net.named_parameters()}
    module = tcc.compile(make_fx(step)(start, x, y), inputs=(start, x, y), jobs=1, level=1)
    references, results = dict(start), dict(start)
    for _ in range(20):
        stepped, loss = step(references, x, y)
        references = {name: value.detach() for name, value in stepped.items()}
        *values, have = module(results, x, y)
        results = dict(zip(start, values, strict=True))
        torch.testing.assert_close(have, loss.detach(), rtol=1e-5, atol=1e-5)
    assert max(float((references[name] - start[name]).abs().max()) for name in start) > 1e-2
    for name, reference in references.items():
        torch.testing.assert_close(results[name], reference, rtol=1e-5, atol=1e-5, msg=name)


def test_operators_of_gradients_that_are_missing_are_named() -> None:
    def step(x: Any) -> Any:
        leaf = x.detach().requires_grad_()
        grid = torch.zeros(1, 2, 2, 2)
        return torch.autograd.grad(F.grid_sample(leaf, grid, align_corners=False).sum(), leaf)

    x = image(1, 2, 4, 4)
    with pytest.raises(UserError, match="grid_sampler_2d_backward"):
        load_model(export(make_fx(step)(x), x))
