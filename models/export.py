"""Turns a seeded torch module into a clean, reproducible ONNX model."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from types import MappingProxyType
from typing import Any, Literal

import onnx
import torch
from torch import nn

from models.inputs import Array
from models.manifest import Symbols


@dataclass(frozen=True, slots=True)
class Recipe:
    """A builder's result: the module in eval mode, and the way in which users would export it.

    `exporter` is torch's "dynamo" or "torchscript" exporter. `keep_batch_norm` (torchscript only)
    leaves batch norms as nodes, as many published files do, instead of folding them.
    """

    module: nn.Module
    exporter: Literal["dynamo", "torchscript"]
    opset: int
    keep_batch_norm: bool = False


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporters' deprecation warnings and notes about their own internals."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _torchscript(
    recipe: Recipe,
    args: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    symbols: Symbols,
) -> onnx.ModelProto:
    modes = torch.onnx.TrainingMode
    stream: Any = BytesIO()  # Torch accepts a stream, although its annotation allows only paths.
    torch.onnx.export(
        recipe.module,
        args,
        stream,
        dynamo=False,
        opset_version=recipe.opset,
        input_names=list(inputs),
        output_names=list(outputs),
        training=modes.PRESERVE if recipe.keep_batch_norm else modes.EVAL,
        dynamic_axes={name: dict(axes) for name, axes in symbols.items()},
    )
    return onnx.load_model_from_string(stream.getvalue())


def _axes(symbols: Symbols, name: str) -> dict[int, str]:
    return dict(symbols.get(name, {}))


def _dynamo(
    recipe: Recipe,
    args: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    symbols: Symbols,
) -> onnx.ModelProto:
    names = iter(inputs)
    shapes = [
        [_axes(symbols, next(names)) for _ in a]
        if isinstance(a, list)
        else _axes(symbols, next(names))
        for a in args
    ]
    program = torch.onnx.export(
        recipe.module,
        args,
        dynamo=True,
        verbose=False,
        opset_version=recipe.opset,
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_shapes=shapes if symbols else None,
    )
    assert program is not None
    return program.model_proto


def _strip(model: onnx.ModelProto) -> None:
    """Removes stack traces, paths and versions, which depend on where and when the export ran."""
    model.doc_string = ""
    model.producer_version = ""
    del model.metadata_props[:]
    graphs = [model.graph, *model.functions]
    for graph in graphs:
        graph.doc_string = ""
        del graph.metadata_props[:]
        for item in [*graph.node, *graph.value_info]:
            item.doc_string = ""
            del item.metadata_props[:]
    for item in [*model.graph.input, *model.graph.output, *model.graph.initializer]:
        item.doc_string = ""
        del item.metadata_props[:]


def module_arguments(inputs: Mapping[str, Array]) -> tuple[Any, ...]:
    """Returns the arguments in the module's order; inputs named x.0, x.1, ... form one list."""
    arguments: list[Any] = []
    lists: dict[str, list[torch.Tensor]] = {}
    for name, array in inputs.items():
        stem, dot, _ = name.partition(".")
        tensor = torch.from_numpy(array)
        if not dot:
            arguments.append(tensor)
            continue
        if stem not in lists:
            lists[stem] = []
            arguments.append(lists[stem])
        lists[stem].append(tensor)
    return tuple(arguments)


def export_onnx(
    recipe: Recipe,
    args: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    symbols: Symbols = MappingProxyType({}),
) -> onnx.ModelProto:
    """Exports a module with the recipe's exporter, and names the graph's inputs and outputs.

    `args` are the positional example arguments of the module, batch included. `symbols` names the
    symbolic sizes; all other sizes are fixed.

    The result holds its weights, depends on no path, and passes the ONNX checker. Raises ValueError
    when the exporter changed the names.
    """
    export = _dynamo if recipe.exporter == "dynamo" else _torchscript
    recipe.module.eval()
    with _quiet(), torch.no_grad():
        model = export(recipe, args, inputs, outputs, symbols)
    _strip(model)
    onnx.checker.check_model(model)
    got = [value.name for value in model.graph.input], [value.name for value in model.graph.output]
    if got != (list(inputs), list(outputs)):
        raise ValueError(f"exported inputs and outputs are {got}")
    return model
