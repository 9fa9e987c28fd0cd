"""Chooses the layers that `--precision int8` computes in bytes, by the error that bytes cause.

    matmul  node_MatMul_45   error 0.0093   int8
    matmul  node_MatMul_88   error 0.0310   f32        more than --int8-error

The error of a layer is the root mean square of the difference that bytes make in its result,
divided by the root mean square of the result.  A worker runs the model in f32 on this machine, and
each layer on the f32 model's values in both ways: on the samples of --calibrate, else on noise.
Convolutions need the ranges of samples, so they stay in f32 without them.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import hypot, inf, isfinite, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from tcc.backends.artifact.variant import Variant
from tcc.debug import Trace
from tcc.errors import UserError
from tcc.ir.graph import Graph, constant_bytes, walk_nodes
from tcc.ir.op import Array
from tcc.noise import graph_ports, noise
from tcc.options import Options
from tcc.passes.derive.algebra.fold_factors import fold_factors
from tcc.passes.graph.canonicalize import canonicalize
from tcc.passes.graph.fold_constants import fold_constants
from tcc.passes.graph.settle_sizes import settle_sizes
from tcc.passes.quantize.int8_layers import (
    Probe,
    error_probe,
    int8_layers,
    levels_of_range,
    range_probe,
    with_int8_layers,
)
from tcc.preprocess import input_errors
from tcc.runtime.sample_outputs import sample_outputs
from tcc.runtime.samples import StoredSamples, file_arrays, stacked_arrays
from tcc.runtime.worker_process import WorkerError
from tcc.temporary import temporary_folder
from tcc.variants import common_facts, make_variants, optimise, resolve_targets, variant_backends

# Ops on values that a model has quantised itself.
_QUANTISED = ("quant", "integer", "levels")
_SMALLEST = 1e-60  # a smaller sum of squares counts as this one


def of_variant(facts: Mapping[str, Any], variant: Variant) -> Variant:
    """Returns `variant` with the counts of weights by type, and the names of those in f32.

    `facts` are those of `with_int8`.
    """
    layers = facts["layers"]
    counts = Counter("int8" if layer["int8"] else "f32" for layer in layers)
    wide = [layer["weight"] for layer in layers if not layer["int8"]]
    return replace(variant, facts={**variant.facts, "weight_types": dict(counts), "wide": wide})


def with_int8(
    graph: Graph, options: Options, trace: Trace | None = None
) -> tuple[Graph, dict[str, Any]]:
    """Returns `graph` with layers computed in bytes as the options ask, and the manifest's facts.

    The facts are the bound of errors, the number of samples (0 for noise), the error that all
    layers together are expected to cause, and for each layer the place of its node, its op, its
    weight, its error (None if bytes cannot compute it) and whether bytes compute it.  For another
    precision, returns `graph` itself and no facts.  The measurement is a stage of `trace`.

    Raises UserError for a model that is quantised already, that has no layer which bytes can
    compute, or that does not run on the samples.
    """
    if options.precision != "int8":
        return graph, {}
    for node in walk_nodes(graph):
        if any(word in node.op.name for word in _QUANTISED):
            raise UserError(
                "the model is quantised already",
                where=f"--precision int8, node {node.loc}",
                hint="leave --precision out, or give the model in f32 from which it was made",
            )
    graph = canonicalize(fold_constants(settle_sizes(graph)))
    if options.derive and options.numerics != "strict":
        graph = fold_factors(graph)
    with (trace or Trace()).stage("measure int8"), temporary_folder() as folder:
        samples = StoredSamples(folder)
        count = _read_samples(graph, options, samples)
        ranges = _measured(range_probe(graph), options, samples) if count else {}
        levels = {
            name: levels_of_range(runs[:, 0].min(), runs[:, 1].max())
            for name, runs in ranges.items()
            if np.isfinite(runs).all()
        }
        sums = _measured(error_probe(graph, levels), options, samples)
    if not sums:
        raise UserError(
            "bytes can compute no layer of the model",
            where="--precision int8",
            why="layers are matmuls of f32 with a finite constant matrix of at least 16,384 "
            "elements and, with --calibrate, convolutions; bodies of If, Loop and Scan stay",
            hint="leave --precision out",
        )
    errors = {name: _error(*runs.sum(0)) for name, runs in sums.items()}
    int8_levels = {n: levels.get(n) for n, error in errors.items() if error <= options.int8_error}
    layers = [
        {
            "layer": node.loc,
            "op": node.op.name,
            "weight": " ".join(graph.store.sources(graph.constants[weight])) or weight.name,
            "error": errors.get(node.result.name),
            "int8": node.result.name in int8_levels,
        }
        for node, weight in int8_layers(graph).items()
    ]
    # Errors of layers are taken as independent, and later layers as keeping their size.
    cost = hypot(*map(errors.__getitem__, int8_levels))
    facts = {"bound": options.int8_error, "samples": count, "cost": cost, "layers": layers}
    return with_int8_layers(graph, int8_levels), facts


def _error(error: float, exact: float) -> float:
    """Returns a relative root mean square, with three digits, from two sums of squares."""
    return float(f"{sqrt(error / max(exact, _SMALLEST)):.3g}") if isfinite(error + exact) else inf


@input_errors()
def _read_samples(graph: Graph, options: Options, samples: StoredSamples) -> int:
    """Stores the samples of --calibrate, or one of noise; returns the number of the former."""
    ports, texts = graph_ports(graph), [*map(str, options.calibrate)]
    if not texts:
        samples.put(ports, noise(graph))
        return 0
    if len(texts) == 1 and texts[0].endswith(".npz") and Path(texts[0]).is_file():
        for arrays in stacked_arrays(ports, texts[0]):
            samples.put(ports, arrays, texts[0])
    else:
        samples.add(ports, texts, partial(file_arrays, ports))
    return samples.check_ranges(", ".join(texts))


def _measured(probe: Probe, options: Options, samples: StoredSamples) -> dict[str, Array]:
    """Returns the outputs of a probe for each layer: f64, with a row of two for each sample.

    This machine runs it in f32.
    """
    graph, names = probe
    if not names:
        return {}
    plain = Options(derive=False, jobs=options.jobs, budgets=options.budgets)
    targets, trace = resolve_targets(plain), Trace()
    with temporary_folder() as folder:
        artifact = folder / "probe.so"
        codes = variant_backends(targets, plain, constant_bytes(graph))
        variants = make_variants(graph, optimise(graph, codes, plain, trace), codes, plain, trace)
        facts = common_facts(targets, plain, len(graph.nodes))
        codes[0].write(variants, facts, "probe", artifact, targets[0].triple)
        try:
            outputs = np.array([*sample_outputs(artifact, samples)], np.float64)
        except WorkerError as error:
            raise UserError(
                "the model does not run on the samples",
                where=", ".join(map(str, options.calibrate)) or "noise",
                why=error.why,
                hint="give samples like the inputs in use: --calibrate DATA",
            ) from error
    return {name: outputs[:, 2 * n : 2 * n + 2] for n, name in enumerate(names)}
