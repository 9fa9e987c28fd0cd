"""The variants of an artifact: one program for the CPU, one or more for each kind of GPU."""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from types import MappingProxyType

import numpy as np
from tcc.backends.artifact.encode_program import encode_program
from tcc.backends.artifact.kernel_needs import encode_needs
from tcc.backends.artifact.variant import Variant
from tcc.backends.artifact.weight_section import BytesLike
from tcc.backends.base import Backend
from tcc.backends.c.backend import CBackend
from tcc.backends.cpu.backend import CpuBackend
from tcc.backends.gpu.backend import GpuBackend
from tcc.debug import Trace
from tcc.errors import UserError
from tcc.ir.graph import Graph
from tcc.ir.op import Array
from tcc.ir.program.lockstep import check_lockstep
from tcc.ir.program.operands import steps_of
from tcc.ir.program.verify import verify_program
from tcc.options import WEIGHTS, Options
from tcc.passes.derive.derive import Derivations
from tcc.passes.graph.fix_sizes import fix_sizes, with_typical
from tcc.passes.manager import Pass
from tcc.passes.pipeline import FOLD_FACTORS, run_pipeline, step_names
from tcc.passes.program.join_programs import join_programs
from tcc.passes.program.lowered import Lowered
from tcc.passes.traffic import traffic, unfused_bytes
from tcc.target import Target

# The backend of each kind of target; a backend is a row.
BACKENDS: Mapping[str, type[Backend]] = MappingProxyType(
    {kind: row for row in (CpuBackend, GpuBackend, CBackend) for kind in row.kinds}
)


def check_options(options: Options, targets: Sequence[Target]) -> None:
    """Raises UserError for options that none of the targets has, and for targets whose code does
    not go into one file, and ToolError where a program is missing that they need."""
    rows = [BACKENDS[target.kind] for target in targets]
    if len({row.suffix for row in rows}) > 1:
        raise UserError("targets of different files cannot be joined", where="--target")
    first, *others = [row.refused(options) for row in rows]
    for flag, why in first.items():
        if all(flag in refused for refused in others):
            raise UserError(why, where=flag)
    if options.stop_after not in ("", "import", *step_names()):
        raise UserError(
            "there is no such step",
            where=f"--stop-after {options.stop_after}",
            hint=f"import, {', '.join(step_names())}",
        )
    for target in () if options.stop_after else targets:
        BACKENDS[target.kind].check_tools(target.triple)


def variant_backends(
    targets: Sequence[Target], options: Options, constants: int, opened: ExitStack | None = None
) -> tuple[Backend, ...]:
    """What makes each variant, in the order of the targets; a model has so many bytes of
    `constants`, and what variants share is closed with `opened`."""
    rows = dict.fromkeys(BACKENDS[target.kind] for target in targets)
    tools = {row: opened and opened.enter_context(row.tools(options)) for row in rows}
    codes: list[Backend] = []
    for target in targets:
        row = BACKENDS[target.kind]
        codes += row.variants(target, options, constants, tools[row])
    return tuple(codes)


def optimise(
    graph: Graph, codes: Sequence[Backend], options: Options, trace: Trace
) -> list[tuple[Graph, ...]]:
    """`graph` as each variant will lower it, for all sizes and then for each bucket; variants that
    ask for the same share them."""
    done: dict[tuple[Derivations | None, tuple[Pass, ...]], tuple[Graph, ...]] = {}
    graph = with_typical(graph, dict(options.typical))
    given = (graph, *(fix_sizes(graph, sizes) for sizes in options.bucket_sizes))
    graphs = []
    folds = (FOLD_FACTORS,) if options.derive and options.numerics != "strict" else ()
    for code in codes:
        key = derived, requested = code.derivations, code.requested
        if key not in done:
            with trace.stage(_label(code, codes) + "optimise"):
                done[key] = tuple(
                    run_pipeline(
                        each,
                        options.level,
                        trace,
                        derivations=derived,
                        requested=(*requested, *folds),
                        states=options.state,
                    )
                    for each in given
                )
        graphs.append(done[key])
    return graphs


