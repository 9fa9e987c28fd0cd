"""compile(): from a model to a native file, as one straight-line function."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tcc import __version__, runtime
from tcc.artifact import read_manifest
from tcc.backends.cpu.detect import detect
from tcc.backends.host import encode_program
from tcc.backends.link import c_name, link_artifact
from tcc.cpu_code import CpuCode
from tcc.debug import Timing, Trace
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.frontends.onnx_converters import CONVERTERS
from tcc.frontends.onnx_support import operator_names
from tcc.gpu_code import GpuCode
from tcc.ir.evaluate import evaluate_graph
from tcc.ir.graph import Graph, walk_nodes
from tcc.ir.index import Index, as_int
from tcc.ir.op import Array
from tcc.ir.program import steps_of
from tcc.ir.text import graph_text
from tcc.ir.verify_program import verify_program
from tcc.options import Options, read_options
from tcc.passes.layouts import Placed
from tcc.passes.lower_node import check_runnable
from tcc.passes.pipeline import run_pipeline
from tcc.passes.state import appended_rows, bind_states
from tcc.passes.traffic import traffic, unfused_bytes
from tcc.passes.winograd import constant_bytes
from tcc.runtime import Module
from tcc.target import Target, parse_target

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a compile made.  Sizes are bytes; `arena` is None where it depends on open sizes.
    `growth` is how many times the model's own weights those of the artifact take, `priced` the
    schedules whose prices were compared."""

    target: str
    ops: int
    kernels: int
    precision: str
    specialisations: int
    arena: int | None
    weights: int
    growth: float
    priced: int


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
    ops, unfused = sum(1 for _ in walk_nodes(graph)), unfused_bytes(graph)
    given = constant_bytes(graph)
    backend = (GpuCode if target.gpus else CpuCode)(target, options, given)
    with trace.stage("optimise"):
        graph = run_pipeline(graph, options.level, trace, limits=backend.limits)
        graph = bind_states(graph, options.state)
    check_runnable(graph)
    backend.check(graph)
    with trace.stage("lower"):
        lowered = backend.lower(graph)
    names = tuple(f"tcc_kernel_{n}" for n in range(len(lowered.kernels)))
    with trace.stage("generate code"):
        code = backend.generate(lowered, names)
    weights = lowered.weights
    with trace.stage("pack weights"):
        packed = [part() for part in weights.parts()]
    program = replace(lowered.program, kernels=names, scratch=code.scratch)
    verify_program(program)
    with trace.stage("link"):
        manifest = link_artifact(
            code.objects,
            encode_program(program),
            names,
            {
                **_manifest(target, options, ops),
                **code.facts,
                **_appends(graph),
                **_traffic(lowered.placed, unfused),
                "rounded": [{"weights": r.sources, "type": r.type} for r in weights.rounded],
                "steps": list(steps_of(program.body)),
            },
            packed,
            c_name(options.name or output.stem),
            output,
            target.profile.features,
            triple=target.triple,
            gpu=code.gpu,
            listings=dict(zip(names, code.listings, strict=True)) if options.keep_ir else None,
        )
    summary = Summary(
        target.text, ops, len(names), precision_text(manifest), len(options.inputs),
        manifest["arena_bytes"], weights.size, weights.size / given if given else 1.0,
        backend.priced,
    )  # fmt: skip
    return Compiled(output, summary, trace.timings)


def precision_text(manifest: Mapping[str, Any]) -> str:
    """How an artifact computes, from its manifest: `f32`, or `f32 with int8 weights`."""
    precision, weights = manifest.get("precision", "f32"), manifest.get("quantized")
    return f"{precision} with {weights} weights" if weights else str(precision)


def _manifest(target: Target, options: Options, ops: int) -> dict[str, Any]:
    """What the artifact says of itself, as far as neither kernels nor program matter."""
    return {
        "tcc": __version__,
        "target": {"text": target.text, "triple": target.triple, "cpu": target.profile.cpu},
        "precision": options.precision,
        "quantized": options.weights,
        "ops": ops,
    }


def _appends(graph: Graph) -> dict[str, Any]:
    """Inputs to which a run appends rows; `rows` is a text where it depends on open sizes."""
    rows = [
        {"input": item.name, "axis": item.axis, "rows": _number_or_text(item.rows)}
        for item in appended_rows(graph)
    ]
    return {"appends": rows}


def _traffic(placed: Placed, unfused: int | None) -> dict[str, Any]:
    """What a run moves through memory, and would move node by node; null where sizes are open."""
    found = traffic(placed)
    return {"traffic": None if found is None else asdict(found) | {"unfused": unfused}}


def _number_or_text(size: Index) -> int | str:
    known = as_int(size)
    return size.key if known is None else known


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


def onnx_operators() -> tuple[str, ...]:
    """The ONNX operators that can be imported; a star: by a body that depends on types."""
    return operator_names(CONVERTERS)
