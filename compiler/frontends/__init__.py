"""Importers: models of other frameworks to graphs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from tcc.budgets import BUDGETS, Budgets
from tcc.errors import UserError
from tcc.file_kind import GGUF, begins_with
from tcc.frontends.inputs import Shapes
from tcc.frontends.onnx.importer import import_model
from tcc.frontends.onnx.reader import read_model
from tcc.frontends.rounding import Rounding
from tcc.frontends.torch.archive import read_archive
from tcc.frontends.torch.calls import TorchProgram
from tcc.frontends.torch.importer import import_program
from tcc.frontends.torch.inputs import call_form
from tcc.frontends.torch.support import check_calls, missing_calls
from tcc.frontends.weights.checkpoint import Checkpoint
from tcc.frontends.weights.folder import read_folder
from tcc.frontends.weights.gguf_file import read_gguf
from tcc.frontends.weights.importer import import_checkpoint
from tcc.ir.graph import Graph
from tcc.ir.op import Array, NamedArrays
from tcc.ir.types import F32, DType

Model: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | Any"
Called: TypeAlias = tuple[Graph, list[Any] | None]


_DECOMPOSE = "save program.run_decompositions(), which has torch's smaller operators alone"
_NO_TORCH = "install torch, which takes larger operators apart, or " + _DECOMPOSE


def load_model(
    model: Model,
    inputs: Shapes | None = None,
    *,
    allow_pickle: bool = False,
    budgets: Budgets = BUDGETS,
    rounding: Rounding | None = None,
) -> Graph:
    """Returns the graph of a model; `load_called` explains the arguments."""
    return load_called(model, inputs, allow_pickle, budgets, rounding)[0]


def load_called(
    model: Model,
    inputs: Shapes | None = None,
    allow_pickle: bool = False,
    budgets: Budgets = BUDGETS,
    rounding: Rounding | None = None,
    symbols: Collection[str] = (),
) -> Called:
    """Returns the graph of a model, and the form in which callers may nest its inputs
    (`call_form`).

    The form is None if callers may not nest them.

    A model is the path of an ONNX file, of a .pt2 archive, of a GGUF file, or of a folder of
    Hugging Face; an ONNX protobuf; or a `torch.export.ExportedProgram`. Archives are read without
    unpickling anything, unless `allow_pickle` has torch read them. An archive needs torch only if
    it has an operator without a converter.

    `inputs` gives inputs their shapes, by name: a size fixes a dimension, a name makes it a symbol.
    `rounding` rounds the weights of an archive. `symbols` are sizes that the user names elsewhere:
    "batch" gives a language model a batch of texts. Raises `UserError` where the model cannot be
    read or used; the error names every unsupported operator.
    """
    if isinstance(model, str | os.PathLike) and os.fspath(model).endswith(".pt2"):
        return _import_archive(os.fspath(model), inputs, allow_pickle, rounding)
    if _is_of_torch(model, "ExportedProgram"):
        return _import_exported(model, inputs)
    if is_torch_module(model):
        raise UserError(
            "a torch.nn.Module has no inputs to export it with",
            hint="give example inputs: tcc.compile(module, inputs=(x,))",
        )
    if (checkpoint := _checkpoint(model)) is not None:
        return import_checkpoint(checkpoint, inputs, symbols), None
    return import_model(read_model(model), inputs, budgets), None


def assets_of(model: Model) -> Mapping[str, bytes]:
    """Returns the files beside a model that its users need, such as a tokenizer, by name.

    Models of ONNX and of torch have none. Raises `UserError` like `load_called`.
    """
    checkpoint = _checkpoint(model)
    return {} if checkpoint is None else checkpoint.assets()


def _checkpoint(model: Model) -> Checkpoint | None:
    """Returns the contents of a GGUF file or of a folder, or None for another model."""
    if not isinstance(model, str | os.PathLike):
        return None
    path = Path(model)
    if path.suffix == ".safetensors":
        raise UserError(
            "weights alone are no model",
            where=path,
            why="the file config.json beside them says what they mean",
            hint=f"name the folder: {path.parent}",
        )
    if path.is_dir():
        return read_folder(path)
    return read_gguf(path) if path.suffix == ".gguf" or begins_with(path, GGUF) else None


def is_torch_module(model: Any) -> bool:
    """True if `model` is a `torch.nn.Module`; the check does not import torch."""
    return _is_of_torch(model, "Module")


def exported(module: Any, inputs: Any, dynamic_shapes: Any = None) -> Any:
    """Exports a module for example inputs, as a `torch.export.ExportedProgram`.

    `inputs` is a tuple, or a dict by name.  `dynamic_shapes` names the symbolic sizes, as for
    `torch.export.export`.

    Raises `UserError` where torch cannot export the module.
    """
    return _torch("exported").exported(module, inputs, dynamic_shapes)


def captured(module: Any, examples: Sequence[Any], compile: Callable[[Any], Any]) -> Any:
    """Returns a callable for a graph that torch.compile captured.

    The callable exports the graph as a `torch.export.ExportedProgram`, has `compile` compile it,
    and runs the result.
    """
    return _torch("capture").Captured(module, examples, compile)


def _is_of_torch(model: Any, name: str) -> bool:
    kinds = type(model).__mro__
    return any(k.__name__ == name and k.__module__.startswith("torch.") for k in kinds)


def replayed(path: str, rounding: Rounding) -> Callable[[NamedArrays], dict[str, Array]]:
    """Returns a function that runs an archive's calls in torch, with rounded operands.

    The function takes inputs by name. It returns the results by their numbers (`"0"`, `"1"`, ...),
    and the new value of an updated input as `NAME.updated`. Nothing of the file is unpickled or
    evaluated. Raises `UserError` for calls that could not be imported.
    """
    program = _runnable(path)
    replay: Callable[[NamedArrays], dict[str, Array]] = _torch("replay").replayed(program, rounding)
    return replay


def compiled_by_torch(
    path: str, arrays: NamedArrays, threads: int
) -> Callable[[], dict[str, Array]]:
    """Returns a function that runs an archive on `arrays`, its inputs by name, with torch.compile.

    The function returns the results by their numbers (`"0"`, `"1"`, ...). `threads` bounds torch's
    threads. Nothing of the file is unpickled or evaluated. Raises `UserError` for calls that could
    not be imported.
    """
    compile = _torch("inductor").compiled
    run_once: Callable[[], dict[str, Array]] = compile(_runnable(path), arrays, threads)
    return run_once


def _runnable(path: str) -> TorchProgram:
    """Returns the program of an archive; raises `UserError` unless torch may run all its calls."""
    program = read_archive(path)
    check_calls(program.block, _DECOMPOSE, _torch("retrace").is_traceable)
    return program


def _with_rounded_weights(program: TorchProgram, rounding: Rounding) -> TorchProgram:
    """Returns the program with its weights rounded."""

    def contents(name: str) -> tuple[Array, DType]:
        array, dtype = program.contents(name)
        is_weight = dtype is F32 and array.ndim > 1
        return rounding.weight([name], array, -1) if is_weight else array, dtype

    return replace(program, contents=contents)


def _import_archive(
    path: str, inputs: Shapes | None, allow_pickle: bool, rounding: Rounding | None
) -> Called:
    if allow_pickle:
        return _import_exported(_torch("exported").read_with_torch(path), inputs)
    program = read_archive(path)
    if rounding is not None:
        program = _with_rounded_weights(program, rounding)
    form = call_form(program)
    if missing_calls(program.block):
        if find_spec("torch") is None:
            check_calls(program.block, _NO_TORCH)
        retrace = _torch("retrace")
        check_calls(program.block, _DECOMPOSE, retrace.is_traceable)
        program = retrace.retraced(program)
        check_calls(program.block)
    return import_program(program, inputs), form


def _import_exported(program: Any, inputs: Shapes | None) -> Called:
    exporter = _torch("exported")
    described = exporter.described(exporter.decomposed(program))
    check_calls(described.block)
    return import_program(described, inputs), call_form(described)


def _torch(module: str) -> Any:
    """Imports a module of the torch importer on first use, because torch is optional."""
    return import_module(f"tcc.frontends.torch.{module}")
