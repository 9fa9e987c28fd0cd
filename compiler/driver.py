"""compile(): from a model to a native file, as one straight-line function."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, Unpack
from warnings import warn

from tcc import __version__
from tcc.artifact import load, needed_glibc
from tcc.backends.artifact.emit import LIBRARIES
from tcc.backends.artifact.link import c_name
from tcc.backends.artifact.package import (
    LIBRARY_SUFFIXES,
    complete_package,
    new_package,
    package_library,
)
from tcc.backends.artifact.variant import Variant
from tcc.backends.base import Backend
from tcc.batch import load_batched
from tcc.budgets import within
from tcc.debug import Progress, Stopped, Timing, Trace
from tcc.distributed.shard import check_divisible
from tcc.errors import CompileWarning, InternalError, UserError
from tcc.frontends import assets_of, exported, is_torch_module, load_model
from tcc.frontends.onnx.converters import CONVERTERS
from tcc.frontends.onnx.inputs import declared_size, with_defaults
from tcc.frontends.onnx.reader import read_model
from tcc.frontends.onnx.support import operator_names, operator_opsets
from tcc.frontends.rounding import Rounding
from tcc.frontends.torch.converters import converter_of
from tcc.frozen import frozen
from tcc.int8 import of_variant, with_int8
from tcc.ir.graph import Graph, constant_bytes, walk_nodes
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.text import graph_text
from tcc.ir.op import NamedArrays
from tcc.ir.types import DTypeKind, TensorType
from tcc.noise import graph_ports, integer_values
from tcc.options import EMITS, Choices, Options, SymbolicShape, read_options
from tcc.passes.choose.choices_file import read_lines
from tcc.passes.choose.ledger import Line, ListeningLedger
from tcc.passes.derive.derive import SiteOptions, decisions
from tcc.passes.derive.replayed import replayed
from tcc.passes.graph.state import (
    NarrowStates,
    appends_entry,
    empty_state_warnings,
    with_states,
)
from tcc.passes.pipeline import MERGE, SHARD
from tcc.passes.program.lower_node import check_runnable
from tcc.passes.program.lowered import Lowered
from tcc.preprocess import preprocess_entry
from tcc.rank_plans import plan_sharders
from tcc.runtime import Module, ModulePort
from tcc.runtime.comm import Comm
from tcc.runtime.summary_text import precision_text
from tcc.schedule.alternatives import SILENT, Ledger
from tcc.target import targets_text
from tcc.temporary import temporary_folder
from tcc.tokenizer import tokenizer_asset
from tcc.tune.applied import Applied, applied_of, lock_of, sections_of
from tcc.tune.lock import Lock
from tcc.variants import (
    BACKENDS,
    Sharders,
    check_options,
    common_facts,
    kernel_names,
    lower,
    make_variants,
    optimise,
    plan_places,
    resolve_targets,
    variant_backends,
)
from tcc.zipped import zip_equal


@frozen
class VariantSummary:
    """The facts of a variant, which is a program of an artifact.

    Sizes are bytes; `arena` is None where it depends on symbolic sizes. `weight_types` counts the
    weights of matmuls and convolutions by type, where the precision is below f32, and `wide` names
    those of them that have another type than `Summary.narrow`. `growth` is the
    size of the artifact's weights divided by the size of the model's weights. `needs` is the oldest
    driver that loads all code for GPUs.
    """

    target: str
    kernels: int
    arena: int | None
    weights: int
    growth: float
    needs: str
    weight_types: Mapping[str, int]
    wide: Sequence[str]


@frozen
class Summary:
    """The facts of a compiled artifact.

    `narrow` is the type in which weights were to be stored, or "" if they keep their types.
    `priced` counts the schedules whose prices were compared.  `needs` is the oldest C library with
    every function that the artifact calls.  `tuned` counts the entries of a lock, if there is one.
    """

    target: str
    ops: int
    precision: str
    narrow: str
    specialisations: int
    variants: tuple[VariantSummary, ...]
    priced: int
    needs: str
    tuned: Applied | None = None


@frozen
class CompileResult:
    """A finished artifact on disk, the time of its passes, the manifest, and sentences for the
    user."""

    path: Path
    summary: Summary
    timings: tuple[Timing, ...]
    manifest: Mapping[str, Any]
    warnings: tuple[str, ...] = ()


def output_suffix(options: Options) -> str:
    """Returns the suffix of the file that a compile with these options writes, as in `.so`."""
    suffix = BACKENDS[resolve_targets(options)[0].kind].suffix
    return EMITS[options.emit] if suffix == EMITS["shared"] else suffix


def compile_model(
    model: Any,
    options: Options,
    output: Path,
    progress: Progress | None = None,
    *,
    whole: bool = False,
    sharders: Sharders | None = None,
) -> CompileResult:
    """Compiles `model` (a path, an onnx.ModelProto or a torch.export.ExportedProgram) into the
    artifact `output`.

    The artifact appears complete or not at all.  `progress` is called with the name of each stage.
    `whole`: all memory of this process counts as the compile's.  `sharders` returns, for a number
    of ranks, the functions that divide a graph among them, one for each plan; the default is the
    partition planner's.  Raises UserError for a model or option that cannot be compiled or exceeds
    a budget, and ToolError where no linker works.
    """
    work = partial(_compiled, model, options, output, progress, sharders)
    return within(options.budgets, work, whole=whole)


def compile_package(
    model: Any,
    options: Options,
    folder: Path,
    name: str,
    progress: Progress | None = None,
) -> CompileResult:
    """Compiles `model` into a package in `folder`, as `backends/artifact/package.py` describes it.

    The result's path is the library in the package. The package has the name of the options, else
    `name` as a C identifier. All memory of this process counts as the compile's. Raises as
    `compile_model` does, and UserError for a target whose output is C source.
    """
    suffix = output_suffix(options)
    if suffix not in LIBRARY_SUFFIXES:
        raise UserError(
            "a package holds a library",
            where=f"--package {folder}",
            why=f"the output is a {suffix} file",
            hint="write it with -o instead of --package",
        )
    named = replace(options, name=c_name(options.name or name))
    with new_package(folder, named.name) as package:
        library = package_library(package, named.name, suffix)
        result = compile_model(model, named, library, progress, whole=True)
        complete_package(library, __version__, result.manifest)
    return replace(result, path=package_library(folder, named.name, suffix))


def _compiled(
    model: Any,
    options: Options,
    output: Path,
    progress: Progress | None,
    sharders: Sharders | None,
) -> CompileResult:
    targets = resolve_targets(options)
    check_options(options, targets)
    lock = lock_of(options)
    ledger = _ledger(options, lock)
    trace = Trace(options.dump, progress, options.verify, options.stop_after)
    divided_by = sharders or plan_sharders(options, ledger)
    with trace.stage("import"):
        graph, form = load_batched(model, options)
    ops, model_bytes = sum(1 for _ in walk_nodes(graph)), constant_bytes(graph)
    graph, int8 = with_int8(graph, options, trace)
    preprocess = preprocess_entry(options.preprocess, [value.name for value in graph.inputs])
    assets = {**assets_of(model), **tokenizer_asset(options.tokenizer)}
    trace.dump("import", lambda: graph_text(graph))
    trace.end("import", graph)
    with ExitStack() as resources:
        variants: list[Variant] = []
        codes: list[Backend] = []
        for place, divide in plan_places(options, divided_by):
            own_codes = variant_backends(targets, options, model_bytes, resources, ledger)
            optimised = optimise(graph, own_codes, options, trace, divide)
            for code, graphs in zip_equal(own_codes, optimised):
                for optimised_graph in graphs:
                    check_runnable(optimised_graph)
                    code.check(optimised_graph)
            variants += make_variants(graph, optimised, own_codes, options, trace, place)
            codes += own_codes
    variants = [*map(partial(of_variant, int8), variants)] if int8 else variants
    warnings = _unused_lines(ledger, model, options) + empty_state_warnings(optimised[0][0])
    tuned = applied_of(lock, ledger, [code.planner for code in codes], options.require_tuned)
    warnings += tuned.warnings if tuned else ()
    with trace.stage("link"):
        manifest = codes[0].write(
            variants,
            {
                **common_facts(targets, options, ops),
                **appends_entry(optimised[0][0]),
                **({} if form is None else {"call": form}),
                **preprocess,
                **({"int8": int8} if int8 else {}),
                **({} if lock is None else {"tuned": {"sha256": lock.sha256}}),
            },
            c_name(options.name or output.stem),
            output,
            targets[0].triple,
            options.emit,
            assets,
        )
    if assets and "assets" not in manifest:
        warnings += (f"the file does not hold the model's {', '.join(sorted(assets))}",)
    summary = Summary(
        targets_text(targets), ops,
        precision_text({"precision": options.precision, "activations": options.activations}),
        options.narrow,
        len(options.inputs) + len(options.bucket_sizes),
        tuple(_summary(variant, model_bytes) for variant in manifest["variants"]),
        sum(code.priced for code in codes),
        codes[0].needs or (LIBRARIES if options.emit != "shared" else needed_glibc(output)),
        tuned,
    )  # fmt: skip
    return CompileResult(output, summary, trace.timings, manifest, warnings)


def divided_graph(model: Any, options: Options) -> Graph:
    """Returns the graph of `model` that a compile divides among ranks.

    Raises UserError for a model or option that cannot be compiled, and for a model with collectives
    of its own.
    """
    graph = _imported(model, options)
    codes = variant_backends(resolve_targets(options), options, constant_bytes(graph))
    try:
        optimise(graph, codes[:1], options, Trace(last=SHARD), lambda graph: graph)
    except Stopped as stopped:
        graph = stopped.form
    check_divisible(graph)
    return graph


def _ledger(options: Options, lock: Lock | None) -> Ledger:
    """Returns the ledger that forces the choices of the file `--choices` and of the lock."""
    if options.choices is None and lock is None:
        return SILENT
    records = options.choices is not None  # whose unused lines are errors
    return ListeningLedger(_lines(options), sections_of(lock, options.tuned), records=records)


def _lines(options: Options) -> tuple[Line, ...]:
    """Returns the lines of the file `--choices`, each a forced choice; empty without a file."""
    return () if options.choices is None else read_lines(options.choices)


def _unused_lines(ledger: Ledger, model: Any, options: Options) -> tuple[str, ...]:
    """Returns a warning for each line of --choices whose site another line removes.

    Raises UserError for a line whose site the model would not have without the file either.
    """
    if not isinstance(ledger, ListeningLedger) or not (unused := ledger.unused()):
        return ()
    sites: set[str] = set()
    if ledger.changes:
        plain = model_choices(model, replace(options, choices=None))
        sites = {decision.site.digest for decision in plain.decisions()}
    for line in unused:
        if line.site not in sites:
            raise UserError(
                "the compile has no such decision",
                where=line.where,
                why=f"no site has the digest {line.site}",
                hint="tcc inspect MODEL --choices lists the sites for this target and options",
            )
    return tuple(f"{line.where}: other lines of the file remove this site" for line in unused)


def model_choices(model: Any, options: Options, *, fit: bool = False) -> ListeningLedger:
    """Returns the ledger with the decisions of a compile of `model` that ends before its code.

    `fit`: kernels for GPUs are compiled, which replaces schedules that need too many registers.
    Raises UserError for a model or option that cannot be compiled.
    """
    ledger = ListeningLedger(_lines(options), sections_of(lock_of(options), options.tuned))
    _lowered(_imported(model, options), options, ledger, fit=fit)
    return ledger


def same_kernels(
    model: Any, options: Options, lines: Sequence[Line], progress: Progress
) -> Iterator[bool]:
    """Yields, for each of `lines`, True if it leaves programs, kernels and weights unchanged.

    A line is a decision with the alternative to choose there. For each line the model is lowered
    with the choices of that line and of `options` forced; no code is generated. Raises UserError
    for a line that a compile would refuse.
    """
    graph, lock = _imported(model, options), lock_of(options)
    sections = sections_of(lock, options.tuned)
    plain = _lowered(graph, options, _ledger(options, lock))
    for count, line in enumerate(lines, 1):
        progress(f"alternative {count} of {len(lines)}")
        forced = _lowered(graph, options, ListeningLedger((*_lines(options), line), sections))
        yield len(plain) == len(forced) and all(map(Lowered.same_as, plain, forced))


def _imported(model: Any, options: Options) -> Graph:
    """Returns the graph of a model, for a compile that generates no code."""
    check_options(options, resolve_targets(options))
    return with_int8(load_batched(model, options)[0], options)[0]


def _lowered(graph: Graph, options: Options, ledger: Ledger, *, fit: bool = False) -> list[Lowered]:
    """Returns the lowered programs of all variants; `ledger` makes their decisions."""
    trace, targets = Trace(), resolve_targets(options)
    divided_by = plan_sharders(options, ledger)
    programs: list[Lowered] = []
    for place, divide in plan_places(options, divided_by):
        codes = variant_backends(targets, options, constant_bytes(graph), ledger=ledger)
        optimised = optimise(graph, codes, options, trace, divide)
        for code, parts in lower(codes, optimised, trace, place):
            fitted = (code.fitted(p, kernel_names(p, place), trace) for p in parts)
            programs += fitted if fit else parts
    return programs


def _summary(variant: Mapping[str, Any], model_bytes: int) -> VariantSummary:
    """Returns the summary of a variant in the manifest; the model has `model_bytes` bytes of
    constants."""
    weights = variant["weights"]["bytes"]
    growth = weights / model_bytes if model_bytes else 1.0
    needs = max(
        (image["needs"] for image in variant.get("gpu", {"images": ()})["images"]), default=""
    )
    return VariantSummary(
        variant["target"],
        variant["kernel_count"],
        variant["arena_bytes"],
        weights,
        growth,
        needs,
        variant["weight_types"],
        variant["wide"],
    )  # fmt: skip


def compile(
    model: Any,
    target: str = "cpu",
    *,
    threads: int | None = None,
    comm: Comm | None = None,
    **options: Unpack[Choices],
) -> Module:
    """Compiles `model` and loads the result; `Module.save` writes it to a file.

    `options` are the fields of `tcc.options.Options` as keywords (`tcc compile --help` explains
    them); `threads` and `comm` are as for `load`.  A `torch.nn.Module` is exported first: `inputs`
    are then example inputs, a tuple or a dict by name, and `dynamic_shapes` says which of their
    sizes are symbolic, as for `torch.export.export`.  Warns with a `CompileWarning` where `tcc
    compile` prints a warning.  Raises TccError.
    """
    if not isinstance(target, str):
        raise UserError(
            "the second argument of tcc.compile is the target, as in target='cpu'",
            where="target",
            why=f"it is of type {type(target).__name__}",
            hint="give example inputs by name: tcc.compile(model, inputs=(x,))",
        )
    if is_torch_module(model) and "inputs" in options:
        examples = options.pop("inputs")
        model = exported(model, examples, options.pop("dynamic_shapes", None))
    compile_options = read_options({"target": target, **options})
    if output_suffix(compile_options) != ".so":
        raise UserError(
            "the output is no module", where="target, emit", hint="tcc compile writes it"
        )
    with ExitStack() as ending:
        folder = ending.enter_context(temporary_folder())
        result = compile_model(model, compile_options, folder / "model.so")
        for warning in dict.fromkeys(result.warnings):
            warn(warning, CompileWarning, stacklevel=2)
        module = load(result.path, threads, comm=comm)
        weakref.finalize(module, ending.pop_all().close)
    return module


def _with_keywords(original: Signature) -> Signature:
    """Returns the signature of `compile` for help() and notebooks, which do not read `Unpack`."""
    *fixed, _ = original.parameters.values()
    keywords = (Parameter(n, Parameter.KEYWORD_ONLY, default=None) for n in Choices.__annotations__)
    return original.replace(parameters=[*fixed, *keywords])


compile.__signature__ = _with_keywords(signature(compile))  # type: ignore[attr-defined]


def evaluate_model(model: Path, inputs: NamedArrays) -> NamedArrays:
    """Returns the model's outputs by the reference evaluator: slow, simple, no generated code."""
    return evaluate_draws(model, [inputs])[0]


