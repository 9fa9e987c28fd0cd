"""The work of `tcc verify`: runs an artifact and a reference, and prints how they compare."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from tcc.artifact import find_weights, input_errors, read_manifest, verify_weights
from tcc.budgets import read_count
from tcc.cli.arrays import (
    Draw,
    as_taken,
    as_values,
    embedded_settings,
    is_carried,
    make_draws,
    make_inputs,
    program_of,
)
from tcc.cli.comparison import compared, draws_of, mode_cost, peer_line
from tcc.cli.deadline import interruptible
from tcc.cli.drawn import drawn_model
from tcc.cli.joined import joined
from tcc.cli.layer_results import Finding, Report, finding_table, write_reproduction
from tcc.cli.layers import LayerCheck
from tcc.cli.opened import check_pair, opened_artifact
from tcc.cli.peers.peer import SEED, peer_names
from tcc.cli.progress import progress
from tcc.cli.rank_verification import check_whole_states, verify_ranks
from tcc.cli.ranks import check_pin, words_of
from tcc.cli.reference import Reference, reference_of
from tcc.cli.show import print_json, say, say_all
from tcc.driver import model_inputs
from tcc.errors import UserError
from tcc.frontends.onnx.pieces import PieceModel
from tcc.ir.op import Array, NamedArrays
from tcc.options import read_options
from tcc.passes.graph.state import NarrowStates
from tcc.runtime import Module, ModulePort
from tcc.runtime.host_program import HostProgram
from tcc.runtime.input_texts import runs_of
from tcc.runtime.rank_bits import different_outputs
from tcc.runtime.summary_text import precision_text
from tcc.runtime.verdict_text import count_line, is_unchanging, refusal_line, verdict_line
from tcc.temporary import temporary_folder


def verify(
    model: Path,
    artifact: Path | None,
    inputs: tuple[str, ...],
    seed: int,
    threads: int | None,
    tolerance: float | None,
    top1: float | None,
    layers: bool,
    memory: str,
    keep_going: bool,
    reproduce: Path | None,
    nproc: int | None,
    pin: bool,
    peers: str,
    report: bool,
    as_json: bool,
) -> int:
    """Prints how the artifact compares with the model and returns the exit code.

    The arguments are the options of the command.
    """
    check_pair(model, artifact)
    check_pin(nproc, pin)
    if layers and nproc:
        raise UserError(
            "ranks compare outputs, and no layers",
            where="--layers with --nproc",
            hint="leave one of them out",
        )
    kinds = peer_names(peers)
    if kinds and (layers or nproc):
        raise UserError("peers run whole models on one rank", where="--peers")
    if layers and model.suffix == ".pt2":
        raise UserError(
            "only ONNX files are checked layer by layer",
            where=model,
            hint="leave --layers out to compare the outputs with those of PyTorch",
        )
    if layers:
        return _verify_layers(
            model,
            artifact,
            inputs,
            seed,
            threads,
            tolerance,
            memory,
            keep_going,
            reproduce,
            as_json,
        )
    if reproduce is not None or keep_going:
        raise UserError(
            "this is for a check layer by layer",
            where="--reproduce, --keep-going",
            hint="add --layers",
        )
    if nproc:
        flags = {"--seed": seed, "--threads": threads, "--tolerance": tolerance, "--top1": top1}
        words = words_of(inputs, flags)
        return verify_ranks(model, artifact, inputs, nproc, pin, words, as_json)
    bounds = tolerance, top1
    return _verify_outputs(model, artifact, inputs, seed, threads, bounds, kinds, report, as_json)


def _verify_outputs(
    model: Path,
    artifact: Path | None,
    inputs: tuple[str, ...],
    seed: int,
    threads: int | None,
    bounds: tuple[float | None, float | None],
    peers: Sequence[str],
    report: bool,
    as_json: bool,
) -> int:
    """Compares outputs as `verify` does; `bounds` are its `tolerance` and `top1`.

    A rank of a job compares its own, and finds outputs of which ranks have different bits.  With
    `report` the exit code is 0.
    """
    states = None
    with opened_artifact(artifact or model, inputs) as path, ExitStack() as ending:
        module, comm = ending.enter_context(joined(path, threads, always=report))
        if artifact is not None:
            _check_same_inputs(artifact, module, model)
            states = _narrow_states(module, model)
            weights = find_weights(path, dict(module.manifest))
            if weights is not None:
                verify_weights(weights)
        _check_arrays((*module.inputs, *module.outputs), "compared")
        if comm is not None:
            check_whole_states(module, model)
        model, evaluated = click.get_current_context().with_resource(drawn_model(model))
        evaluator_only = (
            evaluated
            or states is not None
            or any(is_carried(port) for port in (*module.inputs, *module.outputs))
        )
        with input_errors():
            files = [texts for _, texts in runs_of(module.inputs, inputs)]
        drawn, fixed = _drawn(
            module, files, draws_of(model, evaluator_only, seed), partial(program_of, path)
        )
        runs, errors = _outputs(module, drawn)
        if 0 in errors:
            raise errors[0]
        # The reference may refuse the draws that the artifact refuses, so it runs only the others.
        checked = _outputs(module, fixed)[0]
        different = different_outputs(comm, [*runs.values(), *checked.values()])
        allowance_draws = {n: fixed[n] for n in checked} or {n: drawn[n] for n in runs}
        model_draws = [
            _as_the_model_takes(draw, module.manifest if states is None else {})
            for draw in (*(drawn[n] for n in runs), *allowance_draws.values())
        ]
        results = [*runs.values(), *(checked or runs).values()]
        numbers = [n * (len(files) < 2) for n in (*runs, *allowance_draws)]
    verdicts = compared(
        model, module, model_draws, results, numbers, len(runs), evaluator_only, states
    )
    verdicts = [item.within(*bounds).with_equal_bits(different) for item in verdicts]
    unchanging = [v.output for v in verdicts if is_unchanging(v.output, model_draws, results)]
    failed = [item for item in verdicts if not item.ok]
    beside = [peer_line(p, model, model_draws[0], results[0], verdicts) for p in peers]
    ok = not failed and all(agrees for _, agrees in beside)
    refused = [refusal_line(drawn[n], e.what, e.where) for n, e in errors.items()]
    oracle = reference_of(model, evaluator_only)
    reference = oracle.name
    precision = precision_text(module.manifest)
    if as_json:
        outputs = [asdict(item) for item in verdicts]
        facts = {"oracle": reference, "precision": precision, "unchanging": unchanging}
        run_facts = {"runs": len(results), "refused": refused}
        run_facts |= {} if comm is None else {"different": different}
        run_facts |= {"peers": [line for line, _ in beside]} if beside else {}
        print_json({**facts, **run_facts, "ok": ok, "outputs": outputs})
        return int(not (ok or report))
    say(f"{precision}, beside {reference} in {len(results)} runs")
    say_all(_reference_lines(oracle, precision))
    for item in verdicts:
        say(verdict_line(item, precision, any("=@" in text for text in inputs)))
        if item.why:
            say(f"  {item.why}")
    say_all(refused)
    for name in unchanging:
        say(f"{name}: the same for all inputs, so this says little of it")
    say_all(line for line, _ in beside)
    say(count_line(verdicts, precision, reference))
    return int(not ok)


def _verify_layers(
    model: Path,
    artifact: Path | None,
    inputs: Sequence[str],
    seed: int,
    threads: int | None,
    tolerance: float | None,
    memory: str,
    keep_going: bool,
    reproduce: Path | None,
    as_json: bool,
) -> int:
    try:
        limit = read_count(memory, f"--memory {memory}")
    except ValueError as error:
        raise UserError("bad option", why=error) from error
    manifest = read_manifest(artifact) if artifact else {}
    if "int8" in manifest:
        raise UserError(
            "layers in int8 are compared as a whole",
            where=f"--layers with {artifact}",
            why="the error of each layer stands in its manifest",
            hint="leave --layers out",
        )
    ports = model_inputs(model, inputs)
    _check_arrays(ports, "given to a part of the model")

    def program() -> HostProgram:
        with opened_artifact(artifact or model, inputs) as path:
            return program_of(path)

    arrays = make_inputs(ports, inputs, seed, program, embedded_settings(manifest))
    allowed = mode_cost(manifest, model) if tolerance is None else tolerance
    facts = {"precision": "precision", "weights": "quantized", "activations": "activations"}
    options = {option: manifest.get(fact) for option, fact in facts.items()}
    with temporary_folder() as folder, progress(f"{model.name}") as stage:
        pieces = PieceModel(model, {name: value.shape for name, value in arrays.items()})
        report = LayerCheck(
            pieces, arrays, read_options(options), allowed, limit,
            threads or len(os.sched_getaffinity(0)), folder, keep_going, stage,
        ).run()  # fmt: skip
    command = ""
    if reproduce is not None and report.fault is not None:
        command = write_reproduction(pieces, report.fault, reproduce)
    _show_layers(report, len(pieces.layers), command, as_json)
    return int(report.fault is not None)


def _reference_lines(oracle: Reference, precision: str) -> Iterator[str]:
    """Yields lines about the reference: if it is tcc's own evaluator, and what it does not round.

    They say why it is the reference, and if it does not round all operands as `precision` does.
    """
    if oracle.why:
        yield f"the reference is tcc's own: {oracle.why}"
    if precision == "int8":
        yield "it rounds nothing, so an error is what the precision costs"
    elif oracle.rounds_weights_alone and precision != "f32":
        yield "it rounds weights alone, so an error may be what the precision may cost"


def _drawn(
    module: Module,
    files: Sequence[Sequence[str]],
    draws: Sequence[Sequence[Draw]],
    program: Callable[[], HostProgram],
) -> list[list[dict[str, Any]]]:
    """Returns two lists with the input arrays of each draw (set of random inputs).

    The first list has the draws of the user's seed. The second list has the fixed draws, with which
    the allowed errors are computed. `draws` is the result of `draws_of`, and `files`
    has the texts of inputs for each file of a folder: then each file is a draw of the first list,
    and some of the files, evenly spaced, are the fixed draws.
    """
    drawn = partial(
        make_draws, module.inputs, program=program, settings=embedded_settings(module.manifest)
    )
    if len(files) > 1:
        data = [array for texts in files for array in drawn(texts, draws[0][:1])]
        arrays = [data, data[:: -(-len(data) // len(draws[1]))]]
    else:
        arrays = [drawn(files[0], part) for part in draws[:2]]
        arrays[1] += drawn(files[0], draws[2]) if len(arrays[1]) < len(draws[1]) else []
    return [[as_values(as_taken(x, module.inputs), module.inputs) for x in part] for part in arrays]


def _outputs(
    module: Module, draws: Sequence[Mapping[str, Any]]
) -> tuple[dict[int, dict[str, Array]], dict[int, UserError]]:
    """Returns the artifact's outputs for each draw, and the errors of the draws that it refuses.

    A draw is one set of random inputs; the keys of both dicts are the numbers of draws. The
    artifact refuses a draw if, for example, a branch of the model refuses the sizes of its arrays.
    """
    results: dict[int, dict[str, Array]] = {}
    errors: dict[int, UserError] = {}
    for number, values in enumerate(draws):
        # Copies, because a run may update its inputs.
        arrays = as_taken({name: np.array(a) for name, a in values.items()}, module.inputs)
        try:
            outputs = interruptible(partial(module.run, arrays, seed=SEED))
            results[number] = as_values(outputs, module.outputs)
        except UserError as error:
            errors[number] = error
    return results, errors


def _check_same_inputs(artifact: Path, module: Module, model: Path) -> None:
    """Raises UserError where the artifact was compiled from a model with other inputs, or with
    --batch, because the reference runs the model with its own batch.

    Batches of states may differ: an artifact gives states room for new rows, and a rank has a part.
    """
    expected = model_inputs(model, [f"{port.name}=" for port in module.inputs])
    ports = _without_scales(module)
    names, model_names = ([port.name for port in part] for part in (ports, expected))
    states = {port.state for port in module.outputs}
    for n, (port, model_port) in enumerate(zip(ports, expected, strict=False)):
        batches = {*port.shape[:1], *model_port.shape[:1]}
        if n not in states and None not in batches and len(batches) > 1:
            names[n], model_names[n] = (
                f"{port.name} of {i.shape[0]} samples" for i in (port, model_port)
            )
    if names != model_names:
        raise UserError(
            "the artifact was compiled from another model, or for another batch",
            where=artifact,
            why=f"its inputs are {', '.join(names)}; those of {model} are {', '.join(model_names)}",
            hint=f"compile it again without --batch: tcc compile {model} -o {artifact}",
        )


def _without_scales(module: Module) -> list[ModulePort]:
    """Returns the inputs without the scales of states that `--state-type int8` stores."""
    scales = {f"{port.name}.scales" for port in module.inputs if port.dtype == "i8"}
    return [port for port in module.inputs if port.name not in scales]


def _narrow_states(module: Module, model: Path) -> NarrowStates | None:
    """Returns the states of an artifact that stores some in another type than the model."""
    expected = {port.name: port.dtype for port in model_inputs(model, [])}
    pairs = [(module.inputs[p.state], p.name) for p in module.outputs if p.state >= 0]
    pairs = [(port, name) for port, name in pairs if port in _without_scales(module)]
    types = [port.dtype for port, _ in pairs if port.dtype != expected[port.name]]
    return NarrowStates([(a.name, b) for a, b in pairs], types[0]) if types else None


def _check_arrays(ports: Sequence[ModulePort], use: str) -> None:
    """Raises UserError that names the first sequence or optional among `ports`."""
    for port in ports:
        if "(" in port.dtype:
            raise UserError(
                f"{port.name!r} has no array that could be {use}",
                why=f"it is of type {port.dtype}",
                hint="tcc verify --layers checks the nodes around lists inside of a model",
            )


def _show_layers(report: Report, layers: int, command: str, as_json: bool) -> None:
    first = report.wrong
    if as_json:
        facts = {
            "ok": report.fault is None,
            "layers": layers,
            "references": list(report.references),
            "compiles": report.compiles,
            "first_wrong": None if first is None else asdict(first),
            "joined": report.joint_layers,
            "reproduce": command,
        }
        print_json({**facts, "values": [asdict(item) for item in report.findings]})
        return
    say_all([finding_table(report.findings)])
    oracle = " and ".join(report.references)
    if first is not None:
        right = "what it reads is right" if first.inputs_right else "what it reads is wrong too"
        say(f"the first wrong node is {first.name} ({first.op}): {right}")
        say(f"  its output {first.output}: {_reason(first)}")
    elif report.joint_layers:
        say(f"every node agrees with {oracle}, but these do not when they are compiled together:")
        say("  " + ", ".join(report.joint_layers))
    else:
        say(f"all {layers} nodes agree with {oracle} ({report.compiles} compiles)")
    if command:
        say(f"to see it again: {command}")


def _reason(finding: Finding) -> str:
    if finding.why:
        return f"{finding.verdict}, {finding.why}"
    return f"error {finding.error:.2e} of the largest value, {finding.allowed:.1e} allowed"


def _as_the_model_takes(inputs: NamedArrays, manifest: Mapping[str, Any]) -> dict[str, Array]:
    """Copies an artifact's inputs, which a run may update, for the model.

    Where an input is a cache with room for new rows, the model gets the old rows only.  Raises
    UserError where the number of new rows depends on symbolic sizes.
    """
    arrays = {name: array.copy() for name, array in inputs.items()}
    for item in manifest.get("appends", ()):
        name, axis, rows = item["input"], item["axis"], item["rows"]
        if not isinstance(rows, int):
            raise UserError(
                "cannot tell the old rows of a state from the new ones",
                where=f"input {name}",
                why=f"a run appends {rows} rows, which depends on symbolic sizes",
                hint="compile with --input, which fixes sizes",
            )
        array = arrays[name]
        if axis < array.ndim and rows <= array.shape[axis]:
            arrays[name] = np.delete(array, np.s_[array.shape[axis] - rows :], axis)
    return arrays