def lower(
    codes: Sequence[Backend], optimised: Sequence[tuple[Graph, ...]], trace: Trace
) -> list[tuple[Backend, tuple[Lowered, ...]]]:
    """The programs, and what makes code of them; GPUs for which the same came out share it."""
    found: list[tuple[Backend, tuple[Lowered, ...]]] = []
    for code, graphs in zip(codes, optimised, strict=True):
        with trace.stage(_label(code, codes) + "lower"):
            # Constants lie as known sizes want them: symbolic ones count as typical sizes.
            *special, general = [code.lower(each, trace) for each in (*graphs[1:], graphs[0])]
            lowered = (general, *special)
        for each in lowered:
            code.begin(each, _names(each))
        for n, (known, first) in enumerate(found):
            joined = known.joined(code)
            if joined is not None and all(map(Lowered.same_as, first, lowered)):
                found[n] = joined, first
                break
        else:
            found.append((code, lowered))
    return found


def make_variants(
    graph: Graph,
    optimised: Sequence[tuple[Graph, ...]],
    codes: Sequence[Backend],
    options: Options,
    trace: Trace,
) -> list[Variant]:
    """The optimised graphs of each variant as code; `graph` is the model as it was given."""
    variants: list[Variant] = []
    unfused = unfused_bytes(graph)
    found = lower(codes, optimised, trace)
    if options.stop_after:
        raise UserError(
            "this compile does not have the step",
            where=f"--stop-after {options.stop_after}",
            why="its targets and options leave it out",
            hint="--time-passes shows the steps that run",
        )
    if options.weights and not any(_integer_weights(parts) for _, parts in found):
        raise UserError(
            f"no weight of the model can be stored as {options.weights}",
            where=f"--weights {options.weights}",
            why="integers are for finite f32 matrices of at least 16,384 elements that a matmul "
            "reads as its constant operand",
            hint="leave --weights out",
        )
    for code, lowered in found:
        label = _label(code, [each for each, _ in found])
        variants.append(_variant(code, lowered, unfused, options, trace, label, variants))
    return variants


def _integer_weights(parts: Sequence[Lowered]) -> bool:
    """Whether a program stores a weight as integers."""
    return any(type in WEIGHTS for part in parts for type in part.weights.types.values())


def _names(lowered: Lowered) -> tuple[str, ...]:
    """Of its kernels."""
    return tuple(f"tcc_kernel_{n}" for n in range(len(lowered.kernels)))


def _label(code: Backend, codes: Sequence[Backend]) -> str:
    """What names a variant's stages, where there are several."""
    return f"{code.target.text}: " if len(codes) > 1 else ""


def _variant(
    code: Backend,
    parts: Sequence[Lowered],
    unfused: int | None,
    options: Options,
    trace: Trace,
    label: str,
    earlier: Sequence[Variant],
) -> Variant:
    # Copies of arrays let other threads run, and processes make the code.
    with ThreadPoolExecutor(1) as beside:
        with trace.stage(label + "generate code"):
            general, *specials = (code.fitted(part, _names(part), trace) for part in parts)
            lowered = join_programs(general, specials)
            names = _names(lowered)
            arrays = beside.submit(lambda: [part() for part in lowered.weights.parts()])
            made = code.generate(lowered, names)
        with trace.stage(label + "pack weights"):
            packed = _shared(arrays.result(), earlier)
    program = replace(lowered.program, kernels=names, scratch=made.scratch)
    verify_program(program)
    check_lockstep(program, [kernel.results for kernel in lowered.kernels])
    moved = traffic(lowered.placed)
    facts = {
        **made.facts,
        # What a run moves through memory, and would node by node; null with symbolic sizes.
        "traffic": moved and asdict(moved) | {"unfused": unfused},
        "rounded": [
            {"weights": r.sources, "type": r.type, "operands": r.operands, "moved": r.moved}
            for r in lowered.weights.rounded
        ],
        # How many weights of matmuls and convolutions have each type; {} where f32 is asked for.
        "weight_types": Counter(parts[0].weights.types.values()),
        "steps": list(steps_of(program.body)),
        "buckets": list(options.bucket_sizes),
    }
    listings = dict(zip(names, made.listings, strict=True)) if options.keep_ir else {}
    return Variant(
        code.target.text,
        encode_program(program),
        names,
        packed,
        made.objects,
        code.target.profile.features,
        made.gpu,
        facts,
        listings,
        encode_needs(lowered.kernels, made.scratch),
    )


def _shared(packed: list[Array], earlier: Sequence[Variant]) -> Sequence[BytesLike]:
    """The weights of an earlier variant if they are equal: one copy of them is kept."""
    for variant in earlier:
        if len(variant.weights) == len(packed) and all(
            np.array_equal(np.asarray(old).view(np.uint8), new.view(np.uint8))
            for old, new in zip(variant.weights, packed, strict=True)
        ):
            return variant.weights
    return packed