def evaluate_draws(
    model: Path,
    draws: Sequence[NamedArrays],
    rounding: Rounding | None = None,
    states: NarrowStates | None = None,
) -> list[NamedArrays]:
    """Returns `evaluate_model` for each of `draws`, at least one.

    `rounding` rounds the weights of an archive; `states` makes the ports those of an artifact.
    """
    graph = _with_inputs(model, [f"{name}=" for name in draws[0]], rounding)
    graph = graph if states is None else with_states(graph, states)
    return [evaluate_graph(graph, inputs) for inputs in draws]


def model_derivations(
    model: Path, input_texts: Sequence[str], chain: str | None
) -> list[SiteOptions]:
    """Returns the decisions of the search for cheaper orders of sums, for this machine's processor.

    `input_texts` are the texts of `--input`.  `chain` is a derivation to replay as well.  Raises
    UserError for a chain that is invalid for the model.
    """
    options = Options(inputs=optional_inputs(model, input_texts))
    trace = Trace(last=MERGE)
    graph = load_model(model, dict(options.inputs), budgets=options.budgets)
    codes = variant_backends(resolve_targets(options), options, constant_bytes(graph))
    limits = codes[0].settings.derivations
    try:
        optimise(graph, codes, options, trace)
    except Stopped as stopped:
        if limits is None:
            return []
        all_decisions = decisions(stopped.form, limits)
        return all_decisions if chain is None else replayed(all_decisions, chain, limits)
    raise InternalError(f"a compile went past the step {MERGE}")


