"""The variants of an artifact: a program for the CPU, and one or more for each kind of GPU."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeAlias

from tcc import __version__
from tcc.backends.artifact.kernel_needs import encode_needs
from tcc.backends.artifact.profile_facts import profile_facts
from tcc.backends.artifact.variant import Variant
from tcc.backends.base import Backend
from tcc.backends.c.backend import CBackend
from tcc.backends.cpu.backend import CpuBackend
from tcc.backends.cpu.detect import detect
from tcc.backends.gpu.backend import GpuBackend
from tcc.debug import Trace
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Value
from tcc.ir.program.lockstep import check_lockstep
from tcc.ir.program.operands import steps_of
from tcc.ir.program.verify import verify_program
from tcc.ir.types import DTYPES, I8
from tcc.options import INT8_ERROR, WEIGHTS, Options
from tcc.passes.graph.fix_sizes import fix_sizes, with_typical
from tcc.passes.graph.state_names import named_states
from tcc.passes.pipeline import GraphSettings, Sharder, run_pipeline, step_names
from tcc.passes.program.join_programs import join_programs
from tcc.passes.program.lowered import Lowered
from tcc.passes.quantize.level_bytes import BYTES
from tcc.passes.traffic import traffic, unfused_bytes
from tcc.schedule.alternatives import SILENT, Ledger
from tcc.target import Target, parse_targets, targets_text
from tcc.zipped import zip_equal

# The backend of each kind of target.
BACKENDS: Mapping[str, type[Backend]] = MappingProxyType(
    {kind: row for row in (CpuBackend, GpuBackend, CBackend) for kind in row.kinds}
)


# Returns the functions that divide a graph among a number of ranks, one for each plan.  A function
# may decide what follows, so it runs before the next function is taken.
Sharders: TypeAlias = Callable[[int], Iterable[Sharder]]


@frozen
class PlanPlace:
    """A number of ranks, and the place of a plan among the plans for so many ranks, from 0."""

    ranks: int = 1
    plan: int = 0

    def symbol(self, number: int) -> str:
        """Returns the symbol of a kernel; no two plans have equal symbols."""
        plan = f"plan{self.plan}_" if self.plan else ""
        return f"tcc_kernel_{f'of{self.ranks}_' if self.ranks > 1 else ''}{plan}{number}"

    def __str__(self) -> str:
        plan = f", plan {self.plan + 1}" if self.plan else ""
        return f" on {self.ranks} ranks{plan}" if self.ranks > 1 else ""


_ONE_RANK = PlanPlace()


def resolve_targets(options: Options) -> tuple[Target, ...]:
    """Returns the targets that the options name; raises UserError for an unknown target."""
    return parse_targets(options.target, options.cpu, detect)


def plan_places(
    options: Options, divided_by: Sharders
) -> Iterator[tuple[PlanPlace, Sharder | None]]:
    """Yields the place of each plan of a compile, with the step that divides a graph by it.

    The step is None for one rank.
    """
    for ranks in options.ranks:
        for plan, divide in enumerate(divided_by(ranks) if ranks > 1 else (None,)):
            yield PlanPlace(ranks, plan), divide


def check_options(options: Options, targets: Sequence[Target]) -> None:
    """Checks options against targets.

    Raises UserError for an option that every target refuses, and for targets whose code cannot
    share a file.  Raises ToolError where a program is missing that a target needs.
    """
    rows = [BACKENDS[target.kind] for target in targets]
    if len({row.suffix for row in rows}) > 1:
        raise UserError(
            "targets with different kinds of files cannot share a file", where="--target"
        )
    first, *other_refusals = [row.refused(options) for row in rows]
    for flag, why in first.items():
        if all(flag in refused for refused in other_refusals):
            raise UserError(why, where=flag)
    _check_int8(options)
    if options.stop_after not in ("", "import", *step_names()):
        raise UserError(
            "there is no such step",
            where=f"--stop-after {options.stop_after}",
            hint=f"import, {', '.join(step_names())}",
        )
    for target in () if options.stop_after else targets:
        BACKENDS[target.kind].check_tools(target.triple)


def _check_int8(options: Options) -> None:
    """Raises UserError for options that do not fit the precision int8, or have no effect."""
    is_int8 = options.precision == "int8"
    if is_int8 and (options.weights or options.activations):
        raise UserError(
            "the precision int8 stands alone",
            where="--precision int8 with --weights or --activations",
            why="it chooses the types of weights and activations itself",
            hint="write --precision int8; or --weights int8 or int4, with or without --activations "
            "int8, and another --precision",
        )
    if not is_int8 and (options.calibrate or options.int8_error != INT8_ERROR):
        raise UserError(
            "only the precision int8 measures layers",
            where="--calibrate, --int8-error",
            hint="add --precision int8, or leave them out",
        )


def variant_backends(
    targets: Sequence[Target],
    options: Options,
    constants: int,
    resources: ExitStack | None = None,
    ledger: Ledger = SILENT,
) -> tuple[Backend, ...]:
    """Returns the backend of each variant, in the order of the targets.

    `constants` is the size of the model's constants in bytes. The tools that variants share are
    closed with `resources`. `ledger` makes all decisions; with several targets, the site of a
    decision names the kind of its target.
    """
    rows = dict.fromkeys(BACKENDS[target.kind] for target in targets)
    tools = {row: resources and resources.enter_context(row.tools(options)) for row in rows}
    codes: list[Backend] = []
    for target in targets:
        row = BACKENDS[target.kind]
        device_ledger = ledger.on(target.kind) if len(targets) > 1 else ledger
        codes += row.variants(target, options, constants, tools[row], device_ledger)
    return tuple(codes)


def optimise(
    graph: Graph,
    codes: Sequence[Backend],
    options: Options,
    trace: Trace,
    sharder: Sharder | None = None,
) -> list[tuple[Graph, ...]]:
    """Returns the optimised graphs of each variant: the general one, then one for each bucket.

    Variants of the same settings share their graphs.  `sharder` makes them graphs that
    each of several ranks runs.
    """
    optimised: dict[GraphSettings, tuple[Graph, ...]] = {}
    graph = with_typical(graph, dict(options.typical))
    sized_graphs = (graph, *(fix_sizes(graph, sizes) for sizes in options.bucket_sizes))
    graphs = []
    folds = options.derive and options.numerics != "strict"
    states = named_states(graph, options.state)
    types = {**DTYPES, "int8": I8}
    state_type = None if options.state_type is None else types[options.state_type]
    for code in codes:
        settings = replace(
            code.settings, fold_factors=folds, states=states, sharder=sharder, state_type=state_type
        )
        if settings not in optimised:
            with trace.stage(_label(code, codes) + "optimise"):
                optimised[settings] = tuple(
                    run_pipeline(sized_graph, options.level, trace, settings)
                    for sized_graph in sized_graphs
                )
        graphs.append(optimised[settings])
    return graphs


def lower(
    codes: Sequence[Backend],
    optimised: Sequence[tuple[Graph, ...]],
    trace: Trace,
    place: PlanPlace = _ONE_RANK,
) -> list[tuple[Backend, tuple[Lowered, ...]]]:
    """Returns the lowered programs, each with its backend.

    GPUs with equal programs share one of them.
    """
    lowerings: list[tuple[Backend, tuple[Lowered, ...]]] = []
    for code, graphs in zip_equal(codes, optimised):
        with trace.stage(_label(code, codes) + "lower"):
            # The first lowering chooses the layouts of constants for all programs. Programs of
            # fixed sizes come first, because prices take symbolic sizes at their typical values.
            *special, general = [
                code.lower(sized_graph, trace) for sized_graph in (*graphs[1:], graphs[0])
            ]
            lowered = (general, *special)
        for specialisation in lowered:
            code.begin(specialisation, kernel_names(specialisation, place))
        for n, (other, first) in enumerate(lowerings):
            common = other.merged_with(code)
            if common is not None and all(map(Lowered.same_as, first, lowered)):
                lowerings[n] = common, first
                break
        else:
            lowerings.append((code, lowered))
    return lowerings


def make_variants(
    graph: Graph,
    optimised: Sequence[tuple[Graph, ...]],
    codes: Sequence[Backend],
    options: Options,
    trace: Trace,
    place: PlanPlace = _ONE_RANK,
) -> list[Variant]:
    """Returns the variants of a plan with their code; `graph` is the model before optimisation."""
    unfused = unfused_bytes(graph)
    lowerings = lower(codes, optimised, trace, place)
    if options.stop_after and place.ranks != options.ranks[-1]:
        return []  # a later plan may have the step
    if options.stop_after:
        raise UserError(
            "this compile does not have the step",
            where=f"--stop-after {options.stop_after}",
            why="its targets and options leave it out",
            hint="--time-passes shows the steps that run",
        )
    programs = [program for _, parts in lowerings for program in parts]
    if options.weights and WEIGHTS.keys().isdisjoint(
        type for program in programs for type in program.weights.types.values()
    ):
        raise UserError(
            f"no weight of the model can be stored as {options.weights}",
            where=f"--weights {options.weights}",
            why="integers are for finite f32 matrices of at least 16,384 elements that a matmul "
            "reads as its constant operand",
            hint="leave --weights out",
        )
    if options.activations and not any(_rounds_to_bytes(parts) for _, parts in lowerings):
        raise UserError(
            "no matmul of the model can multiply bytes",
            where=f"--activations {options.activations}",
            why="bytes are multiplied with integer weights, along sums of a multiple of 32, with a "
            "scale for 16, 32, 64 ... elements of a column",
            hint="add --weights int8 or --weights int4, or leave --activations out",
        )
    codes = [code for code, _ in lowerings]
    return [
        variant_of(code, lowered, unfused, options, trace, _label(code, codes), place)
        for code, lowered in lowerings
    ]


def _source_names(lowered: Lowered, values: Sequence[Value]) -> list[str]:
    """Returns the model's names of the constants from which constants were computed, if known."""
    graph = lowered.placed.graph
    handles = {value: graph.constants.get(value) for value in values}
    names = ((h and graph.store.sources(h)) or (v.name,) for v, h in handles.items())
    return [*dict.fromkeys(filter(None, chain.from_iterable(names)))]


