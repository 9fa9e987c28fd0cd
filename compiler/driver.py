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
from tcc.backends.cpu.compile import compile_kernels
from tcc.backends.cpu.detect import detect
from tcc.backends.host import encode_program
from tcc.backends.link import c_name, link_artifact
from tcc.debug import Timing, Trace
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.frontends.onnx_converters import CONVERTERS
from tcc.frontends.onnx_support import operator_names
from tcc.ir.evaluate import evaluate_graph
from tcc.ir.graph import Graph, walk_nodes
from tcc.ir.index import Index, as_int
from tcc.ir.op import Array
from tcc.ir.program import steps_of
from tcc.ir.text import graph_text
from tcc.ir.types import DTYPES
from tcc.ir.verify_program import verify_program
from tcc.options import Options, read_options
from tcc.passes.choose_layouts import choose_layouts
from tcc.passes.in_place import update_in_place
from tcc.passes.layouts import Placed
from tcc.passes.lower_graph import KernelTable, lower_program, place_graph
from tcc.passes.lower_node import check_runnable, lower_node
from tcc.passes.pipeline import run_pipeline
from tcc.passes.plan_kernels import Bound, KernelPlanner
from tcc.passes.plan_memory import plan_memory
from tcc.passes.precision import Precision
from tcc.passes.share_halos import share_halos
from tcc.passes.state import appended_rows, bind_states
from tcc.passes.thin import thinned
from tcc.passes.traffic import traffic, unfused_bytes
from tcc.passes.winograd import Limits, constant_bytes
from tcc.passes.winograd_price import RegionPrices
from tcc.runtime import Module
from tcc.schedule.choose import Registers
from tcc.schedule.cost import Pricer
from tcc.schedule.machine import Machine, machine_for
from tcc.schedule.machine_file import machine_digest, read_machine
from tcc.schedule.schedule import Schedule
from tcc.schedule.storage import most_uses
from tcc.schedule.work import contraction_flops
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


def resolve_machine(options: Options, target: Target) -> Machine:
    """The constants that schedules are chosen by: of the file that the options name, else the
    shipped ones of the target's processor.

    Raises UserError for a file that is damaged, or describes a machine with other vectors.
    """
    if options.machine is None:
        return machine_for(target.profile)
    machine = read_machine(options.machine)
    profile = target.profile
    if (machine.lanes, machine.registers) != (profile.lanes(32), profile.vector_registers):
        raise UserError(
            "the machine file is for a processor with other vectors",
            where=f"--machine {options.machine}",
            why=f"it has {machine.registers} vectors of {machine.lanes} f32, {profile.cpu} has "
            f"{profile.vector_registers} of {profile.lanes(32)}",
            hint="calibrate on such a machine, or choose its processor with --cpu",
        )
    return machine


def compile_model(
    model: Any, options: Options, output: Path, progress: Progress | None = None
) -> Compiled:
    """Compiles `model` (a path or an onnx.ModelProto) into the artifact `output`.

    The artifact appears whole or not at all.  `progress` is called with the name of each stage.
    Raises UserError for a model or option that cannot be compiled and ToolError where no linker
    works.
    """
    target = resolve_target(options)
    machine = resolve_machine(options, target)
    trace = Trace(options.dump, progress)
    with trace.stage("import"):
        graph = load_model(model, dict(options.inputs))
    trace.dump("import", lambda: graph_text(graph))
    ops, unfused = sum(1 for _ in walk_nodes(graph)), unfused_bytes(graph)
    given = constant_bytes(graph)
    with trace.stage("optimise"):
        limits = winograd_limits(target, machine, options, given)
        graph = run_pipeline(graph, options.level, trace, limits=limits)
        graph = bind_states(graph, options.state)
    check_runnable(graph)
    with trace.stage("lower"):
        precision = _precision(options, target, machine, given)
        planner = schedule_planner(machine, given if options.level >= 2 else None)
        placed = place_graph(graph, precision, registers=planner.registers)
        placed = thinned(choose_layouts(placed, planner, placed.graph.constants))
        program, kernels, weights = lower_program(placed, planner, lower_node, precision)
        program, tiles = update_in_place(program, kernels.bounds)
        program = plan_memory(share_halos(program))
    names = tuple(f"tcc_kernel_{n}" for n in range(len(kernels.bounds)))
    with trace.stage("generate code"):
        code = compile_kernels(tiles, names, target, options.jobs)
    with trace.stage("pack weights"):
        packed = [part() for part in weights.parts()]
    program = replace(program, kernels=names, scratch=code.scratch)
    verify_program(program)
    with trace.stage("link"):
        manifest = link_artifact(
            code.objects,
            encode_program(program),
            names,
            {
                **_manifest(target, machine, options, ops, kernels, names, weights.size),
                **_appends(graph),
                **_traffic(placed, unfused),
                "rounded": [{"weights": r.sources, "type": r.type} for r in weights.rounded],
                "steps": list(steps_of(program.body)),
            },
            packed,
            c_name(options.name or output.stem),
            output,
            target.profile.features,
            triple=target.triple,
            listings=dict(zip(names, code.listings, strict=True)) if options.keep_ir else None,
        )
    summary = Summary(
        target.text, ops, len(names), precision_text(manifest), len(options.inputs),
        manifest["arena_bytes"], weights.size, weights.size / given if given else 1.0,
        planner.priced,
    )  # fmt: skip
    return Compiled(output, summary, trace.timings)


