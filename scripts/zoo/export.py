"""Exports one drawn architecture: NAME.onnx and NAME.npz with its inputs, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from tcc.cli.peers.worker import write_arrays
from torch import Tensor, nn
from zoo import signals
from zoo.build import Built, build, weight_bytes
from zoo.draw import Entry

from models.export import Recipe, export_onnx

OPSET = 18


class Dead(Exception):
    """Signals do not live, also after the weights were scaled."""


class Positional(nn.Module):
    """A model by position, as the exporter wants it, that returns what a user reads of it."""

    def __init__(self, model: nn.Module, names: Sequence[str], constants: Mapping[str, Any]):
        super().__init__()
        self.model = model
        self._names, self._constants = tuple(names), dict(constants)

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self._names, arguments, strict=True))
        return tuple(results(self.model(**named, **self._constants)).values())


def results(output: Any) -> dict[str, Tensor]:
    """Logits and predictions by name; of a model that has none its first tensor."""
    if isinstance(output, Tensor):
        return {"output": output}
    if not isinstance(output, Mapping):
        return {f"output_{n}": value for n, value in enumerate(output) if _is_float(value)}
    floats = {name: value for name, value in output.items() if _is_float(value)}
    wanted = {n: v for n, v in floats.items() if n.endswith("logits") or n.startswith("pred_")}
    return wanted or dict(list(floats.items())[:1])


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def export(entry: Entry, folder: Path) -> dict[str, Any]:
    """Writes the two files and returns what the table says of them.

    Raises Dead, and whatever a library raises for a model that it cannot build, run or export.
    """
    built = build(entry)
    signals.seed_weights(built.model, 0)
    first, second = built.inputs(0), built.inputs(1)
    module = Positional(built.model, list(first), built.constants).eval()
    scaled = enlivened(module, first, second)
    with torch.no_grad():
        named = results(built.model(**first, **built.constants))
    recipe = Recipe(module, "dynamo", OPSET)
    names = [name if name not in first else f"{name}_out" for name in named]
    model = export_onnx(recipe, tuple(first.values()), list(first), names)
    _write(model, first, folder / entry.family)
    return _facts(built, first, model, scaled)


def enlivened(module: nn.Module, first: signals.Inputs, second: signals.Inputs) -> int:
    """How many layers had to be scaled for signals to live; raises Dead where that does not do."""

    @torch.no_grad()
    def call(inputs: signals.Inputs) -> Sequence[Tensor]:
        found: Sequence[Tensor] = module(*inputs.values())
        return found

    if not signals.findings(module, call, first, second):
        return 0
    scaled = signals.rescale(module, call, first)
    left = signals.findings(module, call, first, second)
    if left:
        raise Dead(f"{len(left)} signals are dead: {'; '.join(left[:2])}")
    return scaled


def _facts(
    built: Built, inputs: signals.Inputs, model: onnx.ModelProto, scaled: int
) -> dict[str, Any]:
    return {
        "weights": weight_bytes(built.model),
        "cut": built.cut,
        "scaled": scaled,
        "nodes": len(model.graph.node),
        "inputs": {name: list(value.shape) for name, value in inputs.items()},
    }


def _write(model: onnx.ModelProto, inputs: signals.Inputs, stem: Path) -> None:
    """Under other names first: what has its name is whole."""
    arrays, whole = stem.with_suffix(".part.npz"), stem.with_suffix(".part.onnx")
    write_arrays(arrays, {name: value.numpy() for name, value in inputs.items()})
    onnx.save(model, whole)
    arrays.rename(stem.with_suffix(".npz"))
    whole.rename(stem.with_suffix(".onnx"))
