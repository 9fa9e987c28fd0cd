"""`tcc verify`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
from tcc.cli.arrays import make_inputs
from tcc.cli.choices import PATH, input_flag, json_flag, seed_flag, threads_flag
from tcc.cli.opened import opened_artifact
from tcc.cli.peer import Peer
from tcc.driver import evaluate_model, load, precision_text
from tcc.errors import UserError
from tcc.ir.op import Array
from tcc.options import TOLERANCES


@dataclass(frozen=True, slots=True)
class Difference:
    """How one output compares: `error` is the largest difference over the largest expected
    magnitude (for other than floats: the share of elements that differ)."""

    output: str
    error: float
    ok: bool
    why: str = ""


def compare(output: str, got: Array, want: Array, tolerance: float) -> Difference:
    """Floats agree within `tolerance` of the largest finite expected value and have NaN and
    infinities at the same places; all else is equal."""
    if got.shape != want.shape or got.dtype != want.dtype:
        why = f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
        return Difference(output, float("inf"), False, why)
    if want.dtype.kind != "f":
        error = float(np.mean(got != want)) if want.size else 0.0
        return Difference(output, error, error == 0.0, "elements differ" if error else "")
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True) or not np.all(
        np.isfinite(got[finite])
    ):
        return Difference(output, float("inf"), False, "NaN or infinity at other places")
    expected = want[finite].astype(np.float64)
    largest = float(np.max(np.abs(expected), initial=0.0))
    distance = float(np.max(np.abs(got[finite].astype(np.float64) - expected), initial=0.0))
    error = distance / largest if largest else distance
    return Difference(output, error, error <= tolerance)


@click.command()
@click.argument("model", type=PATH)
@click.argument("artifact", type=PATH, required=False)
@input_flag
@seed_flag
@threads_flag
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    help="Largest error allowed, relative to the largest expected value; default: "
    + ", ".join(f"{name} {allowed:g}" for name, allowed in TOLERANCES.items())
    + ".",
)
@json_flag
def verify(
    model: Path,
    artifact: Path | None,
    inputs: tuple[str, ...],
    seed: int,
    threads: int | None,
    tolerance: float | None,
    as_json: bool,
) -> int:
    """Compares ARTIFACT (default: compiled now) with the ONNX file MODEL.

    The reference is ONNX Runtime without optimisations if it is installed, else tcc's own
    evaluator, which is slow.  The exit code is 1 if an output differs.

    \b
    Example:
      tcc verify model.onnx model.so
    """
    with opened_artifact(artifact or model) as path:
        module = load(path, threads)
        arrays = make_inputs(module.inputs, inputs, seed)
        given = _as_the_model_takes(arrays, module.manifest)
        got = module.run(arrays)
    oracle, want = _expected(model, given)
    allowed = _tolerance(module.manifest) if tolerance is None else tolerance
    found = [compare(name, got[name], want[name], allowed) for name in want]
    precision = precision_text(module.manifest)
    failed = [item for item in found if not item.ok]
    if as_json:
        outputs = [asdict(item) for item in found]
        said = {"oracle": oracle, "precision": precision, "tolerance": allowed}
        click.echo(json.dumps({**said, "ok": not failed, "outputs": outputs}))
        return int(bool(failed))
    click.echo(f"{precision} against f32, errors up to {allowed:g} of the largest value allowed")
    for item in found:
        verdict = "ok" if item.ok else f"WRONG {item.why}".rstrip()
        click.echo(f"{item.output}: error {item.error:.2e}, {verdict}")
    click.echo(f"{len(found) - len(failed)} of {len(found)} outputs agree with {oracle}")
    return int(bool(failed))


def _tolerance(manifest: Mapping[str, Any]) -> float:
    """The larger of what the artifact's floats and its integer weights may cost."""
    modes = (manifest.get("precision", "f32"), manifest.get("quantized"))
    return max(TOLERANCES[mode] for mode in modes if mode is not None)


def _as_the_model_takes(
    inputs: Mapping[str, Array], manifest: Mapping[str, Any]
) -> dict[str, Array]:
    """Copies of an artifact's inputs, which a run may update, for its model: of a cache with room
    for new rows only the old ones.

    Raises UserError where the number of new rows depends on open sizes.
    """
    given = {name: array.copy() for name, array in inputs.items()}
    for item in manifest.get("appends", ()):
        name, axis, rows = item["input"], item["axis"], item["rows"]
        if not isinstance(rows, int):
            raise UserError(
                "cannot tell the old rows of a state from the new ones",
                where=f"input {name}",
                why=f"a run appends {rows} rows, which depends on open sizes",
                hint="compile with --input, which fixes sizes",
            )
        array = given[name]
        if axis < array.ndim and rows <= array.shape[axis]:
            given[name] = np.delete(array, np.s_[array.shape[axis] - rows :], axis)
    return given


def _expected(model: Path, inputs: Mapping[str, Array]) -> tuple[str, Mapping[str, Array]]:
    """The oracle's name and its outputs."""
    if find_spec("onnxruntime") is None:
        return "the reference evaluator", evaluate_model(model, inputs)
    with Peer("ort-plain", model, inputs, 1) as peer:
        return "ONNX Runtime", peer.outputs()
