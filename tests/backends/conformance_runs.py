"""Ways to run each backend's code in the tests; code of a backend without a row is not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import tcc
from tcc.backends.base import Backend
from tcc.debug import Trace
from tcc.driver import compile_model
from tcc.frontends import load_model
from tcc.ir.graph import constant_bytes
from tcc.options import Options, read_options
from tcc.passes.program.lowered import Lowered
from tcc.variants import BACKENDS, check_options, lower, optimise, resolve_targets, variant_backends

from tests.lib.c_files.run_c import build, run_c, write_c
from tests.lib.interpreter.running import Job, interpreter
from tests.lib.oracle.program.evaluate import evaluate_program

from .conformance_cases import Array, Feeds

Run = Callable[[onnx.ModelProto, str, Path], Callable[[Feeds], Sequence[Array]]]
# A bare kind with several architectures stands for this architecture.
TARGETS = {kind: kind for kind in BACKENDS} | {"cuda": "cuda:sm_90", "rocm": "rocm:gfx942"}


@dataclass(frozen=True)
class Made:
    """A model lowered for a variant."""

    code: Backend
    lowered: Lowered


def options_of(kind: str) -> Options:
    return read_options({"target": TARGETS[kind]})


def lowered(model: onnx.ModelProto, kind: str, opened: ExitStack | None = None) -> Made:
    """Lowers a model as the driver does, with its checks."""
    options = options_of(kind)
    targets = resolve_targets(options)
    check_options(options, targets)
    graph = load_model(model, {})
    codes = variant_backends(targets, options, constant_bytes(graph), opened)
    optimised = optimise(graph, codes, options, Trace())
    for code, graphs in zip(codes, optimised, strict=True):
        for variant in graphs:
            code.check(variant)
    ((code, (first, *_)),) = lower(codes, optimised, Trace())
    return Made(code, first)


def native(model: onnx.ModelProto, kind: str, folder: Path) -> Callable[[Feeds], Sequence[Array]]:
    """Compiles an artifact and returns its run in this process."""
    out = compile_model(model, options_of(kind), folder / "model.so").path
    module = tcc.load(out)
    return lambda feeds: list(module.run(dict(feeds)).values())


def interpreted(
    model: onnx.ModelProto, kind: str, folder: Path
) -> Callable[[Feeds], Sequence[Array]]:
    """Returns a run of the program's evaluator, with kernels in Triton's interpreter."""
    lowering = lowered(model, kind).lowered
    section = [part() for part in lowering.weights.parts()]
    weights = np.concatenate(section) if section else np.zeros(0, np.uint8)

    def run(number: int, arrays: Sequence[Array], sizes: Mapping[str, int]) -> None:
        results = interpreter().run(Job(lowering.kernels[number], arrays, sizes), "ieee")
        for array, result in zip(arrays, results, strict=True):
            if array.flags.writeable:
                array[...] = result

    def call(feeds: Feeds) -> Sequence[Array]:
        inputs = [feeds[port.name] for port in lowering.program.inputs]
        return evaluate_program(lowering.program, lowering.kernels, inputs, weights, run=run)

    return call


def as_c(model: onnx.ModelProto, kind: str, folder: Path) -> Callable[[Feeds], Sequence[Array]]:
    """Returns a run of the C file, compiled by gcc."""
    library, graph = build(write_c(model, folder)), load_model(model, {})
    return lambda feeds: list(run_c(library, graph, feeds).values())


RUNS: dict[str, Run] = {"cpu": native, "cuda": interpreted, "rocm": interpreted, "c": as_c}
# Reasons why a backend refuses a model that all others run, or has no prices.
REFUSED = {("c", "symbolic"): "its arena is static"}
UNPRICED = {"c": "a C file is for every machine"}
