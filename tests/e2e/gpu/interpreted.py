"""Whole models whose kernels run as Triton text in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from tcc.backends.gpu.backend import GpuBackend
from tcc.debug import Trace
from tcc.frontends import load_model
from tcc.options import read_options
from tcc.passes.pipeline import run_pipeline
from tcc.variants import resolve_targets

from tests.lib.agreement import Array
from tests.lib.interpreter.running import Job, interpreter
from tests.lib.oracle.program.evaluate import evaluate_program

from .test_block_models import weights_of


class InterpretedModel:
    """A model compiled for a GPU. `kernels` is the number of its kernels; `ran` holds the numbers
    of the kernels that have run."""

    def __init__(self, model: onnx.ModelProto, target: str, precision: str = "f32") -> None:
        options = read_options({"target": target, "precision": precision})
        self._graph = run_pipeline(load_model(model, {}), options.level, Trace(None, None))
        self._code = GpuBackend(resolve_targets(options)[0], options).lower(self._graph, Trace())
        self._weights = weights_of(self._code) if self._code.weights.size else np.zeros(0, np.uint8)
        self._dot = "ieee" if precision == "f32" else precision
        self.ran: set[int] = set()

    @property
    def kernels(self) -> int:
        return len(self._code.kernels)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the model's outputs."""
        arrays = [feeds[value.name] for value in self._graph.inputs]
        results = evaluate_program(
            self._code.program, self._code.kernels, arrays, self._weights, run=self._launch
        )
        pairs = zip(self._graph.outputs, results, strict=True)
        return {value.name: np.asarray(array) for value, array in pairs}

    def _launch(self, number: int, arrays: Sequence[Array], sizes: Mapping[str, int]) -> None:
        self.ran.add(number)
        results = interpreter().run(Job(self._code.kernels[number], arrays, sizes), self._dot)
        for array, result in zip(arrays, results, strict=True):
            if array.flags.writeable:
                array[...] = result
