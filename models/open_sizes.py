"""Proves that a file with symbolic sizes equals its module at larger sizes than the example's.

A tracing exporter may write sizes of its example into the graph, as in the target of a Reshape.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import torch
from torch import nn
from torch.utils import _pytree

from models.check import Oracle, relative_error
from models.export import module_arguments
from models.inputs import Array, make_input
from models.manifest import InputSpec, ModelSpec

# Neighbouring symbols get different factors, so that sizes differ from each other.
_FACTORS = (2, 3)


def check_open_sizes(spec: ModelSpec, module: nn.Module, model: onnx.ModelProto) -> None:
    """Raises ValueError if `model` differs from `module` at larger sizes."""
    entries = _larger(spec)
    inputs = {entry.name: make_input(entry, 1) for entry in entries}
    sizes = ", ".join(f"{e.name} {'x'.join(map(str, e.shape))}" for e in entries)
    try:
        with torch.no_grad():
            want = [t.numpy() for t in _pytree.tree_leaves(module(*module_arguments(inputs)))]
    except Exception as error:
        raise ValueError(f"{spec.name} itself does not take {sizes}: {error}") from error
    try:
        got = Oracle(model).run(inputs)
    except Exception as error:
        raise ValueError(
            f"the exporter left {spec.name} no other sizes, {sizes}: {error}"
        ) from error
    if _differ(got, want, spec.tolerance):
        raise ValueError(f"the exporter wrote sizes into {spec.name}: results differ at {sizes}")


def _differ(got: Sequence[Array], want: Sequence[Array], tolerance: float) -> bool:
    if [array.shape for array in got] != [array.shape for array in want]:
        return True
    return relative_error([*map(np.float32, got)], [*map(np.float32, want)]) > tolerance


def _larger(spec: ModelSpec) -> list[InputSpec]:
    """Returns the inputs with each symbol's size two or three times that of the example."""
    names = dict.fromkeys(name for axes in spec.symbols.values() for name in axes.values())
    factors = {name: _FACTORS[n % len(_FACTORS)] for n, name in enumerate(names)}
    return [
        replace(
            entry,
            shape=tuple(
                size * factors.get(spec.symbols.get(entry.name, {}).get(axis, ""), 1)
                for axis, size in enumerate(entry.shape)
            ),
        )
        for entry in spec.inputs
    ]
