"""compile(): from a model to a native file, as one straight-line function."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tcc import runtime
from tcc.artifact import read_manifest
from tcc.backends.cpu.detect import detect
from tcc.debug import Timing, Trace
from tcc.errors import InternalError, UserError
from tcc.frontends import load_model
from tcc.ir.evaluate import evaluate_graph
from tcc.ir.op import Array
from tcc.ir.text import graph_text
from tcc.options import Options, read_options
from tcc.runtime import Module
from tcc.target import Target, parse_target

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a compile made.  Sizes are bytes; `arena` is None where it depends on open sizes."""

    target: str
    ops: int
    kernels: int
    precision: str
    specialisations: int
    arena: int | None
    weights: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A finished artifact on disk, and the time its passes took."""

    path: Path
    summary: Summary
    timings: tuple[Timing, ...]


def resolve_target(options: Options) -> Target:
    """The target that the options name; raises UserError for an unknown one."""
    return parse_target(options.target, options.cpu, detect)


def compile_model(
    model: Any, options: Options, output: Path, progress: Progress | None = None
) -> Compiled:
    """Compiles `model` (a path or an onnx.ModelProto) into the artifact `output`.

    The artifact appears whole or not at all.  `progress` is called with the name of each stage.
    Raises UserError for a model or option that cannot be compiled and ToolError where no linker
    works.
    """
    target = resolve_target(options)
    trace = Trace(options.dump, progress)
    with trace.stage("import"):
        graph = load_model(model, dict(options.inputs))
    trace.dump("import", lambda: graph_text(graph))
    raise InternalError(f"nothing compiles for {target.text} yet")


def compile(
    model: Any, target: str = "cpu", *, threads: int | None = None, **options: Any
) -> Module:
    """Compiles `model` and loads the result; `Module.save` keeps it.

    `options` are the fields of `tcc.options.Options` as keywords, `threads` is as for `load`.
    Raises TccError.
    """
    chosen = read_options({"target": target, **options})
    folder = Path(mkdtemp(prefix="tcc-"))
    try:
        module = load(compile_model(model, chosen, folder / "model.so").path, threads)
    except BaseException:
        shutil.rmtree(folder)
        raise
    weakref.finalize(module, shutil.rmtree, folder)
    return module


def load(path: str | Path, threads: int | None = None) -> Module:
    """Loads an artifact; `threads` bounds its kernels' threads (None: all CPUs it may use).

    Raises UserError for a file that is no artifact, or one that this machine cannot run.
    """
    read_manifest(Path(path))  # says more of a damaged file than the system's loader
    return runtime.load(path, threads, error=UserError)


def evaluate_model(model: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The model's outputs by the reference evaluator: slow, obvious, no generated code."""
    return evaluate_graph(load_model(model), inputs)
