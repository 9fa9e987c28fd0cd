"""`tcc verify`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
import numpy as np
from tcc.artifact import find_weights, load, read_manifest, verify_weights
from tcc.budgets import read_count
from tcc.cli.arrays import as_values, inputs_of, is_carried, make_inputs, program_of
from tcc.cli.choices import OUTPUT, PATH, json_flag, run_flags
from tcc.cli.compare import Difference, compare
from tcc.cli.deadline import interruptible, timeout_flag
from tcc.cli.drawn import drawn_model
from tcc.cli.layer_results import Finding, Report, finding_lines, write_reproduction
from tcc.cli.layers import LayerCheck
from tcc.cli.opened import check_pair, opened_artifact
from tcc.cli.peers.peer import PEERS, SEED, Peer
from tcc.cli.peers.worker import write_arrays
from tcc.cli.show import print_json, progress, say
from tcc.driver import evaluate_model, float_types, model_inputs, precision_text, rounded_weights
from tcc.errors import UserError
from tcc.frontends.onnx.pieces import PieceModel
from tcc.ir.narrow import FORMATS
from tcc.ir.op import Array, NamedArrays
from tcc.ir.program import Program
from tcc.ir.types import DTYPES
from tcc.options import TOLERANCES, read_options
from tcc.runtime import Port
from tcc.temporary import temporary_folder

# What sums in another order, and values between kernels in fewer bits, make of a cost or of the
# reference's own rounding at most.
_COSTS = 3
_NUDGES = 4  # times that inputs are rounded otherwise; the largest change counts
# Eight roundings of the floats that a model computes in itself: of them all sums are kept.
_NARROW = {"f16": 2.0**-8, "bf16": 2.0**-5}


@click.command()
@click.argument("model", type=PATH)
@click.argument("artifact", type=PATH, required=False)
@run_flags
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    help="Largest error allowed, relative to the largest expected value; default: "
    + ", ".join(f"{name} {allowed:g}" for name, allowed in TOLERANCES.items())
    + "; of a model of f16 at least 0.004, of bf16 0.03.",
)
@click.option(
    "--layers",
    is_flag=True,
    help="Compares every value of MODEL, compiled for this CPU with the precision and weights of "
    "ARTIFACT, and names the first node that is wrong.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    default="2GiB",
    show_default=True,
    help="With --layers: bytes of values held at once.",
)
@click.option("--keep-going", is_flag=True, help="With --layers: go on behind a wrong node.")
@click.option(
    "--reproduce",
    metavar="DIR",
    type=OUTPUT,
    help="With --layers: write the smallest model that shows the fault here, with its inputs.",
)
@json_flag
@timeout_flag
def verify(
    model: Path,
    artifact: Path | None,
    inputs: tuple[str, ...],
    seed: int,
    threads: int | None,
    tolerance: float | None,
    layers: bool,
    memory: str,
    keep_going: bool,
    reproduce: Path | None,
    as_json: bool,
) -> int:
    """Compares ARTIFACT (default: compiled now) with the ONNX file MODEL.

    The reference is ONNX Runtime without optimisations if it is installed and takes the types of
    inputs and outputs, else tcc's own evaluator, which is slow.  The exit code is 1 if an output
    differs by more than is allowed, and by three times more than rounding the weights of a narrow
    mode, ONNX Runtime's own optimisations, or inputs rounded otherwise take the reference.

    \b
    Example:
      tcc verify model.onnx model.so --timeout 600
      tcc verify model.onnx --layers --reproduce fault/
    """
    check_pair(model, artifact)
    if model.suffix == ".pt2":
        raise UserError(
            "no reference reads .pt2 archives", where=model, hint="compare with torch itself"
        )
    if layers:
        try:
            limit = read_count(memory, f"--memory {memory}")
        except ValueError as error:
            raise UserError("bad option", why=error) from error
        manifest = read_manifest(artifact) if artifact else {}
        ports = model_inputs(model, inputs)
        _check_arrays(ports, "given to a part of the model")

        def program() -> Program:
            with opened_artifact(artifact or model, inputs) as path:
                return program_of(path)

        arrays = make_inputs(ports, inputs, seed, program)
        allowed = _tolerance(manifest, model) if tolerance is None else tolerance
        options = {"precision": manifest.get("precision"), "weights": manifest.get("quantized")}
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
    if reproduce is not None or keep_going:
        raise UserError(
            "this is for a check layer by layer",
            where="--reproduce, --keep-going",
            hint="add --layers",
        )
    with opened_artifact(artifact or model, inputs) as path:
        module = load(path, threads)
        if artifact is not None:
            _check_same_inputs(artifact, module.inputs, model)
            weights = find_weights(path, dict(module.manifest))
            if weights is not None:
                verify_weights(weights)
        _check_arrays((*module.inputs, *module.outputs), "compared")
        arrays = inputs_of(path, module.inputs, inputs, seed)
        values = as_values(arrays, module.inputs)
        given = _as_the_model_takes(values, module.manifest)
        got = as_values(interruptible(lambda: module.run(arrays, seed=SEED)), module.outputs)
    model, evaluated = click.get_current_context().with_resource(drawn_model(model))
    own = evaluated or any(is_carried(port) for port in (*module.inputs, *module.outputs))
    oracle, (want,) = _expected(model, [given], own)
    allowed = _tolerance(module.manifest, model, module.outputs) if tolerance is None else tolerance
    found = [compare(name, got[name], want[name], allowed) for name in want]
    precision = precision_text(module.manifest)
    if tolerance is None and not all(item.ok for item in found):
        also = [*_also(model, given, own, rounded_weights(model, module.manifest, module.variant))]
        found = [_judged(item, want, also) for item in found]
    failed = [item for item in found if not item.ok]
    if as_json:
        outputs = [asdict(item) for item in found]
        said = {"oracle": oracle, "precision": precision, "tolerance": allowed}
        print_json({**said, "ok": not failed, "outputs": outputs})
        return int(bool(failed))
    say(f"{precision} against f32, errors up to {allowed:g} of the largest value allowed")
    for item in found:
        say(f"{item.output}: error {item.error:.2e}, {_verdict(item, precision)}")
    say(f"{len(found) - len(failed)} of {len(found)} outputs agree with {oracle}")
    return int(bool(failed))


def _also(
    model: Path, inputs: NamedArrays, own: bool, stored: NamedArrays
) -> Iterator[tuple[str, NamedArrays]]:
    """What else may come of the model, and what makes it: weights as they are `stored`, the
    reference's own optimisations, and inputs that are rounded otherwise."""
    if stored:
        yield "rounded weights", _expected(model, [inputs], own, stored)[1][0]
    if _is_onnx_runtime(own):
        with Peer("ort", model, inputs, 1) as peer:
            yield "ONNX Runtime's own optimisations", peer.outputs()
        nudged = [_nudged(inputs, seed) for seed in range(_NUDGES)]
        for made in _expected(model, nudged, own)[1]:
            yield "inputs changed by one rounding", made


