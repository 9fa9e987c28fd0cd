"""Checks architectures of `architectures.py`; their names are read from standard input.

Writes a line of JSON for each. With the argument `archives`, tcc reads the program from a file of
`torch.export.save`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import tcc
import torch
import transformers
from answers import answer, brief
from architectures import CASES, ModelCase
from tcc.errors import TccError, UserError
from tcc.frontends import exported, load_model
from tcc.ir.graph.evaluate import evaluate_graph
from torch.utils import _pytree as pytree

BOUND = 1e-4  # error allowed, as a share of the largest value of each output
BIAS = 0.1
Tensors: TypeAlias = Mapping[str, torch.Tensor]
Results: TypeAlias = Callable[[Any, Tensors, Mapping[str, Any]], list[Any]]


def check(case: ModelCase, results: Results) -> tuple[str, str]:
    """Returns (outcome, reason or largest error) of a case.

    `results(model, inputs, arguments)` computes the outputs to check. The outcome is `pass`,
    `refused`, `mismatch`, `crash`, or `no model` (transformers cannot build or run the model).
    """
    torch.manual_seed(0)
    try:
        model = build(case)
        inputs = case.inputs()
        arguments = {**inputs, **case.arguments, "return_dict": True}
        with torch.no_grad():
            expected = model(**arguments)
    except Exception as error:
        return "no model", brief(error)
    try:
        outputs = results(model, inputs, arguments)
    except UserError as error:
        return "refused", brief(error)
    except TccError as error:
        return "crash", brief(error)
    return compare(tensors(expected), outputs)


def compiled_results(model: Any, inputs: Tensors, arguments: Mapping[str, Any]) -> list[Any]:
    """Compiles and runs the model with tcc; returns its outputs.

    `inputs` are the tensors among the `arguments` of forward.
    """
    with torch.no_grad():
        module = tcc.compile(model, inputs=arguments, jobs=1)
    return list(module.run({port.name: inputs[port.name] for port in module.inputs}).values())


def archived_results(model: Any, inputs: Tensors, arguments: Mapping[str, Any]) -> list[Any]:
    """Saves the model as an archive of torch.export and reads it with tcc.

    Returns the outputs that the reference evaluator computes for the graph.
    """
    with TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "model.pt2"
        torch.export.save(exported(model, arguments), path)
        graph = load_model(path)
        arrays = {value.name: inputs[value.name].numpy() for value in graph.inputs}
        return list(evaluate_graph(graph, arrays).values())


def build(case: ModelCase) -> Any:
    """Returns the model with seeded weights; biases and gains of norms are random too."""
    config = getattr(transformers, case.config)(**case.fields)
    model = getattr(transformers, case.model)(config).eval()
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            if weight.ndim == 1 and weight.is_floating_point():
                weight.add_(torch.randn_like(weight) * BIAS)
            elif not torch.isfinite(weight).all():
                weight.normal_(0, BIAS)
    return model


def tensors(value: Any) -> list[torch.Tensor]:
    return [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]


def compare(expected: list[torch.Tensor], results: list[Any]) -> tuple[str, str]:
    """Returns (`pass` or `mismatch`, reason or largest error).

    An error is a share of the output's largest value.
    """
    if len(expected) != len(results):
        return "mismatch", f"{len(results)} results, {len(expected)} are due"
    worst = 0.0
    for number, (reference, have) in enumerate(zip(expected, results, strict=True)):
        have = torch.as_tensor(have)
        if reference.shape != have.shape or reference.dtype != have.dtype:
            return "mismatch", f"result {number}: {have.dtype}{list(have.shape)}"
        if not reference.numel():
            continue
        a, b = reference.double(), have.double()
        if not torch.equal(a.isnan(), b.isnan()):
            return "mismatch", f"result {number}: NaN at other places"
        gap, size = (a - b).nan_to_num(0, 0, 0).abs().max(), a.nan_to_num(0, 0, 0).abs().max()
        worst = max(worst, float(gap / size.clamp(min=1e-30)))
    return ("pass" if worst <= BOUND else "mismatch"), f"error {worst:.1e}"


if __name__ == "__main__":
    results = archived_results if "archives" in sys.argv[1:] else compiled_results
    answer(CASES, CASES, partial(check, results=results))