def schedule_planner(machine: Machine, constants: int | None) -> KernelPlanner:
    """A planner that prices schedules, for a model with so many bytes of constants; None: without
    prices."""
    return KernelPlanner(
        Registers(
            machine.lanes,
            machine.registers,
            machine.l2.size,
            machine.cores,
            machine.fmas,
            machine.loads,
            machine.fma_latency,
            machine.l1,
        ),
        None if constants is None else Pricer(machine, constants),
    )


def winograd_limits(
    target: Target, machine: Machine, options: Options, constants: int
) -> Limits | None:
    """What bounds algorithms that trade rounding for speed, in a model with so many bytes of
    constants; None where they are off."""
    if options.numerics == "strict":
        return None
    direct = 2.0 if options.precision == "bf16" and target.profile.multiplies_pairs else 1.0
    # As large as the constants may become: they come from memory where that is what forms cost.
    planner = schedule_planner(machine, round(constants * options.weight_growth))
    return Limits(RegionPrices(planner, direct), options.weight_growth)


def _precision(options: Options, target: Target, machine: Machine, constants: int) -> Precision:
    bits = {None: 0, "int8": 8, "int4": 4}[options.weights]
    floats = DTYPES[options.precision]
    uses = most_uses(machine, floats, constants)
    return Precision(floats, bits, target.profile.multiplies_pairs, uses)


def precision_text(manifest: Mapping[str, Any]) -> str:
    """How an artifact computes, from its manifest: `f32`, or `f32 with int8 weights`."""
    precision, weights = manifest.get("precision", "f32"), manifest.get("quantized")
    return f"{precision} with {weights} weights" if weights else str(precision)


def _manifest(
    target: Target,
    machine: Machine,
    options: Options,
    ops: int,
    kernels: KernelTable,
    names: tuple[str, ...],
    weights: int,
) -> dict[str, Any]:
    """What the artifact says of itself, as far as the compiler knows it."""
    pricer = Pricer(machine, weights)
    listed = [
        {"symbol": name, "source": loc, **_cost(pricer, bound)}
        for name, loc, bound in zip(names, kernels.locs, kernels.bounds, strict=True)
    ]
    return {
        "tcc": __version__,
        "target": {"text": target.text, "triple": target.triple, "cpu": target.profile.cpu},
        "machine": {
            "name": machine.name,
            "sha256": machine_digest(machine),
            "cores": machine.cores,
            "flops_per_second": machine.peak,
            "bytes_per_second": machine.memory.read_all,
        },
        "precision": options.precision,
        "quantized": options.weights,
        "ops": ops,
        "variants": [{"features": list(target.profile.features), "kernels": listed}],
    }


def _cost(pricer: Pricer, bound: Bound) -> dict[str, Any]:
    """What one launch does and is predicted to take; open sizes count as typical ones."""
    assert isinstance(bound.schedule, Schedule)
    price = pricer.price(bound.group, bound.schedule)
    return {
        "flops": price.flops,
        "contraction_flops": contraction_flops(bound.group),
        "bytes": price.bytes,
        "seconds": float(f"{price.seconds:.4g}"),
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