def _nudged(inputs: NamedArrays, seed: int) -> dict[str, Array]:
    """`inputs` with every float moved to the next one above or below.  How far the results move is
    an estimate, often too small, of what roundings inside the model may make."""
    rng = np.random.default_rng(seed)
    return {
        name: np.nextafter(x, rng.choice([-np.inf, np.inf], x.shape).astype(x.dtype))
        if np.issubdtype(x.dtype, np.floating)
        else x
        for name, x in inputs.items()
    }


def _is_onnx_runtime(own: bool) -> bool:
    """Whether the reference is ONNX Runtime: it is installed, and takes the types."""
    return not own and find_spec("onnxruntime") is not None


def _judged(
    found: Difference, want: NamedArrays, also: Sequence[tuple[str, NamedArrays]]
) -> Difference:
    """A difference that is too large, by the largest that comes of other causes alone."""
    name = found.output
    costs = [(compare(name, made[name], want[name], 0.0).error, cause) for cause, made in also]
    cost, cause = max(((c, why) for c, why in costs if c < inf), default=(0.0, ""))
    if found.ok or found.why or not cost:
        return found
    why = f"where {cause} alone make {cost:.2e}"
    return replace(found, ok=found.error <= _COSTS * cost, why=why)


def _verdict(found: Difference, precision: str) -> str:
    """What the error of an output means: of less than f32, that it may be what that costs."""
    if found.ok:
        return f"ok {found.why}".rstrip()
    if found.why or precision == "f32":
        return f"WRONG {found.why}".rstrip()
    return f"more than {precision} may cost; compile in f32 to tell its cost from a fault"


def _check_same_inputs(artifact: Path, found: Sequence[Port], model: Path) -> None:
    """Raises UserError where the artifact was made of a model with other inputs."""
    got = [port.name for port in found]
    expected = [port.name for port in model_inputs(model, [f"{name}=" for name in got])]
    if got != expected:
        raise UserError(
            "the artifact was compiled from another model",
            where=artifact,
            why=f"its inputs are {', '.join(got)}; those of {model} are {', '.join(expected)}",
            hint=f"compile it again: tcc compile {model} -o {artifact}",
        )