def _rounds_to_bytes(parts: Sequence[Lowered]) -> bool:
    """Returns True if a program rounds what it multiplies with levels to bytes."""
    return any(entry.operands == BYTES for part in parts for entry in part.weights.rounded)


def common_facts(targets: Sequence[Target], options: Options, ops: int) -> dict[str, Any]:
    """Returns the part of the manifest that all variants share."""
    return {
        "tcc": __version__,
        "target": {"text": targets_text(targets), "triple": targets[0].triple},
        "precision": options.precision,
        "quantized": options.weights,
        "activations": options.activations,
        "ops": ops,
    }


def kernel_names(lowered: Lowered, place: PlanPlace) -> tuple[str, ...]:
    """Returns the symbols of the program's kernels."""
    return tuple(map(place.symbol, range(len(lowered.kernels))))


def _label(code: Backend, codes: Sequence[Backend]) -> str:
    """Returns the prefix of a variant's stage names; empty for a single variant."""
    return f"{code.target.text}: " if len(codes) > 1 else ""


def variant_of(
    code: Backend,
    parts: Sequence[Lowered],
    unfused: int | None,
    options: Options,
    trace: Trace,
    label: str = "",
    place: PlanPlace = _ONE_RANK,
) -> Variant:
    """Returns a variant with its code: the general program and those of the buckets as one program.

    `unfused` is the number of bytes that a run without fusion would move. `label` is the prefix of
    its stages. Its weights are packed when the artifact is written.
    """
    with trace.stage(label + "generate code"):
        general, *specials = (code.fitted(part, kernel_names(part, place), trace) for part in parts)
        lowered = join_programs(general, specials)
        names = kernel_names(lowered, place)
        table = lowered.weights
        weights = [tuple(table.parts(rank)) for rank in range(table.ranks)]
        generated = code.generate(lowered, names, trace)
    program = replace(lowered.program, kernels=names, scratch=generated.scratch)
    verify_program(program)
    check_lockstep(program, [kernel.results for kernel in lowered.kernels])
    types = parts[0].weights.types
    bytes_moved = traffic(lowered.placed, lowered.table.bodies)
    facts = {
        **generated.facts,
        # Bytes that a run moves through memory, and the bytes that it would move if no kernels were
        # fused; null with symbolic sizes.
        "traffic": bytes_moved and asdict(bytes_moved) | {"unfused": unfused},
        "rounded": [
            {"weights": r.sources, "type": r.type, "operands": r.operands, "moved": r.moved}
            for r in lowered.weights.rounded
        ],
        # The number of matmul and convolution weights by type; {} for the precision f32.
        "weight_types": dict(Counter(types.values())),
        # The names of these weights that have another type than the one that was asked for.
        "wide": _source_names(parts[0], [v for v, type in types.items() if type != options.narrow]),
        "steps": list(steps_of(program.body)),
        "profile": profile_facts(program),
        "buckets": list(options.bucket_sizes),
    }
    listings = dict(zip_equal(names, generated.listings)) if options.keep_ir else {}
    return Variant(
        f"{code.target.text}{place}",
        program,
        weights[0] if len(weights) == 1 else (),
        generated.objects,
        code.target.profile.features,
        generated.gpu,
        facts,
        listings,
        encode_needs(lowered.kernels, generated.scratch),
        place.ranks,
        weights if len(weights) > 1 else (),
        place.plan,
    )
