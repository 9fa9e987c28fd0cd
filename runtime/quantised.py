"""Ways to quantise a model: how they score, which layers stay in f32, and the tables of both."""

from __future__ import annotations

import json
import math
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from tcc.runtime.agreement import Scores
from tcc.runtime.arrays import Array
from tcc.runtime.interleaved import Times, interleaved, paired_ratio
from tcc.runtime.module import Module
from tcc.runtime.reports import InputError
from tcc.runtime.samples import StoredSamples

_ALONE = 8  # about so many samples give the error of a layer alone
_ROUNDS, _SECONDS = 5, 0.1  # of the times of a model
_SHOWN = 10  # layers in the table for people


@dataclass(frozen=True, slots=True)
class QuantisationBounds:
    """Bounds that a quantised model has to keep: the largest error, the least top-1 agreement.

    None is no bound; `Scores` defines both numbers.
    """

    error: float | None = None
    top1: float | None = None

    @property
    def text(self) -> str:
        """Returns the bounds as the options of `tcc quantize`."""
        options = (("--error", self.error), ("--top1", self.top1))
        return " ".join(f"{name} {bound:g}" for name, bound in options if bound is not None)

    def hold(self, scores: Scores) -> bool:
        """True if the scores keep both bounds."""
        return (self.error is None or scores.error <= self.error) and (
            self.top1 is None or (scores.top1 or 0.0) >= self.top1
        )

    def check_classes(self, scores: Scores) -> None:
        """Raises InputError if `top1` is a bound, and no output has classes."""
        if self.top1 is not None and scores.top1 is None:
            raise InputError(
                "the model has no classes",
                where=f"--top1 {self.top1:g}",
                why="no output of numbers has a last axis of several entries",
                hint="bound the error: --error 0.02",
            )


@dataclass(frozen=True, slots=True)
class Quantisation:
    """A way to quantise a model; without `layers` it is the model in f32.

    `layers` are the names of the quantised layers, `in_f32` those of the other layers that could be
    quantised. `method` is the calibration method, and with `per_channel` each output channel of a
    weight has a scale.
    """

    layers: tuple[str, ...] = ()
    method: str = ""
    per_channel: bool = False
    in_f32: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Returns a short name, which no other choice of a table has.

        A number such as -2 says how many of the layers stay in f32.
        """
        if not self.layers:
            return "f32"
        words = ["channel" if self.per_channel else "tensor", self.method.lower()]
        words += [f"-{len(self.in_f32)}"] * bool(self.in_f32)
        return " ".join(words)

    def without(self, layers: Sequence[str]) -> Quantisation:
        """Returns the choice with some of its layers in f32."""
        int8_layers = tuple(name for name in self.layers if name not in layers)
        return replace(self, layers=int8_layers, in_f32=tuple(layers))


@dataclass(frozen=True, slots=True)
class QuantisedModel:
    """The model of a choice, an ONNX file, with its scores.

    `module` is the model as tcc compiled it to `artifact`, and `sample` what it is timed with.
    """

    choice: Quantisation
    model: Path
    artifact: Path
    module: Module
    sample: Mapping[str, Array]
    scores: Scores

    @property
    def kind(self) -> str:
        """Returns the name of the choice."""
        return self.choice.name

    def seconds(self, count: int) -> list[float]:
        """Returns the wall seconds of each of `count` runs."""
        seconds = []
        for _ in range(count):
            begin = time.perf_counter()
            self.module.run(self.sample)
            seconds.append(time.perf_counter() - begin)
        return seconds


def check_files(model: Path, output: Path) -> None:
    """Raises InputError if `model` is an archive, or the file `output` cannot be written.

    `output` may not be the file `model`.
    """
    if model.suffix == ".pt2":
        raise InputError(
            "only ONNX files are quantised", where=str(model),
            hint="export the model with torch.onnx.export, or see tcc compile --weights int8",
        )  # fmt: skip
    hint = "name a file in a folder that exists"
    if output.exists() and model.exists() and output.samefile(model):
        raise InputError(
            "the output is the model", where=str(output), hint="give the output another name"
        )
    if output.is_dir() or not output.parent.is_dir():
        why = "it is a folder" if output.is_dir() else f"there is no folder {output.parent}"
        raise InputError("the output cannot be written", where=str(output), why=why, hint=hint)
    if not os.access(output if output.exists() else output.parent, os.W_OK):
        why = "it may not be written to"
        raise InputError("the output cannot be written", where=str(output), why=why, hint=hint)


def checked_layers(facts: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Returns the names of the layers that can be quantised.

    `facts` has `layers` and `integer_nodes`, names of nodes. Raises InputError for a model without
    layers, or with integer nodes; `where` is its path.
    """
    if facts["integer_nodes"]:
        raise InputError(
            "the model is quantised already",
            where=f"{where}, node {facts['integer_nodes'][0]}",
            hint="give the model in f32 from which it was made",
        )
    if not facts["layers"]:
        raise InputError(
            "no layer can be quantised",
            where=where,
            why="no convolution or matrix product of the model's graph has weights in f32; bodies "
            "of If, Loop and Scan stay as they are",
            hint="see tcc compile --weights int8, which needs no samples",
        )
    return tuple(facts["layers"])


