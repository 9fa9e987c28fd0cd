"""Turns a seeded torch module into a clean, reproducible ONNX model."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import onnx
import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a builder returns: the module and how users would export it, in eval mode.

    `exporter` is torch's "dynamo" or "torchscript" exporter.  `keep_batch_norm` (torchscript only)
    leaves batch norms as nodes, as many published files do, instead of folding them.
    """

    module: nn.Module
    exporter: Literal["dynamo", "torchscript"]
    opset: int
    keep_batch_norm: bool = False


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporters' chatter: deprecations and notes on their own internals."""
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
    symbol: str,
) -> onnx.ModelProto:
    modes = torch.onnx.TrainingMode
    stream: Any = BytesIO()  # taken, though torch annotates only paths
    torch.onnx.export(
        recipe.module,
        args,
        stream,
        dynamo=False,
        opset_version=recipe.opset,
        input_names=list(inputs),
        output_names=list(outputs),
        training=modes.PRESERVE if recipe.keep_batch_norm else modes.EVAL,
        dynamic_axes={name: {0: symbol} for name in (*inputs, *outputs)} if symbol else None,
    )
    return onnx.load_model_from_string(stream.getvalue())


def _dynamo(
    recipe: Recipe,
    args: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    symbol: str,
) -> onnx.ModelProto:
    batch = {0: torch.export.Dim(symbol)} if symbol else {}
    batches = [[batch] * len(a) if isinstance(a, list) else batch for a in args]
    program = torch.onnx.export(
        recipe.module,
        args,
        dynamo=True,
        verbose=False,
        opset_version=recipe.opset,
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_shapes=batches if symbol else None,
    )
    assert program is not None
    return program.model_proto


def _strip(model: onnx.ModelProto) -> None:
    """Removes what depends on where and when the export ran (stack traces, paths)."""
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


def export_onnx(
    recipe: Recipe,
    args: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    symbol: str = "",
) -> onnx.ModelProto:
    """Exports with the recipe's exporter; names the graph's inputs and outputs as given.

    `args` are the positional example arguments of the module, batch included.  All sizes are fixed
    but the first dimension of every input and output where `symbol` names it.
    The result holds its weights and nothing of the place it was built in, and passes the ONNX
    checker; raises ValueError when the exporter changed the names asked for.
    """
    export = _dynamo if recipe.exporter == "dynamo" else _torchscript
    recipe.module.eval()
    with _quiet(), torch.no_grad():
        model = export(recipe, args, inputs, outputs, symbol)
    _strip(model)
    onnx.checker.check_model(model)
    got = [value.name for value in model.graph.input], [value.name for value in model.graph.output]
    if got != (list(inputs), list(outputs)):
        raise ValueError(f"exported inputs and outputs are {got}")
    return model