def input_values(model: Path) -> dict[str, Sequence[int]]:
    """Returns `integer_values` of the ONNX file at `model`."""
    return integer_values(load_model(model))


def _with_inputs(
    model: Path, input_texts: Sequence[str], rounding: Rounding | None = None
) -> Graph:
    return load_model(model, dict(optional_inputs(model, input_texts)), rounding=rounding)


def model_inputs(model: Path, input_texts: Sequence[str]) -> tuple[ModulePort, ...]:
    """Returns the inputs of the ONNX file at `model`.

    An optional input is among them only if a text `NAME=...` names it.
    """
    return graph_ports(_with_inputs(model, input_texts))


def optional_inputs(
    model: Path, input_texts: Sequence[str]
) -> tuple[tuple[str, SymbolicShape], ...]:
    """Returns the shapes, as in `Options.inputs`, of the optional inputs that `input_texts` name.

    An optional input of an ONNX file has a default value; a text has the form `NAME=...`.  Other
    files have no optional inputs.
    """
    if not input_texts or model.suffix == ".pt2":
        return ()
    graph = read_model(model).proto.graph
    defaults = with_defaults(graph)
    return tuple(
        (
            value.name,
            tuple(
                f"size_{number}_{axis}" if size is None else size
                for axis, dim in enumerate(value.type.tensor_type.shape.dim)
                for size in [declared_size(dim)]
            ),
        )
        for number, value in enumerate(graph.input)
        if value.name in defaults and any(text.startswith(f"{value.name}=") for text in input_texts)
    )


def float_types(model: Path) -> frozenset[str]:
    """Returns the float types of the values that the nodes of the ONNX file at `model` compute."""
    values = (value for node in walk_nodes(load_model(model)) for value in node.outputs)
    types = {value.dtype for value in values if isinstance(value.type, TensorType)}
    return frozenset(dtype.name for dtype in types if dtype.kind is DTypeKind.FLOAT)


def onnx_operators() -> tuple[str, ...]:
    """Returns the names of the ONNX operators that can be imported.

    A star marks an operator that ONNX defines by a body that depends on the operands' types.
    """
    return operator_names(CONVERTERS)


def onnx_opsets(*names: str) -> dict[str, tuple[int, ...]]:
    """Returns the importable ONNX operators called `names`, in any domain, with their opsets."""
    return operator_opsets(names, CONVERTERS)


def aten_converter(name: str) -> str:
    """Returns the module that imports the ATen operator `name`; empty where none does."""
    name = name.replace("::", ".")
    return getattr(converter_of(name) or converter_of(name.lower()), "__module__", "")
