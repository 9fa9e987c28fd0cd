"""How the code of each backend is run in the tests; one without a row is generated and not run."""

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
# One architecture of a kind, where the bare kind has many.
TARGETS = {kind: kind for kind in BACKENDS} | {"cuda": "cuda:sm_90", "rocm": "rocm:gfx942"}


@dataclass(frozen=True)
class Made:
    """A model lowered for one variant."""

    code: Backend
    lowered: Lowered


def options_of(kind: str) -> Options:
    return read_options({"target": TARGETS[kind]})


def lowered(model: onnx.ModelProto, kind: str, opened: ExitStack | None = None) -> Made:
    """As the driver lowers it, with its checks."""
    options = options_of(kind)
    targets = resolve_targets(options)
    check_options(options, targets)
    graph = load_model(model, {})
    codes = variant_backends(targets, options, constant_bytes(graph), opened)
    optimised = optimise(graph, codes, options, Trace())
    for code, graphs in zip(codes, optimised, strict=True):
        for each in graphs:
            code.check(each)
    ((code, (first, *_)),) = lower(codes, optimised, Trace())
    return Made(code, first)


def native(model: onnx.ModelProto, kind: str, folder: Path) -> Callable[[Feeds], Sequence[Array]]:
    """The artifact, loaded into this process."""
    out = compile_model(model, options_of(kind), folder / "model.so").path
    module = tcc.load(out)
    return lambda feeds: list(module.run(dict(feeds)).values())


def interpreted(
    model: onnx.ModelProto, kind: str, folder: Path
) -> Callable[[Feeds], Sequence[Array]]:
    """The program by its evaluator, its kernels by Triton's interpreter."""
    made = lowered(model, kind).lowered
    section = [part() for part in made.weights.parts()]
    weights = np.concatenate(section) if section else np.zeros(0, np.uint8)

    def run(number: int, arrays: Sequence[Array], sizes: Mapping[str, int]) -> None:
        results = interpreter().run(Job(made.kernels[number], arrays, sizes), "ieee")
        for array, result in zip(arrays, results, strict=True):
            if array.flags.writeable:
                array[...] = result

    def call(feeds: Feeds) -> Sequence[Array]:
        given = [feeds[port.name] for port in made.program.inputs]
        return evaluate_program(made.program, made.kernels, given, weights, run=run)

    return call


def as_c(model: onnx.ModelProto, kind: str, folder: Path) -> Callable[[Feeds], Sequence[Array]]:
    """The C file, compiled by gcc."""
    library, graph = build(write_c(model, folder)), load_model(model, {})
    return lambda feeds: list(run_c(library, graph, feeds).values())


RUNS: dict[str, Run] = {"cpu": native, "cuda": interpreted, "rocm": interpreted, "c": as_c}
# What a backend refuses of the models that all others take, and backends without prices; why.
REFUSED = {("c", "symbolic"): "its arena is static"}
UNPRICED = {"c": "a C file is for every machine"}
