"""Exports a drawn architecture: NAME.onnx, and NAME.npz with its inputs.

Either both files are complete, or neither exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from tcc.runtime.worker import write_arrays
from torch import Tensor, nn
from zoo import signals
from zoo.build import BuiltModel, build, weight_bytes
from zoo.draw import Entry

from models.export import Recipe, export_onnx

OPSET = 18


class Dead(Exception):
    """Raised if signals of a model vanish or explode even after its weights were scaled.

    `signals.findings` says when a signal counts as dead.
    """


class PositionalModel(nn.Module):
    """A model that takes its inputs by position, as torch's exporter needs it.

    `names` are its inputs and `constants` its remaining arguments. It returns the tensors of
    `results`.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], constants: Mapping[str, Any]):
        super().__init__()
        self.model = model
        self._names, self._constants = tuple(names), dict(constants)

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        keyword_arguments = dict(zip(self._names, arguments, strict=True))
        return tuple(results(self.model(**keyword_arguments, **self._constants)).values())


def results(output: Any) -> dict[str, Tensor]:
    """Returns the tensors to compare from a model's output, by name.

    They are the logits and predictions, or the first float tensor if there are none. If the output
    has no names, they are all its float tensors.
    """
    if isinstance(output, Tensor):
        return {"output": output}
    if not isinstance(output, Mapping):
        return {f"output_{n}": value for n, value in enumerate(output) if _is_float(value)}
    floats = {name: value for name, value in output.items() if _is_float(value)}
    predictions = {n: v for n, v in floats.items() if n.endswith("logits") or n.startswith("pred_")}
    return predictions or dict(list(floats.items())[:1])


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def export(entry: Entry, folder: Path) -> dict[str, Any]:
    """Writes FAMILY.onnx and FAMILY.npz (its inputs) to `folder`; returns figures for the table.

    Raises Dead, and any error of a library that cannot build, run or export the model.
    """
    candidate = build(entry)
    signals.seed_weights(candidate.model, 0)
    first, second = candidate.inputs(0), candidate.inputs(1)
    module = PositionalModel(candidate.model, list(first), candidate.constants).eval()
    scaled = enlivened(module, first, second)
    with torch.no_grad():
        outputs = results(candidate.model(**first, **candidate.constants))
    recipe = Recipe(module, "dynamo", OPSET)
    names = [name if name not in first else f"{name}_out" for name in outputs]
    model = export_onnx(recipe, tuple(first.values()), list(first), names)
    _write(model, first, folder / entry.family)
    return _facts(candidate, first, model, scaled)


def enlivened(module: nn.Module, first: signals.Inputs, second: signals.Inputs) -> int:
    """Scales the layers of `module` if its signals are dead; returns the number of scaled layers.

    `first` and `second` are two draws of inputs. Raises Dead if the signals stay dead.
    """

    @torch.no_grad()
    def call(inputs: signals.Inputs) -> Sequence[Tensor]:
        outputs: Sequence[Tensor] = module(*inputs.values())
        return outputs

    if not signals.findings(module, call, first, second):
        return 0
    scaled = signals.rescale(module, call, first)
    problems = signals.findings(module, call, first, second)
    if problems:
        raise Dead(f"{len(problems)} signals are dead: {'; '.join(problems[:2])}")
    return scaled


def _facts(
    candidate: BuiltModel, inputs: signals.Inputs, model: onnx.ModelProto, scaled: int
) -> dict[str, Any]:
    return {
        "weights": weight_bytes(candidate.model),
        "cut": candidate.reductions,
        "scaled": scaled,
        "nodes": len(model.graph.node),
        "inputs": {name: list(value.shape) for name, value in inputs.items()},
    }


def _write(model: onnx.ModelProto, inputs: signals.Inputs, stem: Path) -> None:
    """Writes STEM.onnx and STEM.npz under temporary names, then renames the complete files."""
    partial_arrays, partial_model = stem.with_suffix(".part.npz"), stem.with_suffix(".part.onnx")
    write_arrays(partial_arrays, {name: value.numpy() for name, value in inputs.items()})
    onnx.save(model, partial_model)
    partial_arrays.rename(stem.with_suffix(".npz"))
    partial_model.rename(stem.with_suffix(".onnx"))
