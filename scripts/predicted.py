"""Compares predicted and measured times of kernels with symbolic sizes, for `scripts/predictions`.

One artifact of each case serves all its sets of sizes. The predictions are those of `tcc inspect
--measure`; the same functions give them here, so that Python starts only once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from open_cases import model_of, operators
from tcc import runtime
from tcc.artifact import read_manifest
from tcc.cli.arrays import program_of
from tcc.cli.kernels.facts import kernel_facts
from tcc.driver import compile_model
from tcc.ir.op import NamedArrays
from tcc.options import Options
from tcc.runtime.kernel_facts import KernelFacts
from tcc.runtime.kernel_table import StepTime, kernel_rows
from tcc.runtime.step_times import measure_steps
from whole import write_whole

MODELS = ("resnet50", "mobilenet_v2", "unet", "csrnet")
HOLDS = (0.7, 1.4)
MIN_SECONDS = 20e-6  # shorter launches do not count, because most of their time is overhead
_IMAGES = ((96, 416), (160, 320), (224, 224), (352, 480))
_LENGTHS = (28, 65, 199)
_RUNS = 20
_ROUNDS = 6
_SECONDS = 0.04  # all runs of a round take about this time together


@dataclass(frozen=True, slots=True)
class PredictionCase:
    """A model with symbolic sizes, and the sizes at which it is timed.

    `shapes` maps the name of a set of sizes ("224x224") to the shapes of all inputs by name.
    """

    name: str
    source: Path
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The measured and the predicted seconds of a launch of a kernel.

    `predicted` is None if the artifact has no prediction. `sizes` names the set of sizes.
    """

    case: str
    sizes: str
    threads: int
    kernel: str
    predicted: float | None
    measured: float

    @property
    def ratio(self) -> float | None:
        return None if self.predicted is None else self.predicted / self.measured

    @property
    def holds(self) -> bool:
        return self.ratio is not None and HOLDS[0] <= self.ratio <= HOLDS[1]

    @property
    def text(self) -> str:
        predicted = "none" if self.predicted is None else f"{self.predicted * 1e6:.1f}"
        ratio = "none" if self.ratio is None else f"{self.ratio:.2f}"
        times = f"{predicted:>12}{self.measured * 1e6:12.1f}{ratio:>8}"
        return f"{self.case:20}{self.sizes:>9}{self.threads:3} {self.kernel:32.32}{times}"


HEAD = (
    f"{'case':20}{'sizes':>9}{'on':>3} {'kernel':32}{'predicted us':>12}{'measured us':>12}"
    f"{'ratio':>8}"
)


def operator_cases(folder: Path) -> Iterator[PredictionCase]:
    """Yields a case for each operator of `open_cases` and each length of its chains.

    The length of a chain depends on the size. Sizes with chains of equal length share a model,
    which is written to `folder`.
    """
    for operator in operators():
        chains: dict[int, list[int]] = {}
        for size in _LENGTHS:
            chains.setdefault(operator.chain(size), []).append(size)
        for count, sizes in chains.items():
            path = folder / f"{operator.name} {count}.onnx".replace(" ", "_")
            onnx.save(model_of(operator, count, None), path)
            names = [f"x{n}" for n in range(count if operator.own_inputs else 1)]
            shapes = {str(size): dict.fromkeys(names, operator.sized(size)) for size in sizes}
            yield PredictionCase(operator.name, path, shapes)


def model_case(name: str, path: Path) -> PredictionCase:
    """Returns the case of a model whose input is an image of symbolic height and width."""
    return PredictionCase(name, path, {f"{h}x{w}": {"image": (1, 3, h, w)} for h, w in _IMAGES})


def predictions(
    case: PredictionCase, options: Options, threads: Sequence[int], folder: Path
) -> Iterator[Prediction]:
    """Compiles a case and yields a row for each kernel, set of sizes and number of threads.

    Times are kept in `folder` with a hash of the artifact, and are measured again if the hash
    differs.
    """
    artifact = folder / f"{case.source.stem}.so"
    compile_model(case.source, options, artifact)
    facts = kernel_facts(read_manifest(artifact), artifact)
    for (sizes, count), steps in _measured(case, artifact, facts, threads).items():
        yield from _rows(case.name, sizes, count, facts, steps)