@dataclass(slots=True)
class QuantisationSearch:
    """Searches the best choice for the model `source`, an ONNX file.

    The first `calibrated` of `samples` give the ranges of values; the others give the scores, or
    all samples if there are no others. `ask` sends a line to a worker that quantises the model
    (`tcc.runtime.quantiser`). `compiled(MODEL, ARTIFACT)` compiles an ONNX file and returns the
    loaded artifact. `stage` is called with what begins.

    `layers` are the layers that can be quantised. `models` has the measured models, the first in
    f32. `layer_errors` has the mean error of the model if a layer alone is quantised.
    """

    source: Path
    samples: StoredSamples
    calibrated: int
    bounds: QuantisationBounds
    ask: Callable[[str], Mapping[str, Any]]
    compiled: Callable[[Path, Path], Module]
    stage: Callable[[str], None]
    layers: tuple[str, ...] = ()
    models: list[QuantisedModel] = field(default_factory=list)
    layer_errors: dict[str, float] = field(default_factory=dict)

    @property
    def numbers(self) -> range:
        """Returns the numbers of the samples that give the scores."""
        count = self.samples.count
        return range(self.calibrated if count > self.calibrated else 0, count)

    def best(self, methods: Sequence[str]) -> QuantisedModel | None:
        """Returns the model with the smallest mean error if it keeps the bounds.

        Otherwise its most sensitive layers stay in f32, the fewest with which the bounds hold; more
        layers in f32 are taken to keep bounds that fewer keep. Returns None if at least one
        quantised layer exceeds the bounds. Raises InputError for a model that cannot be quantised,
        and for a bound on classes of a model that has none.
        """
        self.layers = checked_layers(self.ask("layers"), str(self.source))
        layers = self.layers
        self.bounds.check_classes(self._measured(Quantisation()).scores)
        models = [
            self._measured(Quantisation(layers, *way)) for way in product(methods, (False, True))
        ]
        best = min(models, key=lambda item: item.scores.mean_error)
        if self.bounds.hold(best.scores):
            return best
        few = range(0, self.calibrated, max(1, self.calibrated // _ALONE))
        for number, layer in enumerate(layers):
            self.stage(f"layer {number + 1} of {len(layers)} alone")
            single = replace(best.choice, layers=(layer,))
            self.layer_errors[layer] = self._scores(single, few).mean_error
        order = sorted(layers, key=self.layer_errors.__getitem__, reverse=True)
        choices = [best.choice.without(order[:count]) for count in range(1, len(order))]
        for choice in choices[bisect_left(choices, True, key=self._holds) :]:
            model = self._measured(choice)
            # The artifact rounds elsewhere than ONNX Runtime, so a bound may need one more layer.
            if self.bounds.hold(model.scores):
                return model
        return None

    def _measured(self, choice: Quantisation) -> QuantisedModel:
        """Compiles the model of a choice, and adds it to `models` with its artifact's scores."""
        self.stage(f"measuring {choice.name}")
        number = len(self.models)
        artifact = self.samples.folder / f"{number}.so"
        model = self.source
        if choice.layers:
            model = artifact.with_suffix(".onnx")
            self._scores(choice, (), model)
        module = self.compiled(model, artifact)
        scores = self.samples.scores(module.run, self.numbers)
        sample = self.samples.inputs(0)
        self.models.append(QuantisedModel(choice, model, artifact, module, sample, scores))
        return self.models[-1]

    def _holds(self, choice: Quantisation) -> bool:
        self.stage(f"trying {choice.name}")
        return self.bounds.hold(self._scores(choice, self.numbers))

    def _scores(
        self, choice: Quantisation, numbers: Sequence[int], path: Path | None = None
    ) -> Scores:
        """Returns the scores of a choice in ONNX Runtime, and writes its model to `path`."""
        job = {**asdict(choice), "samples": [*numbers], "path": path and str(path)}
        return Scores(**self.ask(json.dumps(job))["scores"])

    def times(self) -> Mapping[str, Times]:
        """Returns the times of the measured models, which run in turns, by name."""
        return interleaved(self.models, _ROUNDS, _SECONDS)

    def tables(
        self, times: Mapping[str, Times], winner: QuantisedModel | None
    ) -> Iterator[list[tuple[str, ...]]]:
        """Yields the table of models, and that of sensitive layers if they were measured.

        The first row of a table is its head.
        """
        yield [*self._model_rows(times)]
        if self.layer_errors:
            yield [*self._layer_rows(winner)]

    def _model_rows(self, times: Mapping[str, Times]) -> Iterator[tuple[str, ...]]:
        yield "choice", "int8", "error", "mean", "top-1", "top-5", "model", "time", "speed"
        for item in self.models:
            scores, ratio = (
                item.scores,
                paired_ratio(times[item.kind].rounds, [times[self.models[0].kind].rounds]),
            )
            yield (
                item.kind, f"{len(item.choice.layers)}/{len(self.layers)}",
                f"{scores.error:.1e}", f"{scores.mean_error:.1e}",
                _percent(scores.top1), _percent(scores.top5),
                _size(item.model),
                f"{times[item.kind].best * 1e3:.3g} ms", f"{ratio:.2f}x",
            )  # fmt: skip

    def _layer_rows(self, winner: QuantisedModel | None) -> Iterator[tuple[str, ...]]:
        errors = self.layer_errors
        in_f32 = () if winner is None else winner.choice.in_f32
        yield "most sensitive layers", "mean error alone", ""
        for name in sorted(errors, key=lambda name: -errors[name])[:_SHOWN]:
            yield name, f"{errors[name]:.1e}", "f32" if name in in_f32 else ""

    def last_line(self, winner: QuantisedModel | None, output: Path) -> str:
        """Returns the line that says what was written to `output`, or that nothing was."""
        scored = f"scored on {len(self.numbers)} samples"
        if winner is None:
            return f"nothing is written: no choice keeps {self.bounds.text}, {scored}"
        layers = f"{len(winner.choice.layers)} of {len(self.layers)} layers in int8"
        return f"wrote {output}: {layers}, {_size(winner.model)}, {scored}"

    def record(self, times: Mapping[str, Times], winner: QuantisedModel | None) -> dict[str, Any]:
        """Returns all tables as an object for JSON; `winner` is the model that is written.

        An error is null if a result has a NaN or an infinity that is not expected.
        """
        return {
            "chosen": None if winner is None else winner.kind,
            "samples": {"calibration": self.calibrated, "scores": len(self.numbers)},
            "models": [
                {
                    "name": item.kind,
                    **asdict(item.choice),
                    **_finite(asdict(item.scores)),
                    "model_bytes": item.model.stat().st_size,
                    "artifact_bytes": item.artifact.stat().st_size,
                    "seconds": times[item.kind].best,
                }
                for item in self.models
            ],
            "layer_errors": _finite(self.layer_errors),
        }


def _finite(numbers: Mapping[str, float | None]) -> dict[str, float | None]:
    """Returns numbers with None in place of infinities, which JSON lacks."""
    return {name: None if number == math.inf else number for name, number in numbers.items()}


def _size(path: Path) -> str:
    size = path.stat().st_size
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.4g}%"