def _check_arrays(ports: Sequence[Port], use: str) -> None:
    """Raises UserError for a sequence or an optional, by name."""
    for port in ports:
        if "(" in port.dtype:
            raise UserError(
                f"{port.name!r} has no array that could be {use}",
                why=f"it is of type {port.dtype}",
                hint="tcc verify --layers checks what is around lists that a model makes inside",
            )


def _show_layers(report: Report, layers: int, command: str, as_json: bool) -> None:
    first = report.wrong
    if as_json:
        said = {
            "ok": report.fault is None,
            "layers": layers,
            "references": list(report.references),
            "compiles": report.compiles,
            "first_wrong": None if first is None else asdict(first),
            "joined": report.joined,
            "reproduce": command,
        }
        print_json({**said, "values": [asdict(item) for item in report.findings]})
        return
    for line in finding_lines(report.findings):
        say(line)
    oracle = " and ".join(report.references)
    if first is not None:
        right = "what it reads is right" if first.inputs_right else "what it reads is wrong too"
        say(f"the first wrong node is {first.name} ({first.op}): {right}")
        say(f"  its output {first.output}: {_reason(first)}")
    elif report.joined:
        say(f"every node agrees with {oracle}, but these do not when they are compiled together:")
        say("  " + ", ".join(report.joined))
    else:
        say(f"all {layers} nodes agree with {oracle} ({report.compiles} compiles)")
    if command:
        say(f"to see it again: {command}")


def _reason(found: Finding) -> str:
    if found.why:
        return f"{found.verdict}, {found.why}"
    return f"error {found.error:.2e} of the largest value, {found.allowed:.1e} allowed"


def _tolerance(manifest: Mapping[str, Any], model: Path, outputs: Sequence[Port] = ()) -> float:
    """The largest of what the artifact's floats, its integer weights, floats of the model that are
    narrow already, and one step of results of these may cost."""
    modes = (manifest.get("precision", "f32"), manifest.get("quantized"))
    asked = max(TOLERANCES[mode] for mode in modes if mode is not None)
    narrow = [FORMATS.get(DTYPES[port.dtype]) for port in outputs if is_carried(port)]
    steps = [2.0**-item.fraction for item in narrow if item is not None]
    return max(asked, *(_NARROW.get(name, 0.0) for name in float_types(model)), *steps, 0.0)


def _as_the_model_takes(inputs: NamedArrays, manifest: Mapping[str, Any]) -> dict[str, Array]:
    """Copies of an artifact's inputs, which a run may update, for its model: of a cache with room
    for new rows only the old ones.

    Raises UserError where the number of new rows depends on symbolic sizes.
    """
    given = {name: array.copy() for name, array in inputs.items()}
    for item in manifest.get("appends", ()):
        name, axis, rows = item["input"], item["axis"], item["rows"]
        if not isinstance(rows, int):
            raise UserError(
                "cannot tell the old rows of a state from the new ones",
                where=f"input {name}",
                why=f"a run appends {rows} rows, which depends on symbolic sizes",
                hint="compile with --input, which fixes sizes",
            )
        array = given[name]
        if axis < array.ndim and rows <= array.shape[axis]:
            given[name] = np.delete(array, np.s_[array.shape[axis] - rows :], axis)
    return given


def _expected(
    model: Path,
    inputs: Sequence[NamedArrays],
    own: bool,
    weights: NamedArrays = MappingProxyType({}),
) -> tuple[str, list[NamedArrays]]:
    """The oracle's name and its outputs on each of `inputs`, with `weights` for those of the model:
    `own` where others do not take types that NumPy lacks."""
    if not _is_onnx_runtime(own):
        return "the reference evaluator", [evaluate_model(model, x, weights) for x in inputs]
    with temporary_folder() as folder:
        file = folder / "weights.npz"
        write_arrays(file, weights)
        plain = PEERS["ort-plain"]
        row = replace(plain, arguments=(*plain.arguments, str(file)))
        with Peer("ort-plain", model, inputs[0], 1, row=row) as peer:
            found: list[NamedArrays] = [peer.outputs()]
            for others in inputs[1:]:
                peer.give(others)
                found.append(peer.outputs())
            return "ONNX Runtime", found
