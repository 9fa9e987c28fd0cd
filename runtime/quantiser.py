"""The worker that quantises a model for `tcc quantize`: the protocol, apart from the quantiser.

The answer to the line `layers` has `layers` and `integer_nodes` of the quantiser.  Another line is
a JSON object: `method`, `per_channel` and `layers` say how the model is quantised, and a `path`
where it is written.  The answer has `scores`, those of the quantised model on the `samples` of the
object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from tcc.runtime.samples import Run, StoredSamples
from tcc.runtime.worker import Arrays, answer_lines


class Quantizer(Protocol):
    """A quantiser of one model."""

    @property
    def layers(self) -> Sequence[str]:
        """Returns the names of the nodes that it can quantise."""

    @property
    def integer_nodes(self) -> Sequence[str]:
        """Returns the names of nodes that are quantised in the file."""

    def ranges(self, method: str, samples: Iterable[Arrays]) -> Any:
        """Returns the ranges of values in runs on the samples."""

    def quantized(self, ranges: Any, layers: Sequence[str], per_channel: bool) -> bytes:
        """Returns the ONNX file with quantised layers."""


def serve_quantizer(
    quantizer: Quantizer,
    model: str,
    open_model: Callable[[str | bytes], Run],
    samples: StoredSamples,
    calibrated: int,
    count: int,
) -> None:
    """Answers lines of stdin until it ends.

    It first runs the ONNX file `model` on the first `count` samples, and stores its outputs as
    those that are expected. The first `calibrated` samples give the ranges. `open_model` returns a
    function that runs the path or the bytes of an ONNX file.
    """

    @cache
    def ranges(method: str) -> Any:
        return quantizer.ranges(method, map(samples.inputs, range(calibrated)))

    def answer(line: str) -> Mapping[str, Any]:
        if line == "start":
            samples.expect(open_model(model), count)
        if not line.startswith("{"):
            return {"layers": quantizer.layers, "integer_nodes": quantizer.integer_nodes}
        job = json.loads(line)
        data = quantizer.quantized(ranges(job["method"]), job["layers"], job["per_channel"])
        if job["path"]:
            Path(job["path"]).write_bytes(data)
        return {"scores": asdict(samples.scores(open_model(data), job["samples"]))}

    answer_lines("start", answer)