_Measured = dict[tuple[str, int], Sequence[StepTime]]


def _measured(
    case: PredictionCase, artifact: Path, facts: KernelFacts, threads: Sequence[int]
) -> _Measured:
    """Maps (name of a set of sizes, number of threads) to the times of the artifact's steps.

    The time of a step is the least of _ROUNDS rounds.
    """
    times_file, digest = (
        artifact.with_suffix(".json"),
        hashlib.sha256(artifact.read_bytes()).hexdigest(),
    )
    contents: dict[str, Any] = json.loads(times_file.read_text()) if times_file.exists() else {}
    times = contents["times"] if contents.get("digest") == digest else {}
    keys = {f"{sizes} {count}": (sizes, count) for sizes in case.shapes for count in threads}
    missing = {key: pair for key, pair in keys.items() if key not in times}
    best: dict[str, Sequence[StepTime]] = {}
    # Sizes and numbers of threads take turns, so that a disturbance hits few rounds of each.
    for _ in range(_ROUNDS):
        for key, (sizes, count) in missing.items():
            steps = _timed(artifact, facts, case.shapes[sizes], count)
            best[key] = [*map(_faster, best.get(key, steps), steps)]
    if best:
        times |= {key: [asdict(step) for step in steps] for key, steps in best.items()}
        write_whole(times_file, json.dumps({"digest": digest, "times": times}))
    return {pair: [*map(_step, times[key])] for key, pair in keys.items()}


def _timed(
    artifact: Path, facts: KernelFacts, shapes: Mapping[str, tuple[int, ...]], threads: int
) -> tuple[StepTime, ...]:
    """Returns each step's median time over the runs of a round, on random inputs of `shapes`."""
    rng = np.random.default_rng(0)
    arrays: NamedArrays = {n: rng.standard_normal(s, np.float32) for n, s in shapes.items()}
    module = runtime.load(artifact, threads, timed=True)
    program = program_of(artifact, module.variant)

    def timed(runs: int) -> tuple[StepTime, ...]:
        return measure_steps(module, program, facts.steps, arrays, runs)

    run_seconds = sum(step.seconds for step in timed(1))
    return timed(min(_RUNS, max(1, int(_SECONDS / max(run_seconds, 1e-9)))))


def _faster(a: StepTime, b: StepTime) -> StepTime:
    return replace(a, seconds=min(a.seconds, b.seconds))


def _step(fields: dict[str, Any]) -> StepTime:
    return StepTime(**{**fields, "sizes": tuple(fields["sizes"])})


def _rows(
    case: str, sizes: str, threads: int, facts: KernelFacts, steps: Sequence[StepTime]
) -> Iterator[Prediction]:
    for row in kernel_rows(facts, steps):
        if row.flops is None and row.predicted is None and not row.source:
            continue  # the step calls a function of the runtime: it is no kernel
        if row.launches and row.measured:
            predicted = None if row.predicted is None else row.predicted / row.launches
            measured = row.measured / row.launches
            yield Prediction(case, sizes, threads, row.name, predicted, measured)


def summary(rows: Sequence[Prediction]) -> Iterator[str]:
    """Yields lines with the share of kernels whose prediction holds (see HOLDS).

    Only launches of at least MIN_SECONDS count. For each number of threads, there is a line for
    each case and set of sizes, and a line for all of them.
    """
    counted_rows = [row for row in rows if row.measured >= MIN_SECONDS]
    for count in sorted({row.threads for row in counted_rows}):
        thread_rows = [row for row in counted_rows if row.threads == count]
        head = f"threads {count}"
        yield f"{head:20}{'sizes':>9}{'kernels':>9}{'hold':>7}{'median ratio':>14}"
        groups: dict[tuple[str, str], list[Prediction]] = {}
        for row in thread_rows:
            groups.setdefault((row.case, row.sizes), []).append(row)
        for (case, sizes), group in (*groups.items(), (("together", ""), thread_rows)):
            share = sum(row.holds for row in group) / len(group)
            ratios = [row.ratio for row in group if row.ratio is not None]
            median_text = f"{np.median(ratios):.2f}" if ratios else "none"
            yield f"{case:20}{sizes:>9}{len(group):9}{share:7.0%}{median_text:>14}"
        yield ""
