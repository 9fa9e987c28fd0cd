"""compile(): from a model to a native file, as one straight-line function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tcc.backends.cpu.detect import detect
from tcc.debug import Timing, Trace
from tcc.errors import InternalError, UserError
from tcc.ir.op import Array
from tcc.options import Options, read_options
from tcc.target import Target, parse_target

Progress = Callable[[str], None]


class Port(Protocol):
    """One input or output: `dtype` is tcc's name of it, a size that is open is None."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int | None, ...]: ...


class Module(Protocol):
    """A loaded artifact."""

    @property
    def inputs(self) -> tuple[Port, ...]: ...
    @property
    def outputs(self) -> tuple[Port, ...]: ...
    @property
    def manifest(self) -> Mapping[str, Any]: ...
    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]: ...
    def save(self, path: str | Path) -> None: ...


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
        if isinstance(model, str | Path) and not Path(model).is_file():
            raise UserError("no such model file", where=str(model))
    raise InternalError(f"nothing compiles for {target.text} yet")


def compile(model: Any, target: str = "cpu", **options: Any) -> Module:
    """Compiles `model` and loads the result.

    `options` are the fields of `tcc.options.Options` as keywords.  Raises TccError.
    """
    chosen = read_options({"target": target, **options})
    compiled = compile_model(model, chosen, Path("model.so"))
    return load(compiled.path)


def load(path: str | Path, threads: int | None = None) -> Module:
    """Loads an artifact; `threads` bounds its kernels' threads (None: all CPUs it may use).

    Raises UserError for a file that is no artifact, or one that this machine cannot run.
    """
    if not Path(path).is_file():
        raise UserError("no such artifact", where=str(path))
    raise InternalError("nothing loads artifacts yet")


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of an artifact, read without loading its code."""
    if not path.is_file():
        raise UserError("no such artifact", where=str(path))
    raise InternalError("nothing reads artifacts yet")


def evaluate_model(model: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The model's outputs by the reference evaluator: slow, obvious, no generated code."""
    if not model.is_file():
        raise UserError("no such model file", where=str(model))
    raise InternalError("nothing evaluates models yet")
