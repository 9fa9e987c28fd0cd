"""Comparisons of `tcc verify`: draws of inputs, runs of the reference, verdicts."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tcc.cli.arrays import Draw, is_carried
from tcc.cli.peers.peer import PEERS, Peer
from tcc.cli.reference import ReferenceJob, reference_of, run_reference
from tcc.driver import float_types, input_values
from tcc.errors import ToolError, UserError
from tcc.frontends.rounding import artifact_rounding, changed_rounding
from tcc.ir.narrow import FORMATS
from tcc.ir.op import Array, NamedArrays
from tcc.ir.types import DTYPES
from tcc.options import TOLERANCES
from tcc.passes.graph.state import NarrowStates
from tcc.runtime import Module, ModulePort
from tcc.runtime.agreement import class_shares
from tcc.runtime.allowance import allowance, judged
from tcc.runtime.compare import compare
from tcc.runtime.verdict_text import Verdict
from tcc.zipped import zip_equal

# The factors by which successive draws multiply floats. Some functions are flat for large inputs,
# so small inputs are drawn too.
_SCALES = (1.0, 1.0, 2.0**-4, 2.0**-4)
_LEAST = 2
# The seed of the draws with which allowed errors are computed.
_FIXED_SEED = 1 << 40
# The draws of the fixed seed are made this many times, with different numbers. Errors grow more in
# some draws than in others, so one set is not enough.
_FIXED_ROUNDS = 4
# How many perturbed runs of the reference show how far rounding noise grows.
_NOISES = 2
# The error that is always allowed if the model itself computes in f16 or bf16: eight rounding units
# of the type.
_NARROW = {"f16": 2.0**-8, "bf16": 2.0**-5}


def draws_of(model: Path, evaluator_only: bool, seed: int) -> tuple[list[Draw], ...]:
    """Returns three lists of draws: draws with `seed`, fixed draws, and spare fixed draws.

    The allowed errors are computed with the fixed draws, which have the fixed seed and so never
    change. The spare draws replace the `larger` fixed draws of models that allow no larger sizes.
    A model may compare a scalar input with a single integer to choose a branch; every second draw
    uses that integer. The evaluator is slow and gets fewer draws. `evaluator_only`: only tcc's
    evaluator can run the model.
    """
    values = input_values(model)
    ranges = {name: numbers for name, numbers in values.items() if len(numbers) > 1}
    scales = _scales(model, evaluator_only)

    def draws(start: int, number: int) -> list[Draw]:
        return [
            Draw(start, number + n, scale, _LEAST, larger, values if n % 2 else ranges)
            for larger in (False, True)
            for n, scale in enumerate(scales)
        ]

    batches = [draws(_FIXED_SEED, 1 + 4 * n) for n in range(2 * _FIXED_ROUNDS)]
    fixed, more = (
        [draw for batch in part for draw in batch]
        for part in (batches[:_FIXED_ROUNDS], batches[_FIXED_ROUNDS:])
    )
    return draws(seed, 0), fixed, more if scales == _SCALES else []


def _scales(model: Path, evaluator_only: bool) -> tuple[float, ...]:
    return _SCALES if reference_of(model, evaluator_only).peer else _SCALES[1:3]


def compared(
    model: Path,
    module: Module,
    draws: Sequence[NamedArrays],
    outputs: Sequence[NamedArrays],
    numbers: Sequence[int],
    count: int,
    evaluator_only: bool,
    states: NarrowStates | None,
) -> list[Verdict]:
    """Returns a verdict on each output of `module`.

    `draws` has sets of input arrays, and `outputs` the outputs of `module` for each of them.  The
    first `count` draws have the user's seed.  The allowed errors are computed with all later draws.
    `numbers` has the index of each draw in its list of `draws_of`.  `evaluator_only`: only tcc's
    evaluator can run the model, as with `states`.
    """
    facts = dict(module.manifest), module.variant
    rounding = artifact_rounding(*facts)
    draw_count = len(draws)
    nudged = [_nudged(arrays, seed) for seed, arrays in enumerate(draws[count:])]
    changed = range(draw_count, draw_count + len(nudged))
    jobs = [
        ReferenceJob(range(draw_count), rounding),
        *(ReferenceJob(changed, changed_rounding(*facts, seed)) for seed in range(_NOISES)),
        *([] if rounding is None else [ReferenceJob(range(count))]),
    ]
    threads = len(os.sched_getaffinity(0))
    names = [port.name for port in module.outputs]
    expected, *runs = run_reference(
        model, names, jobs, [*draws, *nudged], threads, evaluator_only, states
    )
    if sorted(expected[0]) != sorted(names):
        raise UserError(
            "the artifact was compiled from another model",
            where=model,
            why=f"its outputs are {', '.join(names)}; "
            f"those of the model are {', '.join(expected[0])}",
            hint="compile the model again",
        )
    plain = expected[:count] if rounding is None else runs[_NOISES]
    floor = least_error(model, module.outputs)
    weights_alone = reference_of(model, evaluator_only).rounds_weights_alone
    if "int8" in module.manifest or (rounding is not None and weights_alone):
        floor = max(floor, mode_cost(module.manifest, model))
    kinds = _kinds(draws[0], numbers, _scales(model, evaluator_only))
    verdicts = []
    for name in expected[0]:
        got, want, exact = ([x[name] for x in results] for results in (outputs, expected, plain))
        noises = [[x[name] for x in results] for results in runs[:_NOISES]]
        allowed = allowance(want[count:], noises, kinds[count:], floor)
        cost = max(compare(name, *pair, 0.0).error for pair in zip(got, exact, strict=False))
        error, why = judged(got, want, kinds, allowed)
        for item in (compare(name, *pair, 0.0) for pair in zip_equal(got, want)):
            if item.error == np.inf:
                error, why = np.inf, item.why
        shares = class_shares(got, exact)
        verdicts.append(Verdict(name, error, allowed.share, cost, not why, why, *shares))
    return verdicts


def peer_line(
    kind: str, model: Path, draw: NamedArrays, outputs: NamedArrays, verdicts: Sequence[Verdict]
) -> tuple[str, bool]:
    """Returns (line, False if an output differs) on a comparison with the peer `kind`.

    `outputs` are those of the artifact for `draw`. The peer runs the unrounded model. So an output
    may differ by its verdict's `cost`, and by what noise allows. A peer that does not run the model
    says nothing of the artifact, and the line says why.
    """
    title = PEERS[kind].title
    try:
        with Peer(kind, model, draw, len(os.sched_getaffinity(0))) as peer:
            results = peer.outputs()
    except ToolError as error:
        return f"{title} does not run the model: {error.why.strip().splitlines()[-1]}", True
    errors = {v: compare(v.output, outputs[v.output], results[v.output], 0.0) for v in verdicts}
    wrong = [v.output for v, item in errors.items() if not item.error <= v.cost + v.allowed]
    worst = max(item.error for item in errors.values())
    text = f"{', '.join(wrong)} differ" if wrong else "agrees"
    return f"{title} {text}: largest error {worst:.1e} of the largest value", not wrong


def _kinds(inputs: NamedArrays, numbers: Sequence[int], scales: Sequence[float]) -> list[float]:
    """Returns a number for the kind of each draw; errors are compared among draws of one kind.

    `numbers` has the number of each draw, a set of inputs that `draws_of` makes. Draw n has the
    scale `scales[n % len(scales)]`; `scales` may have equal elements. The kind of a draw is its
    scale. But if an input is a scalar, which may choose a branch, the kind is n % len(scales).
    """
    scalar = any(array.ndim == 0 for array in inputs.values())
    return [n % len(scales) if scalar else scales[n % len(scales)] for n in numbers]


def _nudged(inputs: NamedArrays, seed: int) -> dict[str, Array]:
    """Returns `inputs` with every float replaced by its neighbour above or below."""
    rng = np.random.default_rng(seed)
    return {
        name: np.nextafter(x, rng.choice([-np.inf, np.inf], x.shape).astype(x.dtype))
        if np.issubdtype(x.dtype, np.floating)
        else x
        for name, x in inputs.items()
    }


def least_error(model: Path, outputs: Sequence[ModulePort] = ()) -> float:
    """Returns the error that is always allowed, relative to the largest value.

    It is the largest of these: eight rounding units of f16 or bf16 if the model computes in them,
    and one rounding step of each output with a type narrower than f16.
    """
    narrow = [FORMATS.get(DTYPES[port.dtype]) for port in outputs if is_carried(port)]
    steps = [2.0**-item.fraction for item in narrow if item is not None]
    return max([*(_NARROW.get(name, 0.0) for name in float_types(model)), *steps, 0.0])


def mode_cost(manifest: Mapping[str, Any], model: Path) -> float:
    """Returns the largest error that the artifact's precision may cause.

    Its integer weights and the model's own narrow floats count too.  For the precision int8 it is
    four times the expected root mean square, because one element may differ more.
    """
    modes = [manifest.get("precision", "f32"), *map(manifest.get, ("quantized", "activations"))]
    expected = 4.0 * float(manifest.get("int8", {"cost": 0})["cost"])
    floor = max(least_error(model), expected)
    return max(floor, *(TOLERANCES[mode] for mode in modes if mode is not None))
